"""Our ends of links, as the client, its sessions and their confirms see them."""

from __future__ import annotations

from tallymark.wire.amqp10.events import CreditReceived, TransfersReceived
from tallymark.wire.amqp10.outcomes import DeliveryState, Rejected
from tallymark.wire.amqp10.serial import Serial


class LinkEnd:
    """Our end of an attached link: its `context`. Methods that a kind of link does not need do
    nothing."""

    __slots__ = ()

    def received(self, event: TransfersReceived) -> None:
        """Handle messages that arrived."""

    def granted(self, event: CreditReceived) -> None:
        """Handle credit granted by the peer's receiver."""

    def resume(self) -> None:
        """Grant credit to publishers again."""

    def rights_changed(self) -> None:
        """Apply a change of the user's permissions."""

    def detach_deleted(self) -> None:
        """Detach the link because its queue was deleted. Does nothing if the link has ended."""

    def gone(self, with_session: bool) -> None:
        """End the engine's side of a link that has ended. Called once. with_session: the engine's
        session is closed already."""


class Publisher(LinkEnd):
    """Our end of a link on which a client publishes, as far as confirms work on it."""

    __slots__ = ("is_open", "no_room", "unconfirmed")

    def __init__(self, no_room: Rejected) -> None:
        self.is_open = True
        self.unconfirmed = 0
        """Count of messages without a settled outcome."""
        self.no_room = no_room
        """Outcome for messages that a queue refuses because it is full [DL-6]."""

    def grant(self) -> None:
        """Grant credit where the client has used half of it."""
        raise NotImplementedError

    def settle(self, first: Serial, last: Serial, state: DeliveryState) -> None:
        """Send the outcome of deliveries in mode second; the sender settles them."""
        raise NotImplementedError

    def queue_deleted(self) -> None:
        """End the link because the queue that its address names was deleted."""
        raise NotImplementedError
