"""python-qpid-proton's blocking client, unchanged, against the broker over sockets."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

proton = pytest.importorskip("proton", reason="python-qpid-proton is not built")

from proton import (  # noqa: E402
    Array,
    Data,
    Delivery,
    Described,
    Link,
    Message,
    char,
    int32,
    symbol,
    timestamp,
    ubyte,
    uint,
    ulong,
)
from proton._data import UNDESCRIBED  # noqa: E402
from proton.reactor import Copy, DynamicNodeProperties, Filter, LinkOption, Selector  # noqa: E402
from proton.utils import (  # noqa: E402
    BlockingConnection,
    BlockingReceiver,
    LinkDetached,
    SendException,
)

from tests.support.patience import PATIENCE_S  # noqa: E402
from tests.support.process import BrokerProcess  # noqa: E402

TIMEOUT_S = PATIENCE_S
BIG = bytes(range(256)) * 2048


@pytest.fixture
def connect(port: int) -> Iterator[Callable[..., BlockingConnection]]:
    """Connections, closed at the end."""
    opened: list[BlockingConnection] = []

    def connect(user: str = "guest:guest", **more: object) -> BlockingConnection:
        made = BlockingConnection(
            f"amqp://{user}@127.0.0.1:{port}", timeout=TIMEOUT_S, allowed_mechs="PLAIN", **more
        )
        opened.append(made)
        return made

    yield connect
    for one in opened:
        if one.conn is not None:
            one.close()


@pytest.fixture
def connection(connect: Callable[..., BlockingConnection]) -> BlockingConnection:
    return connect()


@pytest.fixture
def channel(port: int) -> Iterator[BlockingChannel]:
    """A channel of AMQP 0-9-1."""
    opened = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    yield opened.channel()
    opened.close()


@pytest.fixture
def queue(name: str, channel: BlockingChannel) -> str:
    channel.queue_declare(name, durable=True)
    return name


class Settle(LinkOption):
    """Settle modes."""

    def __init__(self, snd: int, rcv: int) -> None:
        self.snd = snd
        self.rcv = rcv

    def apply(self, link: Link) -> None:
        link.snd_settle_mode = self.snd
        link.rcv_settle_mode = self.rcv


class Volatile(LinkOption):
    """What is sent there goes through no queue."""

    def apply(self, link: Link) -> None:
        link.source.capabilities.put_symbol(symbol("rabbitmq:volatile-queue"))


def drain(receiver: BlockingReceiver, count: int) -> list[object]:
    bodies = []
    for _ in range(count):
        message = receiver.receive(timeout=TIMEOUT_S)
        body = message.body  # binary: a view that ends with the message
        bodies.append(bytes(body) if isinstance(body, memoryview) else body)
        receiver.accept()
    return bodies


def depth(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def test_send_and_receive(connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(f"/queues/{queue}")
    for i in range(200):
        delivery = sender.send(Message(body=f"message {i}"))
        assert delivery.remote_state == Delivery.ACCEPTED
    receiver = connection.create_receiver(queue, credit=10)
    assert drain(receiver, 200) == [f"message {i}" for i in range(200)]


def test_every_type_of_value_comes_back_as_it_was(
    connection: BlockingConnection, queue: str
) -> None:
    values = {
        "none": None, "true": True, "ubyte": ubyte(255), "uint": uint(1), "ulong": ulong(1 << 63),
        "int": int32(-5), "long": -(1 << 60), "double": 1.5, "char": char("é"),
        "timestamp": timestamp(1_700_000_000_000), "uuid": uuid.uuid4(), "binary": b"\x00\xff",
        "string": "grüße", "symbol": symbol("sym"), "list": [1, "a", None],
        "map": {"k": {"n": 1}}, "described": Described(symbol("d"), 7),
        "array": Array(UNDESCRIBED, Data.INT, 1, 2, 3),
    }  # fmt: skip
    sent = Message(
        body=values, id=uuid.uuid4(), subject="s", reply_to="/queues/r", correlation_id="c",
        content_type=symbol("a/b"), content_encoding=symbol("x"), expiry_time=1_700_000_000,
        creation_time=1_600_000_000, group_id="g", group_sequence=7, reply_to_group_id="rg",
        user_id=b"guest", priority=7, durable=True,
        properties={k: v for k, v in values.items() if k not in ("list", "map", "array")},
        annotations={symbol("x-mine"): 1},
    )  # fmt: skip
    connection.create_sender(queue).send(sent)
    receiver = connection.create_receiver(queue)
    got = receiver.receive(timeout=TIMEOUT_S)
    receiver.accept()
    for field in (
        "body", "id", "subject", "reply_to", "correlation_id", "content_type", "content_encoding",
        "expiry_time", "creation_time", "group_id", "group_sequence", "reply_to_group_id",
        "user_id", "priority", "durable", "properties",
    ):  # fmt: skip
        assert getattr(got, field) == getattr(sent, field), field
    assert got.annotations["x-mine"] == 1
    assert got.first_acquirer


def test_messages_of_many_frames(connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(queue)
    for body in (BIG, b"", BIG):
        sender.send(Message(body=body))
    receiver = connection.create_receiver(queue, credit=3)
    assert drain(receiver, 3) == [BIG, b"", BIG]


def test_outcomes(connection: BlockingConnection, queue: str, channel: BlockingChannel) -> None:
    sender = connection.create_sender(queue)
    sender.send(Message(body=0))
    receiver = connection.create_receiver(queue)
    assert receiver.receive(timeout=TIMEOUT_S).body == 0
    receiver.release(delivered=False)
    again = receiver.receive(timeout=TIMEOUT_S)
    assert (again.body, again.delivery_count) == (0, 0)
    receiver.fetcher.unsettled[0].local.failed = True
    receiver.settle(Delivery.MODIFIED)
    again = receiver.receive(timeout=TIMEOUT_S)
    assert (again.body, again.delivery_count) == (0, 1)
    receiver.reject()
    sender.send(Message(body=1))
    assert receiver.receive(timeout=TIMEOUT_S).body == 1
    receiver.accept()
    receiver.close()
    assert depth(channel, queue) == 0


def test_closing_a_receiver_gives_back_what_it_holds(
    connection: BlockingConnection, queue: str
) -> None:
    sender = connection.create_sender(queue)
    for i in range(5):
        sender.send(Message(body=i))
    receiver = connection.create_receiver(queue, credit=5)
    assert receiver.receive(timeout=TIMEOUT_S).body == 0
    receiver.close()
    assert drain(connection.create_receiver(queue, credit=5), 5) == [0, 1, 2, 3, 4]


def test_unroutable_is_released_and_a_full_queue_rejects(
    connection: BlockingConnection, name: str, channel: BlockingChannel
) -> None:
    released = connection.create_sender("/exchanges/amq.topic/nobody").send(
        Message(body=1), error_states=[]
    )
    assert released.remote_state == Delivery.RELEASED
    channel.queue_declare(
        name, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
    )
    sender = connection.create_sender(name)
    sender.send(Message(body=1))
    rejected = sender.send(Message(body=2), error_states=[])
    assert rejected.remote_state == Delivery.REJECTED
    assert rejected.remote.condition.name == "amqp:resource-limit-exceeded"
    with pytest.raises(SendException):
        sender.send(Message(body=3))


def test_the_anonymous_terminus(connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(None)
    sender.send(Message(address=f"/queues/{queue}", body="a"))
    sender.send(Message(address=queue, body="b"))
    released = sender.send(Message(address="/exchanges/amq.direct/x", body="c"), error_states=[])
    assert released.remote_state == Delivery.RELEASED
    assert drain(connection.create_receiver(queue), 2) == ["a", "b"]


@pytest.mark.parametrize("address", ["none", "/queues/none", "/exchanges/none/x", "/nonsense"])
def test_what_is_not_there_refuses_the_link_and_no_more(
    connection: BlockingConnection, queue: str, address: str
) -> None:
    with pytest.raises(LinkDetached):
        connection.create_sender(address)
    with pytest.raises(LinkDetached):
        connection.create_receiver(address)
    connection.create_sender(queue).send(Message(body=1))


@pytest.mark.parametrize("snd", [Link.SND_UNSETTLED, Link.SND_SETTLED, Link.SND_MIXED])
@pytest.mark.parametrize("rcv", [Link.RCV_FIRST, Link.RCV_SECOND])
def test_settle_modes_are_those_asked_for(
    connection: BlockingConnection, queue: str, snd: int, rcv: int
) -> None:
    """But for a sender in mode second: the blocking client does not take the second step."""
    sender = connection.create_sender(queue, options=Settle(snd, Link.RCV_FIRST))
    assert sender.link.remote_snd_settle_mode == snd
    for i in range(3):
        sender.send(Message(body=i))
    receiver = connection.create_receiver(queue, credit=3, options=Settle(snd, rcv))
    assert receiver.link.remote_snd_settle_mode == snd
    assert receiver.link.remote_rcv_settle_mode == rcv
    bodies = []
    for _ in range(3):
        bodies.append(receiver.receive(timeout=TIMEOUT_S).body)
        if snd != Link.SND_SETTLED:
            receiver.accept()
    assert bodies == [0, 1, 2]


def test_a_dynamic_receiver_is_asked_at_its_address(
    connection: BlockingConnection, queue: str
) -> None:
    mine = connection.create_receiver(
        None, dynamic=True, options=DynamicNodeProperties({"lifetime-policy": symbol("x")})
    )
    address = mine.link.remote_source.address
    assert address.startswith("/queues/amq.gen-")
    connection.create_sender(queue).send(Message(body="?", reply_to=address))
    worker = connection.create_receiver(queue)
    request = worker.receive(timeout=TIMEOUT_S)
    worker.accept()
    connection.create_sender(None).send(Message(address=request.reply_to, body="!"))
    assert mine.receive(timeout=TIMEOUT_S).body == "!"
    mine.accept()
    mine.close()
    with pytest.raises(LinkDetached):
        connection.create_sender(address)


def test_direct_reply_to(connect: Callable[..., BlockingConnection], queue: str) -> None:
    asker, worker = connect(), connect()
    mine = asker.create_receiver(None, dynamic=True, options=[Settle(1, 0), Volatile()], credit=5)
    address = mine.link.remote_source.address
    asker.create_sender(queue).send(Message(body="?", reply_to=address))
    requests = worker.create_receiver(queue)
    request = requests.receive(timeout=TIMEOUT_S)
    requests.accept()
    worker.create_sender(None).send(Message(address=request.reply_to, body="!"))
    assert mine.receive(timeout=TIMEOUT_S).body == "!"


def test_browsing_takes_nothing(connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(queue)
    for i in range(3):
        sender.send(Message(body=i))
    browser = connection.create_receiver(queue, credit=10, options=Copy())
    assert drain(browser, 3) == [0, 1, 2]
    browser.close()
    assert drain(connection.create_receiver(queue, credit=3), 3) == [0, 1, 2]


def test_selectors_and_sql_filters(connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(queue)
    for i in range(6):
        sender.send(Message(body=i, properties={"colour": "green" if i % 2 else "red", "n": i}))
    selector = connection.create_receiver(queue, options=Selector("colour = 'green' AND n > 1"))
    assert drain(selector, 2) == [3, 5]
    selector.close()
    sql = Filter({symbol("f"): Described(symbol("amqp:sql-filter"), "colour = 'red' AND n < 4")})
    assert drain(connection.create_receiver(queue, options=sql), 2) == [0, 2]


def test_a_deleted_queue_detaches(
    connection: BlockingConnection, queue: str, channel: BlockingChannel
) -> None:
    receiver = connection.create_receiver(queue)
    channel.queue_delete(queue)
    with pytest.raises(LinkDetached) as detached:
        receiver.receive(timeout=TIMEOUT_S)
    assert detached.value.condition == "amqp:resource-deleted"


VANISH = """
import os, sys
from proton.utils import BlockingConnection
connection = BlockingConnection(sys.argv[1], timeout=600, allowed_mechs="PLAIN")
print(connection.create_receiver(sys.argv[2], credit=3).receive(timeout=600).body, flush=True)
os._exit(1)
"""


def test_a_connection_that_is_lost_gives_back_at_once(
    connection: BlockingConnection, queue: str, port: int
) -> None:
    sender = connection.create_sender(queue)
    for i in range(3):
        sender.send(Message(body=i))
    url = f"amqp://guest:guest@127.0.0.1:{port}"
    lost = subprocess.run(
        [sys.executable, "-c", VANISH, url, queue], capture_output=True, text=True, check=False
    )
    assert (lost.stdout, lost.returncode) == ("0\n", 1), lost.stderr
    waiting = connection.create_receiver(queue, credit=3)
    got = [waiting.receive(timeout=TIMEOUT_S) for _ in range(3)]
    assert [(one.body, one.delivery_count) for one in got] == [(0, 1), (1, 1), (2, 1)]


def test_what_amqp_091_publishes_and_the_other_way(
    connection: BlockingConnection, queue: str, channel: BlockingChannel
) -> None:
    properties = pika.BasicProperties(
        content_type="text/plain", headers={"n": 1, "s": "x"}, correlation_id="c", priority=3,
        delivery_mode=2, message_id="m", app_id="a", timestamp=1_700_000_000,
    )  # fmt: skip
    channel.basic_publish("", queue, b"hello", properties)
    receiver = connection.create_receiver(queue)
    got = receiver.receive(timeout=TIMEOUT_S)
    receiver.accept()
    assert bytes(got.body) == b"hello"
    assert got.properties["n"] == 1
    assert got.properties["s"] == "x"
    assert (got.correlation_id, got.id, got.content_type) == ("c", "m", "text/plain")
    assert (got.priority, got.durable) == (3, True)
    receiver.close()
    connection.create_sender(queue).send(
        Message(body=b"back", inferred=True, properties={"n": 2}, subject="s", id="m2")
    )
    method, properties, body = channel.basic_get(queue, auto_ack=True)
    assert method is not None
    assert body == b"back"
    assert properties.headers["n"] == 2
    assert properties.message_id == "m2"


def test_an_idle_connection_stays(connect: Callable[..., BlockingConnection], queue: str) -> None:
    """Heartbeats of proton's own, twice a second."""
    connection = connect(heartbeat=1)
    sender = connection.create_sender(queue)
    with pytest.raises(proton.Timeout):
        connection.create_receiver(queue).receive(timeout=3)
    assert sender.send(Message(body=1)).remote_state == Delivery.ACCEPTED


