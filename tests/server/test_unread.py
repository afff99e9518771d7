"""Clients that ask and never read: what they asked for does not pile up, in any protocol."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest

from bench.lean import method, publish, settle, short
from tallymark.wire.amqp10.outcomes import Released
from tallymark.wire.nsq.commands import MAGIC, identify, rdy, sub
from tests.server.lines import DOORS, GUEST, memory_mib
from tests.server.management import done
from tests.server.peers import alarms
from tests.support.amqp10_socket import Client as Client10
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess

MIB = 1 << 20
GROWTH_MIB = 200
"""What a broker with max_memory of 32 MiB may take more than at its start, whatever is asked. What
is asked for here would be a GiB."""
ASKED = 1000
QUIET_S = 0.5
"""A socket that takes nothing for so long is not being read."""
BY_NAME = {door.name: door for door in DOORS}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", max_memory="32MiB") as process:
        yield process


def push(raw: socket.socket, data: bytes) -> int:
    """Send as much as the broker reads; returns how much that was."""
    raw.settimeout(None)
    raw.setblocking(False)
    sent = 0
    while sent < len(data):
        _, writable, _ = select.select([], [raw], [], QUIET_S)
        if not writable:
            break
        sent += raw.send(data[sent : sent + 65536])
    return sent


def filled(broker: BrokerProcess, body: bytes, count: int = 1) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("big", durable=True)
        for _ in range(count):
            channel.basic_publish("", "big", body)


def gets(broker: BrokerProcess) -> socket.socket:
    """basic.get and basic.reject with requeue, a thousand times: 38 KB in, a GiB out."""
    filled(broker, b"x" * MIB)
    raw = BY_NAME["amqp-0-9-1"].opened(broker)
    get = method(1, (60, 70), b"\0\0" + short("big") + b"\0")
    asked = b"".join(get + settle(1, (60, 90), tag, 1) for tag in range(1, ASKED + 1))
    push(raw, method(1, (20, 10), b"\0") + asked)
    return raw


def returns(broker: BrokerProcess) -> socket.socket:
    """Mandatory publishes that nobody takes: each comes back."""
    raw = BY_NAME["amqp-0-9-1"].opened(broker)
    one = bytearray(publish(1, "", "nowhere", b"\0\0", b"x" * MIB))
    one[one.index(b"nowhere") + len(b"nowhere")] = 1  # mandatory
    push(raw, method(1, (20, 10), b"\0") + bytes(one) * 400)
    return raw


def deliveries(broker: BrokerProcess) -> socket.socket:
    """A consumer without acknowledgements of a deep queue."""
    filled(broker, b"x" * MIB, 300)
    raw = BY_NAME["amqp-0-9-1"].opened(broker)
    consume = method(1, (60, 20), b"\0\0" + short("big") + short("") + b"\x02" + b"\0\0\0\0")
    push(raw, method(1, (20, 10), b"\0") + consume)
    return raw


def releases(broker: BrokerProcess) -> socket.socket:
    """AMQP 1.0: credit for a thousand, and all of them released before they are read."""
    filled(broker, b"x" * MIB, 2)
    raw = BY_NAME["amqp-1.0"].connect(broker)
    client = Client10(raw)
    client.login()
    session = client.session()
    link = client.receiver(session, "/queues/big")
    link.flow(ASKED)
    client.work()
    for number in range(ASKED):
        client.dispose(session, number, Released(), True)
    raw.setblocking(False)
    return raw


def nsq(broker: BrokerProcess) -> socket.socket:
    """A subscriber with RDY 2500, and a topic with 300 MiB."""
    for _ in range(60):
        status, _ = _post(broker, "/mpub?topic=big&binary=true", _mpub([b"x" * (MIB - 8)] * 5))
        assert status == 200
    raw = BY_NAME["nsq"].connect(broker)
    about = json.dumps({"feature_negotiation": True, "heartbeat_interval": -1}).encode()
    push(raw, MAGIC + identify(about) + sub("big", "c") + rdy(2500))
    return raw


def _mpub(bodies: list[bytes]) -> bytes:
    cells = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    return len(bodies).to_bytes(4, "big") + cells


def _post(broker: BrokerProcess, path: str, body: bytes) -> tuple[int, bytes]:
    import urllib.request

    request = urllib.request.Request(broker.nsq_http_url + path, body, method="POST")
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        return response.status, response.read()


def lists(broker: BrokerProcess) -> socket.socket:
    """Pipelined requests for a list of 2,000 queues on the management port."""
    _many_queues(broker)
    raw = BY_NAME["management"].opened(broker)
    request = b"GET /api/queues HTTP/1.1\r\nHost: a\r\nAuthorization: Basic %s\r\n\r\n" % GUEST
    push(raw, request * ASKED)
    return raw


def statistics(broker: BrokerProcess) -> socket.socket:
    """The same of nsqd's statistics."""
    for number in range(300):
        _post(broker, f"/topic/create?topic=topic{number}", b"")
    raw = BY_NAME["nsq-http"].opened(broker)
    push(raw, b"GET /stats?format=json HTTP/1.1\r\nHost: a\r\n\r\n" * ASKED)
    return raw


