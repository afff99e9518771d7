"""Lists, as RabbitMQ's interface has them: in order, by pages, with the columns that are asked for.

A list may have a row for each of many thousand queues. It is put in order, cut and encoded a piece
at a time, and sockets are read in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from aiohttp import web

from tallymark.engine.patterns import PatternRefused, compile_pattern
from tallymark.server.http.requests import HttpContext, Refused, answer, answer_of
from tallymark.server.management.columns import Columns
from tallymark.server.management.requests import is_number
from tallymark.server.parts import cut

Row = dict[str, Any]

PAGE_SIZE: Final = 100
MOST_ON_A_PAGE: Final = 500
ORDER: Final = ("vhost", "name", "source", "destination", "routing_key", "properties_key", "user")
MISSING: Final = object()
PIECE: Final = 1000
"""Number of rows in one piece: a few milliseconds."""


async def listed(http: HttpContext, request: web.Request, rows: Iterable[Row]) -> web.Response:
    """Rows as the request wants them: `sort`, `sort_reverse`, `name` and `use_regex`, `page` and
    `page_size`, `columns`; by virtual host and name where nothing else is asked for. Raises Refused
    400, also where the client goes meanwhile."""
    query, columns = request.query, _columns(request)
    found = await _in_order(http, request, list(rows), _ordinary)
    if query.get("sort"):
        path = query["sort"].split(".")
        found = await _in_order(http, request, found, lambda row: _order(_at(row, path)))
    if query.get("sort_reverse") == "true":
        found.reverse()
    if "page" not in query:
        texts = []
        for at, piece in enumerate(cut(found, PIECE)):
            if at:
                await http.part(request)
            texts.append(msgspec.json.encode([columns.of(row) for row in piece])[1:-1])
        return answer_of(b"[" + b",".join(texts) + b"]")
    page, size = _page(query.get("page", ""), query.get("page_size", str(PAGE_SIZE)))
    total = len(found)
    if query.get("name"):
        accepts = _filter(query["name"], query.get("use_regex") == "true")
        found = [row for row in found if accepts(str(row.get("name", "")))]
    pages = max(1, -(-len(found) // size))
    if page > pages:
        raise Refused(
            400, "page_out_of_range",
            f"Page out of range, page: {page} page size: {size}, len: {len(found)}",
        )  # fmt: skip
    items = found[(page - 1) * size : page * size]
    return answer(
        {
            "filtered_count": len(found),
            "item_count": len(items),
            "items": [columns.of(row) for row in items],
            "page": page,
            "page_count": pages,
            "page_size": size,
            "total_count": total,
        }
    )


async def _in_order(
    http: HttpContext, request: web.Request, rows: list[Row], key: Callable[[Row], Any]
) -> list[Row]:
    """Return rows by their keys; those of one key stay as they are."""
    keys: list[Any] = []
    for at, piece in enumerate(cut(rows, PIECE)):
        if at:
            await http.part(request)
        keys += [key(row) for row in piece]
    return [rows[i] for i in sorted(range(len(rows)), key=keys.__getitem__)]


def shown(request: web.Request, row: Row) -> web.Response:
    """One thing, in the `columns` the request wants."""
    return answer(_columns(request).of(row))


def _columns(request: web.Request) -> Columns:
    return Columns(request.query.get("columns", ""))


def _ordinary(row: Row) -> tuple[str, ...]:
    return tuple(str(row.get(column, "")) for column in ORDER)


def _page(page: str, size: str) -> tuple[int, int]:
    for text, most in ((page, 1 << 31), (size, MOST_ON_A_PAGE)):
        if not (is_number(text) and 1 <= int(text) <= most):
            raise Refused(
                400, "invalid_pagination_parameters",
                f"Invalid pagination parameters: page number {page}, page size {size}, expected "
                f"page 1 or above and page size 1 to {MOST_ON_A_PAGE}",
            )  # fmt: skip
    return int(page), int(size)


def _filter(name: str, is_pattern: bool) -> Callable[[str], bool]:
    if not is_pattern:
        return lambda text: name.lower() in text.lower()
    try:
        return compile_pattern(name, ignores_case=True).matches
    except PatternRefused as error:
        raise Refused(
            400, "bad_request", f"Pagination parameters are invalid: name {error}"
        ) from error


def _at(row: Row, path: list[str]) -> Any:
    value: Any = row
    for step in path:
        if not isinstance(value, dict):
            return MISSING
        value = value.get(step, MISSING)
    return value


def _order(value: Any) -> tuple[int, Any]:
    """Values of different kinds do not compare: nothing, numbers, texts, the rest as text."""
    match value:
        case None:
            return 0, 0
        case value if value is MISSING:
            return 0, 0
        case bool() | int() | float():
            return 1, value
        case str():
            return 2, value
        case _:
            return 3, str(value)
