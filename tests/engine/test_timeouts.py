"""Consumers that take too long [LC-4]."""

from __future__ import annotations

import pytest

from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.outcomes import ACCEPTED
from tallymark.engine.session import Consumer, Session
from tallymark.engine.settings import Settings
from tallymark.engine.timeouts import CONSUMER_TIMEOUT_MS, MERGE_MS
from tests.support.engine_rig import Rig
from tests.support.engine_steps import manual

SECOND = 1000


def consume(
    rig: Rig, name: str, session: Session | None = None, prefetch: int = 0, **arguments: object
) -> Consumer:
    session = session or rig.session()
    rig.broker.consuming.set_prefetch(session, prefetch, False)
    given = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    queue = rig.vhost.queues[name]
    return rig.broker.consuming.consume(session, queue, "c", False, False, 0, given)


def timed_out(rig: Rig, ms: int) -> list[tuple[int, Consumer | None, int]]:
    """What is told in the coming time: how much later, whom, which limit."""
    start = rig.now_ms
    rig.timed_out.clear()
    rig.advance(ms)
    rig.broker.check()
    return [(at - start, who, limit) for at, who, limit in rig.timed_out]


def test_lc_4_only_what_is_overdue_returns_and_the_consumer_is_stopped() -> None:
    rig = manual()
    queue = rig.declare("q", {"consumer-timeout": 10 * SECOND})
    consumer = consume(rig, "q", prefetch=2)
    rig.send("q", 1)
    rig.advance(5 * SECOND)
    rig.send("q", 2)
    [(late, who, limit)] = timed_out(rig, 6 * SECOND)
    assert 5 * SECOND <= late <= 5 * SECOND + MERGE_MS
    assert (who, limit) == (consumer, 10 * SECOND)
    assert not consumer.active
    assert rig.ready("q") == [1]
    assert queue.acquired == 1
    # The other one is due later, and nobody is told twice.
    rig.advance(4 * SECOND - 1)
    assert rig.ready("q") == [1]
    assert timed_out(rig, SECOND) == []
    assert rig.ready("q") == [1, 2]


def test_lc_4_what_a_cancelled_consumer_holds_returns_without_a_word() -> None:
    rig = manual()
    rig.declare("q", {"consumer-timeout": SECOND})
    consumer = consume(rig, "q")
    rig.send("q", 1)
    rig.advance(0)
    rig.broker.consuming.cancel(consumer)
    assert timed_out(rig, 2 * SECOND) == []
    assert rig.ready("q") == [1]


def test_lc_2_a_late_settlement_touches_nothing() -> None:
    rig = manual()
    queue = rig.declare("q", {"consumer-timeout": SECOND})
    slow = rig.session()
    consume(rig, "q", slow)
    rig.send("q", 1)
    assert len(timed_out(rig, 2 * SECOND)) == 1
    other = rig.session()
    consume(rig, "q", other)
    [delivery] = rig.settle_down()
    assert (delivery.number, delivery.redelivered) == (1, True)
    rig.broker.settlement.settle(slow, 1, 1, ACCEPTED)
    assert (slow.unacked, queue.acquired, queue.account.settled) == (0, 1, 0)
    with pytest.raises(PreconditionFailed, match="unknown delivery tag 1"):
        rig.broker.settlement.settle(slow, 1, 1, ACCEPTED)
    rig.broker.settlement.settle(other, 1, 1, ACCEPTED)
    rig.settle_down()
    assert queue.counters()["settled"] == 1
    rig.broker.check()


def test_lc_4_a_session_that_closes_does_not_return_it_twice() -> None:
    rig = manual()
    rig.declare("q", {"consumer-timeout": SECOND})
    slow = rig.session()
    consume(rig, "q", slow)
    rig.send("q", 1, 2)
    timed_out(rig, 2 * SECOND)
    rig.broker.clients.close_session(slow, True)
    rig.settle_down()
    assert rig.ready("q") == [1, 2]
    assert [held.failed for held in rig.holds("q")] == [0, 0]
    rig.broker.check()


def test_lc_4_what_was_settled_in_time_is_not_missed() -> None:
    rig = manual()
    rig.declare("q", {"consumer-timeout": SECOND})
    session = rig.session()
    consume(rig, "q", session)
    rig.send("q", 1, 2, 3)
    rig.advance(0)
    rig.broker.settlement.settle(session, 2, 2, ACCEPTED)
    assert len(timed_out(rig, 2 * SECOND)) == 1
    assert rig.ready("q") == [1, 3]


