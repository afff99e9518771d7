"""Limits on a queue's length and bytes, and what gives way [DL-6]."""

from __future__ import annotations

import pytest

from tallymark.engine.outcomes import ACCEPTED, RETURNED
from tests.support.engine_rig import Rig, Said
from tests.support.engine_steps import drain, finish, manual, reject


def limited(overflow: str = "drop-head", **arguments: object) -> Rig:
    """Queue q with limits, whose letters go to queue dead."""
    rig = manual()
    settings = {key.replace("_", "-"): value for key, value in arguments.items()}
    settings |= {"overflow": overflow, "dead-letter-exchange": ""}
    rig.declare("q", settings | {"dead-letter-routing-key": "dead"})
    rig.declare("dead")
    return rig


def sizes(rig: Rig, *bodies: int) -> list[int]:
    """Messages 1.. of these body sizes."""
    for number, body in enumerate(bodies, 1):
        rig.says[number] = Said(body=body)
    return list(range(1, len(bodies) + 1))


# -- drop-head


@pytest.mark.parametrize("limit", [0, 1, 3])
@pytest.mark.parametrize("together", [True, False])
def test_dl_6_drop_head_keeps_the_newest(limit: int, together: bool) -> None:
    rig = limited(max_length=limit)
    runs = [[1, 2, 3, 4]] if together else [[1], [2], [3], [4]]
    for run in runs:
        rig.send("q", *run)
        finish(rig)
    assert rig.ready("q") == [1, 2, 3, 4][4 - limit :]
    assert rig.ready("dead") == [1, 2, 3, 4][: 4 - limit]
    assert all(h.deaths == [("q", "maxlen", 1)] for h in rig.holds("dead"))


def test_dl_6_exactly_at_the_limit_nothing_goes() -> None:
    rig = limited(max_length=4, max_length_bytes=32)
    rig.send("q", 1, 2, 3, 4)
    finish(rig)
    assert rig.ready("q") == [1, 2, 3, 4]


def test_dl_6_the_unacked_do_not_count_and_what_returns_is_the_oldest() -> None:
    rig = limited(max_length=2)
    rig.send("q", 1, 2)
    session = rig.session()
    rig.take(session, "q")
    rig.take(session, "q")
    rig.send("q", 3, 4)
    finish(rig)
    assert rig.ready("q") == [3, 4]
    rig.broker.settlement.settle(session, 2, 2, RETURNED)
    finish(rig)
    assert (rig.ready("q"), rig.ready("dead")) == ([3, 4], [2])


def test_dl_6_a_limit_of_0_still_reaches_a_waiting_consumer() -> None:
    rig = limited(max_length=0)
    session = rig.session()
    rig.consume(session, "q", "c", prefetch=1)
    rig.send("q", 1, 2)
    assert [d.number for d in finish(rig)] == [1]
    assert rig.ready("dead") == [2]
    rig.broker.settlement.settle(session, 1, 1, RETURNED)
    assert [d.number for d in finish(rig)] == [1]


@pytest.mark.parametrize(
    ("limit", "bodies", "left"),
    [
        (30, [10, 10, 10], [1, 2, 3]), (29, [10, 10, 10], [2, 3]), (10, [10, 10, 10], [3]),
        (9, [10, 10, 10], []), (0, [1], []), (0, [0, 0], [1, 2]), (10, [4, 100, 5], [3]),
        (100, [60, 30, 30], [2, 3]), (5, [100], []), (20, [1, 1, 1, 18, 1], [3, 4, 5]),
    ],
)  # fmt: skip
def test_dl_6_drop_head_by_bytes_of_bodies(limit: int, bodies: list[int], left: list[int]) -> None:
    for together in (True, False):
        rig = limited(max_length_bytes=limit)
        messages = sizes(rig, *bodies)
        for run in [messages] if together else [[m] for m in messages]:
            rig.send("q", *run)
            finish(rig)
        assert rig.ready("q") == left, together
        assert rig.ready("q") + rig.ready("dead") == left + [m for m in messages if m not in left]


