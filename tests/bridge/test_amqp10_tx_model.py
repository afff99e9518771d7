"""Random work in transactions of AMQP 1.0 against a model that is a few lines of Python [TX-14 to
TX-16, TX-INV 3 and 4]: what is ready, in which order, what is held, and what comes next.

TX10_SEEDS: how many histories (60; 2,000 in `make test-long`).
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

import pytest

from tallymark.wire.amqp10.events import DispositionReceived, LinkDetached
from tallymark.wire.amqp10.outcomes import DeliveryState
from tallymark.wire.amqp10.performatives import Source
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.session import Session
from tallymark.wire.amqp10.types import Symbol
from tests.bridge.rig10 import Got, Peer, Rig
from tests.bridge.tx10_rig import (
    ACCEPTED,
    FAILED,
    REJECTED,
    RELEASED,
    Control,
    dispose,
    post,
    ready,
    under,
)
from tests.support.long import longer, sized

SEEDS = int(os.environ.get("TX10_SEEDS", sized(60, 300, 2000)))
STEPS = 60
OUTCOMES: list[DeliveryState] = [ACCEPTED, RELEASED, REJECTED, FAILED]


@dataclass
class Held:
    """A delivery in the client's hands, or settled under a transaction."""

    message: int
    got: Got
    consumer: int
    acquired_under: bytes | None
    staged_under: bytes | None = None
    outcome: DeliveryState | None = None
    is_settled: bool = False
    """The client is through with it."""


@dataclass
class Model:
    """What has to be so."""

    ready: list[int] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    posted: dict[bytes, list[int]] = field(default_factory=dict)
    """By open transaction, in order."""
    places: dict[int, int] = field(default_factory=dict)
    """Of each message in the queue: when it entered."""

    def enter(self, message: int) -> None:
        self.places[message] = len(self.places)
        self.ready.append(message)

    def give_back(self, message: int) -> None:
        self.ready.append(message)
        self.ready.sort(key=self.places.__getitem__)

    def apply(self, one: Held, outcome: DeliveryState | None) -> None:
        """It is settled, for good."""
        self.held.remove(one)
        if outcome in (RELEASED, FAILED):
            self.give_back(one.message)

    def commit(self, id: bytes) -> None:
        for message in self.posted.pop(id):
            self.enter(message)
        for one in [one for one in self.held if one.staged_under == id]:
            self.apply(one, one.outcome)
        self._ended(id)

    def roll_back(self, id: bytes) -> None:
        del self.posted[id]
        for one in [one for one in self.held if one.staged_under == id]:
            one.staged_under = one.outcome = None
            if one.is_settled or one.consumer < 0:
                self.apply(one, RELEASED)
        for one in [one for one in self.held if one.acquired_under == id]:
            if one.staged_under is None:
                self.apply(one, RELEASED)
        self._ended(id)

    def _ended(self, id: bytes) -> None:
        for one in self.held:
            if one.acquired_under == id:
                one.acquired_under = None

    def detach(self, consumer: int) -> None:
        for one in [one for one in self.held if one.consumer == consumer]:
            one.consumer = -1
            if one.staged_under is None:
                self.apply(one, RELEASED)