def test_a_wrong_password_is_refused(port: int) -> None:
    with pytest.raises(proton.ConnectionException):
        BlockingConnection(
            f"amqp://guest:wrong@127.0.0.1:{port}", timeout=TIMEOUT_S, allowed_mechs="PLAIN"
        )


def test_lists_show_amqp_10_connections(
    broker: BrokerProcess, connection: BlockingConnection, queue: str
) -> None:
    connection.create_receiver(queue, credit=7, name="mine")
    mine = connection.container.container_id
    _, rows = broker.http("GET", "/api/connections")
    (row,) = [one for one in rows if one.get("container_id") == mine]
    assert (row["protocol"], row["user"], row["vhost"]) == ("AMQP 1.0", "guest", "/")
    assert (row["state"], row["channels"]) == ("running", 1)
    _, consumers = broker.http("GET", "/api/consumers")
    (consumer,) = [one for one in consumers if one["queue"]["name"] == queue]
    assert consumer["consumer_tag"] == "mine"
    assert consumer["channel_details"]["connection_name"] == row["name"]
    _, channels = broker.http("GET", "/api/channels")
    assert any(one["connection_details"]["name"] == row["name"] for one in channels)
    status, _ = broker.http("DELETE", f"/api/connections/{row['name'].replace(' ', '%20')}")
    assert status == 204
    with pytest.raises(proton.ConnectionException):
        connection.create_receiver(queue).receive(timeout=TIMEOUT_S)
