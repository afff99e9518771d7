"""Samples of counts, and the rates that are shown of them."""

from __future__ import annotations

import asyncio
import base64
import time
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.server import run
from tallymark.server.sampler import Sampler
from tallymark.server.samples import MOVED, SLOT_MS, Capacity, Ring, Series, total
from tests.server.inside import with_broker
from tests.server.management import connect, done, get, refused
from tests.support.engine_rig import Rig
from tests.support.patience import until, until_on_loop
from tests.support.process import BrokerProcess

GUEST = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}


@given(
    st.lists(st.tuples(st.integers(0, 3), st.tuples(st.integers(0, 3), st.integers(0, 3)))),
    st.integers(2, 6),
)
def test_a_ring_knows_the_counts_at_the_end_of_each_slot(
    steps: list[tuple[int, tuple[int, int]]], most: int
) -> None:
    ring = Ring(most)
    ends: dict[int, tuple[int, ...]] = {}
    slots = list(accumulate((step for step, _ in steps), initial=10))[1:]
    for slot, (_, counts) in zip(slots, steps, strict=True):
        ring.put(slot, counts)
        ends[slot] = counts
    assert len(ring._slots) <= most
    newest = max(ends, default=0)
    for slot in range(min(ends, default=0), newest + 3):
        if ends and slot >= ring._slots[0]:
            known = max(one for one in ends if one <= slot)
            assert tuple(ring.at(slot)) == ends[known], slot


def test_a_ring_gives_up_the_oldest_and_answers_for_it_with_what_is_left() -> None:
    ring = Ring(3)
    for slot in range(1, 8):
        ring.put(slot, (slot * 10,))
    assert [ring.at(slot)[0] for slot in range(1, 9)] == [50, 50, 50, 50, 50, 60, 70, 70]
    assert ring.changed() == 7


def test_a_thing_at_rest_takes_no_room() -> None:
    ring = Ring(5)
    for slot in range(1, 100):
        ring.put(slot, (7, 7))
    assert (len(ring._slots), ring.changed(), tuple(ring.at(99))) == (1, 1, (7, 7))


def test_what_began_here_counted_nothing_before_and_what_was_restored_all_of_it() -> None:
    series: Series[str] = Series(5)
    series.put("new", 4, (3,), began=True)
    series.put("restored", 4, (3,), began=False)
    new, restored = series.at("new"), series.at("restored")
    assert new is not None
    assert restored is not None
    assert (new(3)[0], new(4)[0], restored(3)[0], restored(4)[0]) == (0, 3, 3, 3)
    assert series.at("unknown") is None


def test_the_capacity_of_consumers_is_the_time_in_which_they_could_take_messages() -> None:
    rig, capacity = Rig(), Capacity()
    queue = rig.queue("q")
    assert capacity.of(queue, 1) == 0.0
    consumer = rig.consume(rig.session(), "q", "c")
    consumer.limit = 1
    assert capacity.of(queue, 1) == 1.0
    capacity.look(queue, 1)
    rig.publish(rig.session(), "q", [1, 2])
    rig.settle_down()
    assert capacity.of(queue, 1) == 1.0
    for slot, share in ((2, 0.5), (3, 0.25), (4, 0.125)):
        capacity.look(queue, slot)
        assert capacity.of(queue, slot) == share
    assert capacity.of(queue, 6) == 0.125 / 4, "nothing happened since: it is as it was"
    consumer.limit = 10
    capacity.look(queue, 5)
    assert capacity.of(queue, 5) == 0.125 / 2 + 0.5


def test_what_is_gone_is_forgotten() -> None:
    series: Series[int] = Series(5)
    for key in range(10):
        series.put(key, 1, (key,), began=True)
    gone = series.keep({3, 4})
    assert [key for key, _ in gone] == [0, 1, 2, 5, 6, 7, 8, 9]
    assert sorted(series.rings) == [3, 4]


def test_counts_of_several_things_add_up() -> None:
    one, other = Ring(5), Ring(5)
    one.put(1, (1, 10))
    other.put(2, (2, 20))
    added = total([one.at, None, other.at])
    assert added is not None
    assert added(2) == [3, 30]
    assert total([None]) is None


