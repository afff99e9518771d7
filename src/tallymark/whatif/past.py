"""The past of one queue, while the ledger is read: what each message is, and who holds it."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from tallymark.whatif.fates import Fates, QueueName
from tallymark.whatif.recording import DELIVERIES, Answers

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Given:
    """Messages that one consumer was given at one time, at one attempt."""

    first: int
    first_id: int
    count: int
    owner: int
    given_ms: int
    attempt: int


class Past:
    """The messages of one queue in columns by sequence, beside their fates."""

    def __init__(self, name: QueueName, fates: Fates) -> None:
        self.name = name
        self.fates = fates
        self.answers: dict[int, Answers] = {}
        """Answers by attempt."""
        self.mark = 0
        """The mark that was written last: after a crash, messages below it may have been
        delivered."""
        self.reached = 0
        """First sequence behind those that were delivered."""
        self._stays: dict[int, int] = {}
        """Number of stays of messages that are not stored, by id."""
        self._before: array[int] = array("I")
        """The first attempt of the message's stay."""
        self._owner: array[int] = array("q")
        self._given_ms: array[int] = array("q")
        self._attempt: array[int] = array("I")
        self._waits: deque[tuple[int, int, int]] = deque()
        self._letters: deque[tuple[int, int]] = deque()
        self._covered = 0
        """The mark that is known to be on disk."""
        self._is_new = True
        """True if no message was given away since the first of the waits was the first."""

    def enter(
        self, first: int, count: int, time_ms: int, first_id: int, sizes: array[int], before: int
    ) -> None:
        """Add messages. before: the first attempt of their stay."""
        self.fates.enter(first, count, time_ms, first_id, sizes)
        if first_id < 0:
            for id in range(first_id, first_id + count):
                self._stays[id] = self._stays.get(id, 0) + 1
        self._before.extend(array("I", (before,)) * count)
        self._owner.extend(array("q", (NOBODY,)) * count)
        self._given_ms.extend(array("q", (0,)) * count)
        self._attempt.extend(array("I", (0,)) * count)

    def give(self, first: int, count: int, time_ms: int, owner: int, before: int) -> None:
        """Note that messages were given to a consumer. before: how often they had been delivered in
        this queue."""
        self.reached = max(self.reached, first + count)
        if before:
            self.fates.again_ms.extend(array("q", (time_ms,)) * count)
        base = self.fates.base
        for at in range(first - base, first - base + count):
            self._owner[at] = owner
            self._given_ms[at] = time_ms
            self._attempt[at] = self._before[at] + min(before, DELIVERIES - 1)

    def wait(self, below: int, order: int, time_ms: int) -> None:
        """Note that messages below a sequence are given to consumers once the disk has what was
        written at `order`."""
        self._waits.append((below, order, time_ms))

    def waited_for(self, sequence: int, time_ms: int) -> tuple[int, int]:
        """Return the order below which all was on disk when this message was given away, and how
        long it waited for that, ms; -1: it is not known to have waited."""
        waits = self._waits
        while waits and waits[0][0] <= sequence:
            waits.popleft()
            self._is_new = True
        found, since_ms = (waits[0][1] + 1, waits[0][2]) if waits else (0, 0)
        waited_ms = -1
        if waits and self._is_new and self.fates.entered_ms[sequence - self.fates.base] <= since_ms:
            waited_ms = time_ms - since_ms
        self._is_new = False
        while self._letters and self._letters[0][0] <= sequence + 1:
            found = max(found, self._letters.popleft()[1] + 1)
        return found, waited_ms

    def newly_covered(self) -> int:
        """Return the mark that what was given away last shows to be on disk, once; else 0."""
        mark = self._waits[0][0] if self._waits else 0
        if mark == self._covered:
            return 0
        self._covered = mark
        return mark

    def wait_for_letters(self, below: int, order: int) -> None:
        """Note that letters entered, which are given away once the disk has them."""
        self._letters.append((below, order))

    def held(self) -> Iterator[Given]:
        """Take all messages from those who hold them, as take_back does."""
        return self.take_back(self.fates.base, len(self._owner))

    def id_of(self, sequence: int) -> int:
        """Return the id of a message."""
        return self.fates.ids[sequence - self.fates.base]

    def sizes_of(self, sequence: int, count: int) -> array[int]:
        """Return the sizes of messages, 0 where they are not known."""
        at = sequence - self.fates.base
        return self.fates.size[at : at + count]

    def entered_at(self, sequence: int) -> int:
        """Return when a message entered, ms."""
        return self.fates.entered_ms[sequence - self.fates.base]

    def stays_of(self, id: int) -> int:
        """Return how often a message that is not stored was in this queue before. Its history is
        not stored either."""
        return self._stays.get(id, 0)

    def is_held(self, sequence: int) -> bool:
        """Return whether a consumer holds the message."""
        return self._owner[sequence - self.fates.base] != NOBODY

    def take_back(self, first: int, count: int) -> Iterator[Given]:
        """Take messages from those who hold them: yield those that are alike together."""
        at = first - self.fates.base
        end = at + count
        ids, owners = self.fates.ids, self._owner
        while at < end:
            owner = owners[at]
            given_ms, attempt, first_id = self._given_ms[at], self._attempt[at], ids[at]
            low = at
            while (
                at < end
                and owners[at] == owner
                and self._given_ms[at] == given_ms
                and self._attempt[at] == attempt
                and ids[at] == first_id + at - low
            ):
                owners[at] = NOBODY
                at += 1
            if owner != NOBODY:
                yield Given(low + self.fates.base, first_id, at - low, owner, given_ms, attempt)

    def answer(
        self, given: Given, time_ms: int, order: int, answer: int, delay_ms: int, work_ms: int
    ) -> None:
        """Note what a consumer did with what it was given."""
        answers = self.answers.get(given.attempt)
        if answers is None:
            answers = self.answers[given.attempt] = Answers()
        answers.add(
            given.first_id, given.count, given.owner, given.given_ms, time_ms, order, answer,
            delay_ms, work_ms,
        )  # fmt: skip