class History:
    """A client with two sessions, two consumers, two coordinators."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rig = Rig()
        self.rig.declare("q")
        self.model = Model()
        self.peer: Peer = self.rig.connect10(chunk=self.chance.choice([0, 0, 0, 7]))
        self.sessions: list[Session] = [self.peer.session() for _ in range(2)]
        self.senders: list[SenderLink] = [self.peer.sender(one) for one in self.sessions]
        self.controls = [self._control() for _ in range(2)]
        self.owner: dict[bytes, int] = {}
        self.consumers: dict[int, ReceiverLink] = {}
        self.made = self.next_message = 0
        self.log: list[str] = []

    def _control(self) -> Control:
        return Control(self.peer, self.chance.choice(self.sessions))

    def run(self) -> None:
        moves = [
            self.publish, self.publish, self.attach, self.take, self.take, self.declare,
            self.settle, self.settle, self.settle, self.discharge, self.detach, self.end_control,
        ]  # fmt: skip
        for _ in range(STEPS):
            self.chance.choice(moves)()
            self.check()
        for id in list(self.model.posted):
            self._discharge(id, False)
            self.check()
        for number in list(self.consumers):
            self._detach(number)
        self.check()

    def check(self) -> None:
        self.rig.broker.check()
        queue = self.rig.queue("q")
        model = self.model
        staged = sum(one.staged_under is not None for one in model.held)
        assert ready(self.rig) == [str(one) for one in model.ready], self.log
        assert queue.account.staged == staged, self.log
        assert queue.acquired == len(model.held) - staged, self.log
        assert not [one for one in self.peer.events if isinstance(one, LinkDetached)], self.log

    def _some_id(self) -> bytes | None:
        return self.chance.choice([None, *self.model.posted])

    # -- moves

    def publish(self) -> None:
        count = self.chance.randint(1, 4)
        messages = list(range(self.next_message, self.next_message + count))
        self.next_message += count
        link = self.chance.choice(self.senders)
        id = self._some_id()
        self.log.append(f"publish {messages} under {id!r}")
        if id is None:
            self.peer.send(link, *map(str, messages))
            for one in messages:
                self.model.enter(one)
        else:
            post(self.peer, link, id, *map(str, messages), settled=self.chance.random() < 0.5)
            self.model.posted[id] += messages

    def attach(self) -> None:
        if len(self.consumers) < 2:
            default = self.chance.choice([None, RELEASED])
            link = self.peer.receiver(
                self.chance.choice(self.sessions),
                source=Source(address="q", default_outcome=default),
            )
            self.consumers[self.made] = link
            self.made += 1

    def take(self) -> None:
        if not self.consumers:
            return
        number, link = self.chance.choice(list(self.consumers.items()))
        count = self.chance.randint(1, 3)
        id = self._some_id()
        self.log.append(f"take {count} by {number} under {id!r}")
        link.flow(count, properties={Symbol("txn-id"): id})
        self.peer.pump()
        link.flow(0)
        self.peer.pump()
        taken, self.peer.got = self.peer.got, []
        expected = self.model.ready[:count]
        del self.model.ready[:count]
        assert [int(one.body) for one in taken] == expected, self.log
        for message, got in zip(expected, taken, strict=True):
            self.model.held.append(Held(message, got, number, id))

    def declare(self) -> None:
        if len(self.model.posted) < 3:
            at = self.chance.randrange(len(self.controls))
            id = self.controls[at].declare()
            self.owner[id] = at
            self.model.posted[id] = []

    def settle(self) -> None:
        """One that is held, or was settled under a transaction and not for good."""
        found = [one for one in self.model.held if one.consumer >= 0 and not one.is_settled]
        if not found:
            return
        one = self.chance.choice(found)
        outcome = self.chance.choice(OUTCOMES)
        settled = self.chance.random() < 0.5
        ids = [None, *self.model.posted]
        if one.acquired_under is not None:
            ids = [None, one.acquired_under]
        id = self.chance.choice(ids)
        if one.staged_under is not None and id is None:
            return
        self.log.append(f"settle {one.message} {settled} as {outcome} under {id!r}")
        if id is None:
            dispose(self.peer, one.got, outcome, settled=settled)
            self.model.apply(one, outcome)
            return
        dispose(self.peer, one.got, under(id, outcome), settled=settled)
        # The order of settlements is that of the last word on each.
        self.model.held.remove(one)
        self.model.held.append(one)
        one.staged_under, one.outcome, one.is_settled = id, outcome, settled

    def discharge(self) -> None:
        if self.model.posted:
            self._discharge(self.chance.choice(list(self.model.posted)), self.chance.random() < 0.5)

    def _discharge(self, id: bytes, fail: bool) -> None:
        """By any coordinator of the connection."""
        self.log.append(f"discharge {id!r} {fail}")
        expected = sorted(
            one.got.id
            for one in self.model.held
            if one.staged_under == id and not one.is_settled and not fail
        )
        self.peer.events.clear()
        assert self.chance.choice(self.controls).discharge(id, fail) == ACCEPTED
        told = [one for one in self.peer.events if isinstance(one, DispositionReceived)]
        if not fail:  # what the client has not settled, the broker settles now
            ids = [n for one in told for n in range(one.first, one.last + 1)]
            assert sorted(ids) == expected, self.log
            self.model.commit(id)
        else:
            self.model.roll_back(id)

    def detach(self) -> None:
        if self.consumers and self.chance.random() < 0.3:
            self._detach(self.chance.choice(list(self.consumers)))

    def _detach(self, number: int) -> None:
        self.log.append(f"detach {number}")
        self.consumers.pop(number).detach()
        self.peer.pump()
        self.peer.events.clear()
        self.model.detach(number)

    def end_control(self) -> None:
        """A coordinator's link goes, with what was declared on it and is open."""
        if self.chance.random() < 0.7:
            return
        at = self.chance.randrange(len(self.controls))
        self.log.append(f"end coordinator {at}")
        self.controls[at].link.detach()
        self.peer.pump()
        self.peer.events.clear()
        for id in [id for id in self.model.posted if self.owner[id] == at]:
            self.model.roll_back(id)
        self.controls[at] = self._control()


@longer
@pytest.mark.parametrize("part", range(4))
def test_tx_14_to_16_agree_with_the_model(part: int) -> None:
    for seed in range(part, SEEDS, 4):
        try:
            History(seed).run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
