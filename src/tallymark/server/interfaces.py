"""Interfaces: what a turn uses of its node, so that it knows neither clients nor housekeeping.

Classes and no Protocols where a call is on the way of a message: what is compiled calls a method of
a Protocol by its name.
"""

from __future__ import annotations

from typing import Protocol

from tallymark.bridge.bridge import Bridge
from tallymark.engine.effects import Deliver
from tallymark.engine.queue import Queue
from tallymark.engine.record import Record
from tallymark.engine.session import Connection
from tallymark.units import EngineMs, Position


class Served:
    """The connected clients, as a turn uses them."""

    def give_room(self, connections: list[Connection]) -> None:
        """Set how much a client may be sent in this turn."""
        raise NotImplementedError

    def flush_soon(self, bridge: Bridge) -> None:
        """Flush the bridge's client in this turn: it has output."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write the output of all clients that have some, or were read."""
        raise NotImplementedError

    def hold_for(self, bridge: Bridge, queue: Queue, held: bool) -> None:
        """Hold a publisher back for the sake of a queue, or no more."""
        raise NotImplementedError

    def broken(self, bridge: Bridge, error: Exception) -> bool:
        """Drop the client of a bridge after an exception; False: it is gone already."""
        raise NotImplementedError

    def drop_all(self) -> None:
        """Close every socket now."""
        raise NotImplementedError


class Upkeep:
    """The housekeeping, as a turn uses it."""

    wants_checkpoint: bool
    wants_anchor: bool

    def committed(self, position: Position, now: EngineMs) -> None:
        """A block was handed to the journal, which now ends at `position`; now: engine time."""
        raise NotImplementedError

    def after_turn(self) -> None:
        """The effects of a turn were carried out."""
        raise NotImplementedError


class Tracer(Protocol):
    """The traces of messages, as a turn tells of them."""

    def delivered(self, effect: Deliver) -> None:
        """Messages are handed to a consumer."""

    def committed(self, rows: list[Record], position: Position) -> None:
        """A block was handed to the journal, which now ends at `position`."""

    def synced(self, position: Position) -> None:
        """The journal is on disk up to `position`."""
