"""Topic permissions over HTTP, as RabbitMQ's management interface has them: limits of the routing
keys with which a user publishes to a topic exchange and binds from it. Administrators only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiohttp import web

from tallymark.engine.errors import NotFound
from tallymark.server.access.user import (
    TopicPermission,
    User,
    UsersError,
    check_topic_permission,
    limited,
)
from tallymark.server.http.requests import require_administrator
from tallymark.server.management.lists import listed
from tallymark.server.management.requests import Routes, fields_of, refused_by_users

ONE_USER = "/api/topic-permissions/{vhost}/{user}"
ONE_EXCHANGE = ONE_USER + "/{exchange}"


def topic_permission_rows(user: User, vhosts: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the user's topic permissions in these virtual hosts."""
    for vhost in vhosts:
        for exchange, found in user.topics.get(vhost, {}).items():
            yield {
                "user": user.name,
                "vhost": vhost,
                "exchange": exchange,
                "write": found.write,
                "read": found.read,
            }


class TopicPermissions(Routes):
    """Routes under /api/topic-permissions, and those of users and virtual hosts to the same."""

    def add_to(self, app: web.Application) -> None:
        router = app.router
        router.add_get("/api/topic-permissions", self._list)
        router.add_get("/api/vhosts/{vhost}/topic-permissions", self._list)
        router.add_get("/api/users/{user}/topic-permissions", self._list_of_user)
        router.add_get(ONE_USER, self._get)
        router.add_put(ONE_USER, self._put)
        router.add_delete(ONE_USER, self._delete)
        router.add_delete(ONE_EXCHANGE, self._delete)

    async def _list(self, request: web.Request) -> web.Response:
        require_administrator(request)
        vhosts = [vhost.name for vhost in self.vhosts(request)]
        users = self.users().values()
        rows = (row for user in users for row in topic_permission_rows(user, vhosts))
        return await listed(self.http, request, rows)

    async def _list_of_user(self, request: web.Request) -> web.Response:
        require_administrator(request)
        vhosts = list(self.node.broker.vhosts)
        return await listed(self.http, request, topic_permission_rows(self.user(request), vhosts))

    async def _get(self, request: web.Request) -> web.Response:
        require_administrator(request)
        user, vhost = self.user(request), self.vhost(request).name
        self._check_there(request, user, vhost)
        return await listed(self.http, request, topic_permission_rows(user, [vhost]))

    async def _put(self, request: web.Request) -> web.Response:
        """Limit the routing keys of a user on one exchange, which need not be there yet."""
        require_administrator(request)
        fields = await fields_of(request)
        user, vhost = self.user(request), self.vhost(request).name
        exchange = fields.text("exchange")
        permission = TopicPermission(fields.text("write"), fields.text("read"))
        with refused_by_users():
            check_topic_permission(vhost, exchange, permission)
        is_new = vhost not in user.topics

        def change(users: dict[str, User]) -> None:
            current = self._current(request, users, user.name)
            found = current.topics.get(vhost, {})
            users[user.name] = limited(current, vhost, {**found, exchange: permission})

        await self.change_users(request, change)
        return web.Response(status=201 if is_new else 204)

    async def _delete(self, request: web.Request) -> web.Response:
        """Take the limits on one exchange away, or those on all of a virtual host."""
        require_administrator(request)
        user, vhost = self.user(request), self.vhost(request).name
        exchange = request.match_info.get("exchange")
        self._check_there(request, user, vhost)

        def change(users: dict[str, User]) -> None:
            current = self._current(request, users, user.name)
            found = current.topics.get(vhost, {})
            kept = {name: one for name, one in found.items() if name != exchange}
            users[user.name] = limited(current, vhost, {} if exchange is None else kept)

        await self.change_users(request, change)
        return web.Response(status=204)

    def _current(self, request: web.Request, users: dict[str, User], name: str) -> User:
        """Return the user as it is by now. Raises UsersError or NotFound where it or the virtual
        host was deleted meanwhile."""
        self.vhost(request)
        if name not in users:
            raise UsersError(f"user {name!r} was deleted meanwhile")
        return users[name]

    def _check_there(self, request: web.Request, user: User, vhost: str) -> None:
        """Raises NotFound where there are no limits of those that a path names."""
        found = user.topics.get(vhost, {})
        exchange = request.match_info.get("exchange")
        if not found or (exchange is not None and exchange not in found):
            where = f"vhost '{vhost}'" if exchange is None else f"'{exchange}' in vhost '{vhost}'"
            raise NotFound(f"user '{user.name}' has no topic permissions in {where}")
