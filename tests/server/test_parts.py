"""Long answers of HTTP: what one of them keeps the loop for, however many are asked for."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from bench.lean import PERSISTENT, method, publish, short
from tallymark.server.management import connections
from tallymark.server.management.vhosts import delete_vhost
from tallymark.server.node import Node
from tallymark.server.parts import PART
from tests.server.inside import with_broker
from tests.server.lines import GUEST
from tests.siege.attack import Count, Target, Worker

QUEUES = 5 * PART
ASKERS = 4


async def ask(
    ports: dict[str, int], path: str, method: str = "GET", body: object = None
) -> tuple[int, str]:
    """Status and text of an answer."""
    reader, writer = await begun(ports, path, method, body)
    answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split()[1]), answer.partition("\r\n\r\n")[2]


async def begun(
    ports: dict[str, int], path: str, method: str = "GET", body: object = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request that was sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", ports["http_port"])
    data = "" if body is None else json.dumps(body)
    writer.write(
        f"{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
        f"Authorization: Basic {GUEST.decode()}\r\n"
        f"Content-Length: {len(data)}\r\n\r\n{data}".encode()
    )
    return reader, writer


async def declared(ports: dict[str, int], count: int) -> None:
    queues = [
        {"name": f"q{n:03}", "vhost": "/", "durable": True, "auto_delete": False}
        for n in range(count)
    ]
    assert (await ask(ports, "/api/definitions", "POST", {"queues": queues}))[0] == 204


def target(ports: dict[str, int]) -> Target:
    return Target({"amqp": ports["amqp_port"]}, "guest", "guest", vhost="/")


async def consumed(ports: dict[str, int], count: int) -> Worker:
    """A client with so many consumers of one queue, whose tags begin with "q"."""
    worker = Worker(target(ports), 0, Count())
    line = await worker.opened()
    consume = b"".join(
        method(1, (60, 20), b"\0\0" + short("q000") + short(f"q{n:03}") + b"\0" + bytes(4))
        for n in range(count)
    )
    await line.send(consume + method(1, (50, 10), b"\0\0" + short("done") + bytes(5)))
    await line.until(short("done"))
    return worker


async def steps_until(node: Node, tasks: list[asyncio.Task[tuple[int, str]]]) -> list[int]:
    """Number of parts that each round of the loop made, until all the tasks are done."""
    made: list[int] = []
    while not all(task.done() for task in tasks):
        made.append(node.parts.made)
        await asyncio.sleep(0)
    made.append(node.parts.made)
    return [after - before for before, after in itertools.pairwise(made)]


@pytest.mark.parametrize(
    "path",
    [
        "/metrics/per-object",
        "/api/queues",
        "/api/queues/%2F/q000",
        "/api/exchanges/%2F/amq.default/bindings/source",
        "/api/bindings",
        "/api/consumers",
        "/api/vhosts",
        "/api/tallymark/queues",
        "/api/tallymark/consumers",
    ],
)
def test_a_long_answer_is_made_in_parts_one_in_a_round(tmp_path: Path, path: str) -> None:
    """Four clients ask at once: between two parts, of whichever answer, the loop comes round."""

    async def play(ports: dict[str, int], node: Node) -> None:
        await declared(ports, QUEUES)
        has_consumers = "consumers" in path or path.endswith("q000")
        consumer = await consumed(ports, QUEUES) if has_consumers else None
        before = node.parts.made
        tasks = [asyncio.create_task(ask(ports, path)) for _ in range(ASKERS)]
        steps = await steps_until(node, tasks)
        assert node.parts.made - before == ASKERS * QUEUES // PART
        assert max(steps) == 1
        for task in tasks:
            status, text = task.result()
            assert status == 200
            if path == "/api/vhosts":
                continue
            assert all(f'"q{number:03}"' in text for number in range(QUEUES))
        if consumer is not None:
            consumer.hang_up()

    asyncio.run(with_broker(tmp_path, play))


def definitions(count: int, vhost: str = "/") -> dict[str, list[dict[str, object]]]:
    """So many queues, each with a binding to one exchange."""
    names = [f"q{n:03}" for n in range(count)]
    exchange: dict[str, object] = {"name": "x", "vhost": vhost, "type": "direct", "durable": True}
    return {
        "queues": [{"name": name, "vhost": vhost, "durable": True} for name in names],
        "exchanges": [exchange],
        "bindings": [
            {
                "source": "x", "vhost": vhost, "destination": name, "destination_type": "queue",
                "routing_key": name, "arguments": {},
            }
            for name in names
        ],
    }  # fmt: skip


def test_definitions_are_checked_and_made_in_parts(tmp_path: Path) -> None:
    """20,000 queues and bindings kept the loop for two seconds."""

    async def play(ports: dict[str, int], node: Node) -> None:
        for parts in (2 * (2 * QUEUES // PART + 1), 2 * (2 * QUEUES // PART + 1)):
            before = node.parts.made
            body = definitions(QUEUES)
            tasks = [asyncio.create_task(ask(ports, "/api/definitions", "POST", body))]
            assert max(await steps_until(node, tasks)) == 1
            assert tasks[0].result()[0] == 204
            assert node.parts.made - before == parts
        vhost = node.broker.vhosts["/"]
        assert len(vhost.queues) == QUEUES
        assert len(list(vhost.topology.bindings())) == QUEUES

    asyncio.run(with_broker(tmp_path, play))


@pytest.mark.parametrize(("done", "is_checked"), [(3, False), (3 * QUEUES // PART, True)])
def test_a_virtual_host_that_goes_while_its_definitions_are_made_is_named(
    tmp_path: Path, done: int, is_checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before everything is checked nothing is made, after that all else. done: number of parts
    after which the virtual host goes."""

    async def play(ports: dict[str, int], node: Node) -> None:
        assert (await ask(ports, "/api/vhosts/v", "PUT", {}))[0] == 201
        body = definitions(QUEUES, "v")
        body["queues"].append({"name": "other", "vhost": "/", "durable": True})
        turn, last = node.parts.turn, node.parts.made + done

        async def turn_of_import() -> None:
            await turn()
            if node.parts.made == last:
                delete_vhost(node, "v")

        monkeypatch.setattr(node.parts, "turn", turn_of_import)
        status, text = await ask(ports, "/api/definitions", "POST", body)
        assert status == 400
        assert "vhost 'v'" in json.loads(text)["reason"]
        assert list(node.broker.vhosts) == ["/"]
        assert list(node.broker.vhosts["/"].queues) == ["other"] * is_checked
        assert not node.broker.connections

    asyncio.run(with_broker(tmp_path, play))


