"""Events that a connection reports to its owner, in the order of the bytes."""

from __future__ import annotations

from typing import final

from tallymark.wire.amqp091.errors import CONNECTION, WireError
from tallymark.wire.amqp091.kernel import PublishReceived
from tallymark.wire.amqp091.methods import Method


@final
class Opening:
    """A protocol header was accepted: answer with `Connection.send_start`."""

    __slots__ = ("major", "minor", "revision")

    def __init__(self, major: int, minor: int, revision: int) -> None:
        self.major = major
        self.minor = minor
        self.revision = revision


@final
class MethodReceived:
    """A method that is legal where it came; channel 0 is the connection."""

    __slots__ = ("channel", "method")

    def __init__(self, channel: int, method: Method) -> None:
        self.channel = channel
        self.method = method


@final
class ContentReceived:
    """A method with a message, complete: to a client (basic.deliver, return, get-ok)."""

    __slots__ = ("body", "channel", "method", "section")

    def __init__(self, channel: int, method: Method, section: bytes, body: bytes) -> None:
        self.channel = channel
        self.method = method
        self.section = section
        """Property section."""
        self.body = body


@final
class AckRange:
    """Consecutive basic.acks: tags first..last, or all up to `last` when `multiple`
    (last 0: all outstanding)."""

    __slots__ = ("channel", "first", "last", "multiple")

    def __init__(self, channel: int, first: int, last: int, multiple: bool) -> None:
        self.channel = channel
        self.first = first
        self.last = last
        self.multiple = multiple


@final
class ProtocolFailure:
    """The peer broke the protocol. Answer with `Connection.send_close(channel, error)`.

    Scope channel: that channel's input is dropped until it was closed and closed-ok.
    Scope connection (channel 0): the connection is over, all but close and close-ok is dropped; a
    `PeerClosed` follows in every case, at the latest when the time for the peer's answer is up.
    Where the peer may not be answered (before it logged in) send_close writes nothing.
    """

    __slots__ = ("channel", "error")

    def __init__(self, channel: int, error: WireError) -> None:
        self.channel = channel
        self.error = error

    @property
    def is_fatal(self) -> bool:
        """Return whether the connection has ended, not just one channel."""
        return self.error.scope == CONNECTION


@final
class PeerClosed:
    """End of the connection, the last event, once: write the rest of `out`, close the transport."""

    __slots__ = ("clean", "reason")

    def __init__(self, reason: str, clean: bool) -> None:
        self.reason = reason
        self.clean = clean
        """True after a complete closing handshake, whichever side began it."""


Event = Opening | MethodReceived | PublishReceived | AckRange | ProtocolFailure | PeerClosed
"""Event of a server's connection."""
ClientEvent = MethodReceived | ContentReceived | ProtocolFailure | PeerClosed
"""Event of a client's connection."""
