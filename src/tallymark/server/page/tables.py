"""Tables that the server sorts, searches and cuts into pages, however many rows there are.

Of every thing only what it is sorted by and found by is looked at; the other columns are made for
the rows of the page that is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from tallymark.server.page.view import View
from tallymark.server.parts import cut

Thing = TypeVar("Thing")

ROWS: Final = 50
"""Rows on a page."""
AT_ONCE: Final = 500
"""Things in one part of looking for them: some three comparisons each."""
MOST_TEXT: Final = 200
"""Letters of a search."""
UP: Final = "ascending"
DOWN: Final = "descending"


@dataclass(frozen=True, slots=True)
class Column(Generic[Thing]):
    """A column. name: in the query, to sort by. value: shown, and sorted by. kind: how it is
    written: text, number, rate, size, lasting, time, flag. link: address that the cell leads to.
    note: a further line, small. is_sortable: False where the value costs more than a look. tone:
    "", good, warn or bad. text: shown in place of the value."""

    name: str
    title: str
    value: Callable[[Thing], Any]
    kind: str = "text"
    link: Callable[[Thing], str] | None = None
    note: Callable[[Thing], str] | None = None
    tone: Callable[[Thing], str] | None = None
    is_sortable: bool = True
    text: Callable[[Thing], str] | None = None

    @property
    def is_number(self) -> bool:
        return self.kind in ("number", "rate", "size", "lasting")


@dataclass(frozen=True, slots=True)
class Cell:
    """One value of a row, ready to be written."""

    value: Any
    kind: str
    is_number: bool
    link: str
    note: str
    tone: str


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a column. order: ascending, descending or "" as it is sorted now. link: address
    of the table sorted by it; "": it cannot be."""

    title: str
    is_number: bool
    order: str
    link: str


@dataclass(slots=True)
class Table:
    """A table as the template `table` of parts.html writes it."""

    caption: str
    heads: list[Head]
    rows: list[list[Cell]]
    search: str
    total: int
    found: int
    page: int
    pages: int
    before: str
    """Address of the page before; "": there is none."""
    after: str
    hint: str
    """Text in the field to search in; "": there is no such field."""
    empty: str
    """Text in place of the rows, where there are none."""
    kept: dict[str, str] = field(default_factory=dict)
    """Parameters of the query that a search keeps."""
    prefix: str = ""
    """Prefix of its parameters, where a page has several tables."""


async def table_of(
    view: View,
    caption: str,
    things: Iterable[Thing],
    columns: Sequence[Column[Thing]],
    order: str,
    text: Callable[[Thing], str] | None = None,
    hint: str = "Search by name",
    empty: str = "None.",
    prefix: str = "",
) -> Table:
    """Return the table of the things as the query wants it.

    order: name of the column to sort by where nothing else is asked for, with a minus in front:
    downwards. text: what a search looks at; None: there is no search. prefix: of the parameters,
    where a page has several tables. Raises Refused: the browser has gone.
    """
    wanted = view.asked(f"{prefix}sort", order)
    is_down, name = wanted.startswith("-"), wanted.removeprefix("-")
    by = next((one for one in columns if one.name == name and one.is_sortable), None)
    search = view.asked(f"{prefix}q")[:MOST_TEXT] if text is not None else ""
    every = list(things)
    found = await _found(view, every, text, search.casefold(), by)
    if by is not None:
        found.sort(key=lambda pair: pair[0], reverse=is_down)
    pages = max(1, -(-len(found) // ROWS))
    page = min(_whole(view.asked(f"{prefix}page")), pages)
    shown = [thing for _, thing in found[(page - 1) * ROWS : page * ROWS]]
    await view.part()

    def to(number: int) -> str:
        return view.with_query(**{f"{prefix}page": number}) if 1 <= number <= pages else ""

    return Table(
        caption,
        [_head(view, one, one is by, is_down, prefix) for one in columns],
        [[_cell(one, thing) for one in columns] for thing in shown],
        search, len(every), len(found), page, pages, to(page - 1), to(page + 1),
        hint if text is not None else "", empty,
        {k: v for k, v in view.request.query.items() if k not in (f"{prefix}q", f"{prefix}page")},
        prefix,
    )  # fmt: skip


async def _found(
    view: View,
    things: list[Thing],
    text: Callable[[Thing], str] | None,
    search: str,
    by: Column[Thing] | None,
) -> list[tuple[tuple[int, Any], Thing]]:
    """Return the things that a search finds, each with what it is sorted by."""
    found: list[tuple[tuple[int, Any], Thing]] = []
    for some in cut(things, AT_ONCE):
        await view.part()
        for thing in some:
            if search and text is not None and search not in text(thing).casefold():
                continue
            found.append((_rank(None if by is None else by.value(thing)), thing))
    return found


def _rank(value: Any) -> tuple[int, Any]:
    """Values of different kinds do not compare: nothing, numbers, texts."""
    if value is None:
        return 0, 0
    if isinstance(value, bool | int | float):
        return 1, value
    return 2, str(value).casefold()


def _whole(text: str) -> int:
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else 1


def _head(view: View, column: Column[Any], is_by: bool, is_down: bool, prefix: str) -> Head:
    order = (DOWN if is_down else UP) if is_by else ""
    down = not is_down if is_by else column.is_number
    link = ""
    if column.is_sortable:
        wanted = f"-{column.name}" if down else column.name
        link = view.with_query(**{f"{prefix}sort": wanted, f"{prefix}page": None})
    return Head(column.title, column.is_number, order, link)


def _cell(column: Column[Thing], thing: Thing) -> Cell:
    return Cell(
        column.value(thing) if column.text is None else column.text(thing),
        column.kind,
        column.is_number,
        "" if column.link is None else column.link(thing),
        "" if column.note is None else column.note(thing),
        "" if column.tone is None else column.tone(thing),
    )
