"""Redrive over HTTP: dead letters, named by (sequence, message id), back to where they came from.

POST /api/tallymark/redrive/{vhost}/{queue} moves what it can of a batch and answers for each
message, when all of that is on disk, in every sync mode. A message moves whole or not at all, and
once: asked again, it is `gone`. `dry_run` answers the same and moves nothing.

Reading the queue is asked of the user, and writing to every exchange that is published to.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from aiohttp import web

from tallymark.bridge.permissions import EXCHANGE, WRITE, Access, check_keys
from tallymark.bridge.redriven import Stamp
from tallymark.engine.errors import AccessRefused
from tallymark.engine.names import is_routing_key
from tallymark.engine.queue import Queue
from tallymark.engine.redrive import FORBIDDEN, MOVED, UNROUTABLE, Found
from tallymark.server.http.requests import HttpContext, Refused, answer, body_of

MOST: Final = 10_000
"""Messages of one request."""
RUN_MAX: Final = 255
"""Bytes of the name of a run."""
Number = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]


class Redrive(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """messages: (sequence, message id), as a browse shows them; oldest: in place of them, how many
    of those that would be delivered next. exchange, routing_key: another
    target than that of the first publish. run: the name of what does this, for provenance; what it
    has moved before is not moved by it again."""

    run: str
    messages: list[tuple[Number, Number]] | None = None
    oldest: Annotated[int, msgspec.Meta(ge=1, le=MOST)] | None = None
    exchange: str | None = None
    routing_key: str | None = None
    dry_run: bool = False


class Redriving:
    """Routes under /api/tallymark/redrive."""

    def __init__(self, http: HttpContext) -> None:
        self._http = http

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/api/tallymark/redrive/{vhost}/{queue}", self._redrive)

    async def _redrive(self, request: web.Request) -> web.Response:
        """Move messages of a queue back to where they were first published."""
        wanted = await body_of(request, Redrive)
        _check(wanted)
        return answer(
            _shown(await redriven(self._http, request, self._http.queue(request), wanted))
        )


async def redriven(
    http: HttpContext, request: web.Request, queue: Queue, wanted: Redrive
) -> list[Found]:
    """Do what is wanted of a queue that the user may read; what is moved is on disk when this
    returns. Raises Refused 400, and what the engine raises."""
    broker = http.node.broker
    try:
        stamp = Stamp(queue.name, wanted.run, broker.clock.wall_ms)
    except ValueError as error:
        raise Refused(400, "bad_request", f"run: {error}") from error
    # No other command comes between these: they are of one turn.
    broker.dispatcher.use(queue)
    redrives = broker.redrives
    messages = wanted.messages
    if messages is None:
        messages = redrives.oldest(queue, wanted.oldest or MOST)
    found = redrives.look(queue, messages, wanted.exchange, wanted.routing_key, stamp.is_on)
    _forbid(http.access(request, queue.vhost), found)
    if not wanted.dry_run:
        redrives.move(queue, found, stamp.put_on)
        await http.node.durable()
    return found


def _check(wanted: Redrive) -> None:
    """Raises Refused 400."""
    if (wanted.messages is None) == (wanted.oldest is None):
        raise Refused(400, "bad_request", "expected one of messages and oldest")
    if wanted.messages is not None and len(wanted.messages) > MOST:
        raise Refused(
            400, "bad_request", f"{len(wanted.messages)} messages, at most {MOST} expected"
        )
    if wanted.routing_key is not None and wanted.exchange is None:
        raise Refused(400, "bad_request", "routing_key without exchange")
    if wanted.routing_key is not None and not is_routing_key(wanted.routing_key):
        raise Refused(400, "bad_request", "routing_key, expected at most 255 bytes")
    if not 0 < len(wanted.run.encode("utf-8", "replace")) <= RUN_MAX:
        raise Refused(400, "bad_request", f"run {wanted.run!r}, expected 1 to {RUN_MAX} bytes")


def _forbid(access: Access, found: list[Found]) -> None:
    """Remove the messages that the user may not publish."""
    for one in found:
        way = one.way
        if way is None or one.status not in (MOVED, UNROUTABLE):
            continue
        try:
            access.check(EXCHANGE, way.exchange, WRITE)
            check_keys(access, way.source, way.keys, WRITE)
        except AccessRefused:
            one.status = FORBIDDEN
        if way.source is not None and way.source.internal:
            one.status = FORBIDDEN


def _shown(found: list[Found]) -> dict[str, object]:
    """The answer: [status, index of its way or null] for each message, and the ways."""
    ways: dict[tuple[str, tuple[str, ...], tuple[str, ...]], int] = {}
    results: list[tuple[str, int | None]] = []
    for one in found:
        at = None
        if one.way is not None:
            queues = tuple(queue.name for queue in one.queues)
            at = ways.setdefault((one.way.exchange, one.way.keys, queues), len(ways))
        results.append((one.status, at))
    rows = [
        {"exchange": exchange, "routing_keys": keys, "queues": queues}
        for exchange, keys, queues in ways
    ]
    return {"results": results, "ways": rows}
