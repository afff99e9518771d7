"""Streams over HTTP: ranges of offsets, for Spark's drivers and executors and for other clients.

Reading changes nothing and keeps nothing: any number of readers ask for ranges, and each answer is
sent from the journal's files as it is (http/extents.py). Readers see what is on disk. A range of
which retention has taken a part is answered 410; who has to be able to read it again makes a
*plan* (plans.py), which holds it.

`id` in a request is the stream's, as STAT gives it: a stream that was deleted and made again under
its name is refused with 409, so that offsets of the one are not taken for those of the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
from aiohttp import web

from tallymark.engine import streams
from tallymark.engine.clock import in_wall_time
from tallymark.engine.errors import Gone, NotFound
from tallymark.engine.extents import StreamExtents
from tallymark.engine.names import named
from tallymark.engine.queue import Queue
from tallymark.engine.queue_parts import Pin
from tallymark.engine.record import Record
from tallymark.engine.streams import TIME, Start, first_offset, start_of
from tallymark.journal import packer
from tallymark.journal.journal import BytesLost
from tallymark.server.http.extents import (
    ANSWER_BYTES,
    MOST_ANSWER_BYTES,
    NEXT,
    are_written,
    send_apart,
)
from tallymark.server.http.plans import PLAN_S, Plan, Plans
from tallymark.server.http.requests import (
    ReadContext,
    answer,
    body_of,
    number_in,
    require_administrator,
)
from tallymark.units import QueueSequence

MOST: Final = (1 << 62) - 1
LONGEST_WAIT_MS: Final = 60_000


class Range(msgspec.Struct, forbid_unknown_fields=True, rename={"low": "from", "high": "to"}):
    """Offsets low..high-1 of the stream with this id (0: whichever is there)."""

    low: int
    high: int
    id: int = 0


class Pinned:
    """A pinned range of one stream."""

    def __init__(self, queue: Queue, pin: Pin) -> None:
        self.queue = queue
        self.pin = pin


class Streams:
    """Routes under /api/tallymark/streams."""

    def __init__(self, http: ReadContext) -> None:
        self._http = http
        self._node = http.node
        self._plans: Plans[Pinned] = Plans(http.node, self._unpin)

    def add_to(self, app: web.Application) -> None:
        one = "/api/tallymark/streams/{vhost}/{queue}"
        router = app.router
        router.add_get(one, self._stat)
        router.add_get(one + "/offset", self._offset)
        router.add_get(one + "/range", self._range)
        router.add_get(one + "/read", self._read, allow_head=False)
        router.add_get(one + "/places", self._places, allow_head=False)
        router.add_get(one + "/publishers/{name}", self._publisher)
        router.add_post(one + "/plans", self._make)
        router.add_delete(one + "/plans/{plan}", self._delete)

    def close(self) -> None:
        """Give up every plan."""
        self._plans.close()

    def _find(self, request: web.Request) -> Queue:
        """The stream that the path names, which is the one with the id in the query."""
        queue = self._http.queue(request)
        streams.check_stream(queue, number_in(request, "id", 0))
        return queue

    # -- where

    async def _stat(self, request: web.Request) -> web.Response:
        queue = self._find(request)
        return answer(
            {
                "id": queue.id,
                "vhost": queue.vhost,
                "name": queue.name,
                "first": first_offset(queue),
                "next": queue.end() - 1,
                "messages": queue.ready,
                "bytes": queue.account.ready_bytes,
                "oldest_ms": self._arrived_ms(queue, 0),
                "newest_ms": self._arrived_ms(queue, -1),
                "readers": len(queue.consumers),
                "publishers": len(queue.deduplication.numbers),
            }
        )

    def _arrived_ms(self, queue: Queue, which: int) -> int | None:
        """Return when the oldest (0) or newest (-1) message arrived; wall time."""
        fresh = queue.lanes.lowest.fresh
        if not fresh:
            return None
        piece = fresh[which]
        time_ms = piece.entered_ms() if which == 0 else piece.last_ms()
        return self._node.broker.clock.to_wall(time_ms)

    async def _offset(self, request: web.Request) -> web.Response:
        """The offset of the first message that a reader with this beginning would be shown."""
        queue = self._find(request)
        if "time" in request.query:
            start = Start(TIME, number_in(request, "time"))
        else:
            said = request.query.get("at", "")
            value = number_in(request, "at") if said.isascii() and said.isdigit() else said
            start = start_of(value, named("queue", queue.name, queue.vhost))
        place = start.place(queue, self._node.broker.clock)
        offset = max(first_offset(queue), min(place, queue.end()) - 1)
        return answer({"id": queue.id, "offset": offset})

    async def _range(self, request: web.Request) -> web.Response:
        """Return the extent of a batch that begins at an offset, within the reader's limits; wait
        until there is one."""
        first = number_in(request, "from")
        most = number_in(request, "max_rows", MOST) or MOST
        most_bytes = number_in(request, "max_bytes", MOST) or MOST
        loop = self._node.loop
        wait_ms = min(number_in(request, "wait_ms", 0), LONGEST_WAIT_MS)
        deadline = loop.time() + wait_ms / 1000
        while True:
            queue = self._find(request)  # again after each wait: it may be another by now
            found = streams.batch(queue, QueueSequence(first + 1), most, most_bytes)
            left = deadline - loop.time()
            if found.end > first + 1 or left <= 0:
                break
            try:
                await asyncio.wait_for(self._node.polls.beyond(queue, first + 1), left)
            except TimeoutError:
                break
        return answer(
            {
                "id": queue.id,
                "from": first,
                "to": found.end - 1,
                "rows": found.messages,
                "bytes": found.bytes,
                "first": first_offset(queue),
                "next": queue.end() - 1,
            }
        )

    async def _publisher(self, request: web.Request) -> web.Response:
        """The highest number that a publisher gave a message which the stream has, on disk."""
        queue, name = self._find(request), request.match_info["name"]
        number = queue.deduplication.numbers.get(name)
        if number is None:
            raise NotFound(
                f"{named('stream', queue.name, queue.vhost)} knows no publisher '{name}'"
            )
        await self._node.durable()
        return answer({"name": name, "number": number})

    # -- messages

    async def _read(self, request: web.Request) -> web.StreamResponse:
        """Offsets from..to-1, or as many of them as fit an answer: one block, whose raw is sent
        from where it lies."""
        journal = self._node.journal
        while True:
            with self._taken(request) as extents:
                if are_written(journal, extents.spans):
                    head, padding = packer.pack_apart(self._in_wall_time(extents))
                    headers = {NEXT: str(extents.next - 1)}
                    return await send_apart(request, journal, head, extents.spans, padding, headers)
            await self._node.durable()

    async def _places(self, request: web.Request) -> web.Response:
        """Answer administrators, whose programs read the journal's files themselves: rows with
        positions in place of bytes, and the files that have these positions. What the files hold
        stays for as long as a plan holds it."""
        require_administrator(request)
        journal = self._node.journal
        while True:
            with self._taken(request) as extents:
                if are_written(journal, extents.spans):
                    files: dict[str, str] = {}
                    for span in extents.spans:
                        number = str(span.position >> 32)
                        if number not in files:
                            files[number] = str(journal.reader.path_of(span.position).absolute())
                    block = packer.pack_places(self._in_wall_time(extents))
                    break
            await self._node.durable()
        return web.Response(
            body=block,
            content_type="application/octet-stream",
            headers={
                NEXT: str(extents.next - 1),
                "Tallymark-Segments": msgspec.json.encode(files).decode(),
            },
        )

    def _in_wall_time(self, extents: StreamExtents) -> list[Record]:
        return in_wall_time(extents.rows, self._node.broker.clock.ahead_ms)

    @contextmanager
    def _taken(self, request: web.Request) -> Iterator[StreamExtents]:
        """Answer a request with from, to, max_bytes and plan: what the extents mean stays in the
        journal inside of the block. Raises Gone: bytes of it are lost."""
        queue = self._find(request)
        name = request.query.get("plan", "")
        plan = self._find_plan(request, queue, name) if name else None
        extents = self._extents(request, queue, None if plan is None else plan.content.pin)
        if plan is not None:
            self._plans.begin_read(plan)
        try:
            yield extents
        except BytesLost as error:
            raise Gone(f"{named('stream', queue.name, queue.vhost)}: {error}") from error
        finally:
            extents.release()
            if plan is not None:
                self._plans.end_read(plan)

    def _extents(self, request: web.Request, queue: Queue, pin: Pin | None) -> StreamExtents:
        low = QueueSequence(number_in(request, "from") + 1)
        high = QueueSequence(number_in(request, "to") + 1)
        streams.check_range(queue, low, high, pin)
        most_bytes = number_in(request, "max_bytes", ANSWER_BYTES) or ANSWER_BYTES
        most_bytes = min(most_bytes, MOST_ANSWER_BYTES)
        extents = StreamExtents(queue.id, low, most_bytes, self._node.broker.store)
        extents.add(streams.between(queue, low, high, pin, most_bytes), high)
        return extents

    # -- plans

    async def _make(self, request: web.Request) -> web.Response:
        wanted = await body_of(request, Range)
        queue = self._http.queue(request)
        streams.check_stream(queue, wanted.id)
        plan = self._plans.make(
            request,
            lambda: Pinned(
                queue,
                streams.pin(queue, QueueSequence(wanted.low + 1), QueueSequence(wanted.high + 1)),
            ),
        )
        return answer({"plan": plan.name, "id": queue.id, "from": wanted.low, "to": wanted.high})

    async def _delete(self, request: web.Request) -> web.Response:
        queue = self._http.queue(request)
        self._plans.give_up(self._find_plan(request, queue, request.match_info["plan"]))
        return answer({})

    def _find_plan(self, request: web.Request, queue: Queue, name: str) -> Plan[Pinned]:
        plan = self._plans.find(request, name)
        if plan is None or plan.content.queue is not queue:
            raise NotFound(
                f"no plan '{name}' of {named('stream', queue.name, queue.vhost)}: unknown, unused "
                f"for {PLAN_S:.0f} s, or from before the broker was started"
            )
        return plan

    def _unpin(self, pinned: Pinned) -> None:
        streams.unpin(pinned.queue, pinned.pin, self._node.broker.store)
