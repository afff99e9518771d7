"""Conversion of AMQP 1.0 properties and annotations to AMQP 0-9-1 properties; docs/conversion.md
has the table.

Of a header that several would become the last of annotations, x-opt-headers, properties and
application properties is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import cast

from tallymark.wire.amqp091 import fields
from tallymark.wire.amqp091.properties import Properties, encode_properties
from tallymark.wire.amqp10 import types
from tallymark.wire.amqp10.encoded import (
    application_properties_of,
    properties_of,
)
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.front import Front, entry_value
from tallymark.wire.conversion import names
from tallymark.wire.conversion.values import field_name, is_text, time_to_field, to_field


def join(
    properties: Properties,
    annotations: Iterable[tuple[str, object]],
    found: list[object],
    application: dict[object, object],
) -> None:
    """Add to `properties` the message annotations that are shown, the thirteen fields of the
    standard's properties (None: not there) and the application properties. Properties that are set
    stay, except for a delivery-mode that an annotation gives more precisely."""
    headers: dict[str, object] = {}
    _read_annotations(annotations, properties, headers)
    _read_properties(found, properties, headers)
    for key, value in application.items():
        _put(headers, key, value)
    if headers:
        properties.headers = headers


def _put(headers: dict[str, object], key: object, value: object) -> None:
    name = field_name(key)
    if name is not None:
        headers[name] = to_field(value)


def _read_annotations(
    annotations: Iterable[tuple[str, object]], properties: Properties, headers: dict[str, object]
) -> None:
    others: object = None
    for name, value in annotations:
        if not is_shown(name):
            continue
        if name == names.X_CC:
            headers[names.CC] = to_field(value)
        elif name.startswith(names.BASIC):
            _basic(properties, name, value)
        elif name == names.HEADERS and type(value) is dict:
            others = value
        else:
            _put(headers, name, value)
    if others is not None:
        for key, value in cast(dict[object, object], others).items():
            _put(headers, key, value)


def is_shown(name: str) -> bool:
    """Return whether a message annotation is shown in AMQP 0-9-1."""
    return name.startswith("x-") and name not in names.OURS


def _basic(properties: Properties, name: str, value: object) -> None:
    """Set a property that 1.0 has no field for, from its annotation."""
    if name == names.BASIC_TYPE:
        properties.type = _short(value)
    elif name == names.BASIC_CLUSTER_ID:
        properties.cluster_id = _short(value)
    elif name == names.BASIC_CONTENT_TYPE:
        properties.content_type = _short(value)
    elif name == names.BASIC_CONTENT_ENCODING:
        properties.content_encoding = _short(value)
    elif name == names.BASIC_APP_ID:
        properties.app_id = _short(value)
    elif name == names.BASIC_EXPIRATION:
        text = _short(value)
        if (
            properties.expiration is None
            and text is not None
            and text.isdecimal()
            and text.isascii()
        ):
            properties.expiration = text
    elif name == names.BASIC_TIMESTAMP:
        if type(value) is types.ULong:
            properties.timestamp = int(cast(int, value))
    elif name == names.BASIC_DELIVERY_MODE and type(value) is types.UByte:
        properties.delivery_mode = int(cast(int, value))


def _short(value: object) -> str | None:
    """Return the value as text for a short string; None if it does not fit one."""
    text = ""
    if isinstance(value, str):
        text = str(value)
    elif isinstance(value, bytes):
        text = value.decode("utf-8", "surrogateescape")
    else:
        return None
    return text if names.is_short(text) else None


def _read_properties(
    found: list[object], properties: Properties, headers: dict[str, object]
) -> None:
    properties.message_id = _id(found[0], headers, names.MESSAGE_ID)
    user_id = found[1]
    if isinstance(user_id, bytes):
        text = user_id.decode("utf-8", "surrogateescape")
        if is_text(text) and names.is_short(text):
            properties.user_id = text
        else:
            headers[names.USER_ID] = user_id
    _put_text(headers, names.TO, found[2])
    _put_text(headers, names.SUBJECT, found[3])
    if isinstance(found[4], str):
        reply_to = names.reply_to_of(str(found[4]))
        if names.is_short(reply_to):
            properties.reply_to = reply_to
        else:
            headers[names.REPLY_TO] = str(found[4])
    properties.correlation_id = _id(found[5], headers, names.CORRELATION_ID)
    if isinstance(found[6], str):
        properties.content_type = _or_header(found[6], headers, names.CONTENT_TYPE)
    if isinstance(found[7], str):
        properties.content_encoding = _or_header(found[7], headers, names.CONTENT_ENCODING)
    if type(found[8]) is types.Timestamp:
        headers[names.ABSOLUTE_EXPIRY_TIME] = time_to_field(int(cast(int, found[8])))
    if type(found[9]) is types.Timestamp:
        time = int(cast(int, found[9]))
        if time >= 0:
            properties.timestamp = time // 1000
    if isinstance(found[10], str):
        properties.app_id = _or_header(found[10], headers, names.GROUP_ID)
    if type(found[11]) is types.UInt:
        headers[names.GROUP_SEQUENCE] = fields.WireInt(int(cast(int, found[11])), "i")
    _put_text(headers, names.REPLY_TO_GROUP_ID, found[12])


def _id(value: object, headers: dict[str, object], name: str) -> str | None:
    text = names.id_to_text(value)
    if text is not None:
        return _or_header(text, headers, name)
    if isinstance(value, bytes):
        headers[name] = value
    return None


def _or_header(value: str, headers: dict[str, object], name: str) -> str | None:
    """Return the text as a property, or add it as a header if it does not fit."""
    text = str(value)
    if names.is_short(text):
        return text
    headers[name] = text
    return None


def _put_text(headers: dict[str, object], name: str, value: object) -> None:
    if isinstance(value, str):
        headers[name] = str(value)


def section_of(
    front: Front, raw: bytes, bare: int, body: int, is_data: bool, persistent: bool
) -> bytes:
    """Return the property section of a message with this front, whose other sections before the
    body are raw[bare:body]. Properties that cannot be decoded are left out."""
    properties = Properties()
    properties.delivery_mode = 2 if persistent else 1
    if front.priority >= 0:
        properties.priority = front.priority
    if front.ttl_ms >= 0:
        properties.expiration = str(front.ttl_ms)
    try:
        application = application_properties_of(raw, bare, body)
    except DecodeError:
        application = {}
    try:
        found = properties_of(raw, bare, body)
    except DecodeError:
        found = [None] * 13
    join(properties, _annotations(front), found, application)
    if not is_data:
        properties.type = names.ENCODED
    return encode_properties(properties)


def _annotations(front: Front) -> list[tuple[str, object]]:
    """Return the annotations that are shown and can be decoded."""
    shown: list[tuple[str, object]] = []
    for entry in front.entries:
        if is_shown(entry[0]):
            with suppress(DecodeError):
                shown.append((entry[0], entry_value(entry)))
    return shown
