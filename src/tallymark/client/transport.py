"""A socket and the protocol's end of one connection: the only place where bytes move.

It writes once per turn of the event loop what the protocol has to say, passes on what was read, and
keeps the protocol's time. It lives as long as its socket; after that its owner may make another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast, final

from tallymark.client.adapter import Adapter, Peer
from tallymark.client.errors import ClientError, ConnectionLost
from tallymark.client.turn import Turn
from tallymark.client.waiting import Waiter, answer_to, resolve

if TYPE_CHECKING:
    from tallymark.client.connection import Connection


@final
class Line(asyncio.Protocol, Peer):
    """One connection to one broker, from the first byte to the last."""

    def __init__(
        self, owner: Connection, turn: Turn, make_adapter: Callable[[Peer], Adapter]
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

    # Peer

    def opened(self, container_id: str, properties: Mapping[str, object]) -> None:
        self.container_id = container_id
        self.properties = properties
        resolve(self.opening, None)

    def closed(self, error: ClientError | None) -> None:
        self._is_over = True
        self.error = error
        resolve(self.opening, error or ConnectionLost("closed before it was open"))
        self._write()  # the last words
        if self._transport is not None:
            self._transport.close()
        self._finish()
        self._owner.line_closed(self, error)

    # Output and time

    def _write(self) -> None:
        transport = self._transport
        now_ms = self._turn.now_ms()
        output = self.adapter.take_output(now_ms)
        if output and transport is not None and not transport.is_closing():
            transport.write(output[0] if len(output) == 1 else b"".join(output))
        self._arm(now_ms)

    def _arm(self, now_ms: int) -> None:
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
        """Drop the socket, without a word."""
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
