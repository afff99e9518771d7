"""Settlements that need no turn are recorded at once; what needs one is left to it."""

from __future__ import annotations

from tallymark.engine.outcomes import ACCEPTED, RETURNED
from tallymark.engine.session import Session
from tallymark.stored import records
from tests.support.engine_rig import Rig
from tests.support.engine_steps import manual


def held(prefetch: int = 0) -> tuple[Rig, Session]:
    """A rig with four messages in a queue, handed out as far as the prefetch allows."""
    rig = manual()
    rig.declare("q")
    session = rig.session()
    rig.consume(session, "q", "c", prefetch)
    rig.publish(rig.session(), "q", [1, 2, 3, 4])
    assert [one.number for one in rig.settle_down()] == [1, 2, 3, 4][: prefetch or 4]
    return rig, session


def settled_at(rig: Rig) -> list[tuple[int, int, int]]:
    """First sequence, count and time of each SETTLED row of the log."""
    rows = [row for block in rig.log.blocks for row in block]
    return [(r.first, r.count, r.time_ms) for r in rows if r.kind == records.SETTLED]


def test_an_acknowledgement_is_recorded_with_its_time_and_written_with_a_later_block() -> None:
    rig, session = held()
    blocks, then = len(rig.log.blocks), rig.now_ms
    rig.broker.settlement.settle(session, 1, 2, ACCEPTED)
    assert rig.broker.record_settled()
    assert not rig.broker.record_settled(), "there is nothing more"
    assert len(rig.log.blocks) == blocks
    rig.broker.check()
    rig.now_ms += 5
    rig.turn()
    assert settled_at(rig) == [(1, 2, then)]
    assert rig.restart().ready("q") == [3, 4]


def test_a_crash_before_that_block_brings_the_messages_back_flagged() -> None:
    rig, session = held()
    rig.broker.settlement.settle(session, 1, 2, ACCEPTED)
    assert rig.broker.record_settled()
    after = rig.restart()
    assert after.ready("q") == [1, 2, 3, 4]
    after.consume(after.session(), "q", "c")
    assert {one.redelivered for one in after.settle_down()} == {True}


def test_what_lets_a_waiting_message_go_needs_a_turn() -> None:
    rig, session = held(prefetch=1)
    rig.broker.settlement.settle(session, 1, 1, ACCEPTED)
    assert not rig.broker.record_settled()
    assert [one.number for one in rig.settle_down()] == [2]


def test_what_goes_back_needs_a_turn() -> None:
    rig, session = held()
    rig.broker.settlement.settle(session, 1, 1, ACCEPTED)
    rig.broker.settlement.settle(session, 2, 2, RETURNED)
    assert not rig.broker.record_settled()
    assert [one.number for one in rig.settle_down()] == [2]
    rig.broker.check()


def test_who_waits_for_the_disk_needs_a_turn() -> None:
    rig, session = held()
    rig.broker.settlement.settle(session, 1, 1, ACCEPTED)
    rig.broker.await_durable("somebody")
    assert not rig.broker.record_settled()
