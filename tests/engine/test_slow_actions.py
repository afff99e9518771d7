"""What is done about a slow subscription, and what it never reaches [SC-1, SC-7, SC-8, SC-D7]."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.engine.errors import HeldBack, NotFound
from tallymark.engine.sinks import StagedPart
from tallymark.engine.slow.actions import TEXT, record
from tallymark.engine.slow.consumers import FINE, OVER
from tallymark.stored import records
from tests.support.engine_rig import Said
from tests.support.slow_rig import Slow

TRANSIENT: dict[str, Any] = {"exclusive_queue": True, "durable": False}
DURABLE: dict[str, Any] = {"exclusive_queue": False, "durable": True, "exclusive": True}


# -- disconnect


@pytest.mark.parametrize(
    ("kind", "delete_persistent"),
    [(TRANSIENT, False), (TRANSIENT, True), (DURABLE, True),
     ({**TRANSIENT, "exclusive_queue": False, "exclusive": True}, False)],
    ids=["transient", "transient, option set", "durable", "transient by exclusive consumer"],
)  # fmt: skip
def test_sc_7_the_session_is_closed_with_the_text_and_the_queue_is_gone(
    kind: dict[str, Any], delete_persistent: bool
) -> None:
    slow = Slow(1, count=3, **kind)
    slow.send(5)
    assert slow.caught().disconnect(delete_persistent)
    slow.rig.settle_down()
    assert slow.rig.closed == [(slow.session.id, TEXT)]
    assert TEXT == "Consuming too slow."
    assert slow.session.closed
    assert slow.queue.deleted
    assert "sub" not in slow.rig.vhost.queues
    assert slow.queue.account.dropped == {records.DROPPED_QUEUE_DELETED: 5}
    assert slow.rig.cancelled == []  # told once, by the session's end
    slow.broker.check()


def test_sc_7_a_durable_subscription_is_left_alone_unless_it_may_be_deleted() -> None:
    slow = Slow(1, count=3, **DURABLE)
    slow.send(5)
    assert not slow.caught().disconnect(False)
    slow.rig.settle_down()
    assert slow.rig.closed == []
    assert slow.consumer is not None
    assert slow.consumer.active
    assert (slow.queue.ready, slow.queue.acquired) == (4, 1)
    slow.settle(1, 1)  # and it goes on consuming
    assert slow.queue.account.settled == 1


def test_sc_8_what_stays_is_everything_else() -> None:
    slow = Slow(1, count=3, **TRANSIENT)
    rig, connection = slow.rig, slow.rig.connection
    other_channel = rig.session()
    rig.queue("other", durable=False, exclusive=True)
    rig.exchange("beside", "fanout", ("other", ""))
    rig.vhost.bind_exchange("beside", "t", "#", {})
    rig.consume(other_channel, "other", "o")
    slow.send(5)
    slow.caught().disconnect(False)
    rig.settle_down()
    assert rig.closed == [(slow.session.id, TEXT)]
    assert connection.id in slow.broker.connections
    assert not other_channel.closed
    assert "t" in rig.vhost.exchanges
    other = rig.vhost.queues["other"]
    assert (other.acquired, sorted(held.number for held in rig.given[-5:])) == (5, [1, 2, 3, 4, 5])
    rig.send("k", 6, exchange="t")  # the shared bytes are still whole
    rig.settle_down()
    slow.queue = rig.queue("sub", durable=False, exclusive=True)  # and it may subscribe anew
    rig.bind("sub", "t", "k")
    again = rig.session()
    rig.consume(again, "sub", "c")
    rig.send("k", 7, exchange="t")
    assert [one.number for one in rig.settle_down() if one.consumer == "c"] == [7]
    slow.broker.check()


def test_sc_a2_what_it_held_is_requeued_to_others_where_the_queue_stays() -> None:
    """The session's messages of another queue come back to it, redelivered, not failed."""
    slow = Slow(1, count=3, **TRANSIENT)
    rig = slow.rig
    rig.queue("work")
    rig.consume(slow.session, "work", "w")
    rig.publish(slow.publisher, "work", [50])
    slow.send(5)
    slow.caught().disconnect(False)
    rig.settle_down()
    (held,) = rig.holds("work")
    assert (held.number, held.acquired, held.failed) == (50, 1, 0)


