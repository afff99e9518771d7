"""The account of a ledger: one equation a queue, and everything that breaks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

STILL_THERE: Final = (
    "ready", "acquired", "deferred", "staged", "dead_letter_pending", "quarantined",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Claim:
    """Counters that the broker gives for one queue at one journal position."""

    id: int
    vhost: str
    name: str
    counters: Mapping[str, Any]

    def count(self, name: str) -> int:
        return int(self.counters.get(name, 0))

    def dropped(self) -> dict[str, int]:
        return {str(k): int(v) for k, v in dict(self.counters.get("dropped", {})).items()}


@dataclass(frozen=True, slots=True)
class Fault:
    """Sequences first..last of a queue that do not balance, and how."""

    queue: str
    first: int
    last: int
    fault: str
    vhost: str = ""
    message_id: int | None = None
    """The broker's id of the first of them, where the ledger has it."""


@dataclass(frozen=True, slots=True)
class Account:
    """The account of one queue: the ledger's counts and the broker's claim."""

    queue: str
    vhost: str
    entered: int
    still_there: dict[str, int]
    settled: int
    dead_lettered: int
    dropped: dict[str, int]
    difference: int
    before_ledger: int = 0
    """Sequences from before the oldest stored ledger row: not part of the equation."""
    from_ledger: bool = True
    """False for queues that are not durable: their account is the broker's own."""


@dataclass(frozen=True, slots=True)
class Letters:
    """Dead letters that went from one queue to another."""

    source: str
    target: str
    count: int


@dataclass(frozen=True, slots=True)
class Returned:
    """Deliveries that returned to their queue: settled so by the client (client, release), by its
    disconnection (close, loss), or after a time-out (timeout)."""

    queue: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Beyond:
    """Extent of the journal behind the checkpoint, which the account does not cover."""

    blocks: int
    until: str
    """Time of the last event, in ISO 8601."""


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The outcome for all queues up to one journal position."""

    position: int
    accounts: list[Account]
    faults: list[Fault] = field(default_factory=list)
    letters: list[Letters] = field(default_factory=list)
    """Dead letters by source and target, as far as the ledger goes back; a message with two targets
    counts in both."""
    returned: list[Returned] = field(default_factory=list)
    """Returned deliveries by reason, as far as the ledger goes back; a message that came back twice
    counts twice."""
    source: str = ""
    """Source of the claims: "checkpoint", or the address of the broker that was asked."""
    as_of: str = ""
    """Time of the claims, in ISO 8601."""
    beyond: Beyond | None = None
    hours: list[Hour] = field(default_factory=list)
    """The account of each queue and hour, where it was asked for."""

    @property
    def balanced(self) -> bool:
        accounts: list[Account | Hour] = [*self.accounts, *self.hours]
        return not self.faults and all(account.difference == 0 for account in accounts)


@dataclass(frozen=True, slots=True)
class Hour:
    """Account of the messages that entered a queue within an hour."""

    queue: str
    vhost: str
    hour: str
    """Beginning of the hour in ISO 8601; "" for messages that never entered."""
    entered: int
    there: int
    """Number of these still in the queue at the end of the ledger: ready, acquired, deferred,
    staged or pending."""
    settled: int
    dead_lettered: int
    dropped: dict[str, int]
    difference: int
    faults: int
    """Messages that break the account, whether or not they even out."""
