"""Requests over HTTP: what every handler reads, checks and answers with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar

import msgspec
from aiohttp import web

from tallymark.bridge.nsq.topics import Topics
from tallymark.bridge.permissions import QUEUE, READ, Access
from tallymark.engine.broker import Broker
from tallymark.engine.queue import Queue
from tallymark.engine.session import NOBODY
from tallymark.journal.journal import Journal
from tallymark.server.access.user import TokenUser, User, UsersError, permissions_of, sees
from tallymark.server.access.users import Users
from tallymark.server.json_texts import unmarked
from tallymark.server.logs import log_of
from tallymark.server.node import Node
from tallymark.server.parts import cut

USER: Final = web.RequestKey("user", User)
"""Name of the user that sent the request. `user_of` tells what that user may do now."""
USERS: Final = web.AppKey("users", Users)
OPEN: Final = ("/healthz", "/readyz")
"""Paths that need no login: a probe has none."""
HASHING: Final = "/api/auth/hash_password/"
"""Path behind which a client writes a password [rabbitmq]."""
MOST_DIGITS: Final = 30
"""Digits of a number in a query string; Python itself refuses to read thousands of them."""
Body = TypeVar("Body")
Thing = TypeVar("Thing")
Row = TypeVar("Row")

log = log_of("http")


class Refused(Exception):
    """A request that is answered with an error status. error: a word; reason: a text."""

    def __init__(self, status: int, error: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.error = error


def answer(value: object, status: int = 200) -> web.Response:
    """A JSON answer."""
    return answer_of(msgspec.json.encode(value), status)


def answer_of(text: bytes, status: int = 200) -> web.Response:
    """An answer that is JSON already."""
    return web.Response(body=text, status=status, content_type="application/json")


async def body_of(request: web.Request, kind: type[Body]) -> Body:
    """The request's JSON object. Raises Refused 400 when it is not what is expected, and as
    `check_rights_stayed`."""
    try:
        found = msgspec.json.decode(unmarked(await request.read()) or b"{}", type=kind)
    except msgspec.MsgspecError as error:
        raise Refused(400, "bad_request", f"request body: {error}") from error
    check_rights_stayed(request)
    return found


def number_in(request: web.Request, name: str, default: int | None = None) -> int:
    """Return a whole number from the query string. A default of None makes it required. Raises
    Refused 400."""
    if default is not None and name not in request.query:
        return default
    text = request.query.get(name, "")
    if not (text.isascii() and text.isdigit()):
        raise Refused(400, "bad_request", f"{name} is {text!r}, expected a whole number")
    if len(text) > MOST_DIGITS:
        raise Refused(
            400,
            "bad_request",
            f"{name} has {len(text)} digits, expected a whole number of at most {MOST_DIGITS}",
        )
    return int(text)


def told_path(request: web.BaseRequest) -> str:
    """Return the path as logs and refusals tell it: as it was asked for, since a slash in a name is
    no step, and without a password that is a part of it."""
    before, hashing, _ = request.path.partition(HASHING)
    return f"{before}{hashing}..." if hashing else request.rel_url.raw_path


def user_of(request: web.Request) -> User:
    """Return the user that sent the request, with the rights of now: reading a body or waiting for
    an answer takes time.

    Raises Refused 401: the user was deleted meanwhile.
    """
    name = request[USER].name
    try:
        user = request.app[USERS].as_now(request[USER])
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


class Polls(Protocol):
    """Waits for what a request asks for."""

    async def beyond(self, queue: Queue, sequence: int) -> None:
        """Return when readers may see the message of that number, or the stream is gone, or is to
        be looked for again."""

    async def ready(self, queue: Queue) -> None:
        """Return when the queue has ready messages, or is deleted, or is to be looked for again."""


class Readable(Protocol):
    """A broker as those see it who only read: the node of one that serves, or a standby's view."""

    @property
    def broker(self) -> Broker: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def polls(self) -> Polls: ...

    async def durable(self) -> None:
        """Return when everything that the engine has done is on disk."""

    def schedule(self) -> None:
        """Have a turn soon: something is no longer needed."""


class ReadContext:
    """A broker as handlers of requests that only read see it, and what a user may reach."""

    def __init__(self, node: Readable) -> None:
        self.node = node

    def check_leases(self, request: web.Request) -> None:
        """Check that subscriptions are asked for here. Raises Refused 503: another broker has
        them."""

    def queue(self, request: web.Request) -> Queue:
        """The queue that the path names. Raises as `queue_named`."""
        return self.queue_named(request, request.match_info["vhost"], request.match_info["queue"])

    def queue_named(self, request: web.Request, vhost: str, name: str) -> Queue:
        """The queue of that name. Raises NotFound, AccessRefused (needs read), ResourceLocked:
        it is a connection's own."""
        self.access(request, vhost).check(QUEUE, name, READ)
        return self.node.broker.vhost(vhost).queue(name, NOBODY)

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


class HttpContext(ReadContext):
    """A broker that serves, as handlers of requests see it: its node, its addresses, and what a
    user may reach."""

    node: Node

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.amqp: list[tuple[str, int]] = []
        """Addresses of the AMQP listeners, for lists."""
        self.amqps: list[tuple[str, int]] = []
        """Addresses of the AMQP listeners inside TLS, for lists."""
        self.nsq: dict[str, list[tuple[str, int]]] = {}
        """Addresses of the NSQ listeners, by protocol."""
        self.addresses: list[tuple[str, int]] = []
        """Addresses that this server listens on without TLS."""
        self.topics: Topics | None = None
        """Topics of NSQ, where it is served."""
        self.searches = 0
        """Searches for messages under way (journeys.py)."""
        self.tls_addresses: list[tuple[str, int]] = []

    async def part(self, request: web.Request) -> None:
        """Wait until one more part of a long answer may be made [parts]. Raises Refused: who asked
        for it has gone."""
        await self.node.parts.turn()
        if request.transport is None or request.transport.is_closing():
            raise Refused(400, "broken_off", "the client has gone before its answer was made")
        self.node.tell_time()

    async def rows(
        self, request: web.Request, things: Iterable[Thing], make: Callable[[Thing], Row]
    ) -> list[Row]:
        """Return the row of each thing, made in parts. Those that end meanwhile are in the list as
        they were last. Raises Refused, as `part`."""
        rows: list[Row] = []
        for some in cut(things):
            await self.part(request)
            rows += [make(thing) for thing in some]
        return rows

    def sees(self, request: web.Request) -> Callable[[str], bool]:
        """Return the function that tells whether lists show the user a virtual host: those that it
        may enter, and every one where it sees the broker as a whole."""
        user = user_of(request)
        return lambda vhost: sees(user, vhost)

    def queues(self, request: web.Request) -> list[Queue]:
        """Return the queues of all virtual hosts that the user sees."""
        is_seen = self.sees(request)
        return [queue for queue in self.node.broker.queues.values() if is_seen(queue.vhost)]
