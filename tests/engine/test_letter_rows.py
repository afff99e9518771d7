"""The rows of letters that leave one by one: as few as say it all, and no fewer."""

from __future__ import annotations

import random

import pytest

from tallymark.engine.outcomes import REJECTED
from tallymark.stored import records
from tests.support.engine_rig import Held, Rig

MANY = 20


def two_sources(turn_ms: int = 0) -> Rig:
    """Queues `left` and `right`, whose letters go to `end`, and `both`, whose go to two queues."""
    rig = Rig()
    rig.tick_ms = turn_ms
    for name in ("end", "more"):
        rig.declare(name)
    to_end: dict[str, object] = {"dead-letter-exchange": "", "dead-letter-routing-key": "end"}
    rig.declare("left", to_end)
    rig.declare("right", to_end)
    rig.exchange("copies", "fanout", ("end", ""), ("more", ""))
    rig.declare("both", {"dead-letter-exchange": "copies"})
    return rig


def rows(rig: Rig, kind: int) -> list[tuple[int, int]]:
    """(first, count) of what the log has of a kind."""
    found = [record for block in rig.log.blocks for record in block]
    return [(record.first, record.count) for record in found if record.kind == kind]


def contents(rig: Rig, name: str) -> list[tuple[Held, bytes]]:
    session, found = rig.session(), []
    while (got := rig.take(session, name, no_ack=True)) is not None:
        held = got[0]
        stored = b"" if held.annotations is None else held.annotations.to_bytes()
        found.append((Held(held.number, held.acquired, held.failed, held.priority, None), stored))
    return found


def test_rejections_in_a_row_are_one_row_of_each_queue() -> None:
    rig = two_sources()
    session = rig.session()
    rig.consume(session, "left", "c")
    rig.send("left", *range(MANY))
    for delivery in rig.settle_down():
        rig.broker.settlement.settle(session, delivery.tag, delivery.tag, REJECTED)
    rig.settle_down()
    assert rows(rig, records.DEAD_LETTERED) == [(1, MANY)]
    assert rows(rig, records.ENTERED) == [(1, MANY), (1, MANY)]
    assert len(contents(rig.restart(), "end")) == MANY


def test_letters_to_two_queues_have_rows_of_their_own() -> None:
    rig = two_sources()
    session = rig.session()
    rig.consume(session, "both", "c")
    rig.send("both", *range(3))
    for delivery in rig.settle_down():
        rig.broker.settlement.settle(session, delivery.tag, delivery.tag, REJECTED)
    rig.settle_down()
    assert rows(rig, records.DEAD_LETTERED) == [(1, 1), (2, 1), (3, 1)]
    again = rig.restart()
    assert [held.number for held, _ in contents(again, "end")] == [0, 1, 2]
    assert [held.number for held, _ in contents(again, "more")] == [0, 1, 2]


@pytest.mark.parametrize("seed", range(60))
def test_a_restart_finds_the_same_letters_whatever_the_order_of_rejections(seed: int) -> None:
    """Rejected in runs and at random from several queues, some in the same moment, some not."""
    chance = random.Random(seed)
    rig = two_sources(turn_ms=chance.choice([0, 1]))
    session = rig.session()
    names = chance.choice([["left"], ["left", "right"], ["left", "right", "both"]])
    for name in names:
        rig.consume(session, name, name)
    for number in range(0, 10 * MANY, MANY):
        rig.send(chance.choice(names), *range(number, number + chance.randint(1, MANY)))
    tags = [delivery.tag for delivery in rig.settle_down()]
    if chance.random() < 0.3:
        tags.reverse()
    while tags:
        at = chance.choice([0, 0, 0, chance.randrange(len(tags))])
        tag = tags.pop(at)
        rig.broker.settlement.settle(session, tag, tag, REJECTED)
        if chance.random() < 0.1:
            rig.settle_down()
    rig.settle_down()
    rig.broker.check()
    again = rig.restart()
    again.broker.check()
    for name in ("end", "more", *names):
        assert contents(again, name) == contents(rig, name)
