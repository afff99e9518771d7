"""Sources and targets against real brokers: what is kept of a message, and what a crash between the
target's answer and the source's settlement leaves behind."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pika
import pytest
from typer.testing import CliRunner

from tallymark.cli.app import build
from tallymark.client import Message, connect
from tallymark.shovels.ends import Batch, ShovelFailed, Source, Target
from tallymark.shovels.making import attempts_of, ends_of
from tallymark.shovels.plan import Plan, PlanRefused
from tallymark.shovels.runner import Runner
from tallymark.shovels.shovel import Pace, Shovel
from tests.support.patience import PATIENCE_S, until
from tests.support.ports import reserved
from tests.support.process import BrokerProcess

PAIRS = [("amqp", "amqp"), ("amqp", "http"), ("http", "amqp"), ("http", "http"), ("amqp10", "amqp")]
PACE = Pace(batch=4, follows=False, persists=False)
RICH = pika.BasicProperties(
    content_type="text/plain", content_encoding="utf-8", delivery_mode=2, priority=3,
    correlation_id="c", reply_to="r", expiration="3600000", message_id="m", timestamp=1_700_000_000,
    type="t", app_id="a", headers={"n": 7, "flag": True, "table": {"list": [1, "x"]}, "none": None},
)  # fmt: skip


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BrokerProcess]]:
    folder = tmp_path_factory.mktemp("shovels")
    with BrokerProcess(folder / "a") as first, BrokerProcess(folder / "b") as second:
        yield [first, second]


def address(broker: BrokerProcess, scheme: str) -> str:
    port = broker.http_port if scheme == "http" else broker.amqp_port
    return f"{scheme}://guest:guest@127.0.0.1:{port}"


def channel_of(broker: BrokerProcess) -> Any:
    return pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)).channel()


def declared(brokers: list[BrokerProcess], queue: str) -> tuple[Any, Any]:
    """Channels of both brokers, which have the queue."""
    found = [channel_of(broker) for broker in brokers]
    for channel in found:
        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
    return found[0], found[1]


def got(channel: Any, queue: str) -> list[tuple[pika.BasicProperties, bytes]]:
    """All messages of a queue, which are settled."""
    found = []
    while (answer := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append((answer[1], answer[2]))
    return found


def plan_of(brokers: list[BrokerProcess], pair: tuple[str, str], queue: str, **more: str) -> Plan:
    table = {"name": "s", "from": address(brokers[0], pair[0]), "queue": queue}
    return Plan.from_table({**table, "to": address(brokers[1], pair[1]), **more})


def move(plan: Plan, count: int) -> None:
    """Move so many messages, without a failure."""
    runner, problems = moved(plan, count)
    assert (problems, runner.shovel.moved) == ([], count)


def moved(plan: Plan, count: int) -> tuple[Runner, list[str]]:
    """Run a shovel for so many messages; also, why it failed."""
    problems: list[str] = []
    pace = replace(PACE, most=count)
    runner = Runner(pace, attempts_of(plan, "me", pace), lambda s: problems.append(s.problem))
    asyncio.run(runner.run())
    return runner, problems


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_message_is_moved_with_all_that_it_says(
    brokers: list[BrokerProcess], pair: tuple[str, str]
) -> None:
    queue = f"rich-{'-'.join(pair)}"
    source, target = declared(brokers, queue)
    bodies = [b"%d" % i for i in range(9)]
    for body in bodies:
        source.basic_publish("", queue, body, RICH)
    move(plan_of(brokers, pair, queue), 9)
    found = got(target, queue)
    assert [body for _, body in found] == bodies
    assert got(source, queue) == []
    said = found[0][0]
    assert said.headers.pop("x-shovelled") == [
        {
            "shovelled-by": "me", "shovel-name": "s", "src": queue, "redelivered": False,
            "routing-key": queue,
        }
    ]  # fmt: skip
    assert said.__dict__ == RICH.__dict__


async def crash_after_put(source: Source, target: Target) -> Batch:
    """Move a batch up to its settlement, which never comes."""
    await source.open()
    await source.begin(await target.open(source.origin))
    batch = await source.take(4)
    assert batch is not None
    await target.put(batch)
    await source.close()
    await target.close()
    return batch


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_what_comes_again_after_a_crash_is_flagged_or_has_no_effect(
    brokers: list[BrokerProcess], pair: tuple[str, str]
) -> None:
    queue = f"crash-{'-'.join(pair)}"
    source, target = declared(brokers, queue)
    for i in range(6):
        source.basic_publish("", queue, b"%d" % i, pika.BasicProperties(delivery_mode=2))
    plan = plan_of(brokers, pair, queue)
    batch = asyncio.run(crash_after_put(*ends_of(plan, "me", PACE)))
    left = 6 - len(batch.parcels) if pair == ("http", "http") else 6
    move(plan, left)
    found = got(target, queue)
    first = [b"%d" % i for i in range(len(batch.parcels))]
    if pair == ("http", "http"):
        assert [body for _, body in found] == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert not any(said.headers["x-shovelled"][0]["redelivered"] for said, _ in found)
        return
    assert sorted(body for _, body in found) == sorted([*first, b"0", b"1", b"2", b"3", b"4", b"5"])
    again = found[len(first) :]
    flagged = {body for said, body in again if said.headers["x-shovelled"][0]["redelivered"]}
    assert flagged >= set(first)


def test_messages_go_through_nsq_and_come_back(brokers: list[BrokerProcess]) -> None:
    """To a topic of the second broker, and from its channel to a queue of the first."""
    source, _ = declared(brokers, "nsq-in")
    for path in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
        urlopen(Request(brokers[1].nsq_http_url + path, method="POST")).close()
    bodies = [b"%d" % i for i in range(6)]
    for body in bodies:
        source.basic_publish("", "nsq-in", body, RICH)
    nsqd = f"nsq://127.0.0.1:{brokers[1].nsq_port}"
    there = {"name": "s", "from": address(brokers[0], "amqp"), "queue": "nsq-in", "to": nsqd}
    move(Plan.from_table({**there, "to-queue": "t"}), 6)
    back = {"name": "s", "from": nsqd, "queue": "t/c", "to": address(brokers[0], "amqp")}
    plan = Plan.from_table({**back, "to-queue": "nsq-in"})
    asyncio.run(crash_after_put(*ends_of(plan, "me", PACE)))
    move(plan, 6)
    found = got(source, "nsq-in")
    first = len(found) - 6
    assert {body for _, body in found} == set(bodies)
    flagged = {
        body for said, body in found[first:] if said.headers["x-shovelled"][0]["redelivered"]
    }
    assert flagged >= {body for _, body in found[:first]}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"queue": "t"}, "topic/channel"),
        ({"queue": "t/c"}, "to-queue is missing"),
        ({"from": "amqp://x", "to": "nsq://x", "to-exchange": "e"}, "an nsqd has none"),
        ({"from": "amqp://x", "to": "nsq://x", "to-queue": "a b"}, "expected a topic"),
        ({"from": "amqp://x", "to": "nsq://x", "to-queue": "\ud800"}, "expected a topic"),
        ({"from": "amqp://me:secret@x:y"}, "amqp://x:y"),
        ({"from": "ftp://me:secret@x"}, "'ftp://x'"),
        ({"to": "http://me:secret@x,y:z"}, "http://x,y:z"),
        ({"to": "http://me:secret@x,"}, "'http://x,'"),
        ({"to": "http://me:secret#@x"}, "to is 'http://x', expected a port up to 65535"),
        ({"to": "http://me:[secret]@x"}, "to is 'http://x', expected an address"),
        ({"to": "http://me:secret\u2100@x"}, "to is 'http://x', expected an address"),
        ({"to": ["http://me:secret@x"]}, "to is list, expected text: one address"),
        ({"to": "me:secret@x"}, "to is 'x', expected an address"),
        ({"from": "http://[::1"}, "from is 'http://[::1', expected an address"),
        ({"to-key": "k"}, "without to-exchange"),
        ({"to-queue": "q", "to-exchange": "e"}, "expected one of them"),
        ({"batch": 0}, "batch is 0"),
        ({"name": ""}, "name is ''"),
        ({"queue": 7}, "queue is 7"),
        ({"other": 7}, "unknown field 'other'"),
        ({"from": "http://me:secret@X/%2F"}, "queue 'q' of http://X/%2F is its own target"),
        ({"from": "http://a,x/", "to-queue": "q"}, "is its own target, expected another queue"),
        ({"queue": "t/c", "to": "nsq://x", "to-queue": "t"}, "queue 't/c' of nsq://x is its own"),
        ({"from": "http://localhost", "to": "http://127.0.0.1:15672/"}, "is its own target"),
        ({"from": "amqp://[::1]/%2F", "to": "amqp10://LOCALHOST:5672"}, "is its own target"),
        ({"from": "amqp://rabbit", "to": "amqp://rabbit:5672/"}, "is its own target"),
        ({"from": "http://[2001:db8::0:1]", "to": "http://[2001:DB8::1]"}, "is its own target"),
    ],
)
def test_a_plan_is_refused_with_what_was_expected(more: dict[str, Any], expected: str) -> None:
    table = {"name": "s", "from": "nsq://x", "queue": "q", "to": "http://x"}
    with pytest.raises(PlanRefused) as found:
        Plan.from_table({**table, **more})
    assert expected in str(found.value)
    assert "secret" not in str(found.value)


@pytest.mark.parametrize(
    "more",
    [
        {"to-queue": "other"},
        {"to-exchange": "q"},
        {"to": "http://x/other"},
        {"to": "http://x:15673"},
        {"to": "amqp://x"},
    ],
)
def test_a_plan_within_a_broker_has_another_queue_or_virtual_host(more: dict[str, Any]) -> None:
    Plan.from_table({"name": "s", "from": "http://x", "queue": "q", "to": "http://x", **more})


async def overlap(first: tuple[Source, Target], second: tuple[Source, Target]) -> None:
    """Two shovels at once: the second begins, and then the first puts what it has taken."""
    await first[0].open()
    await first[0].begin(await first[1].open(first[0].origin))
    early = await first[0].take(2)
    assert early is not None
    assert await first[0].take(2) is not None
    await second[0].open()
    await second[0].begin(await second[1].open(second[0].origin))
    late = await second[0].take(4)
    assert late is not None
    assert ((early.first, early.end), (late.first, late.end)) == ((0, 2), (0, 4))
    await first[1].put(early)
    assert "follows on batch 0" in str(await refusal(second[1].put(late)))
    assert "fence" in str(await refusal(first[0].settle(early)))
    for end in (*first, *second):
        await end.close()


def test_two_shovels_at_once_move_nothing_twice(brokers: list[BrokerProcess]) -> None:
    source, target = declared(brokers, "overlapped")
    for i in range(4):
        source.basic_publish("", "overlapped", b"%d" % i)
    plan = plan_of(brokers, ("http", "http"), "overlapped")
    asyncio.run(overlap(ends_of(plan, "me", PACE), ends_of(plan, "me", PACE)))
    move(plan, 2)
    assert [body for _, body in got(target, "overlapped")] == [b"0", b"1", b"2", b"3"]


async def taken(source: Source, target: Target, count: int) -> None:
    """Move so many messages; 0: the source has its subscription, and has handed nothing out."""
    try:
        await source.open()
        await source.begin(await target.open(source.origin))
        if count:
            batch = await source.take(count)
            assert batch is not None
            await target.put(batch)
            await source.settle(batch)
    finally:
        for end in (source, target):
            await end.close()


def test_a_source_from_a_backup_of_before_is_refused_with_the_way_out(
    brokers: list[BrokerProcess], tmp_path: Path
) -> None:
    """Its next messages have the numbers of those that the target has. They are moved once the
    subscription is gone."""

    def ends(broker: BrokerProcess) -> tuple[Source, Target]:
        sides = [broker, brokers[1]]
        return ends_of(plan_of(sides, ("http", "http"), "restored"), "me", PACE)

    with BrokerProcess(tmp_path / "data") as broker:
        _, target = declared([broker, brokers[1]], "restored")
        asyncio.run(taken(*ends(broker), 0))
    shutil.copytree(tmp_path / "data", tmp_path / "backup")
    with BrokerProcess(tmp_path / "data") as broker:
        channel_of(broker).basic_publish("", "restored", b"old")
        asyncio.run(taken(*ends(broker), 1))
    with BrokerProcess(tmp_path / "backup") as broker:
        channel_of(broker).basic_publish("", "restored", b"new")
        found = asyncio.run(refusal(taken(*ends(broker), 1)))
        assert "the target has 1 of its messages, and the source has handed out 0" in str(found)
        assert not found.may_pass
        name = str(found).split("'")[1]
        path = f"/api/tallymark/subscriptions/%2F/restored/{quote(name, safe='')}"
        assert broker.http("DELETE", path)[0] == 200
        asyncio.run(taken(*ends(broker), 1))
    assert [body for _, body in got(target, "restored")] == [b"old", b"new"]


def test_a_shovel_is_no_other_whose_name_begins_with_its_own(brokers: list[BrokerProcess]) -> None:
    source, target = declared(brokers, "shared")
    for i in range(3):
        source.basic_publish("", "shared", b"%d" % i)
    plan = plan_of(brokers, ("http", "http"), "shared")
    move(replace(plan, name="s:eu"), 1)
    move(plan, 1)
    move(replace(plan, name="s:eu"), 1)
    assert [body for _, body in got(target, "shared")] == [b"0", b"1", b"2"]
    rows = brokers[0].http("GET", "/api/tallymark/subscriptions")[1]["subscriptions"]
    names = [row["name"].rpartition(":")[0] for row in rows if row["queue"] == "shared"]
    assert sorted(names) == ["shovel:s", "shovel:s:eu"]


def test_large_messages_and_those_of_other_protocols_cross(brokers: list[BrokerProcess]) -> None:
    """Between two Tallymarks: bodies of many frames, more than an answer holds; AMQP 1.0."""
    source, target = declared(brokers, "crossing")
    bodies = [bytes([i]) * (3 << 20) for i in range(2)]
    for body in bodies:
        source.basic_publish("", "crossing", body)
    there = Message({"total": 17}, subject="s", application_properties={"n": 4}, message_id=9)

    async def over_amqp10(broker: BrokerProcess, message: Message | None) -> Message | None:
        async with connect(broker.amqp_url()) as connection, connection.session() as session:
            if message is not None:
                async with session.sender("/queues/crossing") as sender:
                    await sender.send(message)
                return None
            async with session.receiver("/queues/crossing") as receiver:
                found = await receiver.receive(PATIENCE_S)
                await found.accept()
                return found

    asyncio.run(over_amqp10(brokers[0], there))
    move(plan_of(brokers, ("http", "http"), "crossing"), 3)
    for body in bodies:
        assert target.basic_get("crossing", auto_ack=True)[2] == body
    came = asyncio.run(over_amqp10(brokers[1], None))
    assert came is not None
    assert (came.body, came.application_properties["n"]) == ({"total": 17}, 4)


def test_an_entrance_spreads_over_two_leaders(brokers: list[BrokerProcess]) -> None:
    """As docs/scaling.md has it: a consistent-hash exchange, and a shovel for the second part."""
    source, target = declared(brokers, "part-2")
    source.queue_declare("part-1", durable=True)
    source.exchange_declare("entrance", "x-consistent-hash", durable=True)
    for queue in ("part-1", "part-2"):
        source.queue_bind(queue, "entrance", "1")
    target.exchange_declare("parts", "fanout", durable=True)
    target.queue_bind("part-2", "parts")
    for i in range(60):
        source.basic_publish("entrance", f"key-{i}", b"%d" % i)
    there = source.queue_declare("part-2", passive=True).method.message_count
    assert 0 < there < 60
    move(plan_of(brokers, ("http", "http"), "part-2", **{"to-exchange": "parts"}), there)
    found = got(source, "part-1") + got(source, "part-2") + got(target, "part-2")
    assert sorted(int(body) for _, body in found) == list(range(60))


def test_names_that_brokers_act_on_are_told_and_not_repeated(brokers: list[BrokerProcess]) -> None:
    source, target = declared(brokers, "acted-on")
    said = pika.BasicProperties(user_id="guest", headers={"CC": ["acted-on"]})
    source.exchange_declare("elsewhere", "fanout")
    source.queue_bind("acted-on", "elsewhere")
    source.basic_publish("elsewhere", "k", b"x", said)
    move(plan_of(brokers, ("amqp", "amqp"), "acted-on"), 1)
    assert [body for _, body in got(target, "acted-on")] == [b"x"]


def test_keys_are_kept_towards_an_exchange(brokers: list[BrokerProcess]) -> None:
    for scheme in ("amqp", "http"):
        queue = f"keys-{scheme}"
        source, target = declared(brokers, queue)
        for channel in (source, target):
            channel.exchange_declare("events", "topic", durable=True)
            channel.queue_bind(queue, "events", f"{scheme}.*")
        source.basic_publish("events", f"{scheme}.a/b", b"x")
        move(plan_of(brokers, ("amqp", scheme), queue, **{"to-exchange": "events"}), 1)
        answer = target.basic_get(queue, auto_ack=True)
        assert (answer[0].exchange, answer[0].routing_key) == ("events", f"{scheme}.a/b")


def test_a_message_that_nobody_takes_stays(brokers: list[BrokerProcess]) -> None:
    source, target = declared(brokers, "unbound")
    target.exchange_declare("nobody", "fanout")
    source.basic_publish("", "unbound", b"x")
    for scheme in ("amqp", "http"):
        plan = plan_of(brokers, ("amqp", scheme), "unbound", **{"to-exchange": "nobody"})
        runner, problems = moved(plan, 1)
        assert (len(problems), runner.shovel.moved) == (1, 0)
    assert [body for _, body in got(source, "unbound")] == [b"x"]


def test_a_side_of_several_brokers_is_gone_through_in_pairs() -> None:
    table = {"name": "s", "from": "amqp://me:p@a:1,b/v", "queue": "q", "to": "http://c,d:2"}
    turns = Plan.from_table(table).turns()
    assert [(one.source, one.target) for one in islice(turns, 5)] == [
        ("amqp://me:p@a:1/v", "http://c"), ("amqp://me:p@a:1/v", "http://d:2"),
        ("amqp://me:p@b/v", "http://c"), ("amqp://me:p@b/v", "http://d:2"),
        ("amqp://me:p@a:1/v", "http://c"),
    ]  # fmt: skip


@pytest.mark.parametrize("pair", [("amqp", "http"), ("http", "amqp")], ids="-".join)
def test_it_finds_the_broker_of_a_side_that_answers(
    brokers: list[BrokerProcess], pair: tuple[str, str]
) -> None:
    queue = f"found-{'-'.join(pair)}"
    source, target = declared(brokers, queue)
    source.basic_publish("", queue, b"x")
    nobody = reserved()
    sides = [
        address(broker, scheme).replace("@", f"@127.0.0.1:{nobody},")
        for broker, scheme in zip(brokers, pair, strict=True)
    ]
    table = {"name": "s", "from": sides[0], "queue": queue, "to": sides[1]}
    runner, _ = moved(Plan.from_table(table), 1)
    assert runner.shovel.moved == 1
    assert [body for _, body in got(target, queue)] == [b"x"]


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_what_a_full_queue_takes_of_a_batch_is_moved_and_does_not_come_again(
    brokers: list[BrokerProcess], pair: tuple[str, str]
) -> None:
    """A queue that refuses publishes and has less room than a batch has messages."""
    queue = f"full-{'-'.join(pair)}"
    source, target = (channel_of(broker) for broker in brokers)
    source.queue_declare(queue, durable=True)
    source.confirm_delivery()
    arguments = {"x-max-length": 3, "x-overflow": "reject-publish"}
    target.queue_declare(queue, durable=True, arguments=arguments)
    for i in range(10):
        source.basic_publish("", queue, b"%d" % i, pika.BasicProperties(delivery_mode=2))
    plan, found = plan_of(brokers, pair, queue), list[bytes]()
    pace = replace(PACE, batch=10)
    for there in (3, 3, 3, 1):
        runner, problems = until_it_fails(plan, pace)
        bodies = [body for _, body in got(target, queue)]
        assert (len(bodies), runner.shovel.moved) == (there, there), problems
        assert len(problems) == (there == 3)
        found += bodies
    assert found == [b"%d" % i for i in range(10)]
    assert got(source, queue) == []
    _, sinks = brokers[1].http("GET", "/api/tallymark/sinks")
    assert sinks["stagings"] == []
    for channel in (source, target):  # it has other arguments than at the other broker
        channel.queue_delete(queue)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_message_that_no_queue_takes_does_not_bring_its_neighbours_again(
    brokers: list[BrokerProcess], pair: tuple[str, str]
) -> None:
    queue, exchange = f"lost-{'-'.join(pair)}", f"to-{'-'.join(pair)}"
    source, target = declared(brokers, queue)
    source.exchange_declare(exchange, durable=True)
    target.exchange_declare(exchange, durable=True)
    for key in ("known", "unknown"):
        source.queue_bind(queue, exchange, key)
    target.queue_bind(queue, exchange, "known")
    for i, key in enumerate(("known", "known", "unknown", "known")):
        source.basic_publish(exchange, key, b"%d" % i, pika.BasicProperties(delivery_mode=2))
    table = {"name": "s", "from": address(brokers[0], pair[0]), "queue": queue}
    table |= {"to": address(brokers[1], pair[1]), "to-exchange": exchange}
    for _ in range(2):
        _, problems = until_it_fails(Plan.from_table(table), PACE)
        assert len(problems) == 1, problems
        assert "unexpected" not in problems[0], problems
    bodies = sorted(body for _, body in got(target, queue))
    left = [b"2"] if pair[1] == "amqp" else [b"2", b"3"]  # a Tallymark gets them in their order
    assert bodies == sorted({b"0", b"1", b"2", b"3"} - set(left))
    held = brokers[0].queues()[queue]
    assert held["ready"] + held["leased"] == len(left)


def until_it_fails(plan: Plan, pace: Pace) -> tuple[Runner, list[str]]:
    """Run a shovel until it has moved all, or has failed; also, why it failed."""
    problems: list[str] = []

    def failed(shovel: Shovel) -> None:
        problems.append(shovel.problem)
        runner.stop()

    runner = Runner(pace, attempts_of(plan, "me", pace), failed)
    asyncio.run(runner.run())
    return runner, problems


@pytest.mark.parametrize("target", ["amqp://127.0.0.1:1", "http://127.0.0.1:1"])
@pytest.mark.parametrize("scheme", ["amqp", "amqp10"])
def test_a_target_that_is_away_costs_no_deliveries(
    brokers: list[BrokerProcess], scheme: str, target: str
) -> None:
    """A broker ends messages that came back too often: RabbitMQ counts each time, whatever for."""
    queue = f"away-{scheme}-{target[:4]}"
    source = channel_of(brokers[0])
    source.queue_declare(queue, durable=True, arguments={"x-acquired-limit": 1})
    source.confirm_delivery()
    for i in range(3):
        source.basic_publish("", queue, b"%d" % i, pika.BasicProperties(delivery_mode=2))
    table = {"name": "s", "from": address(brokers[0], scheme), "queue": queue, "to": target}
    for _ in range(3):
        _, problems = until_it_fails(Plan.from_table(table), PACE)
        assert len(problems) == 1
    assert [body for _, body in got(source, queue)] == [b"0", b"1", b"2"]
    source.queue_delete(queue)


async def refusal(of: Coroutine[Any, Any, Any]) -> ShovelFailed:
    with pytest.raises(ShovelFailed) as found:
        await of
    return found.value


async def refused(end: Source | Target, *origin: str) -> ShovelFailed:
    """Return why it cannot be opened."""
    try:
        return await refusal(end.open(*origin))
    finally:
        await end.close()


def test_refusals_say_which_side_and_whether_they_may_pass(brokers: list[BrokerProcess]) -> None:
    for scheme in ("amqp", "amqp10", "http"):
        plan = plan_of(brokers, (scheme, scheme), "not-there")
        source, _ = ends_of(plan, "me", PACE)
        found = asyncio.run(refused(source))
        assert str(found).startswith("source ")
        assert "not-there" in str(found)
        assert not found.may_pass
    away = Plan.from_table(
        {"name": "s", "from": "amqp://127.0.0.1:1", "queue": "q", "to": "http://127.0.0.1:1"}
    )
    source, target = ends_of(away, "me", PACE)
    assert asyncio.run(refused(source)).may_pass
    assert asyncio.run(refused(target, "")).may_pass


def command(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(build(), ["move", *words])
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


@pytest.mark.parametrize("pair", [("amqp", "http"), ("http", "http")], ids="-".join)
def test_a_move_of_an_empty_queue_has_nothing_to_clear_away(
    brokers: list[BrokerProcess], pair: tuple[str, str]
) -> None:
    declared(brokers, "bare")
    here, there = (address(*one) for one in zip(brokers, pair, strict=True))
    done = CliRunner().invoke(build(), ["move", "bare", "--from", here, "--to", there])
    assert (done.exit_code, done.stderr) == (0, "")


def test_the_command_moves_between_brokers_and_leaves_nothing_behind(
    brokers: list[BrokerProcess],
) -> None:
    source, target = declared(brokers, "commanded")
    for i in range(5):
        source.basic_publish("", "commanded", b"%d" % i)
    here, there = address(brokers[0], "http"), address(brokers[1], "http")
    said = command("--from", here, "--queue", "commanded", "--to", there, "--count", "2")
    assert said == f"2 moved to 'commanded' of http://127.0.0.1:{brokers[1].http_port}\n"
    said = command("commanded", "--to", there, "--url", here)
    assert said.startswith("3 moved")
    assert [body for _, body in got(target, "commanded")] == [b"0", b"1", b"2", b"3", b"4"]
    kept = [brokers[0].http("GET", "/api/tallymark/subscriptions")[1]["subscriptions"],
            brokers[1].http("GET", "/api/tallymark/sinks")[1]["sinks"]]  # fmt: skip
    assert [row for rows in kept for row in rows if row["name"].startswith("shovel:move:")] == []


def test_the_command_brings_definitions_along(brokers: list[BrokerProcess], tmp_path: Path) -> None:
    source, target = channel_of(brokers[0]), channel_of(brokers[1])
    source.exchange_declare("brought", "topic", durable=True)
    source.queue_declare("brought", durable=True)
    source.queue_bind("brought", "brought", "a.#")
    here, there = address(brokers[0], "http"), address(brokers[1], "http")
    said = command("--definitions", "--from", here, "--to", there)
    assert said == f"definitions of http://127.0.0.1:{brokers[0].http_port} imported\n"
    target.confirm_delivery()
    target.basic_publish("brought", "a.b", b"x", mandatory=True)
    assert [body for _, body in got(target, "brought")] == [b"x"]
    file = tmp_path / "exported.json"
    exchange = {"name": "filed", "vhost": "/", "type": "fanout", "durable": True}
    exchange |= {"auto_delete": False, "internal": False, "arguments": {}}
    file.write_text(json.dumps({"exchanges": [exchange]}))
    assert "imported" in command("--definitions", "--from", str(file), "--to", there)
    target.exchange_declare("filed", passive=True)
    assert "no queue" in command("a", "--definitions", "--from", here, code=2)
    assert "management interface" in command("--definitions", "--from", "amqp://x", code=2)
    assert "No such file" in command("--definitions", "--from", "none.json", "--to", there, code=1)


def test_the_command_says_what_is_wrong() -> None:
    assert "once" in command("a", "b", "--queue", "a", code=2)
    assert "expected an address" in command("a", "--to", "ftp://x", code=2)
    assert "within a broker" in command("a", "--to", "http://x", "--dry-run", code=2)
    assert "with --from or --to" in command("a", "b", "--follow", code=2)


def test_a_broker_runs_the_shovels_of_its_configuration(
    brokers: list[BrokerProcess], tmp_path_factory: pytest.TempPathFactory
) -> None:
    source, target = declared(brokers, "configured")
    for i in range(5):
        source.basic_publish("", "configured", b"%d" % i)
    tables = [
        {"name": "good", "from": address(brokers[0], "http"), "queue": "configured",
         "to": address(brokers[1], "http")},
        {"name": "bad", "from": address(brokers[0], "amqp"), "queue": "none",
         "to": address(brokers[1], "amqp")},
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("runs")
    config = folder / "tallymark.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in tables[0].items()]
    lines += ["[[shovels]]", *(f"{key} = {json.dumps(value)}" for key, value in tables[1].items())]
    config.write_text("\n".join(["[[shovels]]", *lines]) + "\n")
    with BrokerProcess(folder / "data", config=str(config)) as runs:
        bodies: list[bytes] = []
        for _, _, body in target.consume("configured", auto_ack=True):
            bodies.append(body)
            if len(bodies) == 5:
                break
        assert bodies == [b"0", b"1", b"2", b"3", b"4"]

        def rows() -> dict[str, Any]:
            found = runs.http("GET", "/api/tallymark/shovels")[1]["shovels"]
            return {row["name"]: row for row in found}

        until(lambda: rows()["good"]["moved"] == 5 and rows()["bad"]["failures"] > 0, what="rows")
        shown = rows()
        assert "guest" not in json.dumps(shown)
        assert "none" in shown["bad"]["problem"]
        listed = {row["name"]: row for row in runs.http("GET", "/api/shovels")[1]}
        assert (listed["good"]["type"], listed["good"]["state"]) == ("static", "running")
        metrics = runs.http_bytes("GET", "/metrics")[1].decode()
        assert 'tallymark_shovel_moved_total{shovel="good"} 5.0' in metrics
        config.write_text("")
        assert runs.http("POST", "/api/tallymark/config/reload")[1]["changed"] == ["shovels"]
        until(lambda: rows() == {}, what=rows)
