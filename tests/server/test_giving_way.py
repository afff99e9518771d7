"""A publisher that is ahead of its queue's consumers waits for as long as they catch up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.lean import ACK, PERSISTENT, TRANSIENT, publish, settle, short
from bench.stepped import Peer, SteppedBroker
from tallymark.server.giving_way import (
    AT_WORK_NS,
    BUSY,
    FIRST_RETRY_S,
    IS_OVER,
    IS_VAIN,
    LAST_RETRY_S,
    LEAST,
    MOST_ROUNDS,
    PAUSE,
    ROUND,
    SOME,
    STILL,
    GivingWay,
    is_kept_waiting,
    next_retry_s,
    what_next,
)
from tests.support.engine_rig import Rig


@pytest.mark.parametrize(
    ("gone", "before", "rounds", "waits", "found"),
    [
        (100, 100, 0, None, ROUND),  # its own round: nobody else was read yet
        (101, 100, 1, None, ROUND),  # something left
        (101, 101, 2, None, PAUSE),  # nothing did
        (101, 101, 3, True, ROUND),  # but consumers wait for the broker
        (120, 101, 3, False, IS_VAIN),  # consumers are what is slow
        (140, 120, 3, None, IS_OVER),  # as many as it added
        (140, 120, 3, False, IS_OVER),
        (139, 120, MOST_ROUNDS - 1, None, ROUND),
        (139, 120, MOST_ROUNDS, True, IS_OVER),  # never for good
    ],
)
def test_what_next(gone: int, before: int, rounds: int, waits: bool | None, found: int) -> None:
    assert what_next(140, gone, before, rounds, waits) == found


@pytest.mark.parametrize(
    ("left", "worked_ns", "are_wanting", "found"),
    [
        (BUSY, 0, False, True),
        (BUSY - 1, AT_WORK_NS - 1, False, False),
        (SOME, AT_WORK_NS, False, True),  # slow, but the broker did nothing else
        (SOME - 1, AT_WORK_NS, False, False),  # it was at work for others
        (-2, AT_WORK_NS, False, False),  # something came back
        (0, 0, True, True),  # the disk is slow
    ],
)
def test_consumers_wait_for_the_broker(
    left: int, worked_ns: int, are_wanting: bool, found: bool
) -> None:
    assert is_kept_waiting(left, worked_ns, are_wanting) == found


def test_waits_anew_soon_and_then_seldom() -> None:
    retry_s, times = FIRST_RETRY_S, []
    for _ in range(7):
        times.append(retry_s)
        retry_s = next_retry_s(IS_VAIN, retry_s)
    assert times == [0.02, 0.04, 0.08, 0.16, 0.32, LAST_RETRY_S, LAST_RETRY_S]
    assert next_retry_s(IS_OVER, retry_s) == FIRST_RETRY_S


@pytest.mark.parametrize("left_each_time", [0, 1, 2, 7, 10_000])
@pytest.mark.parametrize("are_wanting", [False, True])
def test_does_not_wait_for_good(left_each_time: int, are_wanting: bool) -> None:
    gone, rounds, found = 0, 0, ROUND
    while found not in (IS_OVER, IS_VAIN):
        gone, before = gone + left_each_time, gone
        waits = is_kept_waiting(left_each_time, 0, are_wanting) if found == PAUSE else None
        found = what_next(5000, gone, before, rounds, waits)
        rounds += 1
    assert rounds <= MOST_ROUNDS + 1


def test_does_not_wait_for_a_disk_that_hangs() -> None:
    """Consumers want what is ready, and nothing is going to leave."""
    rig = Rig()
    queue = rig.declare("q")
    rig.consume(rig.session(), "q", "sink", 10)
    rig.hold_disk = True
    rig.publish(rig.session(), "q", range(1, 101))
    rig.turn()
    assert (queue.ready > 0, queue.demand() > 0) == (True, True)
    wait = GivingWay(queue, 100)
    found = [wait.look()]
    while found[-1] in (ROUND, PAUSE):
        found.append(wait.look())
    assert found[-1] == IS_VAIN
    assert found.count(PAUSE) == STILL


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SteppedBroker]:
    with SteppedBroker(tmp_path / "data") as broker:
        yield broker


def source_of(broker: SteppedBroker, *, durable: bool = False) -> tuple[Peer, list[str]]:
    """Return a publisher to a queue, and a list of when it is not read and when it is again."""
    source, seen = broker.amqp().enter(), list[str]()
    source.pipe.pause_reading = lambda: seen.append("waits")  # type: ignore[method-assign]
    source.pipe.resume_reading = lambda: seen.append("is read")  # type: ignore[method-assign]
    source.call((50, 10), b"\0\0" + short("q") + bytes([2 * durable]) + bytes(4))
    return source, seen


def sink_of(broker: SteppedBroker, prefetch: int = 1) -> Peer:
    sink = broker.amqp().enter(prefetch=prefetch)
    sink.call((60, 20), b"\0\0" + short("q") + short("q") + bytes([0]) + bytes(4))
    return sink


MANY = publish(1, "", "q", TRANSIENT, b"x" * 16) * LEAST


def test_waits_while_acknowledgements_come(broker: SteppedBroker) -> None:
    source, seen = source_of(broker)
    sink = sink_of(broker)
    source.send(MANY)
    assert seen == [], "there was no backlog"
    source._client.data_received(MANY)
    broker.loop._run_once()  # type: ignore[attr-defined]
    assert seen == ["waits"]
    for tag in (1, 2, 3):
        sink._client.data_received(settle(1, ACK, tag, 0))
        broker.loop._run_once()  # type: ignore[attr-defined]
        assert seen == ["waits"], tag
    broker.step()
    assert seen == ["waits", "is read"], "no acknowledgement came any more"


@pytest.mark.parametrize(
    ("prefetch", "found"), [(2 * LEAST, []), (LEAST, []), (LEAST - 1, ["waits"])]
)
def test_does_not_wait_for_what_consumers_have_credit_for(
    broker: SteppedBroker, prefetch: int, found: list[str]
) -> None:
    """What is ready and wanted waits for the disk, not for a consumer."""
    source, seen = source_of(broker, durable=True)
    sink_of(broker, prefetch)
    stored = publish(1, "", "q", PERSISTENT, b"x") * LEAST
    source._client.data_received(stored)
    source._client.data_received(stored)
    [queue] = broker.node.broker.queues.values()
    assert queue.ready == 2 * LEAST, "the disk has answered for none"
    assert seen == found


def test_does_not_wait_for_consumers_that_stand_still(broker: SteppedBroker) -> None:
    source, seen = source_of(broker)
    source.send(MANY)
    source.send(MANY)
    assert seen == [], "nobody consumes"
    sink = sink_of(broker)
    source.send(MANY)
    assert seen == ["waits", "is read"], "one pause, in which nothing left"
    sink.send(settle(1, ACK, 1, 0))
    source.send(MANY)
    assert seen == ["waits", "is read"], "its consumers were slow a moment ago"
    broker.loop.now += FIRST_RETRY_S
    source.send(MANY)
    assert seen == ["waits", "is read"] * 2
    broker.loop.now += FIRST_RETRY_S
    source.send(MANY)
    assert seen == ["waits", "is read"] * 2, "they were slow for the second time"
    broker.loop.now += FIRST_RETRY_S
    source.send(MANY)
    assert seen == ["waits", "is read"] * 3


def test_few_messages_do_not_wait(broker: SteppedBroker) -> None:
    source, seen = source_of(broker)
    sink_of(broker)
    source.send(MANY)
    for _ in range(3):
        source.send(publish(1, "", "q", TRANSIENT, b"x"))
    assert seen == []
