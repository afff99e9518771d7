"""Who is too slow, and who is never looked at [SC-1 to SC-4, SC-A1, SC-A4, SC-A7, SC-D1, SC-D4]."""

from __future__ import annotations

from typing import Any

import pytest

from tallymark.engine.message import Filter
from tallymark.engine.packing import Packing
from tallymark.engine.slow.consumers import FINE, NEAR, OVER
from tallymark.engine.slow.rules import Rule, Rules
from tallymark.stored.annotations import Annotations
from tests.support.engine_rig import SIZE, Said
from tests.support.slow_rig import Slow

# -- limits


@pytest.mark.parametrize("prefetch", [1, 0], ids=["ready", "unsettled"])
def test_sc_a1_one_message_more_than_the_count_is_too_many(prefetch: int) -> None:
    slow = Slow(prefetch, count=9)
    slow.send(9)
    assert slow.over() == []
    slow.send(1)
    assert slow.over() == ["count"]


@pytest.mark.parametrize("together", [False, True], ids=["singles", "one stretch"])
@pytest.mark.parametrize("prefetch", [1, 0], ids=["ready", "unsettled"])
def test_sc_a1_one_body_more_than_the_depth_is_too_much(prefetch: int, together: bool) -> None:
    slow = Slow(prefetch, depth=9 * 100)
    slow.rig.says.update({number: Said(body=100) for number in range(1, 11)})
    slow.send(9, together)
    assert slow.over() == []
    reading = slow.watched.reading
    assert reading is not None
    assert reading.depth == 900  # bodies only
    slow.send(1)
    assert slow.over() == ["depth"]


def test_sc_3_values_at_their_limits_are_allowed_and_either_one_above_is_too_much() -> None:
    """The specification's example: ten messages may stay while their size is at most 1024."""
    slow = Slow(1, count=10, depth=1024)
    slow.rig.says.update({number: Said(body=102) for number in range(1, 10)})
    slow.rig.says[10] = Said(body=1024 - 9 * 102)
    slow.send(10)
    assert slow.over() == []
    slow.rig.says[11] = Said(body=0)
    slow.send(1)
    assert slow.over() == ["count"]
    heavy = Slow(1, count=10, depth=1024)
    heavy.rig.says[1] = Said(body=1025)
    heavy.send(1)
    assert heavy.over() == ["depth"]


@pytest.mark.parametrize("prefetch", [1, 0], ids=["ready", "unsettled"])
def test_sc_a1_sc_d1_a_message_is_too_old_when_it_has_been_there_for_longer(prefetch: int) -> None:
    slow = Slow(prefetch, age=1000)
    slow.send(2)
    for _ in range(5):
        assert slow.over() == []
        slow.wait(200)
    assert slow.over() == []  # as old as it may be
    slow.wait(1)
    assert slow.over() == ["age"]
    slow.settle(1, 1 if prefetch else 2)
    slow.settle(2, 2) if prefetch else None
    assert slow.state == FINE


def test_sc_a1_fresh_messages_only_are_fine_however_long_it_goes_on() -> None:
    slow = Slow(1, age=1000)
    slow.send(1)
    for tag in range(1, 100):
        slow.send(1)
        slow.wait(100)
        slow.settle(tag, tag)
        assert slow.state == FINE


def test_sc_a4_an_empty_queue_at_connect_time_is_not_old() -> None:
    slow = Slow(consume=False, age=1000)
    slow.wait(100_000)
    slow.subscribe()
    assert slow.look() is None
    slow.send(1)
    assert slow.over() == []


def test_sc_d5_from_80_percent_of_a_limit_on_it_is_near() -> None:
    slow = Slow(1, count=10, age=1000)
    slow.send(7)
    assert slow.state == FINE
    slow.send(1)
    reading = slow.look()
    assert reading is not None
    assert (slow.watched.state, reading.near, reading.over) == (NEAR, ["count"], [])
    slow.wait(800)
    reading = slow.look()
    assert reading is not None
    assert (reading.near, reading.age_ms) == (["count", "age"], 800)
    slow.send(3)
    reading = slow.look()
    assert reading is not None
    assert (slow.watched.state, reading.near, reading.over) == (OVER, ["age"], ["count"])


def test_sc_a7_below_the_limit_again_before_the_look_nothing_is_said() -> None:
    slow = Slow(0, count=3)
    slow.send(5)
    slow.settle(1, 5)
    assert slow.look() is None
    assert slow.watched.state == FINE


# -- rate


