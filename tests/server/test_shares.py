"""How much of the loop one client may have before the others have their turn."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import cramjam
import pika
import pytest

from bench.lean import method
from tallymark.engine.state import TURN_BYTES
from tallymark.server.client import LEAST_DELIVERY_BYTES
from tallymark.server.node import Node
from tallymark.server.nsq.client import CALL_BYTES
from tallymark.server.postponed import Postponed
from tallymark.wire.amqp091.frames import HEARTBEAT_FRAME
from tallymark.wire.line import SHARE
from tallymark.wire.nsq.commands import MAGIC, NOP, identify, pub, rdy, sub
from tallymark.wire.nsq.snappy import IDENTIFIER, masked_checksum
from tallymark.wire.nsq.upgrades import PIECE_MAX
from tests.server.inside import with_broker
from tests.server.lines import DOORS
from tests.server.nsqd import Client as NsqClient
from tests.server.nsqd import topic
from tests.siege.attack import Count, Target, Worker
from tests.support.amqp10_socket import Client as Client10
from tests.support.nsq import Limits as NsqLimits
from tests.support.nsq import Server as NsqWire
from tests.support.process import BrokerProcess

MIB = 1 << 20
ONE_READ = 256 * 1024
"""Bytes that a loop reads from a socket at a time."""
BY_NAME = {door.name: door for door in DOORS}
MANY = 5 * SHARE + 7
"""Frames or commands: several shares, and a rest."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("shares") / "data") as process:
        yield process


def amqp091(broker: BrokerProcess) -> None:
    with BY_NAME["amqp-0-9-1"].opened(broker) as raw:
        raw.sendall(HEARTBEAT_FRAME * MANY + method(1, (20, 10), b"\0"))
        wait_for(raw, b"\0\x14\0\x0b")  # channel.open-ok


def amqp10(broker: BrokerProcess) -> None:
    with Client10(BY_NAME["amqp-1.0"].connect(broker)) as client:
        client.login()
        client.socket.sendall(b"\0\0\0\x08\x02\0\0\0" * MANY)
        assert client.session().state.value == "MAPPED"


def nsq(broker: BrokerProcess) -> None:
    with NsqClient(broker.nsq_port, client_id="c") as client:
        client.ok(sub("shares", "c"))
        client.send(b"".join(rdy(n % 7) for n in range(MANY)))
        client.ok(pub("shares2", b"x"))


