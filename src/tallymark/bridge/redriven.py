"""Redrive notes: information that a redrive adds to the messages it moves, for their next readers.

Message annotations of AMQP 1.0, headers of the same names in AMQP 0-9-1; they stay on the message
for good, and the next redrive writes them anew:

    x-opt-redriven-count   ulong      how often it was redriven
    x-opt-redriven-from    string     the queue it was redriven from
    x-opt-redriven-time    timestamp  when
    x-opt-redriven-run     string     the name of the run that did it
"""

from __future__ import annotations

from operator import index
from typing import Final, final

from tallymark.stored.annotations import Notes
from tallymark.units import WallMs
from tallymark.wire.amqp10.codec import decode, encode
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.types import Timestamp, ULong

COUNT: Final = "x-opt-redriven-count"
FROM: Final = "x-opt-redriven-from"
TIME: Final = "x-opt-redriven-time"
RUN: Final = "x-opt-redriven-run"


@final
class Stamp:
    """The notes of messages that one run moves from one queue at one time."""

    __slots__ = ("_from", "_run", "_time")

    def __init__(self, queue: str, run: str, now_ms: WallMs) -> None:
        """Encode the texts. Raises ValueError for texts that AMQP 1.0 has no encoding for."""
        self._from = encode(queue)
        self._run = encode(run)
        self._time = encode(Timestamp(now_ms))

    def put_on(self, notes: Notes) -> Notes:
        """Return the notes of messages that are moved now."""
        known = dict(notes)
        known[COUNT] = encode(ULong(_count_in(known.get(COUNT, b"")) + 1))
        known[FROM] = self._from
        known[TIME] = self._time
        known[RUN] = self._run
        return tuple(sorted(known.items()))

    def is_on(self, notes: Notes) -> bool:
        """Return whether messages with these notes were last moved by the same run."""
        for key, value in notes:
            if key == RUN:
                return value == self._run
        return False


def _count_in(value: bytes) -> int:
    """Decode the count in a note. A value that is no ulong, as a consumer may have set, counts as
    0."""
    if not value:
        return 0
    try:
        found = decode(value, 0, len(value))[0]
    except DecodeError:
        return 0
    return index(found) if isinstance(found, ULong) else 0
