"""A scripted AMQP 1.0 broker with transactions: queues in which what is given back takes its old
place, and a coordinator. It checks what a broker can see of TX-INV: see `check_fresh`.

Its answers come at once, or with a `chance` some time later, in their order.
"""

from __future__ import annotations

import asyncio
import random
from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tallymark.wire.amqp10.composites import read_composite
from tallymark.wire.amqp10.events import (
    CreditReceived,
    DispositionReceived,
    Event,
    LinkDetached,
    LinkRequested,
    SessionEnded,
    SessionUnblocked,
    TransfersReceived,
)
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.link import Link
from tallymark.wire.amqp10.outcomes import (
    Accepted,
    Declare,
    Declared,
    DeliveryState,
    Discharge,
    Error,
    Modified,
    Rejected,
    Released,
    TransactionalState,
)
from tallymark.wire.amqp10.performatives import Attach, Coordinator, Source
from tallymark.wire.amqp10.reader import Reader
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sections import DATA, VALUE, Sections, encode_message
from tallymark.wire.amqp10.sender_link import SenderLink
from tests.support.amqp10_peer import Peer

SEVERAL = ("amqp:local-transactions", "amqp:multi-txns-per-ssn")


@dataclass
class Delivery:
    queue: str
    position: int
    body: bytes
    link: SenderLink


@dataclass
class Txn:
    posts: list[tuple[str, bytes]] = field(default_factory=list)
    retired: list[tuple[Delivery, DeliveryState]] = field(default_factory=list)


