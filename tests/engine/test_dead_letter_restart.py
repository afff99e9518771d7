"""Dead letters and queue settings over a restart: the log says all of it, in whole moves.

The scenario is played once; after each of its commands a process starts from the log as it is then
and must hold the same. Then the log is cut between any two of its blocks: every message is in as
many places as it should be, never in none and never in two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tallymark.engine.outcomes import ACCEPTED, DISCARDED, FAILED, REJECTED, RETURNED
from tallymark.stored import records
from tests.support.engine_rig import Held, Rig, Said
from tests.support.engine_steps import drain, finish, manual, reject

Step = Callable[[Rig], None]


def scenario() -> list[Step]:
    """Commands whose traces a log must hold: a work queue with a delivery limit, priorities and
    deduplication; a waiting queue with a TTL; one that keeps letters; one that is often full."""

    def declare(rig: Rig) -> None:
        rig.declare(
            "work",
            {
                "dead-letter-exchange": "", "dead-letter-routing-key": "wait",
                "delivery-limit": 2, "max-priority": 3, "message-deduplication": 10_000,
            },
        )  # fmt: skip
        rig.declare(
            "wait",
            {
                "dead-letter-exchange": "", "dead-letter-routing-key": "work", "message-ttl": 50,
            },
        )  # fmt: skip
        rig.declare("full", {"max-length": 1, "overflow": "reject-publish"})
        rig.declare("end")
        rig.declare(
            "keep", {"dead-letter-exchange": "out", "dead-letter-strategy": "at-least-once"}
        )
        rig.declare("hops", {"dead-letter-exchange": "", "dead-letter-hop-limit": 3})

    def publish(rig: Rig) -> None:
        for number in range(1, 9):
            rig.says[number] = Said(priority=number % 4, id=f"id {number % 6}")
        rig.send("work", *range(1, 9))
        rig.send("keep", 21, 22, 23, ttl=500)
        rig.send("keep", 24)
        rig.send("hops", 31, cc=("cc",), bcc=("bcc",))

    def settle(outcome: int, name: str, n: int) -> Step:
        return lambda rig: reject(rig, name, n, outcome) and None

    def wait(ms: int) -> Step:
        return lambda rig: rig.advance(ms) and None

    def fan_out(rig: Rig) -> None:
        rig.send("full", 40)
        rig.exchange("out", "fanout", ("full", ""), ("end", ""))

    def empty(rig: Rig) -> None:
        drain(rig, "full")

    def policy(rig: Rig) -> None:
        rig.set_policy("work", {"max-length": 2})

    return [
        declare, publish, settle(RETURNED, "work", 1), settle(FAILED, "work", 2),
        settle(REJECTED, "work", 2), settle(DISCARDED, "work", 1), settle(FAILED, "work", 1),
        settle(REJECTED, "hops", 2), settle(DISCARDED, "keep", 2), wait(50), fan_out,
        settle(REJECTED, "work", 2), wait(1000), empty, wait(1000), policy, empty, wait(1000),
        settle(REJECTED, "hops", 2), empty, wait(1000), settle(ACCEPTED, "work", 1),
    ]  # fmt: skip


def message(held: Held) -> tuple[object, ...]:
    known = held.annotations
    return (
        held.number, held.failed, held.acquired, held.priority, held.counts, held.place,
        None if known is None else known.to_bytes(),
    )  # fmt: skip


def state(rig: Rig) -> dict[str, object]:
    """All of a broker that a restart must keep."""
    out: dict[str, object] = {}
    for name, queue in rig.vhost.queues.items():
        counters = queue.counters()
        letters = [
            (letter.reason, letter.died_ms, letter.have, len(letter.piece), letter.piece.failed)
            for letter in queue.letters
        ]
        out[name] = (
            [message(held) for held in rig.holds(name)], rig.pending(name), letters, counters,
            queue.deduplication.ids, list(queue.deduplication.ids),
        )  # fmt: skip
    return out


def go_on(rig: Rig, budget: int = 1 << 40) -> None:
    """All that follows from a step. What is pending is tried once more, as a start does; marks are
    far ahead: nothing is taken for delivered that was not, so that counts are exact."""
    rig.settle_down(budget)
    for queue in rig.broker.queues.values():
        queue.high_water.mark = queue.high_water.durable = 1 << 40
        if queue.letters:
            rig.broker.agenda.mark(queue)
    rig.settle_down(budget)
    rig.broker.check()


@pytest.mark.parametrize("budget", [0, 1 << 40])
def test_after_every_command_a_restart_finds_the_same(budget: int) -> None:
    rig = manual()
    deaths = 0
    for step in scenario():
        step(rig)
        go_on(rig, budget)
        before = state(rig)
        after = rig.reopened(rig.log.upto(len(rig.log.blocks)))
        go_on(after, budget)
        assert state(after) == before, step
        deaths = sum(q.account.dead_lettered for q in rig.vhost.queues.values())
    assert deaths >= 12, "the scenario would show little"
    assert rig.vhost.queues["keep"].pending == 0
    assert rig.dropped("hops") == {"dead_letter_hop_limit": 1}


def test_going_on_after_each_restart_ends_like_never_having_stopped() -> None:
    through, stopping = manual(), manual()
    for n, step in enumerate(scenario()):
        for rig in (through, stopping):
            step(rig)
            go_on(rig)
        if n % 3 == 0:
            for queue in stopping.broker.queues.values():
                queue.high_water.mark = 0
            stopping.checkpoint()
        stopping = stopping.restart()
        go_on(stopping)
        assert state(stopping) == state(through), n


def places(rig: Rig) -> Counter[int]:
    found: Counter[int] = Counter()
    for name in rig.vhost.queues:
        found.update(rig.ready(name))
        found.update(rig.pending(name))
    return found


def test_a_move_is_one_block_a_log_cut_anywhere_has_every_message_in_one_place() -> None:
    """The only route of each message is one queue at a time: it is in one place until it is
    settled or dropped for good."""
    rig = manual()
    rig.declare("a", {"dead-letter-exchange": "", "dead-letter-routing-key": "b"})
    rig.declare("b", {"dead-letter-exchange": "x", "dead-letter-strategy": "at-least-once"})
    rig.declare("c", {"max-length": 2, "overflow": "reject-publish"})
    rig.declare("d")
    rig.set_policy("c", {"dead-letter-exchange": "", "dead-letter-routing-key": "d"})
    finish(rig)
    start = len(rig.log.blocks)
    rig.send("a", *range(10), ttl=20)
    rig.advance(10)
    reject(rig, "a", 3)
    rig.advance(20)
    rig.set_policy("b", {"message-ttl": 5})
    rig.advance(5)
    rig.exchange("x", "fanout", ("c", ""))
    finish(rig)
    for _ in range(8):
        reject(rig, "c", min(2, rig.vhost.queues["c"].ready), DISCARDED)
        rig.advance(1000)
    assert rig.ready("d") == [*range(10)]
    for blocks in range(start + 1, len(rig.log.blocks) + 1):
        after = rig.reopened(rig.log.upto(blocks))
        after.broker.check()
        assert places(after) == Counter(range(10)), blocks
        for name in "abc":
            for held in after.holds(name):
                assert len(held.deaths) == "abc".index(name), (blocks, held)


def test_a_fan_out_and_its_source_are_one_block_too() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "amq.fanout"})
    for name in "abc":
        rig.declare(name)
        rig.bind(name, "amq.fanout", "")
    rig.send("q", 1, 2, 3)
    finish(rig)
    start = len(rig.log.blocks)
    reject(rig, "q", 3)
    for blocks in range(start, len(rig.log.blocks) + 1):
        after = rig.reopened(rig.log.upto(blocks))
        found = [after.ready(name) for name in "abc"]
        assert found[0] == found[1] == found[2]
        assert sorted(after.ready("q") + found[0]) == [1, 2, 3]


def test_dead_lettered_and_entered_name_each_other_in_the_ledger() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "", "dead-letter-routing-key": "t"})
    rig.declare("t")
    rig.send("t", 9)
    rig.send("q", 1, 2, 3)
    finish(rig)
    rig.set_policy("q", {"message-ttl": 0})
    finish(rig)
    block = next(b for b in rig.log.blocks if any(r.kind == records.DEAD_LETTERED for r in b))
    [left] = [r for r in block if r.kind == records.DEAD_LETTERED]
    [entered] = [r for r in block if r.kind == records.ENTERED]
    queue, target = rig.vhost.queues["q"], rig.vhost.queues["t"]
    assert (left.queue, left.first, left.count, left.reason) == (queue.id, 1, 3, 2)
    assert (entered.queue, entered.first, entered.count) == (target.id, 2, 3)
    assert (entered.owner, entered.other) == (queue.id, 1)
    assert entered.payload is left.payload


@pytest.mark.parametrize("clean", [True, False])
def test_dl_5_counts_are_exact_over_restarts(clean: bool) -> None:
    rig = manual()
    rig.declare("q", {"delivery-limit": 9})
    rig.send("q", 1)
    for outcome in (FAILED, RETURNED, FAILED):
        reject(rig, "q", outcome=outcome)
    for _ in range(3):
        rig = rig.restart(clean)
        finish(rig)
        assert [(h.failed, h.acquired) for h in rig.holds("q")] == [(2, 3)]
    rig.take(rig.session(), "q")
    finish(rig)
    rig = rig.restart(clean)
    finish(rig)
    assert [(h.failed, h.acquired) for h in rig.holds("q")] == [(2, 4)]


def test_dl_5_a_delivery_limit_reached_by_what_a_log_says() -> None:
    rig = manual()
    rig.declare("q", {"delivery-limit": 1})
    rig.send("q", 1)
    reject(rig, "q", outcome=FAILED)
    rig.checkpoint()
    rig = rig.restart()
    reject(rig, "q", outcome=FAILED)
    assert rig.dropped("q") == {"delivery_limit": 1}


@pytest.mark.parametrize("checkpoint", [True, False])
def test_dl_22_pending_letters_come_back_in_order_with_what_they_have(checkpoint: bool) -> None:
    rig = manual()
    rig.declare(
        "q", {"dead-letter-exchange": "amq.fanout", "dead-letter-strategy": "at-least-once"}
    )
    rig.declare("full", {"max-length": 0, "overflow": "reject-publish"})
    rig.declare("t")
    for name in ("full", "t"):
        rig.bind(name, "amq.fanout", "")
    rig.send("q", 1, 2, 3)
    session = rig.session()
    for _ in range(3):
        rig.take(session, "q")
    for tag in (2, 3, 1):
        rig.broker.settlement.settle(session, tag, tag, REJECTED)
    finish(rig)
    died = [letter.died_ms for letter in rig.vhost.queues["q"].letters]
    if checkpoint:
        rig.checkpoint()
    for _ in range(2):
        rig.advance(700)
        rig = rig.restart()
        finish(rig)
        assert rig.pending("q") == [2, 3, 1]
        letters = rig.vhost.queues["q"].letters
        assert [letter.have for letter in letters] == [["t"]] * 3
        assert [letter.died_ms for letter in letters] == died
    assert rig.ready("t") == [2, 3, 1], "it has them once"
    rig.set_policy("full", {})
    rig.delete("full")
    rig.declare("full")
    rig.bind("full", "amq.fanout", "")
    finish(rig)
    assert (rig.ready("full"), rig.pending("q")) == ([2, 3, 1], [])


def test_a_transient_message_s_letter_ends_at_the_restart_counted() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "", "dead-letter-routing-key": "t"})
    rig.declare("t")
    rig.declare("keep", {"dead-letter-exchange": "x", "dead-letter-strategy": "at-least-once"})
    rig.send("q", 1, persistent=False)
    rig.send("q", 2)
    rig.send("keep", 3, persistent=False)
    reject(rig, "q", 2)
    reject(rig, "keep")
    rig = rig.restart()
    finish(rig)
    assert rig.ready("t") == [2]
    assert rig.dropped("t") == rig.dropped("keep") == {"transient_at_restart": 1}


def test_a_letter_from_a_queue_that_does_not_last_into_one_that_does() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "", "dead-letter-routing-key": "t"}, durable=False)
    rig.declare("t")
    rig.send("q", 1)
    rig.settle_down(0)  # its bytes were written down only to save memory
    reject(rig, "q")
    rig = rig.restart()
    finish(rig)
    assert [(h.number, h.deaths) for h in rig.holds("t")] == [(1, [("q", "rejected", 1)])]


def test_settings_of_queues_hold_after_a_restart() -> None:
    rig = manual()
    rig.declare("q", {"max-length-bytes": 20, "max-priority": 2})
    rig.send("q", 1, 2)
    finish(rig)
    rig = rig.restart()
    finish(rig)
    rig.send("q", 3)
    finish(rig)
    assert rig.ready("q") == [2, 3]
    assert rig.dropped("q") == {"maxlen": 1}


def test_what_is_over_a_limit_that_a_crash_kept_from_being_cut_is_cut_at_the_start() -> None:
    rig = manual()
    rig.declare("q", {"max-length": 2})
    session = rig.session()
    rig.send("q", 1, 2)
    finish(rig)
    rig.take(session, "q")
    rig.take(session, "q")
    rig.send("q", 3, 4)
    finish(rig)
    rig = rig.restart()
    finish(rig)
    assert rig.ready("q") == [3, 4]
    assert rig.dropped("q") == {"maxlen": 2}
