"""Names that AMQP 0-9-1 and 1.0 have for each other's properties, and reply addresses.

A property of 1.0 that has no place among those of 0-9-1 becomes the header `x-` and its name; one
of 0-9-1 that has none in 1.0 becomes the message annotation `x-basic-` and its name
[rabbitmq conversions]. Both find their way back.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote
from uuid import UUID

from tallymark.wire.conversion.addresses import EXCHANGES, BadAddress, queue_address, queue_of
from tallymark.wire.conversion.values import is_text, text_or_bytes

MESSAGE_ID: Final = "x-message-id"
USER_ID: Final = "x-user-id"
TO: Final = "x-to"
SUBJECT: Final = "x-subject"
REPLY_TO: Final = "x-reply-to"
CORRELATION_ID: Final = "x-correlation-id"
CONTENT_TYPE: Final = "x-content-type"
CONTENT_ENCODING: Final = "x-content-encoding"
ABSOLUTE_EXPIRY_TIME: Final = "x-absolute-expiry-time"
GROUP_ID: Final = "x-group-id"
GROUP_SEQUENCE: Final = "x-group-sequence"
REPLY_TO_GROUP_ID: Final = "x-reply-to-group-id"

BASIC: Final = "x-basic-"
BASIC_TYPE: Final = "x-basic-type"
BASIC_CLUSTER_ID: Final = "x-basic-cluster-id"
BASIC_CONTENT_TYPE: Final = "x-basic-content-type"
BASIC_CONTENT_ENCODING: Final = "x-basic-content-encoding"
BASIC_APP_ID: Final = "x-basic-app-id"
BASIC_TIMESTAMP: Final = "x-basic-timestamp"
BASIC_DELIVERY_MODE: Final = "x-basic-delivery-mode"

BASIC_EXPIRATION: Final = "x-basic-expiration"

DEATHS: Final = "x-opt-deaths"
EXCHANGE: Final = "x-exchange"
ROUTING_KEY: Final = "x-routing-key"
LOCKED_UNTIL: Final = "x-opt-locked-until"
OURS: Final[tuple[str, ...]] = (DEATHS, EXCHANGE, ROUTING_KEY, LOCKED_UNTIL)
"""Annotations that the broker makes; a client's own of these names are not shown [DL-18]."""
HEADERS: Final = "x-opt-headers"
"""Message annotation: a map of the headers that are not allowed in application properties."""
CC: Final = "CC"
X_CC: Final = "x-cc"
"""Message annotation: further routing keys."""

SHORT_MAX: Final = 255
"""Maximum bytes of a short string."""
ENCODED: Final = "amqp-1.0"
"""Property `type` of a message whose body is AMQP 1.0 sections [rabbitmq conversions]."""

_URN: Final = "urn:uuid:"
_ASCII: Final = bytes(range(128))


def is_short(text: str) -> bool:
    """Return whether the text fits a short string."""
    return len(text) <= SHORT_MAX and (
        text.isascii() or len(text.encode("utf-8", "surrogateescape")) <= SHORT_MAX
    )


def address_of(reply_to: str) -> str:
    """Return the address for a reply-to of 0-9-1, which is the name of a queue. An empty one, or an
    address of an exchange, is returned as it is. Bytes that are not UTF-8 are percent-encoded."""
    if not reply_to.startswith(EXCHANGES):
        return queue_address(reply_to) if reply_to else ""
    return reply_to if is_text(reply_to) else quote(reply_to, _ASCII, errors="surrogateescape")


def reply_to_of(address: str) -> str:
    """Return the queue's name for the address of a queue; any other address as it is."""
    try:
        return queue_of(address)
    except BadAddress:
        return address


def id_to_amqp10(text: str) -> object:
    """Convert a message or correlation id: a uuid if it is the URN of one in our form."""
    if text.startswith(_URN) and len(text) == len(_URN) + 36:
        try:
            found = UUID(text[len(_URN) :])
        except ValueError:
            return text_or_bytes(text)
        if f"{_URN}{found}" == text:
            return found
    return text_or_bytes(text)


def id_to_text(id: object) -> str | None:
    """Convert an id of 1.0 to text: uuid as URN, ulong in digits. None for bytes and for values
    that are no id."""
    if isinstance(id, str):
        return str(id)
    if isinstance(id, UUID):
        return f"{_URN}{id}"
    if isinstance(id, int) and not isinstance(id, bool):
        return f"{id:d}"
    return None
