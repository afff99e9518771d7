"""rabbitmq-amqp-python-client, unchanged, over a socket: topology by management over AMQP, publish,
consume, filters.

Its errors derive from BaseException, and a handler stops `run` by raising.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.patience import PATIENCE_S

client: Any = pytest.importorskip("rabbitmq_amqp_python_client")
utils: Any = pytest.importorskip("rabbitmq_amqp_python_client.qpid.proton.utils")
Symbol: Any = pytest.importorskip("rabbitmq_amqp_python_client.qpid.proton._data").symbol
SendException, LinkDetached = utils.SendException, utils.LinkDetached

ADDRESS = client.AddressHelper


class Enough(BaseException):
    """All that was waited for is here."""


class Collector(client.AMQPMessagingHandler):  # type: ignore[misc]
    """Settles each message as `settle` says and stops at the last one."""

    def __init__(self, count: int, settle: str = "accept") -> None:
        super().__init__()
        self.count = count
        self.settle = settle
        self.messages: list[Any] = []

    def on_amqp_message(self, event: Any) -> None:
        self.messages.append(event.message)
        getattr(self.delivery_context, self.settle)(event)
        if len(self.messages) == self.count:
            raise Enough

    def bodies(self) -> list[bytes]:
        return [bytes(message.body) for message in self.messages]


def dialled(port: int) -> Any:
    environment = client.Environment(
        uri=f"amqp://guest:guest@127.0.0.1:{port}/",
        recovery_configuration=client.RecoveryConfiguration(active_recovery=False),
    )
    opened = environment.connection()
    opened.dial()
    return opened


@pytest.fixture
def connection(port: int) -> Iterator[Any]:
    opened = dialled(port)
    yield opened
    opened.close()


@pytest.fixture
def management(connection: Any) -> Any:
    return connection.management()


@pytest.fixture
def queue(management: Any, name: str) -> Iterator[str]:
    management.declare_queue(client.QuorumQueueSpecification(name=name))
    yield name
    management.delete_queue(name)


def message(body: bytes, **fields: Any) -> Any:
    return client.Message(body=body, inferred=True, **fields)


def consumed(
    connection: Any,
    queue: str,
    count: int,
    settle: str = "accept",
    options: Any = None,
    handler: Any = None,
) -> Any:
    """The collector of the first `count` messages."""
    handler = handler or Collector(count, settle)
    address = ADDRESS.queue_address(queue)
    consumer = connection.consumer(address, message_handler=handler, consumer_options=options)
    clock = threading.Timer(PATIENCE_S, consumer.stop)
    clock.start()
    try:
        consumer.run()
    except Enough:
        pass
    finally:
        clock.cancel()
    consumer.close()
    return handler


def publish(connection: Any, address: str, *messages: Any) -> None:
    publisher = connection.publisher(address)
    for one in messages:
        assert publisher.publish(one).remote_state == client.Disposition.ACCEPTED
    publisher.close()


# -- topology


def test_declare_publish_consume_delete(connection: Any, management: Any, name: str) -> None:
    exchange, queue = f"{name} exchange/1", f"{name} queue/1"
    management.declare_exchange(
        client.ExchangeSpecification(name=exchange, exchange_type=client.ExchangeType.topic)
    )
    management.declare_queue(
        client.ClassicQueueSpecification(
            name=queue, max_len=1000, message_ttl=timedelta(minutes=5), is_durable=True
        )
    )
    bound = client.ExchangeToQueueBindingSpecification(exchange, queue, "a.#")
    path = management.bind(bound)
    info = management.queue_info(queue)
    assert (info.name, info.is_durable, info.is_exclusive, info.is_auto_delete) == (
        queue, True, False, False,
    )  # fmt: skip
    assert info.queue_type == client.QueueType.classic
    assert info.arguments["x-max-length"] == 1000
    assert info.arguments["x-message-ttl"] == 300_000
    assert list(info.members) == [info.leader]

    sent = [message(b"%d" % i, subject=f"s{i}") for i in range(5)]
    publish(connection, ADDRESS.exchange_address(exchange, "a.b"), *sent)
    assert management.queue_info(queue).message_count == 5
    found = consumed(connection, queue, 5)
    assert found.bodies() == [b"0", b"1", b"2", b"3", b"4"]
    assert [one.subject for one in found.messages] == ["s0", "s1", "s2", "s3", "s4"]
    assert found.messages[0].annotations["x-exchange"] == exchange
    assert found.messages[0].annotations["x-routing-key"] == "a.b"
    assert management.queue_info(queue).message_count == 0

    publish(connection, ADDRESS.exchange_address(exchange, "a"), message(b"x"), message(b"y"))
    assert management.purge_queue(queue) == 2
    management.unbind(path)
    publisher = connection.publisher(ADDRESS.exchange_address(exchange, "a"))
    with pytest.raises(SendException) as caught:
        publisher.publish(message(b"goes nowhere"))
    assert caught.value.args == (client.Disposition.RELEASED,)
    publisher.close()
    management.delete_queue(queue)
    management.delete_exchange(exchange)
    with pytest.raises(client.ValidationCodeException, match="wrong response code received: 404"):
        management.queue_info(queue)


def test_types_of_queues_and_exchanges(management: Any, name: str) -> None:
    management.declare_queue(client.QuorumQueueSpecification(name=name, deliver_limit=3))
    assert management.queue_info(name).queue_type == client.QueueType.quorum
    management.delete_queue(name)
    management.declare_queue(
        client.ClassicQueueSpecification(
            name=name, is_durable=False, is_auto_delete=True, is_exclusive=True
        )
    )
    info = management.queue_info(name)
    assert (info.is_durable, info.is_auto_delete, info.is_exclusive) == (False, True, True)
    management.delete_queue(name)
    management.declare_exchange(
        client.ExchangeCustomSpecification(name=name, exchange_type="x-consistent-hash")
    )
    management.declare_exchange(
        client.ExchangeCustomSpecification(name=name, exchange_type="x-consistent-hash")
    )
    management.delete_exchange(name)


def test_bindings_between_exchanges(connection: Any, management: Any, name: str) -> None:
    first, second = f"{name}-1", f"{name}-2"
    for exchange in (first, second):
        management.declare_exchange(
            client.ExchangeSpecification(name=exchange, exchange_type=client.ExchangeType.fanout)
        )
    management.declare_queue(client.ClassicQueueSpecification(name=name))
    management.bind(client.ExchangeToExchangeBindingSpecification(first, second, "k"))
    management.bind(client.ExchangeToQueueBindingSpecification(second, name))
    publish(connection, ADDRESS.exchange_address(first), message(b"through both"))
    assert consumed(connection, name, 1).bodies() == [b"through both"]
    management.delete_exchange(first)
    management.delete_exchange(second)
    management.delete_queue(name)


def test_what_is_refused_leaves_the_connection_as_it_is(
    management: Any, queue: str, name: str
) -> None:
    with pytest.raises(client.ValidationCodeException, match="ErrPreconditionFailed"):
        management.declare_queue(client.ClassicQueueSpecification(name=queue))
    for specification, code in [
        (client.ExchangeToQueueBindingSpecification(f"no-{name}", queue, "k"), 404),
        (client.ExchangeToQueueBindingSpecification("", queue, "k"), 403),
    ]:
        with pytest.raises(client.ValidationCodeException, match=f"received: {code}"):
            management.bind(specification)
    with pytest.raises(client.ValidationCodeException, match="received: 404"):
        management.purge_queue(f"no-{name}")
    management.delete_queue(f"no-{name}")
    assert management.queue_info(queue).message_count == 0


def test_what_is_declared_over_amqp_1_0_is_there_for_amqp_0_9_1(
    connection: Any, management: Any, port: int, name: str
) -> None:
    management.declare_queue(client.ClassicQueueSpecification(name=name, max_len=7))
    parameters = pika.ConnectionParameters("127.0.0.1", port)
    with pika.BlockingConnection(parameters) as other:
        channel: BlockingChannel = other.channel()
        arguments = {"x-max-length": 7, "x-queue-type": "classic"}
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.basic_publish("", name, b"from 0-9-1", pika.BasicProperties(message_id="m"))
        found = consumed(connection, name, 1)
        assert (found.bodies(), found.messages[0].id) == ([b"from 0-9-1"], "m")
        publish(connection, ADDRESS.queue_address(name), message(b"from 1.0", subject="s"))
        _, properties, body = channel.basic_get(name, auto_ack=True)
        assert body == b"from 1.0"
        assert properties is not None
        channel.queue_delete(name)


# -- settling


def test_outcomes(connection: Any, management: Any, queue: str) -> None:
    publish(connection, ADDRESS.queue_address(queue), message(b"again"))
    assert consumed(connection, queue, 1, "requeue").bodies() == [b"again"]
    assert management.queue_info(queue).message_count == 1
    assert consumed(connection, queue, 1, "discard").bodies() == [b"again"]
    assert management.queue_info(queue).message_count == 0


class Annotating(Collector):
    """Requeues or discards each message with annotations."""

    def on_amqp_message(self, event: Any) -> None:
        self.messages.append(event.message)
        getattr(self.delivery_context, self.settle)(
            event, {Symbol("x-opt-why"): "busy", Symbol("x-opt-n"): 7}
        )
        if len(self.messages) == self.count:
            raise Enough


def settled_with_annotations(connection: Any, queue: str, settle: str) -> Any:
    """The message that it was."""
    (only,) = consumed(connection, queue, 1, handler=Annotating(1, settle)).messages
    return only


def test_requeue_with_annotations(connection: Any, management: Any, queue: str) -> None:
    """FC-20: modified, not failed. RabbitMQ counts no delivery then, and shows the annotations."""
    publish(connection, ADDRESS.queue_address(queue), message(b"again"))
    first = settled_with_annotations(connection, queue, "requeue_with_annotations")
    assert "x-opt-why" not in first.annotations
    assert management.queue_info(queue).message_count == 1
    (again,) = consumed(connection, queue, 1).messages
    assert (again.annotations["x-opt-why"], again.annotations["x-opt-n"]) == ("busy", 7)
    assert (again.delivery_count, again.first_acquirer) == (0, False)


def test_discard_with_annotations(connection: Any, management: Any, name: str) -> None:
    """FC-20: modified, failed and undeliverable here. The dead letter has the annotations."""
    letters = f"{name}-letters"
    management.declare_queue(client.QuorumQueueSpecification(name=letters))
    management.declare_queue(
        client.QuorumQueueSpecification(
            name=name, dead_letter_exchange="", dead_letter_routing_key=letters
        )
    )
    publish(connection, ADDRESS.queue_address(name), message(b"bad"))
    settled_with_annotations(connection, name, "discard_with_annotations")
    assert management.queue_info(name).message_count == 0
    (letter,) = consumed(connection, letters, 1).messages
    assert letter.annotations["x-opt-why"] == "busy"
    assert letter.annotations["x-first-death-reason"] == "rejected"
    assert letter.annotations["x-opt-deaths"].elements[0]["queue"] == name
    management.delete_queue(name)
    management.delete_queue(letters)


def test_many_are_settled_in_any_order(connection: Any, management: Any, queue: str) -> None:
    class Backwards(Collector):
        def on_amqp_message(self, event: Any) -> None:
            self.messages.append(event.message)
            held.append(event.delivery)
            if len(held) == 10:
                for delivery in reversed(held):
                    delivery.update(client.Disposition.ACCEPTED)
                    delivery.settle()
                raise Enough

    held: list[Any] = []
    publish(connection, ADDRESS.queue_address(queue), *[message(b"%d" % i) for i in range(12)])
    consumed(connection, queue, 10, handler=Backwards(10))
    assert management.queue_info(queue).message_count == 2
    assert consumed(connection, queue, 2).bodies() == [b"10", b"11"]


def test_pre_settled_deliveries(connection: Any, management: Any, queue: str) -> None:
    class Taking(Collector):
        def on_amqp_message(self, event: Any) -> None:
            assert event.delivery.settled
            self.messages.append(event.message)
            if len(self.messages) == self.count:
                raise Enough

    publish(connection, ADDRESS.queue_address(queue), *[message(b"%d" % i) for i in range(5)])
    options = client.ConsumerOptions(settle_strategy=client.ConsumerSettleStrategy.PreSettled)
    found = consumed(connection, queue, 5, handler=Taking(5), options=options)
    assert found.bodies() == [b"0", b"1", b"2", b"3", b"4"]
    assert management.queue_info(queue).message_count == 0


def test_direct_reply_to(connection: Any, port: int, management: Any, queue: str) -> None:
    class Answers(Collector):
        def on_amqp_message(self, event: Any) -> None:
            self.messages.append(event.message)
            raise Enough

    answers = Answers(1)
    strategy = client.ConsumerSettleStrategy.DirectReplyTo
    consumer = connection.consumer(
        message_handler=answers, consumer_options=client.ConsumerOptions(settle_strategy=strategy)
    )
    assert consumer.address.startswith("/queues/amq.rabbitmq.reply-to.")
    other = dialled(port)
    # It is the same connection, so its credit for answers is out as well.
    publish(connection, ADDRESS.queue_address(queue), message(b"?", reply_to=consumer.address))
    (request,) = consumed(other, queue, 1).messages
    publish(other, request.reply_to, message(b"!"))
    other.close()
    clock = threading.Timer(PATIENCE_S, consumer.stop)
    clock.start()
    with pytest.raises(Enough):
        consumer.run()
    clock.cancel()
    assert answers.bodies() == [b"!"]
    consumer.close()


def test_the_asyncio_api(port: int, name: str) -> None:
    async def story() -> list[bytes]:
        environment = client.AsyncEnvironment(uri=f"amqp://guest:guest@127.0.0.1:{port}/")
        async with (
            environment,
            await environment.connection() as opened,
            await opened.management() as management,
        ):
            await management.declare_queue(client.QuorumQueueSpecification(name=name))
            async with await opened.publisher(ADDRESS.queue_address(name)) as publisher:
                for i in range(5):
                    status = await publisher.publish(message(b"%d" % i))
                    assert status.remote_state == client.Disposition.ACCEPTED
            handler = Stopping(5)
            async with await opened.consumer(
                ADDRESS.queue_address(name), message_handler=handler
            ) as consumer:
                running = asyncio.create_task(consumer.run())
                await asyncio.to_thread(handler.done.wait, PATIENCE_S)
                await consumer.stop_processing()
                await running
            info = await management.queue_info(name)
            assert info.message_count == 0
            await management.delete_queue(name)
        return handler.bodies()

    class Stopping(Collector):
        def __init__(self, count: int) -> None:
            super().__init__(count)
            self.done = threading.Event()

        def on_amqp_message(self, event: Any) -> None:
            self.messages.append(event.message)
            self.delivery_context.accept(event)
            if len(self.messages) == self.count:
                self.done.set()

    assert asyncio.run(story()) == [b"0", b"1", b"2", b"3", b"4"]


# -- filters, on an ordinary queue


def filtered(**fields: Any) -> Any:
    return client.StreamConsumerOptions(filter_options=client.StreamFilterOptions(**fields))


def properties(**fields: Any) -> Any:
    return filtered(message_properties=client.MessageProperties(**fields))


FILTERS = [
    (filtered(sql="color = 'red' AND n > 2"), [3, 5]),
    (filtered(sql="p.subject LIKE 'even%' AND h.priority = 4"), [0, 2, 4]),
    (filtered(sql="n IN (1, 4) OR p.message_id = 'id-5'"), [1, 4, 5]),
    (filtered(sql="[m-other] IS NULL AND NOT n % 2 = 0"), [1, 3, 5]),
    (filtered(application_properties={"color": "&p:bl", "n": 4}), [4]),
    (filtered(application_properties={"color": "&s:ed"}), [1, 3, 5]),
    (properties(subject="odd one", group_id="g"), [1, 3, 5]),
    (properties(message_id="&s:2"), [2]),
    (filtered(application_properties={"color": "red"}, sql="n < 3"), [1]),
]


@pytest.mark.parametrize(("options", "expected"), FILTERS)
def test_filters(
    broker: object, connection: Any, management: Any, queue: str, options: Any, expected: list[int]
) -> None:
    publish(
        connection,
        ADDRESS.queue_address(queue),
        *[
            message(
                b"%d" % i,
                id=f"id-{i}",
                group_id="g",
                subject="odd one" if i % 2 else "even one",
                application_properties={"n": i, "color": "red" if i % 2 else "blue"},
            )
            for i in range(6)
        ],
    )
    found = consumed(connection, queue, len(expected), options=options)
    assert [int(body) for body in found.bodies()] == expected
    # What did not match is untouched, in its order.
    assert management.queue_info(queue).message_count == 6 - len(expected)
    rest = consumed(connection, queue, 6 - len(expected))
    assert [int(body) for body in rest.bodies()] == [i for i in range(6) if i not in expected]


def test_a_filter_that_makes_no_sense_is_refused(
    broker: object, port: int, management: Any, queue: str
) -> None:
    other = dialled(port)
    with pytest.raises(LinkDetached, match=r"character 9: .*expected a field") as caught:
        other.consumer(
            ADDRESS.queue_address(queue),
            message_handler=Collector(1),
            consumer_options=filtered(sql="color > > 2"),
        )
    assert caught.value.condition == "amqp:invalid-field"
    assert management.queue_info(queue).consumer_count == 0
    other.close()


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (client.OffsetSpecification.first, [0, 1, 2, 3]), (2, [2, 3]),
        (datetime.now(UTC) - timedelta(hours=1), [0, 1, 2, 3]),
    ],
)  # fmt: skip
def test_a_stream_from_an_offset(
    connection: Any, management: Any, name: str, start: Any, expected: list[int]
) -> None:
    management.declare_queue(client.StreamSpecification(name=name, max_age=timedelta(hours=2)))
    assert management.queue_info(name).queue_type == client.QueueType.stream
    address = ADDRESS.queue_address(name)
    sent = [message(b"%d" % i, application_properties={"n": i}) for i in range(4)]
    publish(connection, address, *sent)
    options = client.StreamConsumerOptions(offset_specification=start)
    for _ in range(2):  # reading takes nothing
        got = consumed(connection, name, len(expected), options=options)
        assert got.bodies() == [b"%d" % i for i in expected]
        assert got.offset == 3
    odd = client.StreamFilterOptions(sql="n % 2 = 1")
    options = client.StreamConsumerOptions(offset_specification=2, filter_options=odd)
    assert consumed(connection, name, 1, options=options).bodies() == [b"3"]
    management.delete_queue(name)


@pytest.mark.parametrize(("unfiltered", "expected"), [(True, [b"0", b"2"]), (False, [b"0"])])
def test_a_stream_by_the_value_of_its_messages(
    connection: Any, management: Any, name: str, unfiltered: bool, expected: list[bytes]
) -> None:
    management.declare_queue(client.StreamSpecification(name=name))
    value = "x-stream-filter-value"
    publish(
        connection,
        ADDRESS.queue_address(name),
        message(b"0", annotations={client.symbol(value): "eu"}),
        message(b"1", annotations={client.symbol(value): "us"}),
        message(b"2"),
    )
    options = client.StreamConsumerOptions(
        offset_specification=client.OffsetSpecification.first,
        filter_options=client.StreamFilterOptions(values=["eu"], match_unfiltered=unfiltered),
    )
    got = consumed(connection, name, len(expected), options=options)
    assert got.bodies() == expected


DIAL = """
import sys
import rabbitmq_amqp_python_client as client
try:
    client.Environment(uri=sys.argv[1]).connection().dial()
