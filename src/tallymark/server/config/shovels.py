"""Shovels in the configuration: one table of `[[shovels]]` each, checked before anything starts.

What stands in a table is in shovels/plan.py. As a flag's or variable's text they are a JSON array
of the same objects; passwords belong into the file.
"""

from __future__ import annotations

import json
from typing import Final

from tallymark.server.config.kinds import Kind, Wrong
from tallymark.shovels.plan import Plan, PlanRefused

_TABLES: Final = (
    "tables with name, from, queue and to, see shovels.md; as text a JSON array of objects"
)


def _parse(value: object) -> tuple[Plan, ...]:
    """Raises Wrong, which never shows a whole value: there are passwords in it."""
    if isinstance(value, str):
        try:
            value = json.loads(value or "[]")
        except ValueError:
            raise Wrong(f"is no JSON, expected {_TABLES}") from None
    if not isinstance(value, list | tuple):
        shown = "one table, [shovels]" if isinstance(value, dict) else type(value).__name__
        raise Wrong(f"is {shown}, expected a list, [[shovels]]: {_TABLES}")
    found: dict[str, Plan] = {}
    for number, item in enumerate(value, 1):
        if not isinstance(item, dict):
            raise Wrong(f"number {number} is {type(item).__name__}, expected {_TABLES}")
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


SHOVELS: Final = Kind(_TABLES, _parse, _show)
