"""What NSQ's clients rely on beyond single commands: discovery, backoff, RDY shared out over
several brokers, giving up, and an orderly end [NQ-22 to NQ-25]. With pynsq, which does the clients'
half; ours is that what it asks for is what happens.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from tests.interop.nsq_clients import Pynsq, Seen, everything_said, said, with_pynsq
from tests.server.nsqd import channel as channel_row
from tests.support.nsqlookupd import FakeLookupd
from tests.support.process import BrokerProcess


@pytest.fixture(scope="module")
def nsqds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BrokerProcess]]:
    """Two brokers."""
    folder = tmp_path_factory.mktemp("nsq-flow")
    with BrokerProcess(folder / "one") as one, BrokerProcess(folder / "two") as two:
        yield [one, two]


@pytest.fixture
def addresses(nsqds: list[BrokerProcess]) -> list[str]:
    return [f"127.0.0.1:{one.nsq_port}" for one in nsqds]


def test_nq_24_nq_a14_backoff_lets_one_message_at_a_time_through(
    nsqds: list[BrokerProcess], addresses: list[str], name: str
) -> None:
    """Three failures, then successes: RDY 0 to all, RDY 1 to one, and so on until RDY is full
    again. The trace has what was sent and what came, in order."""
    trace, finished = Seen(), Seen()

    async def test(clients: Pynsq) -> None:
        failures = 3

        def handler(message: Any) -> bool:
            nonlocal failures
            trace.add(("message", sources[message.body], message.attempts))
            if reader.backoff_block:
                return False  # on its way when RDY 0 was sent: what becomes of it means nothing
            failures -= 1
            return failures < 0 and finished.add(message.body)

        sources: dict[bytes, str] = {}
        writers = [await clients.writer(address) for address in addresses]
        reader = clients.reader(
            name, handler, max_in_flight=2, requeue_delay=0, max_backoff_duration=2, trace=trace
        )
        await reader.has_subscribed(2)
        for address, writer in zip(addresses, writers, strict=True):
            bodies = [f"{address} {n}".encode() for n in range(20)]
            sources.update(dict.fromkeys(bodies, address))
            assert await said(writer.mpub, name, bodies) == b"OK"
        await finished.count(40)
        await everything_said(reader)

    with_pynsq(test, *addresses)
    assert len(set(finished.all)) == 40
    check_backoff(trace.all, set(addresses))
    for one in nsqds:
        row = channel_row(one.nsq_http_url, name, "c")
        assert (row["depth"], row["in_flight_count"], row["timeout_count"]) == (0, 0, 0)


def check_backoff(trace: list[tuple[str, str, int]], connections: set[str]) -> None:
    starts = [at for at, one in enumerate(trace) if one[0] == "RDY" and one[2] == 0]
    blocks = starts[::2]
    assert len(blocks) == 5, trace  # levels 1, 2 and 3, and 2 and 1 on the way back
    for at in blocks:  # RDY 0 goes to all
        assert {one[1] for one in trace[at : at + 2]} == connections
    for at, after in itertools.pairwise(blocks[1:]):
        inside = trace[at + 2 : after]
        # All that may happen until RDY is 0 again: RDY 1 for one, and its one message.
        assert [one[0] for one in inside] == ["RDY", "message"], inside
        assert inside[0][1] == inside[1][1]
        assert inside[0][2] == 1
    resumed = trace[blocks[-1] + 2 :]
    assert [one[0] for one in resumed[:2]] == ["RDY", "message"]
    assert {one[1:] for one in resumed[2:4]} == {(conn, 1) for conn in connections}


def test_nq_23_rdy_is_shared_out_and_never_exceeded(
    nsqds: list[BrokerProcess], addresses: list[str], name: str
) -> None:
    """More connections than may be in flight: only who has RDY gets messages, and it moves on."""
    at_once: list[int] = []

    async def test(clients: Pynsq) -> None:
        got = Seen()
        held: list[Any] = []

        def handler(message: Any) -> None:
            message.enable_async()
            held.append(message)
            at_once.append(len(held))
            asyncio.get_running_loop().call_soon(finish, message)

        def finish(message: Any) -> None:
            held.remove(message)
            message.finish()
            got.add(message.body)

        for address in addresses:
            writer = await clients.writer(address)
            bodies = [f"{address} {n}".encode() for n in range(10)]
            assert await said(writer.mpub, name, bodies) == b"OK"
        reader = clients.reader(name, handler, max_in_flight=1, low_rdy_idle_timeout=0)
        await reader.has_subscribed(2)
        await got.count(10)
        assert len({body.split()[0] for body in got.all[:10]}) == 1, "only one connection had RDY"
        idle = next(one for one in reader.conns.values() if not one.rdy)
        while not idle.rdy:  # pynsq does so by itself, every 5 s, and picks one at random
            reader._redistribute_rdy_state()
        await got.count(20)
        assert reader.total_rdy <= 1
        await everything_said(reader)

    with_pynsq(test, *addresses)
    assert set(at_once) == {1}
    assert [channel_row(one.nsq_http_url, name, "c")["depth"] for one in nsqds] == [0, 0]


def test_nq_22_a_client_gives_up_after_its_tries(
    nsqds: list[BrokerProcess], addresses: list[str], name: str
) -> None:
    async def test(clients: Pynsq) -> None:
        attempts, given_up = Seen(), Seen()

        def handler(message: Any) -> bool:
            attempts.add(message.attempts)
            return False

        writer = await clients.writer()
        await said(writer.pub, name, b"poison")
        reader = clients.reader(
            name, handler, max_tries=3, requeue_delay=0, max_backoff_duration=0.1
        )
        reader.giving_up = lambda message: given_up.add(message.attempts)
        await given_up.count(1)
        await everything_said(reader)
        assert (attempts.all, given_up.all) == ([1, 2, 3], [4])

    with_pynsq(test, addresses[0])
    row = channel_row(nsqds[0].nsq_http_url, name, "c")
    assert (row["depth"], row["in_flight_count"], row["requeue_count"]) == (0, 0, 3)


def test_a_consumer_finds_the_broker_through_nsqlookupd(tmp_path: Any, name: str) -> None:
    """pynsq asks nsqlookupd over HTTP for the topic's producers and connects to what it is told."""

    async def test() -> None:
        async with FakeLookupd() as lookupd:
            broker = BrokerProcess(
                tmp_path / "data", lookupd=lookupd.address, nsq_broadcast_address="127.0.0.1"
            )
            await asyncio.to_thread(broker.start)
            try:
                await discover(lookupd, broker)
            finally:
                await asyncio.to_thread(broker.stop)

    async def discover(lookupd: FakeLookupd, broker: BrokerProcess) -> None:
        asked = Seen()

        async def lookup(request: web.Request) -> web.Response:
            asked.add(request.query["topic"])
            producers = [
                one.info
                for one in lookupd.producers
                if any(topic == request.query["topic"] for topic, _ in one.registered)
            ]
            return web.Response(text=json.dumps({"channels": [], "producers": producers}))

        app = web.Application()
        app.router.add_get("/lookup", lookup)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        clients = Pynsq()
        try:
            got = Seen()
            writer = await clients.writer(f"127.0.0.1:{broker.nsq_port}")
            assert await said(writer.pub, name, b"found") == b"OK"
            await lookupd.until(lambda: name in lookupd.topics())
            clients.reader(
                name, lambda message: got.add(message.body), nsqd_tcp_addresses=[],
                lookupd_http_addresses=[f"http://127.0.0.1:{runner.addresses[0][1]}"],
            )  # fmt: skip
            await got.count(1)
            assert got.all == [b"found"]
            assert asked.all == [name]
            await lookupd.until(lambda: lookupd.channels(name) == {"c"})
        finally:
            await clients.close()
            await runner.cleanup()

    asyncio.run(test())
