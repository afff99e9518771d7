"""HTTP connections: counted with all others, and with an end to every wait for the client.

    nothing comes, or a header that does not end   http_header_timeout
    a body that stands still                       http_body_timeout
    one that drips                                 WHOLE_BODY times as long
    an answer that is not read                     http_answer_timeout
    nothing between two requests                   http_idle_timeout

aiohttp knows of these only the last. What a connection has received of a request, and what waits to
be read of an answer, counts as memory that connections take (server/buffers.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError, _ErrInfo

from tallymark.server.access.tls import Tls
from tallymark.server.cutting import cut
from tallymark.server.handshakes import Listener, listen_for
from tallymark.server.listening import address_of, address_text
from tallymark.server.logs import log_of
from tallymark.server.node import Node

WHOLE_BODY: Final = 15
STOP_S: Final = 1.0
"""Seconds for which requests under way may continue when the broker stops."""

FAULTS_OF_CLIENTS: Final = (ConnectionError, HttpProcessingError, RequestPayloadError)
"""Raised in a request's handler: its client has gone, or what it sent is no HTTP."""
MOST_OF_AN_ERROR: Final = 200
"""Letters of it in the log: it quotes what was sent."""

log = log_of("http")


class HttpLine(web.RequestHandler):
    """An HTTP connection."""

    __slots__ = (
        "_answer_s", "_began_s", "_body_bytes", "_body_s", "_clock", "_header_s", "_heard_s",
        "_idle_s", "_is_dropped", "_is_stuck", "_is_unreadable", "_line", "_node", "_timer",
        "_unsent", "input_weight", "peer", "weight",
    )  # fmt: skip

    def __init__(self, node: Node, manager: web.Server) -> None:
        config = node.config
        self._header_s = config.http_header_timeout / 1000
        self._body_s = config.http_body_timeout / 1000
        self._answer_s = config.http_answer_timeout / 1000
        self._idle_s = config.http_idle_timeout / 1000
        no_log: Any = None
        super().__init__(
            manager, loop=node.loop, access_log=no_log, keepalive_timeout=self._idle_s,
            auto_decompress=False,  # 64 kB may expand to 64 MiB, which no limit counts
        )  # fmt: skip
        self._node = node
        self._clock = node.loop.time
        self._timer: asyncio.TimerHandle | None = None
        self._began_s = 0.0
        """Start of the present wait: for a header, or of the request that is being answered."""
        self._heard_s = 0.0
        """Time of the last input."""
        self._body_bytes = 0
        """Received since the request that is under way began."""
        self._line: asyncio.Transport | None = None
        """Transport of the connection, also while aiohttp has released it and an answer is still
        being written."""
        self._is_dropped = False
        self._is_unreadable = False
        """True once something came that is no HTTP."""
        self._is_stuck = False
        """True while the socket takes no more of the answer."""
        self._unsent = 0
        """Bytes of the answer that waited when it was looked at last."""
        self.peer = ""
        self.weight = self.input_weight = 0

    # -- from the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        self.peer = address_text(peer) if peer else "unix"
        line = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        if not self._node.doors.enter(self, is_http=True):
            line.abort()
            return
        self._line = line
        super().connection_made(transport)
        self._node.buffers.enter(self)
        self._node.doors.may_go(self)
        self._began_s = self._heard_s = self._clock()
        self._watch(self._header_s)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._line is None:
            return
        self._line = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._node.doors.leave(self)
        self._node.buffers.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._line is None:
            return
        now = self._clock()
        if not self._is_busy:
            if not self._body_bytes:
                self._began_s = now
                self._watch(self._header_s)
            self._node.doors.must_stay(self)
        self._heard_s = now
        self._body_bytes += len(data)
        if self._is_unreadable:
            return
        super().data_received(data)
        self._forget_errors()
        if self._body_bytes > len(data):
            self._node.buffers.weigh(self)

    def _forget_errors(self) -> None:
        """Let go of what an error of the parser holds: its traceback and the read that caused it
        hold each other, 256 KiB each time. What comes behind an error is not parsed."""
        if self._messages:
            last = self._messages[-1][0]
            if isinstance(last, _ErrInfo):
                last.exc.with_traceback(None)
                self._is_unreadable = True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._is_stuck = True
        self._unsent = self.output_bytes()
        self._node.buffers.weigh(self)
        self._watch(self._answer_s)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_stuck = False
        self._node.buffers.weigh(self)

    # -- time

    @property
    def _is_busy(self) -> bool:
        """Return whether a request is being answered."""
        return self._current_request is not None or bool(self._messages)

    def _watch(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._node.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Check whether the client has met the present deadline, and set the timer for the next
        check."""
        self._timer = None
        if self._line is None:
            return
        reason, wait_s = self._awaited(self._clock())
        if reason:
            log.info("connection.dropped", peer=self.peer, reason=reason)
            self.drop()
        else:
            self._watch(wait_s)

    def _awaited(self, now: float) -> tuple[str, float]:
        """Return the reason to end the connection, or "" and the time of the next check."""
        if self._is_stuck:
            unsent = self.output_bytes()
            if unsent >= self._unsent:
                return f"took nothing of an answer for {self._answer_s:g} s", 0.0
            self._unsent = unsent
            return "", self._answer_s
        if self._current_request is not None:
            if self._current_request.content.is_eof() or self._reading_paused:
                return "", self._body_s
            if now >= self._heard_s + self._body_s:
                return f"a body stood still for {self._body_s:g} s", 0.0
            if now >= self._began_s + WHOLE_BODY * self._body_s:
                return f"a body was not complete after {WHOLE_BODY * self._body_s:g} s", 0.0
            return "", self._body_s
        if self._messages:
            return "", self._header_s
        if self._request_count and not self._body_bytes:
            return "", self._idle_s  # aiohttp closes it
        if now >= self._began_s + self._header_s:
            return f"no whole header within {self._header_s:g} s", 0.0
        return "", max(0.05, self._began_s + self._header_s - now)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._answered()

    def _answered(self) -> None:
        """Wait for the next request, unless it has already come."""
        self._body_bytes = 0
        self._began_s = self._clock()
        if not self._messages:
            self._node.doors.may_go(self)
        self._node.buffers.weigh(self)

    def log_exception(self, *args: Any, **given: Any) -> None:
        """Log a request that ended in an exception. Exceptions caused by clients, who can
        cause any number of them, take one line each."""
        error = given.get("exc_info")
        if not isinstance(error, BaseException):
            error = sys.exception()
        if isinstance(error, FAULTS_OF_CLIENTS):
            log.info("request.broken_off", peer=self.peer, error=str(error)[:MOST_OF_AN_ERROR])
            # The body's reader keeps the exception, and the traceback what was read of the body.
            error.with_traceback(None)
        else:
            log.error(
                "request.failed", peer=self.peer, error=repr(error),
                trace="".join(traceback.format_exception(error)),
            )  # fmt: skip

    # -- see buffers.py and doors.py

    def output_bytes(self) -> int:
        return 0 if self._line is None else self._line.get_write_buffer_size()

    def input_bytes(self) -> int:
        busy = self._current_request is not None and self._line is not None
        return 0 if not busy or self._is_dropped else self._body_bytes

    def limit_output(self) -> None:
        """Do nothing: an answer is written as far as the socket takes it, whatever is scarce."""

    def too_much(self, reason: str) -> None:
        self.drop()

    def drop(self) -> None:
        self._is_dropped = True
        if self._line is not None:
            cut(self._line)


class HttpListener:
    """The listeners of one HTTP interface."""

    def __init__(self, node: Node, app: web.Application) -> None:
        self._node = node
        self.app = app
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=STOP_S
        )
        self._listeners: list[Listener] = []

    async def start(
        self, bound: Sequence[socket.socket], tls: Tls | None = None
    ) -> list[tuple[str, int]]:
        """Listen on sockets that are bound; returns the addresses."""
        if self._runner.server is None:
            await self._runner.setup()
        manager = self._runner.server
        assert manager is not None
        header_s = self._node.config.http_header_timeout / 1000
        for one in bound:
            listener = await listen_for(
                self._node.loop, self._node.doors, lambda: HttpLine(self._node, manager), one, tls,
                header_s, is_http=True,
            )  # fmt: skip
            self._listeners.append(listener)
        return [address_of(one) for one in bound]

    async def stop(self) -> None:
        """Let a request under way finish, for at most STOP_S, and close."""
        for listener in self._listeners:
            listener.close()
        with contextlib.suppress(asyncio.CancelledError):
            await self._runner.cleanup()
