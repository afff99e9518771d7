"""Rights and bodies, as all routes of the management interface need them.

An administrator may do everything. A user with the tag `monitoring` sees every virtual host and
connection; any other user sees the virtual hosts in which it has permissions, and its own
connections. Requests that read or change messages, queues, exchanges and bindings need the
permissions of AMQP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import BadHttpMessage

from tallymark.bridge.amqp091.local import LocalPublisher
from tallymark.bridge.operations import Operations, arguments_of
from tallymark.engine.errors import AccessRefused, NotAllowed, NotFound
from tallymark.engine.queue import Queue
from tallymark.engine.session import NOBODY, Connection
from tallymark.engine.vhost import VirtualHost
from tallymark.server.access.user import (
    GUEST_USER,
    MONITORING,
    User,
    UsersError,
    permission_in,
    sees,
    sees_everything,
)
from tallymark.server.http.requests import (
    HttpContext,
    Refused,
    check_rights_stayed,
    user_of,
)
from tallymark.server.json_texts import unmarked
from tallymark.server.logs import log_of
from tallymark.server.node import Node
from tallymark.server.parts import cut
from tallymark.server.samples import MESSAGES, MOVED, counts_of, moved
from tallymark.wire.amqp091.errors import WireError

POLICYMAKER: Final = "policymaker"
MAX_BODY: Final = 64 << 20
FORM: Final = "multipart/form-data"
DEFAULT_EXCHANGE: Final = "amq.default"
DIGITS: Final = 20
"""Digits that a number sent as text may have."""
SECRET: Final = ("password", "password_hash", "payload", "users")
"""Names of values that neither an answer nor the log shows: passwords, bodies, and what may hold
one."""
KINDS: Final[dict[type, str]] = {
    str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list",
    dict: "an object",
}  # fmt: skip
MOST_SHOWN: Final = 200
"""Letters of a value in the text about it."""

log = log_of("users")


def require_policymaker(request: web.Request, vhost: str) -> None:
    """Raises AccessRefused unless the user may set policies in the virtual host."""
    user = user_of(request)
    allowed = POLICYMAKER in user.tags and permission_in(user, vhost) is not None
    if not user.administrator and not allowed:
        raise AccessRefused(
            f"user '{user.name}' is neither administrator nor, with access to vhost '{vhost}', "
            f"{POLICYMAKER}"
        )


def require_monitoring(request: web.Request) -> None:
    """Raises AccessRefused unless the user may see the broker as a whole."""
    user = user_of(request)
    if not sees_everything(user):
        raise AccessRefused(f"user '{user.name}' is neither administrator nor {MONITORING}")


class Fields:
    """The JSON object of a request. What is asked for and not as expected is Refused 400.

    As for RabbitMQ, true and numbers may come as text ("true", "5"), and other fields than those
    asked for mean nothing.
    """

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value

    def __contains__(self, name: str) -> bool:
        return self.value.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        """Return a field that is text. A default of None makes it required."""
        found = self.value.get(name, default)
        if not isinstance(found, str):
            raise self.wrong(name, "text")
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        found = self.value.get(name, default)
        if isinstance(found, str) and found in ("true", "false"):
            return found == "true"
        if not isinstance(found, bool):
            raise self.wrong(name, "true or false")
        return found

    def number(self, name: str, default: int | None = None) -> int:
        found = self.value.get(name, default)
        if isinstance(found, str) and is_number(found):
            return int(found)
        if not isinstance(found, int) or isinstance(found, bool):
            raise self.wrong(name, "a whole number")
        return found

    def table(self, name: str) -> dict[str, Any]:
        """An object; {} where there is none. Some clients write an empty one as []."""
        found = self.value.get(name)
        if found is None or found == []:
            return {}
        if not isinstance(found, dict):
            raise self.wrong(name, "an object")
        return found

    def arguments(self) -> dict[str, object]:
        """Return the arguments of a declaration. Raises InvalidCommand."""
        return arguments_of(self.table("arguments"))

    def wrong(self, name: str, expected: str) -> Refused:
        if name not in self.value:
            return Refused(400, "bad_request", f"{name} is missing, expected {expected}")
        found = shown_of(name, self.value[name])
        return Refused(400, "bad_request", f"{name} is {found}, expected {expected}")


def shown_of(name: str, value: object) -> str:
    """Return what a text about a wrong value shows of it: its kind alone if it may be secret."""
    if name in SECRET:
        return KINDS.get(type(value), "null")
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "..."


async def fields_of(request: web.Request) -> Fields:
    """The body as an object; an empty one is {}. Raises Refused 400, or 413 above MAX_BODY."""
    fields = fields_in(await whole(request.content.iter_any()))
    check_rights_stayed(request)
    return fields


async def uploaded_fields(request: web.Request) -> Fields:
    """Return the fields of a request as `fields_of` does; of a form that is sent in parts, as
    browsers and `curl -F file=@...` upload files, the part `file` is the body. Raises Refused 400,
    413."""
    if request.content_type != FORM:
        return await fields_of(request)
    try:
        async for part in await request.multipart():
            if isinstance(part, BodyPartReader) and part.name == "file":
                fields = fields_in(await whole(_chunks(part)))
                check_rights_stayed(request)
                return fields
    except (LookupError, ValueError, RuntimeError, BadHttpMessage) as error:
        reason = f"not a form in parts: {type(error).__name__}: {error}"
        raise Refused(400, "bad_request", reason) from error
    raise Refused(400, "bad_request", "a form without part 'file', expected one with JSON")


async def _chunks(part: BodyPartReader) -> AsyncIterator[bytes]:
    while chunk := await part.read_chunk():
        yield bytes(chunk)


async def whole(chunks: AsyncIterator[bytes]) -> bytes:
    """A body that comes in pieces. Raises Refused 413 above MAX_BODY."""
    size = 0
    parts = []
    async for part in chunks:
        size += len(part)
        if size > MAX_BODY:
            raise Refused(413, "too_large", f"a body above {MAX_BODY} bytes")
        parts.append(part)
    return b"".join(parts)


def fields_in(raw: bytes) -> Fields:
    """The object that a JSON text is. Raises Refused 400."""
    try:
        value = msgspec.json.decode(unmarked(raw).strip() or b"{}")
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refused(400, "bad_request", f"not_json: {error}") from error
    if not isinstance(value, dict):
        raise Refused(400, "bad_request", "not_json: expected an object")
    return Fields(value)


@contextmanager
def refused_by_users() -> Iterator[None]:
    """Answer a UsersError as Refused 400, and users that cannot be stored as Refused 500: then
    nothing has changed."""
    try:
        yield
    except UsersError as error:
        raise Refused(400, "bad_request", str(error)) from error
    except OSError as error:
        log.error("users.unwritable", error=str(error))
        raise Refused(500, "internal_error", f"users cannot be stored: {error}") from error


class Routes:
    """The base of every group of routes."""

    def __init__(self, http: HttpContext) -> None:
        self.http = http
        self.node: Node = http.node

    def vhost(self, request: web.Request) -> VirtualHost:
        """The virtual host that the path names. Raises NotFound, AccessRefused."""
        name = request.match_info["vhost"]
        found = self.node.broker.vhost(name)
        user = user_of(request)
        if not sees(user, name):
            raise AccessRefused(f"access to vhost '{name}' refused for user '{user.name}'")
        return found

    def vhosts(self, request: web.Request) -> list[VirtualHost]:
        """The one that the path names, or all that the user sees."""
        if "vhost" in request.match_info:
            return [self.vhost(request)]
        found, user = self.node.broker.vhosts.values(), user_of(request)
        return [vhost for vhost in found if sees(user, vhost.name)]

    def sees_user(self, request: web.Request) -> Callable[[str], bool]:
        """Return the function that tells whether a user's connections are shown, with their
        channels and consumers: everybody's, or the own."""
        user = user_of(request)
        if sees_everything(user):
            return lambda _: True
        return lambda name: name == user.name

    def users(self) -> dict[str, User]:
        """Return all users, including the guest that stands in while none are configured. Raises
        Refused 503."""
        try:
            return self.node.users.current() or {GUEST_USER.name: GUEST_USER}
        except UsersError as error:
            raise Refused(503, "users_unreadable", str(error)) from error

    def user(self, request: web.Request) -> User:
        """Return the user that the path names. Raises NotFound."""
        name = request.match_info["user"]
        found = self.users().get(name)
        if found is None:
            raise NotFound(f"no user '{name}'")
        return found

    async def change_users(
        self, request: web.Request, change: Callable[[dict[str, User]], None]
    ) -> None:
        """Change the users, who are given by name. Raises Refused 400 and 500."""
        with refused_by_users():
            await self.node.users.change(change, user_of(request).name)

    async def sums(self, request: web.Request, vhosts: Iterable[VirtualHost]) -> dict[str, int]:
        """Return the sums of the counts of all queues in virtual hosts, made in parts. Those of
        MOVED have deleted queues in them. Raises Refused."""
        sums = dict.fromkeys(MESSAGES, 0)
        queues: list[Queue] = []
        for vhost in vhosts:
            queues += vhost.queues.values()
            gone = self.node.deleted_queues.of_vhost(vhost.name)
            of_gone = moved(gone.entered, gone.settled, gone.handed_out)
            for name, count in zip(MOVED, of_gone, strict=True):
                sums[name] += count
        for part in cut(queues):
            await self.http.part(request)
            for queue in part:
                for name, count in zip(MESSAGES, counts_of(queue), strict=True):
                    sums[name] += count
        return sums

    def check_alarms(self) -> None:
        """Refuse a publish while publishers are paused. Raises Refused 503."""
        alarms = sorted(self.node.alarms.active)
        if alarms:
            raise Refused(503, "blocked", f"publishers wait: alarms for {', '.join(alarms)}")

    async def turn(self, request: web.Request) -> None:
        """Wait until the user may publish in the virtual host that the path names. Raises HeldBack
        where the limits of its rate ask for too long a wait, NotFound, and Refused 401."""
        await self.node.pacer.turn(self.vhost(request).name, user_of(request).name)

    def operations(self, request: web.Request) -> Operations:
        """Return the operations of the user in the virtual host that the path names. Raises
        NotFound, AccessRefused: it may not enter."""
        vhost = self.node.broker.vhost(request.match_info["vhost"]).name
        access = self.http.access(request, vhost)
        self.node.tell_time()  # the body may have come long after the request
        nobody = Connection(NOBODY, vhost, access.user, "http")
        return Operations(self.node.broker, nobody, access)

    async def done(self, lasts: bool, is_new: bool = False) -> web.Response:
        """Return the answer to an operation: where its result lasts, once that is on disk."""
        if lasts:
            await self.node.recorded()
        else:
            self.node.schedule()
        return web.Response(status=201 if is_new else 204)

    @contextmanager
    def connected(self, request: web.Request, vhost: str) -> Iterator[Connection]:
        """Have a connection of the user in a virtual host, which counts as any other, as do its
        channels. Raises AccessRefused: there are too many."""
        broker = self.node.broker
        name = f"http {request.remote} {request.method}"
        try:
            connection = broker.clients.open_connection(vhost, user_of(request).name, name)
            try:
                yield connection
            finally:
                broker.clients.close_connection(connection, False)
                self.node.schedule()
        except NotAllowed as error:
            raise AccessRefused(str(error)) from error

    @contextmanager
    def publisher(self, request: web.Request) -> Iterator[LocalPublisher]:
        """Have a publisher in the user's name in the virtual host that the path names. Raises
        NotFound, AccessRefused; inside of the block a WireError is answered as Refused 400."""
        vhost = self.node.broker.vhost(request.match_info["vhost"]).name
        access = self.http.access(request, vhost)
        with self.connected(request, vhost) as connection:
            publisher = LocalPublisher(
                self.node.broker, connection, access, self.node.clients.replies,
                self.node.config.max_message_size,
            )  # fmt: skip
            try:
                yield publisher
            except WireError as error:
                raise Refused(400, "bad_request", error.text) from error


def is_number(text: str) -> bool:
    """Return whether a text is a whole number of at most DIGITS digits."""
    return text.isascii() and text.isdigit() and len(text) <= DIGITS
