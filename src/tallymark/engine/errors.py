"""Errors: the engine's refusals, in words that belong to no protocol.

One error, several faces: a bridge turns a class into its own code (`channel.close` 406, a detach
with `amqp:precondition-failed`, `E_INVALID`). A command that raises has changed nothing.
"""

from __future__ import annotations


class BrokerError(Exception):
    """A command was refused. The text is for humans: it gives the value and what was expected."""


class NotFound(BrokerError):
    """The queue, exchange, virtual host, consumer or subscription does not exist."""


class AccessRefused(BrokerError):
    """The name is reserved, the queue is in exclusive use, or the user may not do this."""


class ResourceLocked(BrokerError):
    """The queue belongs to another connection."""


class PreconditionFailed(BrokerError):
    """The entity exists with other properties, is in use, or the delivery is unknown."""


class NotAllowed(BrokerError):
    """The operation can never be allowed here (a reused consumer tag, a vhost out of reach)."""


class InvalidCommand(BrokerError):
    """The command makes no sense (an unknown exchange type)."""


class Unsupported(BrokerError):
    """A legal request for something that is not offered."""


class Gone(BrokerError):
    """The requested messages were there and were deleted."""


class ResourceExhausted(BrokerError):
    """A configured limit was reached; the text names the limit."""


class HeldBack(BrokerError):
    """Publishers wait, for a queue's slow consumer [SC-D7] or for their rate. The command may be
    repeated later."""


class TooSlow(BrokerError):
    """A consumer exceeds the limits of its subscription: it is disconnected [SC-7]."""


class Fenced(BrokerError):
    """The subscription was attached elsewhere, or the offset belongs to another incarnation."""


class BytesLost(Exception):
    """A payload's bytes are not in their place, or are not those that were stored. Raised by the
    reader of the bytes; the engine turns it into Unreadable."""


class Unreadable(BrokerError):
    """Bytes that a command needs cannot be read from the disk. Nothing has changed."""


class RolledBack(BrokerError):
    """The transaction could not be committed as a whole, so nothing of it was."""
