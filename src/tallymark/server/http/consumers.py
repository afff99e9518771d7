"""Consumers and their progress, slow consumers, shovels, housekeeping and reload of the
configuration."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tallymark.engine.consumers import figures
from tallymark.engine.queue_consumers import consumers_of
from tallymark.engine.session import Consumer
from tallymark.engine.slow.consumers import Watched
from tallymark.server.config.reload import ReloadRefused, reload
from tallymark.server.http.requests import (
    HttpContext,
    Refused,
    answer,
    require_administrator,
)
from tallymark.server.slow.consumers import STATES
from tallymark.units import EngineMs


class Consumers:
    """Routes; lists show only virtual hosts that the user sees."""

    def __init__(self, http: HttpContext) -> None:
        self._http = http
        self._node = http.node

    def add_to(self, app: web.Application) -> None:
        router = app.router
        router.add_get("/api/tallymark/consumers", self._consumers)
        router.add_get("/api/tallymark/slow-consumers", self._slow_consumers)
        router.add_get("/api/tallymark/housekeeping", self._housekeeping)
        router.add_get("/api/tallymark/shovels", self._shovels)
        router.add_post("/api/tallymark/config/reload", self._reload)

    async def _consumers(self, request: web.Request) -> web.Response:
        broker = self._node.broker
        watched = {one.queue.id: one for one in broker.slow.watched()}
        found = [one for queue in self._http.queues(request) for one in consumers_of(queue)]
        rows = await self._http.rows(
            request, found,
            lambda one: consumer_row(one, watched.get(one.queue.id), broker.clock.now_ms),
        )  # fmt: skip
        return answer({"consumers": rows})

    async def _slow_consumers(self, request: web.Request) -> web.Response:
        node, is_seen = self._node, self._http.sees(request)
        rows = [row for row in node.slow_consumers.rows() if is_seen(row["vhost"])]
        period_ms = round(node.config.slow_consumers.period_s * 1000)
        return answer({"period_ms": period_ms, "subscriptions": rows})

    async def _housekeeping(self, request: web.Request) -> web.Response:
        require_administrator(request)
        return answer({"tasks": [one.values() for one in self._node.tasks.entries.values()]})

    async def _shovels(self, request: web.Request) -> web.Response:
        require_administrator(request)
        return answer({"shovels": self._node.shovels.rows()})

    async def _reload(self, request: web.Request) -> web.Response:
        """Answered when it is in effect."""
        require_administrator(request)
        try:
            done = reload(self._node)
        except ReloadRefused as error:
            raise Refused(400, "bad_request", str(error)) from error
        await self._node.durable()
        return answer({"changed": done.changed, "at_next_start": done.waiting})


def consumer_row(consumer: Consumer, watched: Watched | None, now_ms: EngineMs) -> dict[str, Any]:
    """state: of its subscription to topics, None where it is none with limits."""
    connection = consumer.session.connection
    return {
        "vhost": consumer.queue.vhost,
        "queue": consumer.queue.name,
        "connection": connection.name,
        "user": connection.user,
        **figures(consumer, now_ms),
        "state": None if watched is None else STATES[watched.state],
    }
