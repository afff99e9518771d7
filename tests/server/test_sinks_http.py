"""Sinks and verdicts at their HTTP interface, against a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tallymark.wire.amqp091.frames import METHOD, content_frames, frame
from tallymark.wire.amqp091.layouts import encode_method
from tallymark.wire.amqp091.methods import BasicPublish, QueueDeclare
from tallymark.wire.amqp091.properties import Properties, encode_properties
from tests.support.patience import later, until
from tests.support.process import BrokerProcess

SINKS = "/api/tallymark/sinks"
DECLARE = frame(METHOD, 1, encode_method(QueueDeclare("by-the-way")))
SINK = f"{SINKS}/%2F/out"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        declare(running, "a", "b")
        yield running


def connected(broker: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))


def declare(broker: BrokerProcess, *names: str, arguments: dict[str, Any] | None = None) -> None:
    with connected(broker) as connection:
        for name in names:
            connection.channel().queue_declare(name, durable=True, arguments=arguments)


def frames(
    key: str, *bodies: bytes, exchange: str = "", mandatory: bool = True, **more: Any
) -> bytes:
    method = frame(METHOD, 1, encode_method(BasicPublish(exchange, key, mandatory)))
    section = encode_properties(Properties(delivery_mode=2, **more))
    return b"".join(method + content_frames(1, section, body, 131_072) for body in bodies)


def stage(broker: BrokerProcess, data: bytes, count: int, **query: Any) -> tuple[int, Any]:
    more = "".join(f"&{name}={value}" for name, value in query.items() if name != "user")
    user = {"user": query["user"]} if "user" in query else {}
    status, answer = broker.http_bytes("POST", f"{SINK}/stage?count={count}{more}", data, **user)
    return status, json.loads(answer)


def staged(broker: BrokerProcess, *args: Any, count: int = 1, **more: Any) -> int:
    status, answer = stage(broker, frames(*args, **more), count)
    assert status == 200, answer
    return int(answer["staging"])


def commit(broker: BrokerProcess, batch: int, *ids: int, who: str = "me") -> tuple[int, Any]:
    body = {"identity": who, "batch": batch, "staging": list(ids)}
    return broker.http("POST", f"{SINK}/commit", body)


def contents(broker: BrokerProcess, queue: str) -> list[bytes]:
    """Take everything out of a queue."""
    found = []
    with connected(broker) as connection:
        channel = connection.channel()
        while True:
            method, _, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append(body)


def test_a_batch_of_several_tasks_is_published_once(broker: BrokerProcess) -> None:
    first = staged(broker, "a", b"1", b"2", count=2)
    second = staged(broker, "b", b"3", b"x" * 300_000, count=2)
    assert {name: broker.queues()[name]["entered"] for name in "ab"} == {"a": 0, "b": 0}
    done = {"published": 4, "unroutable": 0, "repeated": False}
    assert commit(broker, 3, first, second) == (200, done)
    again = {"published": 0, "unroutable": 0, "repeated": True}
    assert commit(broker, 3, first, second) == (200, again)
    assert contents(broker, "a") == [b"1", b"2"]
    assert contents(broker, "b") == [b"3", b"x" * 300_000]
    status, answer = commit(broker, 2)
    assert (status, answer["error"]) == (409, "fenced")
    assert "batch 2 for sink 'out'" in answer["reason"]
    status, answer = commit(broker, 4, who="other")
    assert status == 409
    assert "has batches of 'me', not of 'other'" in answer["reason"]


def test_the_connection_of_a_request_is_no_news(broker: BrokerProcess) -> None:
    staged(broker, "a", b"1")
    assert broker.stop() == 0
    closed = [line for line in broker.log().splitlines() if "connection.closed" in line]
    assert len(closed) == 1, "of the one that declared the queues"
    assert "http" not in closed[0]


@pytest.mark.parametrize("sync", ["commit", "never"])
def test_what_is_staged_and_what_is_committed_survives_a_kill(tmp_path: Path, sync: str) -> None:
    with BrokerProcess(tmp_path / "data", sync=sync) as broker:
        declare(broker, "a")
        first, second = staged(broker, "a", b"1"), staged(broker, "a", b"2")
        broker.kill()
        broker.restart()
        assert commit(broker, 0, first, second)[0] == 200
        third = staged(broker, "a", b"3")
        broker.kill()
        broker.restart()
        assert commit(broker, 0, first, second)[1]["repeated"]
        assert commit(broker, 1, third)[0] == 200
        assert contents(broker, "a") == [b"1", b"2", b"3"]


def test_a_staging_that_is_refused_is_refused_whole(broker: BrokerProcess) -> None:
    good = frames("a", b"1")
    for data, count, reason in (
        (good + frames("a", b"2", user_id="somebody"), 2, "user_id property set to 'somebody'"),
        (good + frames("a", b"2", expiration="soon"), 2, "invalid expiration 'soon'"),
        (good + frames("k", b"2", exchange="gone"), 2, "no exchange 'gone'"),
        (good, 2, "expected 1, which is how many whole messages"),
        (good + good[:-5], 2, "expected 1, which is how many whole messages"),
        (good + DECLARE, 1, "queue.declare, expected basic.publish"),
        (b"{}", 1, ""),
    ):
        status, answer = stage(broker, data, count)
        assert status in (400, 404), answer
        assert reason in answer["reason"]
    assert broker.http("GET", SINKS)[1]["stagings"] == []
    assert broker.http("GET", "/api/queues/%2F/by-the-way")[0] == 404
    assert stage(broker, b"", 0)[0] == 200, "a task without rows has nothing to hand over"


def test_who_may_publish_may_stage_and_commit(broker: BrokerProcess) -> None:
    broker.http("PUT", "/api/users/writer", {"password": "w", "tags": ""})
    rights = {"configure": "", "write": "^amq.topic$", "read": ""}
    assert broker.http("PUT", "/api/permissions/%2F/writer", rights)[0] in (201, 204)
    who = "writer:w"
    status, answer = stage(broker, frames("a", b"1"), 1, user=who)
    assert (status, answer["error"]) == (403, "access_refused")
    theirs = frames("k", b"1", exchange="amq.topic", mandatory=False)
    status, answer = stage(broker, theirs, 1, user=who)
    assert status == 200, answer
    ours = staged(broker, "a", b"2")
    body = {"identity": "w", "batch": 0, "staging": [answer["staging"], ours]}
    assert broker.http("POST", f"{SINK}/commit", body, user=who)[0] == 403
    assert broker.http("POST", f"{SINK}/abort", {"staging": [ours]}, user=who)[0] == 403
    body["staging"] = [answer["staging"]]
    assert broker.http("POST", f"{SINK}/commit", body, user=who)[1]["unroutable"] == 1
    assert broker.http("DELETE", SINK, user=who)[0] == 403
    assert broker.http("DELETE", SINK) == (200, {"dropped": 0})
    assert broker.http("DELETE", SINK)[0] == 404


@pytest.mark.parametrize(("more", "status"), [(["app.too"], 200), (["app.too", "db"], 403)])
def test_who_commits_may_publish_with_every_routing_key(
    broker: BrokerProcess, more: list[str], status: int
) -> None:
    """Another user may have staged it, and rights may have changed since."""
    rights = {"configure": "", "write": ".*", "read": ""}
    limit = {"exchange": "amq.topic", "write": "^app", "read": ""}
    for path, value in (
        ("users/sam", {"password": "sam", "tags": ""}),
        ("permissions/%2F/sam", rights),
        ("topic-permissions/%2F/sam", limit),
    ):
        assert broker.http("PUT", f"/api/{path}", value)[0] == 201
    theirs = staged(
        broker, "app.a", b"1", exchange="amq.topic", mandatory=False, headers={"CC": more}
    )
    body = {"identity": "sam", "batch": 1, "staging": [theirs]}
    assert broker.http("POST", f"{SINK}/commit", body, user="sam:sam")[0] == status


def test_unused_stagings_are_shown_and_end(broker: BrokerProcess) -> None:
    first, second = staged(broker, "a", b"1"), staged(broker, "a", b"2")
    found = broker.http("GET", SINKS)[1]
    assert [row["messages"] for row in found["stagings"]] == [1, 1]
    overview = broker.http("GET", "/api/tallymark/overview")[1]
    assert (overview["sink_stagings"], overview["sink_staged"]) == (2, 2)
    assert broker.http("POST", f"{SINK}/abort", {"staging": [second]}) == (200, {"dropped": 1})
    assert stage(broker, frames("a", b"3"), 1, expires_ms=1)[0] == 200
    until(lambda: stagings(broker) == [first])
    assert broker.http("POST", f"{SINK}/abort", {"staging": [first, 99]}) == (200, {"dropped": 1})
    assert broker.http("GET", SINKS)[1] == {"sinks": [], "stagings": []}


def stagings(broker: BrokerProcess) -> list[int]:
    return [row["staging"] for row in broker.http("GET", SINKS)[1]["stagings"]]


def test_expiry_priority_and_routes_are_those_of_a_publish(broker: BrokerProcess) -> None:
    declare(broker, "lanes", arguments={"x-max-priority": 9})
    with connected(broker) as connection:
        channel = connection.channel()
        for queue, key in (("a", "k.a"), ("b", "k.b"), ("b", "k.a")):
            channel.queue_bind(queue, "amq.topic", key)
    data = frames("k.a", b"1", exchange="amq.topic") + frames("k.b", b"2", exchange="amq.topic")
    data += frames("lanes", b"low", priority=1) + frames("lanes", b"high", priority=8)
    data += frames("a", b"late", expiration="1")
    status, answer = stage(broker, data, 5)
    assert status == 200, answer
    assert commit(broker, 0, answer["staging"])[1]["published"] == 5
    assert contents(broker, "b") == [b"1", b"2"]
    assert contents(broker, "lanes") == [b"high", b"low"]
    later()
    assert contents(broker, "a") == [b"1"]


def test_messages_arrive_with_the_commit_however_idle_the_broker_was(broker: BrokerProcess) -> None:
    declare(broker, "s", arguments={"x-queue-type": "stream", "x-max-age": "1D"})
    one = staged(broker, "s", b"1")
    before_ms = later()
    later()
    assert commit(broker, 0, one)[0] == 200
    arrived_ms = broker.http("GET", "/api/tallymark/streams/%2F/s")[1]["oldest_ms"]
    assert arrived_ms >= before_ms


def test_verdicts_take_effect_with_the_settlement(broker: BrokerProcess) -> None:
    declare(broker, "q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"})
    assert commit(broker, 0, staged(broker, "q", *(b"%d" % i for i in range(6)), count=6))[0] == 200
    base = "/api/tallymark/subscriptions/%2F/q/s"
    held = broker.http("POST", f"{base}/attach", {})[1]
    which = {"fence": held["fence"], "epoch": held["epoch"]}
    assert broker.http("POST", f"{base}/lease", {**which, "start": 0, "max_rows": 5})[0] == 200

    def judge(*said: tuple[int, int, str], fence: int = held["fence"]) -> tuple[int, Any]:
        return broker.http("POST", f"{base}/verdicts", {"fence": fence, "verdicts": said})

    assert judge((0, 5, "rejected"))[0] == 200
    assert judge((0, 1, "accepted"), (1, 1, "released"), (2, 1, "modified"))[1]["verdicts"] == 4
    status, answer = judge((0, 1, "thrown away"))
    assert status == 400
    assert (
        "outcome 'thrown away' of lease sequence 0, expected one of accepted," in answer["reason"]
    )
    assert judge((4, 2, "rejected"))[0] == 400
    assert judge((0, 1, "rejected"), fence=held["fence"] + 1)[0] == 409
    broker.kill()
    broker.restart()
    assert broker.queues()["q"]["dead_lettered"] == 0
    which["fence"] = broker.http("POST", f"{base}/attach", {})[1]["fence"]
    assert broker.http("POST", f"{base}/settle", {**which, "end": 5})[0] == 200
    broker.kill()
    broker.restart()
    row = broker.queues()["q"]
    assert (row["settled"], row["dead_lettered"], row["ready"]) == (1, 2, 3)
    with connected(broker) as connection:
        _, properties, body = connection.channel().basic_get("b", auto_ack=True)
        assert body == b"3"
        assert properties.headers["x-death"][0]["reason"] == "rejected"
    assert contents(broker, "q") == [b"1", b"2", b"5"]
