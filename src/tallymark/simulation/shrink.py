"""A smaller world that still fails: parts of a plan are left out as long as it does.

Each part has a name: clients, queues and faults their own, a setting of a queue, of the disk or of
the network `q0.ttl_ms`, `disk.stall`. The names and the length that are left
after shrinking are arguments of the command line, so that what was found can be replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any, Final

from tallymark.simulation.plan import Plan

SHORTEST_S: Final = 0.5
SHORTER: Final = (0.5, 0.8)
ENVIRONMENT: Final = ("disk", "weather")
"""Fields of a plan whose own fields are parts."""


@dataclass(frozen=True)
class Less:
    """Parts that are left out of a plan, and its length."""

    names: tuple[str, ...] = ()
    duration_s: float | None = None
    """Simulated seconds; None: those of the plan."""

    def of(self, plan: Plan) -> Plan:
        """Return the plan without these parts."""
        changes: dict[str, Any] = {}
        for group, members in _groups(plan):
            changes[group] = tuple(
                _plain(member, name, self.names)
                for name, member in members
                if name not in self.names
            )
        for group in ENVIRONMENT:
            changes[group] = _plain(getattr(plan, group), group, self.names)
        if self.duration_s is not None:
            changes["duration_s"] = self.duration_s
        return replace(plan, **changes)

    def with_name(self, name: str) -> Less:
        return replace(self, names=(*self.names, name))

    def arguments(self) -> str:
        """Return it as arguments of the command line."""
        found = f" --without {','.join(self.names)}" if self.names else ""
        return found + (f" --seconds {self.duration_s}" if self.duration_s is not None else "")


def _groups(plan: Plan) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Yield the plan's fields that have several members, and these with their names."""
    for field in fields(plan):
        members = getattr(plan, field.name)
        if isinstance(members, tuple):
            yield field.name, [(one.name, one) for one in members]


def _settings(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields that are not as they are by default, and their defaults."""
    for field in fields(owner):
        if field.default is not MISSING and getattr(owner, field.name) != field.default:
            yield field.name, field.default


def _plain(owner: Any, name: str, left_out: Iterable[str]) -> Any:
    """Return it with those of its settings at their defaults that are left out."""
    if not is_dataclass(owner):
        return owner
    changes = {
        field: default for field, default in _settings(owner) if f"{name}.{field}" in left_out
    }
    return replace(owner, **changes) if changes else owner  # type: ignore[type-var]


def parts(plan: Plan) -> list[str]:
    """Return the names of all that can be left out: what is largest first."""
    used = {
        value
        for group, members in _groups(plan)
        if group != "queues"
        for _, member in members
        for value in vars(member).values()
        if isinstance(value, str)
    }
    whole: list[str] = []
    settings: list[str] = []
    for group, members in _groups(plan):
        for name, member in members:
            if group != "queues":
                whole.append(name)
            else:
                settings += [f"{name}.{field}" for field, _ in _settings(member)]
                if name not in used and len(members) > 1:
                    whole.append(name)
    for group in ENVIRONMENT:
        settings += [f"{group}.{field}" for field, _ in _settings(getattr(plan, group))]
    return whole + settings


def shrunk(plan: Plan, fails: Callable[[Plan], bool], less: Less) -> Less:
    """Return what can be left out of a plan that fails so that it still does. less: what is left
    out already."""
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for name in parts(less.of(plan)):
            candidate = less.with_name(name)
            if fails(candidate.of(plan)):
                less, is_smaller = candidate, True
        for factor in SHORTER:
            seconds = round(less.of(plan).duration_s * factor, 3)
            candidate = replace(less, duration_s=seconds)
            if seconds >= SHORTEST_S and fails(candidate.of(plan)):
                less, is_smaller = candidate, True
                break
    return less
