"""Events that a connection reports to its owner, in the order of the bytes.

Sessions and links come as the objects that the owner acts on. Numbers of deliveries that we sent
are the session's own, see session.py; of those received, delivery-ids.
"""

from __future__ import annotations

from array import array
from typing import TypeAlias, final

from tallymark.wire.amqp10.composites import Fields
from tallymark.wire.amqp10.ends import Event as Event
from tallymark.wire.amqp10.ends import LinkEnd, SessionEnd
from tallymark.wire.amqp10.outcomes import DeliveryState, Error
from tallymark.wire.amqp10.performatives import Attach, Begin, Open
from tallymark.wire.amqp10.sasl import SaslFrame
from tallymark.wire.amqp10.serial import Serial


@final
class SaslReceived(Event):
    """A SASL frame. A server answers init and response by `sasl_challenge` or `sasl_outcome`, a
    client answers mechanisms by `sasl_init` and a challenge by `sasl_response`; until then input
    waits. After outcome 0 a client calls `open`; after any other `Ended` follows."""

    __slots__ = ("frame",)

    def __init__(self, frame: SaslFrame) -> None:
        self.frame = frame


@final
class OpenReceived(Event):
    """The peer's open. A server answers by `open` or `close`, and input waits until then; for a
    client the connection is open."""

    __slots__ = ("open",)

    def __init__(self, open: Open) -> None:
        self.open = open


@final
class CloseReceived(Event):
    """The peer's close: answer by `Connection.close`. Sessions and links are gone."""

    __slots__ = ("error",)

    def __init__(self, error: Error | None) -> None:
        self.error = error


@final
class ConnectionFailed(Event):
    """A failure: the peer broke the protocol or is silent. A close was sent where one is allowed.
    Sessions and links are gone, and only `Ended` follows."""

    __slots__ = ("error",)

    def __init__(self, error: Error) -> None:
        self.error = error


@final
class Ended(Event):
    """End of the connection, the last event, once: write the rest of the output, close the
    transport."""

    __slots__ = ("clean", "reason")

    def __init__(self, reason: str, clean: bool) -> None:
        self.reason = reason
        self.clean = clean
        """True after a complete exchange of closes, whoever began it and for whatever reason."""


@final
class SessionRequested(Event):
    """The peer's begin of a session: answer by `session.begin` or `session.end`."""

    __slots__ = ("begin", "session")

    def __init__(self, session: SessionEnd, begin: Begin) -> None:
        self.session = session
        self.begin = begin


@final
class SessionBegun(Event):
    """The peer's answer to our begin."""

    __slots__ = ("begin", "session")

    def __init__(self, session: SessionEnd, begin: Begin) -> None:
        self.session = session
        self.begin = begin


@final
class SessionEnded(Event):
    """The peer's end. In state END_RCVD it came first: answer by `session.end`. In UNMAPPED it was
    the answer to ours. The links of the session are gone."""

    __slots__ = ("error", "session")

    def __init__(self, session: SessionEnd, error: Error | None) -> None:
        self.session = session
        self.error = error


@final
class SessionFailed(Event):
    """A failure of a session: the peer broke its rules, and an end with this error was sent. Its
    links are gone, and only `SessionEnded` follows for it."""

    __slots__ = ("error", "session")

    def __init__(self, session: SessionEnd, error: Error) -> None:
        self.session = session
        self.error = error


@final
class SessionUnblocked(Event):
    """End of a session's blocking: all deliveries that waited for the peer's window have left; see
    Session.is_blocked."""

    __slots__ = ("session",)

    def __init__(self, session: SessionEnd) -> None:
        self.session = session


@final
class LinkRequested(Event):
    """The peer's attach: answer by `link.answer` or `link.refuse`."""

    __slots__ = ("attach", "link")

    def __init__(self, link: LinkEnd, attach: Attach) -> None:
        self.link = link
        self.attach = attach


@final
class LinkAttached(Event):
    """The peer's answer to our attach: it was granted, in the requested modes."""

    __slots__ = ("attach", "link")

    def __init__(self, link: LinkEnd, attach: Attach) -> None:
        self.link = link
        self.attach = attach


@final
class LinkDetached(Event):
    """The peer's detach. In state DETACH_RCVD it came first: answer by `link.detach`. In DETACHED
    it was the answer to ours, and the handle is free."""

    __slots__ = ("closed", "error", "link", "refused")

    def __init__(self, link: LinkEnd, closed: bool, error: Error | None, refused: bool) -> None:
        self.link = link
        self.closed = closed
        """True if the peer forgets the link; False if it only suspends it."""
        self.error = error
        self.refused = refused
        """True if the attach was answered without a terminus: there never was a link."""


