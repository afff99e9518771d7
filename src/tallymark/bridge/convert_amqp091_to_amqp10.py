"""AMQP 0-9-1 messages as AMQP 1.0 readers see them.

    property           becomes
    content-type, -encoding   properties.content-type, content-encoding (symbols)
    headers            see below
    delivery-mode      header.durable (of the payload: amqp10_annotated says it)
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

Header names that convert_names gives to properties of 1.0 become those again. A body becomes one
data section; one of the type `amqp-1.0` that is what it says (a value or sequences) is that body.
"""

from __future__ import annotations

from array import array
from contextlib import suppress
from typing import Final, final

from tallymark.bridge import convert_names as names
from tallymark.bridge.amqp091_format import table_at
from tallymark.bridge.amqp10_annotated import IN_A_SECTION, LONGEST_TTL_MS, entry
from tallymark.bridge.amqp10_front import CC, Entry, Front
from tallymark.bridge.amqp10_sections import is_body
from tallymark.bridge.convert_cells import Cells, body_in, data_head
from tallymark.bridge.convert_values import (
    is_text,
    text_or_bytes,
    time_to_amqp10,
    to_amqp10,
)
from tallymark.engine.message import Slice
from tallymark.wire.amqp091 import fields
from tallymark.wire.amqp091.errors import WireError
from tallymark.wire.amqp091.properties import Properties, decode_properties
from tallymark.wire.amqp10 import types
from tallymark.wire.amqp10.codec import encode
from tallymark.wire.amqp10.writer import encode_value

_NOT_ANNOTATIONS: Final = frozenset((*names.OURS, CC, names.HEADERS))
_PROPERTIES: Final = b"\x00\x53\x73"
_APPLICATION_PROPERTIES: Final = b"\x00\x53\x74"


@final
class Converted:
    """What becomes of a property section."""

    __slots__ = ("bare", "front", "is_encoded", "opaque", "section")

    def __init__(self, section: bytes, front: Front, bare: bytes, opaque: Front | None) -> None:
        self.section = section
        self.front = front
        self.bare = bare
        """Properties and application properties, encoded."""
        self.opaque = opaque
        """The type says that bodies are sections of AMQP 1.0: the front of those that are not.
        None: it does not say so."""

    def begins(self, raw: bytes, at: int, size: int) -> bool:
        """Whether it is made of the section of that size at `at`."""
        return size == len(self.section) and raw.startswith(self.section, at)


@final
class Converter:
    """Remembers the section that came last: many messages in a row share theirs."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: Converted | None = None

    def cells(self, piece: Slice) -> Cells:
        """A slice whose bytes are in memory."""
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
            body = body_in(raw, header + 8 + size, cuts[i + 1])
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
    """What becomes of messages with this property section. A table that cannot be read is not
    there: its inside is nobody's business at publish."""
    try:
        properties = decode_properties(section)
    except WireError:
        properties = decode_properties(_without_headers(section))
    bare, entries = _split(properties)
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
    """What a property section becomes: front, and properties and application properties, encoded;
    where its type says that bodies are AMQP 1.0, for those that are."""
    made = convert(section)
    return made.front, made.bare


def _without_headers(section: bytes) -> bytes:
    at = table_at(section, 0)
    after = at + 4 + int.from_bytes(section[at : at + 4], "big")
    return bytes((section[0] & 0xDF,)) + section[1:at] + section[after:]


def _ttl(expiration: str | None, entries: list[Entry]) -> int:
    """In ms; -1: none. One that a header cannot say becomes an annotation."""
    if expiration is None:
        return -1
    try:
        ttl_ms = int(expiration)
    except ValueError:  # it was checked at publish, unless an earlier version took it
        ttl_ms = -1
    if 0 <= ttl_ms <= LONGEST_TTL_MS:
        return ttl_ms
    entries.append(entry(names.BASIC_EXPIRATION, text_or_bytes(expiration)))
    return -1


