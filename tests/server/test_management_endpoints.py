"""The table of RabbitMQ's endpoints says what the routes are (docs/management-endpoints.md)."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from tallymark.server import run
from tallymark.server.config.settings import Config
from tallymark.server.http.features import FeatureFlags
from tallymark.server.http.requests import HttpContext
from tallymark.server.management.routes import add_management
from tallymark.server.opening import open_node

PAGE = Path(__file__).parents[2] / "docs" / "management-endpoints.md"
DOCUMENTED = Path(__file__).parent / "fixtures" / "rabbitmq-3.10.8-endpoints.txt"
METHODS = ("GET", "PUT", "POST", "DELETE")
OWN = "/api/tallymark/"


@dataclass(frozen=True)
class Row:
    path: str
    documented: frozenset[str]
    here: frozenset[str]
    verdict: str
    how: str


def _methods(text: str) -> frozenset[str]:
    return frozenset(text.replace(",", " ").split())


def _cells(text: str, columns: int) -> list[list[str]]:
    """Return the rows of the tables with so many columns."""
    lines = [line for line in text.splitlines() if line.startswith("| `/api/")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if len(row) == columns]


def _table() -> list[Row]:
    rows = []
    for path, documented, here, verdict, how in _cells(PAGE.read_text(), 5):
        rows.append(Row(path.strip("`"), _methods(documented), _methods(here), verdict, how))
    return rows


def _beyond() -> dict[str, frozenset[str]]:
    return {path.strip("`"): _methods(methods) for path, methods, _ in _cells(PAGE.read_text(), 3)}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> web.Application:
    async def made() -> web.Application:
        folder = Path(tmp_path_factory.mktemp("routes"))
        node = open_node(Config(data_dir=folder), asyncio.get_running_loop())
        app = web.Application()
        context = HttpContext(node)
        add_management(context, app)
        FeatureFlags(context).add_to(app)
        await run._close(node)
        return app

    return asyncio.run(made())


def _filled(path: str) -> str:
    """Return a path with something in the place of each name."""
    return re.sub(r"\{\w+\}", "some", path)


def _taken(app: web.Application, path: str) -> frozenset[str]:
    """Return the methods that a path is routed for."""

    async def asked(method: str) -> bool:
        found = await app.router.resolve(make_mocked_request(method, _filled(path)))
        return found.http_exception is None

    return frozenset(method for method in METHODS if asyncio.run(asked(method)))


def test_the_table_has_every_documented_endpoint() -> None:
    lines = [line.split() for line in DOCUMENTED.read_text().splitlines() if line[0] != "#"]
    documented = [(path, frozenset(methods)) for path, *methods in lines]
    assert [(row.path, row.documented) for row in _table()] == documented


def test_the_table_says_which_methods_are_routed(app: web.Application) -> None:
    for row in _table():
        # A name may stand where another endpoint has a word: /api/users/{name} takes any.
        assert _taken(app, row.path) & row.documented == row.here, row.path


def test_the_verdicts_fit_the_methods() -> None:
    for row in _table():
        match row.verdict:
            case "same":
                assert row.here == row.documented, row.path
            case "different":
                assert row.here, row.path
                assert row.how, row.path
            case "not there":
                assert not row.here, row.path
                assert row.how, row.path
            case other:
                pytest.fail(f"{row.path}: {other!r}")


def test_every_route_is_in_one_of_the_tables(app: web.Application) -> None:
    known = [(row.path, row.documented) for row in _table()] + list(_beyond().items())
    patterns = [(re.sub(r"\{\w+\}", "[^/]+", path), methods) for path, methods in known]
    for route in app.router.routes():
        assert route.resource is not None
        path = route.resource.canonical
        if path.startswith(OWN) or route.method == "HEAD":
            continue
        for filled in _concrete(path):
            fits = [methods for pattern, methods in patterns if re.fullmatch(pattern, filled)]
            assert any(route.method in methods for methods in fits), (route.method, path)


def _concrete(path: str) -> list[str]:
    """Return the paths that a route takes, where one of its parts is a word out of two."""
    words = {"{kind}": ("q", "e"), "{end}": ("source", "destination")}
    found = [path]
    for name, choices in words.items():
        found = [one.replace(name, word) for one in found for word in choices]
    return [_filled(one) for one in dict.fromkeys(found)]


def test_what_is_beyond_the_page_is_routed(app: web.Application) -> None:
    for path, methods in _beyond().items():
        assert _taken(app, path) == methods, path