def _many_queues(broker: BrokerProcess) -> None:
    queues = [
        {"name": f"q{number}", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
        for number in range(2000)
    ]
    done(broker, "POST", "definitions", {"queues": queues})


WAYS = [gets, returns, deliveries, releases, nsq, lists, statistics]


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
def test_what_is_not_read_does_not_pile_up(
    broker: BrokerProcess, way: Callable[[BrokerProcess], socket.socket]
) -> None:
    before = memory_mib(broker)
    with way(broker):
        # Somebody else's work goes on, and gives the broker the time to do all it was asked for.
        filled(broker, b"y" * 1000, 200)
        assert memory_mib(broker) - before < GROWTH_MIB
        assert broker.http("GET", "/healthz", user=None)[0] == 200


def test_a_client_that_begins_to_read_gets_all_it_asked_for(broker: BrokerProcess) -> None:
    with gets(broker) as raw:
        raw.setblocking(True)
        raw.settimeout(PATIENCE_S)
        got = 0
        tail = b""
        get_ok = b"\0\x3c\0\x47"
        while got < ASKED:
            data = raw.recv(1 << 20)
            assert data
            got += (tail + data).count(get_ok)
            tail = data[-3:]
        assert got == ASKED


def test_output_that_many_do_not_read_sets_the_alarm_and_is_bounded(tmp_path: Path) -> None:
    """Consumers that read nothing of what is larger than a socket holds: it cannot leave memory, so
    that publishers are told."""
    with BrokerProcess(tmp_path / "data", max_memory="16MiB") as broker:
        filled(broker, b"x" * (8 * MIB), 24)
        consume = method(1, (60, 20), b"\0\0" + short("big") + short("") + b"\0" + b"\0\0\0\0")
        held = []
        for _ in range(24):
            raw = BY_NAME["amqp-0-9-1"].opened(broker)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            push(
                raw, method(1, (20, 10), b"\0") + method(1, (60, 10), b"\0\0\0\0\0\x01\0") + consume
            )
            held.append(raw)
        until(lambda: "memory" in alarms(broker))
        for raw in held:
            raw.close()
        until(lambda: alarms(broker) == [])


def test_contents_that_never_end_have_a_limit_over_all_connections(tmp_path: Path) -> None:
    """Every connection keeps to its own limit, and all of them together to one: who holds most goes
    first, and the others go on."""
    with BrokerProcess(tmp_path / "data", max_memory="16MiB", max_message_size="4MiB") as broker:
        body = publish(1, "", "q", b"\0\0", b"x" * (4 * MIB))[:-200_000]
        held = []
        for _ in range(30):
            raw = BY_NAME["amqp-0-9-1"].opened(broker)
            push(raw, method(1, (20, 10), b"\0") + body)
            held.append(raw)
        until(lambda: broker.log().count("input.shed") >= 27)  # two of 4 MiB are within 8
        filled(broker, b"y" * 1000, 20)
        for raw in held:
            raw.close()
