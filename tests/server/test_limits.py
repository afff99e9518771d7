"""Limits and time-outs through sockets: the right code, and nothing left of whoever broke them."""

from __future__ import annotations

import random
import select
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.lean import ACK, DELIVER, PERSISTENT, ClosedByBroker, publish
from tallymark.server.config.settings import Config
from tallymark.server.http.server import HttpServer
from tests.server.peers import (
    Bare,
    declare,
    open_connections,
    open_files,
    resident_mib,
    sessions,
)
from tests.support.amqp091 import HANDSHAKE, tune_ok
from tests.support.patience import until
from tests.support.process import BrokerProcess

FRAME_MAX = 8192
CHANNEL_MAX = 5
MESSAGE_MAX = 20_000
CONNECTIONS = 12
HANDSHAKE_MS = 400
TUNED = tune_ok(CHANNEL_MAX, FRAME_MAX)
Misdeed = Callable[[Bare], object]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(
        tmp_path_factory.mktemp("limits") / "data",
        max_connections=str(CONNECTIONS),
        channel_max=str(CHANNEL_MAX),
        frame_max=str(FRAME_MAX),
        max_message_size=str(MESSAGE_MAX),
        handshake_timeout_ms=str(HANDSHAKE_MS),
    ) as process:
        declare(process, "q", durable=False)
        process.http("GET", "/api/tallymark/overview")  # whatever is made once is made now
        yield process


@pytest.fixture
def broker(shared: BrokerProcess) -> Iterator[BrokerProcess]:
    """Whatever the test did, no client, channel or descriptor of it stays."""
    until(lambda: open_connections(shared) == 0)
    before = open_files(shared)
    yield shared
    Bare.drop_all()
    until(lambda: (open_connections(shared), sessions(shared)) == (0, 0))
    until(lambda: open_files(shared) <= before)


def greeted(broker: BrokerProcess, heartbeat: int = 0) -> Bare:
    """A connection within all limits."""
    link = Bare(broker.amqp_port, frame_max=FRAME_MAX)
    link.greet(tune_ok(CHANNEL_MAX, FRAME_MAX, heartbeat))
    return link


@pytest.mark.parametrize(
    ("tuned", "text"),
    [
        (tune_ok(CHANNEL_MAX + 1, FRAME_MAX), "channel_max = 6 is higher than the maximum"),
        (tune_ok(0, FRAME_MAX), "channel_max = 0 is higher than the maximum allowed value (5)"),
        (tune_ok(CHANNEL_MAX, FRAME_MAX + 1), "frame_max = 8193 is higher than the maximum"),
        (tune_ok(CHANNEL_MAX, 0), "frame_max = 0 is higher than the maximum"),
        (tune_ok(CHANNEL_MAX, 4095), "frame_max = 4095 is lower than the minimum"),
    ],
)
def test_more_than_was_proposed_is_530(broker: BrokerProcess, tuned: bytes, text: str) -> None:
    link = Bare(broker.amqp_port)
    with pytest.raises(ClosedByBroker, match=r"^530 NOT_ALLOWED - negotiated") as closed:
        link.greet(tuned)
    assert text in str(closed.value)


def test_a_channel_number_beyond_channel_max_is_504(broker: BrokerProcess) -> None:
    link = greeted(broker)
    for number in range(1, CHANNEL_MAX + 1):
        link.open_channel(number)
    with pytest.raises(ClosedByBroker, match=r"^504 CHANNEL_ERROR - channel number 6 is greater"):
        link.open_channel(CHANNEL_MAX + 1)


def test_a_frame_beyond_frame_max_is_501(broker: BrokerProcess) -> None:
    link = greeted(broker)
    link.open_channel(1)
    link.socket.sendall(publish(1, "", "q", PERSISTENT, bytes(FRAME_MAX + 1), 2 * FRAME_MAX))
    assert link.last_words().startswith("501 FRAME_ERROR")


