"""Lists of many rows: what is asked for, and a piece at a time."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any, cast

import pytest
from aiohttp.test_utils import make_mocked_request

from tallymark.server.http.requests import HttpContext
from tallymark.server.management.lists import PIECE, listed

MANY = 2 * PIECE + 1


class Context:
    """What a list needs of the HTTP server."""

    def __init__(self) -> None:
        self.parts = 0

    async def part(self, request: object) -> None:
        self.parts += 1


def rows_by_chance(count: int) -> list[dict[str, Any]]:
    rows = [
        {"name": f"q{n:05}", "vhost": "ab"[n % 2], "messages": n % 7, "deep": {"rate": n % 3}}
        for n in range(count)
    ]
    random.Random(7).shuffle(rows)
    return rows


def shown(rows: list[dict[str, Any]], query: str) -> tuple[Any, int]:
    """The answer, and how often others had their turn before it was there."""
    context = Context()
    request = make_mocked_request("GET", f"/api/queues?{query}")
    response = asyncio.run(listed(cast(HttpContext, context), request, iter(rows)))
    assert isinstance(response.body, bytes)
    assert response.content_type == "application/json"
    return json.loads(response.body), context.parts


def usual(row: dict[str, Any]) -> tuple[str, str]:
    return row["vhost"], row["name"]


@pytest.mark.parametrize("count", [0, 1, PIECE, MANY])
def test_rows_come_by_virtual_host_and_name_however_many_there_are(count: int) -> None:
    rows = rows_by_chance(count)
    assert shown(rows, "")[0] == sorted(rows, key=usual)


def test_others_have_their_turn_between_pieces() -> None:
    assert shown(rows_by_chance(PIECE), "")[1] == 0
    assert shown(rows_by_chance(MANY), "")[1] == 2 + 2, "put in order, encoded"
    assert shown(rows_by_chance(MANY), "sort=messages")[1] == 2 + 2 + 2
    assert shown(rows_by_chance(MANY), "page=1")[1] == 2, "a page is short"


def test_rows_that_are_equal_in_what_they_are_sorted_by_keep_their_order() -> None:
    rows = rows_by_chance(MANY)
    found = shown(rows, "sort=deep.rate&columns=name,vhost,deep.rate")[0]
    by_rate = sorted(sorted(rows, key=usual), key=lambda row: row["deep"]["rate"])
    assert found == [{"name": r["name"], "vhost": r["vhost"], "deep": r["deep"]} for r in by_rate]


def test_a_page_is_of_the_whole_list_in_order() -> None:
    rows = rows_by_chance(MANY)
    found = shown(rows, "sort=messages&sort_reverse=true&page=2&page_size=500")[0]
    expected = sorted(sorted(rows, key=usual), key=lambda row: row["messages"])[::-1]
    assert found["items"] == expected[500:1000]
    assert (found["total_count"], found["page_count"]) == (MANY, 5)
