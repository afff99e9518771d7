"""What a connection tells its owner, in the order of the bytes.

Sessions and links come as the objects that the owner acts on. Numbers of deliveries that we sent
are the session's own, see session.py; of those received, delivery-ids.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, final

from tallymark.wire.amqp10.composites import Fields
from tallymark.wire.amqp10.outcomes import DeliveryState, Error
from tallymark.wire.amqp10.performatives import Attach, Begin, Open
from tallymark.wire.amqp10.sasl import SaslFrame

if TYPE_CHECKING:
    from tallymark.wire.amqp10.link import Link, ReceiverLink, SenderLink
    from tallymark.wire.amqp10.session import Session


class Event:
    """One of the classes below."""

    __slots__ = ()


@final
class SaslReceived(Event):
    """A SASL frame. A server answers init and response with `sasl_challenge` or `sasl_outcome`, a
    client mechanisms with `sasl_init`, a challenge with `sasl_response`; until then input waits.
    After outcome 0 a client goes on with `open`; after any other `Ended` follows."""

    __slots__ = ("frame",)

    def __init__(self, frame: SaslFrame) -> None:
        self.frame = frame


@final
class OpenReceived(Event):
    """The peer's open. A server answers with `open` or `close`, and input waits until then; for a
    client the connection is open."""

    __slots__ = ("open",)

    def __init__(self, open: Open) -> None:
        self.open = open


@final
class CloseReceived(Event):
    """The peer closes: answer with `Connection.close`. Sessions and links are gone."""

    __slots__ = ("error",)

    def __init__(self, error: Error | None) -> None:
        self.error = error


@final
class ConnectionFailed(Event):
    """The peer broke the protocol, or is silent: a close was sent where one may be. Sessions and
    links are gone, nothing more comes but `Ended`."""

    __slots__ = ("error",)

    def __init__(self, error: Error) -> None:
        self.error = error


@final
class Ended(Event):
    """The last event, once: write what is left in `out`, close the transport."""

    __slots__ = ("clean", "reason")

    def __init__(self, reason: str, clean: bool) -> None:
        self.reason = reason
        self.clean = clean
        """After a complete exchange of closes, whoever began it and whatever was wrong."""


@final
class SessionRequested(Event):
    """The peer begins a session: answer with `session.begin` or `session.end`."""

    __slots__ = ("begin", "session")

    def __init__(self, session: Session, begin: Begin) -> None:
        self.session = session
        self.begin = begin


@final
class SessionBegun(Event):
    """The answer to our begin."""

    __slots__ = ("begin", "session")

    def __init__(self, session: Session, begin: Begin) -> None:
        self.session = session
        self.begin = begin


@final
class SessionEnded(Event):
    """The peer's end. In state END_RCVD it came first: answer with `session.end`. In UNMAPPED it
    was the answer to ours. The links of the session are gone."""

    __slots__ = ("error", "session")

    def __init__(self, session: Session, error: Error | None) -> None:
        self.session = session
        self.error = error


@final
class SessionFailed(Event):
    """The peer broke the session's rules: an end with this error was sent. Its links are gone,
    nothing more comes of it but `SessionEnded`."""

    __slots__ = ("error", "session")

    def __init__(self, session: Session, error: Error) -> None:
        self.session = session
        self.error = error


@final
class SessionUnblocked(Event):
    """What was queued while the peer's window was closed has left; see Session.is_blocked."""

    __slots__ = ("session",)

    def __init__(self, session: Session) -> None:
        self.session = session


@final
class LinkRequested(Event):
    """The peer attaches: answer with `link.answer` or `link.refuse`."""

    __slots__ = ("attach", "link")

    def __init__(self, link: Link, attach: Attach) -> None:
        self.link = link
        self.attach = attach


@final
class LinkAttached(Event):
    """The answer to our attach: it was granted, in the modes that were asked for."""

    __slots__ = ("attach", "link")

    def __init__(self, link: Link, attach: Attach) -> None:
        self.link = link
        self.attach = attach


@final
class LinkDetached(Event):
    """The peer's detach. In state DETACH_RCVD it came first: answer with `link.detach`. In DETACHED
    it was the answer to ours, and the handle is free."""

    __slots__ = ("closed", "error", "link", "refused")

    def __init__(self, link: Link, closed: bool, error: Error | None, refused: bool) -> None:
        self.link = link
        self.closed = closed
        """The peer forgets the link; not merely suspends it."""
        self.error = error
        self.refused = refused
        """The attach was answered without a terminus: there never was a link."""


