"""Output gate: holds back output of one connection until its records are on disk.

The answer to a durable declaration waits until its record is on disk. So does a message that a
consumer was given in advance, because a command examined its queue (`Dispatcher.look`), although
the queue's high-water mark on disk does not cover it yet. All later output of the connection waits
behind it, so that the order is kept. Without gates nothing is copied or queued.
"""

from __future__ import annotations

from collections import deque
from typing import final

from tallymark.bridge.bridge import Bridge, Waiter
from tallymark.engine.broker import Broker


@final
class Gate(Waiter):
    """A gate: output behind it waits for `waits` releases."""

    __slots__ = ("chunks", "waits")

    def __init__(self, owner: Bridge) -> None:
        super().__init__(owner)
        self.waits = 1
        self.chunks: list[bytes] = []


@final
class OutputGate:
    """Orders one connection's output around its gates."""

    __slots__ = ("_fresh", "_gates", "_open", "_owner")

    def __init__(self, owner: Bridge) -> None:
        """owner: bridge whose `said` gives the new output."""
        self._owner: Bridge | None = owner
        self._open: list[bytes] = []
        """Output from before the first gate."""
        self._gates: deque[Gate] = deque()
        self._fresh = False
        """True if the last gate was made since the last `take`."""

    @property
    def shut(self) -> bool:
        """True while some output waits for the disk."""
        return bool(self._gates)

    def held_bytes(self) -> int:
        """Return the bytes that wait behind gates. O(chunks)."""
        size = 0
        for gate in self._gates:
            for chunk in gate.chunks:
                size += len(chunk)
        return size

    def let_go(self) -> None:
        """Drop all gates because the connection is gone."""
        self._owner = None

    def shut_for(self, broker: Broker) -> None:
        """Hold back all output from now on until the records emitted so far are on disk."""
        if self._fresh:
            gate = self._gates[-1]
            gate.waits += 1
        else:
            owner = self._owner
            if owner is None:
                return
            self._settle(owner)
            gate = Gate(owner)
            self._gates.append(gate)
            self._fresh = True
        broker.await_durable(gate)

    def release(self, gate: Gate) -> None:
        """Count one release of a gate: what it waited for is on disk."""
        gate.waits -= 1

    def take(self) -> list[bytes]:
        """Return the output that may be written now, in order."""
        self._fresh = False
        owner = self._owner
        gates = self._gates
        if not gates:
            return [] if owner is None else owner.said()
        if owner is not None:
            self._settle(owner)
        while gates and gates[0].waits <= 0:
            self._open += gates.popleft().chunks
        chunks = self._open
        self._open = []
        return chunks

    def _settle(self, owner: Bridge) -> None:
        """Move the output written since the last gate behind it."""
        if self._gates:
            self._gates[-1].chunks += owner.said()
        else:
            self._open += owner.said()
