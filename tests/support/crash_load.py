"""Clients that publish, consume and settle as fast as they can while keeping their histories."""

from __future__ import annotations

import random
import select
import struct
from collections import deque
from collections.abc import Callable

from bench.lean import ACK, DELIVER, NACK, PERSISTENT, TRANSIENT, Link, publish, settle
from tests.support.crash_history import Arrival, QueueHistory, body_of, number_in, number_of

REJECT = (60, 90)
PUBLISHING, CONSUMING = 1, 2
"""Channels: settlements and the publishes that make them certain are on one connection."""
EXCHANGE = "crash.all"
WINDOW = 2_000
"""Unconfirmed publishes of a client at most."""
OUTBOX = 1 << 20
REPEATS = (2, 16, 128)
LARGE_REPEATS = 40_000
"""A body of three frames."""


def set_up(port: int, queues: list[str]) -> None:
    """Durable queues, and a durable fanout exchange with all of them."""
    link = Link(port)
    link.open_channel(PUBLISHING)
    link.call(1, (40, 10), b"\0\0" + short(EXCHANGE) + short("fanout") + b"\2" + bytes(4))
    for name in queues:
        link.declare_queue(name)
        arguments = b"\0\0" + short(name) + short(EXCHANGE) + short("") + b"\0" + bytes(4)
        link.call(1, (50, 20), arguments)
    link.close()


def short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


class Templates:
    """Publishes of usual sizes without their body, so that one costs a join and no packing."""

    def __init__(self) -> None:
        self._heads: dict[tuple[str, str, bool, int], bytes] = {}

    def message(self, exchange: str, key: str, number: int, repeats: int) -> bytes:
        persistent = not number >> 47 & 1
        body = body_of(number, repeats)
        if repeats == LARGE_REPEATS:
            properties = PERSISTENT if persistent else TRANSIENT
            return publish(PUBLISHING, exchange, key, properties, body)
        known = (exchange, key, persistent, repeats)
        head = self._heads.get(known)
        if head is None:
            properties = PERSISTENT if persistent else TRANSIENT
            whole = publish(PUBLISHING, exchange, key, properties, body)
            head = self._heads[known] = whole[: -len(body) - 1]
        return head + body + b"\xce"


