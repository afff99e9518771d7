"""The HTTP interface: management, metrics, and the operations that Spark uses. Same loop, aiohttp.

RabbitMQ's management interface is at RabbitMQ's paths (server/management/), what only this broker
has under /api/tallymark/. Every request but /healthz and /readyz needs Basic authentication. What
is refused is answered as RabbitMQ does: `{"error": word for machines, "reason": text for humans}`.
The page for browsers (page.py) asks by itself who it is.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from tallymark.engine.errors import (
    AccessRefused,
    BrokerError,
    Fenced,
    Gone,
    HeldBack,
    NotFound,
    ResourceExhausted,
    ResourceLocked,
    Unreadable,
)
from tallymark.server.access import audit
from tallymark.server.access.tls import Tls
from tallymark.server.http.guard import (
    FORBIDDEN,
    Turned,
    guard_of,
)
from tallymark.server.http.line import HttpListener
from tallymark.server.http.login import log_in
from tallymark.server.http.page import BELOW, PageRoutes, is_for_page
from tallymark.server.http.paths import allowed_methods, answer_with_slash
from tallymark.server.http.requests import (
    OPEN,
    USER,
    USERS,
    HttpContext,
    Refused,
    answer,
    told_path,
)
from tallymark.server.loading import NotLoaded
from tallymark.server.logs import log_of
from tallymark.server.node import Node
from tallymark.server.readiness import LAPSED, not_ready
from tallymark.server.turns import JournalFailed

STATUS: Final[dict[type[BrokerError], tuple[int, str]]] = {
    NotFound: (404, "not_found"),
    AccessRefused: (403, "access_refused"),
    ResourceLocked: (403, "locked"),
    Fenced: (409, "fenced"),
    Gone: (410, "gone"),
    ResourceExhausted: (429, "resource_exhausted"),
    HeldBack: (503, "blocked"),
    Unreadable: (500, "unreadable"),
}
"""Any other engine error is 400, bad_request."""
OWN: Final = ("/api/tallymark/", BELOW)
"""Paths that RabbitMQ has not; at its own a refused access is 401 and another connection's queue
400, as its clients expect."""
RABBITMQ_CHALLENGE: Final = 'Basic realm="RabbitMQ Management", charset="UTF-8"'
"""Header that asks for a password, for RabbitMQ's realm: some clients know theirs by it."""
IDENTITY: Final = "identity"
MAX_REQUEST: Final = 1 << 20
MOST_LOGGED: Final = 1000
"""Letters of a reason in the log; the answer has all of it."""

log = log_of("http")


def refuse_coded(request: web.Request) -> None:
    """Raises Refused: the body is compressed. What it stands for could be any size."""
    coding = request.headers.get("Content-Encoding", IDENTITY)
    if coding.lower() != IDENTITY:
        raise Refused(
            415,
            "unsupported_media_type",
            f"Content-Encoding is {coding[:200]!r}, expected none: bodies are not unpacked",
        )


