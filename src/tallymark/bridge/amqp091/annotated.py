"""Annotated messages: AMQP 0-9-1 messages with headers that the broker adds or replaces for their
readers.

A dead letter carries its history as headers [DL-12, DL-14] and has lost its expiration [DL-11];
a message handed out before carries its counts [DL-5]; what consumers noted by AMQP 1.0's outcome
`modified` are headers as well [FC-20]. Header frames are patched: everything else in
them stays byte for byte as the publisher sent it, and so do the body frames.

    section   flags | content-type | content-encoding | headers | ... | expiration | message-id ...
                ^                                        ^               ^
                bits set and cleared        size, reserved names       cut out
                                            dropped, ours behind

What annotations add is encoded once per `Additions`; flags and headers that many messages in a row
share are patched once.
"""

from __future__ import annotations

from typing import final

from tallymark.bridge.names import ACQUIRED_COUNT, DEATH_HEADERS, DELIVERY_COUNT, STREAM_OFFSET
from tallymark.engine.message import Slice
from tallymark.stored.annotations import Annotations, Death, death_headers
from tallymark.wire.amqp091.errors import WireError
from tallymark.wire.amqp091.fields import Reader, write_short_string, write_value
from tallymark.wire.amqp091.properties import expiration_at, table_at
from tallymark.wire.amqp10.codec import decode
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.conversion.names import BASIC, OURS, is_short
from tallymark.wire.conversion.values import to_field


@final
class Additions:
    """The headers that one annotations object and delivery counts add to messages."""

    __slots__ = (
        "_acquired",
        "_annotations",
        "_failed",
        "_front",
        "_headers",
        "_new_front",
        "_replaced",
        "_searched",
        "died",
        "offset",
    )

    def __init__(
        self, annotations: Annotations | None, failed: int, acquired: int, has_offset: bool = False
    ) -> None:
        """failed, acquired: counts to be shown; 0: not shown. has_offset: `offset` is shown as
        well."""
        self._annotations = annotations
        self._failed = failed
        self._acquired = acquired
        self.died = False
        """True if the messages are dead letters."""
        self.offset = 0 if has_offset else -1
        """Offset of the message encoded next in the stream it is read from; -1: it is from no
        stream."""
        self._replaced: set[str] = set()
        """Names of the publisher's headers that are replaced."""
        self._searched: list[bytes] = []
        """Byte strings that occur in every table with a replaced header."""
        headers = bytearray()
        if annotations is not None and annotations.deaths:
            self.died = True
            self._replaced.update(DEATH_HEADERS)
            self._searched += (b"x-death", b"-death-")
            _add_deaths(headers, annotations)
        if failed:
            self._replace(DELIVERY_COUNT)
            _add_count(headers, DELIVERY_COUNT, failed)
        if acquired:
            self._replace(ACQUIRED_COUNT)
            _add_count(headers, ACQUIRED_COUNT, acquired)
        if annotations is not None:
            for key, value in annotations.notes:
                self._note(headers, key, value)
        if has_offset:  # the last entry: see `_new_front` and `before_offset`
            self._replace(STREAM_OFFSET)
            _add_count(headers, STREAM_OFFSET, 0)
        self._headers = bytes(headers)
        self._front = b""
        """Front of the last section seen, and its replacement; see _learn."""
        self._new_front = b""

    def _note(self, headers: bytearray, key: str, value: bytes) -> None:
        """Add a consumer's note as a header, unless the broker has a header of that name."""
        if key in self._replaced or key in OURS or key.startswith(BASIC) or not is_short(key):
            return
        try:
            found = decode(value, 0, len(value))[0]
        except DecodeError:
            return
        entry = bytearray()
        write_short_string(entry, key)
        write_value(entry, to_field(found))
        self._replace(key)
        headers += entry

    def _replace(self, name: str) -> None:
        self._replaced.add(name)
        self._searched.append(name.encode())

    def of(self, annotations: Annotations | None, failed: int, acquired: int) -> bool:
        """Return whether the additions were made from these values."""
        return (
            self._annotations is annotations
            and self._failed == failed
            and self._acquired == acquired
        )

    def header_frame(self, raw: bytes, at: int, end: int) -> bytes:
        """Return the header frame raw[at:end] with the additions; the channel number is
        unchanged."""
        section = self.section(raw, at + 19, end - 1)
        return b"".join(
            (raw[at : at + 3], (12 + len(section)).to_bytes(4, "big"), raw[at + 7 : at + 19],
             section, b"\xce")
        )  # fmt: skip

    def section(self, raw: bytes, start: int, end: int) -> bytes:
        """Return the property section raw[start:end] with the additions."""
        if not self._front or not raw.startswith(self._front, start):
            self._learn(raw, start)
        front = self._new_front
        if self.offset >= 0:
            front = front[:-8] + self.offset.to_bytes(8, "big")
        rest = start + len(self._front)
        if self.died and raw[start] & 0x01:
            cut = expiration_at(raw, start)
            return b"".join((front, raw[rest:cut], raw[cut + 1 + raw[cut] : end]))
        return front + raw[rest:end]

    def before_offset(self, raw: bytes, at: int) -> tuple[bytes, bytes]:
        """Split the header frame at `at` where its offset header goes. For messages that are no
        dead letters and show offsets. Returns the new bytes up to the end of the headers, and those
        that stand for them up to the offset's value."""
        start = at + 19
        if not self._front or not raw.startswith(self._front, start):
            self._learn(raw, start)
        end = start + len(self._front)
        size = int.from_bytes(raw[at + 3 : at + 7], "big")
        size += len(self._new_front) - len(self._front)
        front = b"".join(
            (raw[at : at + 3], size.to_bytes(4, "big"), raw[at + 7 : start], self._new_front[:-8])
        )
        return raw[at:end], front

    def _learn(self, raw: bytes, start: int) -> None:
        """Learn the front of a section: its flags up to and including headers. It contains its own
        length, so a section that begins with the same bytes has the same front."""
        high = raw[start]
        table = after = table_at(raw, start)
        entries = b""
        if high & 0x20:
            after = table + 4 + int.from_bytes(raw[table : table + 4], "big")
            entries = self._publishers_own(raw[table + 4 : after])
        self._front = raw[start:after]
        if self.died:
            high &= 0xFE
        if self._headers:
            size = len(entries) + len(self._headers)
            self._new_front = b"".join(
                (bytes((high | 0x20,)), raw[start + 1 : table], size.to_bytes(4, "big"), entries,
                 self._headers)
            )  # fmt: skip
        else:
            self._new_front = bytes((high,)) + raw[start + 1 : after]

    def _publishers_own(self, entries: bytes) -> bytes:
        """Return the publisher's headers (a table without its length) without the replaced ones."""
        for searched in self._searched:
            if searched in entries:
                return _without(entries, self._replaced)
        return entries


