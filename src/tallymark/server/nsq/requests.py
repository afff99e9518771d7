"""Requests at nsqd's HTTP interface: parameters, bodies, answers, permissions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web

from tallymark.bridge.nsq.topics import Topics
from tallymark.bridge.permissions import Access
from tallymark.engine.errors import (
    AccessRefused,
)
from tallymark.server.access import audit
from tallymark.server.access.tls import tls_required
from tallymark.server.access.user import User
from tallymark.server.node import Node
from tallymark.server.nsq.doors import NsqDoors
from tallymark.units import EngineMs
from tallymark.wire.nsq.limits import Limits
from tallymark.wire.nsq.names import is_name

CELL_HEAD: Final = 4
"""Bytes in front of the body in a cell that came by HTTP: its size."""
BOOLS: Final = {"true": True, "1": True, "false": False, "0": False}
JSON: Final = "application/json; charset=utf-8"
TEXT: Final = "text/plain; charset=utf-8"
VERSION_HEADER: Final = {"X-NSQ-Content-Type": "nsq; version=1.0"}
USER: Final = web.RequestKey("user", User)
"""Name of the user that logged in."""

_half_escape: Final = re.compile(r"%(?![0-9A-Fa-f]{2})").search


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
        if not is_name(name):
            raise Refused(400, code)
        return name

    def topic_and_channel(self) -> tuple[str, str]:
        topic = self.topic("INVALID_ARG_TOPIC")
        channel = self.need("channel")
        if not is_name(channel):
            raise Refused(400, "INVALID_ARG_CHANNEL")
        return topic, channel


async def body_of(request: web.Request, most: int, code: str) -> bytes:
    """Return the body. Raises Refused 413 with this code when it is longer than `most`."""
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


class NsqContext:
    """The broker as handlers of these requests see it."""

    def __init__(self, node: Node, topics: Topics, limits: Limits, doors: NsqDoors) -> None:
        self.node = node
        self.topics = topics
        self.limits = limits
        self.doors = doors
        self.tcp_addresses: list[tuple[str, int]] = []
        """Addresses of the NSQ protocol's listeners."""
        self.addresses: list[tuple[str, int]] = []
        """Addresses of the HTTP listeners without TLS."""
        self.tls_addresses: list[tuple[str, int]] = []
        self.tls_required = tls_required(node.config)
        """nsq_tls_required, as it is in effect."""

    def access(self, request: web.Request) -> tuple[Access, bool] | None:
        """Return the request's access, and whether an administrator sent it; None: there is no
        access control. Raises Refused."""
        try:
            return self.doors.access_of(request.get(USER))
        except KeyError:
            raise Refused(401, "UNAUTHORIZED") from None

    def allow(self, request: web.Request, check: Callable[[Access], None]) -> None:
        """Raises Refused 403 unless the check passes."""
        found = self.access(request)
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

    async def done(self) -> web.Response:
        """Answer once the request's change is on disk. Raises JournalFailed."""
        await self.node.durable()
        return answer()

    def now(self) -> EngineMs:
        """Tell the engine the time before a command; return engine time."""
        self.node.tell_time()
        return self.node.broker.clock.now_ms

    @property
    def health(self) -> str:
        """Return nsqd's word for whether the disk can be written."""
        failed = self.node.failed
        return f"NOK - {failed.result()}" if failed.done() else "OK"