def test_a_message_too_large_is_406_and_the_connection_stays(broker: BrokerProcess) -> None:
    link = greeted(broker)
    link.open_channel(1)
    link.open_channel(2, confirms=True)
    link.socket.sendall(publish(1, "", "q", PERSISTENT, bytes(MESSAGE_MAX + 1), FRAME_MAX))
    refused = link.why_channel_closed()
    assert refused.startswith("406 PRECONDITION_FAILED - message size 20001 is larger than")
    link.socket.sendall(publish(2, "", "q", PERSISTENT, bytes(MESSAGE_MAX), FRAME_MAX))
    link.wait(ACK)
    link.open_channel(1)
    assert sessions(broker) == 2
    link.close()


def test_small_message_limits_leave_room_for_many_channels_at_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", max_message_size="100") as broker:
        declare(broker, "q", durable=False)
        link = Bare(broker.amqp_port)
        link.greet(tune_ok())
        link.open_channel(500)
        link.socket.sendall(publish(500, "", "q", PERSISTENT, bytes(101)))
        assert "size 101 is larger than configured max size 100" in link.why_channel_closed()
        channels = range(1, 201)
        for number in channels:
            link.open_channel(number, confirms=True)
        bodies = {number: b"%08d" % number + bytes(92) for number in channels}
        whole = {n: publish(n, "", "q", PERSISTENT, body, 68) for n, body in bodies.items()}
        assert len({len(data) for data in whole.values()}) == 1
        for at, end in pairwise([0, *frame_ends(whole[1])]):
            link.socket.sendall(b"".join(whole[number][at:end] for number in channels))
        for _ in channels:
            link.wait(ACK)
        link.consume(1, "q", no_ack=True)
        found: list[bytes] = []
        while len(found) < len(channels):
            found += [event[4] for event in link.events() if event[0] == DELIVER]
            assert len(found) == len(channels) or link.fill()
        assert found == list(bodies.values())
        link.close()


def frame_ends(data: bytes) -> list[int]:
    ends, at = [], 0
    while at < len(data):
        at += 8 + int.from_bytes(data[at + 3 : at + 7], "big")
        ends.append(at)
    return ends


def test_max_connections_counts_those_in_their_handshake_too(broker: BrokerProcess) -> None:
    held = [greeted(broker) for _ in range(CONNECTIONS - 1)]
    half = Bare(broker.amqp_port)
    half.socket.sendall(b"AMQP\0\0\x09\x01")
    half.wait((10, 10))
    for _ in range(3):
        assert Bare(broker.amqp_port).is_closed()
    half.drop()
    until(lambda: open_connections(broker) < CONNECTIONS)
    held.append(greeted(broker))
    assert Bare(broker.amqp_port).is_closed()
    for link in held:
        link.drop()


@pytest.mark.parametrize(
    "sent", [b"", b"AM", HANDSHAKE, HANDSHAKE + TUNED, b"AMQP\0\0\x09\x01"],
    ids=["nothing", "half-header", "no-tune-ok", "no-open", "header"],
)  # fmt: skip
def test_a_handshake_that_stops_is_closed_in_time(broker: BrokerProcess, sent: bytes) -> None:
    link = Bare(broker.amqp_port)
    link.socket.sendall(sent)
    assert link.is_closed()


def test_a_handshake_that_drips_is_closed_in_time(broker: BrokerProcess) -> None:
    began = time.monotonic()
    link = Bare(broker.amqp_port)
    sent = 0
    try:
        for byte in HANDSHAKE + TUNED:
            link.socket.sendall(bytes([byte]))
            sent += 1
            readable, _, _ = select.select([link.socket], [], [], 0.05)
            if readable and not link.fill():
                break
    except ConnectionError:
        pass
    assert sent < len(HANDSHAKE + TUNED)
    assert time.monotonic() - began >= HANDSHAKE_MS / 1000


def test_a_client_that_stops_sending_is_closed_and_its_messages_return(
    broker: BrokerProcess,
) -> None:
    link = greeted(broker, heartbeat=1)
    link.open_channel(1, confirms=True)
    link.socket.sendall(publish(1, "", "q", PERSISTENT, b"held"))
    link.wait(ACK)
    link.open_channel(2)
    link.consume(2, "q")
    link.wait(DELIVER)
    assert broker.queues()["q"]["acquired"] > 0
    assert link.is_closed()
    until(lambda: broker.queues()["q"]["acquired"] == 0)


