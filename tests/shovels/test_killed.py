"""A shovel from a live broker while both brokers are killed again and again: every confirmed
message arrives; what comes twice is flagged, and between two Tallymarks nothing does.

The kills come at random places of the publisher's progress, and the shovel is not waited for: what
it is doing then is left to the machine. What must hold does not depend on it.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import pytest

from tallymark.client import ClientError, ReceivedMessage, Sender, connect
from tests.support.long import long, seeded
from tests.support.patience import PATIENCE_S, until, until_on_loop
from tests.support.process import BrokerProcess
from tests.support.rabbitmq import RabbitProcess, find_rabbitmq, listens

COUNT = 100_000
KILLS = 10
"""Kills of each of the two brokers."""
BATCH = 100
STRIDE = 1000
QUEUE = "moved"


class Broker(Protocol):
    def kill(self) -> None: ...

    def restart(self) -> object: ...


@dataclass
class Publisher:
    """A program that publishes numbers, no number twice, and publishes on after each break."""

    url: str
    count: int
    confirmed: set[int] = field(default_factory=set)
    last: int = 0
    behind: int = 0
    """Confirmed messages that were still at the source when the shovel was stopped."""
    error: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self.error = error
            raise

    async def _run(self) -> None:
        while len(self.confirmed) < self.count:
            try:
                async with (
                    connect(self.url) as connection,
                    connection.session() as session,
                    session.sender(f"/queues/{QUEUE}") as sender,
                ):
                    await self._publish(sender)
            except ClientError:
                await until_on_loop(lambda: listens(urlsplit(self.url).port or 0))

    async def _publish(self, sender: Sender) -> None:
        while len(self.confirmed) < self.count:
            numbers = range(self.last + 1, self.last + 1 + BATCH)
            self.last += BATCH
            await sender.send_batch([b"%d" % number for number in numbers])
            self.confirmed.update(numbers)


def declare(url: str, arguments: dict[str, object]) -> None:
    async def run() -> None:
        async with connect(url) as connection, connection.session() as session:
            await session.declare_queue(QUEUE, arguments=arguments)

    asyncio.run(run())


def read(url: str, count: int) -> list[tuple[int, bool]]:
    """Read so many numbers with their flags, in their order."""

    async def run() -> list[tuple[int, bool]]:
        found: list[tuple[int, bool]] = []
        async with (
            connect(url) as connection,
            connection.session() as session,
            session.receiver(f"/queues/{QUEUE}", credit=1000) as receiver,
        ):
            while len(found) < count:
                batch = await receiver.receive_batch(min(1000, count - len(found)), PATIENCE_S)
                assert batch, f"{len(found)} of {count}"
                found += [number_of(message) for message in batch]
                await receiver.settle_many(batch, "accept")
        return found

    return asyncio.run(run())


def number_of(message: ReceivedMessage) -> tuple[int, bool]:
    """Of a message: its number, and whether it is flagged as one that may have come before."""
    said: Any = message.annotations["x-shovelled"]
    return int(bytes(message.body)), bool(said[0]["redelivered"])


def shovels(broker: BrokerProcess) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = broker.http("GET", "/api/tallymark/shovels")[1]["shovels"]
    return rows


def ready_at(url: str) -> int:
    """Messages of the queue that are in nobody's hands."""

    async def run() -> int:
        async with connect(url) as connection, connection.session() as session:
            return (await session.queue_state(QUEUE)).message_count

    return asyncio.run(run())


def read_these(url: str, wanted: set[int]) -> None:
    """Read until all that are wanted were there."""
    missing = set(wanted)

    async def run() -> None:
        async with (
            connect(url) as connection,
            connection.session() as session,
            session.receiver(f"/queues/{QUEUE}", credit=1000) as receiver,
        ):
            while missing:
                message = await receiver.receive(PATIENCE_S)
                missing.discard(int(bytes(message.body)))
                await message.accept()

    asyncio.run(run())


