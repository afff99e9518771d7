"""Health checks over HTTP, as RabbitMQ's management interface has them: 200 and `ok`, or 503 and
`failed` with a reason."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiohttp import web

from tallymark.server.access.expiry import NoCertificate, certificate_files, expires_at
from tallymark.server.clock import wall_ms
from tallymark.server.http.requests import Refused, answer
from tallymark.server.management.overview import listeners
from tallymark.server.management.requests import Routes, is_number
from tallymark.server.node import node_name
from tallymark.server.readiness import not_ready, out_of_service

LEADERS: Final = "quorum-queues-without-elected-leaders"
SINGLE: Final = (
    "virtual-hosts", "node-is-mirror-sync-critical", "node-is-quorum-critical",
    "metadata-store/initialized", "metadata-store/initialized/with-data",
    f"{LEADERS}/all-vhosts", f"{LEADERS}/all-vhosts/pattern/{{pattern}}",
    f"{LEADERS}/vhost/{{vhost}}", f"{LEADERS}/vhost/{{vhost}}/pattern/{{pattern}}",
)  # fmt: skip
"""Health checks that only a cluster, or a virtual host that failed by itself, can fail."""
ALARMS: Final = ("alarms", "local-alarms")
DAY_S: Final = 86_400
UNITS_S: Final = {
    "days": DAY_S, "weeks": 7 * DAY_S, "months": 30 * DAY_S, "years": 365 * DAY_S,
}  # fmt: skip
"""Units of time that a certificate is still to be good for, in seconds, as RabbitMQ counts them."""


LISTENERS: Final = {
    **dict.fromkeys(
        ("amqp091", "amqp0.9.1", "amqp0-9-1", "amqp0_9_1", "amqp10", "amqp1.0", "amqp1-0",
         "amqp1_0"),
        "amqp",
    ),
    "amqps": "amqp/ssl",
    **dict.fromkeys(("http1", "http1.1", "http_api", "management", "management_ui", "ui"), "http"),
}  # fmt: skip
"""Protocols of listeners by the other names that RabbitMQ has for them."""


class Health(Routes):
    """Routes under /api/health/checks and /api/healthchecks."""

    def add_to(self, app: web.Application) -> None:
        router = app.router
        for name in ALARMS:
            router.add_get(f"/api/health/checks/{name}", self._alarms)
        for name in SINGLE:
            router.add_get(f"/api/health/checks/{name}", self._healthy)
        router.add_get("/api/health/checks/is-in-service", self._in_service)
        router.add_get("/api/health/checks/below-node-connection-limit", self._below_limit)
        router.add_get("/api/health/checks/ready-to-serve-clients", self._ready)
        router.add_get("/api/health/checks/port-listener/{port}", self._port_listener)
        router.add_get("/api/health/checks/protocol-listener/{protocol}", self._protocol_listener)
        router.add_get(
            "/api/health/checks/certificate-expiration/{within}/{unit}", self._certificates
        )
        router.add_get("/api/healthchecks/node", self._alarms)
        router.add_get("/api/healthchecks/node/{name}", self._alarms_of)

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
        if "vhost" in request.match_info:
            self.vhost(request)
        return answer({"status": "ok", "reason": "single node cluster"})

    async def _in_service(self, request: web.Request) -> web.Response:
        """Fail where clients would not be served, whether they are let in or not."""
        return _verdict("; ".join(out_of_service(self.node)))

    async def _below_limit(self, request: web.Request) -> web.Response:
        """Fail where no client is let in any more. Connections of HTTP do not count."""
        doors = self.node.doors
        reason = "" if doors.has_room() else "node connection limit is reached"
        return _verdict(reason, limit=doors.limit, connections=doors.clients)

    async def _ready(self, request: web.Request) -> web.Response:
        """Fail where a new client of AMQP would not be let in, or not be served."""
        reasons = not_ready(self.node)
        if not self.http.amqp and not self.http.amqps:
            reasons.append("no active listeners for AMQP/AMQPS")
        return _verdict("; ".join(reasons))

    async def _port_listener(self, request: web.Request) -> web.Response:
        asked = request.match_info["port"]
        if not is_number(asked):
            raise Refused(400, "bad_request", f"Invalid port: {asked!r}, expected a whole number")
        port, ports = int(asked), [port for _, _, port in listeners(self.http)]
        if port in ports:
            return answer({"status": "ok", "port": port})
        return answer(
            {"status": "failed", "reason": "No active listener", "missing": port, "ports": ports},
            503,
        )

    async def _protocol_listener(self, request: web.Request) -> web.Response:
        """Fail where there is no listener for one of the protocols, which commas part. Of a single
        one the answer says `missing` as a text, as RabbitMQ did before it took several."""
        asked = [one.strip() for one in request.match_info["protocol"].lower().split(",")]
        wanted = [LISTENERS.get(one, one) for one in asked]
        protocols = sorted({protocol for protocol, _, _ in listeners(self.http)})
        missing = [one for one in wanted if one not in protocols]
        if not missing:
            return answer({"status": "ok", "protocol": ", ".join(wanted)})
        return _verdict(
            "No active listener",
            missing=missing[0] if len(wanted) == 1 else missing,
            protocols=protocols,
        )

    async def _certificates(self, request: web.Request) -> web.Response:
        """Fail where a listener's certificate expires within a time, or cannot be read."""
        within, unit = request.match_info["within"], request.match_info["unit"]
        if not is_number(within):
            raise Refused(400, "bad_request", f"within is {within!r}, expected a whole number")
        if unit not in UNITS_S:
            raise Refused(400, "bad_request", f"unit is {unit!r}, expected {', '.join(UNITS_S)}")
        last = wall_ms() // 1000 + int(within) * UNITS_S[unit]
        found = await asyncio.to_thread(self._expiring, last)
        if not found:
            return answer({"status": "ok"})
        return answer(
            {"status": "failed", "reason": "Certificates expiring", "expired": found}, 503
        )

    def _expiring(self, last: int) -> list[dict[str, Any]]:
        """Return the certificates that are not good after `last`, seconds of wall time. Blocks."""
        found: list[dict[str, Any]] = []
        for setting, path in certificate_files(self.node.config).items():
            row = {"node": node_name(), "setting": setting, "certfile": str(path)}
            try:
                expiry = expires_at(path)
            except NoCertificate as error:
                found.append({**row, "reason": str(error)})
                continue
            if int(expiry.timestamp()) <= last:
                found.append({**row, "certfile_expires_on": expiry.isoformat()})
        return found


def _verdict(reason: str, **more: object) -> web.Response:
    """Return the answer of a check that fails for a reason; "": it does not."""
    if reason:
        return answer({"status": "failed", "reason": reason, **more}, 503)
    return answer({"status": "ok", **more})
