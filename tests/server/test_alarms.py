"""Publishers are held back while memory or the disk cannot follow; consumers go on.

The disk is made to hang in its system calls, so that nothing depends on how fast it is.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from bench.lean import PERSISTENT, TRANSIENT, method, publish
from tallymark.wire.amqp10.events import TransfersReceived
from tallymark.wire.amqp10.outcomes import Accepted
from tallymark.wire.amqp10.sections import encode_message
from tallymark.wire.amqp10.serial import add
from tests.faults.disks import Shim, make_shim
from tests.server.lines import DOORS
from tests.server.peers import Bare, Publisher, Reader, alarms, declare
from tests.support.amqp10_socket import Client
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess

MIB = 1 << 20
SIZE = 32 * 1024


@pytest.fixture
def shim(tmp_path: Path) -> Iterator[Shim]:
    made = make_shim(tmp_path / "shim")
    yield made
    made.go_on()
    Bare.drop_all()


def bodies_bytes(broker: BrokerProcess) -> int:
    return int(broker.http("GET", "/api/tallymark/status")[1]["memory"]["bodies_bytes"])


def received(broker: BrokerProcess) -> int:
    rows = broker.http("GET", "/api/tallymark/connections")[1]["connections"]
    return sum(row["received_bytes"] for row in rows)


def is_held(publisher: Publisher) -> bool:
    """Its socket takes nothing more for a while."""
    publisher.work()
    _, writable, _ = select.select([], [publisher.link.socket], [], 0.3)
    return not writable


def test_memory_alarm_blocks_publishers_until_consumers_made_room(
    tmp_path: Path, shim: Shim
) -> None:
    with BrokerProcess(
        tmp_path / "data", env=shim.env, max_memory="16MiB", max_pending="4GiB"
    ) as broker:
        declare(broker, "q", durable=False)
        publisher = Publisher(broker, "q", SIZE, TRANSIENT)
        shim.hang()
        until(lambda: publisher.told or publisher.lost, publisher.work)
        assert publisher.told == ["low on memory"]
        assert alarms(broker) == ["memory"]
        assert bodies_bytes(broker) < 40 * MIB
        until(lambda: is_held(publisher))
        plan = broker.http("POST", "/api/tallymark/browse/%2F/q")[1]
        late = Publisher(broker, "late", SIZE, TRANSIENT)  # told with its first publish
        until(lambda: late.told, late.work)
        before = received(broker)
        late.work()
        assert received(broker) == before

        reader = Reader(broker, "q")
        until(lambda: len(reader.numbers) >= plan["messages"], reader.work)
        assert alarms(broker) == ["memory"]  # what the plan pins has been consumed, and stays
        assert publisher.told == ["low on memory"]
        assert broker.http("DELETE", f"/api/tallymark/browse/plans/{plan['plan']}")[0] == 200
        until(lambda: len(publisher.told) > 1, reader.work, lambda: publisher.work(False))
        assert publisher.told[1] == "unblocked"
        assert late.told[0] == "low on memory"
        shim.go_on()
        more = publisher.published + 100
        until(lambda: publisher.published > more, publisher.work, reader.work)
        until(
            lambda: len(reader.numbers) == publisher.published == publisher.confirmed,
            lambda: publisher.work(False),
            reader.work,
        )
        assert reader.numbers == list(range(1, publisher.published + 1))
        until(lambda: late.confirmed == late.published, lambda: late.work(False))
        assert bodies_bytes(broker) <= 16 * MIB
        assert (publisher.lost, late.lost, alarms(broker)) == ("", "", [])


def test_a_message_larger_than_the_memory_for_all_is_not_held_up_half_way(tmp_path: Path) -> None:
    """World 8804710: what of it had come set the alarm, and nothing more of it was read."""
    with BrokerProcess(tmp_path / "data", max_memory="16MiB") as broker:
        parameters = pika.ConnectionParameters(
            port=broker.amqp_port, blocked_connection_timeout=PATIENCE_S
        )
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            bodies = [b"first", bytes(48 * MIB)]
            for body in bodies:  # who has never published is not held back
                channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))
            until(lambda: not alarms(broker))
            assert [channel.basic_get("q", True)[2] for _ in bodies] == bodies


def test_max_pending_holds_publishers_silently_and_confirms_nothing_early(
    tmp_path: Path, shim: Shim
) -> None:
    with BrokerProcess(tmp_path / "data", env=shim.env, max_pending="1MiB") as broker:
        declare(broker, "q")
        declare(broker, "other", durable=False)
        publisher = Publisher(broker, "q", SIZE, PERSISTENT)
        shim.hang()
        until(lambda: is_held(publisher))
        assert (publisher.confirmed, publisher.told, alarms(broker)) == (0, [], [])
        pending = broker.http("GET", "/api/tallymark/status")[1]["journal"]["pending_bytes"]
        assert MIB < pending < 4 * MIB
        small = Publisher(broker, "other", 100, TRANSIENT)
        reader = Reader(broker, "other")
        until(lambda: reader.numbers, lambda: small.work(not small.published), reader.work)
        shim.go_on()
        more = publisher.published + 100
        until(lambda: publisher.published > more, publisher.work, lambda: small.work(False))
        until(lambda: publisher.confirmed == publisher.published, lambda: publisher.work(False))
        reader = Reader(broker, "q")
        until(lambda: len(reader.numbers) >= publisher.published, reader.work)
        assert reader.numbers == list(range(1, publisher.published + 1))


def test_a_confirm_waits_for_little_that_others_publish_in_transactions(
    tmp_path: Path, shim: Shim
) -> None:
    """What was handed to the disk before a message is written before it is confirmed."""
    with BrokerProcess(tmp_path / "data", env=shim.env) as broker:
        declare(broker, "q")
        [door] = [one for one in DOORS if one.name == "amqp-0-9-1"]
        with door.opened(broker) as raw:
            raw.sendall(method(1, (20, 10), b"\0") + method(1, (90, 10)))
            data = publish(1, "", "q", PERSISTENT, bytes(100_000))
            raw.setblocking(False)
            shim.hang()
            at = 0
            while select.select([], [raw], [], 0.3)[1]:
                at = (at + raw.send(data[at:])) % len(data)
            pending = broker.http("GET", "/api/tallymark/status")[1]["journal"]["pending_bytes"]
            assert pending < 12 * MIB
            shim.go_on()


def test_fc_7_an_amqp_10_client_stops_publishing_and_goes_on_consuming(
    tmp_path: Path, shim: Shim
) -> None:
    """On one connection: windows close, and it is read on, so it can make the room that lacks."""
    with BrokerProcess(
        tmp_path / "data", env=shim.env, max_memory="16MiB", max_pending="4GiB", link_credit="170"
    ) as broker:
        declare(broker, "q", durable=False)
        raw = socket.create_connection(("127.0.0.1", broker.amqp_port), 20)
        with Client(raw) as client:
            client.login()
            session = client.session()
            senders = [client.sender(session, "q", 1, f"s{i}") for i in range(12)]
            receiver = client.receiver(session, "q")
            message = b"\x00\x53\x70\xc0\x02\x01\x42" + encode_message(body=bytes(SIZE))
            sent = got = 0
            shim.hang()

            def work(publishing: bool) -> None:
                nonlocal sent, got
                for sender in senders if publishing else ():
                    for _ in range(sender.credit):
                        sender.send(message, settled=True)
                        sent += 1
                for event in client.work():
                    if isinstance(event, TransfersReceived):
                        got += len(event)
                        last = add(event.first, len(event) - 1)
                        session.settle_received(event.first, last, Accepted())

            def publish() -> None:
                work(True)

            def consume() -> None:
                if not receiver.credit:
                    receiver.flow(100)
                work(False)

            until(lambda: alarms(broker) == ["memory"], publish)
            quiet = stopped = 0
            while quiet < 20:  # what was granted before is on its way
                publish()
                quiet, stopped = (0 if sent > stopped else quiet + 1), sent
            assert session.is_blocked, "what the window does not let through stays here"
            _, rows = broker.http("GET", "/api/connections")
            assert [row["state"] for row in rows if row["protocol"] == "AMQP 1.0"] == ["blocked"]
            assert bodies_bytes(broker) < 64 * MIB
            until(lambda: alarms(broker) == [], consume)
            shim.go_on()
            until(lambda: all(sender.credit for sender in senders), consume)
            until(lambda: sent >= stopped + 500, publish, consume)
            until(lambda: got == sent, consume)
            assert broker.queues()["q"]["ready"] == 0
