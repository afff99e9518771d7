"""When the loop rests behind a turn, and who keeps it from that."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.lean import ACK, NACK, PERSISTENT, method, publish, settle, short
from bench.stepped import Peer, SteppedBroker
from tallymark.server.clock import CLOCKS
from tallymark.server.resting import CALM_NS, HASTE_NS, LEAST_READS, REST_S, WINDOW_NS, Resting
from tallymark.wire.amqp10.frames import frame
from tallymark.wire.amqp10.performatives import Flow
from tallymark.wire.amqp10.sections import Header, encode_message
from tallymark.wire.amqp10.sending import (
    ACCEPTED,
    TransferForm,
    disposition_frame,
    encode_transfers,
)

STEP_NS = 200_000
"""Nanoseconds between two reads: 5,000 a second."""
CALM = 2 * CALM_NS // STEP_NS
"""Number of publishers that take turns, so that each of them is silent for long enough."""
BEGAN_NS = 1_000_000_000


def may_rest(reads_a_second: int, seconds: int = 1) -> list[bool]:
    """What is answered at the end of each window of so many reads a second."""
    resting, found = Resting(), []
    in_window = reads_a_second * WINDOW_NS // 1_000_000_000
    for number in range(1, 1 + seconds * 1_000_000_000 // WINDOW_NS):
        found.append(resting.may_rest(BEGAN_NS + number * WINDOW_NS, number * in_window))
    return found[1:]  # the first window began with the clock


def test_the_loop_rests_where_reads_are_many() -> None:
    assert all(may_rest(LEAST_READS))
    assert not any(may_rest(LEAST_READS - 100))


def test_no_rest_is_due_for_a_while_after_a_client_asked_twice_within_its_calm() -> None:
    resting, reads = Resting(), 0

    def rests(now_ns: int) -> bool:
        nonlocal reads
        reads += 4 * LEAST_READS
        return resting.may_rest(now_ns, reads)

    now_ns = BEGAN_NS
    assert rests(now_ns + 1_000_000_000)
    now_ns += 2_000_000_000
    resting.asked(now_ns, 0)
    resting.asked(now_ns, now_ns - CALM_NS)
    assert rests(now_ns)
    resting.asked(now_ns, now_ns - CALM_NS + 1)
    assert not resting.may_rest(now_ns + HASTE_NS - 1, reads + 4 * LEAST_READS)
    assert rests(now_ns + HASTE_NS)
    resting.hurry(now_ns + HASTE_NS)
    assert not rests(now_ns + 2 * HASTE_NS - 1)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SteppedBroker]:
    with SteppedBroker(tmp_path / "data") as broker:
        yield broker


def read(broker: SteppedBroker, peer: Peer, data: bytes) -> None:
    """Give the broker one read and all that follows from it; then STEP_NS pass."""
    peer._client.data_received(data)
    broker.settle()
    broker.loop.now += STEP_NS / 1e9


def declare(peer: Peer, queue: str) -> None:
    peer.call((50, 10), b"\0\0" + short(queue) + b"\2" + bytes(4))


def consume(peer: Peer, queue: str) -> None:
    peer.call((60, 20), b"\0\0" + short(queue) + short(queue) + b"\0" + bytes(4))


def calm(broker: SteppedBroker, queue: str) -> list[Peer]:
    """Publishers to a queue of which each is silent for long between two messages."""
    peers = [broker.amqp().enter(confirms=True) for _ in range(CALM)]
    declare(peers[0], queue)
    broker.loop.now += 1.0
    return peers


def one(queue: str) -> bytes:
    return publish(1, "", queue, PERSISTENT, b"x")


def rests_while(broker: SteppedBroker, peers: list[Peer], rounds: int = 3) -> int:
    """Rests while each of the publishers publishes so many times."""
    before = broker.node.rests
    for _ in range(rounds):
        for peer in peers:
            read(broker, peer, one("q"))
    return broker.node.rests - before


def test_the_loop_rests_while_many_publish_now_and_then(broker: SteppedBroker) -> None:
    slept: list[float] = []
    CLOCKS.sleep = slept.append
    peers = calm(broker, "q")
    assert rests_while(broker, peers) >= CALM
    assert slept == [REST_S] * broker.node.rests


def test_a_consumer_that_only_settles_does_not_end_rests(broker: SteppedBroker) -> None:
    peers, sink = calm(broker, "q"), broker.amqp().enter(prefetch=100)
    consume(sink, "q")
    broker.loop.now += 1.0
    tag = 0
    for _ in range(2):
        for peer in peers:
            tag += 1
            read(broker, peer, one("q"))
            read(broker, sink, settle(1, ACK, tag, 0))
    assert broker.node.rests >= CALM


def test_a_client_that_may_wait_for_each_answer_ends_rests(broker: SteppedBroker) -> None:
    peers = calm(broker, "q")
    assert rests_while(broker, peers) > 0
    for _ in range(2):
        read(broker, peers[0], one("q"))
    before = broker.node.rests
    for peer in peers[1:]:
        read(broker, peers[0], one("q"))
        read(broker, peer, one("q"))
    assert broker.node.rests == before


def test_a_consumer_whose_credit_is_used_up_ends_rests(broker: SteppedBroker) -> None:
    """It got a quarter of the messages a second that it gets where the loop does not rest."""
    peers, sink = calm(broker, "q"), broker.amqp().enter(prefetch=1)
    declare(sink, "backlog")
    for _ in range(CALM):
        sink.send(one("backlog"))
    consume(sink, "backlog")
    broker.loop.now += 1.0
    assert rests_while(broker, peers) > 0
    read(broker, sink, settle(1, ACK, 1, 0))
    before = broker.node.rests
    for tag, peer in enumerate(peers[1:], 2):
        read(broker, peer, one("q"))
        read(broker, sink, settle(1, ACK, tag, 0))
    assert broker.node.rests == before


def test_what_waits_for_the_disk_alone_does_not_end_rests(broker: SteppedBroker) -> None:
    """A message that entered is ready until its block is written, and its consumer has credit."""
    peers, sink = calm(broker, "q"), broker.amqp().enter(prefetch=1000)
    consume(sink, "q")
    broker.loop.now += 1.0
    assert rests_while(broker, peers) >= CALM


def asked(broker: SteppedBroker, peer: Peer, data: bytes) -> int:
    """How much of this the client may wait for an answer to."""
    bridge = peer._client.bridge
    before = bridge.asked
    read(broker, peer, data)
    return bridge.asked - before


def test_what_an_amqp_client_may_wait_for(broker: SteppedBroker) -> None:
    source, sink = broker.amqp().enter(), broker.amqp().enter(prefetch=10)
    declare(source, "q")
    consume(sink, "q")
    assert asked(broker, source, one("q")) == 1
    assert asked(broker, sink, settle(1, ACK, 1, 0)) == 0
    rejected = struct.pack(">QB", 2, 0)
    read(broker, source, one("q") * 2)
    assert asked(broker, sink, method(1, (60, 90), rejected)) == 0, "a reject"
    assert asked(broker, sink, settle(1, NACK, 3, 0)) == 0
    assert asked(broker, source, method(1, (60, 70), b"\0\0" + short("q") + b"\0")) == 1, "a get"
    assert asked(broker, source, b"\x08\0\0\0\0\0\0\xce") == 0, "a heartbeat"


def test_what_a_client_of_links_may_wait_for(broker: SteppedBroker) -> None:
    declare(broker.amqp().enter(), "links")
    source, sink = broker.amqp().enter_links(), broker.amqp().enter_links()
    before = source._client.bridge.asked
    source.attach_sender("links", 0)
    assert source._client.bridge.asked == before + 1
    sink.attach_receiver("links", 0, 10)
    message = encode_message(Header(True), body=b"x")
    cuts = array("I", (0, len(message)))
    sent, _ = encode_transfers(TransferForm(0, 0), 0, 0, message, cuts, 0, 1, b"", 0, 1 << 16)
    assert asked(broker, source, sent) == 1
    assert asked(broker, sink, disposition_frame(0, True, 0, 0, True, ACCEPTED)) == 0

    def flow(drain: bool) -> bytes:
        return frame(0, Flow(0, 1 << 30, 0, 1 << 30, 0, 1, 10, drain=drain).encode())

    assert asked(broker, sink, flow(False)) == 0
    assert asked(broker, sink, flow(True)) == 1, "it is told when the drain is over"


def test_what_a_client_of_nsq_may_wait_for(broker: SteppedBroker) -> None:
    source, sink = broker.nsq(), broker.nsq()
    for peer in (source, sink):
        peer.send(b"  V2")
    assert asked(broker, sink, b"SUB nsq c\n") == 1
    assert asked(broker, sink, b"RDY 10\n") == 0
    sink.pipe.take()
    assert asked(broker, source, b"PUB nsq\n\0\0\0\1x") == 1
    id = sink.pipe.take()[18:34]
    assert asked(broker, sink, b"TOUCH " + id + b"\n") == 0
    assert asked(broker, sink, b"FIN " + id + b"\n") == 0
    assert asked(broker, sink, b"CLS\n") == 1