def test_dl_6_both_limits_hold_at_once() -> None:
    rig = limited(max_length=3, max_length_bytes=20)
    rig.send("q", *sizes(rig, 1, 1, 1, 1))
    finish(rig)
    assert rig.ready("q") == [2, 3, 4]
    rig.says[9] = Said(body=19)
    rig.send("q", 9)
    finish(rig)
    assert rig.ready("q") == [4, 9]


@pytest.mark.parametrize("budget", [0, 1 << 40])
def test_dl_a11_a_limit_set_later_weighs_what_is_there_in_memory_or_not(budget: int) -> None:
    rig = limited()
    rig.send("q", *sizes(rig, 10, 10, 10))
    session = rig.session()
    rig.take(session, "q")
    rig.settle_down(budget)
    rig.set_policy("q", {"max-length-bytes": 15})
    rig.settle_down(budget)
    rig.broker.check()
    assert (rig.ready("q"), rig.ready("dead")) == ([3], [2])
    rig.broker.settlement.settle(session, 1, 1, RETURNED)
    rig.settle_down(budget)
    rig.broker.check()
    assert (rig.ready("q"), rig.ready("dead")) == ([3], [2, 1])
    rig.set_policy("q", {})
    rig.send("q", 4, 5)
    rig.settle_down(budget)
    rig.broker.check()
    assert rig.ready("q") == [3, 4, 5]


def test_a_drop_over_the_limit_takes_the_head_also_where_that_has_the_higher_priority() -> None:
    rig = limited(max_length=2, max_priority=9)
    rig.says |= {1: Said(priority=1), 2: Said(priority=9), 3: Said(priority=1)}
    rig.send("q", 1, 2, 3)
    finish(rig)
    assert (rig.ready("q"), rig.ready("dead")) == ([1, 3], [2])


# -- reject-publish


def publishing(rig: Rig, *runs: list[int]) -> None:
    """Runs of a confirming publisher."""
    session = rig.session()
    session.confirming = True
    for run in runs:
        rig.send("q", *run, session=session)
    finish(rig)
    assert rig.confirmed[session.id] == sum(len(run) for run in runs)


@pytest.mark.parametrize(
    ("limit", "refused"), [(0, [(1, 5)]), (1, [(2, 5)]), (4, [(5, 5)]), (5, []), (6, [])]
)
def test_dl_6_reject_publish_refuses_the_new_ones(
    limit: int, refused: list[tuple[int, int]]
) -> None:
    rig = limited("reject-publish", max_length=limit)
    publishing(rig, [1, 2, 3, 4, 5])
    assert rig.ready("q") == [1, 2, 3, 4, 5][:limit]
    assert rig.refused == refused
    assert rig.ready("dead") == []
    assert rig.vhost.queues["q"].entered == min(limit, 5), "what is refused never entered"


def test_dl_6_reject_publish_run_by_run_names_the_same_publishes() -> None:
    rig = limited("reject-publish", max_length=2)
    publishing(rig, [1], [2], [3], [4, 5])
    assert rig.refused == [(3, 3), (4, 5)]


def test_dl_6_reject_publish_by_bytes_lets_small_ones_pass() -> None:
    rig = limited("reject-publish", max_length_bytes=10)
    publishing(rig, sizes(rig, 6, 5, 4, 1))
    assert rig.ready("q") == [1, 3]
    assert rig.refused == [(2, 2), (4, 4)]


def test_dl_6_without_confirms_a_refusal_is_silent() -> None:
    rig = limited("reject-publish", max_length=0)
    rig.send("q", 1)
    finish(rig)
    assert (rig.refused, rig.confirmed, rig.ready("q")) == ([], {}, [])


def test_dl_6_room_comes_back_with_each_message_that_leaves() -> None:
    rig = limited("reject-publish", max_length=1)
    publishing(rig, [1])
    publishing(rig, [2])
    session = rig.session()
    rig.take(session, "q")
    publishing(rig, [3])
    assert rig.refused == [(1, 1)]
    assert rig.ready("q") == [3], "what is unacked takes no room"


