"""Messages travel in stretches: the payload, the slice, and the format that can read them.

A *payload* is what arrived together: the raw bytes in the publisher's own wire format and the cut
positions between messages. It is shared by every queue it was routed to. A *slice* is one queue's
window onto a payload: a range of its messages, with the queue's sequence numbers and whatever is
equal for all of them. Everything the broker does costs per slice, hardly anything per message.

    payload   raw  |m0      |m1    |m2         |m3 |
              cuts 0        8      14          25  29
    slice     payload, lo=1, hi=3, first=702  ->  m1 is sequence 702, m2 is 703

The engine cannot interpret the bytes. Every wire *format* has a number (`Payload.format`) and an
object that answers questions about them (`broker.formats`), made by the bridge that knows it. A
consumer's filter comes from a bridge, too. All methods of both need the bytes in memory
(`payload.raw`) and raise nothing, whatever a publisher put there: a property that cannot be read is
not there.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left
from typing import Final, final

from mypy_extensions import mypyc_attr

from tallymark.stored.annotations import Annotations, Route
from tallymark.units import EngineMs, MessageId, Position, QueueSequence

NOWHERE: Final = -1
"""Position of a payload that is not stored in the journal."""
ON_ITS_WAY: Final = -2
"""Position of a payload whose record is emitted but not yet committed."""
UNKNOWN: Final = -1
"""Checksum of a payload for which none was computed."""
PACKED: Final = -3
"""Position of a packed payload: each of its messages has a position of its own."""
PART: Final = 64
"""Number of packed messages whose annotations are compressed together."""
FASTEST: Final = 1
"""Compression level."""


def opened(part: bytes) -> list[bytes]:
    """Decompress the stored annotations of one part, in order; b"" for a message without."""
    return zlib.decompress(part).split(b"\n")


def closed(blobs: list[bytes]) -> bytes:
    """Compress the stored annotations of one part; the reverse of `opened`."""
    return zlib.compress(b"\n".join(blobs), FASTEST)


@final
class Pack:
    """Columns that locate each message of a packed payload: 28 bytes a message, and 4 of cuts."""

    # A compiled class has no dictionary of attributes. Only those that exist once for each message
    # or delivery name their slots: interpreted, a dictionary each would double their memory.
    __slots__ = ("annotations", "arrivals", "entered", "ids", "positions", "sums", "taken")

    def __init__(
        self,
        positions: array[int],
        ids: array[int],
        arrivals: array[int],
        annotations: list[bytes],
        entered: array[int] | None = None,
    ) -> None:
        self.positions = positions
        """array('Q'): journal position of each message's bytes."""
        self.ids = ids
        """array('Q'): broker-wide message ids."""
        self.arrivals = arrivals
        """array('Q'): arrival time of each message, engine time, ms."""
        self.annotations = annotations
        """Annotations of the messages, compressed, PART of them at a time: see `blobs`. Empty if
        the slice's annotations apply to all."""
        self.entered = arrivals if entered is None else entered
        """array('Q'): time at which each message entered its queue, where the slice does not give
        one time for all. A separate column only if there are annotations, which may carry such a
        time."""
        self.sums: array[int] | None = None
        """array('I'): CRC-32C of each message's bytes; None: not known for all of them."""
        self.taken = 0
        """Count of messages, from the front, that were unpacked into payloads of their own."""

    def together(self, whole: Payload, lo: int, hi: int) -> int:
        """Return the end of the messages from `lo` on, `hi` at most, that might have been one
        payload: they arrived at one time on one route, and their bytes are adjacent."""
        positions, ids, cuts, routes = self.positions, self.ids, whole.cuts, whole.routes
        arrived = self.arrivals[lo]
        at = lo + 1
        while (
            at < hi
            and positions[at] == positions[at - 1] + cuts[at] - cuts[at - 1]
            and ids[at] == ids[at - 1] + 1
            and self.arrivals[at] == arrived
            and (routes is None or routes[at] is routes[lo])
        ):
            at += 1
        return at

    def blobs(self, lo: int, hi: int) -> list[bytes]:
        """Return the stored annotations of messages lo..hi-1, b"" for a message without; an empty
        list if the slice's annotations apply to all."""
        if not self.annotations:
            return []
        out: list[bytes] = []
        for part in self.annotations[lo // PART : (hi + PART - 1) // PART]:
            out += opened(part)
        return out[lo % PART : lo % PART + hi - lo]


@final
class Payload:
    """Messages that arrived together, in the wire format of their publisher. Immutable except for
    the place of its bytes: in memory (`raw`), in the journal (`position`), or both."""

    __slots__ = (
        "format", "count", "raw", "cuts", "route", "routes", "first_id", "arrived_ms", "persistent",
        "largest_frame", "position", "live", "size", "sum", "sums", "pack", "bodies",
    )  # fmt: skip

    def __init__(
        self,
        format: int,
        raw: bytes | None,
        cuts: array[int],
        route: Route,
        routes: list[Route] | None,
        first_id: MessageId,
        arrived_ms: EngineMs,
        persistent: bool,
        largest_frame: int,
    ) -> None:
        self.format = format
        """Wire format of the messages. Only bridges and readers of the ledger decode it."""
        self.count = len(cuts) - 1
        self.raw = raw
        """The messages end to end, or None while they are in the journal only."""
        self.cuts = cuts
        """array('I'): count + 1 offsets into raw; message i is raw[cuts[i]:cuts[i + 1]]."""
        self.route = route
        self.routes = routes
        """One route per message, or None when `route` holds for all."""
        self.first_id = first_id
        """Broker-wide message id of message 0; message i has first_id + i."""
        self.arrived_ms = arrived_ms
        """Arrival time of the messages, engine time, ms."""
        self.persistent = persistent
        self.largest_frame = largest_frame
        """Bytes of the largest frame in raw; a reader with a smaller limit needs re-framing."""
        self.position = Position(NOWHERE)
        """Journal position of raw; negative while it has none. Set by the journal's commit."""
        self.live = 0
        """Count of (queue, message) pairs that still need these bytes; 0 releases them."""
        self.size = cuts[self.count]
        """Bytes of raw."""
        self.sum = UNKNOWN
        """CRC-32C of raw, against which bytes read back are checked. Set by the journal's commit;
        UNKNOWN before that, for parts, and for payloads stored by earlier versions."""
        self.sums: array[int] | None = None
        """array('I'): CRC-32C of each message, if they were stored one by one."""
        self.bodies: array[int] | None = None
        """array('Q'): count + 1 running totals of body bytes; made only for queues that limit
        bytes."""
        self.pack: Pack | None = None
        """Columns of a packed payload, which stands for many single messages of a deep backlog
        (packing.py). It has no raw and no position of its own; its messages are unpacked as
        `single` payloads."""

    def window(self, lo: int, hi: int) -> Payload:
        """Return messages lo..hi-1 as a payload of their own, with bytes in the journal. It is
        packed if this one is, but has no packed annotations."""
        pack = self.pack
        if lo == 0 and hi == self.count and (pack is None or not pack.annotations):
            return self
        cuts = self.cuts
        base = cuts[lo]
        part = Payload(
            self.format, None, array("I", [cut - base for cut in cuts[lo : hi + 1]]), self.route,
            self.routes[lo:hi] if self.routes is not None else None, MessageId(self.first_id + lo),
            self.arrived_ms, self.persistent, self.largest_frame,
        )  # fmt: skip
        if pack is None:
            part.position = Position(self.position + base)
        else:
            part.position = Position(PACKED)
            part.pack = Pack(pack.positions[lo:hi], pack.ids[lo:hi], pack.arrivals[lo:hi], [])
            if pack.sums is not None:
                part.pack.sums = pack.sums[lo:hi]
        return part

    def single(self, i: int) -> Payload:
        """Return message i of a packed payload as a payload of its own, with bytes in the
        journal."""
        return self.stretch(i, i + 1)

    def stretch(self, lo: int, hi: int) -> Payload:
        """Return messages lo..hi-1 of a packed payload as a payload of their own, with bytes in the
        journal. Their bytes must be adjacent (`together`)."""
        pack = self.pack
        assert pack is not None
        cuts = self.cuts
        base = cuts[lo]
        own = array("I", (0, cuts[hi] - base))
        if hi - lo > 1:
            own = array("I", [cut - base for cut in cuts[lo : hi + 1]])
        route = self.routes[lo] if self.routes is not None else self.route
        part = Payload(
            self.format, None, own, route, None, MessageId(pack.ids[lo]),
            EngineMs(pack.arrivals[lo]), self.persistent, self.largest_frame,
        )  # fmt: skip
        part.position = Position(pack.positions[lo])
        if pack.sums is not None:
            if hi - lo == 1:
                part.sum = pack.sums[lo]
            else:
                part.sums = pack.sums[lo:hi]
        return part


@final
class Slice:
    """One queue's window onto a payload: messages lo..hi-1, sequences first..first+hi-lo-1."""

    __slots__ = (
        "acquired", "annotations", "failed", "first", "hi", "lo", "payload", "priority", "shift",
    )  # fmt: skip

    def __init__(
        self,
        payload: Payload,
        lo: int,
        hi: int,
        first: QueueSequence,
        acquired: int,
        failed: int = 0,
        priority: int = 0,
        annotations: Annotations | None = None,
        shift: int = 0,
    ) -> None:
        self.payload = payload
        self.lo = lo
        self.hi = hi
        self.first = first
        """The queue's sequence number of message `lo`. Never reused, never changed."""
        self.acquired = acquired
        """Count of earlier deliveries of these messages; above 0 they are redelivered."""
        self.failed = failed
        """Count of the earlier deliveries that failed [DL-5]."""
        self.priority = priority
        """Priority in the present queue; 0 if that has no priorities."""
        self.annotations = annotations
        """Annotations of the messages; None in the ordinary case that there are none."""
        self.shift = shift
        """Distance of the messages' place from their sequence: place = sequence + shift. Above 0
        only for messages put to the tail, and for messages that entered after those."""

    def __len__(self) -> int:
        return self.hi - self.lo

    def size(self) -> int:
        """Return the raw bytes of these messages, framing included. O(1)."""
        payload = self.payload
        if self.hi - self.lo == payload.count:
            return payload.size
        cuts = payload.cuts
        return cuts[self.hi] - cuts[self.lo]

    def body_bytes(self) -> int:
        """Return the bytes of the bodies alone. payload.bodies must be there."""
        bodies = self.payload.bodies
        assert bodies is not None, self.first
        return bodies[self.hi] - bodies[self.lo]

    def known(self) -> bytes:
        """Return the annotations in stored form, as a ledger row's blob carries them; b"" if there
        are none."""
        return b"" if self.annotations is None else self.annotations.to_bytes()

    def part(self, start: int, stop: int) -> Slice:
        """Return the messages with index start..stop-1 of this slice as a slice of their own."""
        return Slice(
            self.payload, self.lo + start, self.lo + stop, QueueSequence(self.first + start),
            self.acquired, self.failed, self.priority, self.annotations, self.shift,
        )  # fmt: skip

    def take(self, n: int) -> Slice:
        """Cut the first n messages off (0 < n < len) and return them; the rest stays."""
        front = self.part(0, n)
        self.lo += n
        self.first = QueueSequence(self.first + n)
        return front

    def followed_by(self, other: Slice) -> bool:
        """Return whether `other` continues this slice, so that the two can be merged."""
        return (
            self.payload is other.payload
            and self.hi == other.lo
            and self.first + self.hi - self.lo == other.first
            and self.acquired == other.acquired
            and self.annotations is other.annotations
            and self.failed == other.failed
            and self.priority == other.priority
            and self.shift == other.shift
        )

    def entered_ms(self) -> EngineMs:
        """Return the time at which the messages entered their queue, for packed ones that of the
        first; engine time, ms."""
        return self._entered_ms(self.lo)

    def last_ms(self) -> EngineMs:
        """Return the time at which the last message entered its queue; engine time, ms."""
        return self._entered_ms(self.hi - 1)

    def _entered_ms(self, i: int) -> EngineMs:
        known = self.annotations
        if known is not None and known.since_ms:
            return EngineMs(known.since_ms)
        pack = self.payload.pack
        return EngineMs(self.payload.arrived_ms if pack is None else pack.entered[i])

    def older(self, time_ms: EngineMs) -> int:
        """Return how many messages, from the first on, entered before `time_ms` (engine time)."""
        if self.last_ms() < time_ms:
            return len(self)
        pack = self.payload.pack
        if pack is None or self.entered_ms() >= time_ms:
            return 0
        return bisect_left(pack.entered, time_ms, self.lo, self.hi) - self.lo


@mypyc_attr(allow_interpreted_subclasses=True)
class Format:
    """A format that is not known: its messages have no properties."""

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

    def matches(self, payload: Payload, i: int, known: Annotations | None) -> bool:
        """Return whether message i matches; its bytes are in memory. Raises nothing, whatever a
        publisher wrote: a message that cannot be decoded does not match."""
        return True
