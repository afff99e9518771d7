"""Ends of a shovel: a source and a target, over whatever protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, final

from tallymark.shovels.parcel import Parcel


class ShovelFailed(Exception):
    """A side could not be opened, read or written; the text says which, and why."""

    def __init__(self, text: str, may_pass: bool = True) -> None:
        super().__init__(text)
        self.may_pass = may_pass
        """True if trying again can help."""


@final
@dataclass(slots=True)
class Batch:
    """Messages that were taken together."""

    parcels: list[Parcel]
    first: int = 0
    end: int = 0
    """Numbers first..end-1 are theirs, and nobody else's, whenever they are taken; 0 and 0: they
    have none."""
    held: Any = field(default=None, repr=False)
    """Handle by which the source settles them."""


class Source(ABC):
    """The side that messages are taken from. Every call raises ShovelFailed."""

    origin: str = ""
    """Name of the numbers of its batches, of which there is one in the world; empty: they have
    none. Known once it is open."""

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def take(self, most: int) -> Batch | None:
        """Return up to `most` messages, or None where none came for a while. A call that is
        cancelled has taken nothing that is not given back by `close`."""

    @abstractmethod
    async def settle(self, batch: Batch) -> None:
        """Settle the oldest batch that is not settled."""

    @abstractmethod
    async def begin(self, known: int | None) -> None:
        """Begin behind what has numbers below `known`: the target has it, so that it is settled
        first. None: the target remembers nothing."""

    async def forget(self) -> None:
        """Remove what the broker keeps for this source beside its queue: all is moved. Most keep
        nothing."""
        return

    @abstractmethod
    async def close(self) -> None:
        """Let go of all that is not settled, and of the connection. Raises nothing."""


class Target(ABC):
    """The side that messages are put to. Every call raises ShovelFailed."""

    @abstractmethod
    async def open(self, origin: str) -> int | None:
        """Open, for batches with numbers of this origin. Return the number behind the last one that
        it has, 0 if it has none; None: it remembers nothing, and a batch has its effect each
        time."""

    @abstractmethod
    async def put(self, batch: Batch) -> None:
        """Return when the target has all of it safely."""

    async def forget(self) -> None:
        """Remove what the broker remembers of the batches. Most remember nothing."""
        return

    @abstractmethod
    async def close(self) -> None:
        """Let go of the connection. Raises nothing."""
