"""The OpenAPI document of the HTTP interface, made of the routes themselves: none can be missing.

It names paths, methods, parameters and forms of answers; bodies are objects whose fields the docs
name. Programs make clients of it, and tests try odd requests by it.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

from aiohttp import web

from tallymark import __version__
from tallymark.server.http.page import BELOW as BELOW_PAGE
from tallymark.server.http.page import FIRST as PAGE
from tallymark.server.http.requests import OPEN, answer

PATH: Final = "/api/tallymark/openapi.json"
OWN: Final = "/api/tallymark/"
WORDS: Final = {"kind": ("q", "e"), "end": ("source", "destination")}
"""Names in paths that stand for one of a few words."""
SPANS: Final = ("lengths", "msg_rates", "data_rates")
QUERY: Final = (
    "columns", "sort", "sort_reverse", "page", "page_size", "name", "use_regex", "disable_stats",
    "enable_queue_totals",
    *(f"{span}_{end}" for span in SPANS for end in ("age", "incr")),
)  # fmt: skip
"""Parameters of what RabbitMQ's interface lists; anything else passes them over."""
NAMED: Final = re.compile(r"{(\w+)}")


class OpenApi:
    """The route of the document."""

    def __init__(self) -> None:
        self._made: dict[str, Any] | None = None

    def add_to(self, app: web.Application) -> None:
        app.router.add_get(PATH, self._get)

    async def _get(self, request: web.Request) -> web.Response:
        """Return the OpenAPI document."""
        if self._made is None:
            self._made = document(request.app)
        return answer(self._made)


def document(app: web.Application) -> dict[str, Any]:
    """Return the document of all routes."""
    paths: dict[str, dict[str, Any]] = {}
    for route in app.router.routes():
        if route.resource is None or route.method == "HEAD":
            continue
        path = route.resource.canonical
        if path == PAGE or path.startswith(BELOW_PAGE):
            continue
        paths.setdefault(path, {})[route.method.lower()] = _operation(path, route)
    return {
        "openapi": "3.0.3",
        "info": {"title": "Tallymark", "version": __version__},
        "security": [{"basic": []}, {"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
            "parameters": {name: _parameter(name, "query") for name in QUERY},
            "responses": {
                "Done": {"description": "Done: 200 with what was asked for, 201 made, 204"},
                "Refused": {
                    "description": "Refused: nothing has changed",
                    "content": {
                        "application/json": {
                            "schema": {
                                "type": "object",
                                "properties": {
                                    "error": {"type": "string"},
                                    "reason": {"type": "string"},
                                },
                            }
                        }
                    },
                },
            },
        },
    }


def _operation(path: str, route: web.AbstractRoute) -> dict[str, Any]:
    """Return what one method of a path is, with the first sentence of its docstring."""
    said = inspect.getdoc(route.handler) or ""
    parameters: list[dict[str, Any]] = [_parameter(name, "path") for name in NAMED.findall(path)]
    if route.method == "GET" and not path.startswith(OWN):
        parameters += [{"$ref": f"#/components/parameters/{name}"} for name in QUERY]
    found: dict[str, Any] = {
        "operationId": f"{route.method} {path}",
        "parameters": parameters,
        "responses": {
            "2XX": {"$ref": "#/components/responses/Done"},
            "default": {"$ref": "#/components/responses/Refused"},
        },
    }
    if path in OPEN:
        found["security"] = []
    if said:
        found["summary"] = " ".join(said.split("\n\n")[0].split()).split(". ")[0].rstrip(".")
    if route.method in ("PUT", "POST"):
        found["requestBody"] = {"content": {"application/json": {"schema": {"type": "object"}}}}
    return found


def _parameter(name: str, place: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if place == "path":
        schema |= {"enum": list(WORDS[name])} if name in WORDS else {"minLength": 1}
    return {"name": name, "in": place, "required": place == "path", "schema": schema}
