"""kill -9 of the broker while a stream is published to, read and let go of, and an exact account.

Offsets never change and never repeat, whoever has read them; each confirmed message is there once,
or retention took it, from the beginning; what publishers send again is passed over.

CRASH_ROUNDS sets the number of rounds (3; 60 in `make test-long`), CRASH_SEED the seed.
"""

from __future__ import annotations

import json
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.long import longer, sized
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess
from tests.support.stream_load import STREAM, Known, Message, Publisher, declare, follow, read_range

ROUNDS = int(os.environ.get("CRASH_ROUNDS", sized(3, 12, 60)))
SEED = int(os.environ.get("CRASH_SEED", 20261120))
BASE = f"/api/tallymark/streams/%2F/{STREAM}"
SMALL = {"segment_size": "1MiB", "checkpoint_every": "1MiB", "max_memory": "16MiB"}
KEPT = (300_000, 2_000_000, 50_000_000)
MOST = 4_000
"""Confirmed messages before and after retention is changed, at most."""
LARGEST = 8_000
"""Bytes of a message with its framing, at most."""


class Field:
    """The folder, the broker on it, and what the clients know over all rounds."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.known = Known()
        self.publishers = [
            Publisher(id, self.known, random.Random(seed + id)) for id in range(2)
        ]  # fmt: skip
        self.broker = BrokerProcess(folder / "data", log_level="warning", **SMALL)
        self.kept = 0
        self.seen = 0

    def round(self) -> None:
        self._load_and_kill()
        self.broker.flags = {"log_level": "warning", **self.chance.choice([SMALL, SMALL, {}])}
        self.broker.restart()
        self._verify()

    def set_retention(self) -> None:
        self.kept = self.chance.choice(KEPT)
        self._done("PUT", "/api/policies/%2F/keep", {
            "pattern": f"^{STREAM}$", "definition": {"max-length-bytes": self.kept},
        })  # fmt: skip

    def _done(self, method: str, path: str, body: object) -> None:
        status, found = self.broker.http(method, path, body)
        assert status in (200, 201, 204), found

    def _load_and_kill(self) -> None:
        port, ended = self.broker.amqp_port, threading.Event()
        threads = [
            threading.Thread(target=publisher.run, args=(port, ended))
            for publisher in self.publishers
        ]
        next_offset = self._stat()["next"]
        for start in (0, next_offset):
            prefetch = self.chance.choice([1, 100, 5000])
            threads.append(
                threading.Thread(target=follow, args=(port, start, prefetch, self.known, ended))
            )
        for thread in threads:
            thread.start()
        self._wait_for(self.chance.randint(100, MOST))
        if self.chance.random() < 0.5:
            self.set_retention()
        self._wait_for(self.chance.randint(0, MOST))
        self.broker.kill()
        ended.set()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def _wait_for(self, count: int) -> None:
        """Until so many more messages are confirmed."""
        confirmed = self.known.confirmed
        wanted = sum(confirmed.values()) + count
        until(lambda: sum(confirmed.values()) >= wanted, what=lambda: confirmed)

    def _stat(self) -> dict[str, Any]:
        status, found = self.broker.http("GET", BASE)
        assert status == 200, found
        return dict(found)

    def _read_all(self) -> tuple[int, int, dict[int, Message]]:
        """What is there now: from, to, and each message."""
        stat = self._stat()
        low, high = stat["first"], stat["next"]
        found: dict[int, Message] = {}
        at = low
        while at < high:
            status, far = self.broker.http("GET", f"{BASE}/range?from={at}&max_bytes=1000000")
            assert status == 200, far
            end = far["to"]
            while at < end:
                path = f"{BASE}/read?from={at}&to={end}&max_bytes=300000"
                status, data = self.broker.http_bytes("GET", path)
                assert status == 200, json.loads(data)
                # How far an answer goes its rows say too.
                rows_end = _end_of(data)
                found |= read_range(data, at, rows_end)
                at = rows_end
        return low, high, found

    def _verify(self) -> None:
        known = self.known
        low, high, found = self._read_all()
        for offset, message in found.items():
            known.saw(offset, message)
        assert known.breaches == []
        read = [offset for offset in known.at if offset >= low]
        assert set(read) == set(found), "what was read once is there, at its offset"
        assert max(known.at, default=-1) < high
        self.seen = max(self.seen, len(known.at))
        for publisher in self.publishers:
            mine = [n for id, n in (found[at] for at in sorted(found)) if id == publisher.id]
            assert mine == sorted(set(mine)), f"numbers of {publisher.id} twice or out of order"
            confirmed = known.confirmed[publisher.id]
            if mine:
                wanted = range(mine[0], confirmed + 1)
                missing = set(wanted) - set(mine)
                assert not missing, f"{len(missing)} confirmed messages are missing"
                assert mine[-1] <= publisher.sent
        self._check_account(low, high, len(found))

    def _check_account(self, low: int, high: int, messages: int) -> None:
        row = self.broker.queues()[STREAM]
        dropped = row["dropped"]
        assert set(dropped) <= {"retention", "duplicate"}, dropped
        assert row["entered"] == row["ready"] + sum(dropped.values()) == high
        assert row["ready"] == messages
        assert (row["settled"], row["acquired"], row["dead_lettered"]) == (0, 0, 0)
        assert row["ready_bytes"] <= self.kept
        if dropped.get("retention", 0):
            assert low > 0
            smallest = min(KEPT)  # of all that were in effect
            assert row["ready_bytes"] > smallest - LARGEST


def _end_of(data: bytes) -> int:
    from tallymark.engine.records import PAYLOAD
    from tallymark.journal import layout

    rows = [r for r in layout.unpack(data) if r.kind != PAYLOAD]
    return rows[-1].first + rows[-1].count - 1


@longer
@pytest.mark.timeout(120 + 30 * ROUNDS)
def test_kill_9_under_publish_and_retention(tmp_path: Path) -> None:
    field = Field(tmp_path, SEED)
    with field.broker:
        declare(field.broker.amqp_port, {})
        field.set_retention()
        for number in range(ROUNDS):
            try:
                field.round()
            except (AssertionError, OSError) as error:
                error.add_note(f"round {number} of {ROUNDS}, seed {SEED}")
                raise
    sent = [publisher.sent for publisher in field.publishers]
    print(f"{ROUNDS} rounds: {sum(sent)} published, {field.seen} offsets read")
    assert field.seen > 100