def test_every_session_of_its_owner_that_consumes_it_is_closed() -> None:
    slow = Slow(1, count=3, **TRANSIENT)
    second = slow.rig.session()
    slow.rig.consume(second, "sub", "d", prefetch=1)
    slow.send(8)
    slow.caught().disconnect(False)
    slow.rig.settle_down()
    assert slow.rig.closed == [(slow.session.id, TEXT), (second.id, TEXT)]
    assert slow.queue.deleted


def test_sc_9_scope_link_ends_the_consumer_alone_where_there_are_links() -> None:
    slow = Slow(1, count=3, **DURABLE)
    assert slow.consumer is not None
    slow.broker.consuming.grant(slow.consumer, 1, False)
    slow.send(5)
    assert slow.caught().disconnect(True, whole_session=False)
    slow.rig.settle_down()
    assert slow.rig.closed == [(slow.consumer.id, TEXT)]
    assert not slow.consumer.active
    assert not slow.session.closed
    assert slow.queue.deleted
    assert slow.session.unacked == 0
    channel = Slow(1, count=3, **TRANSIENT)  # AMQP 0-9-1 has none
    channel.send(5)
    channel.caught().disconnect(False, whole_session=False)
    assert channel.session.closed


def test_sc_1_a_policy_reaches_nothing_that_is_no_subscription_any_more() -> None:
    """Between the look and the action the queue became shared, or was unbound, or deleted."""
    for undo in (
        lambda slow: slow.rig.vhost.unbind_queue("sub", "t", "k", {}, slow.rig.connection.id),
        lambda slow: slow.broker.consuming.cancel(slow.consumer),
        lambda slow: slow.rig.delete("sub"),
    ):
        slow = Slow(1, count=3, **DURABLE)
        slow.send(5)
        caught = slow.caught()
        undo(slow)
        ready = slow.queue.ready
        assert not caught.disconnect(True)
        assert caught.drop_oldest() == caught.dead_letter() == 0
        assert not caught.hold_publishers()
        assert (slow.session.closed, slow.queue.ready) == (False, ready)


# -- drop the oldest, dead-letter


def test_sc_d7_drop_oldest_leaves_the_newest_that_fit_the_count() -> None:
    slow = Slow(2, count=5, **DURABLE)
    slow.send(9)
    assert slow.caught().drop_oldest() == 4
    slow.rig.settle_down()
    assert slow.rig.ready("sub") == [7, 8, 9]  # 1 and 2 are with the consumer
    assert slow.rig.dropped("sub") == {"slow_consumer": 4}
    assert slow.state != OVER
    slow.broker.check()
    after = slow.rig.restart()
    assert after.dropped("sub") == {"slow_consumer": 4}
    assert after.ready("sub") == [1, 2, 7, 8, 9]


def test_sc_d7_drop_oldest_by_age_and_by_depth() -> None:
    slow = Slow(1, age=1000, **TRANSIENT)
    slow.send(3)
    slow.wait(600)
    slow.send(2)
    slow.wait(500)
    assert slow.caught().drop_oldest() == 2
    assert slow.rig.ready("sub") == [4, 5]
    slow.settle(1, 1)
    assert slow.state == FINE
    heavy = Slow(1, depth=250, **TRANSIENT)
    heavy.rig.says.update({number: Said(body=100) for number in range(1, 5)})
    heavy.send(4, together=True)
    assert heavy.caught().drop_oldest() == 2
    assert heavy.rig.ready("sub") == [4]
    heavy.broker.check()


def test_what_the_consumer_holds_is_not_taken_from_it() -> None:
    slow = Slow(0, count=3, **TRANSIENT)
    slow.send(5)
    assert slow.caught().drop_oldest() == 0
    assert slow.queue.acquired == 5


