"""AMQP 1.0 messages as AMQP 0-9-1 readers see them.

    header.durable            delivery-mode 2 or 1 (of the payload)
    header.priority, ttl      priority, expiration
    message-id                message-id: ulong in digits, uuid as urn:uuid:...; bytes, and what is
                              longer than 255 bytes: header x-message-id
    user-id                   user-id; bytes that are not UTF-8: header x-user-id
    to, subject               headers x-to, x-subject
    reply-to                  reply-to: of /queues/<queue> the queue's name, else the address
    correlation-id            as message-id
    content-type, -encoding   content-type, content-encoding
    absolute-expiry-time      header x-absolute-expiry-time
    creation-time             timestamp, in whole seconds
    group-id                  app-id
    group-sequence            header x-group-sequence
    reply-to-group-id         header x-reply-to-group-id
    application properties    headers
    annotation x-cc           header CC
    annotation x-opt-headers  the headers in it
    annotations x-basic-...   the property of that name
    other annotations x-...   headers
    data                      the body; several sections joined
    sequences, a value        the body as it is encoded, footer and all, type `amqp-1.0`

Not shown are delivery annotations, annotations that do not begin with `x-` (numbers among them), a
footer behind data, and annotations that only the broker makes (names.OURS), for which 0-9-1 has its
own headers. If several sources give one header, the last one of annotations, x-opt-headers and
application properties is shown.
"""

from __future__ import annotations

from array import array
from typing import Final, final

from tallymark.bridge.conversion.cells import CHANNEL, Frames, method_of
from tallymark.engine.message import Slice
from tallymark.stored.annotations import Route
from tallymark.wire.amqp091.frames import content_frames
from tallymark.wire.amqp091.properties import Properties, encode_properties
from tallymark.wire.amqp10.encoded import (
    data_bytes,
    find_section,
    opening,
    section_code,
)
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.front import UNREADABLE, Front, lenient_fronts
from tallymark.wire.amqp10.sections import DATA, FOOTER
from tallymark.wire.conversion import names
from tallymark.wire.conversion.to_amqp091 import section_of

_ENCODED: Final = encode_properties(Properties(type=names.ENCODED))


@final
class _Converted:
    """The converted sections before a body."""

    __slots__ = ("code", "head", "persistent", "section", "size")

    def __init__(self, head: bytes, size: int, code: int, persistent: bool, section: bytes) -> None:
        self.head = head
        """Leading bytes by which other messages with the same sections are known."""
        self.size = size
        """Bytes before that section."""
        self.code = code
        """Code of that section; DATA as well if there is no body."""
        self.persistent = persistent
        self.section = section
        """Property section of AMQP 0-9-1."""


@final
class Converter:
    """Converts slices. Caches the last conversion, since messages in a row may differ in their
    bodies only."""

    __slots__ = ("_front", "_last")

    def __init__(self) -> None:
        self._front: Front | None = None
        self._last: _Converted | None = None

    def slice(self, piece: Slice) -> Slice:
        """Convert a slice whose bytes are in memory to AMQP 0-9-1 frames, over a payload of its
        own, for one reader."""
        payload = piece.payload
        raw, cuts = payload.raw, payload.cuts
        assert raw is not None, payload.position
        frames = Frames(piece)
        for lo, hi, front in lenient_fronts(raw, cuts, piece.lo, piece.hi, self._front):
            self._front = front
            for i in range(lo, hi):
                start = cuts[i]
                end = cuts[i + 1]
                section, body = self.message(raw, start, end, front, payload.persistent)
                frames.add(i, section, body)
        return frames.slice()

    def message(
        self, raw: bytes, start: int, end: int, front: Front, persistent: bool
    ) -> tuple[bytes, bytes]:
        """Return property section and body. A malformed message becomes a body as it is."""
        try:
            known = self._of(raw, start, end, front, persistent)
            if known.code == DATA:
                return known.section, data_bytes(raw, start + known.size, end)
            return known.section, raw[start + known.size : end]
        except DecodeError:
            return _ENCODED, raw[start:end]

    def _of(self, raw: bytes, start: int, end: int, front: Front, persistent: bool) -> _Converted:
        last = self._last
        if (
            last is not None
            and last.persistent == persistent
            and end - start >= len(last.head)
            and raw.startswith(last.head, start)
        ):
            return last
        if front.size == UNREADABLE:
            raise DecodeError("message with a front that cannot be read")
        at = find_section(raw, start + front.size, end, DATA)
        code = section_code(raw, at, end) if at < end else DATA
        if code == FOOTER:
            code = DATA
        section = section_of(front, raw, start + front.size, at, code == DATA, persistent)
        if at == end:
            return _Converted(b"", at - start, code, persistent, section)
        head = opening(raw, start, at, end)
        made = _Converted(head, at - start, code, persistent, section)
        if head:
            self._last = made
        return made


def as_amqp091(piece: Slice) -> Slice:
    """Convert one slice, without a cache (see Converter.slice)."""
    return Converter().slice(piece)


def frames_of(message: bytes, route: Route) -> tuple[bytes, int]:
    """Convert one message to frames (publish method, header, body); return them and the size of the
    first."""
    method = method_of(route)
    front = lenient_fronts(message, array("I", (0, len(message))), 0, 1, None)[0][2]
    section, body = Converter().message(message, 0, len(message), front, front.durable)
    return method + content_frames(CHANNEL, section, body, 0), len(method)
