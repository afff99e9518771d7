"""python-qpid-proton's reactive client, unchanged, against the broker over sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

proton = pytest.importorskip("proton", reason="python-qpid-proton is not built")

from proton import Delivery, Described, Event, Link, Message, symbol  # noqa: E402
from proton.handlers import Reject, Release  # noqa: E402
from proton.reactor import (  # noqa: E402
    AtLeastOnce,
    AtMostOnce,
    Container,
    Copy,
    Filter,
    Selector,
)

from tests.interop.proton_reactor import (  # noqa: E402
    Filler,
    Reader,
    Settle,
    Story,
    body_of,
    fill,
    read,
)
from tests.support.process import BrokerProcess  # noqa: E402


@pytest.fixture
def url(port: int) -> str:
    return f"amqp://guest:guest@127.0.0.1:{port}"


@pytest.fixture
def queue(name: str, broker: BrokerProcess) -> str:
    return declare(broker, name)


def declare(broker: BrokerProcess, name: str, **arguments: object) -> str:
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    status, _ = broker.http("PUT", f"/api/queues/%2F/{name}", {"durable": True, "arguments": given})
    assert status == 201
    return name


def depth(broker: BrokerProcess, queue: str) -> tuple[int, int]:
    """(ready, acquired)"""
    row = broker.queues()[queue]
    return row["ready"], row["acquired"]


def numbers(count: int) -> list[Message]:
    return [Message(body=i, properties={"n": i}) for i in range(count)]


# -- sending


def test_thousands_through_a_credit_of_170(url: str, queue: str, broker: BrokerProcess) -> None:
    fill(url, queue, numbers(2000))
    assert read(url, queue, 2000) == list(range(2000))
    assert depth(broker, queue) == (0, 0)


def test_at_most_once_and_at_least_once(url: str, queue: str, broker: BrokerProcess) -> None:
    class Sender(Filler):
        def on_sendable(self, event: Event) -> None:
            super().on_sendable(event)
            if self._sent == len(self.messages):
                event.sender.close()

        def on_link_closed(self, event: Event) -> None:
            self.end()

    once = Sender(url, queue, numbers(100), AtMostOnce())
    once.run()
    assert once.outcomes == []
    fill(url, queue, numbers(10), AtLeastOnce())
    assert read(url, queue, 110, AtMostOnce()) == [*range(100), *range(10)]
    assert depth(broker, queue) == (0, 0)


def test_released_and_rejected_ones_are_told_apart(
    url: str, name: str, broker: BrokerProcess
) -> None:
    nowhere = Filler(url, "/exchanges/amq.topic/nobody", numbers(2))
    nowhere.run()
    assert nowhere.outcomes == [Delivery.RELEASED] * 2
    declare(broker, name, x_max_length=1, x_overflow="reject-publish")
    full = Filler(url, name, numbers(3))
    full.run()  # a refusal does not wait for the disk
    assert sorted(full.outcomes) == [Delivery.ACCEPTED, Delivery.REJECTED, Delivery.REJECTED]


class Streamer(Story):
    """A message in three pieces, of which the link's on_sendable is not told."""

    aborts = False

    def __init__(self, url: str, queue: str) -> None:
        super().__init__(url)
        self.queue = queue

    def begin(self, container: Container, connection: proton.Connection) -> None:
        container.create_sender(connection, self.queue)
        self.step = 0
        self.bytes = Message(body=b"x" * 300_000).encode()

    def on_sendable(self, event: Event) -> None:
        if self.step == 0:
            self.step = 1
            self.delivery = event.sender.delivery("tag 1")
            event.sender.stream(self.bytes[:200_000])
            event.container.schedule(0.1, self)

    def on_timer_task(self, event: Event) -> None:
        if self.step != 1:
            super().on_timer_task(event)
            return
        self.step = 2
        link = self.delivery.link
        if self.aborts:
            self.delivery.abort()
            link.send(Message(body="whole"))
        else:
            link.stream(self.bytes[200_000:])
            link.advance()

    def on_accepted(self, event: Event) -> None:
        self.end()


