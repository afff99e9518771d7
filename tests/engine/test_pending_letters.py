"""At-least-once: a letter that nothing takes stays pending in its queue, visible, counted, retried
[DL-21 to DL-25, DL-A13, DL-A14, DL-D3]."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tallymark.engine.outcomes import ACCEPTED, FAILED
from tests.support.engine_rig import Rig, Said
from tests.support.engine_steps import drain, finish, manual, reject
from tests.support.growth import assert_linear

KEEPS = {"dead-letter-strategy": "at-least-once"}
CONFIRMED = ("at_least_once", "confirmed")
SECOND = 1000


def keeping(exchange: str = "x", durable: bool = True, **more: object) -> Rig:
    """Queue q with an exchange that may or may not be there, and queue t."""
    rig = manual()
    settings = {key.replace("_", "-"): value for key, value in more.items()}
    rig.declare("q", KEEPS | {"dead-letter-exchange": exchange} | settings, durable)
    rig.declare("t")
    return rig


def confirmed(rig: Rig) -> int:
    return rig.broker.dead_letters.counts.get(CONFIRMED, 0)


# -- DL-21, DL-22: where letters wait


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish", "reject-publish-dlx"])
@pytest.mark.parametrize("durable", [True, False])
def test_dl_21_dl_d3_every_queue_can_keep_its_letters(overflow: str, durable: bool) -> None:
    rig = keeping(durable=durable, overflow=overflow)
    rig.send("q", 1)
    reject(rig, "q")
    assert rig.pending("q") == [1]
    rig.exchange("x", "fanout", ("t", ""))
    finish(rig)
    assert (rig.pending("q"), rig.ready("t")) == ([], [1])
    assert confirmed(rig) == 1


def test_dl_22_pending_letters_wait_in_order_and_are_counted() -> None:
    rig = keeping()
    rig.send("q", 1, 2, 3, 4, ttl=50)
    rig.send("q", 5)
    reject(rig, "q", 2)
    rig.advance(50)
    queue = rig.vhost.queues["q"]
    assert rig.pending("q") == [1, 2, 3, 4]
    assert (queue.ready, queue.pending, queue.account.pending_bytes) == (1, 4, 32)
    assert queue.counters()["dead_letter_pending"] == 4
    rig.exchange("x", "fanout", ("t", ""))
    finish(rig)
    assert rig.ready("t") == [1, 2, 3, 4]
    assert [h.deaths[0][1] for h in rig.holds("t")] == ["rejected"] * 2 + ["expired"] * 2


def test_dl_22_pending_letters_count_toward_max_length_and_are_the_oldest() -> None:
    rig = keeping(max_length=3)
    rig.send("q", 1, 2, 3)
    reject(rig, "q", 2)
    rig.send("q", 4)
    finish(rig)
    assert (rig.pending("q"), rig.ready("q")) == ([2], [3, 4])
    rig.send("q", 5, 6)
    finish(rig)
    # The oldest pending one is dropped, counted; then the oldest ready one dies and is pending too,
    # and as the oldest it goes.
    assert (rig.pending("q"), rig.ready("q")) == ([], [4, 5, 6])
    assert rig.dropped("q") == {"maxlen": 3}


def test_dl_22_pending_letters_count_toward_max_length_bytes() -> None:
    rig = keeping(max_length_bytes=30)
    rig.says |= {n: Said(body=10) for n in range(10)}
    rig.send("q", 1, 2)
    reject(rig, "q", 2)
    rig.send("q", 3)
    finish(rig)
    assert (rig.pending("q"), rig.ready("q")) == ([1, 2], [3])
    rig.send("q", 4)
    finish(rig)
    assert (rig.pending("q"), rig.ready("q")) == ([2], [3, 4])
    assert rig.dropped("q") == {"maxlen": 1}


# -- DL-23, DL-24: retries


def test_dl_23_a_retry_comes_within_a_second_where_no_change_of_topology_announces_it() -> None:
    rig = keeping("")
    rig.set_policy("q", {"dead-letter-routing-key": "t"})
    rig.set_policy("t", {"max-length": 1, "overflow": "reject-publish"})
    rig.send("t", 9)
    rig.send("q", 1)
    reject(rig, "q")
    assert rig.pending("q") == [1]
    drain(rig, "t")
    rig.advance(SECOND)
    assert (rig.pending("q"), rig.ready("t")) == ([], [1])
    assert confirmed(rig) == 1


def test_dl_23_never_again_to_a_target_that_has_it() -> None:
    rig = keeping()
    rig.declare("full", {"max-length": 1, "overflow": "reject-publish"})
    rig.exchange("x", "fanout", ("t", ""), ("full", ""))
    rig.send("full", 9)
    rig.send("q", 1)
    reject(rig, "q")
    for _ in range(3):
        rig.advance(SECOND)
        assert (rig.ready("t"), rig.pending("q")) == ([1], [1])
    drain(rig, "t")
    drain(rig, "full")
    rig.advance(SECOND)
    assert (rig.ready("t"), rig.ready("full"), rig.pending("q")) == ([], [1], [])
    assert confirmed(rig) == 1


def test_dl_23_where_the_routes_vanish_after_one_target_has_it_the_letter_is_done() -> None:
    rig = keeping()
    rig.declare("full", {"max-length": 0, "overflow": "reject-publish"})
    rig.exchange("x", "fanout", ("t", ""), ("full", ""))
    rig.send("q", 1)
    reject(rig, "q")
    assert rig.pending("q") == [1]
    rig.delete("t")
    rig.delete("full")
    finish(rig)
    assert rig.pending("q") == []
    assert (rig.vhost.queues["q"].account.dead_lettered, confirmed(rig)) == (1, 1)


def test_dl_23_a_death_is_recorded_once_however_often_it_is_tried() -> None:
    rig = keeping()
    rig.send("q", 1)
    rig.advance(7)
    reject(rig, "q")
    died = rig.now_ms
    rig.advance(10 * SECOND)
    rig.exchange("x", "fanout", ("t", ""))
    finish(rig)
    letter = rig.holds("t")[0].annotations
    assert letter is not None
    assert [(d.count, d.first_ms, d.last_ms) for d in letter.deaths] == [(1, died, died)]
    assert letter.since_ms == rig.now_ms, "its TTL in the target counts from when it came there"


def test_dl_23_nothing_is_dropped_on_a_cycle() -> None:
    rig = keeping("", message_ttl=5)
    rig.send("q", 1)
    rig.advance(5)
    assert rig.pending("q") == [1]
    rig.advance(10 * SECOND)
    assert rig.pending("q") == [1]
    assert rig.dropped("q") == {}
    rig.set_policy("q", {"dead-letter-routing-key": "t"})
    finish(rig)
    assert (rig.pending("q"), rig.ready("t")) == ([], [1])


def test_dl_24_a_target_that_comes_back_under_its_name_gets_no_second_copy_of_what_it_had() -> None:
    """Upstream sends it again; here the name is what is remembered, and the letter was safe."""
    rig = keeping()
    rig.declare("full", {"max-length": 0, "overflow": "reject-publish"})
    rig.exchange("x", "fanout", ("t", ""), ("full", ""))
    rig.send("q", 1)
    reject(rig, "q")
    rig.delete("t")
    finish(rig)
    rig.declare("t")
    rig.bind("t", "x", "")
    rig.advance(SECOND)
    assert (rig.ready("t"), rig.pending("q")) == ([], [1])


# -- DL-25: the strategy goes, the queue is purged or deleted


def test_dl_25_a_strategy_switched_away_tries_once_more_and_drops_the_rest_counted() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "x"})
    rig.declare("t")
    rig.exchange("x", "direct")
    rig.set_policy("q", KEEPS)
    rig.send("q", 1, 2)
    reject(rig, "q", 2)
    assert rig.pending("q") == [1, 2]
    rig.set_policy("q", {})
    finish(rig)
    assert rig.pending("q") == []
    assert rig.dropped("q") == {"dead_letter_unroutable": 2}


def test_dl_25_a_strategy_switched_away_where_the_exchange_is_missing() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "x"})
    rig.set_policy("q", KEEPS)
    rig.send("q", 1)
    reject(rig, "q")
    rig.set_policy("q", {})
    finish(rig)
    assert rig.dropped("q") == {"rejected": 1}


def test_dl_25_a_purge_takes_pending_letters_and_counts_them() -> None:
    rig = keeping()
    rig.send("q", 1, 2, 3)
    reject(rig, "q", 2)
    assert rig.broker.contents.purge(rig.vhost.queues["q"]) == 3, "ready and pending"
    finish(rig)
    assert (rig.pending("q"), rig.ready("q")) == ([], [])
    assert rig.dropped("q") == {"purged": 3}


def test_dl_25_a_deleted_queue_takes_its_letters_along() -> None:
    rig = keeping()
    rig.send("q", 1)
    reject(rig, "q")
    queue = rig.vhost.queues["q"]
    rig.delete("q")
    finish(rig)
    assert queue.counters()["dropped"] == {"queue_deleted": 1}
    assert rig.broker.pending.waiting == {}


# -- DL-A13: each ends with nothing pending and as many confirmed as died


def settled(rig: Rig, count: int) -> None:
    rig.advance(SECOND)
    assert rig.pending("q") == []
    assert (rig.vhost.queues["q"].account.dead_lettered, confirmed(rig)) == (count, count)
    assert rig.dropped("q") == {}


def test_dl_a13_a_binding_that_is_missing_and_added() -> None:
    rig = keeping()
    rig.exchange("x", "direct")
    rig.send("q", 1, 2)
    reject(rig, "q", 2)
    assert rig.pending("q") == [1, 2]
    rig.bind("t", "x", "q")
    finish(rig)
    assert rig.ready("t") == [1, 2]
    settled(rig, 2)


def test_dl_a13_an_exchange_that_is_missing_and_declared() -> None:
    rig = keeping()
    rig.send("q", 1)
    reject(rig, "q")
    assert rig.pending("q") == [1]
    rig.exchange("x", "fanout", ("t", ""))
    settled(rig, 1)
    assert rig.ready("t") == [1]


def test_dl_a13_a_target_deleted_and_recreated_among_300_messages() -> None:
    rig = keeping()
    rig.exchange("x", "fanout", ("t", ""))
    seen: list[int] = []
    for start in (0, 100, 200):
        rig.send("q", *range(start, start + 100))
        if start == 100:
            seen += [h.number for h in drain(rig, "t")]
            rig.delete("t")
        reject(rig, "q", 100)
        if start == 100:
            rig.declare("t")
            rig.bind("t", "x", "")
            finish(rig)
    assert seen + rig.ready("t") == list(range(300))
    settled(rig, 300)


def test_dl_a13_a_self_cycle_until_a_policy_changes_the_key() -> None:
    rig = keeping("", message_ttl=1)
    rig.send("q", 1, 2)
    rig.advance(5)
    assert rig.pending("q") == [1, 2]
    rig.set_policy("q", {"dead-letter-routing-key": "t"})
    settled(rig, 2)
    assert rig.ready("t") == [1, 2]


def test_dl_a13_a_target_of_one_place_that_is_emptied_slowly() -> None:
    rig = keeping()
    rig.set_policy("t", {"max-length": 1, "overflow": "reject-publish"})
    rig.exchange("x", "fanout", ("t", ""))
    rig.send("q", *range(5))
    reject(rig, "q", 5)
    seen = []
    for _ in range(5):
        assert len(rig.ready("t")) == 1
        seen += [h.number for h in drain(rig, "t")]
        rig.advance(SECOND)
    assert seen == [0, 1, 2, 3, 4]
    settled(rig, 5)


def test_dl_a13_three_targets_one_of_them_down() -> None:
    rig = keeping()
    rig.declare("quorum", {"queue-type": "quorum"})
    rig.declare("passing", durable=False)
    rig.set_policy("t", {"max-length": 0, "overflow": "reject-publish"})
    rig.exchange("x", "fanout", ("t", ""), ("quorum", ""), ("passing", ""))
    rig.send("q", 1)
    reject(rig, "q")
    assert (rig.ready("quorum"), rig.ready("passing"), rig.ready("t")) == ([1], [1], [])
    rig.set_policy("t", {})
    settled(rig, 1)
    assert (rig.ready("quorum"), rig.ready("passing"), rig.ready("t")) == ([1], [1], [1])


def test_dl_a13_the_source_s_limit_reached_by_pending_letters() -> None:
    rig = keeping(max_length=2, overflow="reject-publish")
    session = rig.session()
    session.confirming = True
    rig.send("q", 1, 2, session=session)
    reject(rig, "q", 2)
    rig.send("q", 3, session=session)
    finish(rig)
    assert rig.refused == [(3, 3)]
    rig.exchange("x", "fanout", ("t", ""))
    finish(rig)
    rig.send("q", 4, session=session)
    finish(rig)
    assert (rig.ready("q"), rig.refused) == ([4], [(3, 3)])
    settled(rig, 2)


@pytest.mark.parametrize("outcome", ["rejected", "expired", "delivery_limit"])
def test_dl_a14_the_source_among_its_own_targets(outcome: str) -> None:
    rig = keeping(delivery_limit=0)
    rig.exchange("x", "fanout", ("t", ""), ("q", ""))
    rig.send("q", 1, ttl=50 if outcome == "expired" else -1)
    if outcome == "expired":
        rig.advance(50)
    else:
        reject(rig, "q", outcome=FAILED if outcome == "delivery_limit" else 2)
    settled(rig, 1)
    assert rig.ready("t") == [1]
    assert rig.ready("q") == ([1] if outcome == "rejected" else [])


def test_a_hop_limit_ends_letters_of_a_keeping_queue_too() -> None:
    """DL-D1: at 0 a message is dropped and counted, whatever the strategy."""
    rig = keeping("", dead_letter_hop_limit=2, message_ttl=1)
    rig.send("q", 1)
    rig.advance(2)
    assert rig.ready("q") == [1]
    rig.advance(1)
    assert (rig.ready("q"), rig.pending("q")) == ([], [])
    assert rig.dropped("q") == {"dead_letter_hop_limit": 1}


def test_what_is_pending_is_not_served() -> None:
    rig = keeping()
    rig.send("q", 1, 2)
    reject(rig, "q")
    session = rig.session()
    got = rig.take(session, "q")
    assert got is not None
    assert got[0].number == 2
    rig.broker.settlement.settle(session, got[1], got[1], ACCEPTED)
    assert rig.take(session, "q") is None


# -- when attempts come


def attempts(rig: Rig, ms: int) -> list[int]:
    """When, counted from now, the pending letters of q are tried in the coming time."""
    queue = rig.vhost.queues["q"]
    start, out = rig.now_ms, []
    while (due := queue.retry.due_ms) <= start + ms:
        rig.advance(due - rig.now_ms)
        out.append(due - start)
        assert queue.retry.due_ms > due, "tried, and not again at once"
    return out


def test_dl_23_attempts_that_change_nothing_become_rarer() -> None:
    rig = keeping()
    rig.send("q", 1)
    reject(rig, "q")
    rig.set_policy("q", {"dead-letter-routing-key": "k"})  # settings changed: an attempt at once
    rig.advance(0)
    assert attempts(rig, 16 * SECOND) == [1 * SECOND, 3 * SECOND, 7 * SECOND, 15 * SECOND]
    rig.advance(3600 * SECOND)
    queue = rig.vhost.queues["q"]
    assert queue.retry.due_ms - rig.now_ms <= 180 * SECOND  # DL-22: no rarer than upstream


def test_dl_23_a_publish_does_not_try_what_is_pending() -> None:
    rig = keeping()
    rig.send("q", 1)
    reject(rig, "q")
    queue = rig.vhost.queues["q"]
    due = queue.retry.due_ms
    for n in range(5):
        rig.send("q", 10 + n)
        rig.advance(10)
    assert queue.retry.due_ms == due


def test_dl_23_many_letters_are_tried_a_thousand_a_turn_and_stay_in_order() -> None:
    rig = keeping("")
    rig.set_policy("q", {"dead-letter-routing-key": "t"})
    rig.set_policy("t", {"max-length": 0, "overflow": "reject-publish"})
    many = list(range(2500))
    for n in many:
        rig.send("q", n)
    reject(rig, "q", len(many))
    assert rig.pending("q") == many
    rig.set_policy("t", {"max-length": 700, "overflow": "reject-publish"})
    rig.advance(3600 * SECOND)
    assert rig.ready("t") == many[:700]
    assert rig.pending("q") == many[700:]
    rig.set_policy("t", {})
    queue = rig.vhost.queues["q"]
    rig.broker.registry.resettle(queue)
    rig.turn()
    assert len(rig.ready("t")) == 1700
    finish(rig)
    assert rig.ready("t") == many
    assert rig.pending("q") == []


def test_dl_23_changes_of_topology_in_every_turn_do_not_starve_later_letters() -> None:
    rig = keeping("x")
    rig.exchange("x", "direct")
    for n in range(1500):
        rig.send("q", n)
    rig.send("q", 1500, cc=("ok",))
    reject(rig, "q", 1501)
    assert len(rig.pending("q")) == 1501
    rig.bind("t", "x", "ok")
    for n in range(20):  # somebody declares a queue for answers in every turn
        rig.declare(f"answers {n}")
        rig.now_ms += 100
        rig.turn()
    assert rig.ready("t") == [1500]


@pytest.mark.parametrize("late", [False, True])
def test_dl_23_a_change_of_topology_in_the_middle_of_an_attempt_is_not_missed(late: bool) -> None:
    rig = keeping("x")
    rig.exchange("x", "direct")
    for n in range(1500):
        rig.send("q", n)
    reject(rig, "q", 1500)
    rig.declare("answers")
    rig.turn()  # the first thousand of them are tried
    rig.bind("t", "x", "q")
    rig.now_ms += 1000 if late else 0
    rig.advance(0)
    many = list(range(1500))
    assert rig.ready("t") == (many[1000:] + many[:1000] if late else many)
    assert rig.pending("q") == []


def test_dl_23_many_targets_that_have_a_letter_are_passed_over_quickly() -> None:
    def prepare(count: int) -> Callable[[], object]:
        rig = keeping("x")
        targets = [f"t{n}" for n in range(count)]
        for name in targets:
            rig.declare(name, durable=False)
        rig.declare("full", {"max-length": 0, "overflow": "reject-publish"})
        rig.exchange("x", "fanout", ("full", ""), *[(name, "") for name in targets])
        rig.send("q", *range(10), ttl=5)
        rig.advance(5)
        queue = rig.vhost.queues["q"]
        assert [len(letter.have) for letter in queue.letters] == [count] * 10
        queue.retry.due_ms = 0
        rig.broker.agenda.mark(queue)

        def try_again() -> None:
            rig.turn()
            assert queue.pending == 10

        return try_again

    assert_linear(prepare, 200)  # by a walk of the list for each target it is quadratic
