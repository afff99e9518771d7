"""Histograms of the engine, and the times that settled messages took."""

from __future__ import annotations

import pytest

from tallymark.engine.histogram import Histogram
from tallymark.engine.outcomes import ACCEPTED
from tests.support.engine_rig import Rig


@pytest.mark.parametrize(
    ("value", "bucket"), [(-5, 0), (0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (8, 3), (999, 3)]
)
def test_a_value_is_in_the_first_bucket_that_ends_above_it(value: int, bucket: int) -> None:
    times = Histogram(4)
    times.add(value, 3)
    assert times.counts == [3 if at == bucket else 0 for at in range(4)]
    assert times.total == 3 * max(value, 0)


def still() -> Rig:
    """A rig whose clock goes on only when it is told to."""
    rig = Rig()
    rig.tick_ms = 0
    return rig


def test_settled_messages_are_counted_by_their_time_in_the_queue() -> None:
    """Those that were given back, or died, are not."""
    rig = still()
    rig.queue("q")
    session = rig.session()
    rig.publish(session, "q", [0, 1, 2, 3])
    rig.settle_down()
    rig.consume(session, "q", "c")
    rig.settle_down()
    rig.advance(10)
    rig.broker.settlement.settle(session, 1, 3, ACCEPTED)
    times = rig.broker.state.settle_times
    assert {2**at: count for at, count in enumerate(times.counts) if count} == {16: 3}
    assert times.total == 30


def test_what_is_sent_settled_is_counted_when_it_is_sent() -> None:
    rig = still()
    queue, session = rig.queue("q"), rig.session()
    rig.publish(session, "q", [0, 1])
    rig.settle_down()
    rig.advance(100)
    rig.get(session, queue, no_ack=True)
    times = rig.broker.state.settle_times
    assert {2**at: count for at, count in enumerate(times.counts) if count} == {128: 1}


def test_a_turn_tells_how_many_publishes_it_confirms() -> None:
    rig = still()
    rig.queue("q")
    session = rig.session()
    session.confirming = True
    rig.publish(session, "q", [0, 1, 2])
    broker = rig.broker
    broker.turn(broker.clock.now_ms)
    rig.log.commit(broker.take_records())
    end = rig.log.end
    assert broker.committed(end) == 3
    assert broker.committed(end) == 0
