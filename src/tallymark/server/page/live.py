"""Live pages: server-sent events with the part of a page that changes.

An update is sent when that part is another one, at most once in SHORTEST_S. The next one is made no
earlier than REST times what the last one took: an open page costs less than 2 % of a core, however
long its lists are. A browser closes the stream while its tab is hidden.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec
from aiohttp import web

from tallymark.engine.errors import BrokerError
from tallymark.server.http.requests import Refused

SHORTEST_S: Final = 1.0
LONGEST_S: Final = 30.0
"""Seconds between two updates, at most; a page that is dear is seldom made."""
REST: Final = 100
MOST: Final = 100
"""Streams at a time."""
MOST_OF_ONE: Final = 20
"""Streams of one user."""
TYPE: Final = "text/event-stream"


class Live:
    """The streams of a broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._users: dict[asyncio.Event, str] = {}
        """Users of the streams, by the event that ends one."""
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._users)

    def close(self) -> None:
        """End every stream, and begin no other."""
        self._is_closed = True
        for ending in self._users:
            ending.set()

    async def stream(
        self,
        request: web.Request,
        user: str,
        stays: Callable[[], bool],
        make: Callable[[], Awaitable[str]],
    ) -> web.StreamResponse:
        """Send what `make` returns, again when it changes, until the browser goes, the broker stops
        or `stays` says that the user has gone. Raises Refused 503: there are too many streams."""
        own = sum(name == user for name in self._users.values())
        if self._is_closed or len(self._users) >= MOST or own >= MOST_OF_ONE:
            raise Refused(503, "too_many", f"{len(self._users)} live pages are open")
        ending = asyncio.Event()
        self._users[ending] = user
        try:
            response = web.StreamResponse(
                headers={"Content-Type": TYPE, "Cache-Control": "no-store"}
            )
            await response.prepare(request)
            await self._send(response, ending, stays, make)
            return response
        finally:
            del self._users[ending]

    async def _send(
        self,
        response: web.StreamResponse,
        ending: asyncio.Event,
        stays: Callable[[], bool],
        make: Callable[[], Awaitable[str]],
    ) -> None:
        last = ""
        while not ending.is_set():
            if not stays():
                break
            began = self._loop.time()
            try:
                text = await make()
            except Refused:
                break
            except BrokerError:  # what the page is about has gone
                await response.write(event("end", "gone"))
                return
            took = self._loop.time() - began
            if text != last:
                last = text
                await response.write(event("live", text))
            wait_s = min(max(SHORTEST_S, REST * took), LONGEST_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(ending.wait(), wait_s)
        await response.write(event("end", "stopped" if ending.is_set() else "logged out"))


def event(kind: str, text: str) -> bytes:
    """Return a server-sent event whose data is the text as JSON: it has no line breaks."""
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(text) + b"\n\n"
