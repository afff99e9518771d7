"""Errors of peers, by the standard's error conditions [amqp-1.0 §2.8.15 to §2.8.18, §4.5.8].

Decoders raise `DecodeError` and nothing else, whatever the bytes.
"""

from __future__ import annotations

from typing import Final, final

# amqp-error: may close a connection, a session or a link, or stand in a rejected outcome
INTERNAL_ERROR: Final = "amqp:internal-error"
NOT_FOUND: Final = "amqp:not-found"
UNAUTHORIZED_ACCESS: Final = "amqp:unauthorized-access"
DECODE_ERROR: Final = "amqp:decode-error"
RESOURCE_LIMIT_EXCEEDED: Final = "amqp:resource-limit-exceeded"
NOT_ALLOWED: Final = "amqp:not-allowed"
INVALID_FIELD: Final = "amqp:invalid-field"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"
RESOURCE_LOCKED: Final = "amqp:resource-locked"
PRECONDITION_FAILED: Final = "amqp:precondition-failed"
RESOURCE_DELETED: Final = "amqp:resource-deleted"
ILLEGAL_STATE: Final = "amqp:illegal-state"
FRAME_SIZE_TOO_SMALL: Final = "amqp:frame-size-too-small"

# connection-error
CONNECTION_FORCED: Final = "amqp:connection:forced"
FRAMING_ERROR: Final = "amqp:connection:framing-error"
CONNECTION_REDIRECT: Final = "amqp:connection:redirect"

# session-error
WINDOW_VIOLATION: Final = "amqp:session:window-violation"
ERRANT_LINK: Final = "amqp:session:errant-link"
HANDLE_IN_USE: Final = "amqp:session:handle-in-use"
UNATTACHED_HANDLE: Final = "amqp:session:unattached-handle"

# link-error
DETACH_FORCED: Final = "amqp:link:detach-forced"
TRANSFER_LIMIT_EXCEEDED: Final = "amqp:link:transfer-limit-exceeded"
MESSAGE_SIZE_EXCEEDED: Final = "amqp:link:message-size-exceeded"
LINK_REDIRECT: Final = "amqp:link:redirect"
STOLEN: Final = "amqp:link:stolen"

# transaction-error
TRANSACTION_UNKNOWN_ID: Final = "amqp:transaction:unknown-id"
TRANSACTION_ROLLBACK: Final = "amqp:transaction:rollback"
TRANSACTION_TIMEOUT: Final = "amqp:transaction:timeout"


def shown(value: object) -> str:
    """Return a value for an error text, at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


@final
class DecodeError(Exception):
    """Bytes that the standard does not allow in their place.

    `condition` is what the peer is told, `text` its description.
    """

    def __init__(self, text: str, condition: str = DECODE_ERROR) -> None:
        super().__init__(text)
        self.text = text
        self.condition = condition

    def __str__(self) -> str:
        return f"{self.condition}: {self.text}"