def rate_of(slow: Slow, seconds: int, settled_each: int, arriving: int = 0) -> list[list[str]]:
    """What is over at the end of each second, of which so many messages are settled and arrive."""
    tag = slow.consumer.pace.done if slow.consumer is not None else 0
    out = []
    for _ in range(seconds):
        slow.send(arriving)
        for _ in range(settled_each):
            tag += 1
            slow.settle(tag, tag)
        slow.wait(1000)
        out.append(slow.over())
    return out


def test_sc_d4_a_consumer_that_settles_less_than_its_rate_for_ten_seconds_is_too_slow() -> None:
    slow = Slow(10, rate=5)
    slow.send(1000)
    assert slow.over() == []
    seen = rate_of(slow, 10, 4)
    assert seen[:9] == [[]] * 9
    assert seen[9] == ["rate"]
    reading = slow.watched.reading
    assert reading is not None
    assert reading.rate == pytest.approx(4.0)


def test_sc_d4_one_that_settles_as_much_is_near_and_one_that_does_more_is_fine() -> None:
    slow = Slow(10, rate=4)
    slow.send(1000)
    slow.look()
    assert rate_of(slow, 12, 4) == [[]] * 12
    assert slow.watched.state == NEAR
    fast = Slow(10, rate=3)
    fast.send(1000)
    fast.look()
    assert rate_of(fast, 12, 4) == [[]] * 12
    assert fast.watched.state == FINE


def test_sc_d4_only_the_last_ten_seconds_count() -> None:
    slow = Slow(10, rate=5)
    slow.send(1000)
    slow.look()
    rate_of(slow, 15, 20)
    seen = rate_of(slow, 10, 0)
    assert seen[:7] == [[]] * 7  # 60 of the window's messages are 6 a second
    assert seen[9] == ["rate"]


def test_sc_d4_who_keeps_up_with_little_traffic_is_not_slow() -> None:
    slow = Slow(10, rate=5)
    for tag in range(1, 60):
        slow.send(1)  # always something there when it is looked at
        assert slow.over() == []
        slow.settle(tag, tag)
        slow.wait(1000)


def test_sc_d4_time_without_messages_does_not_count() -> None:
    slow = Slow(10, rate=5)
    slow.look()
    slow.wait(60_000)
    slow.send(100)
    assert slow.over() == []
    assert rate_of(slow, 9, 0) == [[]] * 9
    assert rate_of(slow, 1, 0) == [["rate"]]


def test_sc_d4_one_without_credit_that_holds_nothing_is_not_judged() -> None:
    slow = Slow(10, rate=5)
    assert slow.consumer is not None
    slow.rig.broker.consuming.grant(slow.consumer, 0, False)
    slow.send(100)
    slow.look()
    assert rate_of(slow, 20, 0) == [[]] * 20
    slow.rig.broker.consuming.grant(slow.consumer, 5, False)
    slow.rig.settle_down()
    assert rate_of(slow, 10, 0) == [[]] * 10
    assert rate_of(slow, 1, 0) == [["rate"]]


def test_sc_d4_without_acknowledgement_what_was_sent_counts() -> None:
    slow = Slow(no_ack=True, rate=5)
    slow.rig.connection.paused = True  # it does not read its socket
    slow.send(100)
    slow.look()
    assert rate_of(slow, 9, 0) == [[]] * 9
    assert rate_of(slow, 1, 0) == [["rate"]]
    slow.rig.connection.paused = False
    slow.rig.broker.clients.wake(slow.rig.connection)
    slow.rig.settle_down()
    assert slow.look() is None


# -- scope


@pytest.mark.parametrize(
    "other",
    [
        {"type": "direct"},
        {"type": "fanout"},
        {"type": "headers"},
        {"exclusive_queue": False},  # shared: anyone may consume beside
        {"consume": False},
        {"exclusive_queue": False, "consume": False},
    ],
    ids=str,
)
def test_sc_1_sc_a4_what_is_no_subscription_to_topics_is_not_looked_at(
    other: dict[str, Any],
) -> None:
    slow = Slow(1, count=1, depth=1, age=1, rate=1000, **other)
    slow.send(10)
    slow.wait(60_000)
    assert [slow.slow.look(one) for one in slow.slow.watched()] in ([], [None])


