"""What clients of an NSQ topic know of its messages, over many lives of the broker, and what they
may expect of each in the next one [NQ-9 to NQ-16, NQ-A11, NQ-D9].

A life ends with kill -9. Certain is what a client did before a publish of its own that was answered
OK: commands of a connection are carried out in their order, and OK says that the disk has all of it
so far. What is not certain may or may not have happened.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Batch:
    """The messages of one PUB, DPUB or MPUB."""

    numbers: range
    due_ms: int = 0
    """Wall time before which nobody gets it."""
    life: int = 0
    """Of the broker, in which it was sent."""
    is_ok: bool = False


@dataclass(slots=True)
class Message:
    """One message in one channel, once it came. Attempts are as the broker counts them."""

    least: int = 1
    most: int = 1
    """What the first delivery of this life may show as attempts."""
    seen: list[int] = field(default_factory=list)
    """Attempts of its deliveries in this life."""
    certain: int = 0
    """The highest of them that the disk has for certain."""
    finished: int = 0
    """Attempts of the delivery that was answered with FIN; 0: none in this life."""
    is_finish_certain: bool = False
    requeued: int = 0
    """Attempts of the last delivery that was answered with REQ."""
    due_ms: int = 0
    """What came after that REQ may not come before."""
    is_requeue_certain: bool = False
    was_finished: bool = False
    """FIN was sent, in whatever life."""
    is_loose: bool = False
    """The last delivery was to somebody who lets it time out."""
    life: int = 0
    """Of the broker, in which it came last."""


@dataclass(slots=True)
class TopicHistory:
    """All that was published."""

    name: str
    life: int = 0
    """The broker's present one, counted from 0."""
    batches: list[Batch] = field(default_factory=list)
    batch_of: dict[int, Batch] = field(default_factory=dict)

    def publish(self, numbers: range, due_ms: int = 0) -> Batch:
        batch = Batch(numbers, due_ms, self.life)
        self.batches.append(batch)
        for number in numbers:
            self.batch_of[number] = batch
        return batch


@dataclass(slots=True)
class ChannelHistory:
    """One channel of it."""

    name: str
    topic: TopicHistory
    messages: dict[int, Message] = field(default_factory=dict)
    """Those that came and are not finished for certain."""
    gone: set[int] = field(default_factory=set)
    """Finished for certain."""
    deliveries: int = 0
    again: int = 0
    """Deliveries of what came in an earlier life already."""
    timed_out: int = 0

    # -- while the broker lives

    def arrived(self, number: int, attempts: int, now_ms: int, *, loose: bool = False) -> Message:
        """A delivery was read; fails when it may not be. `loose`: it will time out."""
        self.deliveries += 1
        batch = self.topic.batch_of.get(number)
        assert batch is not None, f"{self.name}: nobody published {number:x}"
        late = batch.due_ms - now_ms
        assert late <= 0, f"{self.name}: {number:x} came {late} ms before its time [NQ-16]"
        assert number not in self.gone, f"{self.name}: {number:x} came again, its FIN is on disk"
        message = self.messages.get(number)
        if message is None:
            # Each crash may have hidden a delivery that nobody read.
            most = 1 + self.topic.life - batch.life
            message = self.messages[number] = Message(most=most)
        elif message.least > 1 and not message.seen:
            self.again += 1
        if message.finished:
            # Another client's older delivery may be read later.
            assert attempts < message.finished, f"{self.name}: {number:x} came after its FIN"
        if message.requeued and attempts > message.requeued:
            late = message.due_ms - now_ms
            assert late <= 0, f"{self.name}: {number:x} came {late} ms too early after REQ [NQ-12]"
        if not message.seen or attempts > max(message.seen):
            self.timed_out += bool(message.seen) and message.is_loose
            message.is_loose = loose
        message.seen.append(attempts)
        message.life = self.topic.life
        return message

    # -- after it

    def life_ends(self, *, crashed: bool) -> None:
        """All that was sent has been read. Fails when attempts were miscounted in this life, and
        sets what the next may show."""
        for number, message in self.messages.items():
            if message.seen:
                self._check_attempts(number, message)
        if not crashed:
            return
        done = [number for number, one in self.messages.items() if one.is_finish_certain]
        self.gone.update(done)
        for number in done:
            del self.messages[number]
        for message in self.messages.values():
            _prepare(message)

    def _check_attempts(self, number: int, message: Message) -> None:
        seen = sorted(message.seen)
        what = f"{self.name}: {number:x} came with attempts {message.seen}"
        bounds = f"expected the first from {message.least} to {message.most}"
        assert message.least <= seen[0] <= message.most, f"{what}, {bounds}"
        assert seen == list(range(seen[0], seen[0] + len(seen))), f"{what}, expected each once"

    def check_all_done(self) -> None:
        """The channel is empty: what was answered OK was finished, the rest by whole commands."""
        done = self.finished()
        ok = [number for batch in self.topic.batches if batch.is_ok for number in batch.numbers]
        self._none(set(ok) - done, "were answered OK and are lost")
        for batch in self.topic.batches:
            there = sum(number in done for number in batch.numbers)
            all_of = len(batch.numbers)
            assert there in (0, all_of), f"{self.name}: {there} of {all_of} of an MPUB [NQ-D5]"

    def finished(self) -> set[int]:
        return self.gone | {number for number, one in self.messages.items() if one.was_finished}

    def _none(self, numbers: Iterable[int], what: str) -> None:
        named = sorted(numbers)
        sample = ", ".join(f"{number:x}" for number in named[:5])
        assert not named, f"{self.name}: {len(named)} messages {what}: {sample}"


def check_same(one: ChannelHistory, two: ChannelHistory) -> None:
    """Two channels of a topic had the same messages, once both are empty.

    But for what was handed out before the disk had it and is gone with the life in which it was
    published (docs/guarantees.md): nobody was told OK, and no later life has it."""
    for here, there in ((one, two), (two, one)):
        for number in sorted(here.finished() - there.finished()):
            batch = here.topic.batch_of[number]
            known = here.messages.get(number)
            is_gone = known is not None and known.life == batch.life < here.topic.life
            is_allowed = is_gone and not batch.is_ok
            assert is_allowed, (
                f"{here.name} had {number:x} and {there.name} had not: published in life "
                f"{batch.life}, came in {known}, OK {batch.is_ok}"
            )


def _prepare(message: Message) -> None:
    """For the life after a crash."""
    if message.seen:
        top = max(message.seen)
        # What came is never shown as new. What was given back may have left again, unread.
        message.least = max(message.least, 2, message.certain + 1)
        message.most = top + 1 + (message.is_loose or message.requeued == top)
    else:
        message.most += 1
    if not message.is_requeue_certain:
        message.requeued = message.due_ms = 0
    message.seen = []
    message.certain = message.finished = 0
    message.is_loose = False
