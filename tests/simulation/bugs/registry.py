"""Deliberate bugs by name, the ways to put one into a broker, and parts of a plan that one acts on.

A bug changes modules of this process; they run from src, interpreted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tallymark.engine.ledger import Ledger
from tallymark.engine.restore import Restorer
from tallymark.journal.files import Files
from tallymark.journal.writer import Writer
from tallymark.simulation.plan import (
    CLOCK,
    DELETE,
    KIB,
    KILL,
    POWER_IN_SYNC,
    RIGHTS,
    STOP,
    UNREADABLE,
    Plan,
)

Patch = Callable[[], None]
MUTANTS: Final[dict[str, Patch]] = {}
NEEDS: Final[dict[str, Callable[[Plan], object]]] = {}
"""Tests of a plan, for bugs that most worlds have no use for."""


PAIRS: Final[set[str]] = set()
"""Names of bugs for which every world is a pair of brokers."""


def mutant(
    name: str, needs: Callable[[Plan], object] | None = None, pairs: bool = False
) -> Callable[[Patch], Patch]:
    """Name a deliberate bug. needs: returns whether a plan has what the bug is about; pairs: it is
    looked for in pairs of brokers."""

    def add(patch: Patch) -> Patch:
        MUTANTS[name] = patch
        if needs is not None:
            NEEDS[name] = needs
        if pairs:
            PAIRS.add(name)
        return patch

    return add


def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put something in the place of a method, made of it."""
    setattr(owner, name, make(getattr(owner, name)))


def without_records(kind: int) -> None:
    """Have the ledger lack the records of a kind."""

    def make(emit: Any) -> Any:
        def lacking(self: Any, row: Any) -> None:
            if row.kind != kind:
                emit(self, row)

        return lacking

    replaced(Ledger, "emit", make)


def not_restored(kind: int) -> None:
    """Have a restart pass over the records of a kind."""

    def make(apply: Any) -> Any:
        def passing(self: Any, record: Any) -> None:
            if record.kind != kind:
                apply(self, record)

        return passing

    replaced(Restorer, "apply", make)


def files_lack(name: str, call: Callable[[Any], Any]) -> None:
    """Have the journal's files call something else."""

    def make(init: Any) -> Any:
        def begin(self: Any, folder: Any, files: Files, *rest: Any, **more: Any) -> None:
            setattr(files, name, call(getattr(files, name)))
            init(self, folder, files, *rest, **more)

        return begin

    replaced(Writer, "__init__", make)


def has_workers(plan: Plan) -> bool:
    has_operator = any(RIGHTS in one.kinds for one in plan.operators)
    return has_operator and any(one.is_worker for one in (*plan.publishers, *plan.consumers))


def has_subscriptions(plan: Plan) -> bool:
    return bool(plan.subscriptions)


def has_rivals(plan: Plan) -> bool:
    return any(one.rival for one in plan.subscriptions)


def has_verdicts(plan: Plan) -> bool:
    return any(one.reject or one.release or one.fail for one in plan.subscriptions)


def has_nsq(plan: Plan) -> bool:
    return any(one.protocol == "nsq" for one in plan.publishers)


def has_deferrals(plan: Plan) -> bool:
    return any(one.protocol == "nsq" and one.fail for one in plan.consumers)


def has_plans_of_streams(plan: Plan) -> bool:
    return any(one.max_bytes is not None for one in plan.streams)


def has_ttl(plan: Plan) -> bool:
    return any(one.ttl_ms is not None for one in plan.queues)


def has_repeats(plan: Plan) -> bool:
    return any(one.repeats for one in plan.publishers)


def has_timeouts(plan: Plan) -> bool:
    return any(one.timeout_ms is not None for one in plan.consumers)


def has_shovels(plan: Plan) -> bool:
    return bool(plan.shovels)


def has_failures(plan: Plan) -> bool:
    """Return whether messages fail, and the broker ends."""
    has_ends = any("power" in one.kind or one.kind in (KILL, STOP) for one in plan.faults)
    return has_ends and any(one.fail and one.protocol != "nsq" for one in plan.consumers)


def has_seen_transactions(plan: Plan) -> bool:
    """Return whether somebody may see a transaction before the power goes."""
    seen = {one.name for one in plan.queues if not one.may_drop}
    seen &= {one.queue for one in plan.consumers}
    is_seen = any(
        one.transactional and one.batch > 1 and (seen if one.target == "*" else
                                                 seen & {one.target, one.second})
        for one in plan.publishers
    )  # fmt: skip
    is_cut = any("power cut" in one.kind for one in plan.faults)
    return is_seen and is_cut and plan.deliver_after == "written"


def has_shared(plan: Plan) -> bool:
    return any(one.protocol == "amqp091" for one in plan.shared)


def has_durable_slow(plan: Plan) -> bool:
    return any(
        one.policy == DELETE and one.is_durable and not one.deletes_persistent for one in plan.slow
    )


def has_failing_reads(plan: Plan) -> bool:
    return any(one.kind == UNREADABLE for one in plan.faults)


def has_old_blocks_read(plan: Plan) -> bool:
    """Return whether blocks have one checksum each, and bodies leave memory."""
    return plan.has_old_forms and plan.max_memory <= 64 * KIB


def is_cut_in_a_sync(plan: Plan) -> bool:
    return any(one.kind == POWER_IN_SYNC for one in plan.faults)


def is_cut_without_syncs(plan: Plan) -> bool:
    return plan.sync != "commit" and any("power cut" in one.kind for one in plan.faults)


def has_own_ttl(plan: Plan) -> bool:
    return any(one.ttl_ms is not None for one in plan.publishers)


def has_cycles(plan: Plan) -> bool:
    return any(one.is_cycle for one in plan.queues)


def has_times_and_clock_steps(plan: Plan) -> bool:
    has_times = has_ttl(plan) or has_own_ttl(plan) or has_deferrals(plan)
    return has_times and any(one.kind == CLOCK for one in plan.faults)
