"""Feature flags over HTTP: looked at by any user, enabled by an administrator, for good. At this
broker's path and, in RabbitMQ's form, at RabbitMQ's."""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import web

from tallymark.server.features import FLAGS
from tallymark.server.http.requests import (
    HttpContext,
    Refused,
    answer,
    body_of,
    require_administrator,
)
from tallymark.server.logs import log_of

log = log_of("server")


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """Desired state of a flag."""

    enabled: bool = True


class FeatureFlags:
    """Routes under /api/tallymark/features and /api/feature-flags."""

    def __init__(self, http: HttpContext) -> None:
        self._node = http.node
        self._one_at_a_time = asyncio.Lock()

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/api/tallymark/features", self._list)
        app.router.add_put("/api/tallymark/features/{name}", self._enable)
        app.router.add_get("/api/feature-flags", self._list_as_rabbitmq)
        app.router.add_put("/api/feature-flags/{name}/enable", self._enable_as_rabbitmq)

    async def _list(self, request: web.Request) -> web.Response:
        return answer({"features": [self._row(name) for name in FLAGS]})

    async def _enable(self, request: web.Request) -> web.Response:
        """Enable a flag and answer when it is on disk: from then on stored data may need it."""
        require_administrator(request)
        name = request.match_info["name"]
        wanted = await body_of(request, Wanted)
        if not wanted.enabled:
            raise Refused(
                400, "bad_request", f"enabled is false: feature flag '{name}' cannot be disabled"
            )
        await self._switch_on(name)
        return answer(self._row(name))

    async def _list_as_rabbitmq(self, request: web.Request) -> web.Response:
        enabled = self._node.features.enabled
        rows = [
            {
                "name": name,
                "desc": flag.help,
                "doc_url": "",
                "state": "enabled" if name in enabled else "disabled",
                "stability": "stable",
                "provided_by": "tallymark",
            }
            for name, flag in FLAGS.items()
        ]
        return answer(rows)

    async def _enable_as_rabbitmq(self, request: web.Request) -> web.Response:
        """Enable a flag. The body, which repeats the name, means nothing."""
        require_administrator(request)
        await self._switch_on(request.match_info["name"])
        return web.Response(status=204)

    async def _switch_on(self, name: str) -> None:
        """Enable a flag, on disk when this returns. Raises NotFound, PreconditionFailed, Refused
        500."""
        features = self._node.features
        async with self._one_at_a_time:
            try:
                changed = await asyncio.to_thread(features.enable, name)
            except OSError as error:
                reason = f"feature flag '{name}' cannot be stored: {error}"
                log.error("feature.not_stored", feature=name, error=str(error))
                raise Refused(500, "internal_error", reason) from error
            self._node.broker.dead_letters.death_form = features.death_form
            self._node.journal.version = features.block_version
        if changed:
            log.info("feature.enabled", feature=name)

    def _row(self, name: str) -> dict[str, object]:
        flag = FLAGS[name]
        return {
            "name": name,
            "enabled": name in self._node.features.enabled,
            "needs": flag.needs,
            "help": flag.help,
        }
