"""AMQP 0-9-1 messages as NSQ clients see them: the body."""

from __future__ import annotations

from array import array

from tallymark.bridge.conversion.cells import body_in


def bodies(raw: bytes, cuts: array[int], lo: int, hi: int) -> list[bytes]:
    """Return the bodies of messages lo..hi-1."""
    found: list[bytes] = []
    for i in range(lo, hi):
        at = cuts[i]
        at += 8 + int.from_bytes(raw[at + 3 : at + 7], "big")  # the method frame
        at += 8 + int.from_bytes(raw[at + 3 : at + 7], "big")  # the header frame
        found.append(body_in(raw, at, cuts[i + 1]))
    return found
