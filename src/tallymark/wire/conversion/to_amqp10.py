"""Conversion of AMQP 0-9-1 properties to AMQP 1.0; docs/conversion.md has the table.

Header names that `names` gives to properties of 1.0 become those again.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.wire.amqp091 import fields
from tallymark.wire.amqp091.properties import Properties
from tallymark.wire.amqp10 import types
from tallymark.wire.amqp10.writer import encode_value
from tallymark.wire.conversion import names
from tallymark.wire.conversion.values import is_text, text_or_bytes, time_to_amqp10, to_amqp10

IN_A_SECTION: Final = 2
"""Nesting depth of an annotation's value: it is in a map that is described."""
_NOT_ANNOTATIONS: Final = frozenset((*names.OURS, names.X_CC, names.HEADERS))

Annotation = tuple[str, object]


@final
class Split:
    """The result of converting properties."""

    __slots__ = ("annotations", "application", "properties")

    def __init__(
        self,
        properties: list[object],
        annotations: list[Annotation],
        application: dict[object, object],
    ) -> None:
        self.properties = properties
        """Thirteen fields of the properties section; None: not there."""
        self.annotations = annotations
        """Message annotations; all can be encoded."""
        self.application = application
        """Application properties."""


def split(properties: Properties) -> Split:
    """Convert all properties except those about the body's form, the message's life, priority and
    durability."""
    entries: list[Annotation] = []
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
        entries.append((names.BASIC_APP_ID, text_or_bytes(properties.app_id)))
    found[11] = _uint(headers, names.GROUP_SEQUENCE)
    found[12] = _text(headers, names.REPLY_TO_GROUP_ID)
    if properties.cluster_id is not None:
        entries.append((names.BASIC_CLUSTER_ID, text_or_bytes(properties.cluster_id)))
    mode = properties.delivery_mode
    if mode is not None and not 1 <= mode <= 2:
        entries.append((names.BASIC_DELIVERY_MODE, types.UByte(mode)))
    application = _distribute(headers, entries)
    return Split(found, entries, application)


def _distribute(headers: dict[str, object], entries: list[Annotation]) -> dict[object, object]:
    """Add headers to the annotations, or to the application properties, which are returned."""
    application: dict[object, object] = {}
    others: dict[object, object] = {}
    for name, value in headers.items():
        new = to_amqp10(value)
        if name == names.CC and isinstance(value, list):
            _annotate(entries, names.X_CC, new)
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
        shallow = {name: value for name, value in others.items() if _fits(value, 1)}
        _annotate(entries, names.HEADERS, shallow)
    return application


def _fits(value: object, depth: int) -> bool:
    """Return whether a value at this depth of an annotation is within the nesting limit of AMQP
    1.0."""
    if not isinstance(value, (list, dict)):
        return True
    try:
        encode_value(value, IN_A_SECTION + depth)
    except ValueError:
        return False
    return True


def _annotate(entries: list[Annotation], name: str, value: object) -> None:
    if _fits(value, 0):
        entries.append((name, value))


# -- single properties


def _id(text: str | None, headers: dict[str, object], name: str) -> object:
    """Return an id, or the header in which it had to be stored."""
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
    """Return a text stored in the headers because it fits no short string."""
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
    """Return bytes stored in the headers because they fit no short string."""
    value = headers.get(name)
    if isinstance(value, bytes):
        text = value.decode("utf-8", "surrogateescape")
        if not is_text(text) or not names.is_short(text):
            return headers.pop(name)
    return None


def _symbol(text: str | None, name: str, entries: list[Annotation]) -> object:
    """Return the text as a symbol. A text that is none becomes an annotation, and the result is
    None."""
    if text is None:
        return None
    if text.isascii():
        return types.Symbol(text)
    entries.append((name, text_or_bytes(text)))
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


def _creation_time(seconds: int, found: list[object], entries: list[Annotation]) -> None:
    time = time_to_amqp10(seconds)
    if isinstance(time, types.Timestamp):
        found[9] = time
    else:
        entries.append((names.BASIC_TIMESTAMP, time))
