"""Output hold: AMQP 1.0 output that may not leave before the disk has its records.

Somebody looked at a queue, and a message that its mark does not cover yet was given to a link first
(`Dispatcher.look`): its transfer, and whatever the connection says after it, waits. Hardly ever.
"""

from __future__ import annotations

from typing import final

from tallymark.bridge.amqp10_client import Delayed
from tallymark.bridge.bridge import Bridge
from tallymark.engine.broker import Broker
from tallymark.wire.amqp10.connection import Connection


@final
class OutputHold:
    """Orders one connection's output around held deliveries. Without any, nothing is copied."""

    __slots__ = ("_before", "_behind", "_waits", "_wire")

    def __init__(self, wire: Connection) -> None:
        self._wire = wire
        self._before: list[bytes] = []
        """Output from before the first hold."""
        self._behind: list[bytes] = []
        self._waits = 0

    @property
    def shut(self) -> bool:
        """Return whether some output waits for the disk."""
        return self._waits > 0

    def held_bytes(self) -> int:
        """Return the bytes that wait. O(chunks)."""
        size = 0
        for chunk in self._behind:
            size += len(chunk)
        return size

    def hold(self, broker: Broker, owner: Bridge, now_ms: int) -> None:
        """Hold the owner's output from now on until all records emitted so far are on disk."""
        if not self._waits:
            self._before += self._behind
            self._behind = []
            self._before += self._wire.take_output(now_ms)
        self._waits += 1
        broker.await_durable(Held(owner, self))

    def release(self) -> None:
        """End one wait. The disk reports waits in order, so that earlier ones have ended."""
        self._waits -= 1

    def take(self, now_ms: int) -> list[bytes]:
        """Return the output that may be written now, in order."""
        if not (self._waits or self._before or self._behind):
            return self._wire.take_output(now_ms)
        self._behind += self._wire.take_output(now_ms)
        chunks, self._before = self._before, []
        if not self._waits:
            chunks += self._behind
            self._behind = []
        return chunks


@final
class Held(Delayed):
    """A wait of held output, which leaves with the next `take` after it."""

    __slots__ = ("_hold",)

    def __init__(self, owner: Bridge, hold: OutputHold) -> None:
        super().__init__(owner)
        self._hold = hold

    def say(self) -> None:
        self._hold.release()
