"""The model of slow consumers knows when one may be acted on, when one must be, and the cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tallymark.client.errors import ConnectionClosed, SessionClosed
from tallymark.simulation.models.slow import Slow
from tallymark.simulation.plan import DELETE, DROP_OLDEST, FLOW, NOTIFY, SlowPlan
from tallymark.simulation.subscribers import is_for_slowness
from tallymark.simulation.violated import Violated
from tallymark.simulation.world import SECOND_NS, World

PLAN = SlowPlan("s", "amqp", DELETE, count=3, delay_ms=100, batch=1, publishes_over="amqp091")
CERTAIN_NS = SECOND_NS // 10


class Rig:
    def __init__(self, plan: SlowPlan = PLAN) -> None:
        self.world = World(1)
        self.model = Slow(self.world, plan, CERTAIN_NS)
        self.model.declares()
        self.model.consumes(life=1)
        self.count = 0

    def passes(self, seconds: float) -> None:
        self.world.now_ns += int(seconds * SECOND_NS)

    def publish(self, count: int, is_confirmed: bool = True, size: int = 10) -> list[str]:
        names = [f"m{self.count + n}" for n in range(count)]
        self.count += count
        for name in names:
            self.model.sent(name, size)
            if is_confirmed:
                self.model.confirmed(name)
        return names

    def answer(self, names: list[str]) -> None:
        for name in names:
            self.model.answered(name)


def test_who_is_above_the_limit_may_be_closed_and_has_to_be_in_time() -> None:
    rig = Rig()
    rig.publish(4)
    assert rig.model.was_over
    rig.model.closed()
    rig.passes(1.1)
    rig.model.check()
    rig.passes(0.2)
    with pytest.raises(Violated, match=r"not closed: s is too slow for 1\.3"):
        rig.model.check()


def test_nobody_acts_while_something_hangs() -> None:
    rig = Rig()
    rig.publish(4)
    rig.world.troubles.add(rig.world.now_ns, 2.0)
    rig.passes(3.1)
    rig.model.check()
    rig.passes(0.2)
    with pytest.raises(Violated, match="not closed: s is too slow for 3"):
        rig.model.check()


def test_a_word_that_hung_on_its_way_counts() -> None:
    rig = Rig()
    rig.answer(rig.publish(4))
    rig.world.troubles.add(rig.world.now_ns, 2.0)
    rig.passes(3.0)
    rig.model.closed()


def test_who_is_within_its_limits_is_not_closed() -> None:
    rig = Rig()
    rig.publish(3)
    with pytest.raises(Violated, match="within its limits"):
        rig.model.closed()


def test_a_look_that_was_taken_before_the_answers_came_counts() -> None:
    rig = Rig()
    rig.answer(rig.publish(4))
    rig.passes(0.5)
    rig.model.closed()
    rig.passes(1)
    with pytest.raises(Violated, match="within its limits"):
        rig.model.closed()


def test_who_catches_up_does_not_have_to_be_closed() -> None:
    rig = Rig()
    for _ in range(10):
        names = rig.publish(4)
        rig.passes(0.5)
        rig.answer(names)
        rig.model.check()


def test_what_nobody_confirmed_may_be_there_and_need_not() -> None:
    rig = Rig()
    rig.publish(4, is_confirmed=False)
    rig.passes(5)
    rig.model.check()
    rig.model.closed()


def test_nobody_has_to_act_on_a_subscription_without_a_consumer() -> None:
    rig = Rig()
    rig.publish(4)
    rig.model.ends()
    rig.passes(5)
    rig.model.check()


@pytest.mark.parametrize(
    "plan",
    [replace(PLAN, depth=30, count=None), replace(PLAN, age_ms=500, count=None)],
    ids=["bytes", "age"],
)
def test_bytes_and_age_are_limits_too(plan: SlowPlan) -> None:
    rig = Rig(plan)
    first = rig.publish(3)
    with pytest.raises(Violated, match="within its limits"):
        rig.model.closed()
    rig.passes(0.6)
    first += rig.publish(1)
    rig.model.check()
    rig.model.closed()
    rig.passes(1.3)
    with pytest.raises(Violated, match="not closed"):
        rig.model.check()
    rig.answer(first)
    rig.model.check()


def test_too_few_a_second_takes_ten_seconds() -> None:
    rig = Rig(replace(PLAN, count=None, rate=2.0))
    names = rig.publish(100)
    rig.passes(5)
    with pytest.raises(Violated, match="within its limits"):
        rig.model.closed()
    rig.passes(5)
    rig.model.closed()
    for name in names[:50]:
        rig.passes(0.25)
        rig.answer([name])
    with pytest.raises(Violated, match="within its limits"):
        rig.model.closed()


@pytest.mark.parametrize(
    "plan",
    [replace(PLAN, is_durable=True), replace(PLAN, policy=NOTIFY), replace(PLAN, policy=FLOW)],
    ids=["durable", "notify", "flow"],
)
def test_who_may_not_be_closed_never_is_and_does_not_have_to_be(plan: SlowPlan) -> None:
    rig = Rig(plan)
    rig.publish(4)
    rig.passes(5)
    rig.model.check()
    with pytest.raises(Violated, match="closed: s"):
        rig.model.closed()


def test_publishers_that_are_held_back_do_not_go_on() -> None:
    rig = Rig(replace(PLAN, policy=FLOW))
    rig.publish(4)
    rig.passes(2)
    rig.publish(2)
    with pytest.raises(Violated, match="publishers go on"):
        rig.publish(1)


def test_publishers_go_on_when_a_broker_begins_whose_consumer_is_not_back() -> None:
    """World 8800148: a power cut, and the consumer's connection was half open."""
    rig = Rig(replace(PLAN, policy=FLOW))
    rig.publish(4)
    rig.model.life_ended(1)
    rig.passes(2)
    rig.publish(3)