@pytest.mark.parametrize("exclusive_queue", [True, False])
def test_sc_1_an_exclusive_queue_or_an_exclusive_consumer_makes_a_subscription(
    exclusive_queue: bool,
) -> None:
    slow = Slow(1, exclusive_queue=exclusive_queue, exclusive=not exclusive_queue, count=1)
    slow.send(2)
    assert slow.over() == ["count"]
    assert slow.slow.is_subscription(slow.queue)


def test_sc_1_one_topic_binding_is_enough_and_without_it_nobody_looks_any_more() -> None:
    slow = Slow(1, type="direct", count=1)
    slow.send(5)
    assert slow.slow.watched() == []
    slow.rig.exchange("topics", "topic", ("sub", "a"), ("sub", "b"))
    assert slow.over() == ["count"]
    unbind = slow.rig.vhost.unbind_queue
    unbind("sub", "topics", "a", {}, slow.rig.connection.id)
    assert slow.over() == ["count"]
    unbind("sub", "topics", "b", {}, slow.rig.connection.id)
    assert slow.slow.watched() == []


def test_sc_1_a_delayed_exchange_that_routes_by_topic_counts() -> None:
    slow = Slow(1, type="direct", count=1)
    slow.rig.vhost.declare_exchange(
        "later", "x-delayed-message", True, False, False, {"x-delayed-type": "topic"}, False
    )
    slow.rig.bind("sub", "later", "k")
    slow.send(2)
    assert slow.over() == ["count"]


def test_sc_11_a_subscription_whose_consumer_is_gone_is_left_alone() -> None:
    slow = Slow(1, exclusive_queue=False, exclusive=True, count=1)
    slow.send(5)
    assert slow.state == OVER
    assert slow.consumer is not None
    slow.rig.broker.consuming.cancel(slow.consumer)
    assert slow.look() is None
    assert slow.watched.state == FINE


def test_a_browser_is_no_consumer() -> None:
    slow = Slow(consume=False, count=1)
    slow.rig.broker.consuming.browse(slow.session, slow.queue, "b", Filter())
    slow.send(5)
    assert slow.look() is None


# -- what is there


def test_what_others_hold_of_the_subscription_counts_too() -> None:
    """By basic.get, and by a consumer that was cancelled."""
    slow = Slow(2, exclusive_queue=False, exclusive=True, depth=399, age=1000)
    slow.rig.says.update({number: Said(body=100) for number in range(1, 9)})
    slow.send(2)
    assert slow.consumer is not None
    slow.rig.broker.consuming.cancel(slow.consumer)
    slow.send(1)
    assert slow.rig.get(slow.publisher, slow.queue) is not None
    slow.wait(900)
    slow.rig.broker.consuming.consume(slow.rig.session(), slow.queue, "new", False, True, 0, {})
    slow.send(1)
    reading = slow.look()
    assert reading is not None
    assert (reading.count, reading.depth, reading.over) == (4, 400, ["depth"])
    assert reading.age_ms == 900


def test_sc_2_what_a_transaction_settled_counts_until_it_is_committed() -> None:
    """A consumer that acknowledges and never commits leaves everything with the broker."""
    slow = Slow(prefetch=5, count=3, depth=3 * SIZE, age=10_000)
    slow.send(4)
    transaction = slow.broker.transactions.begin(slow.session)
    slow.broker.transactions.settle(transaction, slow.session, 1, 4, 1)
    slow.rig.settle_down()
    assert slow.over() == ["count", "depth"]
    slow.wait(10_001)
    assert slow.over() == ["count", "depth", "age"]
    reading = slow.watched.reading
    assert reading is not None
    assert (reading.count, reading.depth, reading.age_ms) == (4, 4 * SIZE, 10_001)
    slow.broker.transactions.commit(transaction)
    slow.rig.settle_down()
    assert slow.state == FINE


def test_what_is_deferred_is_not_there_yet_and_is_as_old_as_it_is_ready() -> None:
    slow = Slow(1, count=1, age=1000)
    slow.send(1)
    known = Annotations(due_ms=slow.rig.now_ms + 5000)
    slow.rig.send("k", 50, 51, exchange="t", annotations=known)
    slow.settle(1, 1)
    slow.wait(4000)
    assert slow.look() is None
    slow.wait(1500)
    reading = slow.look()
    assert reading is not None
    assert (reading.count, reading.age_ms, reading.over) == (2, 500, ["count"])