class HttpServer:
    """The listeners and the routes."""

    def __init__(self, node: Node) -> None:
        from tallymark.server.http.archives import Archiving
        from tallymark.server.http.behind import Behind
        from tallymark.server.http.browse import Browsing
        from tallymark.server.http.consumers import Consumers
        from tallymark.server.http.deliveries import Deliveries
        from tallymark.server.http.features import FeatureFlags
        from tallymark.server.http.journeys import Journeys
        from tallymark.server.http.openapi import OpenApi
        from tallymark.server.http.quarantine import Quarantines
        from tallymark.server.http.redrive import Redriving
        from tallymark.server.http.sinks import Sinks
        from tallymark.server.http.state import State
        from tallymark.server.http.streams import Streams
        from tallymark.server.http.subscriptions import Subscriptions
        from tallymark.server.management.routes import add_management

        self.node = node
        self._guard = guard_of(node.config)
        self.context = context = HttpContext(node)
        app = web.Application(
            middlewares=[
                self._errors,
                self._authenticate,
                self._tell_time,
                answer_with_slash,
            ],
            client_max_size=MAX_REQUEST,
        )
        app[USERS] = node.users
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._ready)
        State(context).add_to(app)
        Consumers(context).add_to(app)
        Subscriptions(context).add_to(app)
        Deliveries(context).add_to(app)
        Behind(context).add_to(app)
        Sinks(context).add_to(app)
        FeatureFlags(context).add_to(app)
        OpenApi().add_to(app)
        Redriving(context).add_to(app)
        Quarantines(context).add_to(app)
        Archiving(context).add_to(app)
        Journeys(context).add_to(app)
        self._browsing = Browsing(context)
        self._browsing.add_to(app)
        self._streams = Streams(context)
        self._streams.add_to(app)
        add_management(context, app)
        self._page = PageRoutes(context)
        self._page.add_to(app)
        self._listener = HttpListener(node, app)

    async def start(
        self,
        bound: Sequence[socket.socket],
        tls_bound: Sequence[socket.socket] = (),
        tls: Tls | None = None,
    ) -> list[tuple[str, int]]:
        """Listen on sockets that are bound, and on `tls_bound` inside TLS; return the addresses of
        the former."""
        self.context.addresses = await self._listener.start(bound)
        self.context.tls_addresses = await self._listener.start(tls_bound, tls)
        return self.context.addresses

    async def stop(self) -> None:
        """Let requests under way finish, for at most STOP_S, and close. Plans stay for these."""
        self._page.close()
        await self._listener.stop()
        self._browsing.close()
        self._streams.close()

    async def _health(self, request: web.Request) -> web.Response:
        if "leader" in request.query and not self.node.is_leading():
            return answer({"status": "lapsed", "reason": LAPSED}, 503)
        alarms = self.node.alarms.shown()
        return answer({"status": "alarm" if alarms else "ok", "alarms": alarms})

    async def _ready(self, request: web.Request) -> web.Response:
        """Answer with 200 where a new client would be let in."""
        reasons = not_ready(self.node)
        if reasons:
            return answer({"status": "failed", "reason": "; ".join(reasons)}, 503)
        return answer({"status": "ok"})

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._guard.check(request)
            refuse_coded(request)
            response = await self._handle(request, handler)
            if audit.is_change(request.method, request.path):
                await self.node.settings_files.keep()
                user = request[USER].name if USER in request else ""
                audit.request_done(
                    "HTTP", request.remote or "", user, request.method, told_path(request),
                    response.status,
                )  # fmt: skip
            return response
        except Refused as error:
            return await self._refuse(request, error.status, error.error, str(error))
        except Turned as error:
            audit.request_turned_away(
                "HTTP", request.remote or "", request.method, told_path(request), str(error)
            )
            word = "forbidden" if error.status == FORBIDDEN else "misdirected_request"
            return await self._refuse(request, error.status, word, str(error))
        except BrokerError as error:
            status, word = STATUS.get(type(error), (400, "bad_request"))
            if isinstance(error, ResourceLocked) and not request.path.startswith(OWN):
                status, word = 400, "bad_request"
            return await self._refuse(request, status, word, str(error))
        except JournalFailed as error:
            return await self._refuse(request, 503, "stopping", str(error))
        except NotLoaded as error:
            return await self._refuse(request, 503, "not_loaded", str(error))
        except web.HTTPException as error:
            allowed = allowed_methods(error)
            if allowed and request.method == "OPTIONS":  # asks for no more than that
                return web.Response(headers={"Allow": allowed})
            word = error.reason.lower().replace(" ", "_")
            reason = f"{request.method} {told_path(request)}: {error.reason}"
            refusal = await self._refuse(request, error.status, word, reason)
            if allowed:
                refusal.headers["Allow"] = allowed
            return refusal

    async def _handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Return the answer. What stands in the way of a change, or has made it before, is on disk
        when the client hears of it. Raises what the handler does; JournalFailed."""
        try:
            return await handler(request)
        except BrokerError:
            if request.method not in audit.READING:
                await self.node.durable()
            raise

    async def _refuse(
        self, request: web.Request, status: int, error: str, reason: str
    ) -> web.Response:
        if error == "access_refused" and not request.path.startswith(OWN):
            status, error = 401, "not_authorised"
        log.info("request.refused", method=request.method, path=told_path(request), status=status,
                 error=reason[:MOST_LOGGED], peer=request.remote)  # fmt: skip
        if status in (401, 403) and USER in request:
            audit.request_refused(
                "HTTP", request.remote or "", request[USER].name, request.method,
                told_path(request),
                reason[:MOST_LOGGED],
            )  # fmt: skip
        if is_for_page(request):
            with contextlib.suppress(NotLoaded):  # a browser is told as a program is
                return await self._page.refused(request, status, reason)
        refusal = answer({"error": error, "reason": reason}, status)
        if USER not in request:
            refusal.headers["WWW-Authenticate"] = RABBITMQ_CHALLENGE
        return refusal

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in OPEN or is_for_page(request):
            return await handler(request)
        await log_in(request, self.node.users)
        return await handler(request)

    @web.middleware
    async def _tell_time(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Commands of a request are of now: a broker that is idle had its last turn long ago."""
        self.node.tell_time()
        return await handler(request)
