"""Archives of streams over HTTP: record that a range is archived, and release archived messages.

Both answer when it is on disk, in every sync mode, and may be repeated. Both need the permission to
configure the stream, as deleting it does; to look at it needs to read. What a look shows is on
disk, too: who archives goes on from there, and a crash does not take it back.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from aiohttp import web

from tallymark.bridge.permissions import CONFIGURE, QUEUE
from tallymark.engine import streams
from tallymark.engine.queue import Queue
from tallymark.engine.queue_parts import Archived
from tallymark.engine.streams import first_offset
from tallymark.server.http.requests import HttpContext, answer, body_of
from tallymark.units import QueueSequence

Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62) - 1)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]


class Range(msgspec.Struct, forbid_unknown_fields=True, rename={"low": "from", "high": "to"}):
    """Offsets low..high-1 of the stream with this id: so many rows, with this checksum, at this
    place, in the archive of this id."""

    low: Offset
    high: Offset
    id: int
    rows: Offset
    archive: Text
    checksum: Text
    place: Text


class Release(msgspec.Struct, forbid_unknown_fields=True, rename={"high": "to"}):
    """Release offsets below `high` of the stream with this id."""

    high: Offset
    id: int


class Archiving:
    """Routes under /api/tallymark/streams/{vhost}/{queue}."""

    def __init__(self, http: HttpContext) -> None:
        self._http = http
        self._node = http.node

    def add_to(self, app: web.Application) -> None:
        one = "/api/tallymark/streams/{vhost}/{queue}"
        app.router.add_get(one + "/archive", self._show)
        app.router.add_post(one + "/archive", self._record)
        app.router.add_post(one + "/release", self._release)

    async def _show(self, request: web.Request) -> web.Response:
        queue = self._http.queue(request)
        streams.check_stream(queue, 0)
        shown = _shown(queue)
        await self._node.durable()
        return answer(shown)

    async def _record(self, request: web.Request) -> web.Response:
        wanted = await body_of(request, Range)
        queue = self._stream(request, wanted.id)
        made = Archived(
            QueueSequence(wanted.low + 1), QueueSequence(wanted.high + 1), wanted.rows,
            wanted.archive, wanted.checksum, wanted.place,
        )  # fmt: skip
        is_new = self._node.broker.archives.record(queue, made)
        await self._node.durable()
        return answer({**_shown(queue), "recorded": is_new})

    async def _release(self, request: web.Request) -> web.Response:
        wanted = await body_of(request, Release)
        done = False
        while not done:
            queue = self._stream(request, wanted.id)  # again in each turn: it may be another
            done = self._node.broker.archives.release(queue, QueueSequence(wanted.high + 1))
            self._node.schedule()
            await asyncio.sleep(0)
        await self._node.durable()
        return answer(_shown(queue))

    def _stream(self, request: web.Request, id: int) -> Queue:
        queue = self._http.queue(request)
        self._http.access(request, queue.vhost).check(QUEUE, queue.name, CONFIGURE)
        streams.check_stream(queue, id)
        return queue


def _shown(queue: Queue) -> dict[str, object]:
    """Return the extent of the stream's archive and the stream's first offset."""
    known = queue.retention.archive
    newest = None
    if known is not None:
        newest = {
            "from": known.low - 1,
            "to": known.high - 1,
            "rows": known.rows,
            "archive": known.archive,
            "checksum": known.checksum,
            "place": known.place,
        }
    return {"id": queue.id, "first": first_offset(queue), "archived": newest}
