"""Paths of RabbitMQ's for clusters, mirrored queues and plugins.

Here is one node without plugins: lists are empty, and what would move something between nodes has
nothing to do.
"""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from tallymark.bridge.operations import queue_of
from tallymark.engine.errors import NotFound
from tallymark.server.http.requests import (
    Refused,
    answer,
    require_administrator,
    user_of,
)
from tallymark.server.management.lists import listed
from tallymark.server.management.requests import Routes, fields_of, require_policymaker
from tallymark.server.management.topology import ONE_QUEUE
from tallymark.server.node import node_name
from tallymark.shovels.plan import AMQP, is_091, scheme_of

EMPTY: Final = (
    "parameters", "parameters/{component}", "parameters/{component}/{vhost}",
    "global-parameters", "federation-links", "federation-links/{vhost}", "deprecated-features",
    "deprecated-features/used",
)  # fmt: skip
"""Lists that RabbitMQ has and this broker has not: they have no rows here. What RabbitMQ deprecates
stays here."""
PARAMETER: Final = "/api/parameters/{component}/{vhost}/{name}"
NOTHING: Final = (PARAMETER, "/api/global-parameters/{name}")
"""Single things out of those lists: there is none."""
AMQP_091: Final = "amqp091"
AMQP_10: Final = "amqp10"
"""RabbitMQ's words for what shovels speak."""
ACTIONS: Final = ("sync", "cancel_sync")
"""Actions on the mirrors of a queue."""


class Cluster(Routes):
    """Routes that matter where there are several nodes, or plugins."""

    def add_to(self, app: web.Application) -> None:
        router = app.router
        for path in EMPTY:
            router.add_get(f"/api/{path}", self._empty)
        for path in NOTHING:
            router.add_get(path, self._nothing)
        router.add_get("/api/shovels", self._shovels)
        router.add_put(PARAMETER, self._put_parameter)
        router.add_delete(PARAMETER, self._nothing)
        router.add_get("/api/auth", self._auth)
        router.add_get("/api/extensions", self._extensions)
        router.add_post("/api/rebalance/queues", self._rebalance)
        router.add_post("/api/vhosts/{vhost}/start/{node}", self._start)
        router.add_post(ONE_QUEUE + "/actions", self._act)

    async def _empty(self, request: web.Request) -> web.Response:
        """Raises NotFound where the path names a virtual host that is not there, and AccessRefused
        as elsewhere."""
        if "vhost" in request.match_info:
            self.vhost(request)
        return await listed(self.http, request, [])

    async def _shovels(self, request: web.Request) -> web.Response:
        """Return the shovels of the configuration, as RabbitMQ lists static ones; nothing to users
        that are no administrators."""
        rows = self.node.shovels.rows() if user_of(request).administrator else []
        return await listed(self.http, request, [static_row(row) for row in rows])

    async def _nothing(self, request: web.Request) -> web.Response:
        raise NotFound(f"{request.path}: there is none, as there are no plugins")

    async def _put_parameter(self, request: web.Request) -> web.Response:
        """Refuse the parameter as RabbitMQ does where the plugin is missing that it is for."""
        require_policymaker(request, self.vhost(request).name)
        component = request.match_info["component"]
        raise Refused(400, "bad_request", f"Validation failed: component {component} not found")

    async def _auth(self, request: web.Request) -> web.Response:
        """Tell web pages, of RabbitMQ before 3.11 and after, that there is no server to log in
        at."""
        uaa = {"enable_uaa": False, "uaa_client_id": "", "uaa_location": ""}
        return answer({"oauth_enabled": False, **uaa})

    async def _extensions(self, request: web.Request) -> web.Response:
        """Return an empty list: there is no web page to extend."""
        return answer([])

    async def _rebalance(self, request: web.Request) -> web.Response:
        """All queues are on the one node there is."""
        require_administrator(request)
        return web.Response(status=204)

    async def _start(self, request: web.Request) -> web.Response:
        """A virtual host that is there runs. Raises Refused 400 for another node."""
        require_administrator(request)
        self.vhost(request)
        node = request.match_info["node"]
        if node != node_name():
            reason = f"node is {node!r}, expected {node_name()!r}, the only one"
            raise Refused(400, "bad_request", reason)
        return web.Response(status=204)

    async def _act(self, request: web.Request) -> web.Response:
        """Queues have no mirrors to synchronise. Raises NotFound, Refused 400 for other actions."""
        require_administrator(request)
        fields = await fields_of(request)
        queue_of(self.vhost(request), request.match_info["name"])
        if fields.text("action") not in ACTIONS:
            raise fields.wrong("action", " or ".join(ACTIONS))
        return web.Response(status=204)


def static_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a shovel of the configuration as RabbitMQ shows one."""
    state = "terminated" if row["state"] == "stopping" else row["state"]
    found = {
        "node": node_name(),
        "name": row["name"],
        "type": "static",
        "state": state if state in ("running", "terminated") else "starting",
        "src_uri": row["from"],
        "dest_uri": row["to"],
        "src_queue": row["queue"],
    }
    for field, address in (("src_protocol", row["from"]), ("dest_protocol", row["to"])):
        if scheme_of(address) in AMQP:  # RabbitMQ has no word for the others, and clients know none
            found[field] = AMQP_091 if is_091(address) else AMQP_10
    return found
