"""How many dead letters wait, and whether all of them were looked at; under the engine alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tallymark.engine.outcomes import REJECTED
from tallymark.server.page import deadletters
from tests.support.engine_rig import Rig


class Seer:
    """A view that goes on at once."""

    async def part(self) -> None:
        """Nothing else is to be done meanwhile."""


def parked(letters: int) -> Rig:
    """A broker in which so many messages died one by one, and wait in the queue `parked`."""
    rig = Rig()
    rig.declare("parked")
    rig.declare("orders", {"dead-letter-exchange": "", "dead-letter-routing-key": "parked"})
    publisher, session = rig.session(), rig.session()
    rig.consume(session, "orders", "worker", 1)
    for number in range(1, letters + 1):
        rig.publish(publisher, "orders", [number])
        [given] = rig.settle_down()
        rig.broker.settlement.settle(session, given.tag, given.tag, REJECTED)
        rig.settle_down()
    return rig


@pytest.mark.parametrize(("letters", "counted", "is_all"), [(30, 10, False), (10, 10, True)])
def test_a_queue_with_more_letters_than_are_looked_at_is_not_all_of_it(
    monkeypatch: pytest.MonkeyPatch, letters: int, counted: int, is_all: bool
) -> None:
    monkeypatch.setattr(deadletters, "LOOKED_AT", 40)
    queue = parked(letters).vhost.queues["parked"]
    assert queue.ready == letters
    view: Any = Seer()
    groups, said = asyncio.run(deadletters._groups(view, [queue]))
    assert sum(one.count for one in groups) == counted
    assert said is is_all


def test_messages_that_are_looked_at_together_leave_room_for_other_queues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is looked at is slices: a queue with many messages in one does not hide the others."""
    monkeypatch.setattr(deadletters, "LOOKED_AT", 40)
    rig = parked(4)
    rig.declare("full")
    rig.publish(rig.session(), "full", list(range(100, 200)))
    rig.settle_down()
    queues = [rig.vhost.queues[name] for name in ("full", "parked")]
    view: Any = Seer()
    groups, said = asyncio.run(deadletters._groups(view, queues))
    assert [one.count for one in groups] == [4]
    assert said
