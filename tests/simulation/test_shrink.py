"""A plan is reduced to what still fails, and can be had again from the names that it prints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tallymark.simulation.disk import Faults
from tallymark.simulation.plan import (
    KILL,
    POWER,
    ConsumerPlan,
    FaultPlan,
    Plan,
    PublisherPlan,
    QueuePlan,
)
from tallymark.simulation.shrink import Less, parts, shrunk

WHOLE = Plan(
    1, 8.0,
    queues=(QueuePlan("q0", ttl_ms=50, dead_letters=True), QueuePlan("q1")),
    publishers=(PublisherPlan("p0", "amqp", "q0"), PublisherPlan("p1", "amqp", "q1")),
    consumers=(ConsumerPlan("c0", "amqp", "q0"),),
    faults=(FaultPlan(1.0, KILL, "f0"), FaultPlan(2.0, POWER, "f1")),
    disk=Faults(stall=0.1, short_write=0.1),
)  # fmt: skip


def test_what_a_failure_does_not_need_is_left_out() -> None:
    def fails(plan: Plan) -> bool:
        return (
            any(one.kind == POWER for one in plan.faults)
            and plan.queues[0].dead_letters
            and plan.disk.short_write > 0
            and plan.duration_s >= 2
        )

    less = shrunk(WHOLE, fails, Less())
    left = less.of(WHOLE)
    assert fails(left)
    assert left == replace(
        WHOLE, duration_s=2.0, queues=(QueuePlan("q0", dead_letters=True),), publishers=(),
        consumers=(), faults=(WHOLE.faults[1],), disk=Faults(short_write=0.1),
    )  # fmt: skip


def test_the_printed_arguments_give_the_same_plan() -> None:
    less = Less(("p1", "q1", "f0", "q0.ttl_ms", "disk.stall"), 2.5)
    assert less.arguments() == " --without p1,q1,f0,q0.ttl_ms,disk.stall --seconds 2.5"
    assert parts(less.of(WHOLE)) == ["p0", "c0", "f1", "q0.dead_letters", "disk.short_write"]


@pytest.mark.parametrize("used_by", ["p0", "c0"])
def test_a_queue_stays_while_a_client_uses_it(used_by: str) -> None:
    one_left = Less(tuple({"p0", "c0"} - {used_by})).of(WHOLE)
    assert "q0" not in parts(one_left)
    assert "q0" in parts(Less(("p0", "c0")).of(WHOLE))