@final
class LinkFailed(Event):
    """The peer broke the link's rules: a closing detach with this error was sent. Nothing more
    comes of the link but `LinkDetached`."""

    __slots__ = ("error", "link")

    def __init__(self, link: Link, error: Error) -> None:
        self.link = link
        self.error = error


@final
class CreditReceived(Event):
    """A flow from the receiver of one of our links."""

    __slots__ = ("credit", "drain", "link", "properties")

    def __init__(
        self, link: SenderLink, credit: int, drain: bool, properties: Fields | None
    ) -> None:
        self.link = link
        self.credit = credit
        """Deliveries that may be sent now [FC-3]."""
        self.drain = drain
        """Send what there is, then call `link.drained`."""
        self.properties = properties


@final
class DeliveriesWithdrawn(Event):
    """Deliveries (by number, both included) that will not be sent: the receiver took back the
    credit for them before they could leave."""

    __slots__ = ("first", "last", "link")

    def __init__(self, link: SenderLink, first: int, last: int) -> None:
        self.link = link
        self.first = first
        self.last = last


@final
class FlowReceived(Event):
    """A flow from a sender that says something new (what it has, properties, or that it has
    skipped some of the credit: look at `link.credit`), or one of a session with properties."""

    __slots__ = ("available", "link", "properties", "session")

    def __init__(
        self,
        session: Session,
        link: ReceiverLink | None,
        available: int,
        properties: Fields | None,
    ) -> None:
        self.session = session
        self.link = link
        self.available = available
        """The sender's hint of what it has; 0 for a session's flow."""
        self.properties = properties


@final
class DrainFinished(Event):
    """The drain is done: the credit is used or given up, delivery-count is the sender's."""

    __slots__ = ("given_up", "link")

    def __init__(self, link: ReceiverLink, given_up: int) -> None:
        self.link = link
        self.given_up = given_up
        """Credit that the sender had no deliveries for."""


@final
class InflowStopped(Event):
    """All credit is taken back, and nothing more is on its way: see ReceiverLink.stop."""

    __slots__ = ("link",)

    def __init__(self, link: ReceiverLink) -> None:
        self.link = link


@final
class TransfersReceived(Event):
    """A stretch of complete deliveries on one link, alike but for their ids, tags and bytes. Their
    credit is counted."""

    __slots__ = (
        "cuts",
        "data",
        "first",
        "is_second",
        "link",
        "message_format",
        "settled",
        "state",
        "tags",
    )

    def __init__(
        self,
        link: ReceiverLink,
        first: int,
        tags: list[bytes],
        data: bytes,
        cuts: array[int],
        settled: bool,
        state: DeliveryState | None,
        message_format: int,
        is_second: bool,
    ) -> None:
        self.link = link
        self.first = first
        """delivery-id of message 0; those of the others follow it, modulo 2^32."""
        self.tags = tags
        """Empty as well where the connection does not want them."""
        self.data = data
        """The sections of all messages, end to end."""
        self.cuts = cuts
        """array('I'): message i is data[cuts[i]:cuts[i + 1]]."""
        self.settled = settled
        """Sent settled: no disposition is due, none is allowed [FC-10]."""
        self.state = state
        self.message_format = message_format
        self.is_second = is_second
        """The receiver settles second: ReceiverLink.settle takes two steps."""

    def __len__(self) -> int:
        return len(self.cuts) - 1


@final
class DispositionReceived(Event):
    """What the peer thinks of deliveries first..last (serial numbers, both included).

    by_sender False: of ours, one or several dispositions alike, cut to what was sent. They may name
    deliveries that are settled already.
    by_sender True: of the peer's own, and no answer to a settlement of ours [FC-18].
    """

    __slots__ = ("by_sender", "first", "last", "session", "settled", "state")

    def __init__(
        self,
        session: Session,
        by_sender: bool,
        first: int,
        last: int,
        settled: bool,
        state: DeliveryState | None,
    ) -> None:
        self.session = session
        self.by_sender = by_sender
        self.first = first
        self.last = last
        self.settled = settled
        self.state = state


@final
class SettlementReceived(Event):
    """The sender's answer to ReceiverLink.settle in mode second [FC-12]: each delivery once."""

    __slots__ = ("first", "last", "link", "state")

    def __init__(
        self, link: ReceiverLink, first: int, last: int, state: DeliveryState | None
    ) -> None:
        self.link = link
        self.first = first
        self.last = last
        self.state = state
        """Of the answer; a Rejected with an error is an error for whoever settled."""
