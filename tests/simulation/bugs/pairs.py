"""Deliberate bugs of a journal on PostgreSQL with two brokers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tallymark.journal.postgresql.errors import LeadLost
from tallymark.journal.postgresql.home import PostgresqlHome
from tallymark.journal.postgresql.lease import Lease
from tallymark.journal.postgresql.mirror import Mirror
from tallymark.server.features import Features
from tallymark.server.standby import Following
from tallymark.server.waking import Waking
from tallymark.simulation.plan import BEHIND, CUT_OFF, HANG, KILL, LOST, Plan
from tests.simulation.bugs.registry import has_timeouts, mutant, replaced


def _loses_its_lead(plan: Plan) -> bool:
    return any(one.kind in (HANG, CUT_OFF) for one in plan.faults)


def _falls_behind(plan: Plan) -> bool:
    return any(one.kind == BEHIND for one in plan.faults)


def _hangs_with_timeouts(plan: Plan) -> bool:
    return has_timeouts(plan) and any(one.kind == HANG for one in plan.faults)


def _is_killed(plan: Plan) -> bool:
    return any(one.kind in (KILL, LOST) for one in plan.faults)


@mutant("superseded leader confirms", _loses_its_lead, pairs=True)
def _() -> None:
    def make(append: Any) -> Any:
        def going_on(self: Any, *block: Any) -> None:
            with suppress(LeadLost):
                append(self, *block)

        return going_on

    replaced(PostgresqlHome, "append", make)


@mutant("confirm before the database's commit", _is_killed, pairs=True)
def _() -> None:
    waiting: dict[PostgresqlHome, tuple[Any, ...]] = {}

    def make(append: Any) -> Any:
        def late(self: PostgresqlHome, *block: Any) -> None:
            before = waiting.get(self)
            waiting[self] = block
            if before is not None:
                append(self, *before)

        return late

    replaced(PostgresqlHome, "append", make)


@mutant("standby starts from a block too few", _is_killed, pairs=True)
def _() -> None:
    Following.read_rest = lambda self: None  # type: ignore[method-assign]


@mutant("takeover in the same epoch", _loses_its_lead, pairs=True)
def _() -> None:
    def make(claimed: Any) -> Any:
        def again(self: Lease, *about: Any) -> Lease | None:
            found = claimed(self, *about)
            return found and replace(found, epoch=max(self.epoch, 1))

        return again

    replaced(Lease, "claimed", make)


@mutant("standby keeps what the database lost", _falls_behind, pairs=True)
def _() -> None:
    def make(compare: Any) -> Any:
        def forgetful(self: Mirror) -> None:
            compare(self)
            self.cuts = 0

        return forgetful

    replaced(Mirror, "_compare", make)


@mutant("copy without flags taken for an old folder", _is_killed, pairs=True)
def _() -> None:
    def make(open_features: Any) -> Any:
        def as_alone(folder: Path, is_copy: bool = False) -> Features:
            made: Features = open_features(folder)
            return made

        return staticmethod(as_alone)

    replaced(Features, "open", make)


@mutant("time-outs before what waits in the sockets", _hangs_with_timeouts, pairs=True)
def _() -> None:
    Waking.gives_way = lambda self, now_ms: False  # type: ignore[method-assign]
    Waking.is_over = lambda self, now_ms: False  # type: ignore[method-assign]
