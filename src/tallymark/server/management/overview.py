"""The broker as a whole over HTTP, as RabbitMQ's management interface has it: overview and the one
node."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from aiohttp import web

from tallymark.bridge.identity import BROKER, PRODUCT, VERSION
from tallymark.engine.exchange import TYPES
from tallymark.server.access.user import sees_everything
from tallymark.server.http.requests import HttpContext, answer, user_of
from tallymark.server.machine import BOUNDLESS, files_allowed, files_open
from tallymark.server.management.lists import listed, shown
from tallymark.server.management.rates import LENGTHS, MSG_RATES, Rates
from tallymark.server.management.requests import Routes, require_monitoring
from tallymark.server.node import node_name
from tallymark.server.places import place_of
from tallymark.server.samples import CHURN, MOVED, PRESENT, UNROUTABLE, churn, unroutable


def listeners(http: HttpContext) -> list[tuple[str, str, int]]:
    """Return protocol, address and port of each listener."""
    found = [("amqp", host, port) for host, port in http.amqp]
    found += [("amqp/ssl", host, port) for host, port in http.amqps]
    found += [("http", host, port) for host, port in http.addresses]
    found += [("https", host, port) for host, port in http.tls_addresses]
    return found + [(name, host, port) for name, ends in http.nsq.items() for host, port in ends]


class Overview(Routes):
    """Routes that are about the broker as a whole."""

    def add_to(self, app: web.Application) -> None:
        router = app.router
        router.add_get("/api/overview", self._overview)
        router.add_get("/api/version", self._version)
        router.add_get("/api/cluster-name", self._cluster_name)
        router.add_get("/api/nodes", self._nodes)
        router.add_get("/api/nodes/{name}", self._node)

    async def _overview(self, request: web.Request) -> web.Response:
        """Show totals of the virtual hosts that the user may see, and of those connections there
        that lists show it."""
        broker = self.node.broker
        vhosts = self.vhosts(request)
        names = {vhost.name for vhost in vhosts}
        is_seen = self.sees_user(request)
        places = [place_of(client) for client in self.node.clients]
        held = [c for c in broker.connections.values() if c.vhost in names and is_seen(c.user)]
        of_request = Rates(self.node, request)
        rates = of_request.of_vhosts(names)
        queues = [queue for vhost in vhosts for queue in vhost.queues.values()]
        sums = await self.sums(request, vhosts)
        found: dict[str, Any] = {
            "management_version": VERSION,
            "rabbitmq_version": VERSION,
            "product_name": PRODUCT,
            "product_version": VERSION,
            **BROKER,
            "cluster_name": node_name(),
            "rates_mode": "basic",
            "exchange_types": _exchange_types(),
            "message_stats": rates.counted({name: sums[name] for name in MOVED}, MSG_RATES),
            "queue_totals": rates.counted({name: sums[name] for name in PRESENT}, LENGTHS),
            "object_totals": {
                "connections": sum(
                    p is not None and p[0] in names and is_seen(p[1]) for p in places
                ),
                "channels": sum(len(c.sessions) for c in held),
                "consumers": sum(len(s.consumers) for c in held for s in c.sessions),
                "queues": len(queues),
                "exchanges": sum(len(vhost.exchanges) for vhost in vhosts),
            },
        }
        if sees_everything(user_of(request)):
            found |= self._machine()
            confirms = {"confirm": sum(self.node.confirm_times.counts)}
            traffic = broker.traffic
            nowhere = dict(zip(UNROUTABLE, unroutable(traffic), strict=True))
            of_broker = of_request.of_broker()
            found["message_stats"] |= of_broker.counted(confirms | nowhere, MSG_RATES)
            coming = dict(zip(CHURN, churn(traffic), strict=True))
            found["churn_rates"] = of_broker.counted(coming, MSG_RATES)
        return shown(request, found)

    def _machine(self) -> dict[str, Any]:
        """Return what an overview has for who watches the broker as a whole."""
        return {
            "node": node_name(),
            "listeners": [
                {"node": node_name(), "protocol": protocol, "ip_address": host, "port": port}
                for protocol, host, port in listeners(self.http)
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
        }

    async def _version(self, request: web.Request) -> web.Response:
        """Return the version of the RabbitMQ that is followed, as a text."""
        return answer(VERSION)

    async def _cluster_name(self, request: web.Request) -> web.Response:
        return answer({"name": node_name()})

    async def _node_row(self) -> dict[str, Any]:
        """Return the row of the one node. What is nothing without Erlang is there where clients
        cannot do without it: `run_queue`, `applications`, `enabled_plugins`."""
        node = self.node
        descriptors = await asyncio.to_thread(files_open)
        alarms = node.alarms.active
        return {
            "name": node_name(),
            "type": "disc",
            "running": True,
            "partitions": [],
            "os_pid": str(os.getpid()),
            "uptime": node.uptime_ms(),
            "processors": os.cpu_count() or 1,
            "rates_mode": "basic",
            "exchange_types": _exchange_types(),
            "auth_mechanisms": [
                {"name": name, "description": "", "enabled": True} for name in node.mechanisms()
            ],
            "applications": [],
            "enabled_plugins": [],
            "config_files": [],
            "log_files": [],
            "being_drained": False,
            "run_queue": 0,
            "proc_used": len(asyncio.all_tasks()),
            "proc_total": BOUNDLESS,
            "fd_used": descriptors,
            "fd_total": files_allowed(),
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
        require_monitoring(request)
        return await listed(self.http, request, [await self._node_row()])

    async def _node(self, request: web.Request) -> web.Response:
        require_monitoring(request)
        if request.match_info["name"] != node_name():
            raise web.HTTPNotFound
        return shown(request, await self._node_row())


def _exchange_types() -> list[dict[str, Any]]:
    return [{"name": name, "description": "", "enabled": True} for name in TYPES]
