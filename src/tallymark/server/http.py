"""The HTTP interface: management, metrics, and the operations that Spark uses. Same loop, aiohttp.

RabbitMQ's management interface is at RabbitMQ's paths (management*.py), what only this broker has
under /api/tallymark/. Every request but /healthz needs Basic authentication. What is refused is
answered as RabbitMQ does: `{"error": word for machines, "reason": text for humans}`.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from tallymark.bridge.permissions import QUEUE, READ, Access
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
from tallymark.engine.queue import Queue
from tallymark.server import audit
from tallymark.server.http_guard import (
    CHALLENGE,
    FORBIDDEN,
    Turned,
    credentials,
    guard_of,
)
from tallymark.server.http_line import HttpListener
from tallymark.server.http_paths import allowed_methods, answer_with_slash
from tallymark.server.logs import log_of
from tallymark.server.node import JournalFailed, Node
from tallymark.server.tls import Tls
from tallymark.server.users import TokenUser, User, UsersError, permissions_of

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
OWN: Final = "/api/tallymark/"
"""Paths that RabbitMQ has not; at its own a refused access is 401, as its clients expect."""
IDENTITY: Final = "identity"
MAX_REQUEST: Final = 1 << 20
USER: Final = web.RequestKey("user", User)
"""Name of the user that sent the request. `user_of` tells what that user may do now."""
NODE: Final = web.AppKey("node", Node)

Body = TypeVar("Body")
log = log_of("http")


class Refused(Exception):
    """A request that is answered with an error status. error: a word; reason: a text."""

    def __init__(self, status: int, error: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.error = error


def answer(value: object, status: int = 200) -> web.Response:
    """A JSON answer."""
    body = msgspec.json.encode(value)
    return web.Response(body=body, status=status, content_type="application/json")


async def body_of(request: web.Request, kind: type[Body]) -> Body:
    """The request's JSON object. Raises Refused 400 when it is not what is expected, and as
    `check_rights_stayed`."""
    try:
        found = msgspec.json.decode(await request.read() or b"{}", type=kind)
    except msgspec.MsgspecError as error:
        raise Refused(400, "bad_request", f"request body: {error}") from error
    check_rights_stayed(request)
    return found


def number_in(request: web.Request, name: str) -> int:
    """A whole number from the query string. Raises Refused 400."""
    text = request.query.get(name, "")
    if not (text.isascii() and text.isdigit()):
        raise Refused(400, "bad_request", f"{name} is {text!r}, expected a whole number")
    return int(text)


def user_of(request: web.Request) -> User:
    """Return the user that sent the request, with the rights of now: reading a body or waiting for
    an answer takes time.

    Raises Refused 401: the user was deleted meanwhile.
    """
    name = request[USER].name
    try:
        user = request.app[NODE].users.as_now(request[USER])
    except UsersError as error:
        log.error("login.impossible", error=str(error))
        user = None
    if user is None:
        if isinstance(request[USER], TokenUser):
            raise Refused(401, "not_authorized", f"the token of user '{name}' has expired")
        raise Refused(401, "not_authorized", f"user '{name}' is deleted")
    return user


def check_rights_stayed(request: web.Request) -> None:
    """Check that the user's rights are those checked before the body came. Raises Refused 401."""
    before, now = request[USER], user_of(request)
    if (before.administrator, before.tags, before.vhosts) != (
        now.administrator, now.tags, now.vhosts,
    ):  # fmt: skip
        raise Refused(
            401, "not_authorized", f"the rights of user '{now.name}' changed meanwhile: ask again"
        )


