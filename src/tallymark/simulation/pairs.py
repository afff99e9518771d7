"""Drawing of pairs: worlds with two brokers of one journal on PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from tallymark.simulation.disk import Faults
from tallymark.simulation.plan import (
    BEHIND,
    CLOCK,
    CUT,
    CUT_ALL,
    CUT_OFF,
    FAILOVER,
    HALF_OPEN,
    HANG,
    KILL,
    KILL_WAITING,
    LOST,
    MID,
    NSQ_QUEUE,
    ONE_WAY,
    RESTART,
    SLOW,
    STANDBY_AWAY,
    STOP,
    FaultPlan,
    PairPlan,
    Plan,
)

LIKELY: Final = 0.125
KEPT: Final = (CLOCK, CUT, CUT_ALL, HALF_OPEN, ONE_WAY)
"""Faults of a single broker's world that a pair has, too: those of clients and clocks."""
FAULTS: Final = (
    (KILL, 0.5), (STOP, 0.3), (HANG, 0.5), (LOST, 0.25), (CUT_OFF, 0.4), (SLOW, 0.2), (MID, 0.5),
    (RESTART, 0.3), (FAILOVER, 0.3), (STANDBY_AWAY, 0.3), (KILL_WAITING, 0.2),
)  # fmt: skip
"""Kinds of faults, and how likely a pair has them."""
BEHIND_LIKELY: Final = 0.15


def with_pair(plan: Plan, pairs: bool | None) -> Plan:
    """Return the plan as it is, or for a pair of brokers. pairs: which; None: the seed says."""
    is_drawn = Random(f"mirror {plan.seed}").random() < LIKELY
    if not (is_drawn if pairs is None else pairs):
        return plan
    random = Random(f"pair {plan.seed}")
    random.random()  # passed over: plans stay as they were when it said which seeds are pairs
    duration_s = random.choice([4.0, 8.0, 12.0])
    kinds = [kind for kind, likely in FAULTS if random.random() < likely] or [KILL]
    faults = [
        FaultPlan(round(random.uniform(0.5, duration_s), 4), random.choice(kinds), f"b{n}")
        for n in range(random.randint(1, 4))
    ]
    if random.random() < BEHIND_LIKELY:
        faults.append(FaultPlan(round(random.uniform(0.5, duration_s), 4), BEHIND, "behind"))
    if any(one.timeout_ms is not None for one in plan.consumers):
        faults += _hangs(Random(f"pair hangs {plan.seed}"), duration_s)
    # What NSQ put off may be late by a step of the clock, which is long for two brokers that poll.
    has_nsq = any(one.protocol == "nsq" for one in plan.publishers)
    kept = [kind for kind in KEPT if kind != CLOCK or not has_nsq]
    faults += [one for one in plan.faults if one.kind in kept]
    return replace(
        plan, duration_s=duration_s, sync="commit", subscriptions=(), sinks=(), streams=(),
        operators=(), rogues=(), shovels=(), shared=(), slow=(), has_ledger=False,
        queues=tuple(replace(one, is_managed=False) for one in plan.queues),
        publishers=tuple(
            replace(one, is_worker=False, is_numbered=False) for one in plan.publishers
            if one.target in {NSQ_QUEUE, "*"} | {queue.name for queue in plan.queues}
        ),
        consumers=tuple(
            replace(one, is_worker=False) for one in plan.consumers
            if one.queue in {NSQ_QUEUE} | {queue.name for queue in plan.queues}
        ),
        faults=tuple(sorted(faults, key=lambda one: one.at_s)),
        disk=Faults(plan.disk.write_s, plan.disk.sync_s),
        pair=PairPlan(
            lease_ms=random.choice([500, 1000, 2000]),
            latency_s=random.choice([0.000_1, 0.001, 0.01]),
            copy_s=random.choice([0.0, 0.001, 0.01]),
            restart_s=random.choice([0.1, 1.0, 4.0]),
        ),
    )  # fmt: skip


def _hangs(random: Random, duration_s: float) -> list[FaultPlan]:
    """Draw hangs of the leader, which answers of NSQ's clients wait out in its sockets while their
    time is over: in half of the pairs that have time-outs."""
    if random.random() < 0.5:
        return []
    return [
        FaultPlan(round(random.uniform(0.5, duration_s), 4), HANG, f"hang{n}") for n in range(5)
    ]
