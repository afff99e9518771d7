"""A home of a journal in memory: what a leader writes to PostgreSQL, without one.

`fill` makes a folder what a machine with an empty disk finds: that of a start, or of a broker that
follows. A call of `hold` makes appends wait, as a database does that is slow or away.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tallymark.journal.threads import REAL
from tallymark.stored.segment import parsed_checkpoint, parsed_name, segment_name


class MemoryHome:
    """Segments as rows of whole blocks, all other files as they are."""

    def __init__(self) -> None:
        self.segments: dict[int, dict[int, bytes]] = {}
        """Rows of each segment, by offset."""
        self.files: dict[str, bytes] = {}
        self.trouble = ""
        self.waits_s = 0.0
        """A test sets these to what the journal's owner is to see."""
        self.failure: OSError | None = None
        """A test sets this to what the next changes raise."""
        self.free = REAL.event()
        """An event that appends wait for."""
        self.free.set()
        self.has_ended = False

    # -- what the journal calls

    def append(self, segment: int, offset: int, buffers: list[bytes]) -> None:
        self.free.wait()
        self._check()
        rows = self.segments.setdefault(segment, {})
        assert offset == sum(map(len, rows.values())), f"{offset} in segment {segment}"
        rows[offset] = b"".join(buffers)

    def put(self, folder: Path, names: Sequence[str], gone: Sequence[str]) -> None:
        self.free.wait()
        self._check()
        for name in gone:
            self.remove(name)
        for name in names:
            self.change(name, (folder / name).read_bytes())

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def end(self) -> None:
        self.has_ended = True

    def close(self) -> None:
        return

    # -- what a test calls

    def home(self) -> MemoryHome:
        return self

    def hold(self) -> None:
        """Let appends wait until `free` is set."""
        self.free = REAL.event()

    def change(self, name: str, data: bytes) -> None:
        """Let the home say this of a file."""
        if (number := _segment(name)) is not None:
            self.segments[number] = {0: data}
        else:
            self.files[name] = data

    def remove(self, name: str) -> None:
        if (number := _segment(name)) is not None:
            self.segments.pop(number, None)
        else:
            self.files.pop(name, None)

    def copy(self) -> MemoryHome:
        """Return another home that has the same."""
        made = MemoryHome()
        made.segments = {number: rows.copy() for number, rows in self.segments.items()}
        made.files = self.files.copy()
        return made

    def fill(self, folder: Path) -> None:
        """Make the folder what is here; other files than the journal's stay."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if parsed_name(path.name) or parsed_checkpoint(path.name) is not None:
                path.unlink()
        for number, rows in self.segments.items():
            data = b"".join(rows.values())
            salt = int.from_bytes(data[8:12], "little")
            (folder / segment_name(number, salt)).write_bytes(data)
        for name, data in self.files.items():
            (folder / name).write_bytes(data)


def _segment(name: str) -> int | None:
    named = parsed_name(name)
    return named[0] if named is not None and name.endswith(".segment") else None
