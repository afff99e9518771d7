"""The flag of redelivery after a crash: on all that may have been delivered, and on little else."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tallymark.engine.durability import REST_MS, SMALLEST_RESERVE
from tallymark.engine.outcomes import ACCEPTED
from tallymark.engine.record import Record
from tallymark.stored import records
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
            rig.broker.settlement.settle_up_to(session, got[-1].tag, ACCEPTED)
    after = rig.restart()
    settled = given - set(after.ready("q"))
    flags = flagged(after, "q")
    assert given - settled <= set(flags), "what may have been seen comes with the flag"
    never = [number for number in flags if number not in given]
    # Two syncs of what is delivered in one, and what one turn asks for beyond that.
    a_sync = turns_a_sync * min(prefetch, 400)
    assert len(never) <= max(2 * SMALLEST_RESERVE, 4 * a_sync) + 32, len(never)


def test_the_rows_of_a_restart_tell_what_was_delivered_from_what_may_have_been() -> None:
    rig = Rig()
    rig.queue("q")
    session = rig.session()
    rig.publish(session, "q", list(range(500)))
    rig.settle_down()
    rig.consume(session, "q", "c", 10)
    for _ in range(10):
        got = rig.settle_down()
        rig.broker.settlement.settle_up_to(session, got[-1].tag, ACCEPTED)
    rig.turn()
    on_disk = rig.log.upto(len(rig.log.blocks))
    written = [row for block in rig.log.blocks for row in block]
    delivered, settled = (
        sequences(row for row in written if row.kind == kind)
        for kind in (records.ACQUIRED, records.SETTLED)
    )
    after = rig.reopened(on_disk)
    before = len(after.log.blocks)
    after.turn()
    rows = [
        row for block in after.log.blocks[before:] for row in block if row.kind == records.RETURNED
    ]
    told = {
        reason: sequences(row for row in rows if row.reason == reason)
        for reason in (records.RETURNED_BY_LOSS, records.RETURNED_UNSURE)
    }
    assert told[records.RETURNED_BY_LOSS] == delivered - settled
    flags = {number + 1 for number in flagged(after, "q")}
    assert told[records.RETURNED_UNSURE] == flags - delivered
    assert told[records.RETURNED_UNSURE], "the mark was ahead"


def sequences(rows: Iterable[Record]) -> set[int]:
    return {number for row in rows for number in range(row.first, row.first + row.count)}


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
    assert flagged(rig.restart(), "q") == list(range(362))
    rig.hold_disk = True
    rig.connection.holds_output = False
    rig.broker.settlement.settle(consuming, 1, 1, ACCEPTED)
    assert rig.settle_down() == [], "the disk does not say yet that 363 may have been delivered"
    rig.hold_disk = False
    assert [delivery.number for delivery in rig.settle_down()] == [362]


@pytest.mark.parametrize("batch", [1, 7, 4500])
@pytest.mark.parametrize("prefetches", [[1], [362], [100, 1, 900]])
@pytest.mark.parametrize("way", ["prefetch", "shared", "link"])
def test_where_nothing_is_settled_the_flag_is_on_what_was_delivered_alone(
    way: str, prefetches: list[int], batch: int
) -> None:
    """Credit that is used up bounds the mark, wherever it stands and however it was published."""
    rig = Rig()
    rig.queue("q")
    publisher = rig.session()
    for first in range(0, 4500, batch):
        rig.publish(publisher, "q", list(range(first, min(first + batch, 4500))))
    rig.settle_down()
    for at, prefetch in enumerate(prefetches):
        session = rig.session()
        if way == "shared":
            rig.broker.consuming.set_prefetch(session, prefetch, True)
        consumer = rig.consume(session, "q", f"c{at}", 0 if way == "shared" else prefetch)
        consumer.by_link = way == "link"
    given = {delivery.number for delivery in rig.settle_down()}
    assert len(given) == sum(prefetches)
    assert flagged(rig.restart(), "q") == sorted(given)


def test_a_queue_whose_consumer_rests_is_exact_while_others_go_on() -> None:
    """Its mark is set back with what is written for others, and without waiting for idleness."""
    rig = Rig()
    rig.queue("q")
    rig.queue("other")
    session = rig.session()
    rig.publish(session, "q", list(range(2000)))
    rig.settle_down()
    consuming = rig.session()
    rig.consume(consuming, "q", "c", 50)
    given: set[int] = set()
    for _ in range(10):
        got = rig.settle_down()
        given |= {delivery.number for delivery in got}
        rig.broker.settlement.settle_up_to(consuming, got[-1].tag, ACCEPTED)
    given |= {delivery.number for delivery in rig.settle_down()}
    ahead = set(flagged(rig.restart(), "q")) - given
    assert len(ahead) <= 2 * 50, "what came back lately may come back again"
    for number in range(3):
        rig.now_ms += REST_MS
        rig.publish(session, "other", [number])
        rig.settle_down()
    assert set(flagged(rig.restart(), "q")) - given == set()


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
            rig.broker.settlement.settle_up_to(session, got[-1].tag, ACCEPTED)
    assert held_up == 0
    marks = [r for block in rig.log.blocks[before:] for r in block if r.kind == records.MARK]
    assert len(marks) <= 150, "one a turn at most"