class Client:
    """One connection that publishes to all queues and consumes from one of its own, if there is
    one left for it."""

    def __init__(
        self,
        port: int,
        producer: int,
        first_sequence: int,
        histories: list[QueueHistory],
        chance: random.Random,
    ) -> None:
        self.producer = producer
        self.sequence = first_sequence
        self.published = 0
        self.consumed = 0
        self.confirmed: list[int] = []
        """Persistent messages that this connection's broker confirmed."""
        self.is_lost = False
        self._histories = histories
        self._consumes = producer < len(histories)
        self._mine = histories[producer if self._consumes else 0]
        self._chance = chance
        self._templates = Templates()
        self._unconfirmed: dict[int, tuple[int, list[QueueHistory]]] = {}
        self._uncertain: deque[tuple[int, list[int]]] = deque()
        self._held: dict[int, int] = {}
        self.link = Link(port)
        self.link.open_channel(PUBLISHING, confirms=True)
        self.link.open_channel(CONSUMING, prefetch=chance.choice([20, 500, 5000]))
        if self._consumes:
            self.link.consume(CONSUMING, self._mine.name)
        self.link.set_loose()

    @property
    def seen(self) -> int:
        """Messages that were confirmed to it, or came."""
        return self.published - len(self._unconfirmed) + self.consumed

    def work(self) -> None:
        """One turn: publish what may be, send, handle what came."""
        if not self.is_lost:
            self._publish()
            self._exchange(self.link.flush)
        if not self.is_lost:
            self._exchange(self.link.fill)
        self._handle()

    def read_the_rest(self) -> None:
        """After the broker's end: what it had sent before is still there to be read."""
        self.link.outbox.clear()
        while not self.is_lost:
            self._exchange(self.link.fill)
        self._handle()
        self.link.drop()

    def _exchange(self, io: Callable[[], object]) -> None:
        try:
            self.is_lost = io() is False
        except (ConnectionError, BrokenPipeError):
            self.is_lost = True

    def _publish(self) -> None:
        chance, outbox = self._chance, self.link.outbox
        while len(outbox) < OUTBOX and len(self._unconfirmed) < WINDOW:
            count = chance.choice([1, 10, 100])
            shape = chance.random()
            persistent = shape > 0.1
            repeats = chance.choice(REPEATS)
            if shape > 0.9:
                targets, exchange, key = self._histories, EXCHANGE, ""
            else:
                target = chance.choice(self._histories)
                targets, exchange, key = [target], "", target.name
            if shape > 0.995:
                repeats, count = LARGE_REPEATS, 1
            for _ in range(count):
                if 0.4 < shape < 0.5:  # interleave the routes
                    target = chance.choice(self._histories)
                    targets, key = [target], target.name
                outbox += self._next(targets, exchange, key, repeats, persistent)

    def _next(
        self,
        targets: list[QueueHistory],
        exchange: str,
        key: str,
        repeats: int,
        persistent: bool,
    ) -> bytes:
        self.sequence += 1
        self.published += 1
        number = number_of(self.producer, self.sequence, persistent=persistent)
        self._unconfirmed[self.published] = (number, targets)
        for target in targets:
            target.published.add(number)
        return self._templates.message(exchange, key, number, repeats)

    def _handle(self) -> None:
        arrivals = 0
        for name, _, tag, flag, body in self.link.events():
            if name == DELIVER:
                number = number_in(body)
                self._mine.arrived(Arrival(number, flag))
                self._held[tag] = number
                arrivals += 1
            elif name == ACK:
                self._confirmed(tag, multiple=flag)
            else:
                assert name != NACK, f"publish {tag} was refused"
        self.consumed += arrivals
        if not self.is_lost and self._held:
            self._settle_some()

    def _confirmed(self, last: int, *, multiple: bool) -> None:
        tags = [last]
        if multiple:
            tags = []
            for tag in self._unconfirmed:
                if tag > last:
                    break
                tags.append(tag)
        for tag in tags:
            number, targets = self._unconfirmed.pop(tag)
            if not number >> 47 & 1:
                self.confirmed.append(number)
                for target in targets:
                    target.required.add(number)
        while self._uncertain and self._uncertain[0][0] < last:
            self._mine.certain.update(self._uncertain.popleft()[1])

    def _settle_some(self) -> None:
        """Mostly ranges; single ones in any order, refusals and returns in between."""
        chance, held = self._chance, self._held
        kind = chance.random()
        if kind < 0.7:
            tags = list(held)[: max(len(held) // 2, chance.randint(1, len(held)))]
            self._done(tags, settle(CONSUMING, ACK, tags[-1], 1))
            return
        tags = chance.sample(list(held), min(len(held), chance.choice([1, 20, 500])))
        if kind < 0.9:
            self._done(tags, b"".join(settle(CONSUMING, ACK, tag, 0) for tag in tags))
        elif kind < 0.94:
            self._done(tags, b"".join(settle(CONSUMING, REJECT, tag, 0) for tag in tags))
        elif kind < 0.98:
            for tag in tags:
                del held[tag]
                self.link.outbox += settle(CONSUMING, NACK, tag, 2)
        # else: keep them all for now

    def _done(self, tags: list[int], frames: bytes) -> None:
        numbers = [self._held.pop(tag) for tag in tags]
        self.link.outbox += frames
        self._mine.settled.update(numbers)
        self._uncertain.append((self.published, numbers))


def run(clients: list[Client], until: Callable[[], bool]) -> None:
    """Let the clients work, each when its socket is ready, until told to stop."""
    sockets = {client.link.socket.fileno(): client for client in clients}
    while not until():
        readable, writable, _ = select.select(sockets, sockets, [], 0.01)
        for descriptor in {*readable, *writable}:
            sockets[descriptor].work()
        lost = [client.producer for client in clients if client.is_lost]
        assert not lost, f"the broker closed the connections of clients {lost}"


def read_all(port: int, name: str, ready: int, *, keep: bool) -> list[Arrival]:
    """Everything in a queue, in its order; settled for certain unless `keep`.

    With `keep` the consumer goes away with everything unsettled.
    """
    link = Link(port)
    link.open_channel(PUBLISHING, confirms=True)
    link.open_channel(CONSUMING)
    link.consume(CONSUMING, name)
    found = arrivals(link)  # what came with the answer to consume
    while len(found) < ready:
        assert link.fill(), f"{name}: closed after {len(found)} of {ready} messages"
        found += arrivals(link)
    assert ready_now(link, name) == 0
    if keep:
        link.drop()
        return found
    if found:
        link.socket.sendall(settle(CONSUMING, ACK, 0, 1))
    link.socket.sendall(publish(PUBLISHING, "", "nobody", PERSISTENT, b""))
    link.wait(ACK)
    link.close()
    return found


def arrivals(link: Link) -> list[Arrival]:
    """Messages that were delivered and not looked at yet."""
    return [
        Arrival(number_in(body), redelivered)
        for event, _, _, redelivered, body in link.events()
        if event == DELIVER
    ]


def ready_now(link: Link, name: str) -> int:
    """By a passive declaration."""
    answer = link.call(CONSUMING, (50, 10), b"\0\0" + short(name) + b"\1" + bytes(4))
    (count,) = struct.unpack_from(">I", answer, 1 + answer[0])
    return int(count)
