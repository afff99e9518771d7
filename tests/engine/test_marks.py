"""The flag of redelivery after a crash: on all that may have been delivered, and on little else."""

from __future__ import annotations

import pytest

from tallymark.engine import records
from tallymark.engine.delivery import SMALLEST_RESERVE
from tallymark.engine.session import ACCEPTED
from tests.support.engine_rig import Rig


def flagged(rig: Rig, name: str) -> list[int]:
    return [one.number for one in rig.holds(name) if one.acquired]


@pytest.mark.parametrize("batch", [1, 25])
@pytest.mark.parametrize("prefetch", [1, 50, 400])
@pytest.mark.parametrize("turns_a_sync", [1, 4])
def test_after_a_crash_few_messages_are_flagged_that_nobody_was_given(
    batch: int, prefetch: int, turns_a_sync: int
) -> None:
    """Traffic whose disk needs so many turns for a sync; then the process is killed."""
    rig = Rig()
    rig.queue("q")
    session = rig.session()
    total = 5000
    for first in range(0, total, batch):
        rig.publish(session, "q", list(range(first, first + batch)))
    rig.settle_down()
    rig.consume(session, "q", "c", prefetch)
    given: set[int] = set()
    syncs: list[int] = []
    while len(given) < 1500:
        rig.hold_disk = len(syncs) % turns_a_sync != 0
        syncs.append(len(rig.log.blocks))
        got = rig.turn()
        given |= {delivery.number for delivery in got}
        if got:
            rig.broker.settle_up_to(session, got[-1].tag, ACCEPTED)
    after = rig.restart()
    settled = given - set(after.ready("q"))
    flags = flagged(after, "q")
    assert given - settled <= set(flags), "what may have been seen comes with the flag"
    never = [number for number in flags if number not in given]
    # Two syncs of what is delivered in one, and what one turn asks for beyond that.
    a_sync = turns_a_sync * min(prefetch, 400)
    assert len(never) <= max(2 * SMALLEST_RESERVE, 4 * a_sync) + 32, len(never)


def test_where_delivery_rests_the_mark_does_not_run_ahead_of_it() -> None:
    """As seen under a siege: a backlog of 4,500, of which 362 had been handed out."""
    rig = Rig()
    rig.queue("q")
    session = rig.session()
    for number in range(4500):
        rig.publish(session, "q", [number])
    rig.settle_down()
    consuming = rig.session()
    rig.consume(consuming, "q", "c", 362)
    assert len(rig.settle_down()) == 362
    flags = flagged(rig.restart(), "q")
    assert len(flags) <= 362 + 2 * 362
    assert set(range(362)) <= set(flags)
    rig.broker.tighten_marks()
    rig.settle_down()
    assert flagged(rig.restart(), "q") == list(range(362))
    rig.hold_disk = True
    rig.connection.holds_output = False
    rig.broker.settle(consuming, 1, 1, ACCEPTED)
    assert rig.settle_down() == [], "the disk does not say yet that 363 may have been delivered"
    rig.hold_disk = False
    assert [delivery.number for delivery in rig.settle_down()] == [362]


@pytest.mark.parametrize("at_a_time", [1, 20, 50, 400])
def test_steady_delivery_does_not_wait_for_its_marks(at_a_time: int) -> None:
    """Once it has its pace, what enters in a turn leaves in it, with one mark at most."""
    rig = Rig()
    rig.queue("q")
    session = rig.session()
    rig.consume(session, "q", "c")
    held_up = 0
    before = 0
    for turn in range(200):
        if turn == 50:
            held_up, before = 0, len(rig.log.blocks)
        rig.publish(session, "q", list(range(turn * at_a_time, (turn + 1) * at_a_time)))
        got = rig.turn()
        held_up += len(got) != at_a_time
        if got:
            rig.broker.settle_up_to(session, got[-1].tag, ACCEPTED)
    assert held_up == 0
    marks = [r for block in rig.log.blocks[before:] for r in block if r.kind == records.MARK]
    assert len(marks) <= 150, "one a turn at most"
