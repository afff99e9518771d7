"""Users and permissions over HTTP, as RabbitMQ's management interface has them.

Administrators only, but for `whoami`. A permission for every virtual host ("*") is shown as one for
each that there is; changing it for one of them makes it a permission for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
from aiohttp import web

from tallymark.engine.errors import NotFound
from tallymark.server.access.user import (
    GUEST_USER,
    NO_PASSWORD,
    Permission,
    User,
    UsersError,
    check_permission,
    hashed_user,
    in_place_of,
    make_user,
    rabbitmq_hash,
    tagged,
    tags_from,
)
from tallymark.server.http.requests import (
    HASHING,
    Refused,
    answer,
    require_administrator,
    user_of,
)
from tallymark.server.management.lists import listed, shown
from tallymark.server.management.requests import Fields, Routes, fields_of, refused_by_users

ONE_USER = "/api/users/{user}"
ONE_PERMISSION = "/api/permissions/{vhost}/{user}"


def user_row(user: User) -> dict[str, Any]:
    password_hash, algorithm = user.exported()
    if user is GUEST_USER:
        password_hash = ""
    return {
        "name": user.name,
        "password_hash": password_hash,
        "hashing_algorithm": algorithm,
        "tags": user.all_tags,
        "limits": {},
    }


def permission_rows(user: User, vhosts: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the user's permissions in each of these virtual hosts."""
    for vhost in vhosts:
        found = user.vhosts.get(vhost) or user.vhosts.get("*")
        if found is not None:
            yield {
                "user": user.name,
                "vhost": vhost,
                "configure": found.configure,
                "write": found.write,
                "read": found.read,
            }


def _forget(users: dict[str, User], names: list[str]) -> None:
    for name in names:
        users.pop(name, None)


