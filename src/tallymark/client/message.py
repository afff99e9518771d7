"""Messages: a body, properties, annotations; made to be sent, or decoded from what was received.

A `Message` is not changed once it is made; `replace` makes another. A received one decodes a
section when it is asked for, and sent on as it is it keeps its bytes: properties, trace context and
whatever else it carries pass through untouched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, final
from uuid import UUID

from tallymark.client.arguments import check_choice, check_fields, check_type
from tallymark.client.errors import ClientError
from tallymark.wire.amqp10.codec import decode, encode
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.sections import (
    HEADER,
    Data,
    Header,
    Properties,
    Sections,
    Sequences,
    Value,
    encode_message,
)
from tallymark.wire.amqp10.types import Described, Symbol, Timestamp, UByte, UInt, ULong

BodyKind: TypeAlias = Literal["data", "value", "sequence"]
MessageId: TypeAlias = ULong | UUID | bytes | str
Annotations: TypeAlias = Mapping[Any, object]

BYTES: Final = (bytes, bytearray, memoryview)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class BadMessage(ClientError):
    """A section of a received message is not what the standard says. The message can still be
    settled (`reject`)."""


@final
class _Content:
    """Sections, decoded when asked for."""

    __slots__ = (
        "annotations",
        "application_properties",
        "body",
        "delivery_annotations",
        "footer",
        "header",
        "kind",
        "priority",
        "properties",
        "sections",
    )

    header: Header
    priority: int | None
    """Priority as the header says it; None: it does not."""
    properties: Properties
    delivery_annotations: dict[object, object]
    annotations: dict[object, object]
    application_properties: dict[str, object]
    footer: dict[object, object]
    body: object
    kind: BodyKind | Literal[""]

    def __init__(self, sections: Sections | None) -> None:
        self.sections = sections

    def __getattr__(self, name: str) -> object:
        """Return a section that was not asked for before."""
        sections = self.sections
        if sections is None or name not in _Content.__slots__:
            raise AttributeError(name)
        value: object
        try:
            if name == "body":
                value = _body_of(sections)
            elif name == "kind":
                value = sections.body_kind
            elif name == "header":
                value = sections.header or Header()
            elif name == "priority":
                value = _priority_of(sections)
            elif name == "properties":
                value = sections.properties or Properties()
            elif name == "annotations":
                value = sections.message_annotations or {}
            else:
                value = getattr(sections, name) or {}
        except DecodeError as error:
            raise BadMessage(error.text, condition=error.condition, is_remote=True) from error
        setattr(self, name, value)
        return value


def _body_of(sections: Sections) -> object:
    values = sections.bodies
    if sections.body_kind == "data":
        return b"".join([part for part in values if isinstance(part, bytes)])
    if sections.body_kind == "sequence":
        return [item for part in values if isinstance(part, list) for item in part]
    return values[0] if values else None


def _priority_of(sections: Sections) -> int | None:
    if sections.header is None:  # raises DecodeError where it is not what it has to be
        return None
    for code, _, at in sections.bounds:
        if code == HEADER:
            fields = decode(sections.data, at, sections.end)[0]
            found = fields[1] if isinstance(fields, list) and len(fields) > 1 else None
            return found if isinstance(found, int) else None
    return None


class Message:
    """A message. The body is bytes (a data section), or any other value that AMQP has a type for
    (an amqp-value section): str, int, float, bool, None, dict, list, UUID, and the classes of
    `tallymark.wire.amqp10.types` where the exact type matters (a plain int is a long)."""

    __slots__ = ("_content", "_raw")

    _content: _Content | None
    _raw: bytes | None

    def __init__(
        self,
        body: object = b"",
        *,
        kind: BodyKind | None = None,
        message_id: MessageId | int | None = None,
        user_id: bytes | str | None = None,
        to: str | None = None,
        subject: str | None = None,
        reply_to: str | None = None,
        correlation_id: MessageId | int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        expires_at: datetime | None = None,
        creation_time: datetime | None = None,
        group_id: str | None = None,
        group_sequence: int | None = None,
        reply_to_group_id: str | None = None,
        durable: bool = True,
        priority: int | None = None,
        ttl_ms: int | None = None,
        application_properties: Mapping[str, object] | None = None,
        annotations: Annotations | None = None,
        delivery_annotations: Annotations | None = None,
        footer: Annotations | None = None,
    ) -> None:
        """`kind` says which body sections carry the body where it is not plain from its type:
        "value" for bytes in an amqp-value, "sequence" for a list in an amqp-sequence.

        priority is 0..255, ttl_ms up to 2^32-1; group_sequence a serial number. Without a priority
        a message has 4 in a queue with priorities if it is sent over AMQP 1.0, and 0 over 0-9-1.
        Keys of annotations are symbols. Raises TypeError for a field of another type, and
        ValueError or TypeError from `encode`, and so from sending, where a value has no type in
        AMQP or does not fit its field.
        """
        given = (
            message_id, user_id, to, subject, reply_to, correlation_id, content_type,
            content_encoding, group_id, group_sequence, reply_to_group_id, priority, ttl_ms,
        )  # fmt: skip
        for value, (name, kinds, expected) in zip(given, _FIELDS, strict=True):
            if value is not None:
                check_type(name, value, kinds, expected)
        self._raw = None
        content = self._content = _Content(None)
        content.body = body
        if kind is not None:
            check_choice("kind", kind, ("data", "value", "sequence"))
        content.kind = kind or ("data" if isinstance(body, BYTES) else "value")
        content.header = Header(durable=durable, ttl=ttl_ms)
        content.priority = priority
        if priority is not None:
            content.header.priority = priority
        content.properties = Properties(
            message_id=message_id,
            user_id=user_id.encode() if isinstance(user_id, str) else user_id,
            to=to,
            subject=subject,
            reply_to=reply_to,
            correlation_id=correlation_id,
            content_type=content_type,
            content_encoding=content_encoding,
            absolute_expiry_time=ms_of("expires_at", expires_at),
            creation_time=ms_of("creation_time", creation_time),
            group_id=group_id,
            group_sequence=group_sequence,
            reply_to_group_id=reply_to_group_id,
        )
        check_fields("application_properties", application_properties)
        content.application_properties = dict(application_properties or {})
        content.annotations = _symbols("annotations", annotations)
        content.delivery_annotations = _symbols("delivery_annotations", delivery_annotations)
        content.footer = _symbols("footer", footer)

    @staticmethod
    def parse(data: bytes) -> Message:
        """Return the message that these sections make up. A section that is not as the standard
        demands raises BadMessage when it is asked for."""
        check_type("data", data, BYTES, "bytes")
        message = Message.__new__(Message)
        message._raw = bytes(data)
        message._content = None
        return message

    def encode(self) -> bytes:
        """Its sections, as in transfer frames; of a received message the very bytes that came.

        Raises ValueError or TypeError where a value does not fit.
        """
        if self._raw is None:
            self._raw = _encode(self._parts)
        return self._raw

    def replace(self, body: object | None = None, **changes: Any) -> Message:
        """Return another message with these arguments of the constructor in place of this one's.
        Application properties and annotations are replaced whole."""
        content = self._parts
        p = content.properties
        values: dict[str, Any] = {
            "kind": content.kind or None,
            "message_id": p.message_id,
            "user_id": p.user_id,
            "to": p.to,
            "subject": p.subject,
            "reply_to": p.reply_to,
            "correlation_id": p.correlation_id,
            "content_type": p.content_type,
            "content_encoding": p.content_encoding,
            "expires_at": datetime_of(p.absolute_expiry_time),
            "creation_time": datetime_of(p.creation_time),
            "group_id": p.group_id,
            "group_sequence": p.group_sequence,
            "reply_to_group_id": p.reply_to_group_id,
            "durable": content.header.durable,
            "priority": content.priority,
            "ttl_ms": content.header.ttl,
            "application_properties": content.application_properties,
            "annotations": content.annotations,
            "delivery_annotations": content.delivery_annotations,
            "footer": content.footer,
        }
        if body is not None:
            del values["kind"]
        made = Message(content.body if body is None else body, **(values | changes))
        # Times beyond what datetime holds are kept as they came.
        if "expires_at" not in changes:
            made._parts.properties.absolute_expiry_time = p.absolute_expiry_time
        if "creation_time" not in changes:
            made._parts.properties.creation_time = p.creation_time
        return made

    @property
    def _parts(self) -> _Content:
        content = self._content
        if content is None:
            raw = self._raw
            assert raw is not None
            try:
                content = self._content = _Content(Sections(raw, 0, len(raw)))
            except DecodeError as error:
                raise BadMessage(error.text, condition=error.condition, is_remote=True) from error
        return content

    # Body

    @property
    def body(self) -> Any:
        """bytes of all data sections, the items of all amqp-sequences, or the value of the
        amqp-value section; None where there is no body."""
        return self._parts.body

    @property
    def kind(self) -> BodyKind | Literal[""]:
        """Kind of the body's sections; "" where there are none."""
        return self._parts.kind

    @property
    def text(self) -> str:
        """The body as text: a string, or bytes that are UTF-8. Raises TypeError for any other body,
        UnicodeDecodeError for other bytes."""
        body = self.body
        if isinstance(body, bytes):
            return body.decode()
        if not isinstance(body, str):
            raise TypeError(f"a body of type {type(body).__name__}, expected text")
        return body

    # Properties [amqp-1.0 §3.2.4]

    @property
    def properties(self) -> Properties:
        """All fields of the properties section; times in milliseconds since 1970."""
        return self._parts.properties

    @property
    def message_id(self) -> Any:
        """ULong, UUID, bytes or str."""
        return self._parts.properties.message_id

    @property
    def user_id(self) -> bytes | None:
        return self._parts.properties.user_id

    @property
    def to(self) -> str | None:
        return self._parts.properties.to

    @property
    def subject(self) -> str | None:
        return self._parts.properties.subject

    @property
    def reply_to(self) -> str | None:
        return self._parts.properties.reply_to

    @property
    def correlation_id(self) -> Any:
        """ULong, UUID, bytes or str."""
        return self._parts.properties.correlation_id

    @property
    def content_type(self) -> str | None:
        return self._parts.properties.content_type

    @property
    def content_encoding(self) -> str | None:
        return self._parts.properties.content_encoding

    @property
    def creation_time(self) -> datetime | None:
        return datetime_of(self._parts.properties.creation_time)

    @property
    def group_id(self) -> str | None:
        return self._parts.properties.group_id

    @property
    def group_sequence(self) -> int | None:
        return self._parts.properties.group_sequence

    @property
    def reply_to_group_id(self) -> str | None:
        return self._parts.properties.reply_to_group_id

    @property
    def application_properties(self) -> dict[str, object]:
        """Properties that applications define for each other."""
        return self._parts.application_properties

    # Header and annotations [amqp-1.0 §3.2.1 to §3.2.3]

    @property
    def durable(self) -> bool:
        return self._parts.header.durable

    @property
    def priority(self) -> int:
        """The standard's default, 4, where its sender said nothing."""
        return self._parts.header.priority

    @property
    def ttl_ms(self) -> int | None:
        return self._parts.header.ttl

    @property
    def annotations(self) -> dict[object, object]:
        """Message annotations, by symbol: `message.annotations["x-opt-partition-key"]`."""
        return self._parts.annotations

    @property
    def delivery_annotations(self) -> dict[object, object]:
        """Annotations from the previous hop, or for the next one."""
        return self._parts.delivery_annotations

    @property
    def footer(self) -> dict[object, object]:
        return self._parts.footer

    @property
    def expires_at(self) -> datetime | None:
        """Time at which its sender considers it expired."""
        return datetime_of(self._parts.properties.absolute_expiry_time)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.encode())} bytes>"