@pytest.mark.parametrize("kind", ["subscriptions", "sinks"])
def test_lists_of_subscriptions_and_sinks_are_made_in_parts(tmp_path: Path, kind: str) -> None:
    async def play(ports: dict[str, int], node: Node) -> None:
        await declared(ports, 1)
        names = [f"s{number:03}" for number in range(QUEUES)]
        queue = node.broker.vhost("/").queues["q000"]
        for name in names:
            if kind == "sinks":
                node.broker.publishing.commit_sink("/", name, "mine", 0, [])
            else:
                node.broker.leases.attach(queue, name)
        asked = asyncio.create_task(ask(ports, f"/api/tallymark/{kind}"))
        steps = await steps_until(node, [asked])
        empty = 1 if kind == "sinks" else 0  # the list of stagings, of which there are none
        assert sum(steps) == QUEUES // PART + empty
        assert max(steps) == 1
        status, text = asked.result()
        assert status == 200
        assert [row["name"] for row in json.loads(text)[kind]] == names

    asyncio.run(with_broker(tmp_path, play))


@pytest.mark.parametrize(
    "path",
    [
        "/api/queues/%2F/q000/bindings",
        "/api/exchanges/%2F/amq.topic/bindings/source",
        "/api/exchanges/%2F/x/bindings/destination",
        "/api/bindings/%2F/e/amq.topic/q/q000",
        "/api/bindings/%2F/e/amq.topic/e/x",
        "/api/bindings/%2F/e/amq.topic/q/q000/k249",
    ],
)
def test_the_bindings_of_one_thing_are_shown_in_parts(tmp_path: Path, path: str) -> None:
    kind, name = ("exchange", "x") if "/x" in path else ("queue", "q000")
    bindings = [
        {"vhost": "/", "source": "amq.topic", "destination_type": kind, "destination": name,
         "routing_key": f"k{n:03}", "arguments": {}}
        for n in range(QUEUES)
    ]  # fmt: skip
    exchange = {"name": "x", "vhost": "/", "type": "fanout", "durable": True}

    async def play(ports: dict[str, int], node: Node) -> None:
        await declared(ports, 1)
        value = {"exchanges": [exchange], "bindings": bindings}
        assert (await ask(ports, "/api/definitions", "POST", value))[0] == 204
        before = node.parts.made
        task = asyncio.create_task(ask(ports, path))
        assert max(await steps_until(node, [task])) == 1
        assert node.parts.made - before == QUEUES // PART
        status, text = task.result()
        assert status == 200
        assert '"k249"' in text

    asyncio.run(with_broker(tmp_path, play))


