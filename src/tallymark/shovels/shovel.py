"""The state machine of a shovel: what to do next, from what has happened. It does no I/O.

A shovel takes batches from its source, puts them to its target, and settles them at the source when
the target has them safely. Batches are put in the order in which they were taken, and settled in
that order: one step of each kind is under way at a time.

    source --take--> taken --put--> safe at the target --settle--> gone from the source

    NEW --> OPENING --> MOVING --> CLOSING --> WAITING --> OPENING ...
                         |  ^         |
                         v  |         +------> ENDED
                        WAITING

A target that fails is opened anew while the source holds what was taken: a broker that takes
messages back counts that, and ends those that came back too often.

Nothing is settled that the target does not have. Where it takes a part of a batch and refuses the
rest, that part is settled before the failure is told. Whatever fails, both sides are closed: the
source takes back what is not settled, and hands it out again. So nothing is lost; what was put and
not settled comes a second time, and the source says so (it is redelivered). A source that hands out
the same messages under the same numbers again, with a target that remembers these numbers, makes
that a step without effect (tallymark.py).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Final, final

FIRST_PAUSE_MS: Final = 200
LONGEST_PAUSE_MS: Final = 30_000
BATCH: Final = 200


class Phase(Enum):
    NEW = "new"
    OPENING = "starting"
    MOVING = "running"
    CLOSING = "closing"
    WAITING = "waiting"
    ENDED = "ended"


class Act(Enum):
    """A step that somebody carries out, and answers by the call in parentheses; each but END may
    be answered by `failed` instead."""

    OPEN = "open"
    """Open source and target (opened)."""
    TAKE = "take"
    """Take up to `number` messages from the source (took)."""
    PUT = "put"
    """Put the oldest batch that was taken and not put (was_put)."""
    SETTLE = "settle"
    """Settle the oldest batch that was put and not settled (was_settled)."""
    CLOSE = "close"
    """Call off whatever is under way, forget all batches, and close both sides (closed)."""
    WAIT = "wait"
    """Wait for `number` milliseconds (waited)."""
    REOPEN = "reopen"
    """Close the target, wait for `number` milliseconds, and open it anew (reopened)."""
    END = "end"
    """The shovel is over: nothing more is to be done."""


@dataclass(frozen=True, slots=True)
class Do:
    act: Act
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The amount that a shovel moves at a time, and when it has done enough."""

    batch: int = BATCH
    """Most messages that are taken at a time."""
    ahead: int = 3
    """Most batches that are taken and not settled."""
    most: int | None = None
    """Messages after which it ends; None: any number."""
    follows: bool = True
    """True if it waits for more where the source is empty; False: it ends."""
    persists: bool = True
    """True if it tries again whatever failed; False: only after failures that may pass."""


@final
class Shovel:
    """One shovel. Every call returns what is to be done now."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.phase = Phase.NEW
        self.moved = 0
        """Messages that are settled at the source."""
        self.failures = 0
        self.problem = ""
        """Reason of the last failure; empty: there was none since messages were moved last, or the
        source was found empty."""
        self._counts: deque[int] = deque()
        """Messages of each batch that is taken and not settled."""
        self._put = 0
        """Batches of these that the target has."""
        self._is_taking = False
        self._is_putting = False
        self._is_settling = False
        self._is_reopening = False
        self._is_ending = False
        self._pause_ms = FIRST_PAUSE_MS

    @property
    def in_hand(self) -> int:
        """Messages that are taken and not settled."""
        return sum(self._counts)

    @property
    def tries_again(self) -> bool:
        """Return whether it goes on after its last failure."""
        return not self._is_ending or self._is_reopening

    # What happens

    def start(self) -> list[Do]:
        self.phase = Phase.OPENING
        return [Do(Act.OPEN)]

    def opened(self) -> list[Do]:
        self.phase = Phase.MOVING
        return self._go_on()

    def took(self, count: int) -> list[Do]:
        """A batch of `count` messages was taken; 0: the source has none for now."""
        self._is_taking = False
        if count:
            self._counts.append(count)
        else:
            if not self._is_reopening:
                self.problem = ""
            self._is_ending |= not self.pace.follows
        return self._go_on()

    def was_put(self) -> list[Do]:
        self._is_putting = False
        self._put += 1
        return self._go_on()

    def was_settled(self) -> list[Do]:
        self._is_settling = False
        self._put -= 1
        self.moved += self._counts.popleft()
        if not self._is_reopening:
            self.problem = ""
            self._pause_ms = FIRST_PAUSE_MS
        return self._go_on()

    def failed(self, reason: str, may_pass: bool = True, moved: int = 0) -> list[Do]:
        """Something that was under way failed. may_pass: trying again can help. moved: messages of
        a batch that were moved all the same."""
        self.failures += 1
        if moved:
            self.moved += moved
            self._pause_ms = FIRST_PAUSE_MS
        self.problem = reason
        if not (may_pass or self.pace.persists):
            self._is_ending = True
        return self._close()

    def target_failed(self, reason: str, may_pass: bool = True, moved: int = 0) -> list[Do]:
        """The target failed while a batch was put, or while it was opened anew, and the source
        holds on. moved: messages of that batch that were moved all the same, and are no part of it
        any more."""
        if not (may_pass or self.pace.persists):
            return self.failed(reason, may_pass, moved)
        self.failures += 1
        self.problem = reason
        if moved:
            self.moved += moved
            self._counts[self._put] -= moved
            self._pause_ms = FIRST_PAUSE_MS
        self.phase = Phase.WAITING
        self._is_putting = self._is_reopening = True
        return [Do(Act.REOPEN, self._next_pause())]

    def reopened(self) -> list[Do]:
        self.phase = Phase.MOVING
        self._is_putting = self._is_reopening = False
        return self._go_on()

    def stop(self) -> list[Do]:
        """End when what is taken is moved."""
        self._is_ending = True
        if self.phase is Phase.MOVING:
            return self._go_on()
        if self.phase is Phase.CLOSING or self.phase is Phase.ENDED:
            return []
        return self._close()

    def closed(self) -> list[Do]:
        if self._is_ending:
            self.phase = Phase.ENDED
            return [Do(Act.END)]
        self.phase = Phase.WAITING
        return [Do(Act.WAIT, self._next_pause())]

    def waited(self) -> list[Do]:
        return self.start()

    def _next_pause(self) -> int:
        pause_ms = self._pause_ms
        self._pause_ms = min(2 * pause_ms, LONGEST_PAUSE_MS)
        return pause_ms

    # What follows

    def _go_on(self) -> list[Do]:
        found: list[Do] = []
        room = self._room()
        if room and not self._is_taking and not self._is_ending:
            self._is_taking = True
            found.append(Do(Act.TAKE, room))
        if not self._is_putting and self._put < len(self._counts):
            self._is_putting = True
            found.append(Do(Act.PUT))
        if not self._is_settling and self._put:
            self._is_settling = True
            found.append(Do(Act.SETTLE))
        if self._counts or (self._is_taking and not self._is_ending):
            return found
        self._is_ending = True
        return self._close()

    def _room(self) -> int:
        """Return how many messages may be taken now."""
        if len(self._counts) >= self.pace.ahead:
            return 0
        if self.pace.most is None:
            return self.pace.batch
        return max(0, min(self.pace.batch, self.pace.most - self.moved - self.in_hand))

    def _close(self) -> list[Do]:
        self.phase = Phase.CLOSING
        self._counts.clear()
        self._put = 0
        self._is_taking = self._is_putting = self._is_settling = self._is_reopening = False
        return [Do(Act.CLOSE)]
