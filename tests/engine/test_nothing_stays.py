"""Cycles that leave nothing behind, played often: whatever a broker holds is as much as before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tallymark.engine.outcomes import ACCEPTED, FAILED, REJECTED
from tallymark.engine.policies import QUEUES, Policy
from tallymark.engine.restore import live_payloads, packed_payloads, snapshot
from tallymark.engine.session import Connection, Session
from tallymark.engine.sinks import StagedPart
from tallymark.engine.slow.actions import SlowSubscription
from tallymark.engine.slow.rules import Rule, Rules
from tallymark.engine.streams import FIRST, NEXT, Start
from tallymark.stored.annotations import Annotations
from tallymark.units import Ms
from tests.engine.anything import Anything
from tests.support.census import census, grown
from tests.support.engine_rig import Rig
from tests.support.engine_steps import drain, finish, manual, reject
from tests.support.long import longer, sized

OFTEN = 6
"""Plays before the first census, and between two a multiple of them."""
SEEDS = sized(20, 100, 2000)
STEPS, LOOK_EVERY = 200, 10
DAY_MS = 86_400_000
EMPTY = ("Deadlines._heap", "Slices._places")
"""Containers with empty places, of which there are never many."""
Cycle = Callable[[Rig, int], None]
CYCLES: list[Cycle] = []


def cycle(play: Cycle) -> Cycle:
    CYCLES.append(play)
    return play


def other(rig: Rig, vhost: str = "/", user: str = "other") -> tuple[Connection, Session]:
    connection = rig.broker.clients.open_connection(vhost, user, "other")
    return connection, rig.session(connection)


def close(rig: Rig, connection: Connection, lost: bool) -> None:
    rig.broker.clients.close_connection(connection, lost)
    rig.settle_down()


# -- cycles


@cycle
def consumers(rig: Rig, i: int) -> None:
    connection, session = other(rig)
    session.confirming = True
    rig.declare(f"q{i}", {"consumer-timeout": 2 * DAY_MS})
    rig.declare(f"one{i}", {"single-active-consumer": True, "max-priority": 3})
    for name in (f"q{i}", f"one{i}"):
        rig.publish(session, name, [1, 2, 3])
        rig.publish(session, name, [4], persistent=False)
        first = rig.consume(session, name, "first " + name, prefetch=2)
        second = rig.consume(session, name, "second " + name)
        rig.broker.consuming.grant(second, 1, drain=True)
        rig.broker.consuming.browse(session, rig.vhost.queues[name], "browses " + name, None)
        rig.settle_down()
        tag = session.inflight[0].first
        rig.broker.settlement.settle(session, tag, tag, FAILED)
        (rig.broker.consuming.cancel if i % 2 else rig.broker.consuming.detach)(first)
    close(rig, connection, bool(i % 3))
    for name in (f"q{i}", f"one{i}"):
        drain(rig, name)
        rig.delete(name)


@cycle
def queues_that_end_themselves(rig: Rig, i: int) -> None:
    connection, session = other(rig)
    for exclusive, auto_delete in ((True, False), (False, True), (True, True)):
        name = f"q{i} {exclusive} {auto_delete}"
        rig.broker.registry.declare_queue(
            connection, name, False, exclusive, auto_delete, {}, False
        )
        rig.publish(session, name, [1, 2, 3])
        rig.consume(session, name, name, prefetch=2)
        rig.vhost.bind_queue(name, "amq.topic", f"a.{i}.#", {}, connection.id)
    rig.declare(f"expires{i}", {"expires": 50, "message-ttl": 20, "max-length": 3})
    rig.send(f"expires{i}", *range(5))
    rig.settle_down()
    close(rig, connection, bool(i % 2))
    rig.advance(100)
    assert list(rig.vhost.queues) == ["held"]


@cycle
def topology(rig: Rig, i: int) -> None:
    vhost, owner = rig.vhost, rig.connection.id
    rig.declare("q")
    for type in ("direct", "topic", "fanout", "headers", "x-consistent-hash", "x-local-random"):
        vhost.declare_exchange(f"{type}{i}", type, True, False, False, {}, False)
        vhost.declare_exchange(f"behind{i}", "topic", True, True, False, {}, False)
        key = {"topic": "a.*.#.b", "x-consistent-hash": "3", "x-local-random": ""}.get(type, "k")
        headers: dict[str, object] = {"x-match": "all", "h": i} if type == "headers" else {}
        vhost.bind_queue("q", f"{type}{i}", key, headers, owner)
        if type != "x-local-random":
            vhost.bind_exchange(f"behind{i}", f"{type}{i}", key, headers)
        vhost.bind_queue("q", f"behind{i}", "#", {}, owner)
        for pattern in ("#", "*.a", f"x.{i}.*"):
            vhost.bind_queue("q", "amq.topic", pattern, {}, owner)
        vhost.route(f"{type}{i}", ["a.c.b"], {"h": i})
        if i % 2:
            vhost.unbind_queue("q", f"{type}{i}", key, headers, owner)
        for pattern in (f"x.{i}.*", "#", "*.a"):
            vhost.unbind_queue("q", "amq.topic", pattern, {}, owner)
        vhost.delete_exchange(f"{type}{i}", False)
        vhost.delete_exchange(f"behind{i}", False)
    for operator in (False, True):
        policy = Policy(f"p{i}", "^q", {"max-length": 5}, 0, QUEUES)
        rig.broker.registry.set_policy("/", policy, operator)
        rig.send("q", *range(9))
        rig.broker.registry.delete_policy("/", f"p{i}", operator)
    drain(rig, "q")


@cycle
def virtual_hosts(rig: Rig, i: int) -> None:
    broker, name = rig.broker, f"v{i}"
    vhost = broker.registry.add_vhost(name)
    connection, session = other(rig, name, f"user{i}")
    queue = broker.registry.declare_queue(connection, "q", True, False, False, {}, False)
    vhost.declare_exchange("x", "topic", True, False, False, {}, False)
    vhost.bind_queue("q", "x", "#", {}, connection.id)
    broker.registry.set_policy(name, Policy("p", "^q", {"max-length": 5}, 0, QUEUES))
    broker.publishing.publish(session, vhost.route("x", ["k"], None), rig.payload("k", [1], True))
    broker.leases.lease(broker.leases.attach(queue, "s"), 0, 2, 0)
    for sink in ("staged", "committed"):
        part = StagedPart(rig.payload("q", [5], True), None, True, broker.clock.now_ms)
        staging = broker.sinks.stage(name, sink, [part], Ms(10_000))
    broker.publishing.commit_sink(name, "committed", "me", 1, [staging.id])
    rig.settle_down()
    close(rig, connection, True)
    broker.registry.delete_vhost(name)


@cycle
def dead_letters(rig: Rig, i: int) -> None:
    rig.declare(f"letters{i}", {"max-length": 2, "overflow": "reject-publish"})
    rig.exchange("letters", "fanout", (f"letters{i}", ""))
    rig.declare(f"brief{i}", {"dead-letter-exchange": "letters", "message-ttl": 50})
    rig.declare(
        f"sure{i}",
        {"dead-letter-exchange": "letters", "dead-letter-strategy": "at-least-once",
         "overflow": "reject-publish", "delivery-limit": 1},
    )  # fmt: skip
    for name in (f"brief{i}", f"sure{i}"):
        rig.send(name, *range(4))
        reject(rig, name, 2)
    rig.advance(100)
    if i % 3 == 0:
        drain(rig, f"letters{i}")
    elif i % 3 == 1:
        rig.vhost.delete_exchange("letters", False)
        finish(rig)
    for name in (f"sure{i}", f"letters{i}", f"brief{i}"):
        rig.delete(name)
    rig.vhost.delete_exchange("letters", False)


@cycle
def deferred_messages(rig: Rig, i: int) -> None:
    retried = {"delayed-retry-type": "all", "delayed-retry-min": 10, "delayed-retry-max": 50}
    for name, ms in ((f"soon{i}", 20), (f"never{i}", 20_000)):
        rig.declare(name, {**retried, "consumer-timeout": 100})
        due = Annotations(due_ms=rig.broker.clock.now_ms + ms)
        rig.send(name, 1, 2, annotations=due)
        rig.send(name, 3)
        reject(rig, name, 1, FAILED)
    rig.advance(200)
    rig.get(rig.session(), rig.vhost.queues[f"soon{i}"])
    rig.advance(200)
    for name in (f"soon{i}", f"never{i}"):
        rig.delete(name)


@cycle
def transactions(rig: Rig, i: int) -> None:
    connection, session = other(rig)
    for name in ("q", "p"):
        rig.declare(name)
    rig.send("q", 1, 2, 3, 4)
    rig.consume(session, "q", "c")
    rig.settle_down()
    work = rig.broker.transactions
    transaction = work.begin(session, Ms(1000))
    rig.stage(transaction, "p", 7, 8, 9)
    work.settle(transaction, session, 1, 1, ACCEPTED)
    work.settle(transaction, session, 2, 2, REJECTED)
    rig.settle_down(budget=0)
    if i % 5 == 0:
        work.commit(transaction)
    elif i % 5 == 1:
        work.rollback(transaction)
    elif i % 5 == 2:
        rig.advance(2000)
    elif i % 5 == 3:
        rig.delete("p")
        rig.delete("q")
    close(rig, connection, bool(i % 2))
    for name in list(rig.vhost.queues):
        drain(rig, name)


@cycle
def streams(rig: Rig, i: int) -> None:
    connection, session = other(rig)
    rig.broker.consuming.set_prefetch(session, 5, False)
    limits = {"max-length-bytes": 80, "stream-max-segment-size-bytes": 40}
    stream = rig.declare(f"s{i}", {"queue-type": "stream", **limits})
    for start in (Start(FIRST), Start(NEXT)):
        rig.send(f"s{i}", *range(10))
        rig.broker.consuming.read(session, stream, start.kind, start, False)
    rig.settle_down()
    if i % 2:
        close(rig, connection, True)
    rig.delete(f"s{i}")
    close(rig, connection, True)


@cycle
def subscriptions(rig: Rig, i: int) -> None:
    leases = rig.broker.leases
    for name in ("q", f"q{i}"):
        queue = rig.declare(name)
        rig.send(name, *range(8))
        rig.settle_down()
        subscription = leases.attach(queue, f"s{i}")
        leases.lease(subscription, subscription.next, 4, 0)
        leases.judge(subscription, [(subscription.next - 3, 1, REJECTED)])
        leases.judge(subscription, [(subscription.next - 2, 1, FAILED)])
        if i % 2:
            leases.settle(subscription, subscription.next - 1)
        assert leases.attach(queue, f"s{i}") is subscription
    rig.broker.drop_subscription(leases.find(rig.vhost.queues["q"], f"s{i}"))
    rig.delete(f"q{i}")
    drain(rig, "q")


@cycle
def sinks(rig: Rig, i: int) -> None:
    sinks, now = rig.broker.sinks, rig.broker.clock.now_ms
    rig.declare("q")
    stagings = []
    for _ in range(3):
        part = StagedPart(rig.payload("q", [1, 2], True), None, True, now)
        stagings.append(sinks.stage("/", f"k{i}", [part], Ms(1000)).id)
        rig.settle_down()
    sinks.abort("/", f"k{i}", stagings[:1])
    rig.broker.publishing.commit_sink("/", f"k{i}", "me", 1, stagings[1:2], Ms(2000))
    part = StagedPart(rig.payload("q", [1, 2], True), None, True, now)
    sinks.stage("/", f"k{i}", [part], Ms(1000))
    rig.advance(5000)
    drain(rig, "q")


@cycle
def slow_consumers(rig: Rig, i: int) -> None:
    rig.broker.slow.rules = Rules(general=Rule(count=3))
    (reader, session), (writer, publisher) = other(rig), other(rig)
    rig.broker.registry.declare_queue(reader, f"q{i}", False, True, False, {}, False)
    rig.vhost.bind_queue(f"q{i}", "amq.topic", "k", {}, reader.id)
    rig.consume(session, f"q{i}", "c", prefetch=1)
    for _ in range(6):
        rig.send("k", 1, exchange="amq.topic", session=publisher)
    rig.settle_down()
    (watched,) = rig.broker.slow.due()
    reading = rig.broker.slow.look(watched)
    assert reading is not None
    slow = SlowSubscription(rig.broker, reading)
    acts = (lambda: slow.disconnect(True), slow.drop_oldest, slow.dead_letter, slow.hold_publishers)
    acts[i % 4]()
    rig.send("k", 1, exchange="amq.topic", session=publisher)
    rig.settle_down()
    for connection in (reader, writer) if i % 3 else (writer, reader):
        close(rig, connection, True)
    rig.broker.slow.due()


# -- what stays


def released(rig: Rig) -> int:
    """Bytes that the journal was told are needed no more."""
    return sum(size for _, size in rig.released)


def needed(rig: Rig) -> int:
    """Bytes in the journal of what is there, whether it can be read or not."""
    whole, packed = live_payloads(rig.broker), packed_payloads(rig.broker)
    for queue in rig.broker.queues.values():
        whole += [entry.piece.payload for entry in queue.quarantine]
    found = {id(one): one.size for one in whole if one.position >= 0}
    for one in packed:
        assert one.pack is not None
        found[id(one)] = one.cuts[one.count] - one.cuts[one.pack.taken]
    return sum(found.values())


@pytest.mark.parametrize("play", CYCLES, ids=[play.__name__ for play in CYCLES])
def test_nothing_stays_of_what_is_over(play: Cycle) -> None:
    rig = manual()
    number = 0

    def plays(count: int) -> dict[str, int]:
        """What is there after so many plays, each by a connection of its own."""
        nonlocal number
        for _ in range(count):
            rig.connection = rig.broker.clients.open_connection("/", "guest", "rig")
            rig.session()
            play(rig, number)
            number += 1
            close(rig, rig.connection, False)
        rig.advance(1000)
        rig.connection = rig.broker.clients.open_connection("/", "guest", "rig")
        rig.declare("tick")  # a block, with which marks are looked at
        rig.settle_down()
        rig.delete("tick")
        close(rig, rig.connection, False)
        rig.broker.check()
        letters, store = rig.broker.dead_letters, rig.broker.store
        bounded = (letters._routes, letters._made, store._residents)
        found = census(rig.broker, leaves_out=[rig, rig.log, *bounded])
        found["rows of a checkpoint"] = len(snapshot(rig.broker, False))
        found["bytes"] = rig.log.stored_bytes - released(rig)
        return found

    rig.declare("held", {"consumer-timeout": DAY_MS})  # a deadline before all others
    rig.send("held", 1)
    rig.consume(rig.session(), "held", "holds")
    rig.settle_down()
    plays(OFTEN)
    before = plays(OFTEN)
    after = plays(4 * OFTEN)
    assert not grown(before, after, 2 * OFTEN, bounded=EMPTY)


@longer
@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_stays_of_anything_in_any_order(seed: int) -> None:
    anything = Anything(seed)
    rig = anything.rig
    for number in range(STEPS):
        anything.step()
        if number % LOOK_EVERY == 0:
            anything.end_pins()
            rig.settle_down()
            rig.settle_down()
            rig.broker.check()
            assert rig.log.stored_bytes - released(rig) == needed(rig)
    anything.end()
    rig.broker.check()
    found = census(rig.broker, leaves_out=[rig, rig.log])
    assert rig.log.stored_bytes == released(rig)
    assert rig.broker.store.resident_bytes == 0
    for name in ("Connection", "Session", "Consumer", "Transaction", "Subscription", "Staging"):
        assert not found[name], name
    assert found["Queue"] <= found["Marks._ahead"] + 1, "published to last, and with a mark ahead"