def _split(properties: Properties) -> tuple[bytes, list[Entry]]:
    """The sections of the bare message, and the annotations, as far as they do not say what the
    body is or how long it lives."""
    entries: list[Entry] = []
    found: list[object] = [None] * 13
    headers = dict(properties.headers) if properties.headers else {}
    found[0] = _id(properties.message_id, headers, names.MESSAGE_ID)
    if properties.user_id is not None:
        found[1] = properties.user_id.encode("utf-8", "surrogateescape")
    else:
        found[1] = _long_bytes(headers, names.USER_ID)
    found[2] = _text(headers, names.TO)
    found[3] = _text(headers, names.SUBJECT)
    if properties.reply_to is not None:
        found[4] = names.address_of(properties.reply_to)
    else:
        found[4] = _long_text(headers, names.REPLY_TO)
    found[5] = _id(properties.correlation_id, headers, names.CORRELATION_ID)
    found[6] = _symbol(properties.content_type, names.BASIC_CONTENT_TYPE, entries)
    if found[6] is None:
        found[6] = _long_symbol(headers, names.CONTENT_TYPE)
    found[7] = _symbol(properties.content_encoding, names.BASIC_CONTENT_ENCODING, entries)
    if found[7] is None:
        found[7] = _long_symbol(headers, names.CONTENT_ENCODING)
    found[8] = _time(headers, names.ABSOLUTE_EXPIRY_TIME)
    if properties.timestamp is not None:
        _creation_time(properties.timestamp, found, entries)
    if properties.app_id is None:
        found[10] = _long_text(headers, names.GROUP_ID)
    elif is_text(properties.app_id):
        found[10] = properties.app_id
    else:
        entries.append(entry(names.BASIC_APP_ID, text_or_bytes(properties.app_id)))
    found[11] = _uint(headers, names.GROUP_SEQUENCE)
    found[12] = _text(headers, names.REPLY_TO_GROUP_ID)
    if properties.cluster_id is not None:
        entries.append(entry(names.BASIC_CLUSTER_ID, text_or_bytes(properties.cluster_id)))
    mode = properties.delivery_mode
    if mode is not None and not 1 <= mode <= 2:
        entries.append(entry(names.BASIC_DELIVERY_MODE, types.UByte(mode)))
    application = _distribute(headers, entries)
    while found and found[-1] is None:
        found.pop()
    bare = _PROPERTIES + encode(found) if found else b""
    if application:
        bare += _APPLICATION_PROPERTIES + encode(application)
    return bare, entries


def _distribute(headers: dict[str, object], entries: list[Entry]) -> dict[object, object]:
    """Headers to annotations, or to the application properties that are returned."""
    application: dict[object, object] = {}
    others: dict[object, object] = {}
    for name, value in headers.items():
        new = to_amqp10(value)
        if name == names.CC and isinstance(value, list):
            _annotate(entries, CC, new)
        elif (
            name.startswith("x-")
            and name.isascii()
            and name not in _NOT_ANNOTATIONS
            and not name.startswith(names.BASIC)
        ):
            _annotate(entries, name, new)
        elif name.startswith("x-") or isinstance(new, (list, dict)) or not is_text(name):
            others[types.Symbol(name) if name.isascii() else text_or_bytes(name)] = new
        else:
            application[name] = new
    if others:
        shallow = {name: value for name, value in others.items() if _fits(value)}
        _annotate(entries, names.HEADERS, shallow)
    return application


def _fits(value: object) -> bool:
    """Whether it is not nested too deep for a map in an annotation."""
    if not isinstance(value, (list, dict)):
        return True
    try:
        encode_value(value, IN_A_SECTION + 1)
    except ValueError:
        return False
    return True


def _annotate(entries: list[Entry], name: str, value: object) -> None:
    with suppress(ValueError):  # nested deeper than AMQP 1.0 is read
        entries.append(entry(name, value))


# -- single properties


def _id(text: str | None, headers: dict[str, object], name: str) -> object:
    """An id, or the header that one had to become."""
    if text is not None:
        return names.id_to_amqp10(text)
    value = headers.get(name)
    if isinstance(value, bytes):
        return headers.pop(name)
    return _long_text(headers, name)


def _text(headers: dict[str, object], name: str) -> object:
    value = headers.get(name)
    return headers.pop(name) if isinstance(value, str) and is_text(value) else None


def _long_text(headers: dict[str, object], name: str) -> object:
    """A text that is in the headers because no short string had room for it."""
    value = headers.get(name)
    if isinstance(value, str) and is_text(value) and not names.is_short(value):
        return headers.pop(name)
    return None


def _long_symbol(headers: dict[str, object], name: str) -> object:
    value = headers.get(name)
    if isinstance(value, str) and value.isascii() and not names.is_short(value):
        return types.Symbol(headers.pop(name))
    return None


def _long_bytes(headers: dict[str, object], name: str) -> object:
    """Bytes that are in the headers because they are no short string."""
    value = headers.get(name)
    if isinstance(value, bytes):
        text = value.decode("utf-8", "surrogateescape")
        if not is_text(text) or not names.is_short(text):
            return headers.pop(name)
    return None


def _symbol(text: str | None, name: str, entries: list[Entry]) -> object:
    """None as well where it is no symbol: it becomes an annotation then."""
    if text is None:
        return None
    if text.isascii():
        return types.Symbol(text)
    entries.append(entry(name, text_or_bytes(text)))
    return None


def _time(headers: dict[str, object], name: str) -> object:
    value = headers.get(name)
    if isinstance(value, fields.Timestamp):
        found = time_to_amqp10(int(value))
        if isinstance(found, types.Timestamp):
            del headers[name]
            return found
    return None


def _uint(headers: dict[str, object], name: str) -> object:
    value = headers.get(name)
    if isinstance(value, fields.WireInt) and value.tag == "i":
        del headers[name]
        return types.UInt(int(value))
    return None


def _creation_time(seconds: int, found: list[object], entries: list[Entry]) -> None:
    time = time_to_amqp10(seconds)
    if isinstance(time, types.Timestamp):
        found[9] = time
    else:
        entries.append(entry(names.BASIC_TIMESTAMP, time))
