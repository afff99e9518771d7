"""Payloads, records and folders for the journal's tests."""

from __future__ import annotations

import os
import select
import shutil
import threading
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from tallymark.engine.message import Payload
from tallymark.engine.record import Record
from tallymark.journal.files import Files
from tallymark.journal.home import Home
from tallymark.journal.journal import Journal
from tallymark.stored.annotations import Route
from tallymark.stored.layout import FORMAT, HEADER, header_at
from tallymark.stored.records import ENTERED, PAYLOAD, SETTLED
from tests.support.long import long
from tests.support.patience import PATIENCE_S

ROUTE = Route("orders", "eu.paid")
TIME = 1_700_000_000_000
HOMES = [
    "local",
    "memory",
    pytest.param("postgresql", marks=long(ci=False)),  # its twin in memory is brief
]
"""Homes of a journal: its folder, and those of which the folder is a copy."""
local = pytest.mark.parametrize("disk", ["local"], indirect=True)


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

    def make(self, **settings: object) -> Journal:
        """The journal, neither recovered nor started."""
        chosen = {**self.settings, **settings}
        self.journal = Journal(
            self.folder, self._failed, files=self.files, home=self.home(), **chosen  # type: ignore[arg-type]
        )  # fmt: skip
        return self.journal

    @contextmanager
    def copied(self, folder: Path) -> Iterator[Disk]:
        """The same journal once more, in another folder."""
        shutil.copytree(self.folder, folder)
        yield Disk(folder, **self.settings)
        shutil.rmtree(folder)

    def open(self, **settings: object) -> list[Record]:
        """Open and recover; the journal is not started."""
        self.make(**settings)
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

    def home(self) -> Home | None:
        """The journal's home; the folder is a copy of what is there."""
        return None

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

    def change(self, name: str, data: bytes) -> None:
        """Change what the journal's home says of a file, as damage does. The journal is closed."""
        (self.folder / name).write_bytes(data)

    def remove(self, name: str) -> None:
        """Lose a file of the journal's home. The journal is closed."""
        (self.folder / name).unlink()


class Keeper(Protocol):
    """A home that outlives the journals that write to it."""

    def home(self) -> Home:
        """The home of who leads from now on."""

    def fill(self, folder: Path) -> None:
        """Make a folder a copy of what is there."""

    def change(self, name: str, data: bytes) -> None:
        """Let it say this of a file."""

    def remove(self, name: str) -> None:
        """Lose a file."""

    def copy(self) -> Keeper:
        """Another one that has the same."""

    def close(self) -> None:
        """Leave nothing behind."""


class Elsewhere(Disk):
    """A journal with a home outside of its folder, which is a copy of it at each start."""

    def __init__(self, folder: Path, keeper: Keeper, **settings: object) -> None:
        super().__init__(folder, **settings)  # type: ignore[arg-type]
        self.keeper = keeper

    def home(self) -> Home | None:
        home = self.keeper.home()
        self.keeper.fill(self.folder)
        return home

    def change(self, name: str, data: bytes) -> None:
        self.keeper.change(name, data)

    def remove(self, name: str) -> None:
        self.keeper.remove(name)

    @contextmanager
    def copied(self, folder: Path) -> Iterator[Disk]:
        """The same journal once more: a home of its own, and an empty folder."""
        keeper = self.keeper.copy()
        folder.mkdir()
        yield Elsewhere(folder, keeper, **self.settings)
        keeper.close()
        shutil.rmtree(folder)


def make_newer(path: Path, at: int) -> None:
    """Give the block at an offset of a file the format version that comes next."""
    data = path.read_bytes()
    header = header_at(data, at)
    assert header is not None
    header.version = FORMAT + 1
    path.write_bytes(data[:at] + header.encoded() + data[at + HEADER :])
