"""Transactions that span many queues, by several clients at once, and the account of them.

Each transaction takes a message from every source queue, acknowledges all but one, rejects that one
to the dead-letter queue, and publishes messages with its name to every target queue. So what is in
the queues after a crash tells whether it happened, and each part of it must tell the same.
"""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from tallymark.wire.amqp10.events import DrainFinished, Event, TransfersReceived
from tallymark.wire.amqp10.outcomes import Accepted, Rejected, Released, TransactionalState
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sections import Properties, Sections, encode_message
from tests.support.amqp10_socket import Client
from tests.support.patience import PATIENCE_S

SOURCES = tuple(f"tx.source.{n}" for n in range(5))
TARGETS = tuple(f"tx.target.{n}" for n in range(5))
LETTERS = "tx.letters"
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def set_up(channel: BlockingChannel) -> None:
    channel.queue_declare(LETTERS, durable=True)
    for name in TARGETS:
        channel.queue_declare(name, durable=True)
    dies = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": LETTERS}
    for name in SOURCES:
        channel.queue_declare(name, durable=True, arguments=dies)


@dataclass(frozen=True)
class Made:
    """What a transaction does: the numbers it takes from each source, that of the rejected one, and
    how many messages each target gets."""

    taken: tuple[int, ...]
    rejected: int
    copies: int


@dataclass
class Account:
    """What is known of the transactions of one round."""

    sources: dict[str, set[int]]
    """Numbers published to each, and confirmed."""
    begun: dict[str, Made] = field(default_factory=dict)
    """Transactions whose commit was asked for."""
    committed: set[str] = field(default_factory=set)
    """Those whose commit-ok was read."""
    rolled_back: int = 0

    def check(self, contents: dict[str, list[bytes]]) -> int:
        """Each transaction is there whole or not at all. contents: the bodies in each queue.

        Returns how many there are. Raises AssertionError.
        """
        found: dict[str, list[Counter[str]]] = {}
        for target in TARGETS:
            for body in contents[target]:
                name, part = body.split(b" ", 2)[:2]
                parts = found.setdefault(name.decode(), [Counter() for _ in TARGETS])
                parts[TARGETS.index(target)][part.decode()] += 1
        missing = self.committed - found.keys()
        assert not missing, f"committed, and lost: {sorted(missing)[:5]}"
        unknown = found.keys() - self.begun.keys()
        assert not unknown, f"never committed: {sorted(unknown)[:5]}"
        for name, parts in found.items():
            expected = Counter([str(n) for n in range(self.begun[name].copies)])
            for target, part in zip(TARGETS, parts, strict=True):
                assert part == expected, f"{name} in {target}: {part}, expected {expected}"
        self._check_sources(contents, [self.begun[name] for name in found])
        return len(found)

    def _check_sources(self, contents: dict[str, list[bytes]], made: list[Made]) -> None:
        """What they took is gone, or died; all else is where it was, in its order."""
        for at, source in enumerate(SOURCES):
            gone = {one.taken[at] for one in made}
            there = [int(body.split(b" ", 1)[0]) for body in contents[source]]
            assert there == sorted(there), f"{source}: out of order"
            expected = sorted(self.sources[source] - gone)
            assert there == expected, (
                f"{source}: lost {sorted(set(expected) - set(there))[:5]}, "
                f"twice {sorted(set(there) - set(expected))[:5]}"
            )
        died = Counter([body.split(b" ", 1)[0].decode() for body in contents[LETTERS]])
        wanted = Counter([str(one.taken[one.rejected]) for one in made])
        assert died == wanted, f"letters: {(died - wanted)}, missing {(wanted - died)}"


