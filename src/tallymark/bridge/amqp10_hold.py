"""Output of AMQP 1.0 that may not leave before the disk says so.

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
    """Orders one connection's output around what waits. Without it nothing is copied."""

    __slots__ = ("_before", "_behind", "_waits", "_wire")

    def __init__(self, wire: Connection) -> None:
        self._wire = wire
        self._before: list[bytes] = []
        """What was said before anything waited."""
        self._behind: list[bytes] = []
        self._waits = 0

    @property
    def shut(self) -> bool:
        """Whether some output waits for the disk."""
        return self._waits > 0

    def held_bytes(self) -> int:
        """Bytes that wait. O(what waits)."""
        size = 0
        for chunk in self._behind:
            size += len(chunk)
        return size

    def hold(self, broker: Broker, owner: Bridge, now_ms: int) -> None:
        """What `owner` says from now on waits until all records emitted so far are on disk."""
        if not self._waits:
            self._before += self._behind
            self._behind = []
            self._before += self._wire.take_output(now_ms)
        self._waits += 1
        broker.await_durable(Held(owner, self))

    def release(self) -> None:
        """The disk has what one of the waits is for; those before it were told of earlier."""
        self._waits -= 1

    def take(self, now_ms: int) -> list[bytes]:
        """What may be written now, in order."""
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
    """Output that waits: it leaves with the next `take`."""

    __slots__ = ("_hold",)

    def __init__(self, owner: Bridge, hold: OutputHold) -> None:
        super().__init__(owner)
        self._hold = hold

    def say(self) -> None:
        self._hold.release()
