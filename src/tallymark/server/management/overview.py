"""The broker as a whole over HTTP, as RabbitMQ's management interface has it: overview, the one
node, health checks."""

from __future__ import annotations

import os
from typing import Any, Final

from aiohttp import web

from tallymark.bridge.identity import BROKER, PRODUCT, VERSION
from tallymark.engine.exchange import TYPES
from tallymark.server.http.requests import answer
from tallymark.server.management.requests import Routes, listed, shown
from tallymark.server.management.rows import counted, queue_totals
from tallymark.server.node import node_name
from tallymark.server.places import place_of

SINGLE: Final = ("virtual-hosts", "node-is-mirror-sync-critical", "node-is-quorum-critical")
"""Health checks that only a cluster, or a virtual host that failed by itself, can fail."""
ALARMS: Final = ("alarms", "local-alarms")


class Overview(Routes):
    """Routes that are about the broker as a whole."""

    def add_to(self, app: web.Application) -> None:
        router = app.router
        router.add_get("/api/overview", self._overview)
        router.add_get("/api/cluster-name", self._cluster_name)
        router.add_get("/api/nodes", self._nodes)
        router.add_get("/api/nodes/{name}", self._node)
        for name in ALARMS:
            router.add_get(f"/api/health/checks/{name}", self._alarms)
        for name in SINGLE:
            router.add_get(f"/api/health/checks/{name}", self._healthy)
        router.add_get("/api/health/checks/port-listener/{port}", self._port_listener)
        router.add_get("/api/health/checks/protocol-listener/{protocol}", self._protocol_listener)
        router.add_get("/api/healthchecks/node", self._alarms)
        router.add_get("/api/healthchecks/node/{name}", self._alarms_of)

    def _listeners(self) -> list[tuple[str, str, int]]:
        """Protocol, address, port."""
        found = [("amqp", host, port) for host, port in self.http.amqp]
        found += [("amqp/ssl", host, port) for host, port in self.http.amqps]
        found += [("http", host, port) for host, port in self.http.addresses]
        found += [("https", host, port) for host, port in self.http.tls_addresses]
        return found + [
            (name, host, port) for name, ends in self.http.nsq.items() for host, port in ends
        ]

    async def _overview(self, request: web.Request) -> web.Response:
        """Show totals of the virtual hosts that the user may see, and the node's listeners and
        properties."""
        broker = self.node.broker
        vhosts = self.vhosts(request)
        names = {vhost.name for vhost in vhosts}
        places = [place_of(client) for client in self.node.clients]
        sessions = [len(c.sessions) for c in broker.connections.values() if c.vhost in names]
        queues = [queue for vhost in vhosts for queue in vhost.queues.values()]
        return shown(
            request,
            {
                "management_version": VERSION,
                "rabbitmq_version": VERSION,
                "product_name": PRODUCT,
                "product_version": VERSION,
                **BROKER,
                "cluster_name": node_name(),
                "node": node_name(),
                "rates_mode": "none",
                "exchange_types": _exchange_types(),
                "message_stats": counted(
                    {
                        "publish": sum(queue.entered for queue in queues),
                        "ack": sum(queue.account.settled for queue in queues),
                    }
                ),
                "queue_totals": counted(queue_totals(queues)),
                "object_totals": {
                    "connections": sum(p is not None and p[0] in names for p in places),
                    "channels": sum(sessions),
                    "consumers": sum(len(queue.consumers) for queue in queues),
                    "queues": len(queues),
                    "exchanges": sum(len(vhost.exchanges) for vhost in vhosts),
                },
                "listeners": [
                    {"node": node_name(), "protocol": protocol, "ip_address": host, "port": port}
                    for protocol, host, port in self._listeners()
                ],
                "contexts": [
                    {
                        "node": node_name(),
                        "description": "Tallymark management",
                        "path": "/",
                        "ip": host,
                        "port": str(port),
                    }
                    for host, port in self.http.addresses
                ],
            },
        )

    async def _cluster_name(self, request: web.Request) -> web.Response:
        return answer({"name": node_name()})

    def _node_row(self) -> dict[str, Any]:
        node = self.node
        alarms = node.alarms.active
        return {
            "name": node_name(),
            "type": "disc",
            "running": True,
            "partitions": [],
            "os_pid": str(os.getpid()),
            "uptime": node.uptime_ms(),
            "processors": os.cpu_count() or 1,
            "rates_mode": "none",
            "exchange_types": _exchange_types(),
            "mem_used": node.broker.store.resident_bytes,
            "mem_limit": node.config.max_memory,
            "mem_alarm": "memory" in alarms,
            "disk_free": node.journal.free_bytes(),
            "disk_free_limit": node.config.disk_free_limit,
            "disk_free_alarm": "disk" in alarms,
            "sockets_used": len(node.clients),
            "sockets_total": node.doors.limit,
            "db_dir": str(node.config.data_dir.absolute()),
        }

    async def _nodes(self, request: web.Request) -> web.Response:
        return listed(request, [self._node_row()])

    async def _node(self, request: web.Request) -> web.Response:
        if request.match_info["name"] != node_name():
            raise web.HTTPNotFound
        return shown(request, self._node_row())

    # -- health

    async def _alarms(self, request: web.Request) -> web.Response:
        alarms = sorted(self.node.alarms.active)
        if not alarms:
            return answer({"status": "ok"})
        found = [{"node": node_name(), "resource": alarm} for alarm in alarms]
        reason = f"alarms are in effect: {', '.join(alarms)}"
        return answer({"status": "failed", "reason": reason, "alarms": found}, 503)

    async def _alarms_of(self, request: web.Request) -> web.Response:
        if request.match_info["name"] != node_name():
            raise web.HTTPNotFound
        return await self._alarms(request)

    async def _healthy(self, request: web.Request) -> web.Response:
        return answer({"status": "ok", "reason": "single node cluster"})

    async def _port_listener(self, request: web.Request) -> web.Response:
        port = request.match_info["port"]
        ports = [port for _, _, port in self._listeners()]
        if port in map(str, ports):
            return answer({"status": "ok", "port": int(port)})
        return answer(
            {"status": "failed", "reason": "No active listener", "missing": port, "ports": ports},
            503,
        )

    async def _protocol_listener(self, request: web.Request) -> web.Response:
        asked = request.match_info["protocol"]
        protocol = "amqp" if asked in ("amqp", "amqp091", "amqp0.9.1") else asked
        protocols = sorted({protocol for protocol, _, _ in self._listeners()})
        if protocol in protocols:
            return answer({"status": "ok", "protocol": protocol})
        return answer(
            {
                "status": "failed",
                "reason": "No active listener",
                "missing": asked,
                "protocols": protocols,
            },
            503,
        )


def _exchange_types() -> list[dict[str, Any]]:
    return [{"name": name, "description": "", "enabled": True} for name in TYPES]
