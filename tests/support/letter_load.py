"""A publisher and consumers that make messages die as fast as they can: one connection each.

The publisher sends every kind of letter_history.KINDS with confirms; the consumers reject, fail and
retry what is there for that.
"""

from __future__ import annotations

import random
import select
from collections.abc import Callable

from bench.lean import ACK, DELIVER, NACK, PERSISTENT, Link, publish, settle
from tests.support.crash_history import body_of, number_in, number_of
from tests.support.letter_history import (
    FAILING,
    REJECTED,
    RETRIED,
    Account,
    Letter,
    Sections,
    properties_of,
)

REJECT = (60, 90)
WINDOW = 2_000
OUTBOX = 1 << 20
REPEATS = (2, 16, 128)
DISCARD, RETRY, FAIL = 1, 2, 3
"""The consumers' channels."""
Until = Callable[[], bool]


class Peer:
    """One connection that may be lost at any moment."""

    def __init__(self, port: int) -> None:
        self.is_lost = False
        self.link = Link(port)

    def flush(self) -> None:
        """Send what the socket takes."""
        self._move(self.link.flush)

    def read(self) -> None:
        """Read once, and act on it."""
        self._move(self.link.fill)
        self.handle()

    def handle(self) -> None:
        raise NotImplementedError

    def read_the_rest(self) -> None:
        """After the broker's end: what it had sent before is still there to be read."""
        self.link.outbox.clear()
        while not self.is_lost:
            self.read()
        self.link.drop()

    def _move(self, io: Callable[[], object]) -> None:
        try:
            self.is_lost = io() is False
        except (ConnectionError, BrokenPipeError):
            self.is_lost = True


class Publisher(Peer):
    """Publishes each kind as often as it is told, in any order, and notes what is confirmed."""

    def __init__(
        self, port: int, accounts: list[Account], sequences: list[int], chance: random.Random
    ) -> None:
        """sequences: of each kind, the last one published; kept up to date."""
        super().__init__(port)
        self.sent = 0
        self._accounts = accounts
        self._sequences = sequences
        self._chance = chance
        self._unconfirmed: dict[int, tuple[int, Account]] = {}
        self.link.open_channel(1, confirms=True)
        self.link.set_loose()

    @property
    def waits(self) -> bool:
        """Whether a confirm is missing."""
        return bool(self._unconfirmed)

    def publish(self, left: list[int]) -> None:
        """What the window allows of what is `left` of each kind, which is brought up to date."""
        chance, outbox = self._chance, self.link.outbox
        while len(outbox) < OUTBOX and len(self._unconfirmed) < WINDOW and any(left):
            at = chance.choice([index for index, count in enumerate(left) if count])
            repeats = chance.choice(REPEATS)
            for _ in range(min(left[at], chance.choice([1, 1, 10, 100]))):
                left[at] -= 1
                outbox += self._next(at, repeats)

    def _next(self, at: int, repeats: int) -> bytes:
        account = self._accounts[at]
        self._sequences[at] += 1
        number = number_of(at, self._sequences[at], persistent=True)
        self.sent += 1
        self._unconfirmed[self.sent] = (number, account)
        account.published.add(number)
        properties = properties_of(account.kind, self._sequences[at])
        return publish(1, "", account.kind.name, properties, body_of(number, repeats))

    def handle(self) -> None:
        for name, _, last, multiple, _ in self.link.events():
            assert name == ACK, f"a publish was not confirmed: {name}"
            for tag in [t for t in self._unconfirmed if t <= last] if multiple else [last]:
                number, account = self._unconfirmed.pop(tag)
                account.confirmed.add(number)


class Consumers(Peer):
    """One connection with a consumer for each kind that a client makes die."""

    def __init__(self, port: int, accounts: list[Account], chance: random.Random) -> None:
        super().__init__(port)
        self._sections = Sections()
        self._retried = next(a for a in accounts if a.kind.name == RETRIED)
        self._raw: list[bytes] = []
        self.link.sections = self._raw
        for channel, queue in ((DISCARD, REJECTED), (RETRY, RETRIED), (FAIL, FAILING)):
            self.link.open_channel(channel, prefetch=chance.choice([10, 200, 2000]))
            self.link.consume(channel, queue)
        self.link.set_loose()

    def handle(self) -> None:
        outbox = self.link.outbox
        refused = 0
        events = self.link.events()
        sections = self._raw[: len(events)]
        del self._raw[: len(events)]
        for (name, channel, tag, _, body), section in zip(events, sections, strict=True):
            assert name == DELIVER, f"method {name} instead of a delivery"
            if channel == DISCARD:
                refused = tag
                if tag % 3 == 0:
                    outbox += settle(channel, NACK, tag, 1)
                    refused = 0
            elif channel == FAIL:
                outbox += settle(channel, REJECT, tag, 1)
            elif self._retried.tried(number_in(body), self._sections(section)):
                outbox += settle(channel, ACK, tag, 0)
            else:
                outbox += settle(channel, REJECT if tag & 1 else NACK, tag, 0)
        if refused:
            outbox += settle(DISCARD, NACK, refused, 1)


def run(publisher: Publisher, consumers: Consumers, left: list[int], until: Until) -> None:
    """Let both work until told to stop."""
    peers: dict[int, Peer] = {peer.link.socket.fileno(): peer for peer in (publisher, consumers)}
    consumers.handle()  # what came while they were set up
    while not until():
        publisher.publish(left)
        waiting = [peer.link.socket.fileno() for peer in peers.values() if peer.link.outbox]
        readable, writable, _ = select.select(peers, waiting, [], 0.01)
        for descriptor in readable:
            peers[descriptor].read()
        for descriptor in writable:
            peers[descriptor].flush()
        assert not any(peer.is_lost for peer in peers.values()), "the broker closed a connection"


def deliveries(link: Link) -> list[int]:
    """Numbers of the messages that were delivered and not looked at yet."""
    return [number_in(event[4]) for event in link.events() if event[0] == DELIVER]


def read_letters(port: int, queue: str, ready: int) -> list[Letter]:
    """Everything in a queue, in its order; settled for certain."""
    link = Link(port)
    link.sections = []
    link.open_channel(1, confirms=True)
    link.open_channel(2)
    link.consume(2, queue)
    numbers = deliveries(link)  # what came with the answer to consume
    while len(numbers) < ready:
        assert link.fill(), f"{queue}: closed after {len(numbers)} of {ready} messages"
        numbers += deliveries(link)
    assert len(numbers) == ready, f"{queue}: {len(numbers)} messages, {ready} are ready"
    if numbers:
        link.socket.sendall(settle(2, ACK, 0, 1))
    link.socket.sendall(publish(1, "", "nobody", PERSISTENT, b""))
    link.wait(ACK)
    link.close()
    return [Letter(*pair) for pair in zip(numbers, link.sections, strict=True)]
