"""When the loop rests behind a turn: many clients each ask for something now and then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.lean import PERSISTENT, publish, short
from bench.stepped import SteppedBroker
from tallymark.server.clock import CLOCKS
from tallymark.server.gathering import LEAST, MOST, RARE_NS, READ_NS, REST_S, Gathering

LONG_AGO_NS = -RARE_NS
CLIENTS = 2 * LEAST


def asked(gathering: Gathering, times: int, each_ns: int, begin_ns: int = 0) -> int:
    """Have so many clients ask that had not for long; return the time of the last."""
    now_ns = begin_ns
    for _ in range(times):
        now_ns += each_ns
        gathering.asked(now_ns - RARE_NS, now_ns)
    return now_ns


def test_the_loop_rests_while_many_clients_each_ask_rarely() -> None:
    gathering = Gathering()
    now_ns = asked(gathering, LEAST - 1, READ_NS // 2)
    assert not gathering.is_on
    now_ns = asked(gathering, 3 * MOST, READ_NS // 2, now_ns)
    assert gathering.is_on


def test_it_does_not_where_they_ask_slowly_and_stops_where_they_begin_to() -> None:
    gathering = Gathering()
    now_ns = asked(gathering, 3 * MOST, 2 * READ_NS)
    assert not gathering.is_on
    now_ns = asked(gathering, LEAST + 1, READ_NS // 2, now_ns)
    assert gathering.is_on
    asked(gathering, 1, 2 * LEAST * READ_NS, now_ns)
    assert not gathering.is_on


def test_who_asks_again_soon_ends_it() -> None:
    """It may wait for each answer before it asks again: a publisher with a window of one."""
    gathering = Gathering()
    now_ns = asked(gathering, LEAST, READ_NS // 2)
    assert gathering.is_on
    gathering.asked(now_ns - RARE_NS + 1, now_ns)
    assert not gathering.is_on
    now_ns = asked(gathering, LEAST - 1, READ_NS // 2, now_ns)
    assert not gathering.is_on, "and it begins anew"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SteppedBroker]:
    with SteppedBroker(tmp_path / "data") as broker:
        yield broker


def test_their_reads_share_a_turn_and_each_is_answered_behind_it(broker: SteppedBroker) -> None:
    rests: list[float] = []
    CLOCKS.rest = rests.append
    peers = [broker.amqp().enter(confirms=True) for _ in range(CLIENTS)]
    peers[0].call((50, 10), b"\0\0" + short("q") + b"\2" + bytes(4))
    one = publish(1, "", "q", PERSISTENT, b"x" * 64)
    broker.loop.now += 1.0
    for peer in peers[:LEAST]:
        peer.send(one)  # ten milliseconds pass: these ask slowly
        peer.pipe.take()
    assert rests == []
    broker.loop.now += 1.0
    turns = broker.node.turns
    for round_ in range(2):
        for peer in peers:
            peer._client.data_received(one)
            broker.loop.now += READ_NS / 4e9
        broker.settle()
        assert rests == [REST_S] * (round_ + 1)
        broker.loop.now += 1.0
    assert broker.node.turns - turns <= 3 * LEAST, (
        "those before it rested, and a few for all others"
    )
    confirms = [peer.pipe.take() for peer in peers]
    assert all(b"\0\x3c\0\x50" in one for one in confirms)
    (queue,) = broker.node.broker.queues.values()
    assert queue.ready == LEAST + 2 * CLIENTS
