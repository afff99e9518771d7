"""Publish rates per user and virtual host: every protocol rests, and refuses nothing.

No test asks how fast anything is: a rate of 0 holds a publisher until the limit changes, and a rate
of n gives a shortest time, which a busy machine only makes longer.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tallymark.engine.quotas import MAX_PUBLISH_RATE
from tallymark.server import run
from tests.server.faces import CREDENTIALS, FACES, USER, provide
from tests.server.inside import with_broker
from tests.server.management import FULL, call, connect, done, get
from tests.server.test_sinks_http import frames
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess

Publish = Callable[[], bool]
OPERATIONS = {
    "AMQP 0-9-1": "publish", "AMQP 1.0": "publish", "HTTP": "publish", "NSQ": "PUB",
    "NSQ over HTTP": "/pub",
}  # fmt: skip
PUBLISHERS = [*OPERATIONS, "a transaction", "a sink"]
LIMITS = ("user-limits/ann", "vhost-limits/%2F")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("rate") / "data") as running:
        done(running, "PUT", f"users/{USER}", {"password": USER, "tags": "management"})
        done(running, "PUT", f"permissions/%2F/{USER}", FULL)
        done(running, "PUT", "users/bob", {"password": "bob", "tags": ""})
        done(running, "PUT", "permissions/%2F/bob", FULL)
        provide(running)
        yield running


@pytest.fixture(autouse=True)
def _without_limits(broker: BrokerProcess) -> Iterator[None]:
    yield
    for of in LIMITS:
        done(broker, "DELETE", f"{of}/max-publish-rate")


@pytest.fixture(params=PUBLISHERS)
def publish(request: pytest.FixtureRequest, broker: BrokerProcess) -> Iterator[Publish]:
    """Publish one message as ann, and wait until it is confirmed."""
    name = request.param
    if name == "a sink":
        yield a_sink(broker)
        return
    face = FACES["AMQP 0-9-1" if name == "a transaction" else name](broker)
    operation = OPERATIONS.get(name, "publish in a transaction")
    yield lambda: face.do(operation, "mine")
    face.close()


def a_sink(broker: BrokerProcess) -> Publish:
    path = "/api/tallymark/sinks/%2F/rate"
    batches = iter(range(time.monotonic_ns(), 1 << 63))

    def publish() -> bool:
        status, answer = broker.http_bytes(
            "POST", f"{path}/stage?count=1", frames("mine.q", b"m"), CREDENTIALS
        )
        assert status == 200, answer
        body = {
            "identity": "me",
            "batch": next(batches),
            "staging": [json.loads(answer)["staging"]],
        }
        status, answer = broker.http_bytes("POST", f"{path}/commit", body, CREDENTIALS)
        assert status in (200, 503), answer
        return status == 200

    return publish


def limit(broker: BrokerProcess, of: str, rate: int) -> None:
    done(broker, "PUT", f"{of}/max-publish-rate", {"value": rate})


@pytest.mark.parametrize("of", LIMITS)
def test_no_more_than_the_rate(broker: BrokerProcess, publish: Publish, of: str) -> None:
    assert publish()
    limit(broker, of, 20)
    began = time.monotonic()
    for _ in range(42):
        assert publish(), "nothing is refused"
    assert time.monotonic() - began >= 1, "20 at once, and 20 a second"


@pytest.mark.parametrize("of", LIMITS)
def test_who_rests_goes_on_when_the_limit_goes(
    broker: BrokerProcess, publish: Publish, of: str
) -> None:
    assert publish()
    limit(broker, of, 1)
    with ThreadPoolExecutor(1) as pool:
        assert publish()
        many = 30  # half a minute's worth
        resting: Future[list[bool]] = pool.submit(lambda: [publish() for _ in range(many)])
        if of == LIMITS[0]:
            with connect(broker, "bob") as other:
                channel = other.channel()
                channel.confirm_delivery()
                for _ in range(3 * many):
                    channel.basic_publish("", "other.q", b"x")
            assert not resting.done(), "another user is not held"
        done(broker, "DELETE", f"{of}/max-publish-rate")
        resting.result(PATIENCE_S)


def test_a_resting_connection_is_shown_and_heartbeats_go_on(broker: BrokerProcess) -> None:
    limit(broker, LIMITS[0], 0)
    with connect(broker, USER, heartbeat=1) as connection:
        channel = connection.channel()
        channel.basic_publish("", "mine.q", b"x")

        def listen() -> None:
            connection.process_data_events(0.05)

        until(lambda: [row["state"] for row in get(broker, "connections")] == ["flow"], listen)
        checker = connection._impl._heartbeat_checker
        heard = checker._heartbeat_frames_received
        until(lambda: checker._heartbeat_frames_received >= heard + 3, listen)
        done(broker, "DELETE", f"{LIMITS[0]}/max-publish-rate")
        assert channel.queue_declare("mine.q", passive=True).method.queue == "mine.q"
        until(lambda: [row["state"] for row in get(broker, "connections")] == ["running"])


def test_a_request_that_would_wait_for_long_is_told_to_come_again(broker: BrokerProcess) -> None:
    limit(broker, LIMITS[0], 0)
    message = {
        "properties": {},
        "routing_key": "mine.q",
        "payload": "m",
        "payload_encoding": "string",
    }
    path = "exchanges/%2F/amq.default/publish"
    status, _, found = call(broker, "POST", path, message, user=CREDENTIALS)
    assert (status, found["error"]) == (503, "blocked")
    assert "publish rate of user 'ann' or virtual host '/'" in found["reason"]
    assert call(broker, "POST", path, message)[0] == 200, "guest has no such limit"


def test_connections_of_one_user_share_its_rate(broker: BrokerProcess) -> None:
    limit(broker, LIMITS[0], 20)
    faces = [FACES[name](broker) for name in ("AMQP 0-9-1", "AMQP 1.0", "NSQ")]
    began = time.monotonic()
    threads = [
        threading.Thread(target=lambda f=face, o=op: [f.do(o, "mine") for _ in range(17)])
        for face, op in zip(faces, ("publish", "publish", "PUB"), strict=True)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert time.monotonic() - began >= 1, "51 of them: 20 at once, three may be read meanwhile"
    for face in faces:
        face.close()


def test_a_request_that_waited_sees_the_time_of_now(tmp_path: Path) -> None:
    """A broker that is idle has no turn meanwhile: the time it was asked at was taken for the time
    it is, so that it went on waiting."""
    (tmp_path / "data").mkdir()
    waited_ms: list[int] = []

    async def play(ports: dict[str, int], node: run.Node) -> None:
        node.broker.quotas.limit({"/": {MAX_PUBLISH_RATE: 10}}, {})
        await node.durable()
        await asyncio.to_thread(until, lambda: node.journal.is_anchored)
        node.tell_time()
        began_ms = node.broker.clock.now_ms
        node.pacer.published_over_http("/", "", 11)
        await node.pacer.turn("/", "")
        waited_ms.append(node.broker.clock.now_ms - began_ms)

    with asyncio.Runner(loop_factory=run._loop_factory()) as runner:
        runner.run(with_broker(tmp_path / "data", play))
    assert waited_ms[0] >= 100


def test_what_a_request_declares_is_of_the_time_its_body_came(tmp_path: Path) -> None:
    """The broker is idle while a body is on its way: a queue was taken for one that nobody had used
    since the header came, and expired at once."""
    (tmp_path / "data").mkdir()
    body = json.dumps({"arguments": {"x-expires": 60_000}}).encode()
    head = (
        b"PUT /api/queues/%2F/late HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Authorization: Basic " + base64.b64encode(b"guest:guest") + b"\r\n"
        b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n"
    )
    used_ms: list[int] = []

    async def play(ports: dict[str, int], node: run.Node) -> None:
        await node.durable()
        await asyncio.to_thread(until, lambda: node.journal.is_anchored)
        clock = node.broker.clock
        node.tell_time()
        before_ms, began = clock.now_ms, time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", ports["http_port"])
        # A header that came within the same millisecond would be told the same time as before.
        await asyncio.to_thread(until, lambda: time.monotonic() - began >= 0.01)
        writer.write(head)
        await asyncio.to_thread(until, lambda: clock.now_ms > before_ms)
        header_ms, began = clock.now_ms, time.monotonic()
        await asyncio.to_thread(until, lambda: time.monotonic() - began >= 0.1)
        writer.write(body)
        assert b" 201 " in await reader.readline()
        used_ms.append(node.broker.vhost("/").queues["late"].used_ms - header_ms)
        writer.close()

    with asyncio.Runner(loop_factory=run._loop_factory()) as runner:
        runner.run(with_broker(tmp_path / "data", play))
    assert used_ms[0] >= 90
