"""Connections: the way in. One object for the application, whatever becomes of the socket."""

from __future__ import annotations

import asyncio
import os
import platform
import ssl as tls
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Final, TypeAlias, final

import tallymark
from tallymark.client.adapter import Adapter, ConnectionOwner
from tallymark.client.amqp091.adapter import Amqp091
from tallymark.client.amqp10.adapter import Amqp10
from tallymark.client.arguments import (
    ANSWER_S,
    ConnectionOptions,
    Endpoint,
    Sasl,
    check_call,
    check_fields,
    check_text,
    check_timeout,
    check_type,
    listed,
    parse,
)
from tallymark.client.deliveries import State
from tallymark.client.dispatcher import Dispatcher
from tallymark.client.errors import (
    ClientError,
    Closed,
    ConnectFailed,
    ConnectionClosed,
    ConnectionLost,
    LinkClosed,
    NotPossible,
    RequestRefused,
    SessionClosed,
    TimedOut,
)
from tallymark.client.events import ConnectionChange, ConnectionChanged, EventCallback, Reporter
from tallymark.client.session import Session, SessionHost
from tallymark.client.topology import Bind, DeclareQueue, QueueState, Request
from tallymark.client.transport import Backoff, Line, LineOwner, Reconnector
from tallymark.client.turn import TIME_IS_UP, Closing, Opening, Turn, Waiter, answer_to, resolve

Opener: TypeAlias = Callable[
    [Endpoint, Callable[[], asyncio.Protocol]], Awaitable[tuple[object, asyncio.Protocol]]
]
"""Opener of transports: connects to the endpoint and attaches the protocol that the function
makes."""

TRACE_VARIABLE: Final = "TALLYMARK_TRACE"
RESOURCE_LOCKED: Final = "amqp:resource-locked"


class Life(Enum):
    CONNECTING = "connecting"
    OPEN = "open"
    RECONNECTING = "reconnecting"
    CLOSING = "closing"
    CLOSED = "closed"


