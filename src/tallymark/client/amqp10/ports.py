"""The adapter for AMQP 1.0, its ports: a session, a receiver, a sender of `wire.amqp10`."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, final

from tallymark.client.adapter import ReceiverPort, SenderPort, SessionPort
from tallymark.client.amqp10.coordinator import CoordinatorEnd
from tallymark.client.amqp10.words import OUTCOMES, fields_of
from tallymark.client.errors import NotPossible
from tallymark.client.options import ReceiverOptions, SenderOptions
from tallymark.client.outcomes import RELEASED, Outcome
from tallymark.wire.amqp10.link import Link, ReceiverLink, SenderLink
from tallymark.wire.amqp10.outcomes import DeliveryState, TransactionalState
from tallymark.wire.amqp10.performatives import (
    COPY,
    DURABLE_UNSETTLED_STATE,
    EXPIRE_NEVER,
    Attach,
    Source,
    Target,
)
from tallymark.wire.amqp10.serial import MASK, diff
from tallymark.wire.amqp10.session import Session

if TYPE_CHECKING:
    from tallymark.client.consumer import Consumer
    from tallymark.client.dispatcher import Dispatcher
    from tallymark.client.producer import Producer
    from tallymark.client.work import Work

EXCLUSIVE: Final = "tallymark:exclusive"
"""Property of a link that wants to be the only one to consume."""

SND_MODES: Final = {"unsettled": 0, "settled": 1, "mixed": 2}
RCV_MODES: Final = {"first": 0, "second": 1}


@final
class Amqp10Session(SessionPort):
    __slots__ = ("_moving", "coordinator", "dispatcher", "has_several", "is_closing", "wire")

    def __init__(self, session: Session, dispatcher: Dispatcher) -> None:
        self.wire = session
        self.dispatcher = dispatcher
        self.is_closing = False
        self.has_several = False
        self.coordinator = CoordinatorEnd(session, dispatcher)
        self._moving: set[ReceiverLink] | None = None  # while the inflow is being stopped

    def tag_of(self, delivery_id: int) -> int:
        """delivery-ids come round after 2^32, tags do not."""
        highest = self.dispatcher.highest_tag
        if highest < 0:
            return delivery_id
        return highest + diff(delivery_id, highest & MASK)

    def add_receiver(self, consumer: Consumer, options: ReceiverOptions) -> ReceiverPort:
        source = Source(
            address=options.address,
            durable=DURABLE_UNSETTLED_STATE if options.durable else 0,
            dynamic=options.dynamic,
            distribution_mode=COPY if options.browse else None,
            filter=fields_of(options.filter),
            outcomes=OUTCOMES,
            capabilities=options.capabilities,
        )
        if options.durable:
            source.expiry_policy = EXPIRE_NEVER
        asked = {EXCLUSIVE: True} if options.exclusive else {}
        attach = Attach(
            name=options.name,
            source=source,
            target=Target(),
            properties=fields_of({**asked, **(options.properties or {})}),
        )
        rcv_mode = _mode(RCV_MODES, options.rcv_mode)
        with possible("receiver"):
            link = self.wire.attach_receiver(attach, _mode(SND_MODES, options.snd_mode), rcv_mode)
        port = Amqp10Receiver(self, link, consumer)
        link.context = port
        return port

    def add_sender(self, producer: Producer, options: SenderOptions) -> SenderPort:
        target = Target(
            address=options.address,
            durable=DURABLE_UNSETTLED_STATE if options.durable else 0,
            dynamic=options.dynamic,
            capabilities=options.capabilities,
        )
        attach = Attach(
            name=options.name,
            source=Source(outcomes=OUTCOMES),
            target=target,
            properties=fields_of(options.properties),
        )
        snd_mode = _mode(SND_MODES, options.settle_mode)
        with possible("sender"):
            link = self.wire.attach_sender(attach, snd_mode, _mode(RCV_MODES, options.rcv_mode))
        port = Amqp10Sender(self, link, producer)
        link.context = port
        return port

    def settle(self, first: int, last: int, outcome: Outcome, work: Work | None = None) -> None:
        self.wire.settle_received(first & MASK, last & MASK, _state(outcome, work))

    def close(self) -> None:
        self.is_closing = True
        self.wire.end()

    # Transactions

    def select(self) -> None:
        with possible("link"):
            self.coordinator.attach()

    def begin(self, work: Work) -> None:
        self.coordinator.declare(work)

    def commit(self, work: Work) -> None:
        self.coordinator.discharge(work, False)

    def rollback(self, work: Work) -> None:
        self.coordinator.discharge(work, True)

    def stop_inflow(self) -> None:
        links = [link for link in self.wire.links if isinstance(link, ReceiverLink)]
        self._moving = {link for link in links if link.stop()}
        self._check_dry()

    def is_dry(self, link: Link) -> None:
        """Note that the link gets no more deliveries."""
        if self._moving is not None and isinstance(link, ReceiverLink):
            self._moving.discard(link)
            self._check_dry()

    def _check_dry(self) -> None:
        if self._moving is not None and not self._moving:
            self._moving = None
            self.dispatcher.inflow_stopped()

    def resume_inflow(self) -> None:
        """Do nothing: credit that is granted from now on resumes deliveries."""

    def give_back(self, ranges: list[tuple[int, int]]) -> None:
        for first, last in ranges:
            self.wire.settle_received(first & MASK, last & MASK, RELEASED)
        self.dispatcher.given_back()  # what is sent from now on is heard behind it


@final
class Amqp10Receiver(ReceiverPort):
    __slots__ = ("consumer", "link", "session")

    def __init__(self, session: Amqp10Session, link: ReceiverLink, consumer: Consumer) -> None:
        self.session = session
        self.link = link
        self.consumer = consumer

    @property
    def credit(self) -> int:
        return self.link.credit

    @property
    def delivery_count(self) -> int:
        return self.link.delivery_count

    def grant(self, credit: int) -> None:
        self.link.flow(credit)

    def drain(self) -> bool:
        return self.link.drain()

    def revoke(self) -> None:
        self.link.flow(0)

    def settle(self, first: int, last: int, outcome: Outcome, work: Work | None = None) -> None:
        assert work is None, "a settlement in a transaction has one step"
        self.link.settle(first & MASK, last & MASK, outcome)

    def close(self) -> None:
        self.link.detach()


@final
class Amqp10Sender(SenderPort):
    __slots__ = ("link", "max_message_size", "producer", "session")

    def __init__(self, session: Amqp10Session, link: SenderLink, producer: Producer) -> None:
        self.session = session
        self.link = link
        self.producer = producer
        self.max_message_size = 0

    @property
    def sendable(self) -> int:
        session = self.session.wire
        if session.is_blocked:
            return 0
        # one more than fits: so that we hear when the window opens
        return min(self.link.credit, session.remote_incoming_window + 1)

    @property
    def is_blocked(self) -> bool:
        return self.session.wire.is_blocked

    def send(self, messages: list[bytes], settled: bool, work: Work | None = None) -> Iterable[int]:
        link = self.link
        state = None if work is None else _state(None, work)
        if len(messages) == 1:
            return (link.send(messages[0], settled=settled, state=state),)
        cuts = array("I", [0])
        end = 0
        for message in messages:
            end += len(message)
            cuts.append(end)
        count = len(messages)
        first = link.send_run(b"".join(messages), cuts, 0, count, settled=settled, state=state)
        if first + count <= MASK:
            return range(first, first + count)
        return [(first + i) & MASK for i in range(count)]

    def withdraw(self, number: int) -> bool:
        return self.link.cancel(number)

    def idle(self) -> None:
        self.link.drained()

    def close(self) -> None:
        self.link.detach()


@final
class possible:
    """Turns the wire's complaint about a limit of the peer's into the client's error."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError):
            raise NotPossible(f"no further {self._what}: {error}") from error


def _mode(modes: Mapping[str, int], name: str | None) -> int | None:
    return None if name is None else modes[name]


def _state(outcome: Outcome | None, work: Work | None) -> DeliveryState | None:
    """An outcome, or none yet; in a transaction, that which it is to have if that is committed."""
    if work is None:
        return outcome
    assert isinstance(work.handle, bytes), work.handle
    return TransactionalState(work.handle, outcome)
