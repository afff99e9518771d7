"""Policies and operator policies over HTTP, as RabbitMQ's management interface has them.

Policies are set by administrators and by policymakers with access to the virtual host, operator
policies by administrators. Keys that RabbitMQ knows and that change nothing here are accepted: the
log names them, and so does the answer's header X-Without-Effect.
"""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from tallymark.engine.errors import NotFound
from tallymark.engine.policies import Policy, policy_fields, policy_from, without_effect
from tallymark.engine.vhost import VirtualHost
from tallymark.server.http.requests import HttpContext, require_administrator
from tallymark.server.logs import log_of
from tallymark.server.management.lists import listed, shown
from tallymark.server.management.requests import Routes, fields_of, require_policymaker

HEADER: Final = "X-Without-Effect"

log = log_of("http")


def policy_row(vhost: str, policy: Policy) -> dict[str, Any]:
    return {"vhost": vhost, "name": policy.name, **policy.value()}


class Policies(Routes):
    """Routes under /api/policies, or under /api/operator-policies."""

    def __init__(self, http: HttpContext, operator: bool) -> None:
        super().__init__(http)
        self._operator = operator

    def add_to(self, app: web.Application) -> None:
        base = "/api/operator-policies" if self._operator else "/api/policies"
        for path in (base, base + "/{vhost}"):
            app.router.add_get(path, self._list)
        one = base + "/{vhost}/{name}"
        app.router.add_get(one, self._get)
        app.router.add_put(one, self._put)
        app.router.add_delete(one, self._delete)

    def _table(self, vhost: VirtualHost) -> dict[str, Policy]:
        return vhost.operator_policies if self._operator else vhost.policies

    async def _list(self, request: web.Request) -> web.Response:
        return await listed(
            self.http,
            request,
            (
                policy_row(vhost.name, policy)
                for vhost in self.vhosts(request)
                for policy in self._table(vhost).values()
            ),
        )

    async def _get(self, request: web.Request) -> web.Response:
        vhost, name = self.vhost(request), request.match_info["name"]
        policy = self._table(vhost).get(name)
        if policy is None:
            raise NotFound(f"no policy '{name}' in vhost '{vhost.name}'")
        return shown(request, policy_row(vhost.name, policy))

    def _allowed(self, request: web.Request) -> VirtualHost:
        """The virtual host, where the user may change its policies."""
        if self._operator:
            require_administrator(request)
        require_policymaker(request, request.match_info["vhost"])
        return self.node.broker.vhost(request.match_info["vhost"])

    async def _put(self, request: web.Request) -> web.Response:
        vhost, name = self._allowed(request), request.match_info["name"]
        value = policy_fields((await fields_of(request)).value)
        policy = policy_from(name, value, self._operator)
        is_new = name not in self._table(vhost)
        self.node.broker.registry.set_policy(vhost.name, policy, self._operator)
        await self.node.durable()
        answer = web.Response(status=201 if is_new else 204)
        idle = without_effect(policy)
        if idle:
            log.warning("policy.without_effect", vhost=vhost.name, policy=name, keys=idle)
            answer.headers[HEADER] = ", ".join(idle)
        return answer

    async def _delete(self, request: web.Request) -> web.Response:
        vhost = self._allowed(request)
        self.node.broker.registry.delete_policy(
            vhost.name, request.match_info["name"], self._operator
        )
        await self.node.durable()
        return web.Response(status=204)
