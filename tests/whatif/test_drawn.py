"""Answers that rest on drawn times: consumers whose times differ from message to message, another
number of them or one that comes late, predicted and made for real. Time is the test's own, so the
figures are the same each time; docs/what-if.md has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from random import Random

import pytest

from tallymark.engine.outcomes import ACCEPTED
from tallymark.whatif.changes import changes_of
from tallymark.whatif.reading import Reader
from tallymark.whatif.recording import Recording
from tallymark.whatif.rows import FromFile
from tallymark.whatif.world import World
from tests.support.engine_rig import Delivery, Rig
from tests.support.recorded import BlockLog

MESSAGES = 2000
EVERY_MS = 10
WITHIN = 0.05
DIED = "dead-lettered (maxlen)"


@dataclass
class Worker:
    """A consumer that works on one message after another, for a time that nobody knows before."""

    random: Random
    comes_ms: int = 0
    busy_until: int = 0
    due: list[tuple[int, int]] = field(default_factory=list)
    """Time and tag of its answers to come."""

    def take(self, given: Delivery, now: int) -> None:
        self.busy_until = max(self.busy_until, now) + round(self.random.uniform(20, 45))
        self.due.append((self.busy_until, given.tag))


@cache
def lived(*comes_ms: int, seed: int = 7) -> Recording:
    """A stretch of time in which messages came faster than one consumer settles them, to a queue
    with a limit. comes_ms: when each consumer comes."""
    log = BlockLog()
    rig = Rig(log)
    rig.tick_ms = 0
    rig.declare("dead")
    rig.declare("orders", {"max-length": 100, "dead-letter-exchange": "",
                           "dead-letter-routing-key": "dead"})  # fmt: skip
    rig.settle_down()
    publisher = rig.session()
    workers = [Worker(Random(f"{seed} {i}"), at) for i, at in enumerate(comes_ms)]
    sessions = [rig.session() for _ in workers]
    begin = rig.now_ms
    for now in range(begin, begin + EVERY_MS * MESSAGES + 5000):
        given = rig.advance(now - rig.now_ms)
        for i, worker in enumerate(workers):
            if now - begin == worker.comes_ms:
                rig.consume(sessions[i], "orders", f"worker-{i}", 5)
        if (now - begin) % EVERY_MS == 0 and (now - begin) // EVERY_MS < MESSAGES:
            rig.publish(publisher, "orders", [(now - begin) // EVERY_MS + 1])
        for worker, session in zip(workers, sessions, strict=True):
            while worker.due and worker.due[0][0] <= now:
                tag = worker.due.pop(0)[1]
                rig.broker.settlement.settle(session, tag, tag, ACCEPTED)
        given += rig.settle_down()
        for one in given:
            workers[int(one.consumer.removeprefix("worker-"))].take(one, rig.now_ms)
    reader = Reader()
    for block in log.read():
        reader.read(FromFile(block))
    return reader.finish()


def died(recording: Recording) -> int:
    return recording.fates["/", "orders", 0].account()[DIED]


@pytest.mark.parametrize(
    ("change", "made"),
    [
        ({"queue": "orders", "times": 2}, (0, 0)),
        ({"queue": "orders", "late": "2s"}, (2000,)),
    ],
    ids=["a second consumer", "a consumer two seconds late"],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_what_rests_on_drawn_times_comes_near(
    change: dict[str, object], made: tuple[int, ...], seed: int
) -> None:
    recording = lived(0)
    [world] = changes_of("change", {"consumers": [change]})
    outcome = World(recording, world, seed).run()
    predicted = outcome.fates["/", "orders", 0].account()[DIED]
    came = died(lived(*made))
    print(f"{died(recording)} letters were, {predicted} are predicted, {came} came")
    assert sum(outcome.drawn.values()), "some of it rests on them"
    assert abs(died(recording) - came) > 50, "it has an effect"
    assert abs(predicted - came) <= WITHIN * came
