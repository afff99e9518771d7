"""Browsing a queue over HTTP: read the ready messages without taking any.

A plan pins the messages that were ready when it was made, so that all readers see the same ones,
whatever is consumed meanwhile. A plan that is not read for PLAN_S is dropped.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from aiohttp import web

from tallymark.engine.errors import NotFound
from tallymark.engine.extents import Excerpts
from tallymark.engine.message import Slice
from tallymark.engine.queue import Queue
from tallymark.server.http.blocks import send_blocks
from tallymark.server.http.requests import HttpContext, Refused, answer, number_in, user_of

PLAN_S: Final = 600.0
MAX_PLANS: Final = 1000


class Plan:
    """Pinned slices of one queue; row numbers count from 0 over all of them."""

    def __init__(self, queue: Queue, pieces: list[Slice], owner: str) -> None:
        self.queue = queue
        self.pieces = pieces
        self.owner = owner
        self.starts: list[int] = []
        self.messages = 0
        for piece in pieces:
            self.starts.append(self.messages)
            self.messages += len(piece)
        self.readers = 0
        self.timer: asyncio.TimerHandle | None = None


class Browsing:
    """Routes under /api/tallymark/browse."""

    def __init__(self, http: HttpContext) -> None:
        self._http = http
        self._node = http.node
        self._plans: dict[str, Plan] = {}

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/api/tallymark/browse/plans/{plan}/read", self._read)
        app.router.add_delete("/api/tallymark/browse/plans/{plan}", self._delete)
        app.router.add_post("/api/tallymark/browse/{vhost}/{queue}", self._make)

    def close(self) -> None:
        """Give up every plan."""
        for name in list(self._plans):
            self._drop(name)

    async def _make(self, request: web.Request) -> web.Response:
        queue = self._http.queue(request)
        if queue.settings.is_stream:
            raise Refused(
                400, "bad_request",
                f"queue '{queue.name}' in vhost '{queue.vhost}' is a stream: it is read by offset, "
                "under /api/tallymark/streams",
            )  # fmt: skip
        if len(self._plans) >= MAX_PLANS:
            raise Refused(429, "resource_exhausted", f"{MAX_PLANS} browse plans are in use")
        plan = Plan(queue, self._node.broker.pin(queue), user_of(request).name)
        name = secrets.token_urlsafe(16)
        self._plans[name] = plan
        self._arm(name, plan)
        ranges = [[piece.first, len(piece)] for piece in plan.pieces]
        return answer({"plan": name, "ranges": ranges, "messages": plan.messages})

    async def _read(self, request: web.Request) -> web.StreamResponse:
        name, plan = self._find(request)
        low, high = number_in(request, "from"), number_in(request, "to")
        if not low <= high <= plan.messages:
            raise Refused(
                400, "bad_request", f"rows {low} to {high}, expected 0 <= from <= to <= "
                f"{plan.messages}",
            )  # fmt: skip
        store = self._node.broker.store

        def take(at: int, excerpts: Excerpts) -> int:
            self._http.check_read(request, plan.queue)
            for start, piece in zip(plan.starts, plan.pieces, strict=True):
                end = start + len(piece)
                if end <= at:
                    continue
                if start >= high or excerpts.full:
                    break
                part = piece.part(at - start, min(end, high) - start)
                store.load(part.payload)
                at += excerpts.add(part)
            return at

        plan.readers += 1
        try:
            ahead_ms = self._node.broker.clock.ahead_ms
            return await send_blocks(request, plan.queue.id, low, high, take, ahead_ms)
        finally:
            plan.readers -= 1
            self._arm(name, plan)

    async def _delete(self, request: web.Request) -> web.Response:
        name, _ = self._find(request)
        self._drop(name)
        return answer({})

    def _find(self, request: web.Request) -> tuple[str, Plan]:
        name = request.match_info["plan"]
        plan = self._plans.get(name)
        if plan is None or plan.owner != user_of(request).name:
            raise NotFound(f"no browse plan '{name}': unknown, or unused for {PLAN_S:.0f} s")
        self._http.check_read(request, plan.queue)
        return name, plan

    def _arm(self, name: str, plan: Plan) -> None:
        if plan.timer is not None:
            plan.timer.cancel()
        if name in self._plans:
            plan.timer = self._node.loop.call_later(PLAN_S, self._expire, name)

    def _expire(self, name: str) -> None:
        plan = self._plans.get(name)
        if plan is None:
            return
        if plan.readers:
            self._arm(name, plan)
        else:
            self._drop(name)

    def _drop(self, name: str) -> None:
        plan = self._plans.pop(name)
        if plan.timer is not None:
            plan.timer.cancel()
        self._node.broker.unpin(plan.pieces)
        self._node.schedule()
