"""Journeys of messages over HTTP: GET /api/tallymark/trace searches the newest of the journal.

The search runs in a process of its own, at a lower priority: the broker's loop, and Python's lock,
stay with publishers and consumers. It reads what is on disk, up to limits of rows and bytes, and
says how far back that was.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import web

from tallymark.bridge.permissions import QUEUE, READ, Access
from tallymark.engine.errors import AccessRefused
from tallymark.journeys.messages import BODY, PROPERTIES
from tallymark.journeys.search import END_OF_TIME_MS, Sought
from tallymark.server.http.requests import HttpContext, Refused, answer, number_in, user_of

AT_ONCE: Final = 2
"""Searches under way at the same time, whoever asks for them."""
LONGEST_S: Final = 120.0
"""Time after which a search is given up."""
LEAST_TEXT: Final = 3
"""Bytes of a text: shorter ones are in every message."""
OLDER: Final = "tallymark trace ... --data-dir DIR --rows N, on the broker's machine"
"""Command that looks further back."""


class Journeys:
    """The route, and the search itself for other faces."""

    def __init__(self, http: HttpContext) -> None:
        self._http = http

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/api/tallymark/trace", self._trace)

    async def _trace(self, request: web.Request) -> web.Response:
        """Return the journeys of the messages with a text, or of one by its number.

        Query: `text` (message id, correlation id or value of a header), or `body` (a part of it),
        or `number`; `since` and `until`, the time of arrival as ISO 8601.
        """
        return answer(await self.find(request, sought_in(request)))

    async def find(self, request: web.Request, sought: Sought) -> dict[str, Any]:
        """Return what a search finds, as far as the user may read the queues.

        Raises Refused: 429 while AT_ONCE others are under way, 400 for a text in too many messages,
        503 if it takes too long.
        """
        if self._http.searches >= AT_ONCE:
            raise Refused(429, "busy", f"{AT_ONCE} searches are under way: ask again")
        self._http.searches += 1
        try:
            found = await self._ask(sought)
        finally:
            self._http.searches -= 1
        if "error" in found:
            raise Refused(400, "bad_request", found["error"])
        return self._readable(request, found) | {"older": OLDER}

    async def _ask(self, sought: Sought) -> dict[str, Any]:
        """Have the search done by a process of its own."""
        wanted = {"folder": str(self._http.node.config.data_dir.absolute())} | asdict(sought)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "tallymark.journeys", stdin=pipe, stdout=pipe, stderr=pipe
        )
        try:
            async with asyncio.timeout(LONGEST_S):
                said, complaint = await process.communicate(json.dumps(wanted).encode())
        except TimeoutError:
            raise Refused(
                503, "timeout", f"the search took more than {LONGEST_S:.0f} s: {OLDER}"
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode:
            raise RuntimeError(f"the search ended with {complaint[-2000:].decode()!r}")
        found: dict[str, Any] = json.loads(said)
        return found

    def _readable(self, request: web.Request, found: dict[str, Any]) -> dict[str, Any]:
        """Return the answer with what the user may read: steps in queues with that right, and
        messages that have such a step."""
        readers = _Readers(self._http, request)
        kept = []
        for journey in found["journeys"]:
            journey["steps"] = [one for one in journey["steps"] if readers.may_read(one)]
            journey["now"] = [one for one in journey["now"] if readers.may_read(one)]
            if journey["steps"]:
                kept.append(journey)
        return found | {"journeys": kept}


class _Readers:
    """The user's rights in the virtual hosts that an answer names."""

    def __init__(self, http: HttpContext, request: web.Request) -> None:
        self._http = http
        self._request = request
        self._known: dict[str, Access | None] = {}

    def may_read(self, place: dict[str, Any]) -> bool:
        """Return whether the user may read the queue of a step. One whose name is lost belongs to
        no virtual host that could be asked: administrators see it."""
        vhost = place["vhost"]
        if not vhost:
            return user_of(self._request).administrator
        if vhost not in self._known:
            try:
                self._known[vhost] = self._http.access(self._request, vhost)
            except AccessRefused:
                self._known[vhost] = None
        access = self._known[vhost]
        return access is not None and access.allows(QUEUE, place["queue"], READ)


def sought_in(request: web.Request) -> Sought:
    """Return what the query string asks for. Raises Refused 400."""
    query = request.query
    given = [name for name in ("text", "body", "number") if query.get(name)]
    if len(given) != 1:
        found = " and ".join(given) or "nothing"
        raise Refused(400, "bad_request", f"{found} given, expected one of text, body and number")
    since_ms = _time(request, "since", 0)
    until_ms = _time(request, "until", END_OF_TIME_MS)
    if given == ["number"]:
        return Sought(number=number_in(request, "number"), since_ms=since_ms, until_ms=until_ms)
    text = query[given[0]]
    size = len(text.encode("utf-8", "surrogateescape"))
    if size < LEAST_TEXT:
        raise Refused(400, "bad_request", f"{text!r} has {size} bytes, expected {LEAST_TEXT}")
    places = (BODY,) if given == ["body"] else PROPERTIES
    return Sought(text, places, since_ms=since_ms, until_ms=until_ms)


def _time(request: web.Request, name: str, default: int) -> int:
    """Return a time as ms since 1970; one without an offset is UTC. Raises Refused 400."""
    text = request.query.get(name, "")
    if not text:
        return default
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise Refused(400, "bad_request", f"{name} is {text!r}, expected ISO 8601") from None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
