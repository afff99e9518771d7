"""AMQP 0-9-1 messages as AMQP 1.0 readers see them.

    property           becomes
    content-type, -encoding   properties.content-type, content-encoding (symbols)
    headers            see below
    delivery-mode      header.durable (of the payload: bridge/conversion/annotated.py says it)
    priority           header.priority
    correlation-id     properties.correlation-id: uuid for urn:uuid:..., else string
    reply-to           properties.reply-to: the address of the queue, /queues/...
    expiration         header.ttl
    message-id         properties.message-id, as correlation-id
    timestamp          properties.creation-time
    type, cluster-id   annotations x-basic-type, x-basic-cluster-id
    user-id            properties.user-id (binary)
    app-id             properties.group-id

    header             becomes
    CC                 annotation x-cc
    x-...              annotation of its name, unless that is the broker's
    any other          application property; arrays and tables, which are not allowed there, and
                       names that are not UTF-8 go into the annotation x-opt-headers, a map

Headers that conversion.names made from properties of 1.0 become these properties again. A body
becomes one data section, unless the type is `amqp-1.0` and the body is a valid value or sequences:
it is then used as it is.
"""

from __future__ import annotations

from array import array
from typing import Final, final

from tallymark.bridge.conversion.cells import Cells, data_head
from tallymark.engine.message import Slice
from tallymark.wire.amqp091.frames import joined
from tallymark.wire.amqp091.properties import decode_readable
from tallymark.wire.amqp10.codec import encode
from tallymark.wire.amqp10.encoded import is_body
from tallymark.wire.amqp10.front import LONGEST_TTL_MS, Entry, Front, entry
from tallymark.wire.conversion import names
from tallymark.wire.conversion.to_amqp10 import Split, split
from tallymark.wire.conversion.values import text_or_bytes

_PROPERTIES: Final = b"\x00\x53\x73"
_APPLICATION_PROPERTIES: Final = b"\x00\x53\x74"


@final
class Converted:
    """A converted property section."""

    __slots__ = ("bare", "front", "is_encoded", "opaque", "section")

    def __init__(self, section: bytes, front: Front, bare: bytes, opaque: Front | None) -> None:
        self.section = section
        self.front = front
        self.bare = bare
        """Encoded properties and application properties."""
        self.opaque = opaque
        """Front of messages whose type is `amqp-1.0` but whose bodies are no AMQP 1.0 sections.
        None: the type is another."""

    def begins(self, raw: bytes, at: int, size: int) -> bool:
        """Return whether it was made from the section of that size at `at`."""
        return size == len(self.section) and raw.startswith(self.section, at)


@final
class Converter:
    """Converts slices. Caches the last section, since many messages in a row have the same."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: Converted | None = None

    def cells(self, piece: Slice) -> Cells:
        """Convert a slice whose bytes are in memory."""
        payload = piece.payload
        raw, cuts = payload.raw, payload.cuts
        assert raw is not None, payload.position
        out: list[bytes] = []
        ends = [0]
        total = 0
        stretches: list[tuple[int, int, Front]] = []
        said: Front | None = None
        start = 0
        for i in range(piece.lo, piece.hi):
            header = cuts[i] + 8 + int.from_bytes(raw[cuts[i] + 3 : cuts[i] + 7], "big")
            size = int.from_bytes(raw[header + 3 : header + 7], "big")
            known = self._of(raw, header + 19, size - 12)
            front = known.front
            body = joined(raw, header + 8 + size, cuts[i + 1])
            head = b""
            if known.opaque is None:
                head = data_head(len(body))
            elif not is_body(body):
                front = known.opaque
                head = data_head(len(body))
            out += (known.bare, head, body)
            total += len(known.bare) + len(head) + len(body)
            ends.append(total)
            if front is not said:
                if said is not None:
                    stretches.append((start, i - piece.lo, said))
                said = front
                start = i - piece.lo
        if said is not None:
            stretches.append((start, len(piece), said))
        return Cells(b"".join(out), array("I", ends), stretches)

    def _of(self, raw: bytes, at: int, size: int) -> Converted:
        last = self._last
        if last is not None and last.begins(raw, at, size):
            return last
        made = convert(raw[at : at + size])
        if last is not None and last.front.says_as(made.front):
            made.front = last.front
        self._last = made
        return made


def convert(section: bytes) -> Converted:
    """Convert a property section. A table that cannot be decoded is left out, as its content is not
    checked at publish."""
    properties, _ = decode_readable(section)
    bare, entries = _encoded(split(properties))
    priority = -1 if properties.priority is None else properties.priority
    ttl_ms = _ttl(properties.expiration, entries)
    opaque: Front | None = None
    if properties.type == names.ENCODED:
        more = [*entries, entry(names.BASIC_TYPE, names.ENCODED)]
        opaque = Front(priority, ttl_ms, more)
    elif properties.type is not None:
        entries.append(entry(names.BASIC_TYPE, text_or_bytes(properties.type)))
    return Converted(section, Front(priority, ttl_ms, entries), bare, opaque)


def sections_of(section: bytes) -> tuple[Front, bytes]:
    """Return the converted property section: the front, and the encoded properties and application
    properties; for messages of type `amqp-1.0`, those with AMQP 1.0 bodies."""
    made = convert(section)
    return made.front, made.bare


def _ttl(expiration: str | None, entries: list[Entry]) -> int:
    """Return the ttl in ms; -1: none. A ttl too large for a header becomes an annotation."""
    if expiration is None:
        return -1
    try:
        ttl_ms = int(expiration)
    except ValueError:  # checked at publish, but perhaps not by an earlier version
        ttl_ms = -1
    if 0 <= ttl_ms <= LONGEST_TTL_MS:
        return ttl_ms
    entries.append(entry(names.BASIC_EXPIRATION, text_or_bytes(expiration)))
    return -1


def _encoded(found: Split) -> tuple[bytes, list[Entry]]:
    """Return the encoded sections of the bare message, and the annotations."""
    values = found.properties
    while values and values[-1] is None:
        values.pop()
    bare = _PROPERTIES + encode(values) if values else b""
    if found.application:
        bare += _APPLICATION_PROPERTIES + encode(found.application)
    return bare, [entry(name, value) for name, value in found.annotations]