def moved_under_kills(
    source: Broker, source_url: str, target: BrokerProcess, config: Path
) -> tuple[Publisher, list[tuple[int, bool]]]:
    """Publish to the source, kill both brokers on the way; return what was confirmed there, and
    what the target has in the end."""
    chosen = random.Random(seeded(22))
    publisher = Publisher(source_url, COUNT)
    thread = threading.Thread(target=publisher.run)
    thread.start()
    kills = sorted((chosen.randrange(COUNT), side) for side in (0, 1) for _ in range(KILLS))
    for at, side in kills:
        until(lambda at=at: len(publisher.confirmed) >= at or publisher.error, what=publisher.error)  # type: ignore[misc]
        broker: Broker = target if side else source
        broker.kill()
        broker.restart()
    thread.join()
    assert publisher.error is None

    for left in (*range(COUNT, 0, -STRIDE), 0):  # each has its own patience
        until(lambda left=left: ready_at(source_url) <= left, what=lambda: shovels(target))  # type: ignore[misc]
    until(lambda: not shovels(target)[0]["in_hand"], what=lambda: shovels(target))
    config.write_text("")
    target.http("POST", "/api/tallymark/config/reload")
    until(lambda: not shovels(target))
    url = f"amqp091://guest:guest@127.0.0.1:{target.amqp_port}"
    found = read(url, ready_at(url))
    behind = publisher.confirmed - {number for number, _ in found}
    read_these(source_url, behind)  # what the shovel had not taken when it was stopped
    publisher.behind = len(behind)
    return publisher, found


def write_config(config: Path, source: str, target: str) -> None:
    table = {"name": "live", "from": source, "queue": QUEUE, "to": target}
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    config.write_text("\n".join(["[[shovels]]", *lines]) + "\n")


def unflagged(found: list[tuple[int, bool]]) -> list[int]:
    """Return the numbers that came again without being flagged."""
    seen: set[int] = set()
    again = []
    for number, flagged in found:
        if number in seen and not flagged:
            again.append(number)
        seen.add(number)
    return again


def told(publisher: Publisher, found: list[tuple[int, bool]]) -> str:
    came = Counter(number for number, _ in found)
    flagged = sum(flag for _, flag in found)
    return (
        f"{len(publisher.confirmed)} confirmed, {len(found)} arrived, "
        f"{len(publisher.confirmed - set(came)) - publisher.behind} lost, "
        f"{len(found) - len(came)} twice, {len(unflagged(found))} of them without a flag, "
        f"{flagged} flagged, {publisher.behind} still at the "
        f"source, {KILLS} kills of each broker"
    )


@long(ci=False)
@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_from_a_live_rabbitmq(tmp_path: Path, kind: str) -> None:
    script = find_rabbitmq()
    if script is None:
        pytest.skip("RabbitMQ is not installed: apt-get install rabbitmq-server")
    config = tmp_path / "tallymark.toml"
    config.write_text("")
    target = BrokerProcess(tmp_path / "target", keeps_ports=True, config=str(config))
    with RabbitProcess(script, tmp_path / "rabbit") as rabbit, target:
        source_url = f"amqp091://guest:guest@127.0.0.1:{rabbit.port}"
        declare(source_url, {"x-queue-type": kind})
        declare(f"amqp091://guest:guest@127.0.0.1:{target.amqp_port}", {})
        write_config(config, source_url, f"http://guest:guest@127.0.0.1:{target.http_port}")
        target.http("POST", "/api/tallymark/config/reload")
        publisher, found = moved_under_kills(rabbit, source_url, target, config)
    print(kind, told(publisher, found))
    if kind == "quorum":  # a classic queue may forget what it has delivered
        assert unflagged(found) == []


@long(ci=False)
def test_between_two_tallymarks(tmp_path: Path) -> None:
    config = tmp_path / "tallymark.toml"
    config.write_text("")
    source = BrokerProcess(tmp_path / "source", keeps_ports=True)
    target = BrokerProcess(tmp_path / "target", keeps_ports=True, config=str(config))
    with source, target:
        source_url = f"amqp091://guest:guest@127.0.0.1:{source.amqp_port}"
        for broker in (source, target):
            declare(f"amqp091://guest:guest@127.0.0.1:{broker.amqp_port}", {})
        ends = [f"http://guest:guest@127.0.0.1:{one.http_port}" for one in (source, target)]
        write_config(config, *ends)
        target.http("POST", "/api/tallymark/config/reload")
        publisher, found = moved_under_kills(source, source_url, target, config)
    print(told(publisher, found))
    numbers = [number for number, _ in found]
    assert len(numbers) == len(set(numbers))
    assert numbers == sorted(numbers)
