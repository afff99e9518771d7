"""Payloads, records and folders for the journal's tests."""

from __future__ import annotations

import os
import select
import threading
from array import array
from collections.abc import Iterable
from pathlib import Path

from tallymark.engine.message import Payload
from tallymark.engine.record import Record
from tallymark.journal.files import Files
from tallymark.journal.journal import Journal
from tallymark.stored.annotations import Route
from tallymark.stored.records import ENTERED, PAYLOAD, SETTLED
from tests.support.patience import PATIENCE_S

ROUTE = Route("orders", "eu.paid")
TIME = 1_700_000_000_000


def payload(
    cells: list[bytes],
    first_id: int = 1,
    route: Route = ROUTE,
    routes: list[Route] | None = None,
    format: int = 1,
    persistent: bool = True,
    largest_frame: int = 131,
) -> Payload:
    cuts = array("I", [0])
    for cell in cells:
        cuts.append(cuts[-1] + len(cell))
    return Payload(
        format, b"".join(cells), cuts, route, routes, first_id, TIME, persistent, largest_frame
    )


def entering(number: int, count: int = 1, size: int = 40, queue: int = 5) -> list[Record]:
    """A turn: `count` messages enter a queue as sequences number... Their bytes name them."""
    cells = [f"message {number + i} ".encode().ljust(size, b".") for i in range(count)]
    p = payload(cells, number)
    return [
        Record(PAYLOAD, 0, number, count, TIME, p),
        Record(ENTERED, queue, number, count, TIME + number, p, 0),
    ]


def settling(number: int, count: int = 1, queue: int = 5) -> list[Record]:
    return [Record(SETTLED, queue, number, count, TIME + number, owner=9, reason=1)]


def shown(record: Record) -> tuple[object, ...]:
    """Everything a record says, comparable; of the payload all but bytes and position."""
    p = record.payload
    about = None
    if p is not None:
        routes = None if p.routes is None else [(r.exchange, r.key) for r in p.routes]
        one = None if p.routes is not None else (p.route.exchange, p.route.key)
        about = (
            p.format, p.count, list(p.cuts), one, routes, p.first_id, p.arrived_ms, p.persistent,
            p.largest_frame, p.size,
        )  # fmt: skip
    return (
        record.kind, record.queue, record.first, record.count, record.time_ms, record.lo,
        record.owner, record.other, record.reason, record.flags, record.blob, about,
    )  # fmt: skip


def all_shown(records: Iterable[Record]) -> list[tuple[object, ...]]:
    return [shown(record) for record in records]


class Disk:
    """A journal's folder, and what the journal told its owner."""

    def __init__(self, folder: Path, files: Files | None = None, **settings: object) -> None:
        self.folder = folder
        self.files = files
        self.settings: dict[str, object] = {"segment_bytes": 4096, **settings}
        self.failures: list[OSError] = []
        self.failed = threading.Event()
        self.journal: Journal

    def open(self, **settings: object) -> list[Record]:
        """Open and recover; the journal is not started."""
        chosen = {**self.settings, **settings}
        self.journal = Journal(self.folder, self._failed, files=self.files, **chosen)  # type: ignore[arg-type]
        try:
            found = []
            for record in self.journal.recovered():
                if record.kind == ENTERED and record.payload is not None:
                    record.payload.live += record.count
                found.append(record)
        except BaseException:
            self.journal.close()
            raise
        return found

    def start(self, **settings: object) -> list[Record]:
        found = self.open(**settings)
        self.journal.start()
        return found

    def _failed(self, error: OSError) -> None:
        self.failures.append(error)
        self.failed.set()
        os.eventfd_write(self.journal.signal, 1)  # for who waits for what does not come any more

    def hear(self) -> bool:
        """Wait until the journal says that more is synced, or fails. False: it says nothing."""
        told, _, _ = select.select([self.journal.signal], [], [], PATIENCE_S)
        self.journal.hear()
        return bool(told)

    def wait(self, position: int | None = None) -> None:
        """Until the journal reported this position, by default its end, as synced."""
        upto = self.journal.end if position is None else position
        while self.journal.synced < upto:
            assert not self.failures, self.failures
            assert self.hear(), f"{self.journal.synced:#x} of {upto:#x}"

    def wait_failure(self) -> OSError:
        assert self.failed.wait(PATIENCE_S), "no failure was reported"
        return self.failures[0]

    def finish_cleaning(self) -> None:
        """Let the cleaner's thread end what it was given."""
        self.journal.finish_cleaning()

    def clean(self, now_ms: int = TIME, retention_ms: int = 1 << 40, rounds: int = 30) -> None:
        """Steps of cleaning until nothing is left to do."""
        for _ in range(rounds):
            self.journal.clean(now_ms, retention_ms)
            self.finish_cleaning()
        self.journal.clean(now_ms, retention_ms)
        self.finish_cleaning()

    def names(self, suffix: str) -> list[str]:
        return sorted(p.name for p in self.folder.iterdir() if p.name.endswith(suffix))

    def segments(self) -> list[Path]:
        return sorted(p for p in self.folder.glob("0*.segment"))
