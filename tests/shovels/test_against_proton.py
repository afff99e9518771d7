"""Shovels to and from a broker of AMQP 1.0 that is not ours: Apache Qpid Proton's example."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tallymark.client import Message, connect
from tallymark.shovels.making import ends_of
from tallymark.shovels.plan import Plan
from tallymark.shovels.runner import Runner
from tallymark.shovels.shovel import Pace
from tests.support.long import long
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess
from tests.support.proton_broker import CannotBeHad, ProtonBroker

COUNT = 500


def move(source: str, target: str) -> None:
    plan = Plan.from_table({"name": "s", "from": source, "queue": "there", "to": target})
    pace = Pace(most=COUNT, follows=False, persists=False)
    problems: list[str] = []
    runner = Runner(pace, lambda: ends_of(plan, "me", pace), lambda s: problems.append(s.problem))
    asyncio.run(runner.run())
    assert (problems, runner.shovel.moved) == ([], COUNT)


async def fill(url: str) -> None:
    async with connect(url) as connection, connection.session() as session:
        await session.declare_queue("there")
        async with session.sender("/queues/there") as sender:
            await sender.send_batch(
                [
                    Message({"n": n}, subject="s", application_properties={"n": n})
                    for n in range(COUNT)
                ]
            )


async def empty(url: str) -> list[Message]:
    async with (
        connect(url) as connection,
        connection.session() as session,
        session.receiver("/queues/there", credit=COUNT) as receiver,
    ):
        found = await receiver.receive_batch(COUNT, PATIENCE_S)
        await receiver.settle_many(found, "accept")
        return list(found)


@long(ci=False)  # the broker is fetched and built
def test_messages_go_there_and_come_back(tmp_path: Path) -> None:
    try:
        proton = ProtonBroker(tmp_path)
    except CannotBeHad as error:
        pytest.skip(str(error))
    with proton, BrokerProcess(tmp_path / "data") as broker:
        here = f"amqp10://guest:guest@127.0.0.1:{broker.amqp_port}"
        there = f"amqp10://127.0.0.1:{proton.port}"
        asyncio.run(fill(broker.amqp_url()))
        move(here, there)
        move(there, here)
        found = asyncio.run(empty(broker.amqp_url()))
    assert [message.body for message in found] == [{"n": n} for n in range(COUNT)]
    said = found[0]
    assert (said.subject, said.application_properties) == ("s", {"n": 0})
    moved = said.annotations["x-shovelled"]
    assert isinstance(moved, list)
    assert [one["src"] for one in moved] == ["there", "there"]
