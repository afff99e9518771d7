"""Fates: when each message entered a queue, when it ended there, and how.

They are made of rows of the ledger, of those that a broker wrote as of those that the engine emits
when it is run again: so the two can be compared message by message.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

from tallymark.stored import records

QueueName = tuple[str, str, int]
"""Virtual host, name, and how often a queue of that name was declared before."""

THERE: Final = 0
"""Fate of a message that is still in its queue."""
ENDS: Final = (records.SETTLED, records.DEAD_LETTERED, records.DROPPED)
"""Kinds of rows by which a message ends in its queue."""
_REASONS: Final = 64
"""More than there are reasons of one kind."""


def fate_of(kind: int, reason: int) -> int:
    """Return the number of a fate, above 0."""
    return (ENDS.index(kind) + 1) * _REASONS + reason


def describe(fate: int) -> str:
    """Return the words for a fate: settled, dead-lettered (expired), dropped (maxlen), ..."""
    if fate == THERE:
        return "there"
    kind = ENDS[fate // _REASONS - 1]
    reason = records.REASONS[kind].get(fate % _REASONS, str(fate % _REASONS))
    if kind == records.SETTLED:
        return "settled"
    return f"{'dead-lettered' if kind == records.DEAD_LETTERED else 'dropped'} ({reason})"


@dataclass(slots=True)
class Fates:
    """The messages of one queue by sequence, in columns."""

    name: QueueName
    base: int = 1
    """Sequence of the first message."""
    ids: array[int] = field(default_factory=lambda: array("q"))
    """Broker-wide message ids."""
    entered_ms: array[int] = field(default_factory=lambda: array("q"))
    ended_ms: array[int] = field(default_factory=lambda: array("q"))
    """-1: still there."""
    fate: bytearray = field(default_factory=bytearray)
    size: array[int] = field(default_factory=lambda: array("I"))
    """Bytes, framing included; 0 where they are not stored."""
    again_ms: array[int] = field(default_factory=lambda: array("q"))
    """Time of each delivery that was not a message's first."""
    refused_ms: array[int] = field(default_factory=lambda: array("q"))
    """Time at which each message came that had no room, and was refused. The ledger has none."""

    def enter(self, first: int, count: int, time_ms: int, first_id: int, sizes: array[int]) -> None:
        """Add messages. Sequences that are missing before them entered elsewhere (never)."""
        if not self.ids:
            self.base = first
        assert first == self.base + len(self.ids), (self.name, first, self.base + len(self.ids))
        self.ids.extend(range(first_id, first_id + count))
        self.entered_ms.extend(array("q", (time_ms,)) * count)
        self.ended_ms.extend(array("q", (-1,)) * count)
        self.fate.extend(bytes(count))
        self.size.extend(sizes)

    def end(self, first: int, count: int, time_ms: int, fate: int) -> None:
        """Note the end of messages."""
        at = first - self.base
        if count == 1:
            self.ended_ms[at] = time_ms
            self.fate[at] = fate
        else:
            self.ended_ms[at : at + count] = array("q", (time_ms,)) * count
            self.fate[at : at + count] = bytes((fate,)) * count

    def since(self, at_ms: int) -> Fates:
        """Return the messages that were there at a time, or entered later."""
        refused_ms = array("q", [at for at in self.refused_ms if at >= at_ms])
        if not self.ids or self.entered_ms[0] >= at_ms:
            alike = len(refused_ms) == len(self.refused_ms)
            return self if alike else replace(self, refused_ms=refused_ms)
        kept = [
            i
            for i, (came, went) in enumerate(zip(self.entered_ms, self.ended_ms, strict=True))
            if came >= at_ms or went < 0 or went >= at_ms
        ]
        found = Fates(self.name, self.base)
        for name in ("ids", "entered_ms", "ended_ms", "size"):
            column = getattr(self, name)
            setattr(found, name, array(column.typecode, [column[i] for i in kept]))
        found.fate = bytearray(self.fate[i] for i in kept)
        found.refused_ms = refused_ms
        found.again_ms = array("q", [at for at in self.again_ms if at >= at_ms])
        return found

    def account(self) -> dict[str, int]:
        """Return counts of messages: entered, there, and each way of ending. Fates with the same
        words count together: a message is settled, whoever settled it."""
        found = Counter(entered=len(self.ids))
        for fate in sorted(set(self.fate)):
            found[describe(fate)] += self.fate.count(fate)
        return dict(found)