def test_lc_4_the_consumer_says_it_first_then_queue_and_policy_the_smaller() -> None:
    rig = manual()
    for name in ("own", "argument", "policy", "default"):
        rig.declare(name, {"consumer-timeout": 5 * SECOND} if name != "default" else None)
        own: dict[str, object] = {"consumer_timeout": 2 * SECOND} if name == "own" else {}
        consume(rig, name, None, 0, **own)
        rig.send(name, 1)
    rig.set_policy("policy", {"consumer-timeout": 3 * SECOND})
    told = timed_out(rig, CONSUMER_TIMEOUT_MS + SECOND)
    assert [(w.queue.name, limit) for _, w, limit in told if w is not None] == [
        ("own", 2 * SECOND),
        ("policy", 3 * SECOND),
        ("argument", 5 * SECOND),
        ("default", CONSUMER_TIMEOUT_MS),
    ]
    assert all(0 <= late - limit <= MERGE_MS for late, _, limit in told)


@pytest.mark.parametrize(("own", "given"), [(0, 500), (500, 0), (500, 100_000), (100_000, 500)])
def test_lc_4_no_end_is_longer_than_any_time(own: int, given: int) -> None:
    assert (
        Settings({"x-consumer-timeout": own}, {"consumer-timeout": given}).consumer_timeout_ms
        == 500
    )


def test_lc_4_zero_is_no_limit() -> None:
    rig = manual()
    rig.declare("q")
    consume(rig, "q", consumer_timeout=0)
    rig.send("q", 1)
    assert timed_out(rig, 10 * CONSUMER_TIMEOUT_MS) == []


def test_lc_4_a_policy_holds_for_what_is_out_already() -> None:
    rig = manual()
    rig.declare("q")
    consume(rig, "q")
    rig.send("q", 1)
    rig.advance(60 * SECOND)
    rig.set_policy("q", {"consumer-timeout": SECOND})
    [(late, _, limit)] = timed_out(rig, SECOND)
    assert (late <= MERGE_MS, limit) == (True, SECOND)


def test_lc_4_steady_traffic_is_never_overdue() -> None:
    """Deliveries that follow each other share an entry, but not its time for ever."""
    rig = manual()
    rig.declare("q", {"consumer-timeout": SECOND})
    session = rig.session()
    consume(rig, "q", session)
    rig.send("q", 0)
    rig.advance(0)
    for n in range(1, 300):
        rig.send("q", n)
        assert timed_out(rig, 10) == []
        rig.broker.settlement.settle(session, n, n, ACCEPTED)


def test_lc_4_what_basic_get_took_is_looked_after_too() -> None:
    rig = manual()
    queue = rig.declare("q", {"consumer-timeout": SECOND})
    session = rig.session()
    rig.send("q", 1)
    assert rig.broker.consuming.get(session, queue, False) is not None
    [(_, who, _)] = timed_out(rig, 2 * SECOND)
    assert who is None
    assert rig.ready("q") == [1]


def test_lc_4_what_came_back_survives_a_restart_ready() -> None:
    rig = manual()
    rig.declare("q", {"consumer-timeout": SECOND})
    consume(rig, "q")
    rig.send("q", 1)
    timed_out(rig, 2 * SECOND)
    again = rig.restart()
    assert again.ready("q") == [1]
    consume(again, "q")
    assert [delivery.redelivered for delivery in again.advance(0)] == [True]


def test_lc_4_a_policy_holds_for_what_cancelled_consumers_and_gets_hold() -> None:
    rig = manual()
    queue = rig.declare("q")
    rig.send("q", 1, 2)
    consumer = consume(rig, "q", prefetch=1)
    rig.advance(0)
    rig.broker.consuming.cancel(consumer)
    assert rig.take(rig.session(), "q") is not None
    rig.advance(5 * SECOND)
    assert queue.acquired == 2
    rig.set_policy("q", {"consumer-timeout": 10 * SECOND})
    rig.advance(5 * SECOND + MERGE_MS)
    assert (queue.acquired, rig.ready("q")) == (0, [1, 2])
