"""What the engine asks about messages whose bytes it cannot read.

Every wire format has a number (`Payload.format`) and an object here (`broker.formats`), made by the
bridge that knows it. All methods need the bytes in memory (`payload.raw`) and raise nothing,
whatever a publisher put there: what cannot be read is not there.
"""

from __future__ import annotations

from array import array

from mypy_extensions import mypyc_attr

from tallymark.engine.message import Payload


@mypyc_attr(allow_interpreted_subclasses=True)
class Format:
    """A format of which nothing is known: no message says anything."""

    __slots__ = ()

    def priorities(self, payload: Payload, lo: int, hi: int) -> bytes:
        """One byte for each of the messages lo..hi-1: its priority, 0 where it has none."""
        return bytes(hi - lo)

    def ids(self, payload: Payload, lo: int, hi: int) -> list[str]:
        """The ids that publishers gave the messages lo..hi-1, by which a deduplicating queue tells
        them apart; "" where there is none."""
        return [""] * (hi - lo)

    def numbered(self, payload: Payload, lo: int, hi: int) -> list[tuple[str, int]]:
        """The names of publishers and the numbers that they gave the messages lo..hi-1, by which a
        stream passes over what it has already; ("", 0) where there are none. Empty: nowhere are."""
        return []

    def headers(self, payload: Payload, i: int) -> dict[str, object]:
        """What routing by headers looks at in message i."""
        return {}

    def hop_limit(self, payload: Payload, i: int) -> int:
        """How many deaths the publisher of message i grants it, 0..255 [DL-D1]; -1: not said."""
        return -1

    def bodies(self, payload: Payload) -> array[int]:
        """array('Q') of count + 1 running totals, from 0, of the bytes of the messages' bodies:
        what a limit on a queue's bytes counts."""
        return array("Q", payload.cuts)