def test_dl_6_what_waiting_consumers_would_be_sent_takes_no_room() -> None:
    rig = limited("reject-publish", max_length=1)
    session = rig.session()
    rig.consume(session, "q", "c", prefetch=2)
    publishing(rig, [1, 2, 3, 4])
    assert [h.number for h in rig.given] == [1, 2]
    assert (rig.ready("q"), rig.refused) == ([3], [(4, 4)])


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("turns", [True, False])
def test_dl_6_bytes_that_a_waiting_consumer_takes_are_not_counted_however_they_come(
    together: bool, turns: bool
) -> None:
    rig = limited("reject-publish", max_length_bytes=10)
    rig.consume(rig.session(), "q", "c", prefetch=2)
    messages = sizes(rig, 100, 100, 6, 5, 4)
    session = rig.session()
    session.confirming = True
    for run in [messages] if together else [[m] for m in messages]:
        rig.send("q", *run, session=session)
        if turns:
            finish(rig)
    finish(rig)
    assert [h.number for h in rig.given] == [1, 2]
    assert (rig.ready("q"), rig.refused) == ([3, 5], [(4, 4)])


def test_dl_6_one_queue_refuses_and_the_other_takes_it() -> None:
    rig = limited("reject-publish", max_length=1)
    rig.declare("other")
    rig.exchange("x", "fanout", ("q", ""), ("other", ""))
    session = rig.session()
    session.confirming = True
    rig.send("", 1, 2, 3, exchange="x", session=session)
    finish(rig)
    assert (rig.ready("q"), rig.ready("other")) == ([1], [1, 2, 3])
    assert rig.refused == [(2, 3)]


def test_dl_6_two_queues_refuse_and_the_publisher_hears_it_once() -> None:
    rig = limited("reject-publish", max_length=1)
    rig.declare("other", {"max-length": 2, "overflow": "reject-publish"})
    rig.exchange("x", "fanout", ("q", ""), ("other", ""))
    session = rig.session()
    session.confirming = True
    rig.send("", 1, 2, 3, exchange="x", session=session)
    finish(rig)
    assert rig.refused == [(2, 3)]


def test_the_bytes_of_what_is_refused_are_let_go() -> None:
    rig = limited("reject-publish", max_length=0)
    rig.send("q", 1, 2, 3)
    finish(rig)
    rig.turn()
    assert rig.broker.store.resident_bytes == 0
    assert sum(n for _, n in rig.released) == rig.log.stored_bytes


def test_dl_6_a_policy_that_lowers_the_limit_drops_nothing_where_publishes_are_refused() -> None:
    rig = limited("reject-publish", max_length=5)
    publishing(rig, [1, 2, 3])
    rig.set_policy("q", {"max-length": 1})
    publishing(rig, [4])
    assert (rig.ready("q"), rig.refused) == ([1, 2, 3], [(1, 1)])


# -- reject-publish-dlx


@pytest.mark.parametrize("limit", [0, 1, 4])
def test_dl_6_reject_publish_dlx_dead_letters_the_new_ones(limit: int) -> None:
    rig = limited("reject-publish-dlx", max_length=limit)
    publishing(rig, [1, 2, 3, 4])
    assert rig.ready("q") == [1, 2, 3, 4][:limit]
    assert rig.ready("dead") == [1, 2, 3, 4][limit:]
    assert rig.refused == ([(limit + 1, 4)] if limit < 4 else [])
    queue = rig.vhost.queues["q"]
    assert (queue.entered, queue.account.dead_lettered) == (4, 4 - limit)


def test_dl_6_reject_publish_dlx_without_an_exchange_counts_the_end() -> None:
    rig = manual()
    rig.declare("q", {"max-length": 0, "overflow": "reject-publish-dlx"})
    publishing(rig, [1, 2])
    assert rig.dropped("q") == {"maxlen": 2}
    assert rig.refused == [(1, 2)]


def test_dl_6_a_quorum_queue_drops_the_head_instead() -> None:
    rig = limited("reject-publish-dlx", max_length=1, queue_type="quorum")
    publishing(rig, [1, 2])
    assert (rig.ready("q"), rig.ready("dead"), rig.refused) == ([2], [1], [])


# -- letters that meet a full queue