def additions_to(
    piece: Slice, shows_counts: bool, last: Additions | None, has_offset: bool = False
) -> Additions | None:
    """Return the additions to a slice's messages; None if they leave unchanged.

    shows_counts: whether the queue it comes from tells how often messages were delivered.
    has_offset: whether each is shown with its offset; then there always is something. `last` is
    given back where it says the same, and is as has_offset says.
    """
    known = piece.annotations
    failed = piece.failed
    acquired = piece.acquired
    if known is None:
        if not shows_counts:
            failed = acquired = 0
        if not failed and not acquired and not has_offset:
            return None
    else:
        failed += known.failed
        acquired += known.acquired
        if not (shows_counts or known.failed or known.acquired):
            failed = acquired = 0
        is_dead = known.route is not None or len(known.deaths) > 0
        if not is_dead and not failed and not acquired and not has_offset and not known.notes:
            return None
    if last is not None and last.of(known, failed, acquired):
        return last
    return Additions(known, failed, acquired, has_offset)


def _without(entries: bytes, names: set[str]) -> bytes:
    """Return table entries without those of some names."""
    reader = Reader(entries, 0, len(entries))
    kept: list[bytes] = []
    try:
        while reader.pos < reader.end:
            start = reader.pos
            name = reader.lenient_short_string()
            reader.value(0)
            if name not in names:
                kept.append(entries[start : reader.pos])
    except WireError:
        return entries  # malformed: its reader finds that out with or without our headers
    return b"".join(kept)


# -- encoding


def _add_deaths(out: bytearray, annotations: Annotations) -> None:
    """Add x-death, x-first-death-* and x-last-death-* as table entries."""
    out += b"\x07x-deathA"
    size_at = _open(out)
    for death in annotations.deaths:
        _add_death(out, death)
    _close(out, size_at)
    for name, text in death_headers(annotations).items():
        _add_text(out, name, text)


def _add_death(out: bytearray, death: Death) -> None:
    """Add one table of x-death: fields in this order, with these types [DL-12]."""
    out += b"F"
    table_at = _open(out)
    if death.ttl_ms >= 0:
        _add_text(out, "original-expiration", str(death.ttl_ms))
    _add_count(out, "count", death.count)
    _add_text(out, "reason", death.reason)
    _add_text(out, "queue", death.queue)
    out += b"\x04timeT" + (death.first_ms // 1000).to_bytes(8, "big")
    _add_text(out, "exchange", death.exchange)
    out += b"\x0crouting-keysA"
    array_at = _open(out)
    for key in death.keys:
        _add_value(out, key)
    _close(out, array_at)
    _close(out, table_at)


def _add_text(out: bytearray, name: str, text: str) -> None:
    out.append(len(name))
    out += name.encode()
    _add_value(out, text)


def _add_value(out: bytearray, text: str) -> None:
    raw = text.encode("utf-8", "surrogateescape")
    out += b"S" + len(raw).to_bytes(4, "big") + raw


def _add_count(out: bytearray, name: str, count: int) -> None:
    out.append(len(name))
    out += name.encode() + b"l" + count.to_bytes(8, "big")


def _open(out: bytearray) -> int:
    """Reserve the bytes of a size field; return its offset."""
    out += b"\0\0\0\0"
    return len(out)


def _close(out: bytearray, at: int) -> None:
    out[at - 4 : at] = (len(out) - at).to_bytes(4, "big")