def test_a_client_that_stops_reading_is_closed_though_output_waits(broker: BrokerProcess) -> None:
    """What was to be written to it can never be: it must not keep the connection."""
    source = greeted(broker)
    source.open_channel(1, confirms=True)
    for _ in range(400):
        source.socket.sendall(publish(1, "", "q", PERSISTENT, bytes(MESSAGE_MAX), FRAME_MAX))
    until(lambda: broker.queues()["q"]["ready"] >= 400, source.fill, source.events)
    source.drop()
    deaf = greeted(broker, heartbeat=1)
    deaf.open_channel(1)
    deaf.consume(1, "q")
    states: set[str] = set()

    def look() -> None:
        rows = broker.http("GET", "/api/tallymark/connections")[1]["connections"]
        states.update(row["state"] for row in rows)

    until(lambda: "slow" in states, look)
    until(lambda: open_connections(broker) == 0)
    assert broker.queues()["q"]["ready"] >= 400

    purge = greeted(broker)
    purge.open_channel(1)
    purge.call(1, (50, 30), b"\0\0\1q\0")
    purge.close()


def garbage(chance: random.Random, link: Bare) -> None:
    """Bytes nobody should send, at every stage of a connection."""
    noise = chance.randbytes(chance.choice([7, 100, 5_000, 60_000]))
    stage = chance.randrange(5)
    starts = [b"", b"AMQP\0\0\x09\x01", HANDSHAKE]
    if stage < 3:
        link.socket.sendall(starts[stage] + noise)
        return
    link.greet(TUNED)
    link.open_channel(1)
    if stage == 3:
        link.socket.sendall(noise)
    else:  # half of a message, then silence
        half = publish(1, "", "q", PERSISTENT, bytes(MESSAGE_MAX), FRAME_MAX)
        link.socket.sendall(half[: chance.randrange(len(half))])


def test_garbage_ends_its_connection_and_leaves_nothing(broker: BrokerProcess) -> None:
    chance = random.Random(20261120)

    def round_of(count: int) -> float:
        for _ in range(count // (CONNECTIONS - 2)):
            links = [Bare(broker.amqp_port) for _ in range(CONNECTIONS - 2)]
            for link in links:
                with suppress(ConnectionError, ClosedByBroker):  # before all was sent
                    garbage(chance, link)
            for link in links:
                link.drop()
            until(lambda: open_connections(broker) == 0)
        return resident_mib(broker)

    before = round_of(150)
    assert round_of(300) - before < 4
    assert "connection.broken" not in broker.log()
    greeted(broker).close()


def test_garbage_is_closed_by_the_broker_itself(broker: BrokerProcess) -> None:
    links = [Bare(broker.amqp_port) for _ in range(6)]
    for link, start in zip(links, [b"", b"AMQP\0\0\x09\x01", HANDSHAKE] * 2, strict=True):
        link.socket.sendall(start + b"\xff" * 9_000)
    loose = greeted(broker)
    loose.socket.sendall(b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x0a!")  # no frame end
    assert loose.last_words().startswith("501 FRAME_ERROR")
    assert all(link.is_closed() for link in (*links, loose))


def test_the_whole_of_http_needs_a_login(broker: BrokerProcess) -> None:
    node: Any = SimpleNamespace(broker=None, config=Config(), users=None)
    routes = HttpServer(cast(Any, node))._listener.app.router.routes()
    paths = {(route.method, route.resource.canonical) for route in routes if route.resource}
    assert len(paths) > 15
    for method, path in sorted(paths):
        for user in (None, "guest:wrong"):
            status, answer = broker.http(method, path.format_map(Anything()), user=user)
            if path in ("/healthz", "/readyz"):  # asked by what starts and stops the broker
                assert status == 200
            elif path.startswith("/ui/"):  # none of the page's; those are in tests/page/
                assert status == 404
            else:
                assert status == 401, (method, path)
                assert method == "HEAD" or answer["error"] == "not_authorized"
    assert broker.http("GET", "/api/no-such-thing", user=None)[0] == 401


class Anything(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "q"