def _encode(content: _Content) -> bytes:
    body = content.body
    carrier: object
    if content.kind == "data":
        if not isinstance(body, BYTES):
            raise TypeError(f"data of type {type(body).__name__}, expected bytes")
        carrier = Data(bytes(body))
    elif content.kind == "sequence":
        if not isinstance(body, Sequence) or isinstance(body, (str, bytes)):
            raise TypeError(f"a sequence of type {type(body).__name__}, expected a list")
        carrier = Sequences(list(body))
    else:
        carrier = Value(body)
    properties = content.properties
    return _header(content) + encode_message(
        delivery_annotations=content.delivery_annotations or None,
        message_annotations=content.annotations or None,
        properties=None if properties == _NO_PROPERTIES else properties,
        application_properties=_named(content.application_properties),
        body=carrier,
        footer=content.footer or None,
    )


def _header(content: _Content) -> bytes:
    """The header section with all that was said spelt out, also what is the standard's default.
    Brokers take a header that does not say durable=false for durable [rabbitmq], and a priority
    that is not there for 0 in AMQP 0-9-1."""
    header = content.header
    fields: list[object] = [header.durable]
    if content.priority is not None or header.ttl is not None:
        fields.append(None if content.priority is None else UByte(content.priority))
    if header.ttl is not None:
        fields.append(UInt(header.ttl))
    return encode(Described(ULong(0x70), fields))