def management(broker: BrokerProcess) -> None:
    pipelined(broker, "management", b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")


def nsq_http(broker: BrokerProcess) -> None:
    pipelined(broker, "nsq-http", b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n")


def pipelined(broker: BrokerProcess, name: str, request: bytes) -> None:
    with BY_NAME[name].opened(broker) as raw:
        raw.sendall(request * 200)
        answered = 0
        while answered < 200:
            data = raw.recv(65536)
            assert data
            answered += data.count(b"HTTP/1.1 200")


def wait_for(raw: socket.socket, word: bytes) -> None:
    seen = b""
    while word not in seen:
        data = raw.recv(65536)
        assert data, seen
        seen += data


@pytest.mark.parametrize("way", [amqp091, amqp10, nsq, management, nsq_http])
def test_what_is_more_than_a_share_is_worked_on_to_its_end(
    broker: BrokerProcess, way: Callable[[BrokerProcess], None]
) -> None:
    way(broker)


@pytest.mark.parametrize("steps", [1, 2, 7, 1 << 62])
def test_shares_change_nothing_but_when(steps: int) -> None:
    """The same events in the same order, however small the share."""
    server = NsqWire(NsqLimits(steps=steps))
    data = b"  V2SUB t c\n" + b"".join(rdy(n) + pub("t", b"%d" % n) for n in range(50))
    server.feed(data)
    shares = 1
    while server.connection.line.is_share_done():
        server.feed(b"")
        shares += 1
    whole = NsqWire(NsqLimits())
    whole.feed(data)
    assert [type(event) for event in server.events] == [type(event) for event in whole.events]
    assert server.connection.take_output(0) == whole.connection.take_output(0)
    assert shares > 100 // steps


def test_bombs_of_deflate_leave_others_their_turn(broker: BrokerProcess) -> None:
    """Eight clients send little that stands for much; another one's publishes are confirmed long
    before all of that is done."""
    count = 30_000
    bomb = (pub("bomb", b"x") + pub("bomc", b"x")) * count  # no runs: each is a step
    squeeze = zlib.compressobj(6, wbits=-15)
    squeezed = squeeze.compress(bomb) + squeeze.flush(zlib.Z_SYNC_FLUSH)
    assert len(squeezed) * 50 < len(bomb)
    about = b'{"feature_negotiation": true, "deflate": true, "heartbeat_interval": -1}'
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("other")
        held = []
        for _ in range(8):
            raw = BY_NAME["nsq"].connect(broker)
            raw.sendall(b"  V2" + identify(about))
            wait_for(raw, b'"deflate":true')
            held.append(raw)
        for raw in held:
            raw.sendall(squeezed)
        for _ in range(20):
            channel.basic_publish("", "other", b"y")
        assert topic(broker.nsq_http_url, "bomb")["message_count"] < 8 * count
        for raw in held:
            raw.close()


def snappy_bomb() -> bytes:
    """A chunk of 3 KiB that stands for 16,384 NOPs."""
    piece = NOP * (65_536 // len(NOP))
    content = masked_checksum(piece) + bytes(cramjam.snappy.compress_raw(piece))
    return b"\0" + len(content).to_bytes(3, "little") + content


def deflate_bomb() -> bytes:
    """A block of 1 KiB that stands for a MiB of NOPs."""
    squeeze = zlib.compressobj(9, wbits=-15)
    return squeeze.compress(NOP * (MIB // len(NOP))) + squeeze.flush(zlib.Z_SYNC_FLUSH)


BOMBS = [("snappy", IDENTIFIER, snappy_bomb()), ("deflate", b"", deflate_bomb())]


async def compressing(port: int, kind: str) -> socket.socket:
    """A client of NSQ that has agreed on snappy or deflate."""
    loop = asyncio.get_running_loop()
    raw = socket.socket()
    raw.setblocking(False)
    await loop.sock_connect(raw, ("127.0.0.1", port))
    about = {"feature_negotiation": True, kind: True}
    await loop.sock_sendall(raw, MAGIC + identify(json.dumps(about).encode()))
    seen = b""
    while f'"{kind}":true'.encode() not in seen:
        seen += await loop.sock_recv(raw, 65_536)
    return raw


@pytest.mark.parametrize(("kind", "begin", "bomb"), BOMBS)
def test_compressed_input_is_read_as_slowly_as_it_is_worked_on(
    tmp_path: Path, kind: str, begin: bytes, bomb: bytes
) -> None:
    """A client sends without end what stands for much more: the broker holds no more of it than one
    read of the socket, and counts that."""

    async def play(ports: dict[str, int], node: Node) -> None:
        node.clients.postponed = Postponed(node.loop, round_ns=0)
        raw = await compressing(ports["nsq_port"], kind)
        raw.send(begin)
        [client] = node.clients
        most = 0
        data = bomb * (2 * MIB // len(bomb))
        at = 0
        for _ in range(100):
            with contextlib.suppress(BlockingIOError):
                at = (at + raw.send(data[at:])) % len(data)
            await asyncio.sleep(0)
            most = max(most, client.input_bytes())
        raw.close()
        reads = node.reads
        while list(node.clients):
            most = max(most, client.input_bytes())
            await asyncio.sleep(0)
        assert len(bomb) < most < ONE_READ + PIECE_MAX
        # It has gone before hundreds of MiB of its commands were worked on.
        assert client.encoded_bytes > len(bomb)
        assert (node.reads - reads) * PIECE_MAX < 2 * CALL_BYTES

    asyncio.run(with_broker(tmp_path, play))


@pytest.mark.parametrize(("kind", "begin", "bomb"), BOMBS)
def test_a_round_has_one_share_of_compressed_input(
    tmp_path: Path, kind: str, begin: bytes, bomb: bytes
) -> None:
    """However many clients sent a bomb: sockets are read after each share of one of them."""
    count = 8

    async def play(ports: dict[str, int], node: Node) -> None:
        node.clients.postponed = Postponed(node.loop, round_ns=0)
        held = [await compressing(ports["nsq_port"], kind) for _ in range(count)]
        for raw in held:
            raw.send(begin + bomb * (MIB // 4 // len(bomb)))
        clients = list(node.clients)
        while True:
            await asyncio.sleep(0)
            if all(client.encoded_bytes for client in clients):
                break
        for _ in range(20):
            before = [(client.received_bytes, client.encoded_bytes) for client in clients]
            await asyncio.sleep(0)
            decoded = 0
            for client, (received, encoded) in zip(clients, before, strict=True):
                decoded += client.received_bytes == received and client.encoded_bytes != encoded
            assert decoded <= 1
        assert all(client.encoded_bytes for client in node.clients)
        for raw in held:
            raw.close()

    asyncio.run(with_broker(tmp_path, play))


@pytest.mark.parametrize("count", [1, 4, 40])
def test_clients_share_what_is_delivered_in_a_turn(tmp_path: Path, count: int) -> None:
    async def play(ports: dict[str, int], node: Node) -> None:
        target = Target({"amqp": ports["amqp_port"]}, "guest", "guest", vhost="/")
        workers = [Worker(target, n, Count()) for n in range(count)]
        for worker in workers:
            await worker.opened()
        found = list(node.broker.connections.values())
        node.clients.give_room(found)
        assert len(found) == count
        given = sum(connection.allowance for connection in found)
        assert given <= max(TURN_BYTES, count * LEAST_DELIVERY_BYTES)
        assert all(connection.allowance >= LEAST_DELIVERY_BYTES // 2 for connection in found)
        for worker in workers:
            worker.hang_up()

    asyncio.run(with_broker(tmp_path, play))
