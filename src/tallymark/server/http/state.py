"""Views of a broker's state: lists, status, log levels, the ledger's checkpoint, metrics."""

from __future__ import annotations

import os
from typing import Any

from aiohttp import web

from tallymark import __version__, is_compiled
from tallymark.engine.clock import Clock
from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import consumers_of
from tallymark.engine.streams import first_offset, offset_of
from tallymark.engine.table_values import wire_bytes
from tallymark.server import logs
from tallymark.server.access.user import sees
from tallymark.server.config.settings import nearest
from tallymark.server.http.requests import (
    HttpContext,
    Refused,
    answer,
    body_of,
    require_administrator,
    user_of,
)
from tallymark.server.loading import loading
from tallymark.server.logs import CATEGORIES, LEVELS
from tallymark.server.places import place_of


class State:
    """Routes that only look, and the few an administrator changes something with."""

    def __init__(self, http: HttpContext) -> None:
        self._http = http
        self._node = http.node

    def add_to(self, app: web.Application) -> None:
        router = app.router
        router.add_get("/api/tallymark/overview", self._overview)
        router.add_get("/api/tallymark/status", self._status)
        router.add_get("/api/tallymark/queues", self._queues)
        router.add_get("/api/tallymark/exchanges", self._exchanges)
        router.add_get("/api/tallymark/connections", self._connections)
        router.add_get("/api/tallymark/log-levels", self._log_levels)
        router.add_put("/api/tallymark/log-levels", self._set_log_levels)
        router.add_post("/api/tallymark/ledger/checkpoint", self._checkpoint)
        router.add_get("/metrics", self._metrics)
        router.add_get("/metrics/per-object", self._metrics_per_object)

    async def _overview(self, request: web.Request) -> web.Response:
        broker = self._node.broker
        queues = broker.queues.values()
        return answer(
            {
                "product": "Tallymark",
                "version": __version__,
                "compiled": is_compiled(),
                "published": broker.publishing.published,
                "connections": len(self._node.clients),
                "sessions": sum(len(c.sessions) for c in broker.connections.values()),
                "consumers": sum(len(queue.consumers) for queue in queues),
                "queues": len(queues),
                "exchanges": sum(len(vhost.exchanges) for vhost in broker.vhosts.values()),
                "subscriptions": len(broker.leases.subscriptions),
                "ready": sum(queue.ready for queue in queues),
                "acquired": sum(queue.acquired for queue in queues),
                "deferred": sum(queue.deferred for queue in queues),
                "staged": sum(queue.account.staged for queue in queues),
                "quarantined": sum(queue.account.quarantined for queue in queues),
                "transactions": len(broker.transactions.open),
                "settled": sum(queue.account.settled for queue in queues),
                "sinks": len(broker.sinks.sinks),
                "sink_stagings": len(broker.sinks.stagings),
                "sink_staged": broker.sinks.staged,
            }
        )

    async def _status(self, request: web.Request) -> web.Response:
        node = self._node
        journal, config, broker = node.journal, node.config, node.broker
        return answer(
            {
                "broker": {
                    "version": __version__,
                    "compiled": is_compiled(),
                    "pid": os.getpid(),
                    "uptime_s": node.uptime_ms() // 1000,
                    "turns": node.turns,
                    "alarms": ", ".join(node.alarms.shown()) or "none",
                    "quarantined": sum(
                        queue.account.quarantined for queue in broker.queues.values()
                    ),
                    "connections": len(node.clients),
                    "queues": len(broker.queues),
                },
                "memory": {
                    "bodies_bytes": broker.store.resident_bytes,
                    "bodies_limit_bytes": config.max_memory,
                },
                "journal": {
                    "data_dir": str(config.data_dir.absolute()),
                    "sync": config.sync,
                    "end": journal.end,
                    "written": journal.written,
                    "synced": journal.synced,
                    "durable": journal.durable,
                    "syncs": journal.syncs,
                    "pending_bytes": journal.pending_bytes,
                    "free_bytes": journal.free_bytes(),
                    "checkpoints": node.housekeeping.checkpoints,
                },
            }
        )

    async def _queues(self, request: web.Request) -> web.Response:
        clock, found = self._node.broker.clock, self._http.queues(request)
        rows = await self._http.rows(request, found, lambda queue: queue_row(queue, clock))
        return answer({"queues": rows})

    async def _exchanges(self, request: web.Request) -> web.Response:
        is_seen = self._http.sees(request)
        rows = [
            {
                "vhost": vhost.name,
                "name": exchange.name,
                "type": exchange.type,
                "durable": exchange.durable,
                "auto_delete": exchange.auto_delete,
                "internal": exchange.internal,
                "arguments": plain(exchange.arguments),
            }
            for vhost in self._node.broker.vhosts.values()
            if is_seen(vhost.name)
            for exchange in vhost.exchanges.values()
        ]
        return answer({"exchanges": rows})

    async def _connections(self, request: web.Request) -> web.Response:
        require_administrator(request)
        rows = []
        for client in self._node.clients:
            connection = client.bridge.connection
            sessions = connection.sessions if connection is not None else []
            place = (connection.vhost, connection.user) if connection else place_of(client)
            state = "opening" if place is None else "running"
            if client.blocked_reason is not None:
                state = "blocked"
            elif connection is not None and connection.paused:
                state = "slow"
            vhost, user = place or ("", "")
            rows.append(
                {
                    "id": client.id,
                    "peer": client.peer,
                    "protocol": client.category,
                    "user": user,
                    "vhost": vhost,
                    "channels": len(sessions),
                    "consumers": sum(len(session.consumers) for session in sessions),
                    "unacked": sum(session.unacked for session in sessions),
                    "received_bytes": client.received_bytes,
                    "sent_bytes": client.sent_bytes,
                    "unsent_bytes": client.unsent(),
                    "state": state,
                }
            )
        return answer({"connections": rows})

    async def _log_levels(self, request: web.Request) -> web.Response:
        return answer(logs.levels())

    async def _set_log_levels(self, request: web.Request) -> web.Response:
        require_administrator(request)
        wanted = await body_of(request, dict[str, str])
        for category, level in wanted.items():
            for word, valid in ((category, ["all", *CATEGORIES]), (level, list(LEVELS))):
                if word not in valid:
                    raise Refused(400, "bad_request", f"unknown '{word}'{nearest(word, valid)}")
        for category, level in wanted.items():
            for one in CATEGORIES if category == "all" else (category,):
                logs.set_level(one, level)
        return answer(logs.levels())

    async def _checkpoint(self, request: web.Request) -> web.Response:
        """Every queue's account at one journal position, which is on disk when this is answered."""
        require_administrator(request)
        node = self._node
        rows: list[dict[str, Any]] = []

        def look(position: int) -> None:
            rows.extend(account_row(queue) for queue in node.broker.queues.values())
            node.housekeeping.checkpoint(node.broker.clock.now_ms)

        position = await node.at_commit(look)
        await node.durable()
        return answer({"position": position, "queues": rows})

    async def _metrics(self, request: web.Request) -> web.Response:
        """Show all metrics for Prometheus, those of queues added up. Raises NotLoaded."""
        with loading("the metrics", "http"):
            from tallymark.server.metrics.exposition import CONTENT_TYPE, render

        body = await render(self._node, lambda: self._http.part(request))
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _metrics_per_object(self, request: web.Request) -> web.Response:
        """Show all metrics for Prometheus, those of queues for each that the user may see. Raises
        NotLoaded."""
        with loading("the metrics", "http"):
            from tallymark.server.metrics.exposition import CONTENT_TYPE, render_per_object

        user = user_of(request)
        body = await render_per_object(
            self._node, lambda vhost: sees(user, vhost), lambda: self._http.part(request)
        )
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


