"""Limits of users and virtual hosts over HTTP, as RabbitMQ's management interface has them."""

from __future__ import annotations

import asyncio

from aiohttp import web

from tallymark.engine.errors import NotFound
from tallymark.engine.quotas import OF_USERS, OF_VHOSTS, Limits
from tallymark.server.access.limits import Stored, save_limits
from tallymark.server.access.user import GUEST_USER, UsersError, sees
from tallymark.server.http.requests import Refused, require_administrator, user_of
from tallymark.server.management.requests import Routes, fields_of, listed


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
        wanted = request.match_info.get("vhost")
        if wanted is not None:
            self.vhost(request)
        rows = [
            {"vhost": name, "value": limits}
            for name, limits in quotas.vhosts.items()
            if limits and wanted in (None, name) and sees(user, name)
        ]
        return listed(request, rows)

    async def _of_users(self, request: web.Request) -> web.Response:
        require_administrator(request)
        wanted = request.match_info.get("user")
        if wanted is not None:
            self._check_user(wanted)
        rows = [
            {"user": name, "value": limits}
            for name, limits in self.node.broker.quotas.users.items()
            if limits and wanted in (None, name)
        ]
        return listed(request, rows)

    def _check_user(self, name: str) -> None:
        """Raises NotFound."""
        try:
            users = self.node.users.current() or {GUEST_USER.name: GUEST_USER}
        except UsersError as error:
            raise Refused(503, "users_unreadable", str(error)) from error
        if name not in users:
            raise NotFound(f"no user '{name}'")

    async def _limit_vhost(self, request: web.Request) -> web.Response:
        require_administrator(request)
        vhost = self.vhost(request).name
        return await self._set(request, self.node.broker.quotas.vhosts, vhost, OF_VHOSTS)

    async def _limit_user(self, request: web.Request) -> web.Response:
        require_administrator(request)
        name = request.match_info["user"]
        self._check_user(name)
        return await self._set(request, self.node.broker.quotas.users, name, OF_USERS)

    async def _set(
        self, request: web.Request, limits: Limits, of: str, names: tuple[str, ...]
    ) -> web.Response:
        name = request.match_info["name"]
        if name not in names:
            raise Refused(400, "bad_request", f"limit {name!r}, expected {' or '.join(names)}")
        value: int | None = None
        if request.method == "PUT":
            value = (await fields_of(request)).number("value")
        async with self.node.limits_changing:
            quotas = self.node.broker.quotas
            new = {key: dict(found) for key, found in limits.items()}
            if value is None:
                new.get(of, {}).pop(name, None)
            else:
                new.setdefault(of, {})[name] = value
            new = {key: found for key, found in new.items() if found}
            is_vhosts = limits is quotas.vhosts
            stored = Stored(new if is_vhosts else quotas.vhosts, quotas.users if is_vhosts else new)
            await asyncio.to_thread(save_limits, self.node.config.data_dir, stored)
            quotas.limit(stored.vhosts, stored.users)
            self.node.pacer.look_again()
        return web.Response(status=204)
