"""HTTP of a standby: how it is, for operators, load balancers and Prometheus, without a password as
a leader's /healthz; and what only reads.

    /healthz          200 while it follows; ?leader: 503, since it does not lead
    /readyz           503: clients are not let in here
    /metrics          position, age of what it has, and whether the database answers
    streams, browse   from the folder, see reads.py; these need a user
    anything else     503, which names the leader
"""

from __future__ import annotations

import socket
from typing import Final, final

from aiohttp import web

from tallymark.server.access.users import Users
from tallymark.server.http.guard import Guard
from tallymark.server.http.reads import ReadRoutes, Reads
from tallymark.server.http.requests import answer
from tallymark.server.listening import Address, address_of
from tallymark.server.standby import Following

STOP_S: Final = 1.0
"""Seconds for requests under way when the broker takes the lead."""


@final
class StandbyHttp:
    """The listener of a broker that follows. It shares the sockets with the leader that this broker
    may become: who connects in between waits for that one."""

    def __init__(self, following: Following, name: str, users: Users, guard: Guard) -> None:
        self._following = following
        self._name = name
        app = web.Application()
        self._routes = ReadRoutes(Reads(following), users, guard, app)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_route("*", "/{path:.*}", self._elsewhere)
        self._runner = web.AppRunner(app, access_log=None)
        self.addresses: list[Address] = []

    async def start(self, bound: list[socket.socket]) -> None:
        """Listen on sockets that are bound."""
        await self._runner.setup()
        for one in bound:
            site = web.SockSite(self._runner, one.dup(), shutdown_timeout=STOP_S)
            await site.start()
            self.addresses.append(address_of(one))

    async def stop(self) -> None:
        self._routes.close()
        await self._runner.cleanup()

    def _about(self) -> dict[str, object]:
        following = self._following
        return {
            "role": "standby",
            "name": self._name,
            "leader": following.lease.holder,
            "epoch": following.lease.epoch,
            "position": following.position,
            "behind_s": round(self._behind_s(), 3),
            "problem": following.problem,
        }

    def _behind_s(self) -> float:
        """Seconds since it had read everything; -1: it never had."""
        return self._following.behind_s

    async def _health(self, request: web.Request) -> web.Response:
        if "leader" in request.query:
            return answer({"status": "standby", **self._about()}, 503)
        well = not self._following.problem
        return answer({"status": "ok" if well else "failed", **self._about()}, 200 if well else 503)

    async def _ready(self, request: web.Request) -> web.Response:
        return answer({"status": "standby", "reason": "this broker stands by"}, 503)

    async def _elsewhere(self, request: web.Request) -> web.Response:
        """Refuse what only the leader answers, as not ready: clients with a list of hosts ask the
        next."""
        leader = self._following.lease.holder
        whom = f"{leader} leads" if leader else "nobody leads now"
        reason = f"{request.method} {request.path}: this broker stands by, {whom}"
        return answer({"error": "standby", "reason": reason}, 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        following = self._following
        lines = [
            "# HELP tallymark_standby_position Position in the journal that a standby has read.",
            "# TYPE tallymark_standby_position gauge",
            f"tallymark_standby_position {following.position}",
            "# HELP tallymark_standby_behind_seconds Seconds since a standby had read everything.",
            "# TYPE tallymark_standby_behind_seconds gauge",
            f"tallymark_standby_behind_seconds {self._behind_s():.3f}",
            "# HELP tallymark_standby_database_up Whether the database answers a standby.",
            "# TYPE tallymark_standby_database_up gauge",
            f"tallymark_standby_database_up {0 if following.problem else 1}",
        ]
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")
