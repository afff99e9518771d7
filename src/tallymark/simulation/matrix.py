"""A crash in every call to the disk of one scripted world.

The script has every feature once. It is played once to count the calls that change something, then
once for each of them with a power cut in that call; with `twice` again, with a second power cut in
a call of the recovery.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tallymark.simulation.disk import Faults
from tallymark.simulation.plan import (
    DROP_OLDEST,
    KIB,
    NSQ_QUEUE,
    ConsumerPlan,
    Plan,
    PublisherPlan,
    QueuePlan,
    SharedPlan,
    ShovelPlan,
    SinkPlan,
    SlowPlan,
    StreamPlan,
    SubscriptionPlan,
)
from tallymark.simulation.playing import run
from tallymark.simulation.run import Result

SCRIPT: Final = Plan(
    seed=7,
    duration_s=0.6,
    segment_size=8 * KIB,
    checkpoint_every=16 * KIB,
    queues=(
        QueuePlan("plain", priorities=5),
        QueuePlan("short", ttl_ms=200, dead_letters=True, dead_length=6),
        QueuePlan("once", max_length=10, dedup_ms=60_000),
        QueuePlan("tried", type="quorum", delivery_limit=2, dead_letters=True),
        QueuePlan("leased"),
    ),
    publishers=(
        PublisherPlan("p0", "amqp", "*", batch=5, pause_s=0.2, ttl_ms=300),
        PublisherPlan("p1", "amqp091", "plain", batch=3, transactional=True),
        PublisherPlan("p2", "nsq", NSQ_QUEUE, batch=4, size=1000),
        PublisherPlan("p3", "amqp091", "once", repeats=0.5, pause_s=0.1),
        PublisherPlan("p4", "amqp", "t0", batch=3, repeats=0.5, pause_s=0.1, is_numbered=True),
    ),
    consumers=(
        ConsumerPlan("c0", "amqp091", "plain", transactional=True),
        ConsumerPlan("c1", "amqp", "tried", credit=3, fail=0.5, reject=0.1),
        ConsumerPlan("c2", "nsq", NSQ_QUEUE, fail=0.3),
    ),
    subscriptions=(SubscriptionPlan("r0", "leased", rows=5, reject=0.1, release=0.1, fail=0.1),),
    sinks=(SinkPlan("s0", "leased"),),
    streams=(StreamPlan("t0", max_bytes=8000, is_archived=True),),
    shovels=(ShovelPlan("v0", "once"),),
    shared=(SharedPlan("u0", "amqp091", count=2, limit=2, batch=2, pause_s=0.2),),
    slow=(
        SlowPlan(
            "w0",
            "amqp",
            DROP_OLDEST,
            is_durable=True,
            count=3,
            delay_ms=20,
            credit=1,
            hold_s=0.3,
            batch=4,
        ),
    ),
    disk=Faults(short_write=0.1),
)
"""A world with all of it."""


def points(every: int = 1, first: int = 1) -> Iterator[tuple[int, ...]]:
    """Yield the calls of the script in which the power goes."""
    calls = run(SCRIPT).disk_calls[0]
    yield from ((number,) for number in range(first, calls + 1, every))


def crash(at: tuple[int, ...]) -> Result:
    """Play the script with power cuts in these calls, one for each life."""
    return run(replace(SCRIPT, disk=replace(SCRIPT.disk, crash_at=at)))