def test_a_message_in_pieces(url: str, queue: str) -> None:
    Streamer(url, queue).run()
    assert read(url, queue, 1) == [b"x" * 300_000]


def test_an_aborted_message_leaves_nothing(url: str, queue: str, broker: BrokerProcess) -> None:
    story = Streamer(url, queue)
    story.aborts = True
    story.run()
    assert read(url, queue, 1) == ["whole"]
    assert depth(broker, queue) == (0, 0)


# -- credit


class ByHand(Story):
    """A receiver whose credit is given by hand: three of five, a drain of ten, a drain of none,
    and three more for what comes later."""

    def __init__(self, url: str, queue: str) -> None:
        super().__init__(url, prefetch=0)
        self.queue = queue
        self.steps: list[tuple[str, int]] = []

    def begin(self, container: Container, connection: proton.Connection) -> None:
        self.receiver = container.create_receiver(connection, self.queue)
        self.sender = container.create_sender(connection, self.queue)
        self.receiver.flow(3)

    def on_message(self, event: Event) -> None:
        self.bodies.append(event.message.body)
        if len(self.bodies) == 3:
            assert self.receiver.credit == 0
            self.receiver.drain(10)
        elif len(self.bodies) == 6:
            self.end()

    def on_link_flow(self, event: Event) -> None:
        if event.link == self.receiver and self.receiver.drain_mode and not self.receiver.credit:
            self.steps.append(("drained", self.receiver.drained()))
            if len(self.steps) == 1:
                assert len(self.bodies) == 5
                self.receiver.drain(4)  # an empty queue
            elif len(self.steps) == 2:
                self.receiver.drain_mode = False
                self.receiver.flow(3)
                self.sender.send(Message(body="later"))


def test_drain(url: str, queue: str, broker: BrokerProcess) -> None:
    """FC-5: what there is, then all of the credit is gone; and credit given later is good."""
    fill(url, queue, numbers(5))
    story = ByHand(url, queue)
    story.run()
    assert story.steps == [("drained", 8), ("drained", 4)]
    assert story.bodies == [0, 1, 2, 3, 4, "later"]
    assert depth(broker, queue) == (0, 0)


class Holder(Story):
    """Holds ten messages of a window of ten for a while, then settles them in one go."""

    def __init__(self, url: str, queue: str) -> None:
        super().__init__(url, prefetch=0, auto_accept=False)
        self.queue = queue
        self.held: list[Delivery] = []
        self.settled = 0

    def begin(self, container: Container, connection: proton.Connection) -> None:
        self.receiver = container.create_receiver(
            connection, self.queue, options=Settle(Link.SND_UNSETTLED, Link.RCV_SECOND)
        )
        self.receiver.flow(10)

    def on_message(self, event: Event) -> None:
        self.bodies.append(event.message.body)
        self.held.append(event.delivery)
        if len(self.bodies) == 10:
            event.container.schedule(0.3, self)
        elif len(self.bodies) == 20:
            event.receiver.close()

    def on_timer_task(self, event: Event) -> None:
        if len(self.bodies) != 10:
            super().on_timer_task(event)
            return
        for delivery in self.held:
            delivery.update(Delivery.ACCEPTED)

    def on_settled(self, event: Event) -> None:
        """The second step: the broker has settled it."""
        assert event.delivery.remote_state == Delivery.ACCEPTED
        event.delivery.settle()
        self.settled += 1
        if self.settled == 10:
            self.receiver.flow(10)

    def on_link_closed(self, event: Event) -> None:
        self.end()


def test_mode_second_and_a_window_that_is_full(url: str, queue: str, broker: BrokerProcess) -> None:
    """FC-12: each of the ten is settled by the broker before we settle it."""
    fill(url, queue, numbers(30))
    story = Holder(url, queue)
    story.run()
    assert (story.bodies, story.settled) == (list(range(20)), 10)
    assert depth(broker, queue) == (20, 0)  # the ten it held came back


# -- outcomes


