"""The flag of redelivery after a crash: on all that may have been delivered, and on little else."""

from __future__ import annotations

import pytest

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
    # Four syncs of what is delivered in one, and what one turn asks for beyond that.
    a_sync = turns_a_sync * min(prefetch, 400)
    assert len(never) <= max(2 * SMALLEST_RESERVE, 6 * a_sync) + 32, len(never)
    assert after.ready("q")[-1] not in flags


def test_where_delivery_rests_the_mark_does_not_run_ahead_of_it() -> None:
    """As seen under a siege: a backlog of 4,500, of which 362 had been handed out."""
    rig = Rig()
    rig.queue("q")
    session = rig.session()
    for number in range(4500):
        rig.publish(session, "q", [number])
    rig.settle_down()
    rig.consume(session, "q", "c", 362)
    assert len(rig.settle_down()) == 362
    flags = flagged(rig.restart(), "q")
    assert len(flags) <= 362 + 2 * SMALLEST_RESERVE
    assert set(range(362)) <= set(flags)
