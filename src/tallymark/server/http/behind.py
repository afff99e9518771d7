"""Backlogs of several readers, in one request: of a Spark query over many queues, which waits for
whichever has messages first.

Asking changes nothing: nothing is leased, and it may be given up at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
from aiohttp import web

from tallymark.engine import streams
from tallymark.engine.errors import NotFound
from tallymark.engine.queue import Queue
from tallymark.engine.streams import first_offset
from tallymark.server.http.requests import ReadContext, Refused, answer, body_of
from tallymark.units import QueueSequence

LONGEST_WAIT_MS: Final = 60_000
LOOK_EVERY_S: Final = 0.05
"""Time between two looks at queues that have some messages, and not as many as are waited for."""
MOST_READERS: Final = 10_000


class OfSubscription(msgspec.Struct, forbid_unknown_fields=True):
    """Holder of the subscription's attach `fence`, which has planned what is below the lease
    sequence `at`."""

    vhost: str
    queue: str
    subscription: str
    fence: int
    at: int


class OfStream(msgspec.Struct, forbid_unknown_fields=True):
    """Reader that has planned the stream's offsets below `at`. id: the stream's; 0: any."""

    vhost: str
    stream: str
    at: int
    id: int = 0


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """rows: how many messages to wait for, in all readers together."""

    subscriptions: list[OfSubscription] = []
    streams: list[OfStream] = []
    rows: int = 1
    wait_ms: int = 0


class Behind:
    """The route /api/tallymark/behind."""

    def __init__(self, http: ReadContext) -> None:
        self._http = http
        self._node = http.node

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/api/tallymark/behind", self._behind)

    async def _behind(self, request: web.Request) -> web.Response:
        """Answer rows for each reader, in order; null where queue or subscription do not exist. A
        wait ends early where one of them goes."""
        wanted = await body_of(request, Wanted)
        if len(wanted.subscriptions) + len(wanted.streams) > MOST_READERS:
            raise Refused(400, "bad_request", f"more than {MOST_READERS} readers in one request")
        if wanted.subscriptions:
            self._http.check_leases(request)
        loop = self._node.loop
        deadline = loop.time() + min(max(0, wanted.wait_ms), LONGEST_WAIT_MS) / 1000
        missing: int | None = None
        while True:
            # Again after each wait: rights, queues and fences may be others by now.
            leased = [self._of_subscription(request, one) for one in wanted.subscriptions]
            kept = [self._of_stream(request, one) for one in wanted.streams]
            found = (*leased, *kept)
            rows = sum(one or 0 for one in found)
            left = deadline - loop.time()
            missing = found.count(None) if missing is None else missing
            if rows >= wanted.rows or left <= 0 or found.count(None) > missing:
                return answer({"subscriptions": leased, "streams": kept})
            if rows:
                await asyncio.sleep(min(left, LOOK_EVERY_S))
            else:
                await self._any(request, wanted, left)

    def _of_subscription(self, request: web.Request, one: OfSubscription) -> int | None:
        """Raises Fenced: another reader has attached."""
        queue = self._find(request, one.vhost, one.queue)
        if queue is None:
            return None
        try:
            subscription = self._node.broker.leases.find(queue, one.subscription)
        except NotFound:
            return None
        subscription.check_fence(one.fence)
        return subscription.behind(one.at)[0]

    def _of_stream(self, request: web.Request, one: OfStream) -> int | None:
        """Raises Fenced: the stream is another one; Refused: it is a queue."""
        queue = self._find(request, one.vhost, one.stream)
        if queue is None:
            return None
        streams.check_stream(queue, one.id)
        return max(0, queue.end() - 1 - max(one.at, first_offset(queue)))

    def _find(self, request: web.Request, vhost: str, name: str) -> Queue | None:
        try:
            return self._http.queue_named(request, vhost, name)
        except NotFound:
            return None

    async def _any(self, request: web.Request, wanted: Wanted, seconds: float) -> None:
        """Return when a queue has ready messages or a stream has grown, or after that time."""
        polls = self._node.polls
        waits: Sequence[asyncio.Task[None]] = [
            *(
                self._node.loop.create_task(polls.ready(queue))
                for one in wanted.subscriptions
                if (queue := self._find(request, one.vhost, one.queue)) is not None
            ),
            *(
                self._node.loop.create_task(polls.beyond(queue, QueueSequence(queue.end())))
                for one in wanted.streams
                if (queue := self._find(request, one.vhost, one.stream)) is not None
            ),
        ]
        if not waits:
            await asyncio.sleep(seconds)
            return
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
