"""nsqd's HTTP interface: publish, topics and channels, statistics [NQ-20]. Same loop, aiohttp.

Paths, parameters and answers are nsqd's: a text as it is, anything else as JSON, a refusal as
`{"message": CODE}`. As with nsqd nobody is asked who he is, while there are no users and no
nsq_user (nsq/doors.py). What changes something answers when it is on disk.
"""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import Callable, Sequence
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from tallymark.bridge.nsq.topics import Topics
from tallymark.engine.errors import (
    BrokerError,
    HeldBack,
    NotFound,
    ResourceExhausted,
)
from tallymark.server.access import audit
from tallymark.server.access.tls import Tls
from tallymark.server.access.user import UsersError
from tallymark.server.config.kinds import LOCALHOST
from tallymark.server.http.guard import CHALLENGE, FORBIDDEN, Turned, credentials, guard_of
from tallymark.server.http.line import HttpListener
from tallymark.server.http.paths import NO_SUCH_PATH, allowed_methods, known_without_slash
from tallymark.server.logs import log_of
from tallymark.server.node import Node
from tallymark.server.nsq.about import BrokerRoutes
from tallymark.server.nsq.doors import NsqDoors
from tallymark.server.nsq.lookupd import Lookupd
from tallymark.server.nsq.requests import (
    JSON,
    USER,
    VERSION_HEADER,
    NsqContext,
    Refused,
    answer,
)
from tallymark.server.nsq.stats import (
    ClientRow,
    Stats,
)
from tallymark.server.nsq.topics import TopicRoutes
from tallymark.server.turns import JournalFailed
from tallymark.wire.nsq.limits import Limits

NOT_FOUND: Final = 404
OBJECTS: Final = ("topic", "channel")
"""Parameters that name what a request changes."""
HTTP_WORDS: Final = {NOT_FOUND: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 413: "BODY_TOO_BIG"}

log = log_of("nsq")


