"""Clients with postponed input take turns, and a round of the loop is for others, too."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from bench.lean import method, publish, short
from tallymark.engine.quotas import MAX_PUBLISH_RATE
from tallymark.server import run
from tallymark.server.postponed import Postponed
from tallymark.wire.amqp091.frames import HEARTBEAT_FRAME
from tallymark.wire.line import SHARE
from tests.server.inside import with_broker
from tests.server.lines import DOORS
from tests.support.patience import until


class Flooder:
    """Has input for so many shares."""

    def __init__(self, name: str, shares: int, line: Postponed, worked: list[str]) -> None:
        self.is_in_line = False
        self.name = name
        self.shares = shares
        self.line = line
        self.worked = worked

    def work_on(self) -> None:
        self.shares -= 1
        self.worked.append(self.name)
        if self.shares:
            self.line.add(self)


async def play(rounds: dict[str, int], round_ns: int) -> list[str]:
    """Names in the order of their shares; "." is a round of the loop, in which sockets are read."""
    loop = asyncio.get_running_loop()
    seen: list[str] = []
    line = Postponed(loop, round_ns)
    flooders = [Flooder(name, shares, line, seen) for name, shares in rounds.items()]

    def other() -> None:
        seen.append(".")
        if any(one.shares for one in flooders):
            loop.call_soon(other)
        else:
            done.set_result(None)

    done = loop.create_future()
    for one in flooders:
        line.add(one)
        line.add(one)  # who stands in line stands there once
    loop.call_soon(other)
    await done
    return seen


def test_a_round_is_for_one_share_and_then_for_all_others() -> None:
    found = "".join(asyncio.run(play({"a": 3, "b": 1, "c": 2}, round_ns=0)))
    assert found == "a.b.c.a.c.a."


@pytest.mark.parametrize("rounds", [{"a": 500}, {"a": 200, "b": 7, "c": 300}])
def test_a_round_with_time_is_for_as_many_shares_as_fit(rounds: dict[str, int]) -> None:
    found = asyncio.run(play(rounds, round_ns=1 << 62))
    assert found.count(".") == 1
    assert {name: found.count(name) for name in rounds} == rounds
    assert found[: len(rounds)] == list(rounds)


COUNT = 100
BODY = b"x" * 60_000


def test_who_waits_for_room_is_worked_on_after_a_flush_and_not_before(tmp_path: Path) -> None:
    """Answers that fill a socket's buffer leave with the turn: until then nothing can be answered,
    and a round of the loop was spent in vain on asking again."""
    (tmp_path / "data").mkdir()
    spent: list[tuple[int, int]] = []

    async def play(ports: dict[str, int], node: run.Node) -> None:
        raw = socket.create_connection(("127.0.0.1", ports["amqp_port"]))
        with raw:
            await asyncio.to_thread(DOORS[0].enter, raw)
            declare = method(1, (50, 10), b"\0\0" + short("q") + b"\0" + b"\0\0\0\0")
            opened = method(1, (20, 10), b"\0") + declare
            sent = publish(1, "", "q", b"\0\0", BODY) * COUNT
            await asyncio.to_thread(raw.sendall, opened + sent)
            queues = node.broker.vhost("/").queues
            await asyncio.to_thread(until, lambda: "q" in queues and queues["q"].ready == COUNT)
            reads, turns = node.reads, node.turns
            get = method(1, (60, 70), b"\0\0" + short("q") + b"\x01")
            await asyncio.to_thread(raw.sendall, get * COUNT)
            await asyncio.to_thread(read, raw, COUNT * len(BODY))
            spent.append((node.reads - reads, node.turns - turns))

    with asyncio.Runner(loop_factory=run._loop_factory()) as runner:
        runner.run(with_broker(tmp_path / "data", play))
    [(reads, turns)] = spent
    assert reads <= 2 * turns + 2


def test_what_a_deadline_has_worked_on_counts_against_the_publish_rate(tmp_path: Path) -> None:
    """A client that rests has input left; a heartbeat's deadline had some of it published, and the
    rest was no longer for it."""
    (tmp_path / "data").mkdir()
    seen: list[tuple[int, float]] = []

    async def play(ports: dict[str, int], node: run.Node) -> None:
        node.broker.quotas.limit({"/": {MAX_PUBLISH_RATE: 1}}, {})
        raw = socket.create_connection(("127.0.0.1", ports["amqp_port"]))
        with raw:
            await asyncio.to_thread(DOORS[0].enter, raw)
            one = publish(1, "", "nowhere", b"\0\0", b"x") + HEARTBEAT_FRAME  # no runs
            await asyncio.to_thread(raw.sendall, method(1, (20, 10), b"\0") + one * 5 * SHARE)
            resting = node.pacer._resting
            await asyncio.to_thread(until, lambda: len(resting) == 1)
            [(client, timer)] = resting.items()
            assert client.bridge.is_behind
            before = node.broker.publishing.published
            client._due()
            seen.append(
                (node.broker.publishing.published - before, resting[client].when() - timer.when())
            )

    with asyncio.Runner(loop_factory=run._loop_factory()) as runner:
        runner.run(with_broker(tmp_path / "data", play))
    [(published, longer_s)] = seen
    assert published > 1
    assert longer_s > published - 1


def read(raw: socket.socket, size: int) -> None:
    while size > 0:
        data = raw.recv(1 << 20)
        assert data
        size -= len(data)
