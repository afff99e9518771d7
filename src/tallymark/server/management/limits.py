"""Limits of users and virtual hosts over HTTP, as RabbitMQ's management interface has them."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from tallymark.engine.quotas import OF_USERS, OF_VHOSTS, Limits, check_limit
from tallymark.server.access.user import sees
from tallymark.server.http.requests import Refused, require_administrator, user_of
from tallymark.server.logs import log_of
from tallymark.server.management.lists import listed
from tallymark.server.management.requests import Routes, fields_of

log = log_of("users")


class LimitRoutes(Routes):
    """/api/vhost-limits and /api/user-limits."""

    def add_to(self, app: web.Application) -> None:
        router = app.router
        router.add_get("/api/vhost-limits", self._of_vhosts)
        router.add_get("/api/vhost-limits/{vhost}", self._of_vhosts)
        router.add_put("/api/vhost-limits/{vhost}/{name}", self._limit_vhost)
        router.add_delete("/api/vhost-limits/{vhost}/{name}", self._limit_vhost)
        router.add_get("/api/user-limits", self._of_users)
        router.add_get("/api/user-limits/{user}", self._of_users)
        router.add_put("/api/user-limits/{user}/{name}", self._limit_user)
        router.add_delete("/api/user-limits/{user}/{name}", self._limit_user)

    async def _of_vhosts(self, request: web.Request) -> web.Response:
        user, quotas = user_of(request), self.node.broker.quotas
        wanted = None if "vhost" not in request.match_info else self.vhost(request).name
        rows = [
            {"vhost": name, "value": limits}
            for name, limits in quotas.vhosts.items()
            if limits and wanted in (None, name) and sees(user, name)
        ]
        return await listed(self.http, request, rows)

    async def _of_users(self, request: web.Request) -> web.Response:
        require_administrator(request)
        wanted = None if "user" not in request.match_info else self.user(request).name
        rows = [
            {"user": name, "value": limits}
            for name, limits in self.node.broker.quotas.users.items()
            if limits and wanted in (None, name)
        ]
        return await listed(self.http, request, rows)

    async def _limit_vhost(self, request: web.Request) -> web.Response:
        require_administrator(request)
        name, value = await _limit(request, OF_VHOSTS)
        vhost = self.vhost(request).name
        return await self._change(lambda vhosts, users: _put(vhosts, vhost, name, value))

    async def _limit_user(self, request: web.Request) -> web.Response:
        require_administrator(request)
        name, value = await _limit(request, OF_USERS)
        user = self.user(request).name
        return await self._change(lambda vhosts, users: _put(users, user, name, value))

    async def _change(self, change: Callable[[Limits, Limits], None]) -> web.Response:
        try:
            await self.node.limits.change(change)
        except OSError as error:
            log.error("limits.unwritable", error=str(error))
            reason = f"limits cannot be stored: {error}"
            raise Refused(500, "internal_error", reason) from error
        return web.Response(status=204)


async def _limit(request: web.Request, names: tuple[str, ...]) -> tuple[str, int | None]:
    """Return the limit that the path names, and its new value; None: none. Raises Refused 400,
    PreconditionFailed."""
    name = request.match_info["name"]
    if name not in names:
        raise Refused(400, "bad_request", f"limit {name!r}, expected {' or '.join(names)}")
    if request.method != "PUT":
        return name, None
    value = (await fields_of(request)).number("value")
    check_limit(name, value)
    return name, value


def _put(limits: Limits, of: str, name: str, value: int | None) -> None:
    if value is None:
        limits.get(of, {}).pop(name, None)
    else:
        limits.setdefault(of, {})[name] = value