def test_the_end_of_an_earlier_life_changes_nothing() -> None:
    rig = Rig(replace(PLAN, policy=FLOW))
    rig.model.consumes(life=2)
    rig.publish(4)
    rig.model.life_ended(1)
    rig.passes(2)
    with pytest.raises(Violated, match="publishers go on"):
        rig.publish(3)


def test_what_it_had_goes_with_it_also_where_it_was_too_slow_by_its_rate() -> None:
    """World 8808204."""
    rig = Rig(replace(PLAN, count=None, rate=5.0, is_durable=True, deletes_persistent=True))
    rig.publish(1)
    rig.passes(11)
    sent_ns = rig.world.now_ns
    assert not rig.model.may_be_gone(sent_ns)
    rig.model.closed()
    assert rig.model.may_be_gone(sent_ns)
    assert not rig.model.may_be_gone(sent_ns + 1)


def test_what_is_dropped_was_there_when_it_was_too_much() -> None:
    rig = Rig(replace(PLAN, policy=DROP_OLDEST, is_durable=True))
    first_ns = rig.world.now_ns
    names = rig.publish(4)
    rig.passes(1)
    rig.answer(names)
    rig.passes(1)
    last_ns = rig.world.now_ns
    rig.publish(3)
    assert rig.model.may_be_gone(first_ns)
    assert not rig.model.may_be_gone(last_ns)


def test_a_durable_subscription_that_is_left_alone_loses_nothing() -> None:
    rig = Rig(replace(PLAN, is_durable=True))
    now = rig.world.now_ns
    rig.publish(9)
    assert not rig.model.may_be_gone(now)
    assert Rig().model.may_be_gone(now), "a transient one goes with its connection"


def test_a_queue_that_is_declared_anew_begins_empty() -> None:
    rig = Rig(replace(PLAN, is_durable=True, deletes_persistent=True))
    now = rig.world.now_ns
    rig.publish(4)
    rig.passes(2)
    rig.model.closed()
    rig.model.declares()
    rig.model.consumes(life=1)
    rig.publish(3)
    rig.passes(2)
    rig.model.check()
    assert rig.model.may_be_gone(now)
    with pytest.raises(Violated, match="within its limits"):
        rig.model.closed()


def test_a_connection_that_is_not_heard_is_not_closed_for_slowness() -> None:
    limit = "amqp:resource-limit-exceeded"
    slow = ConnectionClosed("Consuming too slow.", condition=limit)
    unheard = ConnectionClosed("nothing received for 8001 ms", condition=limit)
    assert is_for_slowness(slow, may_be_unheard=True)
    assert is_for_slowness(unheard, may_be_unheard=False)
    assert not is_for_slowness(unheard, may_be_unheard=True)
    assert not is_for_slowness(SessionClosed("Consuming too slow.", condition=limit), True)
