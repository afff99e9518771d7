"""Shovels in the configuration: one table of `[[shovels]]` each, checked before anything starts.

What stands in a table is in shovels/plan.py. As a flag's or variable's text they are a JSON array
of the same objects; passwords belong into the file.
"""

from __future__ import annotations

import json
from typing import Final

from tallymark.server.config.kinds import Kind, Wrong
from tallymark.shovels.plan import Plan, PlanRefused


def _parse(value: object) -> tuple[Plan, ...]:
    if isinstance(value, str):
        value = json.loads(value or "[]")
    if not isinstance(value, list | tuple):
        raise ValueError
    found: dict[str, Plan] = {}
    for number, item in enumerate(value, 1):
        if not isinstance(item, dict):
            raise ValueError
        try:
            plan = Plan.from_table(item)
        except PlanRefused as error:
            raise Wrong(f"number {number}, {item.get('name')!r}: {error}") from error
        if plan.name in found:
            raise Wrong(f"has shovel '{plan.name}' twice, expected once")
        found[plan.name] = plan
    return tuple(found.values())


def _show(plans: tuple[Plan, ...]) -> str:
    return json.dumps([plan.value() for plan in plans]) if plans else ""


SHOVELS: Final = Kind(
    "tables with name, from, queue and to, see shovels.md; as text a JSON array of objects",
    _parse,
    _show,
)
