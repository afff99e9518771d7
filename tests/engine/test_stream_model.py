"""Streams against a list: whatever is published, read, let go of and restarted, in whatever turns,
in memory, spilled or packed, what is there and what readers see is the same.

The model is a list of messages, each with its offset and arrival. A broker runs the same commands
with turns where the test's mode has them: after each command, or only where the commands say so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.bridge.names import PUBLISHER_NAME, PUBLISHING_ID
from tallymark.engine import streams
from tallymark.engine.clock import NEVER
from tallymark.engine.message import Slice
from tallymark.engine.outcomes import ACCEPTED, REJECTED
from tallymark.engine.packing import Packing
from tallymark.engine.session import Consumer
from tallymark.engine.streams import FIRST, NEXT, OFFSET, TIME, Start
from tallymark.stored.annotations import Annotations
from tests.engine.test_stream_ranges import numbers_of
from tests.support.engine_rig import SIZE, START_MS, Delivery, Rig, Said

NAMES = ("p", "q")
Command = tuple[str, int, int, int]


@dataclass
class Message:
    number: int
    offset: int
    arrived_ms: int
    size: int


@dataclass
class Reading:
    """One reader, as the model has it."""

    next: int
    prefetch: int
    seen: list[int] = field(default_factory=list)
    unsettled: int = 0


@dataclass
class Model:
    """A stream as a list."""

    messages: list[Message] = field(default_factory=list)
    entered: int = 0
    duplicates: int = 0
    total: int = 0
    """Bytes since it was made."""
    highest: dict[str, int] = field(default_factory=dict)
    kept_from: int = 0
    gone: int = 0
    retain: int = -1
    segment: int = 0
    age: int = -1

    def publish(self, number: int, said: tuple[str, int] | None, size: int, now: int) -> None:
        offset = self.entered
        self.entered += 1
        if said is not None and said[1] <= self.highest.get(said[0], -1):
            self.duplicates += 1
            return
        if said is not None:
            self.highest[said[0]] = said[1]
        self.messages.append(Message(number, offset, now, size))
        self.total += size

    def let_go(self, now: int) -> None:
        cut = self.total - self.retain if self.retain >= 0 else 0
        if self.segment:
            cut -= cut % self.segment
        at = self.total - sum(m.size for m in self.messages)
        while self.messages:
            oldest = self.messages[0]
            too_old = self.age >= 0 and oldest.arrived_ms <= now - self.age
            if at >= cut and not too_old:
                return
            at += oldest.size
            self.kept_from = oldest.offset + 1
            self.gone += 1
            del self.messages[0]

    def start(self, start: Start) -> int:
        if start.kind == NEXT:
            return self.entered
        if start.kind == OFFSET:
            return start.value
        if start.kind == TIME:
            found = [m.offset for m in self.messages if m.arrived_ms >= start.value]
            # Behind the last one: what enters next, whatever was passed over before it.
            return found[0] if found else self.entered
        return 0

    def show(self, reading: Reading) -> None:
        """All that the reader has credit for."""
        for message in self.messages:
            if message.offset >= reading.next:
                if reading.unsettled >= reading.prefetch:
                    return
                reading.next = message.offset + 1
                reading.seen.append(message.number)
                reading.unsettled += 1


class Subject:
    """A broker that is told the same."""

    def __init__(self, every_turn: bool, packs: bool, spills: bool) -> None:
        self.every_turn = every_turn
        self.packs = packs
        self.budget = 0 if spills else 1 << 40
        self.rig = Rig()
        self.rig.tick_ms = 0
        self._prepare()
        self.queue = self.rig.declare("s", {"queue-type": "stream"})
        self.consumers: dict[int, Consumer] = {}
        self.seen: dict[int, list[int]] = {}
        self.sent = 0

    def _prepare(self) -> None:
        if self.packs:
            self.rig.broker.backlogs.packing = Packing(after=6, group=5, fresh=2)

    def settle_down(self) -> None:
        for delivery in self.rig.settle_down(self.budget):
            self._saw(delivery)
        self.rig.broker.check()

    def _saw(self, delivery: Delivery) -> None:
        self.seen[int(delivery.consumer)].append(delivery.number)

    def publish(self, numbers: list[int], what: int = 0) -> None:
        """`what`: 1, they have a time to live; 2, they are for later. Neither means anything."""
        later = Annotations(due_ms=self.rig.now_ms + 20) if what == 2 else None
        self.rig.send("s", *numbers, annotations=later, ttl=10 if what == 1 else -1)

    def read(self, id: int, start: Start, prefetch: int) -> None:
        session = self.rig.session()
        self.rig.broker.consuming.set_prefetch(session, prefetch, False)
        self.consumers[id] = self.rig.broker.consuming.read(
            session, self.queue, str(id), start, False
        )
        self.seen.setdefault(id, [])

    def settle(self, id: int, outcome: int) -> None:
        who = self.consumers[id]
        self.rig.broker.settlement.settle_up_to(who.session, 0, outcome)

    def keep_for(self, age_ms: int) -> None:
        """max-age, of which a policy has whole seconds."""
        if age_ms != self.queue.settings.max_age_ms:
            self.queue.settings.max_age_ms = age_ms
            self.queue.watch()
            self.rig.broker.agenda.mark(self.queue)

    def restart(self, checkpoint: bool) -> None:
        """The wall clock is set right before, and a checkpoint says so of what was stored."""
        if self.rig.wall_off_ms:
            self.rig.set_wall_clock(-self.rig.wall_off_ms)
            checkpoint = True
        if checkpoint:
            self.rig.checkpoint()
        self.rig = self.rig.restart()
        self._prepare()
        self.queue = self.rig.vhost.queues["s"]
        self.consumers.clear()


def content(subject: Subject) -> list[tuple[int, int]]:
    """(offset, number) of all that is there."""
    queue = subject.queue
    pieces: list[Slice] = streams.between(queue, queue.retention.kept_from, queue.end())
    return [
        (piece.first - 1 + at, number)
        for piece in pieces
        for at, number in enumerate(numbers_of(subject.rig, [piece]))
    ]


CLOCK_STEPS_MS = (-86_400_000, 3_600_000)
"""By how much somebody sets the wall clock, in which readers name times [NQ-D8]."""
commands = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 4), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("burst"), st.integers(5, 25), st.just(0), st.just(0)),
        st.tuples(st.just("numbered"), st.integers(0, 1), st.integers(0, 9), st.integers(1, 3)),
        st.tuples(st.just("read"), st.integers(0, 4), st.integers(0, 30), st.integers(1, 9)),
        st.tuples(st.just("settle"), st.integers(0, 5), st.booleans(), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0), st.just(0)),
        st.tuples(st.just("pass"), st.integers(1, 40), st.just(0), st.just(0)),
        st.tuples(st.just("turn"), st.just(0), st.just(0), st.just(0)),
        st.tuples(st.just("retain"), st.integers(-1, 60), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("age"), st.integers(-1, 60), st.just(0), st.just(0)),
        st.tuples(st.just("restart"), st.booleans(), st.just(0), st.just(0)),
        st.tuples(st.just("set clock"), st.sampled_from(CLOCK_STEPS_MS), st.just(0), st.just(0)),
    ),
    min_size=10,
    max_size=80,
)
EVERY = dict[str, bool]


def run(history: list[Command], lets_go: bool, modes: EVERY) -> None:
    model = Model()
    subject = Subject(**modes)
    readings: dict[int, Reading] = {}
    number = ids = 0

    def settle_down() -> None:
        subject.settle_down()
        model.let_go(subject.rig.now_ms)
        for reading in readings.values():
            model.show(reading)
        compare(model, subject, readings, lets_go)

    for what, a, b, c in history:
        if what in ("publish", "burst", "numbered"):
            count = c if what == "numbered" else a
            numbers = list(range(number + 1, number + 1 + count))
            number += count
            for at, one in enumerate(numbers):
                said = (NAMES[a], b + at) if what == "numbered" else None
                if said is not None:
                    headers: dict[str, object] = {
                        PUBLISHER_NAME: said[0], PUBLISHING_ID: said[1],
                    }  # fmt: skip
                    subject.rig.says[one] = Said(headers=headers)
                size = subject.rig.payload("s", [one], True).size
                model.publish(one, said, size, subject.rig.now_ms)
            if what == "burst":  # each a run of its own
                for one in numbers:
                    subject.publish([one])
            else:
                subject.publish(numbers, b if what == "publish" else 0)
        elif what == "read":
            settle_down()
            kinds = (FIRST, NEXT, OFFSET, TIME, OFFSET)
            value = START_MS + b * 3 if kinds[a] == TIME else b
            ids += 1
            readings[ids] = Reading(model.start(Start(kinds[a], value)), c)
            if kinds[a] == TIME:
                value += subject.rig.wall_off_ms
            subject.read(ids, Start(kinds[a], value), c)
        elif what == "settle" and readings:
            settle_down()
            id = sorted(readings)[a % len(readings)]
            readings[id].unsettled = 0
            subject.settle(id, REJECTED if b else ACCEPTED)
        elif what == "cancel" and readings:
            settle_down()
            id = sorted(readings)[a % len(readings)]
            del readings[id]
            subject.rig.broker.consuming.cancel(subject.consumers.pop(id))
        elif what == "pass":
            settle_down()
            for delivery in subject.rig.advance(a):
                subject._saw(delivery)
        elif what == "turn":
            settle_down()
        elif what == "set clock":
            subject.rig.set_wall_clock(a)
        elif what in ("retain", "age") and lets_go:
            settle_down()
            if what == "retain":
                model.retain, model.segment = a * SIZE if a >= 0 else -1, b * SIZE
            else:
                model.age = a if a > 0 else -1
            policy: dict[str, object] = {}
            if model.retain >= 0:
                policy = {"max-length-bytes": model.retain}
                if model.segment:
                    policy["stream-max-segment-size-bytes"] = model.segment
            subject.rig.set_policy("s", policy)
            subject.keep_for(model.age)
        elif what == "restart":
            settle_down()
            subject.restart(bool(a))
            subject.keep_for(model.age)
            readings.clear()
        if subject.every_turn:
            settle_down()
    settle_down()


def compare(model: Model, subject: Subject, readings: dict[int, Reading], lets_go: bool) -> None:
    queue = subject.queue
    assert content(subject) == [(m.offset, m.number) for m in model.messages]
    assert queue.entered == model.entered
    assert queue.end() == model.entered + 1
    assert queue.account.ready_bytes == sum(m.size for m in model.messages)
    assert subject.rig.dropped("s") == {
        **({"duplicate": model.duplicates} if model.duplicates else {}),
        **({"retention": model.gone} if model.gone else {}),
    }
    assert queue.deduplication.numbers == model.highest
    assert lets_go or subject.rig.broker.next_due() == NEVER
    if model.gone:
        assert queue.retention.kept_from - 1 == model.kept_from
    for id, reading in readings.items():
        seen = subject.seen[id]
        if lets_go:
            # What is let go of in the turn in which it entered may have been shown or not.
            assert seen == sorted(set(seen))
            there = {m.number for m in model.messages if m.offset < reading.next}
            began = [n for n in seen if n in there]
            assert began == seen[len(seen) - len(began) :]
        else:
            assert seen == reading.seen, id


modes = st.fixed_dictionaries(
    {"every_turn": st.booleans(), "packs": st.booleans(), "spills": st.booleans()}
)


@settings(max_examples=200, deadline=None)
@given(commands, modes)
def test_a_stream_that_keeps_everything_is_a_list(history: list[Command], how: EVERY) -> None:
    run(history, False, how)


@settings(max_examples=200, deadline=None)
@given(commands, modes)
def test_what_a_stream_keeps_does_not_depend_on_turns(history: list[Command], how: EVERY) -> None:
    run(history, True, how)
