"""Errors of the engine as AMQP 1.0 errors: a condition and a text."""

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
"""Conditions by class of error. The caller decides on the scope: a delivery, a link, the
session."""


def error_of(error: BrokerError) -> Error:
    """Return the error for the client."""
    return Error(CONDITIONS.get(type(error), errors.INTERNAL_ERROR), str(error))
