"""Reads of a standby over a socket, from views of a folder that lags behind its leader's.

The folder is copied by hand here, in place of the tables that a standby follows: so it is known
when it has what.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from aiohttp import ClientSession, web

from tallymark.journal import unpacking
from tallymark.journal.recovery import Opened
from tallymark.server.access.users import Users
from tallymark.server.config.settings import Config
from tallymark.server.http.guard import guard_of
from tallymark.server.http.reads import PAUSE_S, SHARE, ReadRoutes, Reads
from tallymark.server.view import View
from tallymark.stored import layout
from tallymark.stored.records import PAYLOAD
from tests.support.patience import until
from tests.support.process import BrokerProcess

STREAM = "/api/tallymark/streams/%2F/s"
GUEST = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("leader") / "data") as running:
        publish(running, 3)
        yield running


def publish(broker: BrokerProcess, count: int) -> None:
    """Append messages to the stream, and put them into the queue; all is on disk."""
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_declare("q", durable=True)
        for name in ("s", "q"):
            for n in range(count):
                kept = pika.BasicProperties(delivery_mode=2)
                channel.basic_publish("", name, f"{name}{n}".encode(), kept)


class Copy:
    """A folder that has what was copied last, and makes its views at once."""

    def __init__(self, leader: Path, folder: Path) -> None:
        self._leader = leader
        self._opened = Opened(folder)
        self.problem = ""
        self.position = self.cuts = 0
        self.on_view: Callable[[int, View | None], None] = lambda number, view: None
        self._asked = 0
        self.arrives = False
        """Whether what the leader has comes with the next view."""

    @property
    def wanted(self) -> int:
        return self._asked

    @wanted.setter
    def wanted(self, number: int) -> None:
        self._asked = number
        if self.arrives:
            self.take_all()
        self.on_view(number, View(self._opened, self.position, self.cuts))

    def take_all(self) -> None:
        for file in self._leader.iterdir():
            if file.suffix in (".segment", ".ledger", ".checkpoint"):
                shutil.copyfile(file, self._opened.path / file.name)
        self.position += 1

    def close(self) -> None:
        self._opened.release()


def with_standby(
    broker: BrokerProcess, folder: Path, work: Callable[[Copy, Callable[..., Any]], Any]
) -> None:
    """Run `work(copy, ask)` with the routes of a standby on a port; ask(method, path, body) returns
    status and body."""

    async def main() -> None:
        copy = Copy(broker.data_dir, folder)
        app = web.Application()
        routes = ReadRoutes(Reads(copy), Users(folder), guard_of(Config()), app)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]

        async def ask(
            method: str, path: str, body: object = None, headers: dict[str, str] = GUEST
        ) -> tuple[int, Any]:
            async with (
                ClientSession(headers=headers) as session,
                session.request(method, f"http://127.0.0.1:{port}{path}", json=body) as got,
            ):
                data = await got.read()
                is_json = got.content_type == "application/json"
                return got.status, json.loads(data) if is_json else data

        try:
            await work(copy, ask)
        finally:
            routes.close()
            await runner.cleanup()
            copy.close()

    asyncio.run(main())


def bodies(block: bytes) -> list[bytes]:
    """Return the last two bytes of each message's body in an answer."""
    found = []
    at = 0
    while at < len(block):
        header = layout.header_at(block, at)
        assert header is not None
        for row in unpacking.Unpacker({}, True).records(block[at : at + header.length], header):
            payload = row.payload
            if row.kind == PAYLOAD and payload is not None and payload.raw is not None:
                cuts = payload.cuts
                found += [payload.raw[cuts[n] : cuts[n + 1]][-3:-1] for n in range(payload.count)]
        at += header.length
    return found


def test_a_stream_is_read_from_the_standbys_folder(broker: BrokerProcess, tmp_path: Path) -> None:
    async def work(copy: Copy, ask: Callable[..., Any]) -> None:
        copy.take_all()
        status, stat = await ask("GET", STREAM)
        assert (status, stat["first"], stat["next"]) == (200, 0, 3)
        assert (await ask("GET", STREAM, headers={}))[0] == 401
        status, plan = await ask("POST", f"{STREAM}/plans", {"from": 0, "to": 3})
        assert status == 200
        status, block = await ask("GET", f"{STREAM}/read?from=0&to=3&plan={plan['plan']}")
        assert (status, bodies(block)) == (200, [b"s0", b"s1", b"s2"])
        asked = {"streams": [{"vhost": "/", "stream": "s", "at": 1}]}
        assert (await ask("POST", "/api/tallymark/behind", asked))[1]["streams"] == [2]

    with_standby(broker, tmp_path, work)


def test_it_looks_again_before_it_says_no(broker: BrokerProcess, tmp_path: Path) -> None:
    """The folder has nothing yet of what the leader has told this reader of."""

    async def work(copy: Copy, ask: Callable[..., Any]) -> None:
        assert (await ask("GET", STREAM))[0] == 404
        copy.arrives = True
        status, found = await ask("GET", f"{STREAM}/range?from=0&max_rows=2")
        assert (status, found["to"], found["next"]) == (200, 2, 3)
        assert (await ask("GET", f"{STREAM}/read?from=0&to=9"))[0] == 400

    with_standby(broker, tmp_path, work)


def test_a_queue_is_looked_at_and_not_leased(broker: BrokerProcess, tmp_path: Path) -> None:
    async def work(copy: Copy, ask: Callable[..., Any]) -> None:
        copy.take_all()
        status, plan = await ask("POST", "/api/tallymark/browse/%2F/q")
        assert (status, plan["messages"]) == (200, 3)
        read = f"/api/tallymark/browse/plans/{plan['plan']}/read?from=0&to=3"
        status, block = await ask("GET", read)
        assert (status, bodies(block)) == (200, [b"q0", b"q1", b"q2"])
        one = {"vhost": "/", "queue": "q", "subscription": "x", "fence": 1, "at": 0}
        status, said = await ask("POST", "/api/tallymark/behind", {"subscriptions": [one]})
        assert (status, said["reason"]) == (
            503, "this broker stands by: subscriptions are with the leader",
        )  # fmt: skip

    with_standby(broker, tmp_path, work)
    until(lambda: broker.queues()["q"]["ready"] == 3)


def test_a_copy_that_lost_blocks_is_another_one_also_at_the_same_position(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    async def play() -> None:
        copy = Copy(broker.data_dir, tmp_path)
        reads = Reads(copy)
        await reads.fresh()
        first = reads.view
        for cuts, is_new in ((0, False), (1, True)):
            copy.cuts = cuts
            first.made_at -= PAUSE_S + SHARE * first.took_s
            await reads.current()
            await asyncio.sleep(0)
            assert (reads.view is not first) is is_new
        reads.close()
        copy.close()

    asyncio.run(play())
