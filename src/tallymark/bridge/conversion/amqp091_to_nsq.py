"""AMQP 0-9-1 messages as NSQ clients see them: the body."""

from __future__ import annotations

from array import array

from tallymark.wire.amqp091.frames import frame_length, joined


def bodies(raw: bytes, cuts: array[int], lo: int, hi: int) -> list[bytes]:
    """Return the bodies of messages lo..hi-1."""
    found: list[bytes] = []
    for i in range(lo, hi):
        header = cuts[i] + frame_length(raw, cuts[i])
        found.append(joined(raw, header + frame_length(raw, header), cuts[i + 1]))
    return found
