"""Tables of the journal (journal/postgresql/schema.py), and changes of them.

A change is a tuple: its kind, the key of what it changes, and the new value. The server's log is a
list of commits, each with its changes: a standby server has what the log's beginning comes to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

EPOCH, LEASE, SEGMENT, ROW, FILE, FOLLOWER, VERSION, HELD = (
    "epoch", "lease", "segment", "row", "file", "follower", "version", "held",
)  # fmt: skip
GONE: Final = None
"""New value of what is removed."""
Change: TypeAlias = tuple[str, Any, Any]


class Row(NamedTuple):
    """A row of blocks."""

    epoch: int
    crc: int
    data: bytes


class Part(NamedTuple):
    """A part of a file."""

    crc: int
    data: bytes


class LeaseRow(NamedTuple):
    """A lease: who leads, and until when."""

    holder: str
    expires_ms: int
    request: str


@dataclass
class Tables:
    """Tables with all that is visible. Journals are numbers."""

    epochs: dict[int, int] = field(default_factory=dict)
    leases: dict[int, LeaseRow] = field(default_factory=dict)
    segments: dict[tuple[int, int], dict[int, Row]] = field(default_factory=dict)
    """Rows by position, of each journal's segment: a partition."""
    files: dict[tuple[int, str], dict[int, Part]] = field(default_factory=dict)
    """Parts by number, of each journal's file."""
    followers: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    """Position and time, in milliseconds, of each journal's followers."""
    version: int | None = None

    def with_changes(self, changes: Iterable[Change]) -> Tables:
        """Return what there will be after these changes, which leave this as it is."""
        made = Tables(
            {**self.epochs}, {**self.leases},
            {key: {**rows} for key, rows in self.segments.items()},
            {key: {**parts} for key, parts in self.files.items()},
            {**self.followers}, self.version,
        )  # fmt: skip
        made.apply(changes)
        return made

    def apply(self, changes: Iterable[Change]) -> None:
        """Change what there is."""
        for kind, key, value in changes:
            if kind == ROW:
                journal, position = key
                rows = self.segments[journal, position >> 32]
                _set(rows, position, value)
            elif kind == FILE:
                _set(self.files, key, value)
            elif kind == SEGMENT:
                if value is GONE:
                    self.segments.pop(key, None)
                else:
                    self.segments.setdefault(key, {})
            elif kind == EPOCH:
                self.epochs[key] = value
            elif kind == LEASE:
                self.leases[key] = value
            elif kind == FOLLOWER:
                _set(self.followers, key, value)
            elif kind == VERSION:
                self.version = value
            else:
                assert kind == HELD, kind

    def rows_of(self, journal: int, first: int = 0) -> dict[int, Row]:
        """Return the rows of a journal by position, ascending, from a segment on."""
        numbers = sorted(
            segment for one, segment in self.segments if one == journal and segment >= first
        )
        return {
            position: row
            for number in numbers
            for position, row in sorted(self.segments[journal, number].items())
        }


def _set(found: dict[Any, Any], key: Any, value: Any) -> None:
    if value is GONE:
        found.pop(key, None)
    else:
        found[key] = value
