"""The broker as a whole at nsqd's HTTP interface: health, statistics, options."""

from __future__ import annotations

import asyncio
import gc
import platform
from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import web

from tallymark import __version__
from tallymark.bridge.permissions import Access
from tallymark.server import logs
from tallymark.server.listening import shown
from tallymark.server.logs import log_of
from tallymark.server.nsq.lookupd import Lookupd
from tallymark.server.nsq.options import LOG_LEVELS, options
from tallymark.server.nsq.requests import (
    TEXT,
    NsqContext,
    Parameters,
    Refused,
    answer,
    body_of,
)
from tallymark.server.nsq.stats import (
    ClientRow,
    Report,
    Stats,
    memory,
    topic_json,
    topic_text,
)

LOOKUPD_OPTION: Final = "nsqlookupd_tcp_addresses"
LOG_OPTION: Final = "log_level"

log = log_of("nsq")


class BrokerRoutes:
    """Routes that are about the broker as a whole."""

    def __init__(
        self,
        http: NsqContext,
        stats: Stats,
        lookupd: Lookupd,
        clients: Callable[[], list[ClientRow]],
    ) -> None:
        self._http = http
        self._node = http.node
        self._stats = stats
        self._lookupd = lookupd
        self._clients = clients

    def add_to(self, app: web.Application) -> None:
        router = app.router
        router.add_get("/ping", self._ping)
        router.add_get("/info", self._info)
        router.add_get("/stats", self._show_stats)
        router.add_get("/config/{option}", self._show_option)
        router.add_put("/config/{option}", self._set_option)
        router.add_post("/debug/freememory", self._free_memory)
        router.add_put("/debug/setblockrate", self._go_only)
        router.add_get("/debug/pprof{profile:(/.*)?}", self._go_only)
        router.add_post("/debug/pprof{profile:(/.*)?}", self._go_only)

    async def _ping(self, request: web.Request) -> web.Response:
        """500 when the disk could not be written."""
        health = self._http.health
        return web.Response(
            text=health, status=200 if health == "OK" else 500, headers={"Content-Type": TEXT}
        )

    async def _info(self, request: web.Request) -> web.Response:
        limits, about = self._http.limits, self._lookupd.announced
        self._http.now()  # what the clock has been set by since the last turn
        started = self._node.broker.clock.to_wall(self._node.started_ms)
        return answer(
            {
                "version": limits.version,
                "broadcast_address": about.broadcast_address,
                "hostname": about.hostname,
                "http_port": self._http.addresses[0][1] if self._http.addresses else 0,
                "tcp_port": self._http.tcp_addresses[0][1],
                "start_time": started // 1000,
                "max_heartbeat_interval": limits.max_heartbeat_interval_ms * 1_000_000,
                "max_output_buffer_size": limits.max_output_buffer_size,
                "max_output_buffer_timeout": limits.max_output_buffer_timeout_ms * 1_000_000,
                "max_deflate_level": limits.max_deflate_level,
            }
        )

    async def _show_stats(self, request: web.Request) -> web.Response:
        self._http.allow(request, Access.check_entered)
        parameters = Parameters(request)
        with_clients = parameters.flag("include_clients", True)
        is_json = parameters.get("format") == "json"
        clients = self._clients()
        now, clock = self._http.now(), self._node.broker.clock
        topics: list[msgspec.Raw] = []
        texts: list[str] = []
        for topic in self._stats.collect(
            clients, now, parameters.get("topic") or "", parameters.get("channel") or "",
            with_clients,
        ):  # fmt: skip
            if topic is None:
                await asyncio.sleep(
                    0
                )  # deadlines and clients do not wait for ten thousand channels
            elif is_json:
                topics.append(msgspec.Raw(msgspec.json.encode(topic_json(topic))))
            else:
                texts.append(topic_text(topic, clock.to_wall(now)))
        report = Report(
            version=self._http.limits.version,
            built=f"tallymark {__version__}, Python {platform.python_version()}",
            health=self._http.health,
            started_ms=clock.to_wall(self._node.started_ms),
            now_ms=clock.to_wall(now),
            memory=memory() if parameters.flag("include_mem", True) else None,
            producers=[one for one in clients if one.published] if with_clients else None,
        )
        return answer(report.as_json(topics) if is_json else report.as_text(texts))

    # -- options

    async def _show_option(self, request: web.Request) -> web.Response:
        return self._option(request.match_info["option"])

    def _option(self, name: str) -> web.Response:
        found = options(
            self._node.config, self._http.limits, self._lookupd, self._http.tls_required
        )
        for key, addresses in (
            ("tcp_address", self._http.tcp_addresses), ("http_address", self._http.addresses),
            ("https_address", self._http.tls_addresses),
        ):  # fmt: skip
            found[key] = shown(addresses[0]) if addresses else ""
        if name not in found:
            raise Refused(400, "INVALID_OPTION")
        return answer(found[name])

    async def _set_option(self, request: web.Request) -> web.Response:
        """Set an option until the broker stops; the configuration does not change."""
        name = request.match_info["option"]
        self._allow_config(request)
        body = await body_of(request, self._http.limits.max_msg_size, "INVALID_VALUE")
        if not body:
            raise Refused(413, "INVALID_VALUE")
        self._allow_config(request)
        if name == LOOKUPD_OPTION:
            try:
                self._lookupd.set_addresses(msgspec.json.decode(body, type=list[str]))
            except (msgspec.MsgspecError, ValueError):
                raise Refused(400, "INVALID_VALUE") from None
        elif name == LOG_OPTION:
            level = LOG_LEVELS.get(body.decode("utf-8", "replace").lower())
            if level is None:
                raise Refused(400, "INVALID_VALUE")
            for category in logs.levels():
                logs.set_level(category, level)
            log.info("log.level_set", to=level)
        else:
            raise Refused(400, "INVALID_OPTION")
        return self._option(name)

    def _allow_config(self, request: web.Request) -> None:
        """Raises Refused 403."""
        found = self._http.access(request)
        is_allowed = found is None or found[1]
        if not self._node.config.nsq_http_config or not is_allowed:
            raise Refused(403, "FORBIDDEN")

    async def _go_only(self, request: web.Request) -> web.Response:
        """Refuse profiles of Go's runtime: the paths are known, but Python has no such profiles."""
        raise Refused(501, "NOT_IMPLEMENTED")

    async def _free_memory(self, request: web.Request) -> web.Response:
        gc.collect()
        return answer()
