"""nsqd's HTTP interface: publish, topics and channels, statistics [NQ-20]. Same loop, aiohttp.

Paths, parameters and answers are nsqd's: a text as it is, anything else as JSON, a refusal as
`{"message": CODE}`. As with nsqd nobody is asked who he is, while there are no users and no
nsq_user (nsq/doors.py). What changes something answers when it is on disk.
"""

from __future__ import annotations

import asyncio
import gc
import platform
import re
import socket
import traceback
from array import array
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from tallymark import __version__
from tallymark.bridge.nsq.topics import Topic, Topics
from tallymark.bridge.permissions import Access
from tallymark.engine.errors import (
    AccessRefused,
    BrokerError,
    HeldBack,
    NotFound,
    ResourceExhausted,
)
from tallymark.server import logs
from tallymark.server.access import audit
from tallymark.server.access.tls import Tls
from tallymark.server.access.user import User, UsersError
from tallymark.server.config.kinds import LOCALHOST
from tallymark.server.http.guard import CHALLENGE, FORBIDDEN, Turned, credentials, guard_of
from tallymark.server.http.line import HttpListener
from tallymark.server.http.paths import NO_SUCH_PATH, allowed_methods, known_without_slash
from tallymark.server.listening import shown
from tallymark.server.logs import log_of
from tallymark.server.node import Node
from tallymark.server.nsq.doors import NsqDoors
from tallymark.server.nsq.lookupd import Lookupd
from tallymark.server.nsq.options import LOG_LEVELS, options
from tallymark.server.nsq.stats import (
    ClientRow,
    Report,
    Stats,
    memory,
    topic_json,
    topic_text,
)
from tallymark.server.turns import JournalFailed
from tallymark.wire.nsq.errors import WireError
from tallymark.wire.nsq.kernel import make_cells
from tallymark.wire.nsq.limits import Limits
from tallymark.wire.nsq.names import is_valid_name
from tallymark.wire.nsq.parsing import mpub_cuts

CELL_HEAD: Final = 4
"""Bytes in front of the body in a cell that came by HTTP: its size."""
BOOLS: Final = {"true": True, "1": True, "false": False, "0": False}
JSON: Final = "application/json; charset=utf-8"
TEXT: Final = "text/plain; charset=utf-8"
VERSION_HEADER: Final = {"X-NSQ-Content-Type": "nsq; version=1.0"}
HTTP_WORDS: Final = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 413: "BODY_TOO_BIG"}
LOOKUPD_OPTION: Final = "nsqlookupd_tcp_addresses"
LOG_OPTION: Final = "log_level"
USER: Final = web.RequestKey("user", User)
"""Name of the user that logged in."""

_half_escape: Final = re.compile(r"%(?![0-9A-Fa-f]{2})").search
log = log_of("nsq")