class TxBroker(Peer):
    """One consumer a queue at a time."""

    def __init__(self, chance: random.Random | None = None) -> None:
        super().__init__(Limits(idle_time_out_ms=0))
        self.chance = chance
        self.answers = self._on_event
        self.ready: dict[str, list[tuple[int, bytes]]] = {}
        """By queue: (position, body), ascending."""
        self.done: list[tuple[str, bytes]] = []
        """Accepted for good."""
        self.in_flight: dict[int, Delivery] = {}
        self.txns: dict[bytes, Txn] = {}
        self.coordinators: list[ReceiverLink] = []
        self.declared = 0
        """Transactions, but for those that the client only tries the coordinator with."""
        self.committed = 0
        self.rolled_back = 0
        self.capabilities: tuple[str, ...] = SEVERAL
        self.refuses: list[Error] = []
        """Answers to the next commits: they are rolled back instead."""
        self.is_mute = False
        """Says nothing to discharges, until `answer_discharges`."""
        self.no_coordinator: Error | None = None
        self.has_only_queues = False
        """As Proton's example broker: a coordinator is one more queue, which accepts anything."""
        self.after_discharge: Callable[[bool], None] = lambda fail: None
        self._late: deque[Callable[[], None]] = deque()
        self._is_due = False
        self._kept: list[tuple[ReceiverLink, int, DeliveryState]] = []
        self._positions = 0
        self._named = 0
        self._must_be_fresh = False

    def fill(self, queue: str, *bodies: bytes) -> None:
        for body in bodies:
            self._positions += 1
            self.ready.setdefault(queue, []).append((self._positions, body))

    def put_in(self, queue: str, *bodies: bytes) -> None:
        """The same, and they leave as there is credit."""
        self.fill(queue, *bodies)
        self.give(self.sending(queue))
        self.flush()

    def bodies(self, queue: str) -> list[bytes]:
        """Of what is in the queue, ready or delivered and not staged, in its order."""
        found = list(self.ready.get(queue, ()))
        found += [(d.position, d.body) for d in self.in_flight.values() if d.queue == queue]
        return [body for _, body in sorted(found)]

    # Events

    def _on_event(self, event: Event) -> bool:
        if isinstance(event, LinkRequested):
            return self._requested(event)
        if isinstance(event, CreditReceived):
            self._later(lambda: self.give(event.link))
            return True
        if isinstance(event, SessionUnblocked):
            return True
        if isinstance(event, TransfersReceived):
            if event.link in self.coordinators:
                self._asked(event)
            else:
                self._posted(event)
            return True
        if isinstance(event, DispositionReceived) and not event.by_sender:
            self._disposed(event)
            return True
        if isinstance(event, LinkDetached):
            self._gone(event.link)
        elif isinstance(event, SessionEnded):
            self._session_gone()
        return False

    def lost(self) -> None:
        self._session_gone()
        super().lost()

    def _session_gone(self) -> None:
        for txn in list(self.txns):
            self.end(txn, True)
        for number in list(self.in_flight):
            self._put_back(self.in_flight.pop(number))
        self._late.clear()
        self._must_be_fresh = False

    def _gone(self, link: Link) -> None:
        if link in self.coordinators:
            for txn in list(self.txns):
                self.end(txn, True)
        for number, delivery in list(self.in_flight.items()):
            if delivery.link is link:
                self._put_back(self.in_flight.pop(number))

    def _requested(self, event: LinkRequested) -> bool:
        link = event.link
        if isinstance(link, SenderLink):
            return False
        if isinstance(event.attach.target, Coordinator):
            assert isinstance(link, ReceiverLink)
            if self.no_coordinator is not None:
                link.refuse(self.no_coordinator)
                return True
            self.coordinators.append(link)
            target = Coordinator(capabilities=self.capabilities)
            link.answer(Attach(source=Source(), target=target), None, None)
            link.flow(1)  # and kept at 1, as Qpid has it [TX-11]
            return True
        return False

    def drop_coordinator(self, error: Error) -> None:
        """Detach the newest link to the coordinator; what is open is rolled back with it."""
        link = self.coordinators[-1]
        for txn in list(self.txns):
            self.end(txn, True)
        link.detach(error, closed=True)

    # Late answers

    def _later(self, step: Callable[[], None]) -> None:
        """Now, or some time later, behind what is late already."""
        if self.chance is None or (not self._late and self.chance.random() < 0.6):
            step()
            return
        self._late.append(step)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(self.chance.random() / 100, self._catch_up)

    def _catch_up(self) -> None:
        self._is_due = False
        late, self._late = self._late, deque()
        while late:
            late.popleft()()
        self.flush()

    # Deliveries

    def give(self, link: SenderLink) -> None:
        source = link.remote_attach.source if link.remote_attach is not None else None
        queue = (source.address if source is not None else "") or ""
        ready = self.ready.setdefault(queue, [])
        while link.credit and ready:
            self.check_fresh()
            position, body = ready.pop(0)
            settled = link.remote_attach is not None and link.remote_attach.snd_settle_mode == 1
            number = link.send(encode_message(body=body), settled=settled)
            if settled:
                self.done.append((queue, body))
                continue
            self.in_flight[number] = Delivery(queue, position, body, link)
        link.drained()

    def check_fresh(self) -> None:
        """TX-INV (5): nothing is unsettled before the first delivery after a rollback."""
        if self._must_be_fresh:
            self._must_be_fresh = False
            assert not self.in_flight, self.in_flight

    def check_outside(self) -> None:
        """Where a session has one transaction at a time, nothing is done beside it. An empty one is
        a trial of the coordinator."""
        others = [txn for txn in self.txns.values() if txn != Txn()]
        assert len(self.capabilities) > 1 or not others, others

    def _put_back(self, delivery: Delivery) -> None:
        insort(self.ready[delivery.queue], (delivery.position, delivery.body))
        link = self.links.get(delivery.queue)
        if isinstance(link, SenderLink) and link.credit:
            self._later(lambda: self.give(link))

    def _disposed(self, event: DispositionReceived) -> None:
        state = event.state
        for i in range((event.last - event.first & 0xFFFFFFFF) + 1):
            number = (event.first + i) & 0xFFFFFFFF
            delivery = self.in_flight.pop(number, None)
            if delivery is None:
                continue
            if isinstance(state, TransactionalState):
                assert state.outcome is not None
                if state.txn_id in self.txns:
                    self.txns[state.txn_id].retired.append((delivery, state.outcome))
                else:
                    self._put_back(delivery)
                    self._refuse_work(delivery.link)
            else:
                if not isinstance(state, (Released, Modified)):
                    self.check_outside()
                self._finish(delivery, state)
        if not event.settled:
            event.session.settle_sent(event.first, event.last, state)

    def _refuse_work(self, link: Link) -> None:
        """TX-14: what names an unknown transaction costs its link."""
        link.detach(Error("amqp:transaction:unknown-id", "rolled back"), closed=True)
        self._gone(link)

    def _finish(self, delivery: Delivery, state: DeliveryState | None) -> None:
        if isinstance(state, (Released, Modified)):
            self._put_back(delivery)
        else:
            self.done.append((delivery.queue, delivery.body))

    def _posted(self, event: TransfersReceived) -> None:
        target = event.link.remote_attach.target if event.link.remote_attach is not None else None
        queue = str(getattr(target, "address", ""))
        state = event.state
        answer: DeliveryState = Accepted()
        for i in range(len(event)):
            content = _body(event.data[event.cuts[i] : event.cuts[i + 1]])
            assert isinstance(content, bytes)
            if isinstance(state, TransactionalState):
                if state.txn_id not in self.txns:
                    self._refuse_work(event.link)
                    return
                self.txns[state.txn_id].posts.append((queue, content))
                answer = TransactionalState(state.txn_id, Accepted())
            else:
                self.check_outside()
                self.fill(queue, content)
        last = (event.first + len(event) - 1) & 0xFFFFFFFF
        link = event.link
        if not event.settled:
            self._later(lambda: link.settle(event.first, last, answer))
        if link.credit < 10:
            link.flow(100)

    # The coordinator

    def _asked(self, event: TransfersReceived) -> None:
        assert len(event) == 1
        body = _body(event.data)
        link = event.link
        number = event.first
        if self.has_only_queues:
            link.settle(number, number, Accepted())
        elif isinstance(body, Declare):
            assert len(self.capabilities) > 1 or not self.txns, "one transaction at a time"
            self.declared += 1
            self._named += 1
            txn = b"t%d" % self._named
            self.txns[txn] = Txn()
            self._later(lambda: link.settle(number, number, Declared(txn)))
        else:
            assert isinstance(body, Discharge), body
            self._later(lambda: self._discharge(link, number, body))
        self._later(lambda: link.flow(1))

    def _discharge(self, link: ReceiverLink, number: int, body: Discharge) -> None:
        answer: DeliveryState = Accepted()
        fail = bool(body.fail)
        if fail and self.txns.get(body.txn_id) == Txn():  # a trial
            del self.txns[body.txn_id]
            self.declared -= 1
            link.settle(number, number, answer)
            return
        if body.txn_id not in self.txns:
            answer = Rejected(Error("amqp:transaction:unknown-id", repr(body.txn_id)))
        elif not fail and self.refuses:
            answer = Rejected(self.refuses.pop(0))
            self.end(body.txn_id, True)
        else:
            self.end(body.txn_id, fail)
            self._must_be_fresh = self._must_be_fresh or fail
        if self.is_mute:
            self._kept.append((link, number, answer))
        else:
            link.settle(number, number, answer)
        self.after_discharge(fail)

    def answer_discharges(self) -> None:
        """Those that were not answered while it was mute."""
        for link, number, answer in self._kept:
            link.settle(number, number, answer)
        self._kept.clear()
        self.flush()

    def end(self, txn_id: bytes, fail: bool) -> None:
        txn = self.txns.pop(txn_id)
        if fail:
            self.rolled_back += 1
            for delivery, _ in txn.retired:
                self._put_back(delivery)
            return
        self.committed += 1
        for queue, body in txn.posts:
            self.fill(queue, body)
        for delivery, outcome in txn.retired:
            self._finish(delivery, outcome)


def _body(message: bytes) -> object:
    sections = Sections(message, 0, len(message))
    for code, start, at in sections.bounds:
        if code == VALUE:
            return read_composite(Reader(message, at, len(message)), "transaction")
        if code == DATA:
            return sections.bodies[0]
        assert code < DATA, (code, start)
    return None