def test_outcomes_of_handlers(url: str, name: str, broker: BrokerProcess) -> None:
    """FC-20: raising Reject, and Release (modified)."""
    letters = declare(broker, f"{name}-letters")
    queue = declare(
        broker, name, x_dead_letter_exchange="", x_dead_letter_routing_key=letters
    )  # fmt: skip

    def settle(event: Event) -> None:
        if event.message.body == 0:
            raise Reject
        if event.message.body == 1 and event.message.first_acquirer:
            raise Release
        event.delivery.update(Delivery.ACCEPTED)
        event.delivery.settle()

    fill(url, queue, numbers(3))
    reader = Reader(url, queue, 4, settle=settle)
    reader.run()
    assert sorted(map(int, reader.bodies)) == [0, 1, 1, 2]  # type: ignore[call-overload]
    (letter,) = (dead := Reader(url, letters, 1)).run() or dead.messages
    assert letter.body == 0
    assert letter.annotations["x-opt-deaths"].elements[0]["reason"] == "rejected"
    assert depth(broker, queue) == depth(broker, letters) == (0, 0)


def test_modified_with_annotations(url: str, queue: str, broker: BrokerProcess) -> None:
    def failed(event: Event) -> None:
        delivery = event.delivery
        delivery.local.failed = True
        delivery.local.annotations = {symbol("x-opt-why"): "busy", symbol("not-ours"): 1}
        delivery.update(Delivery.MODIFIED)
        delivery.settle()

    def undeliverable(event: Event) -> None:
        event.delivery.local.undeliverable = True
        event.delivery.update(Delivery.MODIFIED)
        event.delivery.settle()

    fill(url, queue, numbers(1))
    Reader(url, queue, 1, settle=failed).run()
    second = Reader(url, queue, 1, settle=undeliverable)
    second.run()
    (message,) = second.messages
    assert (message.delivery_count, message.first_acquirer) == (1, False)
    assert message.annotations["x-opt-why"] == "busy"
    assert "not-ours" not in message.annotations
    assert depth(broker, queue) == (0, 0)


def test_settled_out_of_order_and_left(url: str, queue: str, broker: BrokerProcess) -> None:
    """FC-19: what is not settled when the connection is closed comes back at its place."""
    held: list[Delivery] = []

    def settle(event: Event) -> None:
        held.append(event.delivery)
        if len(held) == 10:
            for i in (7, 1, 9, 3):
                held[i].update(Delivery.ACCEPTED)
                held[i].settle()

    fill(url, queue, numbers(10))
    Reader(url, queue, 10, settle=settle).run()
    again = Reader(url, queue, 6)
    again.run()
    assert again.bodies == [0, 2, 4, 5, 6, 8]
    assert {message.delivery_count for message in again.messages} == {0}


# -- sources


def test_selectors_filters_and_browsing(url: str, queue: str, broker: BrokerProcess) -> None:
    fill(url, queue, numbers(10))
    sql = Filter({symbol("f"): Described(symbol("amqp:sql-filter"), "n % 5 = 0")})
    assert read(url, queue, 2, Copy(), sql) == [0, 5]
    assert read(url, queue, 10, Copy()) == list(range(10))
    assert read(url, queue, 3, Selector("n BETWEEN 2 AND 4")) == [2, 3, 4]
    assert read(url, queue, 7) == [0, 1, 5, 6, 7, 8, 9]


class Service(Story):
    """A service on one connection and a client with a dynamic node on another, as in the examples
    server.py and client.py."""

    def __init__(self, url: str, queue: str) -> None:
        super().__init__(url)
        self.queue = queue

    def begin(self, container: Container, connection: proton.Connection) -> None:
        self.requests = container.create_receiver(connection, self.queue)
        self.replier = container.create_sender(connection, None)
        self.asker = container.create_sender(self.connect(container), self.queue)
        self.replies = container.create_receiver(self.asker.connection, None, dynamic=True)

    def on_link_opened(self, event: Event) -> None:
        if event.receiver == self.replies:
            self._ask()

    def _ask(self) -> None:
        address = self.replies.remote_source.address
        self.asker.send(Message(body=f"q{len(self.bodies)}", reply_to=address))

    def on_message(self, event: Event) -> None:
        message = event.message
        if event.receiver == self.requests:
            self.replier.send(Message(address=message.reply_to, body=message.body.upper()))
            return
        self.bodies.append(message.body)
        if len(self.bodies) < 20:
            self._ask()
        else:
            self.end()