@final
class Connection(Closing, SessionHost, LineOwner):
    """Made by `connect`. Closed with `close`, or by `async with`."""

    def __init__(
        self,
        options: ConnectionOptions,
        backoff: Backoff | None,
        reporter: Reporter,
        opener: Opener | None,
        trace: Callable[[str], None] | None,
    ) -> None:
        self._options = options
        self._backoff = backoff
        self._reporter = reporter
        self._opener = opener or self._open_socket
        self._trace = trace
        self._turn = Turn(asyncio.get_running_loop())
        self._life = Life.CONNECTING
        self._line: Line | None = None
        self._endpoint = options.endpoints[0]
        self._dispatchers: list[Dispatcher] = []
        self._error: ClientError | None = None
        self._waiting: list[Waiter] = []
        self._reconnecting: asyncio.Task[None] | None = None

    # Sessions

    def session(self) -> Opening[Session]:
        """Begin a session: `session = await connection.session()`, or
        `async with connection.session() as session:`.

        Raises NotPossible where the peer takes no more, SessionClosed where it refuses this one,
        TimedOut, ConnectionClosed. When it is cancelled or times out, no session remains.
        """
        return Opening(self._session)

    async def _session(self) -> Session:
        timeout_s = self._options.timeout_s
        await self.ready(timeout_s)
        self._dispatchers[:] = [d for d in self._dispatchers if d.state is not State.CLOSED]
        dispatcher = Dispatcher(self._turn, self._reporter, timeout_s)
        self._dispatchers.append(dispatcher)
        try:
            await self._begin(dispatcher)
        except BaseException:
            error = SessionClosed("it was never opened")
            error.was_asked_for = True
            dispatcher.begin_close(error)
            raise
        return Session(self, dispatcher, timeout_s)

    async def _begin(self, dispatcher: Dispatcher) -> None:
        line = self._line
        if line is None:
            raise (self._error or ConnectionLost("the connection is not there")).copied()
        timeout_s = self._options.timeout_s
        dispatcher.opening = self._turn.loop.create_future()
        port = line.adapter.begin(dispatcher)
        try:
            self._turn.request()
            if await answer_to(dispatcher.opening, timeout_s) is TIME_IS_UP:
                raise TimedOut(f"begin not answered in {timeout_s} s")
        except BaseException:
            port.close()
            self._turn.request()
            raise
        finally:
            dispatcher.opening = None

    async def ask(self, request: Request) -> QueueState | None:
        await self.ready(self._options.timeout_s)
        return await self._ask(request)

    async def _ask(self, request: Request) -> QueueState | None:
        line = self._line
        if line is None:
            raise (self._error or ConnectionLost("the connection is not there")).copied()
        return await line.ask(request, self._options.timeout_s)

    async def ready(self, timeout: float | None = None) -> None:
        """Wait until the connection is there: after a break, until it is restored. Raises
        ConnectionClosed once it is closed for good; TimedOut after `timeout` seconds."""
        check_timeout("timeout", timeout)
        while self._life is not Life.OPEN:
            if self._life is Life.CLOSED or self._life is Life.CLOSING:
                raise (self._error or _closed_by_us()).copied()
            waiter: Waiter = self._turn.loop.create_future()
            self._waiting.append(waiter)
            try:
                answer = await answer_to(waiter, timeout)
            finally:
                if waiter in self._waiting:  # `_wake` may have removed it already
                    self._waiting.remove(waiter)
            if answer is TIME_IS_UP:
                raise TimedOut(f"not connected to {self._endpoint} within {timeout} s")

    # Properties

    @property
    def endpoint(self) -> str:
        """The address in use, without user and password."""
        return str(self._endpoint)

    @property
    def container_id(self) -> str:
        """Name that the peer gave itself."""
        return "" if self._line is None else self._line.container_id

    @property
    def properties(self) -> Mapping[str, object]:
        """Properties with which the peer described itself (product, version, ...)."""
        return {} if self._line is None else self._line.properties

    @property
    def life(self) -> Life:
        return self._life

    @property
    def is_closed(self) -> bool:
        return self._life is Life.CLOSED or self._life is Life.CLOSING

    # Opening

    async def start(self) -> None:
        """Connect for the first time, for `connect`: each address is tried once."""
        try:
            self._line = await self._open_any()
        except BaseException:
            self._life = Life.CLOSED
            raise
        self._life = Life.OPEN
        self._report(ConnectionChange.OPENED)

    async def _open_any(self) -> Line:
        """Connect to the first address that answers, beginning with the last one used."""
        endpoints = self._options.endpoints
        start = endpoints.index(self._endpoint)
        error: Closed | None = None
        for endpoint in endpoints[start:] + endpoints[:start]:
            try:
                line = await self._open(endpoint)
            except Closed as failed:
                error = failed
            else:
                self._endpoint = endpoint
                return line
        assert error is not None
        raise error

    async def _open(self, endpoint: Endpoint) -> Line:
        made: list[Line] = []
        options = self._options

        def factory() -> Line:
            line = Line(
                self,
                self._turn,
                lambda owner: self._adapter(owner, endpoint),
            )
            made.append(line)
            return line

        try:
            async with asyncio.timeout(options.timeout_s):
                await self._opener(endpoint, factory)
                await answer_to(made[0].opening, None)
            if made[0].error is not None:  # opened and closed at once: it does not want us
                raise _as_failed(made[0].error)
        except BaseException as error:
            for line in made:
                line.abort()
            if isinstance(error, TimeoutError) and not isinstance(error, ClientError):
                text = f"{endpoint}: no answer within {options.timeout_s} s"
                raise ConnectFailed(text) from error
            if isinstance(error, Exception) and not isinstance(error, ClientError):
                raise ConnectFailed(f"{endpoint}: {str(error) or type(error).__name__}") from error
            raise
        return made[0]

    def _adapter(self, owner: ConnectionOwner, endpoint: Endpoint) -> Adapter:
        kind = Amqp091 if endpoint.is_091 else Amqp10
        return kind(owner, self._options, endpoint, _wall_ms, self._trace)

    async def _open_socket(
        self, endpoint: Endpoint, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[object, asyncio.Protocol]:
        context: tls.SSLContext | None = None
        if endpoint.is_tls:
            context = self._options.ssl or tls.create_default_context()
        return await self._turn.loop.create_connection(
            factory, endpoint.host, endpoint.port, ssl=context
        )

    # Called by the socket

    def may_send(self) -> None:
        for dispatcher in self._dispatchers:
            for producer in dispatcher.producers:
                producer.may_send()

    def line_closed(self, line: Line, error: ClientError | None) -> None:
        if line is not self._line:
            return  # of an attempt, which hears of it itself
        self._line = None
        line.fail_requests(error or ConnectionLost("closed", is_remote=True))
        if self._life is Life.CLOSING or self._life is Life.CLOSED:
            return
        error = error or ConnectionLost("closed", is_remote=True)
        if self._backoff is None or not error.may_retry:
            self._finish(error)
            return
        for dispatcher in self._dispatchers:
            dispatcher.suspend(error)
        if self._life is Life.OPEN:
            self._life = Life.RECONNECTING
            self._report(ConnectionChange.LOST, str(error))
            self._reconnecting = self._turn.loop.create_task(self._reconnect(error))

    # Reconnecting

    async def _reconnect(self, error: ClientError) -> None:
        assert self._backoff is not None
        failed = await Reconnector(self._backoff, self._restore, self._retrying).run(error)
        if failed is not None:
            self._finish(failed)
            return
        self._life = Life.OPEN
        self._report(ConnectionChange.RESTORED)
        self._wake()

    def _retrying(self, attempt: int, delay_ms: int, error: ClientError) -> None:
        self._report(ConnectionChange.RETRYING, str(error), attempt, delay_ms)

    async def _restore(self) -> None:
        """Connect once, and restore the sessions and their links: the links when all that any
        session declared is there again."""
        line = await self._open_any()
        self._line = line
        try:
            sessions = [d for d in self._dispatchers if d.state is not State.CLOSED]
            for dispatcher in sessions:
                await self._restore_session(dispatcher)
            for is_binding in (False, True):  # their ends may be another session's
                for dispatcher in sessions:
                    await self._declare_again(dispatcher, is_binding)
            for dispatcher in sessions:
                with suppress(SessionClosed):  # it went meanwhile, and all its links with it
                    await self._restore_links(dispatcher)
        except TimedOut as error:
            self._drop(line)
            raise ConnectFailed(f"{self._endpoint}: {error}") from error
        except BaseException:
            self._drop(line)
            raise
        if self._line is None:
            raise ConnectionLost("lost again while it was restored")

    def _drop(self, line: Line) -> None:
        if self._line is line:
            self._line = None
            line.fail_requests(ConnectionLost("dropped while it was restored"))
            line.abort()

    async def _restore_session(self, dispatcher: Dispatcher) -> None:
        """Begin the session again."""
        try:
            await self._begin(dispatcher)
        except (SessionClosed, NotPossible) as error:
            dispatcher.closed(error, True)

    async def _declare_again(self, dispatcher: Dispatcher, is_binding: bool) -> None:
        """Declare again the session's queues and exchanges, or its bindings. An exclusive queue is
        locked until the broker knows that the old connection is gone: then this attempt has failed.
        What it refuses otherwise is reported, and forgotten."""
        if dispatcher.state is State.CLOSED:
            return
        for declaration in dispatcher.topology:
            if isinstance(declaration, Bind) is not is_binding:
                continue
            try:
                await self._ask(declaration)
            except (TypeError, ValueError) as error:  # another protocol took its arguments
                dispatcher.topology.forget(declaration)
                dispatcher.report_loss(NotPossible(str(error)))
            except (RequestRefused, NotPossible) as error:
                is_ours = isinstance(declaration, DeclareQueue) and declaration.exclusive
                if is_ours and error.condition == RESOURCE_LOCKED:
                    raise ConnectFailed(f"{declaration}: {error}") from error
                dispatcher.topology.forget(declaration)
                dispatcher.report_loss(error)

    async def _restore_links(self, dispatcher: Dispatcher) -> None:
        """Attach the session's links again. Those that the peer no longer accepts are closed with
        its error; the others go on."""
        for link in (*dispatcher.consumers, *dispatcher.producers):
            if link.error is None and link.ending is None:
                try:
                    await link.attach()
                except (LinkClosed, NotPossible) as error:
                    link.detached(error)

    # The end

    async def close(self) -> None:
        """Close the connection: what was settled and sent before goes out first; senders, receivers
        and sessions are closed, see there. Does not wait for outcomes: sends that wait for one
        raise ConnectionClosed, in doubt.

        Never raises because of the peer: one that does not answer within the time-out is left. A
        cancelled call drops the socket at once. Does nothing the second time.
        """
        if self._life is Life.CLOSED:
            return
        line = self._line
        try:
            if self._life is not Life.CLOSING:
                self._life = Life.CLOSING
                await self._stop_reconnecting()
                line = self._line
                self._turn.finish()
                for dispatcher in self._dispatchers:
                    dispatcher.closed(_closed_by_us(), False)
                if line is not None:
                    line.fail_requests(_closed_by_us())
                    line.adapter.close()
                    self._turn.finish()
            if line is not None:
                await line.ended(self._options.timeout_s)
        finally:
            if line is not None:
                line.abort()
            self._finish(_closed_by_us())

    async def _stop_reconnecting(self) -> None:
        task = self._reconnecting
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    def _finish(self, error: ClientError) -> None:
        if self._life is Life.CLOSED:
            return
        self._life = Life.CLOSED
        self._error = error
        asked = isinstance(error, Closed) and error.was_asked_for
        for dispatcher in self._dispatchers:
            dispatcher.closed(error, not asked)
        self._report(ConnectionChange.CLOSED, "" if asked else str(error))
        self._wake()

    def _wake(self) -> None:
        waiting = self._waiting
        self._waiting = []
        for waiter in waiting:
            resolve(waiter, None)

    def _report(
        self, change: ConnectionChange, reason: str = "", attempt: int = 0, delay_ms: int = 0
    ) -> None:
        self._reporter.report(
            ConnectionChanged(change, str(self._endpoint), reason, attempt, delay_ms)
        )

    def __repr__(self) -> str:
        return f"<connection to {self._endpoint}, {self._life.value}>"


def connect(
    url: str | Sequence[str] = "amqp://localhost",
    *,
    sasl: Sasl | None = None,
    ssl: tls.SSLContext | None = None,
    timeout: float = ANSWER_S,
    reconnect: Backoff | bool | None = False,
    container_id: str | None = None,
    hostname: str | None = None,
    properties: Mapping[str, object] | None = None,
    idle_timeout_ms: int = 60_000,
    max_frame_size: int = 131_072,
    session_window: int = 5_000,
    max_message_size: int = 0,
    on_event: EventCallback | None = None,
    trace: Callable[[str], None] | None = None,
    opener: Opener | None = None,
) -> Opening[Connection]:
    """Connect to a broker: `connection = await connect("amqp://user:secret@host")`, or
    `async with connect(...) as connection:`.

    url: `amqp://` or `amqps://` (TLS), `user:password@host:port/vhost`; or several, tried in turn.
        `amqp091://` and `amqps091://`: over AMQP 0-9-1; what differs is in docs/client.md.
    sasl: "PLAIN" (where a user is given), "ANONYMOUS" (where none is), "EXTERNAL" (the certificate
        in `ssl` says who we are), "none" (no SASL layer at all).
    ssl: for amqps; None: the system's authorities, the host name is checked.
    timeout: seconds for connecting, and for each answer of the peer to an attach, a close, ...
    reconnect: what to do when the connection breaks: connect again (True: as `Backoff()` says),
        with all sessions, senders and receivers; see docs/client.md for what that cannot bring
        back. False: everything is closed with ConnectionLost. The first connection is tried once.
    container_id: our name; made up unless given.
    hostname: of the virtual host, where the peer has those and the url's way does not suit it.
    idle_timeout_ms: the peer shall send something at least this often; it is given twice that
        before the connection counts as lost. Ours is what the peer asks for. 0: for ever.
    max_frame_size: bytes of the largest frame we take.
    session_window: transfer frames that may come on a session before it is opened further.
    max_message_size: bytes of the largest message we take; 0: any.
    on_event: is called with events, see `tallymark.client.events`; logging has them too.
    trace: is called with a line per frame. With TALLYMARK_TRACE=frames in the environment and none
        given they go to standard error.
    opener: how a transport is made, for anything that is not a TCP socket.

    Raises ConnectFailed (LoginRefused), and ValueError for arguments that make no sense.
    """
    urls = [url] if isinstance(url, str) else listed("url", url, "text, or a list of texts")
    if not urls:
        raise ValueError("no url, expected at least one")
    if reconnect is not None:
        check_type("reconnect", reconnect, (bool, Backoff), "True, False or a Backoff")
    check_text("container_id", container_id, optional=True)
    check_fields("properties", properties)
    for name, call in (("on_event", on_event), ("trace", trace), ("opener", opener)):
        check_call(name, call, optional=True)
    endpoints = tuple(parse(one) for one in urls)
    options = ConnectionOptions(
        endpoints=endpoints,
        sasl=sasl,
        ssl=ssl,
        timeout_s=timeout,
        container_id=container_id or f"tallymark-{uuid.uuid4().hex[:12]}",
        hostname=hostname,
        properties=_about_us() | dict(properties or {}),
        idle_timeout_ms=idle_timeout_ms,
        max_frame_size=max_frame_size,
        session_window=session_window,
        max_message_size=max_message_size,
    )
    if ssl is not None and not any(endpoint.is_tls for endpoint in endpoints):
        raise ValueError(f"ssl for {endpoints[0]}, expected an amqps:// address")
    backoff = (Backoff() if reconnect else None) if isinstance(reconnect, bool) else reconnect

    async def open() -> Connection:
        traced = trace or _trace_by_environment()
        connection = Connection(options, backoff, Reporter(on_event), opener, traced)
        await connection.start()
        return connection

    return Opening(open)


def _about_us() -> dict[str, object]:
    return {
        "product": "tallymark-client",
        "version": tallymark.__version__,
        "platform": f"Python {platform.python_version()}",
    }


def _closed_by_us() -> ConnectionClosed:
    error = ConnectionClosed("closed by the application")
    error.was_asked_for = True
    return error


def _as_failed(error: ClientError) -> ConnectFailed:
    failed = ConnectFailed(
        error.text, condition=error.condition, info=error.info, is_remote=error.is_remote
    )
    failed.may_retry = error.may_retry
    return failed


def _wall_ms() -> int:
    return int(time.time() * 1000)


def _trace_by_environment() -> Callable[[str], None] | None:
    if "frames" not in os.environ.get(TRACE_VARIABLE, "").split(","):
        return None
    began = time.monotonic()

    def trace(line: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:9.4f} {line}\n")

    return trace
