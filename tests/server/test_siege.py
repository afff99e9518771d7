"""Every hostile behaviour for a moment: the broker stays, and others are served.

How much slower others are meanwhile is a matter for `make siege` (bench/siege.py), on a machine
that is quiet. Here it goes round until it has done a few steps: some of them in `make test`, others
in CI, all and more steps in `make test-long`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pika
import pytest

from tests.server.lines import memory_mib
from tests.server.peers import alarms, open_connections
from tests.siege.attack import Behaviour, Count, Target, attack
from tests.siege.behaviours import ALL, PORTS
from tests.siege.brokers import (
    MAX_MEMORY,
    MIB,
    faults,
    provided,
    renew,
    set_up,
    target_of,
    unbalanced,
)
from tests.support.long import longer, sized
from tests.support.patience import until, until_on_loop
from tests.support.process import BrokerProcess

STEPS = sized(1, 2, 10)
"""Those that send most do no more in the time that a test has."""
WANTED = sized(ALL[::8], ALL[4::8], ALL)
GROWTH_MIB = 2 * MAX_MEMORY // MIB
"""At twice max_memory publishers wait, and connections count towards it."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with provided(tmp_path_factory.mktemp("siege")) as process:
        set_up(target_of(process))
        yield process


@pytest.fixture(scope="module")
def base_mib(broker: BrokerProcess) -> float:
    return memory_mib(broker)


async def until_done(chosen: Behaviour, target: Target, steps: int) -> Count:
    count = Count()
    task = asyncio.create_task(attack(chosen, target, count))
    await until_on_loop(lambda: count.steps >= steps or task.done(), lambda: (chosen.name, count))
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return count


@longer(others=True)
@pytest.mark.parametrize("chosen", WANTED, ids=[one.name for one in WANTED])
def test_others_are_served_through_it_and_after_it(
    broker: BrokerProcess, base_mib: float, chosen: Behaviour
) -> None:
    before = len(faults(broker))
    parameters = pika.ConnectionParameters(port=broker.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("victim", durable=True)
        asyncio.run(until_done(chosen, target_of(broker), STEPS))
        channel.basic_publish("", "victim", b"during", pika.BasicProperties(delivery_mode=2))
        assert channel.basic_get("victim", auto_ack=True)[2] == b"during"
        assert memory_mib(broker) - base_mib < GROWTH_MIB
    until(lambda: open_connections(broker) == 0)
    until(lambda: alarms(broker) == [])
    assert broker.http("GET", "/healthz", user=None)[0] == 200
    assert unbalanced(broker) == []
    assert faults(broker)[before:] == []
    renew(target_of(broker))


def test_there_are_sixty_and_each_port_has_some() -> None:
    assert len(ALL) >= 60
    assert {one.port for one in ALL} == set(PORTS)
    assert len({one.name for one in ALL}) == len(ALL)
