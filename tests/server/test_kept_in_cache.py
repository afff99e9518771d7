"""Whether the journal's files stay in the system's cache: where bodies may be read back."""

from __future__ import annotations

from pathlib import Path

from bench.lean import PERSISTENT, publish, short
from bench.stepped import SteppedBroker
from tallymark.server.housekeeping import CACHED_SHARE


def test_files_stay_in_the_systems_cache_while_bodies_may_leave_memory(tmp_path: Path) -> None:
    with SteppedBroker(tmp_path / "data") as broker:
        source = broker.amqp().enter(confirms=True)
        source.call((50, 10), b"\0\0" + short("q") + b"\2" + bytes(4))
        store, jobs = broker.node.broker.store, broker.node.journal._writer.jobs
        share = broker.node.config.max_memory // CACHED_SHARE
        found = []
        for size in (0, share, -share):
            store.hold(size)
            source.send(publish(1, "", "q", PERSISTENT, b"x" * 100))
            found.append(jobs.keeps_cached)
        assert found == [False, True, False]