def queue_row(queue: Queue, clock: Clock) -> dict[str, Any]:
    """One queue for people and scripts; counts are messages. next_due_ms: when the first of what is
    deferred is ready, wall time."""
    return {
        **account_row(queue),
        "durable": queue.durable,
        "exclusive": bool(queue.exclusive_owner),
        "auto_delete": queue.auto_delete,
        "arguments": plain(queue.arguments),
        "ready_bytes": queue.account.ready_bytes,
        "acquired_bytes": queue.account.acquired_bytes,
        "deferred_bytes": queue.account.deferred_bytes,
        "staged_bytes": queue.account.staged_bytes,
        "next_due_ms": clock.to_wall(queue.deferrals.next_due()) if queue.deferrals else None,
        "leased": queue.account.leased,
        "consumers": len(queue.consumers),
        "subscriptions": len(queue.subscriptions),
        "paused": queue.paused,
        **(stream_row(queue) if queue.settings.is_stream else {}),
    }


def stream_row(queue: Queue) -> dict[str, Any]:
    """Return a stream's additional columns: the offset of the oldest stored message, the next
    offset to be written, and the readers' offsets."""
    return {
        "first_offset": first_offset(queue),
        "next_offset": queue.end() - 1,
        "reader_offsets": [offset_of(consumer) for consumer in consumers_of(queue)],
    }


def account_row(queue: Queue) -> dict[str, Any]:
    """The equation of one queue [LC-5]."""
    terms = queue.account.terms()
    del terms["leased"]  # part of `acquired`
    return {"id": queue.id, "vhost": queue.vhost, "name": queue.name, **terms}


def plain(value: object) -> Any:
    """Argument tables as JSON: bytes and what JSON has no word for become text, numbers lose the
    width they had on the wire, and what is not UTF-8 shows as U+FFFD."""
    match value:
        case dict():
            return {plain(str(key)): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case bytes():
            return value.decode("utf-8", "replace")
        case bool() | None:
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case _:
            return wire_bytes(str(value)).decode("utf-8", "replace")
