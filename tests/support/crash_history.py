"""What clients of a broker know about their messages, and what must follow for a broker that comes
back after kill -9.

A message is one number: producer << 48 | transient << 47 | sequence number of the producer. A
queue's history spans from one verification to the next; between two of them lies one crash.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

TRANSIENT = 1 << 47
SEQUENCE = TRANSIENT - 1


def number_of(producer: int, sequence: int, *, persistent: bool) -> int:
    """The message's number."""
    return producer << 48 | (0 if persistent else TRANSIENT) | sequence


def body_of(number: int, repeats: int) -> bytes:
    """A body of 8 * repeats bytes that shows any damage."""
    return number.to_bytes(8, "big") * repeats


def number_in(body: bytes) -> int:
    """The message's number; fails on a damaged body."""
    head = body[:8]
    assert body == head * (len(body) // 8), f"damaged body of {len(body)} bytes: {head.hex()}..."
    return int.from_bytes(head, "big")


class Arrival(NamedTuple):
    """A message as a consumer got it."""

    number: int
    redelivered: bool


@dataclass(slots=True)
class QueueHistory:
    """One queue with a single consumer at a time."""

    name: str
    published: set[int] = field(default_factory=set)
    required: set[int] = field(default_factory=set)
    """Persistent and confirmed."""
    received: dict[int, int] = field(default_factory=dict)
    """Number -> rank of its first arrival."""
    settled: set[int] = field(default_factory=set)
    """A settlement was sent; it may have been lost on the way."""
    certain: set[int] = field(default_factory=set)
    """Settled, and a later publish on the same connection was confirmed."""
    last_first_arrival: dict[int, int] = field(default_factory=dict)
    """Producer -> sequence number of its message that arrived first last."""

    def arrived(self, arrival: Arrival) -> None:
        """Note a delivery while the load runs; fails when it may not be."""
        number, redelivered = arrival
        assert number in self.published, f"{self.name}: nobody published {number:x}"
        assert number not in self.settled, f"{self.name}: {number:x} came after it was settled"
        if number in self.received:
            assert redelivered, f"{self.name}: {number:x} came again without the flag"
            return
        producer, sequence = number >> 48, number & SEQUENCE
        last = self.last_first_arrival.get(producer, -1)
        assert sequence > last, f"{self.name}: {number:x} came after {last:x} of its producer"
        self.last_first_arrival[producer] = sequence
        self.received[number] = len(self.received)

    def check_after_crash(self, found: list[Arrival]) -> None:
        """`found` is all the queue holds now, in its order; fails where it breaks a promise."""
        numbers = [arrival.number for arrival in found]
        present = set(numbers)
        self._none(duplicates(numbers), "came twice")
        self._none(present - self.published, "were never published")
        self._none(self.required - self.settled - present, "were confirmed and are lost")
        self._none(self.certain & present, "came back although their settlement was certain")
        bare = {arrival.number for arrival in found if not arrival.redelivered}
        self._none(bare & self.received.keys(), "were received before and came without the flag")
        self._check_order(numbers)

    def _check_order(self, numbers: list[int]) -> None:
        last: dict[int, int] = {}
        for number in numbers:
            producer, sequence = number >> 48, number & SEQUENCE
            assert sequence > last.get(producer, -1), f"{self.name}: {number:x} is out of order"
            last[producer] = sequence
        unseen = len(self.received)
        ranks = [self.received.get(number, unseen) for number in numbers]
        assert ranks == sorted(ranks), f"{self.name}: not in the order of their first arrival"

    def _none(self, numbers: Iterable[int], what: str) -> None:
        named = sorted(numbers)
        sample = ", ".join(f"{number:x}" for number in named[:5])
        assert not named, f"{self.name}: {len(named)} messages {what}: {sample}"

    def begin_empty(self) -> None:
        """Everything that was found has been settled for certain."""
        self.begin_with([])

    def begin_with(self, found: list[Arrival]) -> None:
        """What was found stays in the queue, seen by a consumer and not settled."""
        numbers = [arrival.number for arrival in found]
        self.published = set(numbers)
        self.required = {number for number in numbers if not number & TRANSIENT}
        self.received = {number: rank for rank, number in enumerate(numbers)}
        self.settled.clear()
        self.certain.clear()
        self.last_first_arrival = {number >> 48: number & SEQUENCE for number in numbers}


def duplicates(numbers: list[int]) -> set[int]:
    """Those that are in the list more than once."""
    seen: set[int] = set()
    return {number for number in numbers if number in seen or seen.add(number)}


def check_account(row: dict[str, object], ready: int) -> None:
    """A queue's row of /api/tallymark/queues balances and counts what is ready."""
    dropped = row["dropped"]
    assert isinstance(dropped, dict)
    left = [row[key] for key in ("ready", "acquired", "deferred", "staged", "settled")]
    left += [row["dead_letter_pending"], row["dead_lettered"], *dropped.values()]
    assert row["entered"] == sum(left), f"the account does not balance: {row}"  # type: ignore[arg-type]
    assert (row["ready"], row["acquired"]) == (ready, 0), f"expected {ready} ready: {row}"
