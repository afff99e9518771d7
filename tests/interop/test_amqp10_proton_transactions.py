"""python-qpid-proton's transactions, unchanged, against the broker over sockets [TX-11 to 16]."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

proton = pytest.importorskip("proton", reason="python-qpid-proton is not built")

from proton import Event, Link, Message, Sender  # noqa: E402
from proton.handlers import TransactionHandler  # noqa: E402
from proton.reactor import Container, Transaction  # noqa: E402

from tests.interop.proton_reactor import Story, fill, read  # noqa: E402
from tests.support.patience import LOOK_S, PATIENCE_S  # noqa: E402
from tests.support.process import BrokerProcess  # noqa: E402


@pytest.fixture
def url(port: int) -> str:
    return f"amqp://guest:guest@127.0.0.1:{port}"


@pytest.fixture
def queues(name: str, broker: BrokerProcess) -> tuple[str, str]:
    found = (f"{name}.from", f"{name}.to")
    for one in found:
        declare(broker, one)
    return found


def declare(broker: BrokerProcess, name: str, **arguments: object) -> None:
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    status, _ = broker.http("PUT", f"/api/queues/%2F/{name}", {"durable": True, "arguments": given})
    assert status == 201


def depth(broker: BrokerProcess, queue: str) -> tuple[int, int, int]:
    """(ready, acquired, staged)"""
    row = broker.queues()[queue]
    return row["ready"], row["acquired"], row["staged"]


def numbers(count: int) -> list[Message]:
    return [Message(body=i, durable=True) for i in range(count)]


class Later:
    """A handler that calls something from the next round of the loop, when all is written that this
    round has to say."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call

    def on_timer_task(self, event: Event) -> None:
        self.call()


class Mover(Story, TransactionHandler):  # type: ignore[misc]
    """Takes `each` messages under a transaction and publishes as many, again and again: `plan` says
    how each transaction ends, True for a commit."""

    def __init__(
        self,
        url: str,
        queues: tuple[str, str],
        each: int,
        plan: list[bool],
        settles_first: bool,
    ) -> None:
        super().__init__(url, prefetch=0, auto_accept=False)
        self.queues = queues
        self.each = each
        self.plan = list(plan)
        self.settles_first = settles_first
        self.rounds: list[list[int]] = [[]]
        self.counts: list[tuple[bool, int]] = []
        """first-acquirer and delivery-count of each."""
        self.ended: list[str] = []

    def begin(self, container: Container, connection: proton.Connection) -> None:
        self.container = container
        self.connection = connection
        self.receiver = container.create_receiver(connection, self.queues[0])
        self.sender = container.create_sender(connection, self.queues[1])
        self.declare()

    def declare(self) -> None:
        self.container.declare_transaction(self.connection, self, self.settles_first)

    def on_transaction_declared(self, event: Event) -> None:
        self.transaction: Transaction = event.transaction
        self.receiver.flow(self.each)

    def on_message(self, event: Event) -> None:
        self.rounds[-1].append(event.message.body)
        self.counts.append((event.message.first_acquirer, event.message.delivery_count))
        self.transaction.accept(event.delivery)
        self.transaction.send(self.sender, Message(body=event.message.body, durable=True))
        if len(self.rounds[-1]) == self.each:
            self.rounds.append([])
            if self.plan.pop(0):
                self.transaction.commit()
            else:
                self.transaction.abort()

    def on_transaction_committed(self, event: Event) -> None:
        self._go_on("committed")

    def on_transaction_aborted(self, event: Event) -> None:
        self._go_on("aborted")

    def on_transaction_commit_failed(self, event: Event) -> None:
        self._go_on(f"failed: {event.delivery.remote.condition.name}")

    def _go_on(self, how: str) -> None:
        self.ended.append(how)
        if self.plan:
            # proton releases what was aborted when this returns.
            self.container.schedule(0, Later(self.declare))
        else:
            self.container.schedule(0, Later(self.end))


@pytest.mark.parametrize("settles_first", [True, False])
def test_tx_12_to_15_messages_move_in_transactions(
    url: str, queues: tuple[str, str], broker: BrokerProcess, settles_first: bool
) -> None:
    fill(url, queues[0], numbers(60))
    mover = Mover(url, queues, 10, [True, False] * 5, settles_first)
    mover.run()
    assert mover.ended == ["committed", "aborted"] * 5
    expected = [list(range(10 * n, 10 * n + 10)) for n in (0, 1, 1, 2, 2, 3, 3, 4, 4, 5)]
    assert mover.rounds[:-1] == expected
    assert depth(broker, queues[0]) == (10, 0, 0)
    assert read(url, queues[1], 50) == list(range(50))
    assert read(url, queues[0], 10) == list(range(50, 60))


@pytest.mark.parametrize("settles_first", [True, False])
def test_tx_a1_the_first_message_is_always_the_first(
    url: str, queues: tuple[str, str], settles_first: bool
) -> None:
    """RollbackOrder: 50 messages, 20 times six of them and a rollback; then all, and a commit."""
    fill(url, queues[0], numbers(50))
    mover = Mover(url, queues, 6, [False] * 20, settles_first)
    mover.run()
    assert mover.rounds[:-1] == [[0, 1, 2, 3, 4, 5]] * 20
    assert mover.counts[:6] == [(True, 0)] * 6
    # They come again, and no delivery of them failed.
    assert mover.counts[6:] == [(False, 0)] * (19 * 6)
    last = Mover(url, queues, 50, [True], settles_first)
    last.run()
    assert last.rounds[0] == list(range(50))
    assert read(url, queues[1], 50) == list(range(50))