class UsersAndPermissions(Routes):
    """Routes under /api/users and /api/permissions, those of /api/vhosts that concern users, and
    /api/auth/hash_password."""

    def add_to(self, app: web.Application) -> None:
        router = app.router
        router.add_get("/api/whoami", self._whoami)
        router.add_get(HASHING + "{password}", self._hash_in_path)
        router.add_post(HASHING.rstrip("/"), self._hash)
        router.add_get("/api/users", self._list)
        router.add_get("/api/users/without-permissions", self._without_permissions)
        router.add_post("/api/users/bulk-delete", self._delete_some)
        router.add_get(ONE_USER, self._get)
        router.add_put(ONE_USER, self._put)
        router.add_delete(ONE_USER, self._delete)
        router.add_get(ONE_USER + "/permissions", self._permissions_of_user)
        router.add_get("/api/permissions", self._permissions)
        router.add_get("/api/vhosts/{vhost}/permissions", self._permissions)
        router.add_get(ONE_PERMISSION, self._permission)
        router.add_put(ONE_PERMISSION, self._put_permission)
        router.add_delete(ONE_PERMISSION, self._delete_permission)

    async def _whoami(self, request: web.Request) -> web.Response:
        user = user_of(request)
        return answer({"name": user.name, "tags": user.all_tags})

    def _user(self, request: web.Request) -> User:
        """Return the user that the path names, for an administrator. Raises NotFound."""
        require_administrator(request)
        return self.user(request)

    def _row(self, user: User) -> dict[str, Any]:
        return {**user_row(user), "limits": self.node.broker.quotas.users.get(user.name, {})}

    # -- users

    async def _list(self, request: web.Request) -> web.Response:
        require_administrator(request)
        return await listed(self.http, request, (self._row(user) for user in self.users().values()))

    async def _without_permissions(self, request: web.Request) -> web.Response:
        """List the users that may enter no virtual host."""
        require_administrator(request)
        users = [user for user in self.users().values() if not user.vhosts]
        return await listed(self.http, request, (self._row(user) for user in users))

    async def _get(self, request: web.Request) -> web.Response:
        return shown(request, self._row(self._user(request)))

    async def _put(self, request: web.Request) -> web.Response:
        """Set a user's password, or its hash, or neither: then it cannot log in by a password any
        more, as in RabbitMQ."""
        require_administrator(request)
        name, fields = request.match_info["user"], await fields_of(request)
        if "tags" not in fields:
            raise fields.wrong("tags", "a list of texts, or one text with commas")
        if "password" in fields and "password_hash" in fields:
            raise Refused(400, "bad_request", "both_password_and_password_hash_are_provided")
        with refused_by_users():
            tags = tags_from(fields.value["tags"])
            made = tagged(await self._made(name, fields), tags)
        is_new = False

        def change(users: dict[str, User]) -> None:
            nonlocal is_new
            current = users.get(name)  # as it is by now
            is_new = current is None
            users[name] = in_place_of(made, current)

        await self.change_users(request, change)
        return web.Response(status=201 if is_new else 204)

    async def _made(self, name: str, fields: Fields) -> User:
        if "password" in fields:
            return await asyncio.to_thread(make_user, name, fields.text("password"), False, {})
        if "password_hash" in fields:
            algorithm = fields.text("hashing_algorithm", "rabbit_password_hashing_sha256")
            return hashed_user(name, fields.text("password_hash"), algorithm)
        return hashed_user(name, "", NO_PASSWORD)

    async def _delete(self, request: web.Request) -> web.Response:
        name = self._user(request).name
        await self.change_users(request, lambda users: _forget(users, [name]))
        return web.Response(status=204)

    async def _delete_some(self, request: web.Request) -> web.Response:
        """Delete all users named, or none of them; unknown names have no effect [rabbitmq]."""
        require_administrator(request)
        fields = await fields_of(request)
        names = fields.value.get("users")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise fields.wrong("users", "a list of names")

        await self.change_users(request, lambda users: _forget(users, names))
        return web.Response(status=204)

    async def _hash(self, request: web.Request) -> web.Response:
        """Hash a password, for `password_hash` of a user."""
        require_administrator(request)
        fields = await fields_of(request)
        password = fields.text("password")
        if not password:
            raise fields.wrong("password", "a text that is not empty")
        return answer({"ok": rabbitmq_hash(password)})

    async def _hash_in_path(self, request: web.Request) -> web.Response:
        """Hash a password that is in the path. Proxies may log it, and shells keep it: POST is
        better."""
        require_administrator(request)
        return answer({"ok": rabbitmq_hash(request.match_info["password"])})

    # -- permissions

    def _vhost_names(self) -> list[str]:
        return list(self.node.broker.vhosts)

    async def _permissions_of_user(self, request: web.Request) -> web.Response:
        rows = permission_rows(self._user(request), self._vhost_names())
        return await listed(self.http, request, rows)

    async def _permissions(self, request: web.Request) -> web.Response:
        require_administrator(request)
        vhosts = [vhost.name for vhost in self.vhosts(request)]
        rows = [row for user in self.users().values() for row in permission_rows(user, vhosts)]
        return await listed(self.http, request, rows)

    async def _permission(self, request: web.Request) -> web.Response:
        user, vhost = self._user(request), self.vhost(request).name
        for row in permission_rows(user, [vhost]):
            return shown(request, row)
        raise NotFound(f"user '{user.name}' has no permissions in vhost '{vhost}'")

    async def _put_permission(self, request: web.Request) -> web.Response:
        require_administrator(request)
        fields = await fields_of(request)
        user, vhost = self._user(request), self.vhost(request).name
        permission = Permission(fields.text("configure"), fields.text("write"), fields.text("read"))
        with refused_by_users():
            check_permission(vhost, permission)
        is_new = vhost not in user.vhosts and "*" not in user.vhosts
        await self._permit(request, user, vhost, permission)
        return web.Response(status=201 if is_new else 204)

    async def _delete_permission(self, request: web.Request) -> web.Response:
        user, vhost = self._user(request), self.vhost(request).name
        if vhost not in user.vhosts and "*" not in user.vhosts:
            raise NotFound(f"user '{user.name}' has no permissions in vhost '{vhost}'")
        await self._permit(request, user, vhost, None)
        return web.Response(status=204)

    async def _permit(
        self, request: web.Request, user: User, vhost: str, permission: Permission | None
    ) -> None:
        """Give the permission for one virtual host, or take it away."""

        def change(users: dict[str, User]) -> None:
            current = users.get(user.name)
            if current is None:
                raise UsersError(f"user {user.name!r} was deleted meanwhile")
            self.vhost(request)  # raises NotFound where it was deleted meanwhile
            vhosts = dict(current.vhosts)
            everywhere = vhosts.pop("*", None)
            if everywhere is not None:
                vhosts = {**dict.fromkeys(self._vhost_names(), everywhere), **vhosts}
            if permission is None:
                vhosts.pop(vhost, None)
            else:
                vhosts[vhost] = permission
            users[user.name] = msgspec.structs.replace(current, vhosts=vhosts)

        await self.change_users(request, change)
