"""Virtual hosts over HTTP, as RabbitMQ's management interface has them; administrators change them.

A virtual host that is in the configuration comes back, empty, with the next start.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

import msgspec
from aiohttp import web

from tallymark.bridge.permissions import check_vhost_name
from tallymark.engine.arguments import check_default_type
from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.vhost import VirtualHost, check_description
from tallymark.server.access.user import (
    Permission,
    TokenUser,
    User,
    permission_in,
    tags_from,
    without_vhost,
)
from tallymark.server.http.requests import Refused, require_administrator, user_of
from tallymark.server.management.lists import listed, shown
from tallymark.server.management.rates import LENGTHS, MOST_IN_A_LIST, MSG_RATES, Rates
from tallymark.server.management.requests import Fields, Routes, fields_of, refused_by_users
from tallymark.server.node import Node, node_name
from tallymark.server.places import place_of
from tallymark.server.samples import MOVED, PRESENT

DEFAULT_TYPE: Final = ("default_queue_type", "defaultqueuetype")
"""Field names under which clients send the type of queues whose declaration names none."""
PROTECTED: Final = "protected_from_deletion"
UNDEFINED: Final = "undefined"
"""Text that RabbitMQ shows for the default queue type of a virtual host that has none."""
ONE: Final = "/api/vhosts/{vhost}"


def make_vhost(node: Node, name: str) -> VirtualHost:
    """A new virtual host. It is there at once, and on disk with the next commit."""
    made = node.broker.registry.add_vhost(name)
    made.name_seed = secrets.token_bytes(32)
    return made


def close_connections(node: Node, name: str) -> None:
    """Close the connections to a virtual host that is about to end."""
    for client in list(node.clients):
        place = place_of(client)
        if place is not None and place[0] == name:
            client.bridge.shutdown(f"vhost '{name}' is deleted")
            client.touch()


def delete_vhost(node: Node, name: str) -> None:
    """End a virtual host with all that is in it; connections to it are closed.

    Raises NotFound, PreconditionFailed.
    """
    broker = node.broker
    broker.vhost(name).check_deletable()
    close_connections(node, name)
    broker.registry.delete_vhost(name)
    node.deleted_queues.forget_vhost(name)
    node.limits.forget(broker.vhosts)


def metadata_of(vhost: VirtualHost) -> dict[str, Any]:
    """Return what is kept of a virtual host beside its name, as RabbitMQ shows it: the default
    queue type and the protection only where there is one."""
    topology = vhost.topology
    found: dict[str, Any] = {"description": topology.description, "tags": list(topology.tags)}
    if topology.default_queue_type:
        found["default_queue_type"] = topology.default_queue_type
    if topology.is_protected:
        found[PROTECTED] = True
    return found


def vhost_row(vhost: VirtualHost, sums: dict[str, int], rates: Rates) -> dict[str, Any]:
    """sums: of the counts of its queues."""
    of_vhost = rates.of_vhosts([vhost.name])
    row: dict[str, Any] = {
        "name": vhost.name,
        **metadata_of(vhost),
        "metadata": metadata_of(vhost),
        PROTECTED: vhost.topology.is_protected,
        "tracing": False,
        "cluster_state": {node_name(): "running"},
        **of_vhost.counted({name: sums[name] for name in PRESENT}, LENGTHS),
    }
    if sums["publish"]:
        counts = {name: sums[name] for name in MOVED}
        row["message_stats"] = of_vhost.counted(counts, MSG_RATES)
    return row


class VirtualHosts(Routes):
    """Routes under /api/vhosts."""

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/api/vhosts", self._list)
        app.router.add_get(ONE, self._get)
        app.router.add_put(ONE, self._put)
        app.router.add_delete(ONE, self._delete)
        app.router.add_post(ONE + "/deletion/protection", self._protect)
        app.router.add_delete(ONE + "/deletion/protection", self._protect)

    async def _list(self, request: web.Request) -> web.Response:
        rates = Rates(self.node, request, MOST_IN_A_LIST)
        rows = [await self._row(request, one, rates) for one in self.vhosts(request)]
        return await listed(self.http, request, rows)

    async def _get(self, request: web.Request) -> web.Response:
        rates = Rates(self.node, request)
        return shown(request, await self._row(request, self.vhost(request), rates))

    async def _row(self, request: web.Request, vhost: VirtualHost, rates: Rates) -> dict[str, Any]:
        return vhost_row(vhost, await self.sums(request, [vhost]), rates)

    async def _put(self, request: web.Request) -> web.Response:
        """Create a virtual host, and give its creator all permissions there, as RabbitMQ does; or
        change its description, its tags and its default queue type. What the body does not have
        stays as it is."""
        require_administrator(request)
        name, user = request.match_info["vhost"], user_of(request)
        fields = await fields_of(request)
        broker = self.node.broker
        type = next((fields.text(key) for key in DEFAULT_TYPE if key in fields), None)
        if type == UNDEFINED:
            type = None
        check_default_type(type or "")
        there = broker.vhosts.get(name)
        description = _description(fields, "" if there is None else there.topology.description)
        tags = _tags(fields, () if there is None else there.topology.tags)
        check_description(description, tags)
        is_new = there is None
        if is_new:
            check_vhost_name(name)
            make_vhost(self.node, name)
        vhost = broker.vhost(name)
        broker.registry.describe_vhost(vhost, description, tags)
        if type is not None:
            broker.registry.set_default_queue_type(vhost, type)
        in_file = not isinstance(user, TokenUser)  # a token's rights are its own
        if is_new and in_file and permission_in(user, name) is None:
            await self._permit(request, user, name)
        await self.node.durable()
        return web.Response(status=201 if is_new else 204)

    async def _permit(self, request: web.Request, user: User, name: str) -> None:
        def change(users: dict[str, User]) -> None:
            current = users.get(user.name)
            if current is not None and name in self.node.broker.vhosts:
                vhosts = {**current.vhosts, name: Permission()}
                users[user.name] = msgspec.structs.replace(current, vhosts=vhosts)

        await self.change_users(request, change)

    async def _delete(self, request: web.Request) -> web.Response:
        """Permissions in it go first, so that a later virtual host of that name begins without,
        also where they cannot be stored: then it stays."""
        require_administrator(request)
        name = request.match_info["vhost"]
        try:
            self.node.broker.vhost(name).check_deletable()
        except PreconditionFailed as error:
            raise Refused(412, "precondition_failed", str(error)) from error
        await self.node.users.settled()
        if any(without_vhost(user, name) != user for user in self.users().values()):
            close_connections(self.node, name)  # for this reason, not for want of permissions
            await self.change_users(request, lambda users: _forget(users, name))
        delete_vhost(self.node, name)
        await self.node.durable()
        return web.Response(status=204)

    async def _protect(self, request: web.Request) -> web.Response:
        """Protect a virtual host from deletion, or with DELETE no longer."""
        require_administrator(request)
        vhost = self.node.broker.vhost(request.match_info["vhost"])
        self.node.broker.registry.protect_vhost(vhost, request.method == "POST")
        await self.node.durable()
        return web.Response(status=204)


def _description(fields: Fields, there: str) -> str:
    """Return the description that a body asks for; null is none. there: the one that stays where it
    asks for none."""
    if "description" in fields:
        return fields.text("description")
    return "" if "description" in fields.value else there


def _tags(fields: Fields, there: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tags that a body asks for, as `_description`."""
    if "tags" in fields:
        with refused_by_users():
            return tuple(tags_from(fields.value["tags"]))
    return () if "tags" in fields.value else there


def _forget(users: dict[str, User], vhost: str) -> None:
    for name, user in users.items():
        users[name] = without_vhost(user, vhost)
