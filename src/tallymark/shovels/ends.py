"""Ends of a shovel: a source and a target, over whatever protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
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
class PartlyPut(ShovelFailed):
    """Some messages of a batch are safe at the target, and others were refused."""

    def __init__(self, text: str, put: Sequence[int], may_pass: bool) -> None:
        """put: places of the safe ones in the batch, ascending."""
        super().__init__(text, may_pass)
        self.put = put


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
    numbers: Sequence[int] = field(default=(), repr=False)
    """Number of each parcel, ascending: some of first..end-1 may be lost; empty: they have none."""

    def part(self, low: int, high: int) -> Batch:
        """Return the batch of these parcels of it, for a target."""
        parcels, numbers = self.parcels[low:high], self.numbers[low:high]
        if not numbers:
            return Batch(parcels)
        end = self.end if high == len(self.parcels) else self.numbers[high]
        return Batch(parcels, numbers[0], end, numbers=numbers)

    def again(self, put: Sequence[int], is_sure: bool) -> Batch:
        """Return what is to be put again of a batch without numbers: all but these places. is_sure:
        the target has none of it."""
        safe = set(put)
        left = [place for place in range(len(self.parcels)) if place not in safe]
        parcels = [self.parcels[place] for place in left]
        if not is_sure:
            parcels = [Parcel(parcel.message, True) for parcel in parcels]
        return Batch(parcels, held=[self.held[place] for place in left])


class Source(ABC):
    """The side that messages are taken from. Every call raises ShovelFailed."""

    origin: str = ""
    """Name of the numbers of its batches, of which there is one in the world; empty: they have
    none. Known once it is open."""
    is_numbered: bool = False
    """True if its batches have numbers."""

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
    async def settle_some(self, batch: Batch, put: Sequence[int]) -> None:
        """Settle the messages at these places of a batch, ascending, and no others of it: the
        target has them. Batches before it are safe at the target."""

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
        """Return when the target has all of it safely. Raises PartlyPut where it has some."""

    async def forget(self) -> None:
        """Remove what the broker remembers of the batches. Most remember nothing."""
        return

    @abstractmethod
    async def close(self) -> None:
        """Let go of the connection. Raises nothing."""
