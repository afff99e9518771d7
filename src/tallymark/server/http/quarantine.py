"""Messages that cannot be read, over HTTP: which they are, try them again, give them up.

GET  /api/tallymark/quarantine                             of every queue that the user may read
POST /api/tallymark/quarantine/{vhost}/{queue}/retry       {}
POST /api/tallymark/quarantine/{vhost}/{queue}/drop        {"first": 7, "last": 9}, or {}: all

What changes something is for administrators, and answered when it is on disk, in every sync mode.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from aiohttp import web

from tallymark.engine.queue import Queue
from tallymark.server.http.requests import (
    HttpContext,
    Refused,
    answer,
    body_of,
    require_administrator,
)
from tallymark.stored.records import DEATHS
from tallymark.units import QueueSequence

LAST: Final = (1 << 62) - 1
Number = Annotated[int, msgspec.Meta(ge=1, le=LAST)]


class Range(msgspec.Struct, forbid_unknown_fields=True):
    """Sequence numbers, both included."""

    first: Number = 1
    last: Number = LAST


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """A request that says nothing."""


class Quarantines:
    """Routes under /api/tallymark/quarantine."""

    def __init__(self, http: HttpContext) -> None:
        self._http = http
        self._node = http.node

    def add_to(self, app: web.Application) -> None:
        router = app.router
        router.add_get("/api/tallymark/quarantine", self._list)
        router.add_post("/api/tallymark/quarantine/{vhost}/{queue}/retry", self._retry)
        router.add_post("/api/tallymark/quarantine/{vhost}/{queue}/drop", self._drop)

    async def _list(self, request: web.Request) -> web.Response:
        queues = self._http.queues(request)
        rows = [row for queue in queues for row in quarantine_rows(queue)]
        return answer({"quarantine": rows})

    async def _retry(self, request: web.Request) -> web.Response:
        require_administrator(request)
        await body_of(request, Nothing)
        queue = self._http.queue(request)
        back = self._node.broker.readmission.retry(queue)
        await self._node.durable()
        return answer({"back": back, "quarantined": queue.account.quarantined})

    async def _drop(self, request: web.Request) -> web.Response:
        require_administrator(request)
        wanted = await body_of(request, Range)
        if wanted.first > wanted.last:
            raise Refused(
                400, "bad_request", f"first {wanted.first}, expected at most last = {wanted.last}"
            )
        queue = self._http.queue(request)
        dropped = self._node.broker.readmission.drop(
            queue, QueueSequence(wanted.first), QueueSequence(wanted.last + 1)
        )
        await self._node.durable()
        return answer({"dropped": dropped, "quarantined": queue.account.quarantined})


def quarantine_rows(queue: Queue) -> list[dict[str, Any]]:
    """Return rows for a queue's quarantined messages, which cannot be read, with the disk's error.
    died_of: null, or the reason of a death that it could not go on from."""
    rows = []
    for entry in queue.quarantine:
        piece, letter = entry.piece, entry.letter
        rows.append(
            {
                "vhost": queue.vhost,
                "queue": queue.name,
                "first": piece.first,
                "last": piece.first + len(piece) - 1,
                "bytes": piece.size(),
                "died_of": None if letter is None else DEATHS[letter.reason],
                "trouble": entry.trouble,
            }
        )
    return rows
