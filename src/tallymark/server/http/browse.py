"""Browsing a queue over HTTP: read the ready messages without taking any.

A plan (plans.py) pins the messages that were ready when it was made, so that all readers see the
same ones, whatever is consumed meanwhile.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from aiohttp import web

from tallymark.engine.errors import NotFound
from tallymark.engine.extents import Excerpts
from tallymark.engine.message import Slice
from tallymark.engine.queue import Queue
from tallymark.server.http.blocks import send_blocks
from tallymark.server.http.extents import ANSWER_BYTES, MOST_ANSWER_BYTES, NEXT
from tallymark.server.http.plans import PLAN_S, Plan, Plans
from tallymark.server.http.requests import ReadContext, Refused, answer, number_in


class Pinned:
    """Pinned slices of one queue; row numbers count from 0 over all of them."""

    def __init__(self, queue: Queue, pieces: list[Slice]) -> None:
        self.queue = queue
        self.pieces = pieces
        self.starts: list[int] = []
        self.messages = 0
        for piece in pieces:
            self.starts.append(self.messages)
            self.messages += len(piece)

    def between(self, low: int, high: int) -> Iterator[Slice]:
        """Yield rows low..high-1 as slices, in order."""
        for i in range(bisect_right(self.starts, low) - 1, len(self.pieces)):
            start, piece = self.starts[i], self.pieces[i]
            if start >= high:
                break
            yield piece.part(max(0, low - start), min(len(piece), high - start))

    def reach(self, low: int, high: int, most_bytes: int) -> int:
        """Return the end of the rows from `low` on, `high` at most, that have `most_bytes` raw
        bytes together; it is behind one row at least."""
        at, room = low, most_bytes
        for piece in self.between(low, high):
            cuts = piece.payload.cuts
            fitting = bisect_right(cuts, cuts[piece.lo] + room, piece.lo, piece.hi + 1) - 1
            taken = max(fitting - piece.lo, 1 if at == low else 0)
            at += taken
            room -= piece.size()
            if taken < len(piece):
                break
        return at


class Browsing:
    """Routes under /api/tallymark/browse."""

    def __init__(self, http: ReadContext) -> None:
        self._http = http
        self._node = http.node
        self._plans: Plans[Pinned] = Plans(
            http.node, lambda pinned: http.node.broker.contents.unpin(pinned.pieces)
        )

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/api/tallymark/browse/plans/{plan}/read", self._read)
        app.router.add_delete("/api/tallymark/browse/plans/{plan}", self._delete)
        app.router.add_post("/api/tallymark/browse/{vhost}/{queue}", self._make)

    def close(self) -> None:
        """Give up every plan."""
        self._plans.close()

    async def _make(self, request: web.Request) -> web.Response:
        queue = self._http.queue(request)
        if queue.settings.is_stream:
            raise Refused(
                400, "bad_request",
                f"queue '{queue.name}' in vhost '{queue.vhost}' is a stream: it is read by offset, "
                "under /api/tallymark/streams",
            )  # fmt: skip
        plan = self._plans.make(
            request, lambda: Pinned(queue, self._node.broker.contents.pin(queue))
        )
        pinned = plan.content
        ranges = [[piece.first, len(piece)] for piece in pinned.pieces]
        return answer({"plan": plan.name, "ranges": ranges, "messages": pinned.messages})

    async def _read(self, request: web.Request) -> web.StreamResponse:
        """Send rows from..to-1, or with max_bytes as many of them as fit an answer, whose header
        NEXT says where to go on."""
        plan = self._find(request)
        pinned = plan.content
        low, high = number_in(request, "from"), number_in(request, "to")
        if not low <= high <= pinned.messages:
            raise Refused(
                400, "bad_request", f"rows {low} to {high}, expected 0 <= from <= to <= "
                f"{pinned.messages}",
            )  # fmt: skip
        headers = {}
        if "max_bytes" in request.query:
            most_bytes = min(number_in(request, "max_bytes") or ANSWER_BYTES, MOST_ANSWER_BYTES)
            high = pinned.reach(low, high, most_bytes)
            headers[NEXT] = str(high)
        store = self._node.broker.store

        def take(at: int, excerpts: Excerpts) -> int:
            self._http.check_read(request, pinned.queue)
            for piece in pinned.between(at, high):
                if excerpts.full:
                    break
                store.load(piece.payload)
                at += excerpts.add(piece)
            return at

        self._plans.begin_read(plan)
        try:
            ahead_ms = self._node.broker.clock.ahead_ms
            return await send_blocks(request, pinned.queue.id, low, high, take, ahead_ms, headers)
        finally:
            self._plans.end_read(plan)

    async def _delete(self, request: web.Request) -> web.Response:
        self._plans.give_up(self._find(request))
        return answer({})

    def _find(self, request: web.Request) -> Plan[Pinned]:
        name = request.match_info["plan"]
        plan = self._plans.find(request, name)
        if plan is None:
            raise NotFound(f"no browse plan '{name}': unknown, or unused for {PLAN_S:.0f} s")
        self._http.check_read(request, plan.content.queue)
        return plan
