"""Archives of streams over HTTP: what is answered, what it needs, and that it outlives a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pika
import pytest

from tallymark.server.http.archives import Archiving
from tests.support.engine_rig import Rig
from tests.support.process import BrokerProcess

LOG = "/api/tallymark/streams/%2F/log"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        yield running


def fill(broker: BrokerProcess, count: int) -> int:
    """Publish to the stream; its id."""
    parameters = pika.ConnectionParameters(port=broker.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_declare("plain", durable=True)
        channel.confirm_delivery()
        for number in range(count):
            channel.basic_publish("", "log", b"%d" % number)
    _, stat = broker.http("GET", LOG)
    return int(stat["id"])


def archived(id: int, low: int, high: int, **more: Any) -> dict[str, Any]:
    said = {"rows": high - low, "archive": "a", "checksum": "c", "place": "/lake/log"}
    return {"from": low, "to": high, "id": id, **said, **more}


def test_a_record_outlives_a_crash_and_lets_a_part_go(broker: BrokerProcess) -> None:
    id = fill(broker, 20)
    assert broker.http("GET", LOG + "/archive")[1] == {"id": id, "first": 0, "archived": None}
    assert broker.http("POST", LOG + "/release", {"to": 1, "id": id})[0] == 400
    status, answer = broker.http("POST", LOG + "/archive", archived(id, 0, 8))
    assert (status, answer["recorded"]) == (200, True)
    broker.kill()
    broker.restart()
    status, answer = broker.http("POST", LOG + "/archive", archived(id, 0, 8))
    assert (status, answer["recorded"]) == (200, False)
    assert answer["archived"] == {
        "from": 0, "to": 8, "rows": 8, "archive": "a", "checksum": "c", "place": "/lake/log",
    }  # fmt: skip
    status, answer = broker.http("POST", LOG + "/release", {"to": 9, "id": id})
    assert (status, "archived are those below 8" in answer["reason"]) == (400, True)
    for _ in range(2):
        status, answer = broker.http("POST", LOG + "/release", {"to": 8, "id": id})
        assert (status, answer["first"]) == (200, 8)
        broker.kill()
        broker.restart()
    _, stat = broker.http("GET", LOG)
    assert (stat["first"], stat["next"], stat["messages"]) == (8, 20, 12)
    assert broker.queues()["log"]["dropped"] == {"archived": 8}
    assert broker.http_bytes("GET", LOG + "/read?from=7&to=9")[0] == 410
    assert broker.http_bytes("GET", LOG + "/read?from=8&to=9")[0] == 200
    body = archived(id, 8, 20, archive="b")
    assert broker.http("POST", LOG + "/archive", body)[0] == 409
    assert broker.http("POST", LOG + "/archive", archived(id, 9, 20))[0] == 400
    assert broker.http("POST", LOG + "/archive", archived(id + 1, 8, 20))[0] == 409
    assert broker.http("POST", LOG + "/archive", archived(id, 8, 20, checksum=""))[0] == 400
    assert broker.http("GET", "/api/tallymark/streams/%2F/plain/archive")[0] == 400
    assert broker.http("GET", "/api/tallymark/streams/%2F/nothing/archive")[0] == 404


def test_who_may_only_read_may_look_and_let_nothing_go(broker: BrokerProcess) -> None:
    id = fill(broker, 3)
    for name, configure, read in (("reader", "", ".*"), ("maker", ".*", "")):
        user = {"password": "pw", "tags": ""}
        assert broker.http("PUT", f"/api/users/{name}", user)[0] == 201
        permissions = {"configure": configure, "write": "", "read": read}
        assert broker.http("PUT", f"/api/permissions/%2F/{name}", permissions)[0] == 201
    assert broker.http("GET", LOG + "/archive", user="reader:pw")[0] == 200
    for name in ("reader", "maker"):
        body: dict[str, Any] = archived(id, 0, 3)
        assert broker.http("POST", LOG + "/archive", body, user=f"{name}:pw")[0] == 403
        body = {"to": 0, "id": id}
        assert broker.http("POST", LOG + "/release", body, user=f"{name}:pw")[0] == 403
    assert broker.http("GET", LOG + "/archive")[1]["archived"] is None


def test_a_look_is_answered_when_what_it_shows_is_on_disk() -> None:
    """World 8300032: it showed a range whose record was not on disk, and a kill took it back."""
    rig = Rig()
    queue = rig.declare("log", {"queue-type": "stream"})
    steps: list[str] = []

    async def durable() -> None:
        steps.append("on disk")

    node = SimpleNamespace(durable=durable)
    http: Any = SimpleNamespace(node=node, queue=lambda request: queue)
    look = Archiving(http)._show
    request: Any = None
    answered = asyncio.run(look(request)).text or ""
    assert steps == ["on disk"]
    assert '"archived":null' in answered
