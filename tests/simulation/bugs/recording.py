"""Deliberate bugs of what is recorded, and of what a restart makes of it."""

from __future__ import annotations

from typing import Any

from tallymark.engine import restore
from tallymark.engine.queue_parts import Deferrals
from tallymark.engine.restore import Restorer
from tallymark.engine.upkeep import Upkeep
from tallymark.stored import records
from tests.simulation.bugs.registry import (
    has_deferrals,
    has_failures,
    has_ttl,
    mutant,
    not_restored,
    replaced,
    without_records,
)


@mutant("settlement not recorded")
def _() -> None:
    without_records(records.SETTLED)


@mutant("mark not recorded")
def _() -> None:
    without_records(records.MARK)


@mutant("return not recorded", has_failures)
def _() -> None:
    without_records(records.RETURNED)


@mutant("dead letter not recorded")
def _() -> None:
    without_records(records.DEAD_LETTERED)


@mutant("mark not restored")
def _() -> None:
    not_restored(records.MARK)


@mutant("settlement not restored")
def _() -> None:
    not_restored(records.SETTLED)


@mutant("checkpoint lacks what is in flight")
def _() -> None:
    restore._in_flight = lambda broker: []


@mutant("time to live ignored after a restart", has_ttl)
def _() -> None:
    restored: dict[int, int] = {}

    def make_finish(finish: Any) -> Any:
        def noting(self: Any) -> None:
            finish(self)
            restored.clear()
            for queue in self._broker.queues.values():
                restored[id(queue)] = queue.entered

        return noting

    def make_overdue(overdue: Any) -> Any:
        def young(self: Any, queue: Any, head: Any, upto: int, now: int) -> int:
            if head.first <= restored.get(id(queue), 0):
                return 0
            return int(overdue(self, queue, head, upto, now))

        return young

    replaced(Restorer, "finish", make_finish)
    replaced(Upkeep, "_overdue", make_overdue)


@mutant("deferred lost", has_deferrals)
def _() -> None:
    def make(add: Any) -> Any:
        def without(broker: Any, queue: Any, *rest: Any) -> None:
            deferrals, queue.deferrals = queue.deferrals, Deferrals()
            add(broker, queue, *rest)
            queue.deferrals = deferrals

        return without

    replaced(restore, "_snapshot_queue", make)


@mutant("deferral not recorded", has_deferrals)
def _() -> None:
    without_records(records.DEFERRED)


@mutant("deferral not restored", has_deferrals)
def _() -> None:
    not_restored(records.DEFERRED)