def test_sc_d7_dead_letter_sends_them_on_with_reason_maxlen() -> None:
    slow = Slow(1, count=2, arguments={"x-dead-letter-exchange": "dlx"}, **DURABLE)
    slow.rig.queue("dead")
    slow.rig.exchange("dlx", "fanout", ("dead", ""))
    slow.send(5)
    assert slow.caught().dead_letter() == 3
    slow.rig.settle_down()
    assert [(one.number, one.deaths) for one in slow.rig.holds("dead")] == [
        (number, [("sub", "maxlen", 1)]) for number in (2, 3, 4)
    ]
    assert slow.rig.ready("sub") == [5]
    assert slow.queue.account.dead_lettered == 3
    slow.broker.check()


def test_without_a_dead_letter_exchange_they_are_dropped_as_too_many() -> None:
    slow = Slow(1, count=2, **DURABLE)
    slow.send(5)
    assert slow.caught().dead_letter() == 3
    assert slow.rig.dropped("sub") == {"maxlen": 3}


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4), st.integers(0, 400)), max_size=12),
    st.integers(0, 3),
    st.sampled_from([0, 4, 10]),
    st.sampled_from([0, 40, 120]),
    st.sampled_from([0, 700]),
    st.booleans(),
)
def test_what_is_left_is_the_newest_and_as_much_as_the_limits_allow(
    stretches: list[tuple[int, int, int]],
    prefetch: int,
    count: int,
    depth: int,
    age: int,
    exclusive_queue: bool,
) -> None:
    """Against the obvious way: drop one from the head until nothing is above its limit."""
    if not (count or depth or age):
        count = 7
    slow = Slow(
        prefetch + 1, count=count, depth=depth, age=age, exclusive_queue=exclusive_queue,
        exclusive=not exclusive_queue,
    )  # fmt: skip
    sizes: dict[int, int] = {}
    times: dict[int, int] = {}
    for size, n, pause in stretches:
        for number in range(slow.next, slow.next + n):
            sizes[number] = size
            times[number] = slow.rig.now_ms
            slow.rig.says[number] = Said(body=size)
        slow.send(n, together=True)
        slow.wait(pause)
    held = list(sizes)[: prefetch + 1]
    ready = list(sizes)[prefetch + 1 :]
    now = slow.rig.now_ms

    def too_much() -> bool:
        kept = held + ready
        return bool(
            (count and len(kept) > count)
            or (depth and sum(sizes[number] for number in kept) > depth)
        )

    was_over = too_much() or any(age and now - times[number] > age for number in held + ready)
    assert bool(slow.over()) == was_over
    if not was_over:
        return
    ready = [number for number in ready if not (age and now - times[number] > age)]
    while ready and too_much():
        ready.pop(0)
    dropped = slow.caught().drop_oldest()
    slow.rig.settle_down()
    assert slow.rig.ready("sub") == ready
    assert dropped == len(sizes) - len(held) - len(ready)
    slow.broker.check()


# -- flow


def test_sc_d7_publishers_are_held_back_from_their_next_publish_on_and_released() -> None:
    slow = Slow(1, count=3, **TRANSIENT)
    slow.send(5)
    assert slow.caught().hold_publishers()
    assert not slow.caught().hold_publishers()  # once is enough
    slow.rig.settle_down()
    assert slow.rig.held == []
    slow.send(2)
    assert slow.rig.held == [("publisher", "sub", True)]
    assert slow.queue.entered == 7  # what came is taken
    elsewhere = slow.rig.session(slow.broker.clients.open_connection("/", "guest", "elsewhere"))
    slow.rig.queue("other")
    slow.rig.publish(elsewhere, "other", [1])
    slow.rig.settle_down()
    assert len(slow.rig.held) == 1
    slow.broker.publishing.hold_publishers(slow.queue, False)
    slow.rig.settle_down()
    assert slow.rig.held[1:] == [("publisher", "sub", False)]
    slow.send(1)
    assert len(slow.rig.held) == 2


def test_sc_d7_whoever_publishes_under_a_transaction_is_held_back_too() -> None:
    slow = Slow(1, count=3, **TRANSIENT)
    slow.send(5)
    slow.caught().hold_publishers()
    transaction = slow.broker.transactions.begin(slow.publisher)
    slow.rig.stage(transaction, "k", 20, exchange="t")
    slow.rig.settle_down()
    assert slow.rig.held == [("publisher", "sub", True)]
    slow.broker.transactions.commit(transaction)
    slow.broker.publishing.hold_publishers(slow.queue, False)
    slow.rig.settle_down()
    assert (len(slow.rig.held), slow.queue.entered) == (2, 6)


