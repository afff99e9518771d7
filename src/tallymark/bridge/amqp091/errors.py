"""Errors of the engine as AMQP 0-9-1 errors: reply code, text and scope."""

from __future__ import annotations

from typing import Final

from tallymark.engine.errors import (
    AccessRefused,
    BrokerError,
    Fenced,
    Gone,
    HeldBack,
    InvalidCommand,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ResourceExhausted,
    ResourceLocked,
    RolledBack,
    TooSlow,
    Unreadable,
    Unsupported,
)
from tallymark.wire.amqp091 import errors as wire_errors
from tallymark.wire.amqp091.errors import WireError

REPLY_CODES: Final[dict[type[BrokerError], int]] = {
    AccessRefused: wire_errors.ACCESS_REFUSED,
    NotFound: wire_errors.NOT_FOUND,
    Gone: wire_errors.NOT_FOUND,
    ResourceLocked: wire_errors.RESOURCE_LOCKED,
    PreconditionFailed: wire_errors.PRECONDITION_FAILED,
    Fenced: wire_errors.PRECONDITION_FAILED,
    InvalidCommand: wire_errors.COMMAND_INVALID,
    NotAllowed: wire_errors.NOT_ALLOWED,
    Unsupported: wire_errors.NOT_IMPLEMENTED,
    ResourceExhausted: wire_errors.RESOURCE_ERROR,
    HeldBack: wire_errors.RESOURCE_ERROR,
    RolledBack: wire_errors.PRECONDITION_FAILED,
    TooSlow: wire_errors.RESOURCE_ERROR,
    Unreadable: wire_errors.INTERNAL_ERROR,
}
"""Reply codes by class of error. The protocol decides whether a code closes the channel or the
connection: wire errors.REPLIES.

Never sent, here as by RabbitMQ: 311 (a body above the limit is 406), 313 (immediate is 540), 402
(an unknown virtual host is 530).
"""


def wire_error(error: BrokerError, class_id: int, method_id: int) -> WireError:
    """Return the error for the client whose method with these ids was refused."""
    code = REPLY_CODES.get(type(error), wire_errors.INTERNAL_ERROR)
    if isinstance(error, TooSlow):
        # A hard error by the specification, but only a subscription is too slow [SC-9].
        return WireError(code, str(error), class_id, method_id, wire_errors.CHANNEL, True)
    return WireError(code, str(error), class_id, method_id)