def test_the_depth_of_a_deep_backlog_is_told_without_reading_all_of_it() -> None:
    """What arrived one by one and is packed is not taken apart to be weighed."""
    slow = Slow(1, exclusive_queue=False, exclusive=True, depth=100 * 3000)
    rig = slow.rig
    rig.delete("sub")
    slow.queue = rig.queue("sub")
    rig.bind("sub", "t", "k")
    slow.consumer = slow.subscribe(1, exclusive=True)
    rig.broker.backlogs.packing = Packing(after=64, group=32, fresh=8)
    rig.says.update({number: Said(body=100) for number in range(10_001, 13_002)})
    for number in range(10_001, 13_001):
        rig.send("k", number, exchange="t", session=slow.publisher)
        if number % 50 == 0:
            rig.settle_down()
    packed = sum(1 for piece in slow.queue.slices() if piece.payload.pack is not None)
    assert packed > 50
    reading = slow.look()
    assert reading is not None
    assert (reading.depth, reading.over) == (300_000, [])
    assert sum(1 for p in slow.queue.slices() if p.payload.pack is not None) == packed
    assert slow.slow.walked < 500
    rig.send("k", 13_001, exchange="t", session=slow.publisher)
    rig.settle_down()
    assert slow.over() == ["depth"]
    rig.broker.check()


def test_far_from_the_limit_no_body_is_read() -> None:
    slow = Slow(1, depth=1_000_000)
    slow.rig.says.update({number: Said(body=10) for number in range(1, 1001)})
    slow.send(1000, together=True)
    assert slow.look() is not None
    assert slow.slow.walked == 0
    (piece,) = slow.queue.slices()
    assert piece.payload.bodies is None


# -- cost


def test_what_does_not_change_is_not_due() -> None:
    slow = Slow(1, count=10, depth=1000 * SIZE, age=1000)
    slow.look()
    assert slow.slow.due() == []
    slow.send(2)
    assert slow.slow.due() == [slow.watched]
    slow.look()
    assert slow.slow.due() == []
    slow.wait(799)
    assert slow.slow.due() == []  # nothing in it can be near its age
    slow.wait(1)
    assert slow.slow.due() == [slow.watched]
    assert slow.state == NEAR
    slow.wait(200)
    assert slow.slow.due() == []
    slow.wait(1)
    assert slow.state == OVER
    slow.wait(100_000)
    assert slow.slow.due() == []


def test_a_settlement_a_consumer_and_a_policy_make_it_due() -> None:
    slow = Slow(2, count=10)
    slow.send(5)
    slow.look()
    slow.settle(1, 1)
    assert slow.slow.due() == [slow.watched]
    slow.look()
    slow.wait(1)
    slow.rig.broker.consuming.consume(slow.session, slow.queue, "second", False, False, 0, {})
    assert slow.slow.due() == [slow.watched]
    slow.look()
    slow.rig.set_policy("sub", {"slow-consumer-count": 3})
    assert slow.over() == ["count"]
    slow.rig.set_policy("sub", {})
    assert slow.over() == []


def test_sc_a6_new_rules_hold_for_what_is_there_with_the_next_look() -> None:
    slow = Slow(1, count=10)
    slow.send(5)
    assert slow.state == FINE
    slow.slow.rules = Rules(general=Rule(count=4))
    assert slow.over() == ["count"]
    slow.slow.rules = Rules()
    assert slow.slow.watched() == []


def test_a_deleted_queue_and_a_deleted_virtual_host_are_forgotten() -> None:
    slow = Slow(1, count=1)
    slow.send(2)
    watched = slow.watched
    assert slow.state == OVER
    slow.rig.delete("sub")
    assert slow.slow.look(watched) is None
    assert slow.slow.watched() == []
    del slow.rig.broker.vhosts["/"]
    assert slow.slow.due() == []


def test_values_say_who_and_how_much_and_what_was_allowed() -> None:
    slow = Slow(2, count=3, age=9_000, rate=0.5)
    slow.send(4)
    slow.wait(1500)
    reading = slow.look()
    assert reading is not None
    assert reading.values(slow.rig.now_ms) == {
        "vhost": "/", "queue": "sub", "connection": "rig", "user": "guest",
        "depth": 4 * SIZE, "count": 4, "age_ms": 1500, "over": ["count"],
        "limits": {"age": 9_000, "count": 3, "rate": 0.5},
        "consumers": [{
            "tag": "c", "id": slow.consumer.id if slow.consumer else 0, "acknowledges": True,
            "delivered": 2, "settled": 0, "rate": 0.0, "unsettled": 2,
            "oldest_unsettled_ms": 1500, "credit": 0, "idle_ms": None, "age_ms": 1500,
        }],
    }  # fmt: skip