class Refused(Exception):
    """A request that is answered with a status and nsqd's code for the reason."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status


def answer(value: object = None, status: int = 200) -> web.Response:
    """A text or nothing as it is, anything else as JSON."""
    if value is None or isinstance(value, str | bytes):
        raw = value.encode() if isinstance(value, str) else value or b""
        kind = TEXT
    else:
        raw = msgspec.json.encode(value)
        kind = JSON
    headers = {"Content-Type": kind, **VERSION_HEADER}
    return web.Response(body=raw, status=status, headers=headers)


class Parameters:
    """The query string, read as Go's url.ParseQuery reads it. Raises Refused INVALID_REQUEST."""

    def __init__(self, request: web.Request) -> None:
        query = request.raw_path.partition("?")[2]
        if _half_escape(query) or ";" in query:
            raise Refused(400, "INVALID_REQUEST")
        self._values: dict[str, str] = {}
        for name, value in parse_qsl(query, keep_blank_values=True):
            self._values.setdefault(name, value)

    def get(self, name: str) -> str | None:
        return self._values.get(name)

    def need(self, name: str) -> str:
        """Raises Refused: it is not there."""
        value = self._values.get(name)
        if value is None:
            raise Refused(400, f"MISSING_ARG_{name.upper()}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        return BOOLS.get(self._values.get(name, ""), default)

    def topic(self, code: str = "INVALID_TOPIC") -> str:
        """A topic's name. Raises Refused: there is none, or it is not one (`code`)."""
        name = self.need("topic")
        if not _is_name(name):
            raise Refused(400, code)
        return name

    def topic_and_channel(self) -> tuple[str, str]:
        topic = self.topic("INVALID_ARG_TOPIC")
        channel = self.need("channel")
        if not _is_name(channel):
            raise Refused(400, "INVALID_ARG_CHANNEL")
        return topic, channel


def _is_name(text: str) -> bool:
    return text.isascii() and is_valid_name(text.encode())


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
        self._topics = topics
        self._limits = limits
        self._stats = stats
        self._lookupd = lookupd
        self._clients = clients
        self._doors = doors
        self._guard = guard_of(node.config)
        self.tcp_addresses: list[tuple[str, int]] = []
        """Addresses of the NSQ protocol's listeners, for /info."""
        self.addresses: list[tuple[str, int]] = []
        """Addresses that this server listens on without TLS."""
        self.tls_addresses: list[tuple[str, int]] = []
        self.tls_required = False
        """Requests without TLS are refused."""
        self.tls_required_option = "false"
        """nsq_tls_required, as it is in effect."""
        self._listener = HttpListener(node, self._app())

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._errors, self._authenticate], client_max_size=0)
        router = app.router
        router.add_get("/ping", self._ping)
        router.add_get("/info", self._info)
        router.add_get("/stats", self._show_stats)
        router.add_post("/pub", self._pub)
        router.add_post("/mpub", self._mpub)
        router.add_post("/topic/create", self._create_topic)
        router.add_post("/topic/delete", self._delete_topic)
        router.add_post("/topic/empty", self._empty_topic)
        router.add_post("/topic/{verb:pause|unpause}", self._pause_topic)
        router.add_post("/channel/create", self._create_channel)
        router.add_post("/channel/delete", self._delete_channel)
        router.add_post("/channel/empty", self._empty_channel)
        router.add_post("/channel/{verb:pause|unpause}", self._pause_channel)
        router.add_get("/config/{option}", self._show_option)
        router.add_put("/config/{option}", self._set_option)
        router.add_post("/debug/freememory", self._free_memory)
        router.add_put("/debug/setblockrate", self._go_only)
        router.add_get("/debug/pprof{profile:(/.*)?}", self._go_only)
        router.add_post("/debug/pprof{profile:(/.*)?}", self._go_only)
        return app

    async def start(
        self,
        bound: Sequence[socket.socket],
        tls_bound: Sequence[socket.socket] = (),
        tls: Tls | None = None,
    ) -> None:
        """Listen on sockets that are bound; on `tls_bound` inside TLS."""
        self.addresses += await self._listener.start(bound)
        self.tls_addresses += await self._listener.start(tls_bound, tls)

    async def stop(self) -> None:
        """Let requests under way finish, for at most STOP_S, and close."""
        await self._listener.stop()

    # -- every request

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._guard.check(request)
            if self.tls_required and not request.secure:
                return self._tls_required()
            return await handler(request)
        except Refused as error:
            return self._refuse(request, error.status, str(error))
        except Turned as error:
            audit.request_turned_away(
                "NSQ", request.remote or "", request.method, request.path, str(error)
            )
            word = "FORBIDDEN" if error.status == FORBIDDEN else "MISDIRECTED_REQUEST"
            return self._refuse(request, error.status, f"{word}: {error}")
        except NotFound:  # it went between our look and our step
            return self._refuse(request, 404, "TOPIC_NOT_FOUND")
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

    def _access(self, request: web.Request) -> tuple[Access, bool] | None:
        """Return the request's access, and whether an administrator sent it; None: there is no
        access control. Raises Refused."""
        try:
            return self._doors.access_of(request.get(USER))
        except KeyError:
            raise Refused(401, "UNAUTHORIZED") from None

    def _allow(self, request: web.Request, check: Callable[[Access], None]) -> None:
        """Raises Refused 403 unless the check passes."""
        found = self._access(request)
        if found is None:
            return
        try:
            check(found[0])
        except AccessRefused as error:
            audit.request_refused(
                "NSQ", request.remote or "", found[0].user, request.method, request.path,
                str(error),
            )  # fmt: skip
            raise Refused(403, "FORBIDDEN") from None

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

    def _tls_required(self) -> web.Response:
        port = self.tls_addresses[0][1] if self.tls_addresses else 0
        body = f'{{"message": "TLS_REQUIRED", "https_port": {port}}}'
        headers = {"Content-Type": JSON, **VERSION_HEADER}
        return web.Response(text=body, status=403, headers=headers)

    async def _done(self) -> web.Response:
        """Answer once the request's change is on disk. Raises JournalFailed."""
        await self._node.durable()
        return answer()

    def _now(self) -> int:
        """Tell the engine the time before a command; return engine time."""
        self._node.tell_time()
        return self._node.broker.clock.now_ms

    # -- looking

    @property
    def _health(self) -> str:
        failed = self._node.failed
        return f"NOK - {failed.result()}" if failed.done() else "OK"

    async def _ping(self, request: web.Request) -> web.Response:
        """500 when the disk could not be written."""
        health = self._health
        return web.Response(
            text=health, status=200 if health == "OK" else 500, headers={"Content-Type": TEXT}
        )

    async def _info(self, request: web.Request) -> web.Response:
        limits, about = self._limits, self._lookupd.announced
        return answer(
            {
                "version": limits.version,
                "broadcast_address": about.broadcast_address,
                "hostname": about.hostname,
                "http_port": self.addresses[0][1] if self.addresses else 0,
                "tcp_port": self.tcp_addresses[0][1],
                "start_time": self._node.started_ms // 1000,
                "max_heartbeat_interval": limits.max_heartbeat_interval_ms * 1_000_000,
                "max_output_buffer_size": limits.max_output_buffer_size,
                "max_output_buffer_timeout": limits.max_output_buffer_timeout_ms * 1_000_000,
                "max_deflate_level": limits.max_deflate_level,
            }
        )

    async def _show_stats(self, request: web.Request) -> web.Response:
        self._allow(request, Access.check_entered)
        parameters = Parameters(request)
        with_clients = parameters.flag("include_clients", True)
        is_json = parameters.get("format") == "json"
        clients = self._clients()
        now, clock = self._now(), self._node.broker.clock
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
            version=self._limits.version,
            built=f"tallymark {__version__}, Python {platform.python_version()}",
            health=self._health,
            started_ms=clock.to_wall(self._node.started_ms),
            now_ms=clock.to_wall(now),
            memory=memory() if parameters.flag("include_mem", True) else None,
            producers=[one for one in clients if one.published] if with_clients else None,
        )
        return answer(report.as_json(topics) if is_json else report.as_text(texts))

    # -- publishing

    async def _pub(self, request: web.Request) -> web.Response:
        body = await _body(request, self._limits.max_msg_size, "MSG_TOO_BIG")
        if not body:
            raise Refused(400, "MSG_EMPTY")
        parameters = Parameters(request)
        topic = parameters.topic()
        delay_ms = self._delay(parameters)
        raw, cuts = make_cells([body])
        return await self._publish(request, topic, raw, cuts, delay_ms)

    def _delay(self, parameters: Parameters) -> int:
        text = parameters.get("defer")
        if text is None:
            return 0
        digits = text.removeprefix("+")
        if not (digits.isascii() and digits.isdigit()):
            raise Refused(400, "INVALID_DEFER")
        if len(digits) > 18 or int(digits) > self._limits.max_req_timeout_ms:
            raise Refused(400, "INVALID_DEFER")
        return int(digits)

    async def _mpub(self, request: web.Request) -> web.Response:
        """Publish all of the messages, or none [NQ-D5]."""
        most = self._limits.max_body_size
        if (request.content_length or 0) > most:
            raise Refused(413, "BODY_TOO_BIG")
        parameters = Parameters(request)
        topic = parameters.topic()
        binary = parameters.get("binary")
        body = await _body(request, most, "BODY_TOO_BIG")
        if binary is not None and BOOLS.get(binary, True):
            try:
                cuts = mpub_cuts(body, 0, len(body), self._limits)
            except WireError as error:
                raise Refused(413, error.code.removeprefix("E_")) from None
            return await self._publish(request, topic, body[4 : 4 + cuts[-1]], cuts, 0)
        lines = [line for line in body.split(b"\n") if line]
        if any(len(line) > self._limits.max_msg_size for line in lines):
            raise Refused(413, "MSG_TOO_BIG")
        raw, cuts = make_cells(lines)
        return await self._publish(request, topic, raw, cuts, 0)

    async def _publish(
        self, request: web.Request, topic: str, raw: bytes, cuts: array[int], delay_ms: int
    ) -> web.Response:
        """OK when the disk has it. Raises Refused: publishers are held back, or this one may
        not."""
        allowed = self._access(request)
        user = "" if allowed is None else allowed[0].user
        await self._node.pacer.turn(self._topics.vhost, user)
        self._allow(request, lambda access: self._topics.check_publish(access, topic))
        if self._node.alarms.active:
            alarms = ", ".join(sorted(self._node.alarms.active))
            log.info("publish.refused", topic=topic, alarms=alarms)
            raise Refused(503, "BLOCKED")
        now = self._now()
        published = self._node.broker.published
        if len(cuts) == 1:
            self._topics.topic(topic)  # as nsqd: no message is one use of a topic more
        else:
            self._topics.publish(topic, raw, cuts, CELL_HEAD, now, delay_ms)
        count = self._node.broker.published - published
        self._node.pacer.published_over_http(self._topics.vhost, user, count)
        await self._node.durable()
        return answer("OK")

    # -- topics and channels

    def _found_topic(self, name: str) -> Topic:
        found = self._topics.find(name)
        if found is None:
            raise Refused(404, "TOPIC_NOT_FOUND")
        return found

    def _found(self, request: web.Request) -> tuple[str, str]:
        """Names of the topic, which exists, and of the channel, which may not."""
        topic, channel = Parameters(request).topic_and_channel()
        self._found_topic(topic)
        self._now()
        return topic, channel

    def _managed_channel(self, request: web.Request, empties: bool = False) -> tuple[str, str]:
        """Names of both, which exist, and which the request may change."""
        topic, channel = self._found(request)
        if channel not in self._found_topic(topic).channels:
            raise Refused(404, "CHANNEL_NOT_FOUND")
        check = self._topics.check_manage
        self._allow(request, lambda access: check(access, topic, channel, empties))
        return topic, channel

    def _managed_topic(self, request: web.Request, empties: bool = False) -> str:
        """Return the name of a topic that exists and that the request may change; a malformed name
        is one that does not exist."""
        name = Parameters(request).need("topic")
        self._found_topic(name)
        self._now()
        check = self._topics.check_manage
        self._allow(request, lambda access: check(access, name, "", empties))
        return name

    async def _create_topic(self, request: web.Request) -> web.Response:
        name = Parameters(request).topic()
        self._now()
        self._allow(request, lambda access: self._topics.check_make(access, name, ""))
        self._topics.topic(name)
        return await self._done()

    async def _delete_topic(self, request: web.Request) -> web.Response:
        self._topics.delete_topic(self._managed_topic(request))
        return await self._done()

    async def _empty_topic(self, request: web.Request) -> web.Response:
        Parameters(request).topic()
        self._topics.empty_topic(self._managed_topic(request, empties=True))
        return await self._done()

    async def _pause_topic(self, request: web.Request) -> web.Response:
        pauses = request.match_info["verb"] == "pause"
        self._topics.pause_topic(self._managed_topic(request), pauses)
        return await self._done()

    async def _create_channel(self, request: web.Request) -> web.Response:
        topic, channel = self._found(request)
        self._allow(request, lambda access: self._topics.check_make(access, topic, channel))
        self._topics.channel(topic, channel)
        return await self._done()

    async def _delete_channel(self, request: web.Request) -> web.Response:
        self._topics.delete_channel(*self._managed_channel(request))
        return await self._done()

    async def _empty_channel(self, request: web.Request) -> web.Response:
        self._topics.empty_channel(*self._managed_channel(request, empties=True))
        return await self._done()

    async def _pause_channel(self, request: web.Request) -> web.Response:
        pauses = request.match_info["verb"] == "pause"
        self._topics.pause_channel(*self._managed_channel(request), pauses)
        return await self._done()

    # -- options

    async def _show_option(self, request: web.Request) -> web.Response:
        return self._option(request.match_info["option"])

    def _option(self, name: str) -> web.Response:
        found = options(self._node.config, self._limits, self._lookupd, self.tls_required_option)
        for key, addresses in (
            ("tcp_address", self.tcp_addresses), ("http_address", self.addresses),
            ("https_address", self.tls_addresses),
        ):  # fmt: skip
            found[key] = shown(addresses[0]) if addresses else ""
        if name not in found:
            raise Refused(400, "INVALID_OPTION")
        return answer(found[name])

    async def _set_option(self, request: web.Request) -> web.Response:
        """Set an option until the broker stops; the configuration does not change."""
        name = request.match_info["option"]
        self._allow_config(request)
        body = await _body(request, self._limits.max_msg_size, "INVALID_VALUE")
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
        found = self._access(request)
        user = "" if found is None else found[0].user
        audit.request_done("NSQ", request.remote or "", user, "PUT", request.path, 200)
        return self._option(name)

    def _allow_config(self, request: web.Request) -> None:
        """Raises Refused 403."""
        found = self._access(request)
        is_allowed = found is None or found[1]
        if not self._node.config.nsq_http_config or not is_allowed:
            raise Refused(403, "FORBIDDEN")

    async def _go_only(self, request: web.Request) -> web.Response:
        """Refuse profiles of Go's runtime: the paths are known, but Python has no such profiles."""
        raise Refused(501, "NOT_IMPLEMENTED")

    async def _free_memory(self, request: web.Request) -> web.Response:
        gc.collect()
        return answer()


async def _body(request: web.Request, most: int, code: str) -> bytes:
    """The request's body. Raises Refused 413 with this code when it is longer than `most`."""
    if (request.content_length or 0) > most:
        raise Refused(413, code)
    parts = []
    size = 0
    async for part in request.content.iter_any():
        size += len(part)
        if size > most:
            raise Refused(413, code)
        parts.append(part)
    return b"".join(parts)
