"""The policy `ledger`: what a queue leaves out of it, and that nothing else changes by that."""

from __future__ import annotations

import pytest

from tallymark.engine.outcomes import ACCEPTED, FAILED, RETURNED
from tallymark.engine.session import Session
from tallymark.stored import records
from tests.support.engine_rig import Delivery, Rig


def rig(ledger: str, **more: object) -> Rig:
    made = Rig()
    made.queue("q")
    made.set_policy("q", {"ledger": ledger, **more})
    made.publish(made.session(), "q", list(range(10)))
    return made


def kinds(of: Rig) -> set[int]:
    return {record.kind for block in of.log.blocks for record in block}


def play(of: Rig) -> tuple[Session, list[Delivery]]:
    """Ten are handed out; some are settled, some given back and handed out again."""
    session = of.session()
    of.consume(session, "q", "c", prefetch=10)
    seen = of.settle_down()
    of.broker.settlement.settle(session, 1, 3, ACCEPTED)
    of.broker.settlement.settle(session, 4, 5, RETURNED)
    of.broker.settlement.settle(session, 6, 6, FAILED)
    return session, seen + of.settle_down()


def test_a_narrow_ledger_says_nothing_of_deliveries() -> None:
    whole, narrow = rig("all"), rig("account")
    assert play(whole)[1] == play(narrow)[1]
    assert kinds(whole) - kinds(narrow) == {records.ACQUIRED}
    whole.broker.check()
    narrow.broker.check()


@pytest.mark.parametrize("clean", [False, True])
def test_lc_5_a_narrow_ledger_brings_back_the_same_queue(clean: bool) -> None:
    """What was handed out comes back in its old order, flagged; counted are failures as before."""
    after = []
    for ledger in ("all", "account"):
        made = rig(ledger)
        play(made)
        made = made.restart(clean)
        made.settle_down()
        made.broker.check()
        held = made.holds("q")
        queue = made.vhost.queues["q"]
        after.append(
            ([(one.number, one.failed) for one in held], queue.entered, queue.account.settled)
        )
        made.consume(made.session(), "q", "again")
        assert all(one.redelivered for one in made.settle_down())
    assert after[0] == after[1]
    assert [number for number, _ in after[0][0]] == list(range(3, 10))


def test_dl_d6_where_deliveries_are_limited_they_are_recorded_all_the_same() -> None:
    limited = rig("account", **{"acquired-limit": 3})
    play(limited)
    assert records.ACQUIRED in kinds(limited)


def test_dl_2_the_policy_is_in_effect_at_once() -> None:
    made = rig("all")
    session = made.session()
    made.consume(session, "q", "c", prefetch=1)
    made.settle_down()
    assert records.ACQUIRED in kinds(made)
    made.set_policy("q", {"ledger": "account"})
    before = len(made.log.blocks)
    made.broker.settlement.settle(session, 1, 1, ACCEPTED)
    made.settle_down()
    later = {record.kind for block in made.log.blocks[before:] for record in block}
    assert records.SETTLED in later
    assert records.ACQUIRED not in later


def test_what_is_settled_in_any_order_within_a_turn_is_one_row_for_each_range() -> None:
    made = rig("all")
    session = made.session()
    made.consume(session, "q", "c", prefetch=10)
    made.settle_down()
    before = len(made.log.blocks)
    for tag in (9, 2, 8, 10, 1, 3, 5):
        made.broker.settlement.settle(session, tag, tag, ACCEPTED)
    made.settle_down()
    rows = [r for block in made.log.blocks[before:] for r in block if r.kind == records.SETTLED]
    assert [(r.first, r.count) for r in rows] == [(1, 3), (5, 1), (8, 3)]
    made.broker.check()
    made = made.restart(False)
    made.settle_down()
    assert [one.number for one in made.holds("q")] == [3, 5, 6]