def test_the_connection_that_consumes_is_not_held_back_by_its_own_slowness() -> None:
    """It could not acknowledge any more."""
    slow = Slow(1, count=3, **TRANSIENT)
    slow.send(5)
    slow.caught().hold_publishers()
    slow.rig.send("k", 60, exchange="t", session=slow.session)
    slow.rig.settle_down()
    assert slow.rig.held == []


def test_publishers_of_several_queues_at_once_and_in_parts_are_held_too() -> None:
    slow = Slow(1, count=3, **TRANSIENT)
    slow.send(5)
    slow.caught().hold_publishers()
    slow.rig.queue("plain")
    slow.rig.bind("plain", "t", "#")
    slow.rig.publish_parts(slow.publisher, "t", [("x", [20]), ("k", [21, 22])])
    slow.rig.settle_down()
    assert slow.rig.held == [("publisher", "sub", True)]
    assert slow.rig.ready("plain")[-3:] == [20, 21, 22]
    slow.broker.check()


def test_sc_d7_what_a_sink_stages_is_refused_meanwhile_and_what_is_staged_is_committed() -> None:
    slow = Slow(1, count=3, **TRANSIENT)
    rig, sinks = slow.rig, slow.broker.sinks
    rig.queue("plain")

    def stage(exchange: str, key: str, number: int, vhost: str = "/") -> int:
        part = StagedPart(rig.payload(key, [number], True, exchange), None, False, 0)
        return sinks.stage(vhost, "s", [part], 60_000).id

    before = stage("t", "k", 20)
    slow.send(5)
    slow.caught().hold_publishers()
    with pytest.raises(HeldBack, match="queue 'sub' in vhost '/' wait: its consumer is slow"):
        stage("t", "k", 21)
    beside = stage("", "plain", 22)
    assert list(sinks.stagings) == [before, beside]
    with pytest.raises(NotFound, match="vhost gone not found"):
        stage("t", "k", 23, "gone")
    slow.broker.publishing.commit_sink("/", "s", "me", 0, [before, beside])
    rig.settle_down()
    assert (slow.queue.entered, rig.ready("plain")) == (6, [22])
    slow.broker.publishing.hold_publishers(slow.queue, False)
    stage("t", "k", 24)
    slow.broker.check()


def test_nobody_is_held_for_a_queue_that_is_gone_nor_told_after_leaving() -> None:
    slow = Slow(1, count=3, **TRANSIENT)
    slow.send(5)
    slow.caught().hold_publishers()
    slow.send(1)
    gone = slow.rig.session(slow.broker.clients.open_connection("/", "guest", "gone"))
    slow.rig.send("k", 70, exchange="t", session=gone)
    slow.broker.clients.close_connection(gone.connection, lost=True)
    slow.rig.delete("sub")
    slow.rig.settle_down()
    assert slow.rig.held == [
        ("publisher", "sub", True), ("gone", "sub", True), ("publisher", "sub", False)
    ]  # fmt: skip
    assert slow.broker.publishing.held == {}


# -- the ledger


def test_the_ledger_has_a_row_for_what_was_found_and_a_restart_passes_it_over() -> None:
    slow = Slow(1, count=3, **DURABLE)
    slow.send(5)
    reading = slow.caught().reading
    record(slow.broker, reading, records.SLOW_FOUND, reading.values(slow.rig.now_ms))
    slow.rig.settle_down()
    (row,) = [r for block in slow.rig.log.blocks for r in block if r.kind == records.SLOW]
    assert slow.consumer is not None
    assert (row.queue, row.owner, row.reason) == (
        slow.queue.id, slow.consumer.id, records.SLOW_FOUND
    )  # fmt: skip
    said = json.loads(row.blob)
    assert (said["v"], said["queue"], said["over"], said["connection"]) == (
        1, "sub", ["count"], "rig"
    )  # fmt: skip
    after = slow.rig.restart()
    assert after.vhost.queues["sub"].entered == 5
    assert after.ready("sub") == [1, 2, 3, 4, 5]
    after.broker.check()
