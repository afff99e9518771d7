"""When a turn follows a read, and which reads need none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.lean import ACK, PERSISTENT, TRANSIENT, publish, settle, short
from bench.stepped import Peer, SteppedBroker
from tallymark.server.rhythm import ALONE, AT_ONCE, Rhythm


def lone(rhythm: Rhythm, times: int) -> list[bool]:
    """Read so many times, with a turn after each read; return which followed at once."""
    found = []
    for _ in range(times):
        found.append(rhythm.may_follow(False))
        rhythm.turn()
    return found


def test_turns_follow_at_once_when_reads_come_one_at_a_time_and_one_waits_now_and_then() -> None:
    found = lone(Rhythm(), ALONE + 2 * (AT_ONCE + 1))
    assert found == [False] * ALONE + ([True] * AT_ONCE + [False]) * 2


def test_reads_that_come_together_end_that() -> None:
    rhythm = Rhythm()
    lone(rhythm, ALONE + AT_ONCE)
    assert [rhythm.may_follow(False) for _ in range(3)] == [False] * 3
    rhythm.turn()
    assert lone(rhythm, ALONE + 1) == [False] * ALONE + [True]


def test_a_read_shares_a_turn_that_is_coming() -> None:
    rhythm = Rhythm()
    lone(rhythm, ALONE)
    assert not rhythm.may_follow(True)
    assert rhythm.may_follow(False), "which says nothing of the next read"


def test_a_turn_without_a_read_says_nothing() -> None:
    rhythm = Rhythm()
    lone(rhythm, ALONE - 1)
    rhythm.turn()
    assert lone(rhythm, 2) == [False, True]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SteppedBroker]:
    with SteppedBroker(tmp_path / "data") as broker:
        yield broker


def ends(broker: SteppedBroker, durable: bool = True, prefetch: int = 100) -> tuple[Peer, Peer]:
    """A publisher that asks for confirms, and a consumer, of queue q."""
    source, sink = broker.amqp().enter(confirms=True), broker.amqp().enter(prefetch=prefetch)
    source.call((50, 10), b"\0\0" + short("q") + bytes([2 if durable else 0]) + bytes(4))
    sink.call((60, 20), b"\0\0" + short("q") + short("q") + bytes([0]) + bytes(4))
    return source, sink


def read(peer: Peer, data: bytes) -> None:
    """Give the broker one read; nothing else happens, not even a round of the loop."""
    peer._client.data_received(data)


ONE = publish(1, "", "q", PERSISTENT, b"x" * 64)


def test_an_acknowledgement_alone_takes_no_turn_and_is_on_disk_after_the_linger(
    broker: SteppedBroker,
) -> None:
    source, sink = ends(broker)
    source.send(ONE * 2)
    node = broker.node
    turns, end, blocks = node.turns, node.journal.end, node.journal.syncs
    read(sink, settle(1, ACK, 1, 0))
    broker.settle()
    read(sink, settle(1, ACK, 2, 0))
    broker.settle()
    (queue,) = node.broker.queues.values()
    assert (queue.acquired, queue.account.settled) == (0, 2), "it has its effect"
    assert (node.turns, node.journal.end) == (turns, end)
    broker.step()
    assert node.journal.end > end
    assert node.journal.syncs == blocks + 1, "both share a block"


def test_what_lingers_when_turns_end_is_committed(broker: SteppedBroker) -> None:
    """Worlds 8807930 and 8808247: a clean stop's checkpoint knew it, the ledger did not."""
    source, sink = ends(broker)
    source.send(ONE)
    end = broker.node.journal.end
    read(sink, settle(1, ACK, 1, 0))
    assert broker.node.broker.ledger.rows
    broker.node.end()
    assert not broker.node.broker.ledger.rows
    assert broker.node.journal.end > end


def test_an_acknowledgement_that_makes_room_for_a_message_takes_a_turn(
    broker: SteppedBroker,
) -> None:
    source, sink = ends(broker, prefetch=1)
    source.send(ONE * 2)
    sink.pipe.take()
    sink.ask(settle(1, ACK, 1, 0), b"x" * 64)


def test_an_acknowledgement_with_a_request_is_answered(broker: SteppedBroker) -> None:
    source, sink = ends(broker)
    source.send(ONE)
    sink.ask(
        settle(1, ACK, 1, 0) + b"\x01\0\x01\0\0\0\x0b\0\x3c\0\x0a" + bytes(7) + b"\xce",
        b"\0\x3c\0\x0b",
    )


def test_an_acknowledgement_of_what_no_journal_keeps_takes_a_turn(broker: SteppedBroker) -> None:
    """No block will be written for it, so nothing else would let go of the body."""
    source, sink = ends(broker, durable=False)
    source.send(publish(1, "", "q", TRANSIENT, b"x" * 4096))
    turns = broker.node.turns
    read(sink, settle(1, ACK, 1, 0))
    broker.settle()
    assert broker.node.turns == turns + 1


def test_where_messages_come_alone_a_delivery_leaves_with_the_read(broker: SteppedBroker) -> None:
    source, sink = ends(broker)
    for tag in range(1, ALONE + 2):
        source.send(ONE)
        sink.send(settle(1, ACK, tag, 0))
    sink.pipe.take()
    read(source, ONE)
    assert b"x" * 64 in sink.pipe.take()
