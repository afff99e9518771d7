"""Folders that earlier versions wrote stay readable [DL-20].

`formats/NAME` is a data folder as that version left it after a crash, without lock and spares. It
was written once, by that version, and is never made again: `state.json` says what it holds.

    before_dead_letters   0.1 before it had dead letters: two checkpoints, ledgers, moved payloads,
                          leases, transient messages, every kind of record up to LIVE
    before_checksums      0.1 before bodies had checksums of their own: dead letters, a stream, a
                          lease, runs and single messages
    before_the_rooms      0.1 before its modules became packages: a clean stop and a crash, a quorum
                          queue, priorities, expiry, a stream, a transaction, block format 2
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tallymark.engine.broker import Broker
from tallymark.engine.message import Format
from tallymark.engine.queue import Queue
from tallymark.engine.restore import Restorer, live_payloads
from tallymark.engine.subscription import subscriptions_of
from tallymark.journal.journal import Journal
from tallymark.journal.verify import verify

FORMATS = Path(__file__).parent / "formats"
NOW = 1_700_001_000_000


@pytest.fixture(params=sorted(path.name for path in FORMATS.iterdir()))
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of one of the folders."""
    folder = tmp_path / str(request.param)
    shutil.copytree(FORMATS / str(request.param), folder)
    return folder


def fail(error: OSError) -> None:
    raise error


def text_of(raw: bytes) -> str:
    """The body: the last frame without its head and end."""
    return raw[raw.rindex(b"order ") : -1].decode().rstrip(".")


def queue_state(broker: Broker, queue: Queue) -> dict[str, Any]:
    ready = []
    for piece in broker.contents.pin(queue):
        broker.store.load(piece.payload)
        raw, cuts = piece.payload.raw, piece.payload.cuts
        assert raw is not None
        for i in range(piece.lo, piece.hi):
            route = piece.payload.routes[i] if piece.payload.routes else piece.payload.route
            ready.append(
                [
                    piece.first + i - piece.lo,
                    text_of(raw[cuts[i] : cuts[i + 1]]),
                    piece.acquired > 0,
                    f"{route.exchange}/{route.key}",
                ]
            )
    # A term that came later is 0 for what is older.
    counters = {name: value for name, value in queue.counters().items() if value not in (0, {})}
    return {"counters": counters, "ready": ready, "leases": leases_of(broker, queue)}


def leases_of(broker: Broker, queue: Queue) -> list[list[object]]:
    out: list[list[object]] = []
    for held in subscriptions_of(queue):
        for first, piece in broker.leases.read(held, held.floor, held.next):
            raw, cuts = piece.payload.raw, piece.payload.cuts
            assert raw is not None
            for i in range(piece.lo, piece.hi):
                body = text_of(raw[cuts[i] : cuts[i + 1]])
                out.append([held.name, first + i - piece.lo, body])
    return out


def state_of(folder: Path) -> dict[str, Any]:
    """What a broker has that starts from the folder, in the words of state.json."""
    journal = Journal(folder, fail, segment_bytes=4096)
    try:
        broker = Broker(journal.fetch)
        broker.formats[1] = Format()
        broker.clock.tell(NOW)
        Restorer(broker).run(journal.recovered())
        for payload in live_payloads(broker):
            assert journal.retain(payload.position, payload.size)
        journal.start()
        assert journal.problems == []
        broker.check()
        queues = {queue.name: queue_state(broker, queue) for queue in broker.queues.values()}
        return {"queues": queues, "message_ids": broker.state.message_ids.last}
    finally:
        journal.close()


def test_dl_20_a_folder_of_an_earlier_version_is_restored(stored: Path) -> None:
    expected = json.loads((stored / "state.json").read_text())
    assert verify(stored).as_dict()["rows"] == expected["rows"]
    found = json.loads(json.dumps(state_of(stored)))
    assert found["message_ids"] == expected["message_ids"]
    assert found["queues"] == expected["queues"]


def without_flags(state: dict[str, Any]) -> dict[str, Any]:
    """A clean stop's checkpoint says exactly what was delivered; without it more is flagged."""
    for queue in state["queues"].values():
        for message in queue["ready"]:
            del message[2]
    return state


def test_dl_20_also_without_its_newest_checkpoint(stored: Path) -> None:
    newest = max(stored.glob("*.checkpoint"))
    newest.unlink()
    expected = json.loads((stored / "state.json").read_text())
    found = json.loads(json.dumps(state_of(stored)))
    if not list(stored.glob("*.checkpoint")):
        expected, found = without_flags(expected), without_flags(found)
    assert found["queues"] == expected["queues"]