def test_a_channel_is_looked_for_at_its_own_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = []

    def counting(client: connections.Listed) -> list[dict[str, Any]]:
        looked_at.append(client.peer)
        return rows(client)

    rows = connections.channel_rows_of
    monkeypatch.setattr(connections, "channel_rows_of", counting)

    async def play(ports: dict[str, int], node: Node) -> None:
        await declared(ports, 1)
        workers = [await consumed(ports, 1) for _ in range(3)]
        peer = next(iter(node.clients)).peer
        status, text = await ask(ports, f"/api/channels/{quote(peer, safe='')}%20(1)")
        assert (status, json.loads(text)["name"]) == (200, f"{peer} (1)")
        assert [one["consumer_tag"] for one in json.loads(text)["consumer_details"]] == ["q000"]
        assert looked_at == [peer]
        assert (await ask(ports, "/api/channels/none"))[0] == 404
        assert looked_at == [peer]
        for worker in workers:
            worker.hang_up()

    asyncio.run(with_broker(tmp_path, play))


ROUNDS = 300
"""Rounds of the loop in which a server learns that a client has gone."""


@pytest.mark.parametrize("path", ["/api/queues", "/metrics/per-object"])
def test_an_answer_is_not_made_for_somebody_who_has_gone(tmp_path: Path, path: str) -> None:
    parts = 40

    async def play(ports: dict[str, int], node: Node) -> None:
        await declared(ports, parts * PART)
        before = node.parts.made
        _, writer = await begun(ports, path)
        while True:
            await asyncio.sleep(0)
            if node.parts.made > before:
                break
        writer.transport.abort()
        for _ in range(ROUNDS):
            await asyncio.sleep(0)
        assert node.parts.made - before < parts

    asyncio.run(with_broker(tmp_path, play))


def wanted(count: int, mode: str = "ack_requeue_false") -> dict[str, object]:
    return {"count": count, "ackmode": mode, "encoding": "auto"}


async def filled(ports: dict[str, int], count: int, body: bytes) -> None:
    """The queue q000 with so many messages."""
    await declared(ports, 1)
    publisher = Worker(target(ports), 0, Count())
    line = await publisher.opened()
    await line.send(publish(1, "", "q000", PERSISTENT, body) * count)
    await line.send(method(1, (50, 10), b"\0\0" + short("done") + bytes(5)))
    await line.until(short("done"))
    publisher.hang_up()


@pytest.mark.parametrize(
    ("count", "size", "parts"), [(5 * PART, 10, 5), (8, 1 << 20, 8), (PART + 1, 10, 2)]
)
@pytest.mark.parametrize("mode", ["ack_requeue_false", "ack_requeue_true"])
def test_messages_are_got_in_parts(
    tmp_path: Path, count: int, size: int, parts: int, mode: str
) -> None:
    async def play(ports: dict[str, int], node: Node) -> None:
        await filled(ports, count, b"x" * size)
        before = node.parts.made
        task = asyncio.create_task(
            ask(ports, "/api/queues/%2F/q000/get", "POST", wanted(count, mode))
        )
        assert max(await steps_until(node, [task])) == 1
        assert node.parts.made - before == parts
        status, text = task.result()
        assert (status, len(json.loads(text))) == (200, count)
        left = 0 if mode == "ack_requeue_false" else count
        assert node.broker.vhost("/").queues["q000"].ready == left

    asyncio.run(with_broker(tmp_path, play))


def test_what_is_got_by_somebody_who_goes_meanwhile_is_given_back(tmp_path: Path) -> None:
    count = 40 * PART

    async def play(ports: dict[str, int], node: Node) -> None:
        await filled(ports, count, b"x")
        queue = node.broker.vhost("/").queues["q000"]
        _, writer = await begun(ports, "/api/queues/%2F/q000/get", "POST", wanted(count))
        while True:
            await asyncio.sleep(0)
            if queue.acquired:
                break
        writer.transport.abort()
        for _ in range(ROUNDS):
            await asyncio.sleep(0)
        assert (queue.ready, queue.acquired, queue.account.settled) == (count, 0, 0)

    asyncio.run(with_broker(tmp_path, play))
