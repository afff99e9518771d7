"""Cycles of dead letters and what ends them: the test on the history [DL-15], its count and event
[DL-D2], and the hop limit that replaces it [DL-D1]."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tallymark.stored import records
from tests.support.engine_rig import START_MS, Said
from tests.support.engine_steps import die, finish, manual, reject
from tests.support.growth import assert_linear

# -- DL-15: cycles

WORKED = [
    ("q:e", ["q"], []),
    ("q1:r q2:e", ["q1"], ["q1"]),
    ("q1:r q2:e q1:e", ["q2"], []),
    ("q1:d q2:e", ["q1"], []),
    ("q1:r q2:e q1:r q2:e", ["q1"], ["q1"]),
    ("q1:r q2:e q3:e", ["q4", "q2"], ["q4"]),
    ("q1:e q2:e q3:r", ["q1", "q2", "q3"], ["q1", "q2", "q3"]),
    ("q1:m q2:m", ["q1"], []),
    ("q1:e q2:r q3:e", ["q1"], ["q1"]),
    ("q1:e q2:r q3:e", ["q2", "q3"], ["q2"]),
    ("q1:r q1:e", ["q1"], []),
]
LETTERS = {"r": "rejected", "e": "expired", "m": "maxlen", "d": "delivery_limit"}


@pytest.mark.parametrize(("history", "targets", "reached"), WORKED)
def test_dl_15_worked(history: str, targets: list[str], reached: list[str]) -> None:
    """history: oldest first, the present death last."""
    rig = manual()
    for name in ("q", "q1", "q2", "q3", "q4"):
        rig.declare(name)
    steps = [step.split(":") for step in history.split()]
    rig.send(steps[0][0], 1)
    for (queue, letter), following in zip(steps, [*steps[1:], None], strict=True):
        die(rig, queue, LETTERS[letter], *(targets if following is None else [following[0]]))
    found = [name for name in rig.vhost.queues if rig.ready(name)]
    assert found == sorted(reached)
    last = rig.vhost.queues[steps[-1][0]]
    assert last.account.dropped == ({} if reached else {records.DROPPED_CYCLE: 1})
    told = [x.values["target"] for x in rig.signals if x.name == "dead_letter.cycle"]
    assert told == sorted(set(targets) - set(reached))


def test_dl_15_one_signal_per_distinct_cycle_and_dl_d2_a_row_for_each_message() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "", "message-ttl": 5})
    for number in range(4):
        rig.send("q", number)
        rig.advance(10)
    assert rig.dropped("q") == {"dead_letter_cycle": 4}
    rows = [r for b in rig.log.blocks for r in b if r.kind == records.DROPPED]
    assert [(r.reason, r.count) for r in rows] == [(records.DROPPED_CYCLE, 1)] * 4
    told = [x for x in rig.signals if x.name == "dead_letter.cycle"]
    assert [(x.values["queue"], x.values["reason"], x.values["target"]) for x in told] == [
        ("q", "expired", "q")
    ]
    rig.set_policy("q", {"max-length": 0})
    rig.send("q", 9)
    finish(rig)
    assert len([x for x in rig.signals if x.name == "dead_letter.cycle"]) == 2, "another reason"


def test_dl_15_no_route_left_is_not_a_cycle() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "amq.direct", "message-ttl": 0})
    rig.send("q", 1)
    finish(rig)
    assert rig.dropped("q") == {"dead_letter_unroutable": 1}
    assert [x.name for x in rig.signals] == []


# -- DL-D1: the hop limit


@pytest.mark.parametrize(("limit", "times"), [(True, 32), (32, 32), (1, 1), (0, 0), (255, 255)])
def test_dl_d1_a_message_dies_as_often_as_its_hops_and_then_ends(limit: object, times: int) -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "", "dead-letter-hop-limit": limit})
    rig.set_policy("q", {"message-ttl": 10})
    rig.send("q", 1)
    for n in range(times):
        rig.advance(10)
        assert [len(h.deaths) for h in rig.holds("q")] == [n + 1]
    letters = rig.holds("q")
    rig.advance(10)
    assert rig.ready("q") == []
    assert rig.dropped("q") == {"dead_letter_hop_limit": 1}
    assert rig.vhost.queues["q"].account.dead_lettered == times
    if times > 1:
        known = letters[0].annotations
        assert known is not None
        assert [d.count for d in known.deaths] == [1] * times
        assert [d.first_ms for d in known.deaths] == [
            START_MS + 10 * n for n in range(times, 0, -1)
        ]
        assert known.hops == 0


def test_dl_d1_false_leaves_the_cycle_test() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "", "dead-letter-hop-limit": False})
    rig.set_policy("q", {"message-ttl": 10, "dead-letter-hop-limit": 5})
    rig.send("q", 1)
    rig.advance(10)
    assert rig.dropped("q") == {"dead_letter_cycle": 1}


def test_dl_d1_what_the_sender_grants_holds_and_is_read_once() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "", "dead-letter-hop-limit": 3, "message-ttl": 1})
    rig.says |= {1: Said(hop_limit=0), 2: Said(hop_limit=1), 4: Said(hop_limit=5)}
    rig.send("q", 1, 2, 3, 4)
    seen = []
    for _ in range(7):
        seen.append(rig.ready("q"))
        rig.advance(1)
    assert seen == [[1, 2, 3, 4], [2, 3, 4], [3, 4], [3, 4], [4], [4], []]
    assert rig.dropped("q") == {"dead_letter_hop_limit": 4}


def test_dl_d1_hops_are_only_counted_in_queues_that_have_the_limit() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "", "dead-letter-routing-key": "plain"})
    rig.declare("plain", {"dead-letter-exchange": "", "dead-letter-routing-key": "q"})
    rig.set_policy("q", {"dead-letter-hop-limit": 2})
    rig.send("q", 1)
    for queue in ("q", "plain", "q", "plain"):
        reject(rig, queue)
    letter = rig.holds("q")[0].annotations
    assert letter is not None
    assert letter.hops == 0
    assert [d.queue for d in letter.deaths] == ["plain", "q", "q"], "plain compacts its own"
    reject(rig, "q")
    assert rig.dropped("q") == {"dead_letter_hop_limit": 1}


def test_dl_15_a_cycle_among_many_targets_is_found_quickly() -> None:
    def prepare(count: int) -> Callable[[], object]:
        rig = manual()
        rig.declare("q", {"dead-letter-exchange": "x", "message-ttl": 5})
        targets = [f"t{n}" for n in range(count)]
        for name in targets:
            rig.declare(name, durable=False)
        rig.exchange("x", "fanout", ("q", ""), *[(name, "") for name in targets])
        for n in range(5):
            rig.send("q", n)
        rig.turn()
        rig.now_ms += 5

        def die() -> None:
            rig.turn()
            assert rig.ready(targets[-1]) == list(range(5))

        return die

    assert_linear(prepare, 200)  # by a walk of the list for each target it is quadratic


@pytest.mark.parametrize("strategy", ["at-most-once", "at-least-once"])
def test_full_queues_that_all_lead_to_each_other_do_not_make_n_factorial_letters(
    strategy: str,
) -> None:
    rig = manual()
    names = [f"q{n}" for n in range(12)]
    for name in names:
        rig.declare(
            name,
            {
                "max-length": 0, "overflow": "reject-publish-dlx", "dead-letter-exchange": "x",
                "dead-letter-strategy": strategy,
            },
        )  # fmt: skip
    rig.exchange("x", "fanout", *[(name, "") for name in names])
    rig.send("q0", 1)
    rig.turn()
    rig.broker.check()
    entered = sum(rig.vhost.queues[name].entered for name in names)
    assert 4096 < entered < 9_000
    kept = sum(rig.vhost.queues[name].pending for name in names)
    refused = sum(
        rig.vhost.queues[name].account.dropped.get(records.DROPPED_REFUSED, 0) for name in names
    )
    assert (kept > 0, refused > 0) == (strategy == "at-least-once", strategy == "at-most-once")


def test_each_of_many_messages_may_be_passed_on_by_a_chain_of_full_queues() -> None:
    rig = manual()
    for n in range(40):
        rig.declare(
            f"q{n}",
            {
                "max-length": 0, "overflow": "reject-publish-dlx", "dead-letter-exchange": "",
                "dead-letter-routing-key": f"q{n + 1}",
            },
        )  # fmt: skip
    rig.declare("q40")
    rig.send("q0", *range(300))
    finish(rig)
    assert rig.ready("q40") == list(range(300))
