"""Policies in the configuration: one table of `[[policies]]` each, checked before anything starts.

    [[policies]]
    vhost = "/"                              # "/" when it is left out
    name = "retry"
    pattern = "^retry-"
    definition = { message-ttl = 60000, dead-letter-exchange = "work" }
    priority = 1                             # 0
    apply-to = "queues"                      # "all"
    operator = false                         # true: an operator policy

As a flag's or variable's text they are a JSON array of the same objects.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.policies import Policy, policy_from
from tallymark.server.config.kinds import Kind, Wrong
from tallymark.server.slow.policies import slow_policies

FIELDS: Final = ("vhost", "name", "pattern", "definition", "priority", "apply-to", "operator")


@dataclass(frozen=True, slots=True, eq=False)
class ConfiguredPolicy:
    """A policy and where it belongs. Those that the configuration spells alike are equal."""

    vhost: str
    policy: Policy
    operator: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConfiguredPolicy) and self.value() == other.value()

    def __hash__(self) -> int:
        return hash((self.vhost, self.policy.name, self.operator))

    def value(self) -> dict[str, object]:
        """Return the policy as the configuration spells it."""
        placed = {"vhost": self.vhost, "name": self.policy.name, **self.policy.value()}
        return {**placed, "operator": True} if self.operator else placed


def _parse(value: object) -> tuple[ConfiguredPolicy, ...]:
    if isinstance(value, str):
        value = json.loads(value or "[]")
    if not isinstance(value, list | tuple):
        raise ValueError
    found = [_one(item, number) for number, item in enumerate(value, 1)]
    seen: set[tuple[str, str, bool]] = set()
    for one in found:
        key = (one.vhost, one.policy.name, one.operator)
        if key in seen:
            kind = "operator policy" if one.operator else "policy"
            raise Wrong(
                f"has {kind} '{one.policy.name}' of vhost '{one.vhost}' twice, expected once"
            )
        seen.add(key)
    return tuple(found)


def _one(item: object, number: int) -> ConfiguredPolicy:
    if not isinstance(item, dict):
        raise ValueError
    name = item.get("name")
    if not isinstance(name, str):
        raise Wrong(f"number {number}: name is {name!r}, expected text")
    what = f"number {number}, '{name}':"
    for field in item:
        if field not in FIELDS:
            raise Wrong(f"{what} unknown field '{field}', expected {', '.join(FIELDS)}")
    try:
        json.dumps(item)
    except TypeError as error:
        raise Wrong(f"{what} {error}, expected values that JSON has") from error
    vhost, operator = item.get("vhost", "/"), item.get("operator", False)
    if not isinstance(vhost, str):
        raise Wrong(f"{what} vhost is {vhost!r}, expected text")
    if not isinstance(operator, bool):
        raise Wrong(f"{what} operator is {operator!r}, expected true or false")
    placed = ("vhost", "name", "operator")
    value = {field: part for field, part in item.items() if field not in placed}
    try:
        policy = policy_from(name, value, operator)
        slow_policies().check(policy)
        return ConfiguredPolicy(vhost, policy, operator)
    except PreconditionFailed as error:
        raise Wrong(f"{what} {error}") from error


def _show(policies: tuple[ConfiguredPolicy, ...]) -> str:
    return json.dumps([one.value() for one in policies]) if policies else ""


POLICIES: Final = Kind(
    "tables with name, pattern and definition, see policies.md; as text a JSON array of objects",
    _parse,
    _show,
)
