"""Columns of rows, as the parameter `columns` of RabbitMQ's lists asks for them: `a,b.c`.

They are read once for a whole list, and a row costs what it has and not what is asked for: a query
string has room for thousands of columns that are none, and a list for as many rows.
"""

from __future__ import annotations

from typing import Any, final


@final
class Columns:
    """The columns that a request asks for."""

    def __init__(self, text: str) -> None:
        """text: the parameter; empty: all columns."""
        self._wanted: dict[str, Any] = {}
        """Names that are asked for, with what is asked for of each: None for the whole, or the
        names of its fields, in the same form."""
        for column in text.split(",") if text else ():
            self._add(column)

    def _add(self, column: str) -> None:
        *outer, last = column.split(".")
        inner = self._wanted
        for step in outer:
            found = inner.setdefault(step, {})
            if found is None:  # the whole of it is asked for
                return
            inner = found
        inner[last] = None

    def of(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return what is asked for of a row; what it does not have is omitted."""
        return _cut(row, self._wanted) if self._wanted else row


def _cut(row: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in row.items():
        if name not in wanted:
            continue
        inner = wanted[name]
        if inner is None:
            found[name] = value
        elif isinstance(value, dict) and (part := _cut(value, inner)):
            found[name] = part
    return found
