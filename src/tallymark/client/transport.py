"""A socket with the protocol's end of one connection: the only place where bytes move. And what
goes with the socket: requests that were not answered, and the attempts to connect again.

A `Line` writes once per turn of the event loop what the protocol has to send, passes on what was
read, and keeps the protocol's time. It lives as long as its socket; after that its owner may make
another: then sessions, senders and receivers are restored under their old names and with their old
settings, and the objects the application holds live on. What the broker has taken back with the old
connection is in docs/client.md.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast, final

from tallymark.client.adapter import Adapter, ConnectionOwner, ManagementPort
from tallymark.client.arguments import check_int, check_number, check_type
from tallymark.client.errors import ClientError, Closed, ConnectionLost, TimedOut
from tallymark.client.topology import QueueState, Request
from tallymark.client.turn import TIME_IS_UP, Turn, Waiter, answer_to, resolve
from tallymark.wire.line import MonotonicMs


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waiting times between attempts to connect: `initial_ms`, then `factor` times as long up to
    `max_ms`, less a random part of up to `jitter` of it, so that clients do not come back all at
    once."""

    initial_ms: int = 100
    factor: float = 2.0
    max_ms: int = 30_000
    jitter: float = 0.5
    """0: none, 1: anything between nothing and the whole delay."""
    attempts: int | None = None
    """Give up after so many; None: never."""

    def __post_init__(self) -> None:
        check_type("initial_ms", self.initial_ms, int, "a whole number")
        check_type("max_ms", self.max_ms, int, "a whole number")
        if self.initial_ms < 0 or self.max_ms < self.initial_ms:
            raise ValueError(
                f"delays from {self.initial_ms} to {self.max_ms} ms, expected 0 or more, ascending"
            )
        check_number("factor", self.factor, 1)
        check_number("jitter", self.jitter, 0, 1)
        if self.attempts is not None:
            check_int("attempts", self.attempts, 1)

    def delays_ms(self, draw: Callable[[], float]) -> Iterator[int]:
        """The delay before each attempt; `draw` gives numbers from 0 to 1."""
        base = float(self.initial_ms)
        done = 0
        while self.attempts is None or done < self.attempts:
            yield int(base * (1 - self.jitter * draw()))
            base = min(base * self.factor, float(self.max_ms))
            done += 1


@final
class Reconnector:
    """Attempts to connect until one succeeds, no further one may be made, or they are cancelled."""

    def __init__(
        self,
        backoff: Backoff,
        attempt: Callable[[], Awaitable[None]],
        waiting: Callable[[int, int, ClientError], None],
    ) -> None:
        """`attempt` raises Closed where it fails; `waiting(number, delay_ms, error)` is called
        before each."""
        self._backoff = backoff
        self._attempt = attempt
        self._waiting = waiting

    async def run(self, error: ClientError) -> ClientError | None:
        """Try to connect until an attempt succeeds, and return None. Return the last error if
        trying again cannot help, or if no attempts are left."""
        for number, delay_ms in enumerate(self._backoff.delays_ms(random.random), 1):
            self._waiting(number, delay_ms, error)
            await asyncio.sleep(delay_ms / 1000)
            try:
                await self._attempt()
            except Closed as failed:
                error = failed
                if not failed.may_retry:
                    return error
            else:
                return None
        return error


class LineOwner(ABC):
    """The connection, as its socket needs it."""

    @abstractmethod
    def may_send(self) -> None:
        """The socket takes more."""

    @abstractmethod
    def line_closed(self, line: Line, error: ClientError | None) -> None:
        """The socket is gone."""