# -- as they are shown


class Asking:
    """Requests to a broker in this process, whose samples are taken when the test says so."""

    def __init__(self, session: aiohttp.ClientSession, port: int, node: run.Node) -> None:
        self._session = session
        self._url = f"http://127.0.0.1:{port}/api/"
        self._sampler = Sampler(node)
        self.slot = node.broker.clock.now_ms // SLOT_MS

    async def __call__(self, method: str, path: str, body: object = None) -> Any:
        async with self._session.request(method, self._url + path, json=body) as response:
            assert response.status < 300, (path, response.status, await response.text())
            return await response.json() if response.status == 200 else None

    async def publish(self, queue: str, count: int, vhost: str = "%2F") -> None:
        message = {
            "routing_key": queue, "properties": {}, "payload": "x", "payload_encoding": "string",
        }  # fmt: skip
        for _ in range(count):
            await self("POST", f"exchanges/{vhost}/amq.default/publish", message)

    async def take(self, queue: str, count: int) -> None:
        asked = {"count": count, "ackmode": "ack_requeue_false", "encoding": "auto"}
        await self("POST", f"queues/%2F/{queue}/get", asked)

    async def sample(self) -> None:
        """Let a slot end."""
        self.slot += 1
        await self._sampler.sample(self.slot)


def played(folder: Path, play: Any) -> None:
    async def inside(ports: dict[str, int], node: run.Node) -> None:
        async with aiohttp.ClientSession(headers=GUEST) as session:
            await play(Asking(session, ports["http_port"], node))

    asyncio.run(with_broker(folder, inside))


def test_the_rates_of_a_queue(tmp_path: Path) -> None:
    async def play(ask: Asking) -> None:
        await ask("PUT", "queues/%2F/q", {"durable": True})
        assert (await ask("GET", "queues/%2F/q"))["messages_details"] == {"rate": 0.0}
        await ask.sample()
        await ask.publish("q", 10)
        await ask.sample()
        row = await ask("GET", "queues/%2F/q")
        assert row["message_stats"]["publish_details"] == {"rate": 2.0}
        assert row["messages_details"] == row["messages_ready_details"] == {"rate": 2.0}
        assert "idle_since" not in row
        await ask.take("q", 5)
        await ask.sample()
        row = await ask("GET", "queues/%2F/q")
        assert row["message_stats"]["publish_details"] == {"rate": 0.0}
        assert row["message_stats"]["ack_details"] == {"rate": 1.0}
        assert row["messages_details"] == {"rate": -1.0}
        await ask.sample()
        row = await ask("GET", "queues/%2F/q")
        assert row["message_stats"]["ack_details"] == row["messages_details"] == {"rate": 0.0}
        assert row["idle_since"].endswith("+00:00")
        assert (await ask("GET", "queues?columns=messages_details.rate")) == [
            {"messages_details": {"rate": 0.0}}
        ]

    played(tmp_path, play)


def test_samples_of_a_time(tmp_path: Path) -> None:
    async def play(ask: Asking) -> None:
        await ask("PUT", "queues/%2F/q", {"durable": True})
        for count in (4, 0, 2):
            await ask.publish("q", count)
            await ask.sample()
        asked = "lengths_age=15&lengths_incr=5&msg_rates_age=10&msg_rates_incr=10"
        row = await ask("GET", f"queues/%2F/q?{asked}")
        details = row["messages_details"]
        assert [one["sample"] for one in details["samples"]] == [6, 4, 4, 0]
        times = [one["timestamp"] for one in details["samples"]]
        assert [a - b for a, b in pairwise(times)] == [5000] * 3
        assert (details["rate"], details["avg"], details["avg_rate"]) == (0.4, 3.5, 0.4)
        details = row["message_stats"]["publish_details"]
        assert [one["sample"] for one in details["samples"]] == [6, 4]
        assert details["avg_rate"] == 0.2
        overview = await ask("GET", f"overview?{asked}")
        samples = overview["queue_totals"]["messages_details"]["samples"]
        assert [one["sample"] for one in samples] == [6, 4, 4, 4], "a vhost's begin with the first"
        assert overview["message_stats"]["publish_details"]["avg_rate"] == 0.2
        (vhost,) = await ask("GET", "vhosts")
        assert vhost["messages_details"]["rate"] == 0.4

    played(tmp_path, play)