def require_administrator(request: web.Request) -> None:
    """Raises Refused 403."""
    user = user_of(request)
    if not user.administrator:
        raise Refused(403, "access_refused", f"user '{user.name}' is not an administrator")


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
        from tallymark.server.http_archives import Archiving
        from tallymark.server.http_browse import Browsing
        from tallymark.server.http_consumers import Consumers
        from tallymark.server.http_features import FeatureFlags
        from tallymark.server.http_quarantine import Quarantines
        from tallymark.server.http_redrive import Redriving
        from tallymark.server.http_sinks import Sinks
        from tallymark.server.http_state import State
        from tallymark.server.http_streams import Streams
        from tallymark.server.http_subscriptions import Subscriptions
        from tallymark.server.management import add_management

        self.node = node
        self._guard = guard_of(node.config)
        self.amqp: list[tuple[str, int]] = []
        """Addresses of the AMQP listeners, for lists."""
        self.amqps: list[tuple[str, int]] = []
        """Addresses of the AMQP listeners inside TLS, for lists."""
        self.nsq: dict[str, list[tuple[str, int]]] = {}
        """Addresses of the NSQ listeners, by protocol."""
        self.addresses: list[tuple[str, int]] = []
        """Addresses that this server listens on without TLS."""
        self.tls_addresses: list[tuple[str, int]] = []
        app = web.Application(
            middlewares=[
                self._errors,
                self._authenticate,
                self._tell_time,
                answer_with_slash,
            ],
            client_max_size=MAX_REQUEST,
        )
        app[NODE] = node
        app.router.add_get("/healthz", self._health)
        State(self).add_to(app)
        Consumers(self).add_to(app)
        Subscriptions(self).add_to(app)
        Sinks(self).add_to(app)
        FeatureFlags(self).add_to(app)
        Redriving(self).add_to(app)
        Quarantines(self).add_to(app)
        Archiving(self).add_to(app)
        self._browsing = Browsing(self)
        self._browsing.add_to(app)
        self._streams = Streams(self)
        self._streams.add_to(app)
        add_management(self, app)
        self._listener = HttpListener(node, app)

    async def start(
        self,
        bound: Sequence[socket.socket],
        tls_bound: Sequence[socket.socket] = (),
        tls: Tls | None = None,
    ) -> list[tuple[str, int]]:
        """Listen on sockets that are bound, and on `tls_bound` inside TLS; return the addresses of
        the former."""
        self.addresses = await self._listener.start(bound)
        self.tls_addresses = await self._listener.start(tls_bound, tls)
        return self.addresses

    async def stop(self) -> None:
        """Let requests under way finish, for at most STOP_S, and close."""
        self._browsing.close()
        self._streams.close()
        await self._listener.stop()

    def queue(self, request: web.Request) -> Queue:
        """The queue that the path names. Raises NotFound, AccessRefused (needs read)."""
        vhost, name = request.match_info["vhost"], request.match_info["queue"]
        self.access(request, vhost).check(QUEUE, name, READ)
        queue = self.node.broker.vhost(vhost).queues.get(name)
        if queue is None:
            raise NotFound(f"no queue '{name}' in vhost '{vhost}'")
        return queue

    def check_read(self, request: web.Request, queue: Queue) -> None:
        """Raises AccessRefused unless the user may read it now, and Refused 401 as `user_of`."""
        self.access(request, queue.vhost).check(QUEUE, queue.name, READ)

    def access(self, request: web.Request, vhost: str) -> Access:
        """Return the user's permissions in a virtual host. Raises AccessRefused: there are none."""
        user = user_of(request)
        access = Access(user.name, vhost, ("", "", ""))
        access.follow(permissions_of(user))
        access.check_entered()
        return access

    async def _health(self, request: web.Request) -> web.Response:
        alarms = self.node.housekeeping.told_alarms
        return answer({"status": "alarm" if alarms else "ok", "alarms": alarms})

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._guard.check(request)
            refuse_coded(request)
            response = await handler(request)
            if audit.is_change(request.method, request.path):
                user = request[USER].name if USER in request else ""
                audit.request_done(
                    "HTTP", request.remote or "", user, request.method, request.path,
                    response.status,
                )  # fmt: skip
            return response
        except Refused as error:
            return self._refuse(request, error.status, error.error, str(error))
        except Turned as error:
            audit.request_turned_away(
                "HTTP", request.remote or "", request.method, request.path, str(error)
            )
            word = "forbidden" if error.status == FORBIDDEN else "misdirected_request"
            return self._refuse(request, error.status, word, str(error))
        except BrokerError as error:
            status, word = STATUS.get(type(error), (400, "bad_request"))
            return self._refuse(request, status, word, str(error))
        except JournalFailed as error:
            return self._refuse(request, 503, "stopping", str(error))
        except web.HTTPException as error:
            word = error.reason.lower().replace(" ", "_")
            refusal = self._refuse(
                request, error.status, word, f"{request.method} {request.path}: {error.reason}"
            )
            if allowed := allowed_methods(error):
                refusal.headers["Allow"] = allowed
            return refusal

    def _refuse(self, request: web.Request, status: int, error: str, reason: str) -> web.Response:
        if error == "access_refused" and not request.path.startswith(OWN):
            status, error = 401, "not_authorised"
        log.info("request.refused", method=request.method, path=request.path, status=status,
                 error=reason, peer=request.remote)  # fmt: skip
        if status in (401, 403) and USER in request:
            audit.request_refused(
                "HTTP", request.remote or "", request[USER].name, request.method, request.path,
                reason,
            )  # fmt: skip
        refusal = answer({"error": error, "reason": reason}, status)
        if USER not in request:
            refusal.headers["WWW-Authenticate"] = CHALLENGE
        return refusal

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == "/healthz":
            return await handler(request)
        given = credentials(request.headers.get("Authorization", ""))
        if given is None or (given[0] == "Bearer" and self.node.users.tokens is None):
            raise Refused(401, "not_authorized", "expected Basic authentication (user:password)")
        scheme, name, secret = given
        try:
            user = await self.node.users.check(name, secret, request.remote or "")
        except UsersError as error:
            log.error("login.impossible", error=str(error))
            user = None
        if user is None:
            audit.login_refused("HTTP", request.remote or "", name, scheme)
            raise Refused(401, "not_authorized", "user name and password do not match")
        request[USER] = user
        log.debug("request", method=request.method, path=request.path, user=user.name)
        return await handler(request)

    @web.middleware
    async def _tell_time(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Commands of a request are of now: a broker that is idle had its last turn long ago."""
        self.node.tell_time()
        return await handler(request)
