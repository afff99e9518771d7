"""Engine time under steps of the wall clock [NQ-D8]: none stops or triggers a deadline, and
what is stored and shown is wall time."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.engine.clock import JUMP_MS, SLEW, Clock, in_wall_time
from tallymark.engine.message import Pack
from tallymark.engine.packing import Packing
from tallymark.engine.record import Record
from tallymark.engine.restore import snapshot
from tallymark.engine.streams import TIME, Start
from tallymark.stored.annotations import Annotations
from tests.support.engine_steps import finish, manual, reject
from tests.support.nsq_client import Client

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
STEPS = pytest.mark.parametrize("step_ms", [-HOUR_MS, DAY_MS], ids=["hour back", "day ahead"])


# -- the clock alone


def started() -> Clock:
    clock = Clock()
    assert clock.read(START_MS, 500) == START_MS
    return clock


def test_it_begins_with_wall_time_and_goes_with_the_monotonic_clock() -> None:
    clock = started()
    assert clock.read(START_MS + 1000, 1500) == START_MS + 1000
    assert (clock.now_ms, clock.wall_ms, clock.ahead_ms, clock.jumps) == (
        START_MS + 1000, START_MS + 1000, 0, 0,
    )  # fmt: skip


@STEPS
def test_a_jump_is_counted_and_engine_time_does_not_follow_it(step_ms: int) -> None:
    clock = started()
    assert clock.read(START_MS + 1000 + step_ms, 1500) == START_MS + 1000
    assert (clock.ahead_ms, clock.jumps, clock.jumped_ms) == (step_ms, 1, step_ms)
    assert clock.wall_ms == clock.to_wall(clock.now_ms) == START_MS + 1000 + step_ms
    assert clock.from_wall(clock.wall_ms) == clock.now_ms
    assert clock.read(START_MS + 2000, 2500) == START_MS + 2000  # right again
    assert (clock.ahead_ms, clock.jumps, clock.jumped_ms) == (0, 2, -step_ms)


def test_a_clock_that_is_nearly_right_again_is_slewed_to() -> None:
    """So that nothing has to be converted from then on."""
    clock = started()
    clock.read(START_MS + DAY_MS, 500)
    clock.read(START_MS + 3, 500)
    assert (clock.ahead_ms, clock.jumps) == (0, 2)
    clock.read(START_MS + 103, 600)
    assert clock.wall_ms == START_MS + 103


@pytest.mark.parametrize("step_ms", [-JUMP_MS, -1, 1, JUMP_MS])
def test_what_is_no_jump_is_slewed_away(step_ms: int) -> None:
    clock = started()
    clock.read(START_MS + step_ms, 500)
    assert clock.now_ms == START_MS  # seen just now: it may be of just now
    for passed in range(10, abs(step_ms) * SLEW + 20, 10):
        before = clock.now_ms
        clock.read(START_MS + passed + step_ms, 500 + passed)
        assert abs(clock.now_ms - before - 10) <= 1
    assert clock.now_ms == START_MS + passed + step_ms
    assert clock.jumps == 0


def test_a_wall_clock_before_1970_is_none() -> None:
    clock = started()
    clock.read(0, 500)
    assert clock.now_ms == START_MS
    assert clock.to_wall(START_MS - 5) == 0


@given(
    st.lists(
        st.tuples(
            st.integers(0, 100_000),
            st.one_of(st.just(0), st.integers(-5000, 5000), st.integers(-DAY_MS, DAY_MS)),
        )
    )
)
def test_engine_time_never_goes_back_nor_far_from_the_monotonic_clock(
    looks: list[tuple[int, int]],
) -> None:
    clock, wall, monotonic = started(), START_MS, 500
    for passed, step in looks:
        monotonic += passed
        wall += passed + step
        before = clock.now_ms
        clock.read(wall, monotonic)
        gone = clock.now_ms - before
        assert gone >= 0
        assert abs(gone - passed) <= passed // SLEW + 1
        assert abs(clock.wall_ms - wall) <= JUMP_MS


# -- deadlines under it


@STEPS
def test_nq_d8_a_ttl_is_over_when_it_is_over(step_ms: int) -> None:
    rig = manual()
    rig.declare("dead")
    rig.exchange("dlx", "fanout", ("dead", ""))
    rig.declare("q", {"message-ttl": 1000, "dead-letter-exchange": "dlx"})
    rig.send("q", 1)
    rig.set_wall_clock(step_ms)
    rig.send("q", 2)
    rig.advance(999)
    assert rig.ready("q") == [1, 2]
    rig.advance(1)
    assert rig.ready("q") == []
    rig.send("q", 3)
    rig.set_wall_clock(-step_ms)
    rig.advance(999)
    assert rig.ready("q") == [3]
    rig.advance(1)
    assert sorted(rig.ready("dead")) == [1, 2, 3]
    assert rig.broker.next_due() > rig.now_ms


@STEPS
def test_nq_d8_in_flight_deferred_and_unused_queues(step_ms: int) -> None:
    """A time-out, a REQ, a delayed publish and x-expires, each of a second."""
    rig = manual()
    rig.declare("q")
    rig.declare("unused", {"expires": 1000})
    client = Client(rig, "q", "c", rdy=1, timeout_ms=1000)
    rig.send("q", 1)
    finish(rig)
    rig.send("q", 2, annotations=Annotations(due_ms=rig.now_ms + 1000))
    other = Client(rig, "q", "d", rdy=1, timeout_ms=60_000)
    rig.send("q", 3)
    finish(rig)
    other.rdy(0)
    other.req(1, 1000)
    client.rdy(0)
    rig.set_wall_clock(step_ms)
    rig.advance(990)
    queue = rig.vhost.queues["q"]
    assert (queue.ready, queue.acquired, queue.deferred) == (0, 1, 2)
    assert "unused" in rig.vhost.queues
    rig.advance(40)
    assert (queue.ready, queue.acquired, queue.deferred) == (3, 0, 0)
    assert "unused" not in rig.vhost.queues
    rig.broker.check()


# -- stored and shown


@STEPS
def test_what_is_stored_after_a_jump_is_told_from_wall_time_at_a_restart(step_ms: int) -> None:
    """Also without a checkpoint: each row says the wall time of when it was written."""
    rig = manual()
    queue = rig.declare("q")
    rig.declare("timed", {"message-ttl": 5000})
    rig.set_wall_clock(step_ms)
    rig.send("q", 1, annotations=Annotations(due_ms=rig.now_ms + 2000))
    client = Client(rig, "q", "c", rdy=1, timeout_ms=60_000)
    rig.send("q", 2)
    finish(rig)
    client.req(1, 3000)
    rig.send("timed", 3)
    assert queue.deferred == 2
    rig.advance(1000)
    after = rig.restart()
    assert after.now_ms == rig.now_ms + step_ms
    assert after.vhost.queues["q"].deferred == 2
    after.advance(999)
    assert after.ready("q") == []
    after.advance(1)
    assert after.ready("q") == [1]
    after.advance(1000)
    assert sorted(after.ready("q")) == [1, 2]
    after.advance(1999)
    assert after.ready("timed") == [3]
    after.advance(1)
    assert after.ready("timed") == []


@STEPS
def test_time_in_which_the_broker_is_down_counts(step_ms: int) -> None:
    """There is only the wall clock to tell it from."""
    rig = manual()
    rig.declare("q")
    rig.send("q", 1, annotations=Annotations(due_ms=rig.now_ms + HOUR_MS))
    rig.turn()
    rig.wall_off_ms += step_ms
    after = rig.reopened(rig.log)
    due = after.vhost.queues["q"].deferred == 0
    assert due == (step_ms > 0)


@STEPS
def test_a_checkpoint_is_in_wall_time(step_ms: int) -> None:
    """Of everything that has a time: packed backlogs, letters that nothing takes, streams."""
    rig = manual()
    rig.broker.backlogs.packing = Packing(after=2, group=3, fresh=1)
    rig.declare("dead")
    rig.exchange("dlx", "fanout", ("dead", ""))
    rig.declare("q", {"dead-letter-exchange": "dlx"})
    rig.declare("packed", {"message-ttl": 10_000})
    rig.declare("stream", {"queue-type": "stream"})
    rig.send("q", 1)
    reject(rig, "q")
    for number in range(10, 30):
        rig.send("packed", number)
        rig.send("stream", number)
        rig.advance(10)
    rig.set_wall_clock(step_ms)
    before = rig.holds("dead")[0].annotations
    assert before is not None
    rig.checkpoint()
    times = [record.time_ms for record in rig.log.checkpoint]
    assert max(times) == rig.now_ms + step_ms
    after = rig.restart()
    known = after.holds("dead")[0].annotations
    assert known is not None
    assert known.since_ms == before.since_ms + step_ms
    assert [d.first_ms for d in known.deaths] == [d.first_ms for d in before.deaths]
    queue = after.vhost.queues["stream"]
    first = queue.lanes.lowest.fresh[0].entered_ms()
    assert Start(TIME, first).place(queue, after.broker.clock) == 1
    assert after.now_ms - first == 200
    after.advance(10_000 - 201)
    assert after.ready("packed") == list(range(10, 30))
    after.advance(1)
    assert after.ready("packed") == list(range(11, 30))


@STEPS
def test_a_packed_backlog_in_wall_time_is_the_same_but_for_its_times(step_ms: int) -> None:
    rig = manual()
    rig.broker.backlogs.packing = Packing(after=2, group=3, fresh=1)
    rig.declare("packed", {"message-ttl": 10_000})
    for number in range(20):
        rig.send("packed", number)
        rig.advance(10)
    records = list(snapshot(rig.broker, False))
    originals = packs(records)
    for sum, pack in enumerate(originals):
        pack.sums = array("I", range(sum, sum + len(pack.ids)))
    copies = packs(in_wall_time(records, step_ms))
    assert len(originals) == len(copies) > 1
    for pack, copy in zip(originals, copies, strict=True):
        assert (copy.positions, copy.ids, copy.sums) == (pack.positions, pack.ids, pack.sums)
        assert list(copy.arrivals) == [time_ms + step_ms for time_ms in pack.arrivals]


def packs(records: Iterable[Record]) -> list[Pack]:
    payloads = [record.payload for record in records]
    return [one.pack for one in payloads if one is not None and one.pack is not None]


@STEPS
def test_what_is_shown_is_wall_time(step_ms: int) -> None:
    """The time of a death, and where a reader of a stream begins who names a time."""
    rig = manual()
    rig.declare("dead")
    rig.exchange("dlx", "fanout", ("dead", ""))
    rig.declare("q", {"dead-letter-exchange": "dlx"})
    rig.declare("stream", {"queue-type": "stream"})
    rig.send("stream", 1)
    rig.set_wall_clock(step_ms)
    rig.advance(10)
    rig.send("stream", 2)
    rig.send("q", 3)
    reject(rig, "q")
    known = rig.holds("dead")[0].annotations
    assert known is not None
    assert [d.first_ms for d in known.deaths] == [rig.now_ms + step_ms]
    stream = rig.vhost.queues["stream"]
    clock = rig.broker.clock
    assert Start(TIME, rig.now_ms + step_ms).place(stream, clock) == 2
    assert Start(TIME, rig.now_ms + step_ms - 1).place(stream, clock) == 2
    assert Start(TIME, rig.now_ms + step_ms - 10).place(stream, clock) == 1
