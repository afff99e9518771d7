"""Leases: one durable subscription as its readers see it.

A lease sequence once handed out means the same message until it is settled, for every reader, over
restarts and power cuts. Meanwhile nobody else has that message. A reader whose fence is not the
newest is refused. What a settlement does is said by the verdicts of the holder.
"""

from __future__ import annotations

from typing import Final

from tallymark.simulation.history import Delivered, History, Line, Violated

OUTCOMES: Final = {
    "accepted": "accept", "rejected": "reject", "released": "release", "modified": "fail"
}  # fmt: skip
"""Verdicts, and the outcomes of a delivery that they are."""


class Leases:
    """Model of one subscription."""

    def __init__(self, history: History, queue: str, name: str) -> None:
        self._history = history
        self._what = f"subscription {name} of {queue}"
        self._queue = queue
        self._line = Line(name, -1, 0)
        """Line to nobody: a lease outlives readers and brokers."""
        self._epoch = 0
        self._attaches = 0
        """Attaches sent so far."""
        self._unanswered: set[int] = set()
        """Numbers of attaches that nobody has heard of: each may have happened."""
        self._fences: set[int] = set()
        self._begun: dict[int, int] = {}
        """Begin of the first batch of each holder that has begun one, by its fence."""
        self.fence = 0
        """Newest fence that somebody was told."""
        self._floor = 0
        self._floor_asked = 0
        """Highest end of a settlement that was sent."""
        self._next = 0
        """End of what is certainly leased."""
        self._messages: dict[int, tuple[str, Delivered]] = {}
        """Names and deliveries by lease sequence, of what was read."""
        self._verdicts: dict[int, str] = {}
        self._unsure: set[int] = set()
        """Sequences whose verdicts were sent and not answered: the broker may have taken them."""

    def _fail(self, text: str) -> Violated:
        return Violated(f"{self._what}: {text}")

    # -- fences

    def attaches(self) -> int:
        """Note that somebody attaches; returns the number of the attach."""
        self._attaches += 1
        self._unanswered.add(self._attaches)
        return self._attaches

    def known(self) -> tuple[int, int]:
        """Return how far is settled, and leased, for certain. An answer is held against what was
        known when its question was sent: another reader's may have overtaken it."""
        return self._floor, self._next

    def attached(
        self, attach: int, known: tuple[int, int], epoch: int, fence: int, floor: int, next: int
    ) -> None:
        """Check the answer to an attach. Raises Violated."""
        if self._epoch and epoch != self._epoch:
            raise self._fail(f"epoch {epoch}, it was {self._epoch} and nobody deleted it")
        self._unanswered.discard(attach)
        if fence in self._fences:
            raise self._fail(f"fence {fence} was given twice")
        if not known[0] <= floor <= max(self._floor, self._floor_asked):
            raise self._fail(f"floor {floor}, settled for certain up to {known[0]}")
        if next < known[1]:
            raise self._fail(f"leased up to {next}, it was {known[1]}: leases were lost")
        if self.fence:
            self._history.seen.add("subscription taken over")
            if self._verdicts:
                self._history.seen.add("taken over with verdicts pending")
        self._epoch = epoch
        self._fences.add(fence)
        self.fence = max(self.fence, fence)

    def is_stale(self, fence: int) -> bool:
        """Return whether a request with this fence that is sent now has to be refused."""
        return fence < self.fence

    def refused(self, fence: int) -> None:
        """Check that a request was refused for its fence with right. Raises Violated."""
        self._history.seen.add("reader fenced")
        if fence == self.fence and not self._unanswered:
            raise self._fail(f"fence {fence} was refused, and nobody attached after it")

    def passed(self, fence: int, was_stale: bool, what: str) -> None:
        """Check that a request was let through with right. Raises Violated."""
        if was_stale:
            raise self._fail(f"{what} of a fenced reader ({fence}) was let through")

    # -- leases

    def leased(self, known: tuple[int, int], fence: int, start: int, end: int, most: int) -> None:
        """Check the answer to a lease, which forgets the verdicts of earlier holders. Raises
        Violated."""
        if not min(known[1], start + most) <= end <= start + most:
            raise self._fail(f"lease from {start} ends at {end}, {known[1]} were leased")
        self._next = max(self._next, end)
        self.begins(fence, start)

    def begins(self, fence: int, start: int) -> None:
        """Note that a holder begins at `start`: verdicts from there on are those of earlier ones,
        and count no more."""
        if fence not in self._begun:
            self._begun[fence] = start
            self._verdicts = {at: said for at, said in self._verdicts.items() if at < start}
            self._unsure = {at for at in self._unsure if at < start}

    def has_read(self, low: int, high: int, rows: list[tuple[int, str, bytes, bool]]) -> None:
        """Check the rows of a range: lease sequence, name, body, flag. Raises Violated."""
        if [row[0] for row in rows] != [*range(low, high)]:
            raise self._fail(f"read {low} to {high}, got {[row[0] for row in rows]}")
        for sequence, name, body, is_flagged in rows:
            known = self._messages.get(sequence)
            if known is None:
                if sequence < self._floor:
                    raise self._fail(f"{sequence} is settled, and was read as {name}")
                delivery = self._history.delivered(
                    self._line, self._queue, name, body, is_flagged, is_leased=True
                )
                delivery.is_certain = False
                self._messages[sequence] = name, delivery
            elif known[0] != name:
                raise self._fail(f"{sequence} was {known[0]}, and is {name}")
            else:
                self._history.seen.add("batch read again")

    def judges(self, said: list[tuple[int, int, str]]) -> None:
        """Note verdicts that are sent: from now on the broker may have taken them."""
        for first, count, _ in said:
            self._unsure.update(range(first, first + count))

    def judged(self, fence: int, said: list[tuple[int, int, str]]) -> None:
        """Note verdicts that the broker has taken from a holder: before anybody attached after it,
        so a later one that has begun meanwhile has had them forgotten."""
        later = [start for other, start in self._begun.items() if other > fence]
        for first, count, outcome in said:
            for sequence in range(first, first + count):
                if any(start <= sequence for start in later):
                    continue
                self._unsure.discard(sequence)
                self._verdicts[sequence] = outcome
                found = self._messages.get(sequence)
                if found is not None and found[1].outcome:  # the next holder has settled it since
                    found[1].outcome = OUTCOMES[outcome]

    def settles(self, end: int) -> None:
        """Note that a settlement is sent: from now on it may have happened."""
        self._floor_asked = max(self._floor_asked, end)
        for sequence in range(self._floor, end):
            found = self._messages.get(sequence)
            if found is not None:
                outcome = OUTCOMES[self._verdicts.get(sequence, "accepted")]
                self._history.answers(found[1], outcome)

    def settled(self, known: tuple[int, int], end: int, floor: int) -> None:
        """Check the answer to a settlement: it has happened. Raises Violated."""
        if floor < max(end, known[0]):
            raise self._fail(f"settled up to {end}, the floor is {floor}")
        for sequence in range(self._floor, end):
            found = self._messages.get(sequence)
            if found is not None:
                found[1].is_certain = sequence not in self._unsure
            verdict = self._verdicts.pop(sequence, None)
            if verdict is not None:
                self._history.seen.add(f"verdict {verdict}")
        self._floor = max(self._floor, end)
