"""Deliveries that wait for the disk, of one queue: the high-water mark, which marks.py sets and
explains, and messages that are not delivered before they are on disk themselves."""

from __future__ import annotations

from typing import final

from tallymark.engine.settings import UNLIMITED


@final
class HighWater:
    """The mark of one queue, and what decides how far ahead of deliveries the next one is."""

    __slots__ = (
        "asked", "budget", "burst", "durable", "is_ahead", "is_capped", "mark", "reached",
        "renew_at", "reserve", "returns", "stalled", "turn", "was_reached",
    )  # fmt: skip

    def __init__(self, durable: int) -> None:
        self.mark = 0
        """The mark that was sent to the journal: sequences below it may have been delivered."""
        self.durable = durable
        """The mark that is known to be on disk. No sequence at or above it is delivered. For a
        stream: all messages below it are on disk, and readers may see them."""
        self.reserve = 0
        """Distance by which the next mark runs ahead of deliveries, in messages."""
        self.reached = 0
        """First sequence that was neither delivered nor due for delivery since the broker
        started."""
        self.burst = 0
        """Count of the sequences delivered in turn `turn`, the last turn that delivered any."""
        self.turn = 0
        self.stalled = False
        """True if a delivery had to wait for the present mark to reach the disk."""
        self.renew_at = 0
        """Sequence above which a delivery asks for the next mark."""
        self.asked = 0
        """Turn in which a mark was asked for last."""
        self.is_capped = False
        """True if the last mark was set where credit ends, and not by pace."""
        self.budget = UNLIMITED
        """Number of messages that were taken, or could be with the credit there was, when a mark
        was asked for last. UNLIMITED: any number."""
        self.returns = 0
        """Credit that is expected to come back while a mark is in effect, in messages."""
        self.is_ahead = False
        """True if the mark may be ahead of what was delivered."""
        self.was_reached = 0
        """Value of `reached` when that was examined last."""

    def settle_at(self, mark: int) -> None:
        """Set the mark to one that is on disk, or that limits deliveries from now on."""
        self.mark = self.durable = self.renew_at = mark


@final
class DiskHold:
    """Messages that are not delivered before they, or the records of their return, are on disk."""

    __slots__ = ("is_held", "returning", "shown", "turns")

    def __init__(self) -> None:
        self.shown = UNLIMITED
        """First sequence that is not delivered before it is on disk; UNLIMITED: no sequence
        waits."""
        self.returning: dict[int, object] = {}
        """Sequences of messages that were given back, and are not delivered before that is on disk;
        with the last wait for it of each."""
        self.turns = 0
        """Count of the turns whose messages wait, including the present turn."""
        self.is_held = False
        """True if messages that wait entered in the present turn."""

    def before_returns(self, first: int, n: int) -> int:
        """Return how many of the n sequences from `first` on come before one that is returning."""
        for at in range(n):
            if first + at in self.returning:
                return at
        return n
