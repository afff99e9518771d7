"""Formats: the engine's questions about messages whose bytes it cannot interpret.

Every wire format has a number (`Payload.format`) and an object here (`broker.formats`), made by the
bridge that knows it. A consumer's filter comes from a bridge, too. All methods need the bytes in
memory (`payload.raw`) and raise nothing, whatever a publisher put there: a property that cannot be
read is not there.
"""

from __future__ import annotations

from array import array

from mypy_extensions import mypyc_attr

from tallymark.engine.annotations import Annotations
from tallymark.engine.message import Payload


@mypyc_attr(allow_interpreted_subclasses=True)
class Format:
    """A format that is not known: its messages have no properties."""

    __slots__ = ()

    def priorities(self, payload: Payload, lo: int, hi: int) -> bytes:
        """Return one byte for each of the messages lo..hi-1: its priority, 0 where it has none."""
        return bytes(hi - lo)

    def ids(self, payload: Payload, lo: int, hi: int) -> list[str]:
        """Return the ids that publishers gave the messages lo..hi-1, for deduplication; "" where
        there is none."""
        return [""] * (hi - lo)

    def numbered(self, payload: Payload, lo: int, hi: int) -> list[tuple[str, int]]:
        """Return publisher name and publishing number of each of the messages lo..hi-1, by which a
        stream recognizes repeated publishes; ("", 0) where there are none. An empty list: no
        message has any."""
        return []

    def headers(self, payload: Payload, i: int) -> dict[str, object]:
        """Return the headers of message i, for routing by headers."""
        return {}

    def hop_limit(self, payload: Payload, i: int) -> int:
        """Return how many deaths the publisher of message i allows, 0..255 [DL-D1]; -1: not set."""
        return -1

    def bodies(self, payload: Payload) -> array[int]:
        """Return array('Q') of count + 1 running totals, from 0, of the body bytes of the messages,
        which a queue's limit on bytes counts."""
        return array("Q", payload.cuts)


@mypyc_attr(allow_interpreted_subclasses=True)
class Filter:
    """A filter that every message matches. Other filters are made by the bridges, which can decode
    messages.

    A filter is pure: the same message gets the same answer every time.
    """

    __slots__ = ()

    def matches(self, payload: Payload, i: int, known: Annotations | None) -> bool:
        """Return whether message i matches; its bytes are in memory. Raises nothing, whatever a
        publisher wrote: a message that cannot be decoded does not match."""
        return True
