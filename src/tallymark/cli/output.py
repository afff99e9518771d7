"""How results are shown: tables for people, JSON for scripts, errors on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer


def fail(text: str, code: int = 1) -> NoReturn:
    """Say why on stderr and leave with this exit code."""
    print(f"tallymark: {text}", file=sys.stderr)
    raise typer.Exit(code)


def show_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, sort_keys=False))


def show_table(rows: Sequence[dict[str, Any]], columns: Sequence[str], empty: str) -> None:
    """Rows as a table of these columns; `empty` is said where there are none."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    if not rows:
        print(empty)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        number = isinstance(rows[0].get(column), int | float)
        table.add_column(column.replace("_", " "), justify="right" if number else "left")
    for row in rows:
        table.add_row(*(_text(row.get(column)) for column in columns))
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(table)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{key}={_text(item)}" for key, item in value.items())
    return "" if value is None else str(value)
