"""Ends: a connection, a session and a link as those below them see them, and as events name them.

A link acts through its session and a session through its connection, while the upper one makes the
lower one; what a lower module calls stands here, so that none imports an upper one.
"""

from __future__ import annotations

from typing import Final

from tallymark.wire.amqp10.frames import HEAD
from tallymark.wire.amqp10.limits import FRAME_MIN, Limits
from tallymark.wire.amqp10.outcomes import DeliveryState, Error
from tallymark.wire.amqp10.performatives import RCV_FIRST, SND_MIXED, Attach, Begin, Flow
from tallymark.wire.amqp10.serial import Serial
from tallymark.wire.amqp10.states import LinkState, SessionState

NO_CHANNEL: Final = -1
"""Channel of a side that has not begun yet."""
NO_HANDLE: Final = -1
"""Handle of a side that has not attached yet."""


class Event:
    """Base of the events in events.py."""

    __slots__ = ()


class ConnectionEnd:
    """One end of a connection, for its sessions."""

    __slots__ = ("limits", "max_frame_size")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.max_frame_size = FRAME_MIN
        """Largest frame that we send, bytes: the smaller of both sides' limits once the peer's open
        is there."""

    def write_frame(self, raw: bytes) -> None:
        """Append a frame of a session or a link. One larger than the peer accepts closes the
        connection [amqp-1.0 §2.8.15 frame-size-too-small]."""
        raise NotImplementedError

    def write(self, frames: bytes) -> None:
        """Append frames of a session that are known to be small enough."""
        raise NotImplementedError

    def fail_frame_size(self, size: int, what: str = "a frame") -> None:
        """Close the connection because the peer's maximum frame is too small for our output.
        what: names it in the text for the peer."""
        raise NotImplementedError

    def emit(self, event: Event) -> None:
        """Add an event of a session or a link."""
        raise NotImplementedError

    def count_unfinished(self, change: int) -> None:
        """Change the byte count of incomplete deliveries. Raises DecodeError above the limit."""
        raise NotImplementedError

    def unmap(self, session: SessionEnd) -> None:
        """Free the peer's channel of a session that the peer has ended."""
        raise NotImplementedError

    def forget_session(self, session: SessionEnd) -> None:
        """Free our channel of a session that has ended on both sides."""
        raise NotImplementedError


class SessionEnd:
    """One end of a session, for its links and its outbox."""

    __slots__ = ("channel", "connection", "context", "remote_channel", "state")

    def __init__(self, connection: ConnectionEnd, channel: int) -> None:
        self.connection = connection
        self.channel = channel
        """Our channel number."""
        self.remote_channel = NO_CHANNEL
        self.context: object = None
        """Object of the owner."""
        self.state = SessionState.UNMAPPED

    def begin(self, begin: Begin | None = None) -> None:
        """Grant the session that SessionRequested asks for. Channel, windows and handle-max in
        `begin` are set here. Raises ValueError if there was no request."""
        raise NotImplementedError

    def end(self, error: Error | None = None) -> None:
        """Begin or answer the end; the session's links are dropped. Does nothing if we have ended
        it."""
        raise NotImplementedError

    def write(self, body: bytes) -> None:
        """Append a frame on the session's channel."""
        raise NotImplementedError

    def excess(self, body: bytes) -> int:
        """Return how many bytes a frame with this body has more than the peer takes."""
        return HEAD + len(body) - self.connection.max_frame_size

    def write_flow(self, flow: Flow) -> None:
        """Set the session's fields in a flow, which opens the window again, and send it."""
        raise NotImplementedError

    def write_settled(self, first: Serial, last: Serial, state: bytes, settled: bool) -> None:
        """Send a disposition about numbers that have left."""
        raise NotImplementedError

    def settle_received(self, first: Serial, last: Serial, state: DeliveryState | None) -> None:
        """Settle received deliveries, on whatever links [FC-11]."""
        raise NotImplementedError

    def settle_second(
        self, link: LinkEnd, first: Serial, last: Serial, state: DeliveryState | None
    ) -> None:
        """Settle for ReceiverLink.settle in mode second. The deliveries are in flight before the
        first byte is written [FC-12]."""
        raise NotImplementedError

    def emit(self, event: Event) -> None:
        self.connection.emit(event)

    def is_next_delivery(self, delivery_id: Serial) -> bool:
        """Note the beginning of a delivery. Ids must increase, over all links of the session
        [FC-A12]; gaps are accepted, since some brokers leave them. False: the id is invalid, and
        the session has failed."""
        raise NotImplementedError

    def free_handle(self) -> int:
        """Return the lowest free handle."""
        raise NotImplementedError

    def take_handle(self) -> int:
        """Return the lowest free handle and mark it as used."""
        raise NotImplementedError

    def forget_link(self, link: LinkEnd) -> None:
        """Remove a link that is detached on both sides."""
        raise NotImplementedError


class LinkEnd:
    """One end of a link, for the queues of its session. A `Link` attaches and detaches it."""

    __slots__ = (
        "context",
        "handle",
        "is_sender",
        "name",
        "rcv_settle_mode",
        "remote_attach",
        "remote_handle",
        "session",
        "snd_settle_mode",
        "state",
    )

    def __init__(self, session: SessionEnd, name: str, is_sender: bool) -> None:
        self.session = session
        self.name = name
        self.is_sender = is_sender
        """True if we send on the link."""
        self.context: object = None
        """Object of the owner."""
        self.state = LinkState.DETACHED
        self.handle = NO_HANDLE
        """Our handle."""
        self.remote_handle = NO_HANDLE
        self.remote_attach: Attach | None = None
        self.snd_settle_mode = SND_MIXED
        """Sender-settle-mode, in effect once attached."""
        self.rcv_settle_mode = RCV_FIRST

    def is_gone(self) -> bool:
        """Return whether no more may be sent on the link."""
        return self.state is LinkState.DETACHED

    def answer(
        self,
        attach: Attach,
        snd_settle_mode: int | None = None,
        rcv_settle_mode: int | None = None,
    ) -> None:
        """Grant the link that LinkRequested asks for. Name, handle, role and modes in `attach` are
        set here; a mode of None means the requested one. Raises ValueError if there was no
        request."""
        raise NotImplementedError

    def refuse(self, error: Error) -> None:
        """Refuse the link: it is attached without a terminus, and closed [§2.6.3]."""
        self.detach(error)

    def detach(self, error: Error | None = None, closed: bool | None = None) -> None:
        """Begin or answer a detach. If begun with an error, input before the peer's detach is
        dropped [FC-21]; without one it is still handled [FC-A7]. Does nothing if we have detached.

        `closed`: the link is forgotten, not merely suspended; None: as the peer says in its
        detach, and closed where we begin."""
        raise NotImplementedError

    def count_sent(self, count: int) -> None:
        """Count deliveries that have left. Only a sender has any."""
        raise NotImplementedError

    def give_up(self, drain: int) -> None:
        """Give up the credit once everything before this drain has left. Only a sender has any."""
        raise NotImplementedError

    def settled(self, first: Serial, last: Serial, state: DeliveryState | None) -> None:
        """Handle the sender's answer to a settlement in mode second. Only a receiver gets any."""
        raise NotImplementedError
