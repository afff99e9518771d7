"""What consumers hold: deadlines, TOUCH, REQ, loss of the consumer; entries, bitmaps and credit
[NQ-11 to NQ-15, NQ-A1 to NQ-A8, LC-2]."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest

from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.outcomes import ACCEPTED, FAILED, REJECTED, RETURNED
from tallymark.engine.session import REQUEUES, STOPS, InFlight
from tallymark.engine.timeouts import MERGE_MS
from tests.support.engine_rig import START_MS, Rig
from tests.support.engine_steps import finish, manual
from tests.support.nsq_client import Client

SECOND = 1000


def subscribed(
    *messages: int, rdy: int = 10, timeout_ms: int = SECOND, **arguments: object
) -> tuple[Rig, Client]:
    """A queue with messages, and a client that was sent what its RDY count allows."""
    rig = manual()
    rig.declare("q", arguments)
    client = Client(rig, "q", rdy=rdy, timeout_ms=timeout_ms)
    if messages:
        rig.send("q", *messages)
    finish(rig)
    return rig, client


def in_flight(rig: Rig) -> int:
    return rig.vhost.queues["q"].acquired


def timed_out(rig: Rig) -> int:
    return rig.vhost.queues["q"].timed_out


# -- RDY and in flight


def test_nq_11_no_more_is_sent_than_rdy_allows() -> None:
    rig, client = subscribed(1, 2, 3, 4, 5, rdy=2)
    assert client.consumer.unacked == 2
    client.fin(1)
    assert client.mine(finish(rig)) == [(3, 3)]
    client.rdy(0)
    client.fin(2)
    assert finish(rig) == []
    client.rdy(3)
    assert client.mine(finish(rig)) == [(4, 4), (5, 5)]
    assert client.consumer.unacked == 3


def test_nq_11_rdy_below_what_is_in_flight_takes_nothing_back() -> None:
    rig, client = subscribed(1, 2, 3, 4, rdy=3)
    client.rdy(1)
    client.fin(1, 2)
    assert finish(rig) == []
    client.fin(3)
    assert client.mine(finish(rig)) == [(4, 4)]


def test_nq_11_attempts_rise_on_send() -> None:
    rig, client = subscribed(1)
    for attempt in range(1, 5):
        assert rig.given[-1].acquired == attempt - 1
        client.req(attempt)
        finish(rig)
    assert rig.given[-1].acquired == 4


# -- deadlines


def test_nq_a1_a_message_not_finished_in_time_goes_back_and_a_late_fin_fails() -> None:
    rig, client = subscribed(1, rdy=1, timeout_ms=SECOND)
    client.rdy(0)
    rig.advance(SECOND)
    assert (timed_out(rig), in_flight(rig)) == (0, 1)
    rig.advance(150)
    queue = rig.vhost.queues["q"]
    assert (queue.timed_out, queue.requeued) == (1, 0)
    assert (queue.ready, queue.acquired, client.consumer.unacked) == (1, 0, 0)
    with pytest.raises(PreconditionFailed, match="unknown delivery tag 1"):
        client.fin(1)
    assert not client.session.closed
    client.rdy(1)
    assert client.mine(finish(rig)) == [(2, 1)]
    assert rig.given[-1].acquired == 1


def test_nq_14_what_timed_out_goes_to_the_tail() -> None:
    rig, client = subscribed(1, 2, 3, rdy=2)
    assert client.mine(rig.advance(SECOND + MERGE_MS)) == [(3, 3), (4, 1)]
    assert rig.ready("q") == [2]
    finish(rig)


def test_nq_14_lateness_is_no_more_than_what_entries_are_merged_for() -> None:
    rig, client = subscribed(rdy=100)
    for n in range(100):
        rig.send("q", n)
        finish(rig)
        rig.advance(1)
    client.rdy(0)
    start = rig.now_ms - 100
    gone = 0
    while gone < 100:
        rig.advance(1)
        late_at_most = rig.now_ms - start - SECOND - MERGE_MS
        gone = timed_out(rig)
        assert gone >= min(100, late_at_most + 1)
        assert gone <= max(0, rig.now_ms - start - SECOND + MERGE_MS + 1)
    finish(rig)


def test_nq_14_every_entry_has_its_own_deadline() -> None:
    rig, client = subscribed(1)
    rig.advance(500)
    rig.send("q", 2)
    finish(rig)
    client.rdy(0)
    rig.advance(500 + MERGE_MS)
    assert (client.holds(1), client.holds(2)) == (False, True)
    rig.advance(499)
    assert client.holds(2)
    rig.advance(1)
    assert not client.holds(2)
    assert timed_out(rig) == 2


def test_nq_14_a_hole_in_an_entry_is_not_taken_back() -> None:
    rig, client = subscribed(*range(1, 11))
    client.fin(3, 4, 8)
    client.rdy(0)
    rig.advance(SECOND + MERGE_MS)
    assert rig.ready("q") == [1, 2, 5, 6, 7, 9, 10]
    assert rig.vhost.queues["q"].account.settled == 3
    assert timed_out(rig) == 7
    finish(rig)


def test_lc_4_a_strict_consumer_is_stopped_and_its_late_settlement_is_no_error() -> None:
    rig = manual()
    rig.declare("q")
    strict = Client(rig, "q", "amqp", rdy=2, timeout_ms=SECOND)
    strict.consumer.on_timeout = STOPS
    rig.send("q", 1, 2)
    finish(rig)
    strict.fin(1)
    rig.advance(SECOND + MERGE_MS)
    assert not strict.consumer.active
    assert rig.ready("q") == [2]
    assert strict.consumer.unacked == 1
    strict.fin(2)
    assert strict.consumer.unacked == 0
    assert rig.ready("q") == [2]
    assert timed_out(rig) == 0
    finish(rig)


def test_nq_14_both_kinds_of_consumer_share_a_queue() -> None:
    rig = manual()
    rig.declare("q")
    strict = Client(rig, "q", "amqp", rdy=1, timeout_ms=SECOND)
    strict.consumer.on_timeout = STOPS
    lenient = Client(rig, "q", "nsq", rdy=1, timeout_ms=SECOND)
    rig.send("q", 1, 2, 3)
    finish(rig)
    lenient.rdy(0)
    rig.advance(SECOND + MERGE_MS)
    assert lenient.consumer.active
    assert not strict.consumer.active
    assert rig.ready("q") == [1, 3, 2]
    assert timed_out(rig) == 1
    finish(rig)


def test_a_timeout_of_nought_is_none() -> None:
    rig, client = subscribed(1, timeout_ms=0)
    rig.advance(10 * 24 * 3_600_000)
    assert client.holds(1)
    client.fin(1)
    finish(rig)


# -- TOUCH


def test_nq_a2_touch_lets_a_message_be_finished_after_its_first_deadline() -> None:
    rig, client = subscribed(1, timeout_ms=150)
    rig.advance(75)
    client.touch(1)
    rig.advance(75 + MERGE_MS + 50)
    client.fin(1)
    assert timed_out(rig) == 0
    finish(rig)


def test_nq_13_touch_counts_from_now_and_not_from_the_old_deadline() -> None:
    rig, client = subscribed(1, timeout_ms=SECOND)
    client.rdy(0)
    rig.advance(100)
    client.touch(1)
    rig.advance(SECOND - 1)
    assert client.holds(1)
    rig.advance(1 + MERGE_MS)
    assert not client.holds(1)


def test_nq_a2_touched_for_ever_it_is_redelivered_at_max_msg_timeout() -> None:
    rig, client = subscribed(1, timeout_ms=SECOND)
    client.rdy(0)
    most = 5 * SECOND
    for _ in range(9):
        rig.advance(500)
        client.touch(1, most)
        client.touch(1, most)
    rig.advance(500 - 1)
    assert client.holds(1)
    rig.advance(1 + MERGE_MS)
    assert not client.holds(1)
    with pytest.raises(PreconditionFailed):
        client.touch(1, most)
    assert timed_out(rig) == 1
    finish(rig)


def test_nq_13_the_cap_counts_from_the_delivery_of_each_acquisition() -> None:
    rig, client = subscribed(1, timeout_ms=SECOND)
    rig.advance(900)
    client.req(1)
    finish(rig)
    for _ in range(3):
        rig.advance(900)
        client.touch(2, 4 * SECOND)
    assert client.holds(2)
    finish(rig)


@pytest.mark.parametrize("tag", range(1, 8))
def test_nq_13_touch_extends_one_message_of_a_run(tag: int) -> None:
    rig, client = subscribed(*range(1, 8), timeout_ms=SECOND)
    client.fin(3, 5)
    client.rdy(0)
    rig.advance(500)
    if tag in (3, 5):
        with pytest.raises(PreconditionFailed):
            client.touch(tag)
    else:
        client.touch(tag)
    rig.broker.check()
    rig.advance(500 + MERGE_MS)
    assert [t for t in range(1, 8) if client.holds(t)] == ([] if tag in (3, 5) else [tag])
    rig.advance(500)
    assert client.session.inflight == type(client.session.inflight)()
    assert rig.ready("q") == [n for n in (1, 2, 4, 6, 7) if n != tag] + [tag] * (tag not in (3, 5))
    finish(rig)


def test_nq_13_touch_changes_nothing_else() -> None:
    rig, client = subscribed(1, 2, 3)
    before = rig.vhost.queues["q"].counters()
    client.touch(2)
    finish(rig)
    assert rig.vhost.queues["q"].counters() == before
    assert client.consumer.unacked == client.session.unacked == 3


def test_nq_13_what_is_sent_after_a_touch_has_a_cap_of_its_own() -> None:
    """Sent next, from the same run, right after the touch: it was delivered later all the same."""
    rig, client = subscribed(1, 2, rdy=1, timeout_ms=SECOND)
    rig.advance(900)
    client.touch(1)
    client.rdy(2)
    assert client.mine(finish(rig)) == [(2, 2)]
    client.rdy(0)
    most = 2 * SECOND
    for _ in range(4):
        rig.advance(400)
        client.touch(2, most)
    rig.advance(most - 4 * 400 - 1)
    assert client.holds(2)
    rig.advance(1 + MERGE_MS)
    assert not client.holds(2)


def test_nq_13_messages_of_one_run_delivered_apart_are_cut_right() -> None:
    """Entries grow as the same run is handed out bit by bit; a touch in the middle splits them."""
    rig, client = subscribed(*range(1, 21), rdy=4)
    client.fin(2)
    client.fin(1)
    finish(rig)
    client.touch(4)
    client.touch(3)
    client.rdy(12)
    finish(rig)
    client.touch(9)
    client.fin(8, 10)
    client.touch(7)
    rig.broker.check()
    client.rdy(0)
    client.fin(3, 4, 5, 6, 7, 9, 11, 12, 13)
    rig.broker.check()
    rest = [t for t in range(1, 30) if client.holds(t)]
    client.fin(*rest)
    assert client.consumer.unacked == client.session.unacked == 0
    assert rig.vhost.queues["q"].account.settled + rig.vhost.queues["q"].ready == 20
    finish(rig)


def test_touch_of_what_was_deleted_with_its_queue_fails() -> None:
    rig, client = subscribed(1)
    rig.delete("q")
    finish(rig)
    with pytest.raises(PreconditionFailed):
        client.touch(1)
    with pytest.raises(PreconditionFailed):
        client.req(1)
    rig.advance(10 * SECOND)
    client.leave()
    assert client.session.unacked == 0
    for _ in range(2):
        rig.turn()
    assert rig.broker.store.resident_bytes == 0


# -- REQ


def test_nq_12_what_went_to_the_tail_apart_keeps_its_place_when_held_together() -> None:
    """Neighbours by number, but not in the queue: one client holds both, and gives them back."""
    rig, a = subscribed(1, 2, 3, rdy=3)
    a.rdy(0)
    for tag in (1, 3, 2):
        a.req(tag)
    finish(rig)
    assert rig.ready("q") == [1, 3, 2]
    b = Client(rig, "q", "b", rdy=0)
    for client, count in ((a, 1), (b, 1), (a, 2)):
        client.rdy(count)
        finish(rig)
    a.leave()
    b.leave()
    finish(rig)
    assert rig.ready("q") == [1, 3, 2]


def test_nq_a3_req_0_is_redelivered_at_once() -> None:
    rig, client = subscribed(1)
    client.req(1)
    assert client.mine(finish(rig)) == [(2, 1)]
    assert rig.given[-1].acquired == 1
    assert rig.vhost.queues["q"].requeued == 1


def test_nq_12_req_goes_behind_what_is_there_and_before_what_is_to_come() -> None:
    rig, client = subscribed(1, 2, 3, rdy=2)
    client.rdy(0)
    client.req(1)
    rig.send("q", 4)
    client.req(2)
    finish(rig)
    assert rig.ready("q") == [3, 1, 4, 2]
    client.rdy(4)
    assert [n for _, n in client.mine(finish(rig))] == [3, 1, 4, 2]
    rig.broker.check()


def test_lc_2_a_late_settlement_cannot_hit_a_later_delivery() -> None:
    rig, client = subscribed(1)
    client.req(1)
    assert client.mine(finish(rig)) == [(2, 1)]
    for late in (client.fin, client.req, client.touch):
        with pytest.raises(PreconditionFailed, match="unknown delivery tag 1"):
            late(1)
    assert client.holds(2)
    assert in_flight(rig) == 1
    finish(rig)


def test_lc_2_of_two_settlements_the_second_fails() -> None:
    rig, client = subscribed(1, 2, 3)
    client.fin(2)
    client.req(3)
    for tag in (2, 3):
        for again in (client.fin, client.req, client.touch):
            with pytest.raises(PreconditionFailed):
                again(tag)
    finish(rig)


def test_nq_12_req_dies_at_the_acquired_limit_and_the_letter_says_so() -> None:
    rig = manual()
    rig.declare("dead")
    rig.declare(
        "q", {"acquired-limit": 1, "dead-letter-exchange": "", "dead-letter-routing-key": "dead"}
    )
    client = Client(rig, "q", rdy=1)
    rig.send("q", 1, 2)
    finish(rig)
    client.req(1)
    finish(rig)
    client.rdy(0)
    client.req(2, 50)
    rig.advance(50)
    assert rig.ready("q") == [1, 2]
    client.rdy(1)
    finish(rig)
    client.req(3, 5000)
    finish(rig)
    assert rig.ready("dead") == [1]
    assert rig.holds("dead")[0].deaths == [("q", "delivery_limit", 1)]
    client.rdy(1)
    rig.advance(SECOND * 100)
    assert 2 in rig.ready("dead") + rig.ready("q") + [h.number for h in rig.given]


def test_nq_14_timing_out_counts_for_the_acquired_limit() -> None:
    rig, client = subscribed(1, timeout_ms=SECOND, **{"acquired-limit": 2})
    rig.advance(3 * (SECOND + MERGE_MS))
    assert rig.dropped("q") == {"delivery_limit": 1}
    assert (in_flight(rig), client.consumer.unacked) == (0, 0)
    finish(rig)


# -- the client goes


def test_nq_a5_what_a_lost_client_held_goes_to_another_at_once() -> None:
    rig, a = subscribed(1, rdy=1)
    b = Client(rig, "q", "b", rdy=1)
    finish(rig)
    a.leave()
    assert b.mine(finish(rig)) == [(1, 1)]
    assert rig.given[-1].acquired == 1
    assert (a.session.unacked, a.consumer.unacked) == (0, 0)


def test_nq_d2_with_deferred_and_touched_messages_only_what_it_holds_goes_back() -> None:
    rig, client = subscribed(1, 2, 3, 4, 5, rdy=4)
    client.touch(2)
    client.req(3, 500)
    client.rdy(0)
    client.fin(1)
    client.leave(lost=False)
    finish(rig)
    assert rig.ready("q") == [2, 4, 5]
    rig.advance(500)
    assert rig.ready("q") == [2, 4, 5, 3]
    finish(rig)


def test_the_deadline_of_a_session_that_is_gone_does_nothing() -> None:
    rig, client = subscribed(1)
    client.leave()
    rig.advance(10 * SECOND)
    assert timed_out(rig) == 0
    assert rig.ready("q") == [1]


# -- empty


def test_nq_a9_empty_with_25_in_flight() -> None:
    rig, a = subscribed(*range(40), rdy=13)
    b = Client(rig, "q", "b", rdy=12)
    finish(rig)
    queue = rig.vhost.queues["q"]
    assert (queue.acquired, queue.ready) == (25, 15)
    a.req(2, 100)
    a.touch(4)
    a.fin(7)
    a.rdy(11)
    finish(rig)
    rig.broker.contents.empty(queue)
    finish(rig)
    assert (queue.ready, queue.acquired, queue.deferred) == (0, 0, 0)
    for client in (a, b):
        assert client.consumer.unacked == client.session.unacked == 0
        assert not client.session.inflight
    with pytest.raises(PreconditionFailed):
        a.fin(1)
    assert queue.account.dropped == {2: 39}
    rig.send("q", 100, 101)
    assert len(finish(rig)) == 2
    rig.advance(10 * SECOND)
    assert timed_out(rig) >= 2
    finish(rig)
    after = rig.restart()
    finish(after)
    assert sorted(after.ready("q")) == [100, 101]


def test_nq_15_a_strict_consumer_may_settle_what_an_empty_took_in_vain() -> None:
    """An AMQP consumer knows no such thing: its acknowledgement must not close its channel."""
    rig = manual()
    queue = rig.declare("q")
    session = rig.session()
    rig.consume(session, "q", "c", prefetch=3)
    rig.send("q", 1, 2, 3)
    finish(rig)
    rig.broker.settlement.settle(session, 2, 2, ACCEPTED)
    rig.broker.contents.empty(queue)
    finish(rig)
    assert (queue.acquired, queue.account.settled) == (0, 1)
    rig.broker.settlement.settle(session, 1, 1, ACCEPTED)
    rig.broker.settlement.settle(session, 3, 3, REJECTED)
    assert session.unacked == 0
    assert (queue.acquired, queue.account.settled) == (0, 1)
    finish(rig)
    for _ in range(2):
        rig.turn()
    assert rig.broker.store.resident_bytes == 0


def test_nq_15_empty_leaves_other_queues_and_leases_alone() -> None:
    rig = manual()
    queue = rig.declare("q")
    rig.declare("other")
    session = rig.session()
    rig.send("q", 1, 2)
    rig.send("other", 3)
    subscription = rig.broker.leases.attach(queue, "s")
    rig.broker.leases.lease(subscription, 0, 1, 0)
    assert rig.take(session, "other") is not None
    rig.broker.contents.empty(queue)
    finish(rig)
    assert (queue.account.leased, queue.acquired, queue.ready) == (1, 1, 0)
    rig.broker.settlement.settle(session, 1, 1, ACCEPTED)
    rig.broker.leases.settle(subscription, 1)
    finish(rig)


@pytest.mark.parametrize("outcome", [ACCEPTED, REJECTED, RETURNED, FAILED])
def test_every_outcome_after_a_touch_finds_its_message(outcome: int) -> None:
    rig, client = subscribed(*range(1, 8))
    client.rdy(0)
    client.touch(4)
    client.fin(2)
    client.touch(6)
    rig.broker.settlement.settle(client.session, 3, 6, outcome)
    finish(rig)
    expected = [3, 4, 5, 6] if outcome in (RETURNED, FAILED) else []
    assert rig.ready("q") == expected
    rig.broker.settlement.settle_up_to(client.session, 0, ACCEPTED)
    finish(rig)
    assert client.session.unacked == 0


def test_settle_up_to_crosses_touched_entries() -> None:
    rig, client = subscribed(*range(1, 10))
    client.touch(3)
    client.fin(5)
    client.touch(7)
    rig.broker.settlement.settle_up_to(client.session, 8, ACCEPTED)
    finish(rig)
    assert [t for t in range(1, 10) if client.holds(t)] == [9]
    assert rig.vhost.queues["q"].account.settled == 8


@pytest.mark.parametrize("n", [1, 10])
def test_nq_14_a_time_out_with_other_queues_of_the_session_touches_those_not(n: int) -> None:
    rig = manual()
    rig.declare("q")
    rig.declare("other")
    session = rig.session()
    for name, tag, timeout_ms in (("q", "a", SECOND), ("other", "b", 10 * SECOND)):
        consumer = rig.consume(session, name, tag)
        consumer.on_timeout = REQUEUES
        consumer.timeout_ms = timeout_ms
        consumer.limit = n
        rig.send(name, *range(n))
    finish(rig)
    for consumer in session.consumers.values():
        consumer.limit = 0
    rig.advance(SECOND + MERGE_MS)
    assert rig.vhost.queues["q"].acquired == 0
    assert rig.vhost.queues["other"].acquired == n
    rig.advance(9 * SECOND)
    assert rig.vhost.queues["other"].acquired == 0
    assert session.unacked == 0
    finish(rig)


def test_nq_d1_a_session_that_holds_much_is_not_looked_through_every_millisecond() -> None:
    """Each delivery has a deadline of its own, a millisecond apart; what is void stays known."""
    rig = manual()
    rig.declare("q", durable=False)
    strict = Client(rig, "q", "amqp", rdy=10_000, timeout_ms=10 * SECOND)
    strict.consumer.on_timeout = STOPS
    for n in range(4000):
        rig.send("q", n)
        rig.turn()
        rig.now_ms += 1
    assert len(strict.session.inflight) == 4000
    looks = 0
    while rig.vhost.queues["q"].acquired:
        due_ms = rig.broker.next_due()
        assert due_ms - rig.now_ms < 11 * SECOND
        rig.now_ms = max(rig.now_ms, due_ms)
        rig.turn()
        looks += 1
    assert looks <= 1002
    assert rig.now_ms <= START_MS + 4000 + 10 * SECOND + MERGE_MS + 4
    rig.broker.check()


class Counted(deque[InFlight]):
    """In-flight ranges that count how many of them are looked at."""

    looks = 0

    def __getitem__(self, at: int) -> InFlight:  # type: ignore[override]
        self.looks += 1
        return super().__getitem__(at)

    def __iter__(self) -> Iterator[InFlight]:
        for entry in super().__iter__():
            self.looks += 1
            yield entry


def test_to_empty_a_queue_looks_only_at_what_a_session_holds_of_it() -> None:
    """It went over all that the session held, of whatever queue."""
    rig = manual()
    session, queues = rig.session(), [rig.queue(f"q{at}") for at in range(500)]
    for at, queue in enumerate(queues):
        rig.consume(session, queue.name, queue.name)
        rig.send(queue.name, at)
    rig.settle_down()
    session.inflight = counted = Counted(session.inflight)
    counted.looks = 0
    for queue in queues:
        rig.broker.contents.empty(queue)
    assert session.inflight is counted, "the ranges were laid out anew"
    assert counted.looks <= 20 * len(queues)
    rig.broker.check()
    assert all(queue.acquired == 0 for queue in queues)
