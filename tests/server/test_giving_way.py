"""A publisher that is ahead of its queue's consumers waits for as long as they catch up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.lean import ACK, TRANSIENT, publish, settle, short
from bench.stepped import Peer, SteppedBroker
from tallymark.server.giving_way import (
    BUSY,
    IS_OVER,
    IS_VAIN,
    LEAST,
    MOST_ROUNDS,
    PAUSE,
    RETRY_S,
    ROUND,
    what_next,
)


@pytest.mark.parametrize(
    ("gone", "before", "rounds", "has_paused", "found"),
    [
        (100, 100, 0, False, ROUND),  # its own round: nobody else was read yet
        (101, 100, 1, False, ROUND),  # something left
        (101, 101, 2, False, PAUSE),  # nothing did
        (10 + BUSY, 10, 3, True, ROUND),  # but in the pause
        (9 + BUSY, 10, 3, True, IS_VAIN),  # consumers are what is slow
        (99, 101, 3, True, IS_VAIN),  # something came back
        (140, 120, 3, False, IS_OVER),  # as many as it added
        (139, 120, MOST_ROUNDS - 1, False, ROUND),
        (139, 120, MOST_ROUNDS, False, IS_OVER),  # never for good
    ],
)
def test_what_next(gone: int, before: int, rounds: int, has_paused: bool, found: int) -> None:
    assert what_next(140, gone, before, rounds, has_paused) == found


@pytest.mark.parametrize("left_each_time", [0, 1, 2, 7, 10_000])
def test_does_not_wait_for_good(left_each_time: int) -> None:
    gone, rounds, found = 0, 0, ROUND
    while found not in (IS_OVER, IS_VAIN):
        gone, before = gone + left_each_time, gone
        found = what_next(5000, gone, before, rounds, found == PAUSE)
        rounds += 1
    assert rounds <= MOST_ROUNDS + 1


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SteppedBroker]:
    with SteppedBroker(tmp_path / "data") as broker:
        yield broker


def source_of(broker: SteppedBroker) -> tuple[Peer, list[str]]:
    """Return a publisher, and a list of when it is not read and when it is again."""
    source, seen = broker.amqp().enter(), list[str]()
    source.pipe.pause_reading = lambda: seen.append("waits")  # type: ignore[method-assign]
    source.pipe.resume_reading = lambda: seen.append("is read")  # type: ignore[method-assign]
    source.call((50, 10), b"\0\0" + short("q") + bytes([0]) + bytes(4))
    return source, seen


def sink_of(broker: SteppedBroker) -> Peer:
    sink = broker.amqp().enter(prefetch=1)
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
    broker.loop.now += RETRY_S
    source.send(MANY)
    assert seen == ["waits", "is read"] * 2


def test_few_messages_do_not_wait(broker: SteppedBroker) -> None:
    source, seen = source_of(broker)
    sink_of(broker)
    source.send(MANY)
    for _ in range(3):
        source.send(publish(1, "", "q", TRANSIENT, b"x"))
    assert seen == []