class Several(Story, TransactionHandler):  # type: ignore[misc]
    """Three transactions open on one session, to which messages are dealt in turn."""

    def __init__(self, url: str, queues: tuple[str, str], broker: BrokerProcess) -> None:
        super().__init__(url, prefetch=0, auto_accept=False)
        self.queues = queues
        self.broker = broker
        self.open: list[Transaction] = []
        self.ended: list[str] = []
        self.got = 0

    def begin(self, container: Container, connection: proton.Connection) -> None:
        self.container = container
        self.receiver = container.create_receiver(connection, self.queues[0])
        self.sender = container.create_sender(connection, self.queues[1])
        for _ in range(3):
            container.declare_transaction(connection, self, True)

    def on_transaction_declared(self, event: Event) -> None:
        self.open.append(event.transaction)
        if len(self.open) == 3:
            assert len({bytes(one.id) for one in self.open}) == 3
            self.receiver.flow(30)

    def on_message(self, event: Event) -> None:
        transaction = self.open[self.got % 3]
        self.got += 1
        transaction.accept(event.delivery)
        transaction.send(self.sender, Message(body=event.message.body, durable=True))
        if self.got == 30:
            self.deadline = time.monotonic() + PATIENCE_S
            self.container.schedule(LOOK_S, Later(self.look))

    def look(self) -> None:
        """All of it has come, and nothing of it is seen [TX-A8]."""
        self.seen = [depth(self.broker, one) for one in self.queues]
        if self.seen[0] != (0, 0, 30) and time.monotonic() < self.deadline:
            self.container.schedule(LOOK_S, Later(self.look))
            return
        for transaction, fails in zip(self.open, (False, True, False), strict=True):
            transaction.discharge(fails)

    def on_transaction_committed(self, event: Event) -> None:
        self._ended("committed")

    def on_transaction_aborted(self, event: Event) -> None:
        self._ended("aborted")

    def _ended(self, how: str) -> None:
        self.ended.append(how)
        if len(self.ended) == 3:
            self.container.schedule(0, Later(self.end))


def test_tx_14_several_transactions_at_once(
    url: str, queues: tuple[str, str], broker: BrokerProcess
) -> None:
    fill(url, queues[0], numbers(30))
    several = Several(url, queues, broker)
    several.run()
    assert several.seen == [(0, 0, 30), (0, 0, 0)]
    assert sorted(several.ended) == ["aborted", "committed", "committed"]
    assert depth(broker, queues[0]) == (10, 0, 0)
    assert read(url, queues[0], 10) == list(range(1, 30, 3))
    moved = read(url, queues[1], 20)
    assert sorted(map(int, moved)) == [n for n in range(30) if n % 3 != 1]  # type: ignore[call-overload]
    assert [n for n in moved if int(n) % 3 == 0] == list(range(0, 30, 3))  # type: ignore[call-overload]


class Leaver(Story, TransactionHandler):  # type: ignore[misc]
    """Takes three messages and publishes one in a transaction, closes its receiver, and ends the
    transaction in some way."""

    def __init__(self, url: str, queues: tuple[str, str], how: str) -> None:
        super().__init__(url, prefetch=0, auto_accept=False)
        self.queues = queues
        self.how = how

    def begin(self, container: Container, connection: proton.Connection) -> None:
        self.container = container
        self.connection = connection
        self.receiver = container.create_receiver(connection, self.queues[0])
        self.sender: Sender = container.create_sender(connection, self.queues[1])
        container.declare_transaction(connection, self, True)

    def on_transaction_declared(self, event: Event) -> None:
        self.transaction = event.transaction
        self.receiver.flow(3)

    def on_message(self, event: Event) -> None:
        self.bodies.append(event.message.body)
        self.transaction.accept(event.delivery)
        if len(self.bodies) == 3:
            self.transaction.send(self.sender, Message(body=99, durable=True))
            self.receiver.close()

    def on_link_closed(self, event: Event) -> None:
        link: Link = event.link
        if link.name != self.receiver.name:
            self.end()
        elif self.how == "commit":
            self.transaction.commit()
        elif self.how == "rollback":
            self.transaction.abort()
        elif self.how == "coordinator":
            self.transaction.txn_ctrl.close()
        else:
            self.end()

    def on_transaction_committed(self, event: Event) -> None:
        self.end()

    def on_transaction_aborted(self, event: Event) -> None:
        self.end()


@pytest.mark.parametrize("how", ["commit", "rollback", "coordinator", "connection"])
def test_tx_a9_a_closed_consumer_and_every_end(
    url: str, queues: tuple[str, str], broker: BrokerProcess, how: str
) -> None:
    fill(url, queues[0], numbers(5))
    Leaver(url, queues, how).run()
    gone = 3 if how == "commit" else 0
    assert read(url, queues[0], 5 - gone) == list(range(gone, 5))
    assert depth(broker, queues[1])[0] == (1 if how == "commit" else 0)


def test_tx_13_a_commit_that_cannot_be_is_told(
    url: str, queues: tuple[str, str], broker: BrokerProcess, name: str
) -> None:
    full = f"{name}.full"
    declare(broker, full, x_max_length=2, x_overflow="reject-publish")
    fill(url, queues[0], numbers(6))
    mover = Mover(url, (queues[0], full), 3, [True, True], True)
    mover.run()
    assert mover.ended == ["failed: amqp:transaction:rollback"] * 2
    assert mover.rounds[:-1] == [[0, 1, 2]] * 2
    assert depth(broker, full) == (0, 0, 0)
    assert depth(broker, queues[0]) == (6, 0, 0)
