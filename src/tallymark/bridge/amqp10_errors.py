"""One engine error, its AMQP 1.0 face: a condition and a text."""

from __future__ import annotations

from typing import Final

from tallymark.engine.errors import (
    AccessRefused,
    BrokerError,
    Fenced,
    HeldBack,
    InvalidCommand,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ResourceExhausted,
    ResourceLocked,
    TooSlow,
    Unreadable,
    Unsupported,
)
from tallymark.wire.amqp10 import errors
from tallymark.wire.amqp10.outcomes import Error

CONDITIONS: Final[dict[type[BrokerError], str]] = {
    AccessRefused: errors.UNAUTHORIZED_ACCESS,
    NotFound: errors.NOT_FOUND,
    ResourceLocked: errors.RESOURCE_LOCKED,
    PreconditionFailed: errors.PRECONDITION_FAILED,
    Fenced: errors.PRECONDITION_FAILED,
    InvalidCommand: errors.INVALID_FIELD,
    NotAllowed: errors.NOT_ALLOWED,
    Unsupported: errors.NOT_IMPLEMENTED,
    ResourceExhausted: errors.RESOURCE_LIMIT_EXCEEDED,
    HeldBack: errors.RESOURCE_LIMIT_EXCEEDED,
    TooSlow: errors.RESOURCE_LIMIT_EXCEEDED,
    Unreadable: errors.INTERNAL_ERROR,
}
"""How far an error reaches (a delivery, a link, the session) is the place's where it happened."""


def error_of(error: BrokerError) -> Error:
    """What the client is told."""
    return Error(CONDITIONS.get(type(error), errors.INTERNAL_ERROR), str(error))