def test_samples_before_the_first_slot_has_ended_are_of_this_time(tmp_path: Path) -> None:
    """What they count is not known yet, but when they are is: not 1970."""

    async def play(ask: Asking) -> None:
        await ask("PUT", "queues/%2F/q", {"durable": True})
        row = await ask("GET", "queues/%2F/q?lengths_age=15&lengths_incr=5")
        times = [one["timestamp"] for one in row["messages_details"]["samples"]]
        assert len(times) == 4
        assert abs(times[0] - 1000 * time.time()) <= 2 * SLOT_MS
        assert times == [times[0] - SLOT_MS * i for i in range(4)]

    played(tmp_path, play)


def test_a_deleted_queue_makes_no_negative_rate_of_publishes(tmp_path: Path) -> None:
    async def play(ask: Asking) -> None:
        await ask("PUT", "queues/%2F/q", {"durable": True})
        await ask.publish("q", 5)
        await ask.sample()
        await ask("DELETE", "queues/%2F/q")
        await ask.sample()
        overview = await ask("GET", "overview")
        assert overview["message_stats"]["publish_details"]["rate"] == 0.0
        assert overview["queue_totals"]["messages_details"]["rate"] == -1.0

    played(tmp_path, play)


def test_what_was_published_stays_counted_when_its_queue_is_deleted(tmp_path: Path) -> None:
    """The counts of the broker and of the virtual host fell, though they are counters."""

    async def play(ask: Asking) -> None:
        for queue in "qr":
            await ask("PUT", f"queues/%2F/{queue}", {"durable": True})
        await ask.publish("q", 5)
        await ask.take("q", 2)
        await ask.publish("r", 1)
        await ask("DELETE", "queues/%2F/q")
        for path in ("overview", "vhosts/%2F"):
            stats = (await ask("GET", path))["message_stats"]
            assert [stats[name] for name in MOVED] == [6, 2, 2, 0]
        assert (await ask("GET", "queues/%2F/r"))["message_stats"]["publish"] == 1
        await ask("PUT", "vhosts/v")
        await ask("PUT", "queues/v/q", {"durable": True})
        await ask.publish("q", 3, vhost="v")
        await ask("DELETE", "vhosts/v")
        await ask("PUT", "vhosts/v")
        assert "message_stats" not in await ask("GET", "vhosts/v"), "it is another one"

    played(tmp_path, play)


def test_a_queue_that_lives_between_two_samples_is_in_the_rates(tmp_path: Path) -> None:
    """What it was sent was in the count, and in no sample."""

    async def play(ask: Asking) -> None:
        await ask.sample()
        await ask("PUT", "queues/%2F/q", {"durable": True})
        await ask.publish("q", 10)
        await ask("DELETE", "queues/%2F/q")
        await ask.sample()
        asked = "msg_rates_age=5&msg_rates_incr=5"
        for path in (f"overview?{asked}", f"vhosts/%2F?{asked}"):
            stats = (await ask("GET", path))["message_stats"]
            details = stats["publish_details"]
            assert (stats["publish"], details["rate"]) == (10, 2.0)
            assert [one["sample"] for one in details["samples"]] == [10, 0]

    played(tmp_path, play)


def test_a_deleted_queue_hides_nothing_of_what_others_are_sent(tmp_path: Path) -> None:
    """Its count was taken off the total: where queues come and go, there was no rate."""

    async def play(ask: Asking) -> None:
        for queue in "qr":
            await ask("PUT", f"queues/%2F/{queue}", {"durable": True})
        await ask.publish("q", 30)
        await ask.sample()
        await ask("DELETE", "queues/%2F/q")
        await ask.publish("r", 10)
        await ask.sample()
        for path in ("overview", "vhosts/%2F"):
            stats = (await ask("GET", path))["message_stats"]
            assert stats["publish_details"]["rate"] == 2.0

    played(tmp_path, play)