class NsqHttp:
    """The listeners and the routes."""

    def __init__(
        self,
        node: Node,
        topics: Topics,
        limits: Limits,
        stats: Stats,
        lookupd: Lookupd,
        clients: Callable[[], list[ClientRow]],
        doors: NsqDoors,
    ) -> None:
        self._node = node
        self._doors = doors
        self._guard = guard_of(node.config)
        self.context = context = NsqContext(node, topics, limits, doors)
        app = web.Application(middlewares=[self._errors, self._authenticate], client_max_size=0)
        BrokerRoutes(context, stats, lookupd, clients).add_to(app)
        TopicRoutes(context).add_to(app)
        self._listener = HttpListener(node, app)

    async def start(
        self,
        bound: Sequence[socket.socket],
        tls_bound: Sequence[socket.socket] = (),
        tls: Tls | None = None,
    ) -> None:
        """Listen on sockets that are bound; on `tls_bound` inside TLS."""
        self.context.addresses += await self._listener.start(bound)
        self.context.tls_addresses += await self._listener.start(tls_bound, tls)

    async def stop(self) -> None:
        """Let requests under way finish, for at most STOP_S, and close."""
        await self._listener.stop()

    # -- every request

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._guard.check(request)
            if self.context.tls_required == "true" and not request.secure:
                return self._refuse_plain()
            response = await self._handle(request, handler)
            if audit.is_change_of_nsq(request.method, request.path):
                self._tell_done(request, response.status)
            return response
        except Refused as error:
            return self._refuse(request, error.status, str(error))
        except Turned as error:
            audit.request_turned_away(
                "NSQ", request.remote or "", request.method, request.path, str(error)
            )
            word = "FORBIDDEN" if error.status == FORBIDDEN else "MISDIRECTED_REQUEST"
            return self._refuse(request, error.status, f"{word}: {error}")
        except NotFound:  # it went between our look and our step
            return self._refuse(request, NOT_FOUND, "TOPIC_NOT_FOUND")
        except (HeldBack, ResourceExhausted) as error:
            log.info("publish.refused", path=request.path, error=str(error))
            return self._refuse(request, 503, "BLOCKED")
        except BrokerError as error:
            # A name that is a topic's for NSQ, but not for what AMQP clients declared.
            log.info("request.refused", path=request.path, error=str(error))
            return self._refuse(request, 400, "INVALID_TOPIC")
        except JournalFailed:
            return self._refuse(request, 503, "EXITING")
        except web.HTTPException as error:
            return await self._turn(request, error)
        except (ConnectionError, asyncio.CancelledError):
            raise  # the client went away
        except Exception as error:  # a bug of ours: logged, and answered in nsqd's form
            trace = "".join(traceback.format_exception(error))
            log.error("request.failed", method=request.method, path=request.path, trace=trace)
            return self._refuse(request, 500, "INTERNAL_ERROR")

    async def _handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Return the answer. That a topic or channel is not there is on disk when the client hears
        of it: who removed it may have done so just now. Raises what the handler does;
        JournalFailed."""
        try:
            return await handler(request)
        except (Refused, NotFound) as error:
            is_missing = isinstance(error, NotFound) or error.status == NOT_FOUND
            if is_missing and request.method not in audit.READING:
                await self._node.durable()
            raise

    def _tell_done(self, request: web.Request, status: int) -> None:
        """Tell the audit log of a change, with the topic and the channel that it was about."""
        user = request[USER].name if USER in request else self._node.config.nsq_user
        named = [f"{key}={request.query[key]}" for key in OBJECTS if key in request.query]
        path = "?".join([request.path, *(["&".join(named)] if named else [])])
        audit.request_done("NSQ", request.remote or "", user, request.method, path, status)

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check a request's credentials; `/ping` needs none."""
        if request.path != "/ping" and self._doors.needs_login:
            given = credentials(request.headers.get("Authorization", ""))
            try:
                user = None
                if given is not None:
                    user = await self._node.users.check(*given[1:], request.remote or LOCALHOST)
            except UsersError as error:
                log.error("login.impossible", error=str(error))
            if user is None:
                scheme, name, _ = given or ("Basic", "", "")
                audit.login_refused("NSQ over HTTP", request.remote or "", name, scheme)
                raise Refused(401, "UNAUTHORIZED")
            request[USER] = user
        return await handler(request)

    def _refuse(self, request: web.Request, status: int, code: str) -> web.Response:
        log.debug("request.refused", method=request.method, path=request.path, status=status,
                  error=code, peer=request.remote)  # fmt: skip
        refusal = answer({"message": code}, status)
        if status == 401:
            refusal.headers["WWW-Authenticate"] = CHALLENGE
        return refusal

    async def _turn(self, request: web.Request, error: web.HTTPException) -> web.Response:
        """Answer an unknown path or method as nsqd's router does: HEAD is served, but not listed in
        Allow."""
        allowed = allowed_methods(error, "HEAD")
        if allowed and request.method == "OPTIONS":
            return web.Response(headers={"Allow": allowed})
        shorter = await known_without_slash(request) if error.status == NO_SUCH_PATH else ""
        if shorter:
            status = 301 if request.method == "GET" else 308
            return web.Response(status=status, headers={"Location": shorter})
        word = error.reason.upper().replace(" ", "_")
        refusal = self._refuse(request, error.status, HTTP_WORDS.get(error.status, word))
        if allowed:
            refusal.headers["Allow"] = allowed
        return refusal

    def _refuse_plain(self) -> web.Response:
        tls_addresses = self.context.tls_addresses
        port = tls_addresses[0][1] if tls_addresses else 0
        body = f'{{"message": "TLS_REQUIRED", "https_port": {port}}}'
        headers = {"Content-Type": JSON, **VERSION_HEADER}
        return web.Response(text=body, status=403, headers=headers)