def test_request_and_response(url: str, queue: str, broker: BrokerProcess) -> None:
    story = Service(url, queue)
    story.run()
    assert story.bodies == [f"Q{i}" for i in range(20)]
    assert depth(broker, queue) == (0, 0)
    assert not [name for name in broker.queues() if name.startswith("amq.gen-")]


class Answerer(Service):
    """The answer goes over a link to the asker's dynamic node, not the anonymous terminus."""

    def on_message(self, event: Event) -> None:
        if event.receiver == self.requests:
            message = event.message
            if self.replier.target.address is None:
                self.replier = event.container.create_sender(
                    event.connection, message.reply_to, name="reply"
                )
            self.replier.send(Message(body=message.body.upper()))
            return
        super().on_message(event)


def test_a_link_to_the_dynamic_node_of_another_connection(
    url: str, queue: str, broker: BrokerProcess
) -> None:
    story = Answerer(url, queue)
    story.run()
    assert story.bodies == [f"Q{i}" for i in range(20)]


# -- links, sessions, connections


class Many(Story):
    """Forty links in four sessions of a connection: each sender's messages come to its receiver."""

    def __init__(self, url: str, queues: list[str]) -> None:
        super().__init__(url)
        self.queues = queues
        self.got: dict[str, list[object]] = {one: [] for one in queues}

    def begin(self, container: Container, connection: proton.Connection) -> None:
        for i, one in enumerate(self.queues):
            session = connection.session()
            session.open()
            for j in range(5):
                container.create_sender(session, one, name=f"s{i}.{j}")
                container.create_receiver(session, one, name=f"r{i}.{j}")

    def on_sendable(self, event: Event) -> None:
        if event.sender.name not in self.bodies:
            self.bodies.append(event.sender.name)
            for n in range(20):
                event.sender.send(Message(body=f"{event.sender.name}:{n}"))

    def on_message(self, event: Event) -> None:
        self.got[event.receiver.source.address].append(body_of(event.message))
        if all(len(bodies) == 100 for bodies in self.got.values()):
            event.container.schedule(0.1, self)

    def on_timer_task(self, event: Event) -> None:
        if all(len(bodies) == 100 for bodies in self.got.values()):
            self.end()
        else:
            super().on_timer_task(event)


def test_many_links_in_many_sessions(url: str, name: str, broker: BrokerProcess) -> None:
    queues = [declare(broker, f"{name}-{i}") for i in range(4)]
    story = Many(url, queues)
    story.run()
    for i, one in enumerate(queues):
        assert sorted(map(str, story.got[one])) == sorted(
            f"s{i}.{j}:{n}" for j in range(5) for n in range(20)
        )
        assert depth(broker, one) == (0, 0)


class Refused(Story):
    """A link that is refused, then a good one in the same session."""

    def __init__(self, url: str, queue: str) -> None:
        super().__init__(url)
        self.queue = queue
        self.conditions: list[str] = []

    def begin(self, container: Container, connection: proton.Connection) -> None:
        container.create_receiver(connection, "/queues/nobody")

    def on_link_error(self, event: Event) -> None:
        self.conditions.append(event.link.remote_condition.name)
        if len(self.conditions) == 1:
            event.container.create_sender(event.connection, "/exchanges/nobody/x")
        else:
            event.container.create_sender(event.connection, self.queue)

    def on_sendable(self, event: Event) -> None:
        if event.sender.target.address == self.queue:
            event.sender.send(Message(body=1))

    def on_accepted(self, event: Event) -> None:
        self.end()


def test_refused_links(url: str, queue: str) -> None:
    story = Refused(url, queue)
    story.run()
    assert story.conditions == ["amqp:not-found"] * 2