@final
class Line(asyncio.Protocol, ConnectionOwner):
    """One connection to one broker, from the first byte to the last."""

    def __init__(
        self, owner: LineOwner, turn: Turn, make_adapter: Callable[[ConnectionOwner], Adapter]
    ) -> None:
        self._owner = owner
        self._turn = turn
        self.adapter = make_adapter(self)
        self.opening: Waiter = turn.loop.create_future()
        """Future that is done when sessions may begin, with the error if they never will."""
        self._ending: list[Waiter] = []
        self.error: ClientError | None = None
        """Reason why it was closed; None: it was not, or was closed as asked."""
        self.container_id = ""
        self.properties: Mapping[str, object] = {}
        self._management: ManagementPort | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = -1
        self._is_over = False

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods only
        self._turn.is_paused = False
        self._turn.write = self._write
        self.adapter.start(self._turn.now_ms())
        self._write()

    def data_received(self, data: bytes) -> None:
        self.adapter.receive(data, self._turn.now_ms())
        self._turn.request()

    def eof_received(self) -> bool:
        self.adapter.receive_end("", self._turn.now_ms())
        self._turn.request()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_over:
            self.adapter.receive_end("" if error is None else str(error), self._turn.now_ms())
        self._finish()

    def pause_writing(self) -> None:
        self._turn.is_paused = True

    def resume_writing(self) -> None:
        self._turn.is_paused = False
        self._owner.may_send()

    # Called by the adapter

    def opened(self, container_id: str, properties: Mapping[str, object]) -> None:
        self.container_id = container_id
        self.properties = properties
        resolve(self.opening, None)

    def closed(self, error: ClientError | None) -> None:
        self._is_over = True
        self.error = error
        resolve(self.opening, error or ConnectionLost("closed before it was open"))
        self._write()  # what is still to be sent
        if self._transport is not None:
            self._transport.close()
        self._finish()
        self._owner.line_closed(self, error)

    # Requests to declare and delete

    async def ask(self, request: Request, timeout_s: float) -> QueueState | None:
        """Have a request carried out. Return the queue that the answer describes, if it does.

        Raises RequestRefused, NotPossible, and, in doubt, TimedOut, and ConnectionClosed where the
        connection goes before the answer."""
        if self._management is None:
            self._management = self.adapter.manage()
        waiter: Waiter = self._turn.loop.create_future()
        self._management.ask(request, waiter)
        self._turn.request()
        answer = await answer_to(waiter, timeout_s)
        if answer is TIME_IS_UP:
            late = TimedOut(f"{request}: not answered in {timeout_s} s")
            late.in_doubt = True  # it is still the broker's to carry out
            raise late
        assert answer is None or isinstance(answer, QueueState), answer
        return answer

    def fail_requests(self, error: ClientError) -> None:
        """Fail all requests: the connection is gone."""
        if self._management is not None:
            self._management.lost(error)

    # Output and time

    def _write(self) -> None:
        transport = self._transport
        now_ms = self._turn.now_ms()
        output = self.adapter.take_output(now_ms)
        if output and transport is not None and not transport.is_closing():
            transport.write(output[0] if len(output) == 1 else b"".join(output))
        self._arm(now_ms)

    def _arm(self, now_ms: MonotonicMs) -> None:
        due_ms = self.adapter.next_deadline()
        if due_ms is None or self._is_over:
            self._disarm()
        elif self._timer is None or due_ms < self._timer_ms:
            self._disarm()
            self._timer_ms = due_ms
            delay = max(0, due_ms - now_ms) / 1000
            self._timer = self._turn.loop.call_later(delay, self._tick)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        """A deadline that has moved on is armed again here, not each time it moves."""
        self._timer = None
        now_ms = self._turn.now_ms()
        due_ms = self.adapter.next_deadline()
        if due_ms is not None and due_ms <= now_ms:
            self.adapter.tick(now_ms)
            self._turn.request()
        self._arm(now_ms)

    # The end

    async def ended(self, timeout: float) -> None:
        """Wait until it is over, or `timeout` seconds."""
        if not self._is_over:
            waiter: Waiter = self._turn.loop.create_future()
            self._ending.append(waiter)
            await answer_to(waiter, timeout)

    def abort(self) -> None:
        """Drop the socket without a close."""
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()
        self._finish()

    def _finish(self) -> None:
        self._is_over = True
        self._disarm()
        if self._turn.write == self._write:
            self._turn.write = None
        for waiter in self._ending:
            resolve(waiter, None)
        self._ending.clear()
