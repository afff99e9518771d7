"""Random programs of a client, step by step on ours and on RabbitMQ 3.10: it sees the same."""

from __future__ import annotations

import pytest

from tests.interop.random_programs import Player, Step, program
from tests.support.long import longer, seeded, sized
from tests.support.process import BrokerProcess
from tests.support.rabbitmq import RabbitProcess

PROGRAMS = sized(3, 20, 300)
STEPS = 60
LOOKS = 50
"""How often both are looked at again before a difference is one: RabbitMQ may be slow."""


def compared(ours: Player, theirs: Player, steps: list[Step]) -> None:
    """Take the steps on both."""
    done: list[Step] = []
    for step in steps:
        done.append(step)
        ours.take(step)
        theirs.take(step)
        check(ours, theirs, done)
    ours.drain()
    theirs.drain()
    check(ours, theirs, done)


def check(ours: Player, theirs: Player, done: list[Step]) -> None:
    for _ in range(LOOKS):
        found, expected = ours.settle_down(), theirs.settle_down()
        if found == expected:
            return
    assert found == expected, "\n".join(map(str, done))


@longer
@pytest.mark.parametrize("number", range(PROGRAMS))
def test_a_client_sees_the_same(number: int, ours: BrokerProcess, rabbit: RabbitProcess) -> None:
    mine, other = Player(ours.amqp_port), Player(rabbit.port)
    try:
        compared(mine, other, program(seeded(number), STEPS))
    finally:
        mine.close()
        other.close()