@final
class LinkFailed(Event):
    """A failure of a link: the peer broke its rules, and a closing detach with this error was sent.
    Only `LinkDetached` follows for it."""

    __slots__ = ("error", "link")

    def __init__(self, link: LinkEnd, error: Error) -> None:
        self.link = link
        self.error = error


@final
class CreditReceived(Event):
    """A flow from the receiver of one of our links."""

    __slots__ = ("credit", "drain", "link", "properties")

    def __init__(self, link: LinkEnd, credit: int, drain: bool, properties: Fields | None) -> None:
        self.link = link
        self.credit = credit
        """Count of deliveries that may be sent now [FC-3]."""
        self.drain = drain
        """True if all available deliveries are to be sent, followed by `link.drained`."""
        self.properties = properties


@final
class DeliveriesWithdrawn(Event):
    """Withdrawn deliveries (by number, both included), which will not be sent: the receiver took
    back their credit before they could leave."""

    __slots__ = ("first", "last", "link")

    def __init__(self, link: LinkEnd, first: Serial, last: Serial) -> None:
        self.link = link
        self.first = first
        self.last = last


@final
class FlowReceived(Event):
    """A flow from a sender with new content (available, properties, or credit that it skipped: see
    `link.credit`), or a flow of a session with properties."""

    __slots__ = ("available", "link", "properties", "session")

    def __init__(
        self,
        session: SessionEnd,
        link: LinkEnd | None,
        available: int,
        properties: Fields | None,
    ) -> None:
        self.session = session
        self.link = link
        self.available = available
        """Sender's hint of its available deliveries; 0 for a session's flow."""
        self.properties = properties


@final
class DrainFinished(Event):
    """End of a drain: the credit is used or given up, delivery-count is the sender's."""

    __slots__ = ("given_up", "link")

    def __init__(self, link: LinkEnd, given_up: int) -> None:
        self.link = link
        self.given_up = given_up
        """Credit that the sender had no deliveries for."""


@final
class InflowStopped(Event):
    """End of inflow: all credit is taken back, and no delivery is on its way; see
    ReceiverLink.stop."""

    __slots__ = ("link",)

    def __init__(self, link: LinkEnd) -> None:
        self.link = link


@final
class TransfersReceived(Event):
    """A stretch of complete deliveries on one link, equal except for ids, tags and bytes. Their
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
        link: LinkEnd,
        first: Serial,
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
        """Delivery-id of message 0; those of the others follow it, modulo 2^32."""
        self.tags = tags
        """Delivery-tags; empty as well if the connection does not want them."""
        self.data = data
        """Sections of all messages, end to end."""
        self.cuts = cuts
        """array('I'): message i is data[cuts[i]:cuts[i + 1]]."""
        self.settled = settled
        """True if sent settled: no disposition is due, and none is allowed [FC-10]."""
        self.state = state
        self.message_format = message_format
        self.is_second = is_second
        """True if the receiver settles second: ReceiverLink.settle takes two steps."""

    def __len__(self) -> int:
        return len(self.cuts) - 1


@final
class DispositionReceived(Event):
    """The peer's disposition of deliveries first..last (serial numbers, both included).

    by_sender False: of ours, one or several dispositions alike, cut to what was sent. They may name
    deliveries that are settled already.
    by_sender True: of the peer's own, and no answer to a settlement of ours [FC-18].
    """

    __slots__ = ("by_sender", "first", "last", "session", "settled", "state")

    def __init__(
        self,
        session: SessionEnd,
        by_sender: bool,
        first: Serial,
        last: Serial,
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
        self, link: LinkEnd, first: Serial, last: Serial, state: DeliveryState | None
    ) -> None:
        self.link = link
        self.first = first
        self.last = last
        self.state = state
        """State in the answer. A Rejected with an error is an error for the caller of settle."""


ConnectionEvent: TypeAlias = SaslReceived | OpenReceived | CloseReceived | ConnectionFailed | Ended
SessionEvent: TypeAlias = SessionRequested | SessionBegun | SessionEnded | SessionFailed
LinkEvent: TypeAlias = LinkRequested | LinkAttached | LinkDetached | LinkFailed
FlowEvent: TypeAlias = (
    DeliveriesWithdrawn | FlowReceived | DrainFinished | InflowStopped | SessionUnblocked
)
DeliveryEvent: TypeAlias = (
    TransfersReceived | DispositionReceived | CreditReceived | SettlementReceived
)
AnyEvent: TypeAlias = DeliveryEvent | FlowEvent | LinkEvent | SessionEvent | ConnectionEvent
"""An event: whoever handles events names all of them (`assert_never`)."""