except BaseException as error:
    print(type(error).__name__)
"""


def test_an_unknown_virtual_host_ends_the_attempt(port: int) -> None:
    """Told by a close it connects again and again, without an end, from within its own handler."""
    url = f"amqp://guest:guest@127.0.0.1:{port}/nowhere"
    command = [sys.executable, "-c", DIAL, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout == "ConnectionException\n", done.stderr[-2000:]


class Counting(Collector):
    """Returns the first delivery, and takes down what each one says of deliveries."""

    def __init__(self) -> None:
        super().__init__(2)
        self.counts: list[Any] = []

    def on_amqp_message(self, event: Any) -> None:
        annotations = event.message.annotations or {}
        self.counts.append(annotations.get(client.symbol("x-delivery-count")))
        if len(self.counts) == 1:
            self.delivery_context.requeue(event)
            return
        self.delivery_context.accept(event)
        raise Enough


def test_a_quorum_queue_says_how_often_a_message_was_delivered(connection: Any, queue: str) -> None:
    publish(connection, ADDRESS.queue_address(queue), message(b"m"))
    assert consumed(connection, queue, 2, handler=Counting()).counts == [None, 1]


def test_an_exchange_that_gives_each_message_to_one_queue(
    connection: Any, management: Any, name: str
) -> None:
    management.declare_exchange(
        client.ExchangeCustomSpecification(name=name, exchange_type="x-local-random")
    )
    queues = [f"{name}-{i}" for i in range(3)]
    for one in queues:
        management.declare_queue(client.ClassicQueueSpecification(name=one))
        management.bind(client.ExchangeToQueueBindingSpecification(name, one, ""))
    publish(connection, ADDRESS.exchange_address(name), *[message(b"m") for _ in range(9)])
    assert [management.queue_info(one).message_count for one in queues] == [3, 3, 3]
    for one in queues:
        management.delete_queue(one)
    management.delete_exchange(name)
