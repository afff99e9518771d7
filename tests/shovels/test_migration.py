"""A live migration from RabbitMQ, step by step as docs/migration.md has it: publishers and
consumers never stop, and are moved one by one."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from typer.testing import CliRunner

from tallymark.cli.app import build
from tallymark.client import connect
from tests.support.long import long
from tests.support.patience import until, until_on_loop
from tests.support.ports import reserved
from tests.support.process import BrokerProcess
from tests.support.rabbitmq import RabbitProcess, find_rabbitmq, wait_for_listener

QUEUES = ("orders.new", "orders.paid")
LEAST = 2_000
"""Messages of each publisher before the migration may end."""


class Publisher:
    """A program that publishes with confirms to a topic exchange until it is told to stop, wherever
    it is told to."""

    def __init__(self, name: str, key: str) -> None:
        self.name = name
        self.key = key
        self.count = 0
        self.has_moved = asyncio.Event()
        self.has_ended = asyncio.Event()

    async def run(self, old: str, new: str) -> None:
        await self._publish(old, self.has_moved)
        await self._publish(new, self.has_ended)

    async def _publish(self, url: str, end: asyncio.Event) -> None:
        async with (
            connect(url) as connection,
            connection.session() as session,
            session.sender(f"/exchanges/orders/{self.key}") as sender,
        ):
            while not end.is_set():
                await sender.send(f"{self.name}-{self.count}".encode())
                self.count += 1


class Consumer:
    """A program that consumes a queue until it is told to stop, wherever it is told to."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.found: Counter[str] = Counter()
        self.has_moved = asyncio.Event()
        self.has_ended = asyncio.Event()

    async def run(self, old: str, new: str) -> None:
        await self._consume(old, self.has_moved)
        await self._consume(new, self.has_ended)

    async def _consume(self, url: str, end: asyncio.Event) -> None:
        async with (
            connect(url) as connection,
            connection.session() as session,
            session.receiver(f"/queues/{self.queue}", credit=50) as receiver,
        ):
            while not end.is_set():
                batch = await receiver.receive_batch(50, 0.1)
                self.found.update(bytes(message.body).decode() for message in batch)
                await receiver.settle_many(batch, "accept")


def ask(port: int, method: str, path: str, value: object) -> None:
    request = Request(f"http://127.0.0.1:{port}{path}", json.dumps(value).encode(), method=method)
    request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
    request.add_header("Content-Type", "application/json")
    urlopen(request).close()


def set_up(port: int) -> None:
    """What runs on RabbitMQ: a topic exchange with two queues, a policy, a user."""
    ask(port, "PUT", "/api/exchanges/%2F/orders", {"type": "topic", "durable": True})
    for queue in QUEUES:
        ask(port, "PUT", f"/api/queues/%2F/{queue}", {"durable": True})
        key = queue.partition(".")[2]
        ask(port, "POST", f"/api/bindings/%2F/e/orders/q/{queue}", {"routing_key": f"{key}.#"})
    policy = {"pattern": "^orders", "definition": {"max-length": 1_000_000}, "apply-to": "queues"}
    ask(port, "PUT", "/api/policies/%2F/bounded", policy)
    ask(port, "PUT", "/api/users/shop", {"password": "shop", "tags": ""})
    rights = {"configure": "", "write": "orders", "read": "orders.*"}
    ask(port, "PUT", "/api/permissions/%2F/shop", rights)


def shovels_of(rabbit: str, here: str) -> str:
    lines: list[str] = []
    for queue in QUEUES:
        table = {"name": queue, "from": rabbit, "queue": queue, "to": here}
        lines += ["[[shovels]]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


async def migrate(
    rabbit: RabbitProcess, target: BrokerProcess, config: Path
) -> tuple[list[Publisher], list[Consumer]]:
    old = f"amqp091://guest:guest@127.0.0.1:{rabbit.port}"
    new = f"amqp091://shop:shop@127.0.0.1:{target.amqp_port}"
    publishers = [Publisher("a", "new.x"), Publisher("b", "new.y"), Publisher("c", "paid.x")]
    consumers = [Consumer(queue) for queue in QUEUES]
    tasks = [asyncio.create_task(one.run(old, new)) for one in (*publishers, *consumers)]

    def reload(text: str) -> None:
        config.write_text(text)
        target.http("POST", "/api/tallymark/config/reload")

    for consumer in consumers:
        await until_on_loop(lambda one=consumer: one.found.total() > 200)  # type: ignore[misc]
    here = f"http://guest:guest@127.0.0.1:{target.http_port}"
    reload(shovels_of(old, here))
    for consumer in consumers:  # each goes on with what the shovel brings
        at = consumer.found.total()
        consumer.has_moved.set()
        await until_on_loop(lambda one=consumer, at=at: one.found.total() > at + 500)  # type: ignore[misc]
    for publisher in publishers:
        publisher.has_moved.set()
    for publisher in publishers:
        await until_on_loop(lambda one=publisher: one.count > LEAST)  # type: ignore[misc]
        publisher.has_ended.set()
    await asyncio.gather(*tasks[: len(publishers)])
    total = sum(publisher.count for publisher in publishers)
    await until_on_loop(lambda: sum(len(consumer.found) for consumer in consumers) == total)
    reload("")
    for consumer in consumers:
        consumer.has_ended.set()
    await asyncio.gather(*tasks)
    return publishers, consumers


@long(ci=False)
def test_publishers_and_consumers_are_moved_one_by_one(tmp_path: Path) -> None:
    script = find_rabbitmq()
    if script is None:
        pytest.skip("RabbitMQ is not installed: apt-get install rabbitmq-server")
    config = tmp_path / "tallymark.toml"
    config.write_text("")
    http = reserved()
    settings = (f"management.tcp.port = {http}", "management.tcp.ip = 127.0.0.1")
    plugins = ("rabbitmq_management",)
    target = BrokerProcess(tmp_path / "target", config=str(config))
    with RabbitProcess(script, tmp_path / "rabbit", plugins, settings) as rabbit, target:
        wait_for_listener(http, rabbit.process)
        set_up(http)
        here = f"http://guest:guest@127.0.0.1:{target.http_port}"
        words = ["--definitions", "--from", f"http://guest:guest@127.0.0.1:{http}", "--to", here]
        done = CliRunner().invoke(build(), ["move", *words])
        assert done.exit_code == 0, done.output
        publishers, consumers = asyncio.run(migrate(rabbit, target, config))
        until(lambda: not target.http("GET", "/api/tallymark/shovels")[1]["shovels"])
    expected = Counter(f"{one.name}-{i}" for one in publishers for i in range(one.count))
    found = consumers[0].found + consumers[1].found
    assert found == expected
    print(f"{expected.total()} messages, each once, while all programs were moved")