@pytest.mark.parametrize("by", ["max-length", "max-length-bytes"])
def test_a_letter_whose_only_target_is_full_ends_counted(by: str) -> None:
    rig = limited()
    rig.set_policy("dead", {by: 1 if by == "max-length" else 8, "overflow": "reject-publish"})
    rig.send("q", 1, 2)
    reject(rig, "q", 2)
    assert rig.ready("dead") == [1]
    assert rig.dropped("q") == {"dead_letter_refused": 1}


def test_a_run_of_letters_fills_a_target_as_far_as_it_goes() -> None:
    rig = limited()
    rig.set_policy("dead", {"max-length": 3, "overflow": "reject-publish"})
    rig.send("q", 1, 2, 3, 4, 5)
    rig.set_policy("q", {"message-ttl": 0})
    finish(rig)
    assert rig.ready("dead") == [1, 2, 3]
    assert rig.vhost.queues["q"].counters()["dead_lettered"] == 3
    assert rig.dropped("q") == {"dead_letter_refused": 2}


def test_one_of_two_targets_is_full() -> None:
    rig = limited()
    rig.declare("full", {"max-length": 0, "overflow": "reject-publish"})
    rig.exchange("x", "fanout", ("full", ""), ("dead", ""))
    rig.declare("s", {"dead-letter-exchange": "x"})
    rig.send("s", 1)
    reject(rig, "s")
    assert (rig.ready("dead"), rig.ready("full")) == ([1], [])
    assert (rig.dropped("s"), rig.vhost.queues["s"].account.dead_lettered) == ({}, 1)


def test_a_letter_passes_through_full_queues_to_one_that_takes_it() -> None:
    rig = manual()
    for name, key in (("a", "b"), ("b", "c"), ("c", "d")):
        overflow = "drop-head" if name == "c" else "reject-publish-dlx"
        rig.declare(
            name,
            {
                "max-length": 0, "overflow": overflow, "dead-letter-exchange": "",
                "dead-letter-routing-key": key,
            },
        )  # fmt: skip
    rig.declare("d")
    publishing_to_a = [1, 2]
    rig.send("a", *publishing_to_a)
    finish(rig)
    assert [(h.number, h.deaths) for h in rig.holds("d")] == [
        (n, [("c", "maxlen", 1), ("b", "maxlen", 1), ("a", "maxlen", 1)]) for n in (1, 2)
    ]
    for name in "abc":
        counters = rig.vhost.queues[name].counters()
        assert (counters["entered"], counters["dead_lettered"]) == (2, 2)


def test_dl_15_full_queues_in_a_circle_end_it() -> None:
    rig = manual()
    for name, key in (("a", "b"), ("b", "a")):
        rig.declare(
            name,
            {
                "max-length": 0, "overflow": "reject-publish-dlx", "dead-letter-exchange": "",
                "dead-letter-routing-key": key,
            },
        )  # fmt: skip
    rig.send("a", 1)
    finish(rig)
    assert rig.dropped("b") == {"dead_letter_cycle": 1}


def test_dl_d1_a_full_queue_that_is_its_own_target_ends_by_its_hops() -> None:
    rig = manual()
    settings = {"max-length": 1, "dead-letter-exchange": "", "dead-letter-hop-limit": 3}
    rig.declare("q", settings)
    rig.send("q", 1, 2, 3)
    finish(rig)
    assert len(rig.ready("q")) == 1
    assert rig.dropped("q") == {"dead_letter_hop_limit": 2}


def test_a_target_s_drop_head_makes_room_for_the_letter() -> None:
    rig = limited()
    rig.set_policy("dead", {"max-length": 1})
    rig.send("q", 1, 2)
    reject(rig, "q", 2)
    assert rig.ready("dead") == [2]
    assert rig.dropped("dead") == {"maxlen": 1}
    assert [h.number for h in drain(rig, "dead")] == [2]


def test_settled_messages_free_nothing_that_was_never_counted() -> None:
    rig = limited(max_length_bytes=16)
    rig.send("q", 1, 2)
    session = rig.session()
    got = rig.take(session, "q")
    assert got is not None
    rig.broker.settlement.settle(session, got[1], got[1], ACCEPTED)
    rig.send("q", 3)
    finish(rig)
    assert rig.ready("q") == [2, 3]
    assert rig.vhost.queues["q"].account.body_bytes == 16