class Again(Story):
    """Detaches without closing and attaches under the same name, three times."""

    def __init__(self, url: str, queue: str) -> None:
        super().__init__(url, prefetch=1)
        self.queue = queue

    def begin(self, container: Container, connection: proton.Connection) -> None:
        self.container = container
        container.create_receiver(connection, self.queue, name="mine")

    def on_message(self, event: Event) -> None:
        self.bodies.append(event.message.body)
        event.container.schedule(0, self)
        self.link = event.receiver

    def on_timer_task(self, event: Event) -> None:
        if len(self.bodies) < 3:
            connection = self.link.connection
            self.link.detach()
            self.link.free()
            self.container.create_receiver(connection, self.queue, name="mine")
        else:
            self.end()


def test_a_link_that_is_detached_and_attached_again(url: str, queue: str) -> None:
    fill(url, queue, numbers(3))
    story = Again(url, queue)
    story.run()
    assert story.bodies == [0, 1, 2]


class Ended(Story):
    """The operator closes the connection. proton takes that for a connection that is lost."""

    def __init__(self, broker: BrokerProcess, url: str, queue: str) -> None:
        super().__init__(url)
        self.broker = broker
        self.queue = queue
        self.condition = None

    def begin(self, container: Container, connection: proton.Connection) -> None:
        container.create_receiver(connection, self.queue)

    def on_link_opened(self, event: Event) -> None:
        _, rows = self.broker.http("GET", "/api/connections")
        (row,) = [one for one in rows if one.get("container_id") == event.container.container_id]
        self.broker.http("DELETE", f"/api/connections/{row['name'].replace(' ', '%20')}")

    def on_disconnected(self, event: Event) -> None:
        self.condition = event.connection.remote_condition
        self.end()


def test_a_connection_that_the_operator_closes(url: str, queue: str, broker: BrokerProcess) -> None:
    story = Ended(broker, url, queue)
    story.run()
    assert story.condition is not None
    assert story.condition.name == "amqp:connection:forced"
    assert "Closed via management plugin" in story.condition.description


class Steady(Story):
    """Sends and reads on a connection that proton sets up anew, with its links, when it is lost.
    The broker is killed after each fiftieth message."""

    def __init__(self, broker: BrokerProcess, url: str, queue: str) -> None:
        super().__init__(url)
        self.broker = broker
        self.queue = queue
        self.accepted: set[int] = set()
        self.in_doubt = False
        self.kills = 0

    def connect(self, container: Container, **more: object) -> proton.Connection:
        opened = container.connect(self.url, allowed_mechs="PLAIN")
        self.connections.append(opened)
        return opened

    def begin(self, container: Container, connection: proton.Connection) -> None:
        container.create_sender(connection, self.queue)
        container.create_receiver(connection, self.queue)

    def on_transport_error(self, event: Event) -> None:
        """It is being restarted."""

    def on_disconnected(self, event: Event) -> None:
        self.in_doubt = False

    def on_sendable(self, event: Event) -> None:
        """One at a time: the first, or again the one in doubt."""
        if not self.in_doubt and len(self.accepted) < 150:
            self.in_doubt = True
            event.sender.send(Message(body=len(self.accepted), durable=True))

    def on_accepted(self, event: Event) -> None:
        self.in_doubt = False
        self.accepted.add(len(self.accepted))
        if len(self.accepted) % 50 == 0 and self.kills < 2:
            self.kills += 1
            self.broker.kill()
            self.broker.restart()
        else:
            self.on_sendable(event)
        self._look()

    def on_message(self, event: Event) -> None:
        self.bodies.append(event.message.body)
        self._look()

    def _look(self) -> None:
        if len(self.accepted) == 150 and set(self.bodies) >= self.accepted:
            self.end()


def test_proton_reconnects_to_a_broker_that_was_killed(tmp_path: Path, only_ours: None) -> None:
    with BrokerProcess(tmp_path / "data", keeps_ports=True) as broker:
        declare(broker, "q")
        story = Steady(broker, f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}", "q")
        story.run()
        assert story.kills == 2
        assert set(story.bodies) == set(range(150))