_NO_PROPERTIES: Final = Properties()
_ID: Final = (int, UUID, *BYTES, str), "a whole number, a UUID, bytes, text or None"
_TEXT: Final = str, "text or None"
_FIELDS: Final[tuple[tuple[str, type | tuple[type, ...], str], ...]] = (
    ("message_id", *_ID),
    ("user_id", (*BYTES, str), "bytes, text or None"),
    ("to", *_TEXT),
    ("subject", *_TEXT),
    ("reply_to", *_TEXT),
    ("correlation_id", *_ID),
    ("content_type", *_TEXT),
    ("content_encoding", *_TEXT),
    ("group_id", *_TEXT),
    ("group_sequence", int, "a whole number or None"),
    ("reply_to_group_id", *_TEXT),
    ("priority", int, "a whole number or None"),
    ("ttl_ms", int, "a whole number or None"),
)
"""Fields that are passed on as they are: the types of each, and these in words."""


def _named(values: Mapping[str, object]) -> dict[object, object] | None:
    found: dict[object, object] = {}
    for key, value in values.items():
        found[key] = value
    return found or None


def _symbols(name: str, values: Annotations | None) -> dict[object, object]:
    if values is not None:
        check_type(name, values, Mapping, "a mapping or None")
    found: dict[object, object] = {}
    for key, value in (values or {}).items():
        found[Symbol(key) if isinstance(key, str) else key] = value
    return found


def ms_of(name: str, time: datetime | None) -> int | None:
    """Return milliseconds since 1970."""
    if time is None:
        return None
    check_type(name, time, datetime, "a datetime or None")
    if time.tzinfo is None:
        raise ValueError(f"{time.isoformat()} without a time zone, expected an aware datetime")
    return Timestamp((time - EPOCH) // timedelta(milliseconds=1))


def datetime_of(ms: int | None) -> datetime | None:
    """Return the time; None for None, and for times that datetime cannot hold."""
    if ms is None:
        return None
    try:
        return EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None