def test_totals_are_those_of_the_queues_whatever_comes_and_goes(tmp_path: Path) -> None:
    async def inside(ports: dict[str, int], node: run.Node) -> None:
        async with aiohttp.ClientSession(headers=GUEST) as session:
            ask = Asking(session, ports["http_port"], node)

            async def check(expected: int) -> None:
                await ask.sample()
                await ask.sample()
                row = await ask("GET", "vhosts/%2F?lengths_age=5&lengths_incr=5")
                samples = row["messages_details"]["samples"]
                assert [one["sample"] for one in samples] == [expected] * 2
                assert row["messages"] == expected
                assert len(node.samples.queues.rings) == len(node.broker.queues)

            for i, count in enumerate((3, 1, 2)):
                await ask("PUT", f"queues/%2F/q{i}", {"durable": True})
                await ask.publish(f"q{i}", count)
            await check(6)
            await ask.take("q0", 2)
            await ask("DELETE", "queues/%2F/q2")
            await ask("PUT", "queues/%2F/q3", {"durable": True})
            await check(2)
            await ask("DELETE", "queues/%2F/q0")
            await ask("PUT", "vhosts/other")
            await check(1)
            await ask("DELETE", "vhosts/other")
            await check(1)
            assert set(node.samples.vhosts.rings) == {"/"}

    asyncio.run(with_broker(tmp_path, inside))


def test_bytes_of_a_connection(tmp_path: Path) -> None:
    async def inside(ports: dict[str, int], node: run.Node) -> None:
        address = pika.ConnectionParameters("127.0.0.1", ports["amqp_port"], heartbeat=0)
        async with aiohttp.ClientSession(headers=GUEST) as session:
            ask = Asking(session, ports["http_port"], node)
            connection = await asyncio.to_thread(pika.BlockingConnection, address)
            await ask.sample()
            (row,) = await ask("GET", "connections?data_rates_age=5&data_rates_incr=5")
            rates = row["recv_oct_details"], row["send_oct_details"]
            assert all(one["rate"] > 0 for one in rates)
            assert [one["sample"] for one in rates[0]["samples"]] == [row["recv_oct"], 0]
            await asyncio.to_thread(connection.close)
            await until_on_loop(lambda: not len(node.clients))
            await ask.sample()
            assert not node.samples.connections.rings

    asyncio.run(with_broker(tmp_path, inside))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with BrokerProcess(Path(tmp_path_factory.mktemp("samples")) / "data") as running:
        done(running, "PUT", "queues/%2F/q", {"durable": True})
        yield running


@pytest.mark.parametrize(
    "query",
    [
        "lengths_age=x&lengths_incr=5", "msg_rates_age=60&msg_rates_incr=0",
        "lengths_age=0&lengths_incr=5", "data_rates_age=-1&data_rates_incr=5",
        "lengths_age=100000&lengths_incr=5", "lengths_age=99999999999999999999&lengths_incr=1",
    ],
)  # fmt: skip
def test_samples_there_are_not(broker: BrokerProcess, query: str) -> None:
    for path in ("queues", "queues/%2F/q", "overview", "vhosts", "connections"):
        assert refused(broker, "GET", f"{path}?{query}")[:2] == (400, "bad_request"), path


def test_a_list_has_few_samples_of_each_count(broker: BrokerProcess) -> None:
    query = "lengths_age=600&lengths_incr=5"
    assert "25" in refused(broker, "GET", f"queues?{query}")[2]
    assert len(get(broker, f"queues/%2F/q?{query}")["messages_details"]["samples"]) == 121


def test_a_broker_samples_by_itself(broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        channel.basic_publish("", "q", b"x")

        def newest() -> int:
            row = get(broker, "queues/%2F/q?lengths_age=300&lengths_incr=5")
            return int(row["messages_details"]["samples"][0]["sample"])

        until(lambda: newest() == 1, lambda: connection.process_data_events(0.1))