class Worker(threading.Thread):
    """A client that works until the sources are empty or its broker is gone."""

    def __init__(self, port: int, name: str, account: Account, seed: int, large: bool) -> None:
        super().__init__(name=name, daemon=True)
        self.port = port
        self.account = account
        self.chance = random.Random(seed)
        self.large = large
        """Whether some transactions are larger than what waits in memory for a commit."""
        self.error: BaseException | None = None
        self.may_begin: Callable[[], bool] = lambda: True
        """Asked before each transaction, and may take its time; False: the client is done."""

    def run(self) -> None:
        try:
            parameters = pika.ConnectionParameters(
                "127.0.0.1", self.port, socket_timeout=PATIENCE_S, stack_timeout=PATIENCE_S
            )
            connection = pika.BlockingConnection(parameters)
            channel = connection.channel()
            channel.tx_select()
            number = 0
            while self.may_begin() and self._work(channel, f"{self.name}.{number}"):
                number += 1
            connection.close()
        except (AMQPError, OSError) as error:
            self.error = error  # the broker was killed

    def _work(self, channel: BlockingChannel, name: str) -> bool:
        taken: list[int] = []
        tags: list[int] = []
        for source in SOURCES:
            method, _, body = channel.basic_get(source)
            if method is None:
                channel.basic_recover(requeue=True)
                return False
            taken.append(int(body.split(b" ", 1)[0]))
            tags.append(method.delivery_tag)
        chance = self.chance
        made = Made(tuple(taken), chance.randrange(len(SOURCES)), chance.choice([1, 1, 2, 4]))
        for copy in range(made.copies):
            for target in TARGETS:
                body = f"{name} {copy} ".encode() + b"." * self.size()
                channel.basic_publish("", target, body, PERSISTENT)
        order = list(range(len(SOURCES)))
        chance.shuffle(order)
        for at in order:
            if at == made.rejected:
                channel.basic_reject(tags[at], requeue=False)
            else:
                channel.basic_ack(tags[at])
        if chance.random() < 0.1:
            channel.tx_rollback()
            channel.basic_recover(requeue=True)
            self.account.rolled_back += 1
            return True
        self.account.begun[name] = made
        channel.tx_commit()
        self.account.committed.add(name)
        return True

    def size(self) -> int:
        if self.large and self.chance.random() < 0.1:
            return self.chance.randint(100_000, 600_000)
        return self.chance.randint(0, 8_000)


class Worker10(Worker):
    """The same work over AMQP 1.0, each transaction by a declare and a discharge."""

    def run(self) -> None:
        try:
            with Client(socket.create_connection(("127.0.0.1", self.port))) as client:
                client.login()
                self._begin(client)
                number = 0
                while self.may_begin() and self._work10(f"{self.name}.{number}"):
                    number += 1
        except OSError as error:
            self.error = error  # the broker was killed

    def _begin(self, client: Client) -> None:
        self.client = client
        self.session = client.session()
        self.links = {source: client.receiver(self.session, source) for source in SOURCES}
        self.control = client.coordinator(self.session)
        self.sender = client.sender(self.session, None)

    def _take(self, link: ReceiverLink) -> tuple[int, int] | None:
        """delivery-id and number of the next message; None: there is none."""
        link.flow(1)
        link.drain()
        while True:
            event = self.client.next_of(Event)
            if isinstance(event, TransfersReceived) and event.link is link:
                (body,) = Sections(event.data, 0, len(event.data)).bodies
                assert isinstance(body, bytes)
                return event.first, int(body.split(b" ", 1)[0])
            if isinstance(event, DrainFinished) and event.link is link and event.given_up:
                return None

    def _work10(self, name: str) -> bool:
        taken: list[tuple[int, int]] = []
        for source in SOURCES:
            found = self._take(self.links[source])
            if found is None:
                for id, _ in taken:
                    self.client.dispose(self.session, id, Released(), True)
                return False
            taken.append(found)
        chance = self.chance
        numbers = tuple(number for _, number in taken)
        made = Made(numbers, chance.randrange(len(SOURCES)), chance.choice([1, 1, 2, 4]))
        id = self.client.declare(self.control)
        for copy in range(made.copies):
            for target in TARGETS:
                body = f"{name} {copy} ".encode() + b"." * self.size()
                self._post(target, body, id)
        settled = chance.random() < 0.5
        order = list(range(len(SOURCES)))
        chance.shuffle(order)
        for at in order:
            outcome = Rejected() if at == made.rejected else Accepted()
            self.client.dispose(
                self.session, taken[at][0], TransactionalState(id, outcome), settled
            )
        fails = chance.random() < 0.1
        if not fails:
            self.account.begun[name] = made
        self.client.discharge(self.control, id, fails)
        if not fails:
            self.account.committed.add(name)
            return True
        self.account.rolled_back += 1
        if not settled:
            for delivery, _ in taken:
                self.client.dispose(self.session, delivery, Released(), True)
        return True

    def _post(self, target: str, body: bytes, id: bytes) -> None:
        while not self.sender.credit:
            self.client.next_of(Event)
        message = encode_message(properties=Properties(to=f"/queues/{target}"), body=body)
        self.sender.send(message, state=TransactionalState(id), settled=self.chance.random() < 0.5)
