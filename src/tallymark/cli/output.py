"""Output of results: tables for people, JSON for scripts, errors on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

from tallymark.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

USAGE: Final = 2
"""Exit code of a command that was called wrongly."""
UNBOUNDED: Final = 100_000
"""Columns of a terminal that there is none of."""


def fail(text: str, code: int = 1) -> NoReturn:
    """Say why on stderr and leave with this exit code."""
    print(f"tallymark: {text}", file=sys.stderr)
    sys.exit(code)


def standard_input() -> TextIO:
    """Return stdin, or leave with exit code 2 where whoever started us has closed it."""
    if sys.stdin is None:
        fail("stdin is closed, expected something to read from it", USAGE)
    return sys.stdin


def require(*modules: str, extra: str) -> None:
    """Leave, saying what to install, unless these modules are there."""
    from importlib.util import find_spec

    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        fail(
            f"this command needs {', '.join(missing)}, not installed here: "
            f"pip install 'tallymark[{extra}]'"
        )


def show_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, sort_keys=False))


def json_object(what: str, text: str) -> dict[str, Any]:
    """The JSON object that an argument of the command is, or exit code 2."""
    try:
        found = json.loads(text)
    except ValueError as error:
        fail(f"{what} is {text!r}, expected a JSON object: {error}", USAGE)
    if not isinstance(found, dict):
        fail(f"{what} is {text!r}, expected a JSON object", USAGE)
    return found


def reason_of(error: OSError) -> str:
    """Return one line for people: the file, where there is one, and its error."""
    reason = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename is not None else reason


def show_table(
    rows: Sequence[dict[str, Any]],
    columns: Sequence[str],
    empty: str,
    spare: Sequence[str] = (),
    elsewhere: str = "a wider terminal, or --json",
) -> None:
    """Rows as a table of these columns; `empty` is said where there are none.

    spare: what a narrow terminal goes without, the least important first. What is still too wide
    is folded; nothing is cut. Where the output is no terminal everything is shown. elsewhere: the
    ways to see what is left out.
    """
    from rich.console import Console

    if not rows:
        print(empty)
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=_width(_table(rows, columns), console))
    print_table(console, rows, columns, spare, elsewhere)


def print_table(
    console: Console,
    rows: Sequence[dict[str, Any]],
    columns: Sequence[str],
    spare: Sequence[str],
    elsewhere: str = "a wider terminal, or --json",
) -> None:
    """Print the table, at most as wide as the console, and below it the names of omitted
    columns."""
    shown, left_out = list(columns), []
    table = _table(rows, shown)
    for column in spare:
        if _width(table, console) <= console.width:
            break
        shown.remove(column)
        left_out.append(column.replace("_", " "))
        table = _table(rows, shown)
    console.print(table)
    if left_out:
        console.print(f"not shown here: {', '.join(left_out)} ({elsewhere})")


def _table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        number = isinstance(rows[0].get(column), int | float)
        table.add_column(
            column.replace("_", " "), justify="right" if number else "left",
            no_wrap=number, overflow="fold",
        )  # fmt: skip
    for row in rows:
        table.add_row(*(Text(_text(row.get(column))) for column in columns))
    return table


def _width(table: Table, console: Console) -> int:
    """Return the width that shows the table without cuts."""
    from rich.measure import Measurement

    return Measurement.get(console, console.options.update_width(UNBOUNDED), table).maximum


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{key}={_text(item)}" for key, item in value.items())
    return "" if value is None else printable(str(value))
