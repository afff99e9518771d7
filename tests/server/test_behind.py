"""POST /api/tallymark/behind: how far several readers are behind, and waiting for any of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import pika
import pytest

from tallymark.server import run
from tallymark.server.http import behind as behind_http
from tests.server.inside import with_broker
from tests.support.patience import PATIENCE_S, until_on_loop
from tests.support.process import BrokerProcess

GUEST = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
PATH = "/api/tallymark/behind"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("behind") / "data") as running:
        yield running


def publish(broker: BrokerProcess, name: str, count: int, **arguments: Any) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.confirm_delivery()
        for number in range(count):
            channel.basic_publish("", name, b"%d" % number)


def attached(broker: BrokerProcess, queue: str, at: int = 0) -> dict[str, Any]:
    status, held = broker.http("POST", f"/api/tallymark/subscriptions/%2F/{queue}/s/attach", {})
    assert status == 200, held
    fence = held["fence"]
    return {"vhost": "/", "queue": queue, "subscription": "s", "fence": fence, "at": at}


def stream(name: str, at: int, id: int = 0) -> dict[str, Any]:
    return {"vhost": "/", "stream": name, "at": at, "id": id}


def behind(broker: BrokerProcess, **wanted: Any) -> tuple[list[int | None], list[int | None]]:
    status, answer = broker.http("POST", PATH, wanted)
    assert status == 200, answer
    return answer["subscriptions"], answer["streams"]


def test_each_reader_is_told_what_it_has_not_planned(broker: BrokerProcess) -> None:
    publish(broker, "a", 5)
    publish(broker, "b", 0)
    publish(broker, "log", 7, **{"x-queue-type": "stream"})
    readers = [attached(broker, "a"), attached(broker, "b")]
    assert behind(broker, subscriptions=readers, streams=[stream("log", 0), stream("log", 5)]) == (
        [5, 0], [7, 2],
    )  # fmt: skip
    assert broker.queues()["a"]["ready"] == 5, "nothing is taken"


def test_what_does_not_exist_is_null(broker: BrokerProcess) -> None:
    publish(broker, "c", 1)
    missing = {**attached(broker, "c"), "subscription": "other"}
    nowhere = {**missing, "queue": "nowhere"}
    assert behind(broker, subscriptions=[missing, nowhere], streams=[stream("none", 0)]) == (
        [None, None], [None],
    )  # fmt: skip


def test_an_earlier_holder_and_another_stream_are_refused(broker: BrokerProcess) -> None:
    publish(broker, "d", 1)
    publish(broker, "log2", 0, **{"x-queue-type": "stream"})
    first = attached(broker, "d")
    attached(broker, "d")
    assert broker.http("POST", PATH, {"subscriptions": [first]})[0] == 409
    assert broker.http("POST", PATH, {"streams": [stream("log2", 0, 999_999)]})[0] == 409
    assert broker.http("POST", PATH, {"subscriptions": 7})[0] == 400


@pytest.mark.parametrize("rows", [1, 4])
def test_it_waits_for_whichever_has_messages(broker: BrokerProcess, rows: int) -> None:
    names = [f"wait{rows}.{which}" for which in ("q", "r", "s")]
    publish(broker, names[0], 0)
    publish(broker, names[1], 0)
    publish(broker, names[2], 0, **{"x-queue-type": "stream"})
    readers = [attached(broker, name) for name in names[:2]]
    asked = {"rows": rows, "wait_ms": 60_000, "streams": [stream(names[2], 0)]}
    with ThreadPoolExecutor(1) as pool:
        for filled in range(3):
            waiting = pool.submit(behind, broker, subscriptions=readers, **asked)
            kind: dict[str, Any] = {"x-queue-type": "stream"} if filled == 2 else {}
            publish(broker, names[filled], rows, **kind)
            told = waiting.result()
            assert rows <= sum(one or 0 for part in told for one in part)
            for name in names[:2]:
                broker.http("DELETE", f"/api/queues/%2F/{name}/contents")


def test_a_wait_ends_with_what_there_is(broker: BrokerProcess) -> None:
    publish(broker, "few", 2)
    assert behind(broker, subscriptions=[attached(broker, "few")], rows=3, wait_ms=1) == ([2], [])
    assert behind(broker, wait_ms=1) == ([], [])


def test_a_wait_ends_when_a_queue_or_stream_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ever_ms = 1_000 * int(PATIENCE_S) * 2
    monkeypatch.setattr(behind_http, "LONGEST_WAIT_MS", ever_ms)

    async def play(ports: dict[str, int], node: run.Node) -> None:
        api = f"http://127.0.0.1:{ports['http_port']}/api/"
        async with aiohttp.ClientSession(headers=GUEST) as session:

            async def call(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
                async with session.request(method, api + path, json=body) as response:
                    assert response.status < 300, await response.text()
                    return await response.json() if response.status == 200 else None

            kind = {"arguments": {"x-queue-type": "stream"}, "durable": True}
            await call("PUT", "queues/%2F/q", {"durable": True})
            await call("PUT", "queues/%2F/log", kind)
            held = await call("POST", "tallymark/subscriptions/%2F/q/s/attach", {})
            reader = {"vhost": "/", "queue": "q", "subscription": "s"}
            wanted = {
                "subscriptions": [{**reader, "fence": held["fence"], "at": 0}],
                "streams": [stream("log", 0), stream("none", 0)],
                "wait_ms": ever_ms,
            }
            for name, told in (("q", [None, 0, None]), ("log", [None, None, None])):
                waiting = asyncio.ensure_future(call("POST", "tallymark/behind", wanted))
                await until_on_loop(lambda: node.polls.streams)
                await call("DELETE", f"queues/%2F/{name}")
                answer = await asyncio.wait_for(waiting, PATIENCE_S)
                assert [*answer["subscriptions"], *answer["streams"]] == told

    asyncio.run(with_broker(tmp_path, play))
