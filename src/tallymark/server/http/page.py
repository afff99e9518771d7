"""The way to the page that browsers are shown: its code is loaded by the first request for it.

It is at / for whoever accepts HTML, and below /ui/. Everything else is the interface for programs.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Final

from aiohttp import web

from tallymark.server.http.requests import HttpContext
from tallymark.server.loading import loading

if TYPE_CHECKING:
    from tallymark.server.page.site import Site

FIRST: Final = "/"
OTHERS: Final = "/ui/{rest:.*}"
BELOW: Final = "/ui/"
CODE: Final = "tallymark.server.page.site"


def is_for_page(request: web.Request) -> bool:
    """Return whether a request is a browser's, for the page."""
    if request.path == FIRST:
        return "text/html" in request.headers.get("Accept", "")
    return request.path.startswith(BELOW)


class PageRoutes:
    """Routes of the page. It sees by itself who may see it."""

    def __init__(self, http: HttpContext) -> None:
        self._http = http
        self._site: Site | None = None

    def add_to(self, app: web.Application) -> None:
        app.router.add_get(FIRST, self._answer)
        app.router.add_get(OTHERS, self._answer)
        app.router.add_post(OTHERS, self._answer)

    async def refused(self, request: web.Request, status: int, reason: str) -> web.Response:
        """Return what a browser is shown of a refusal. Raises NotLoaded."""
        return await (await self._loaded()).refused(request, status, reason)

    def close(self) -> None:
        """End every live page."""
        if self._site is not None:
            self._site.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """Show the page. Raises NotLoaded."""
        if not is_for_page(request):
            raise web.HTTPNotFound
        return await (await self._loaded()).answer(request)

    async def _loaded(self) -> Site:
        """Return the page. Raises NotLoaded."""
        if self._site is None:
            with loading("the page", "http"):
                await asyncio.to_thread(import_module, CODE)
                from tallymark.server.page.site import Site

                if self._site is None:  # others may have waited as well
                    self._site = Site(self._http)
        return self._site
