"""What each consumer came to, and how fast it is."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tallymark.engine.consumers import figures
from tallymark.engine.quotas import HALF_MS, WINDOW_MS, Pace
from tallymark.stored import records
from tests.support.slow_rig import Slow


def shown(slow: Slow) -> dict[str, Any]:
    assert slow.consumer is not None
    return figures(slow.consumer, slow.rig.now_ms)


def test_a_consumer_in_numbers() -> None:
    slow = Slow(10, count=1)
    slow.wait(500)
    assert (shown(slow)["idle_ms"], shown(slow)["credit"]) == (500, 10)
    slow.send(20)
    slow.wait(2000)
    slow.settle(1, 4)
    slow.wait(1000)
    found = shown(slow)
    assert {key: found[key] for key in ("delivered", "settled", "unsettled", "credit")} == {
        "delivered": 14, "settled": 4, "unsettled": 10, "credit": 0,
    }  # fmt: skip
    assert (found["oldest_unsettled_ms"], found["idle_ms"], found["age_ms"]) == (3000, None, 3500)
    assert found["rate"] == round(4 / 3.5, 3)
    slow.settle(5, 14)
    slow.settle(15, 20)
    slow.wait(250)
    found = shown(slow)
    assert (found["unsettled"], found["oldest_unsettled_ms"], found["idle_ms"]) == (0, None, 250)


def test_whatever_a_consumer_says_of_a_message_settles_it() -> None:
    slow = Slow(10, count=1)
    slow.rig.queue("sink")
    slow.send(3)
    slow.broker.settlement.settle(slow.session, 1, 1, 2)  # rejected
    slow.broker.settlement.settle(slow.session, 2, 2, 3)  # returned: it comes again
    slow.broker.settlement.settle_up_to(slow.session, 3, 1)
    slow.rig.settle_down()
    assert (shown(slow)["settled"], shown(slow)["delivered"], shown(slow)["unsettled"]) == (3, 4, 1)


def test_without_acknowledgement_the_rate_is_of_what_was_sent_and_credit_has_no_end() -> None:
    slow = Slow(no_ack=True, count=1)
    slow.wait(2000)
    slow.send(6)
    found = shown(slow)
    assert (found["delivered"], found["settled"], found["unsettled"]) == (6, 6, 0)
    assert (found["rate"], found["credit"], found["acknowledges"]) == (3.0, None, False)


def test_the_ledger_has_the_terms_of_a_consumer_and_what_it_came_to_when_it_ends() -> None:
    slow = Slow(10, count=1, durable=True, exclusive_queue=False)
    slow.send(3)
    slow.settle(1, 2)
    assert slow.consumer is not None
    slow.broker.consuming.cancel(slow.consumer)
    idle = slow.rig.consume(slow.session, "sub", "idle")
    slow.broker.consuming.set_flow(slow.session, False)
    slow.broker.consuming.cancel(idle)  # it was there, and did nothing
    slow.rig.settle_down()
    rows = [r for block in slow.rig.log.blocks for r in block if r.kind == records.CONSUMER]
    assert [(row.owner, row.other, row.reason) for row in rows] == [
        (slow.consumer.id, 0, records.CONSUMER_STARTED),
        (slow.consumer.id, 2, records.CONSUMER_ENDED),
        (idle.id, 0, records.CONSUMER_STARTED),
        (idle.id, 0, records.CONSUMER_ENDED),
    ]
    terms = json.loads(rows[0].blob)
    assert (terms["window"], terms["shared"], terms["session"]) == (10, None, slow.session.id)
    said = json.loads(rows[1].blob)
    assert (said["queue"], said["connection"], said["user"]) == ("sub", "rig", "guest")
    assert (said["delivered"], said["settled"], said["unsettled"]) == (3, 2, 1)
    after = slow.rig.restart()
    assert after.vhost.queues["sub"].entered == 3
    after.broker.check()


steps = st.lists(st.tuples(st.integers(0, 8_000), st.integers(1, 50)), max_size=40)


@given(steps, st.integers(0, 25_000))
def test_a_rate_lies_between_that_of_the_last_seconds_and_of_all_that_can_be_meant(
    steps: list[tuple[int, int]], after: int
) -> None:
    pace, now = Pace(0), 0
    done: list[tuple[int, int]] = []
    for pause, n in steps:
        now += pause
        pace.add(n, now)
        done.append((now, n))
    now += after
    rate = pace.rate(now)
    recent = sum(n for at, n in done if at > now - HALF_MS)
    at_all = sum(n for at, n in done if at >= now - 3 * WINDOW_MS)
    assert rate * max(WINDOW_MS, 1000) / 1000 >= recent * 0.999
    if not any(at > now - WINDOW_MS for at, _ in done):
        assert rate == 0
    assert rate <= at_all / (min(max(now, 1000), HALF_MS) / 1000) + 1e-9
    assert pace.done == sum(n for _, n in done)


def test_a_steady_pace_is_told_exactly_and_ends_within_a_window() -> None:
    pace = Pace(0)
    for at in range(100, 60_001, 100):
        pace.add(1, at)
    assert abs(pace.rate(60_000) - 10) < 0.2
    assert 4 < pace.rate(65_000) < 6
    assert pace.rate(70_000) == 0
    pace.add(1, 200_000)
    assert pace.rate(200_000) == 0.1


def test_the_ledger_has_a_changed_credit_but_not_every_grant() -> None:
    slow = Slow(10, count=1, durable=True, exclusive_queue=False)
    assert slow.consumer is not None
    for credit in (10, 12, 9, 0, 10, 11, 40):
        slow.broker.consuming.grant(slow.consumer, credit, False)
    slow.rig.settle_down()
    rows = [r for block in slow.rig.log.blocks for r in block if r.kind == records.CONSUMER]
    told = [json.loads(r.blob)["window"] for r in rows if r.reason == records.CONSUMER_CREDIT]
    assert told == [0, 10, 40]
