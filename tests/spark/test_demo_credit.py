"""The demo's credit scene: what it counts, what its checks refuse, and its application for real."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pika
import pytest

from tallymark.spark.account import Reconciliation, Returned
from tallymark_demo import credit as demo_credit
from tallymark_demo.credit import (
    HANDOVER,
    ORDERS,
    SETTLEMENT,
    Shift,
    ended_once,
    is_in_journal,
    taken_back,
)
from tallymark_demo.stage import CheckFailed
from tests.support.process import BrokerProcess

NAMES = [f"o-{number}" for number in range(ORDERS)]


def shift(again: int, **given: Any) -> Shift:
    """All is done; the last `again` orders came twice, for their locks had expired."""
    found = Shift(
        came=Counter(NAMES + NAMES[ORDERS - again :]),
        expired=again,
        most_held=ORDERS if again else 1,
        labels=ORDERS,
        done=set(NAMES),
        seconds=2.04,
    )
    return replace(found, **given)


def test_a_shift_in_numbers() -> None:
    assert shift(3).row("hand-over") == {
        "credit on": "hand-over",
        "orders": ORDERS,
        "deliveries": ORDERS + 3,
        "most at once": ORDERS,
        "locks expired": 3,
        "came twice": 3,
        "labels": ORDERS,
        "time": "2.0 s",
    }


def test_fc_17_the_checks_tell_the_contracts_apart() -> None:
    assert shift(3).shows_the_fault()
    assert not shift(3).shows_none()
    assert shift(0).shows_none()
    assert not shift(0).shows_the_fault()


@pytest.mark.parametrize(
    "given",
    [{"expired": 0}, {"most_held": 1}, {"came": Counter(NAMES)}, {"done": set(NAMES[1:])}],
    ids=lambda given: next(iter(given)),
)
def test_a_fault_that_is_not_there_is_not_shown(given: dict[str, Any]) -> None:
    assert not shift(3, **given).shows_the_fault()


@pytest.mark.parametrize(
    "given",
    [
        {"expired": 1},
        {"most_held": 2},
        {"came": Counter([*NAMES, NAMES[0]])},
        {"came": Counter(NAMES[1:])},
        {"came": Counter([*NAMES[1:], NAMES[1]])},  # as many, but not each
        {"done": set(NAMES[1:])},
    ],
)
def test_a_fault_under_the_new_contract_fails_its_check(given: dict[str, Any]) -> None:
    assert not shift(0, **given).shows_none()


def test_each_order_has_to_end_once() -> None:
    queue = {"entered": ORDERS, "settled": ORDERS, "ready": 0, "acquired": 0, "dropped": {}}
    assert ended_once(queue)
    for wrong in (
        {"entered": ORDERS + 1},
        {"settled": ORDERS - 1},
        {"ready": 1},
        {"acquired": 1},
        {"dropped": {"expired": 1}},
    ):
        assert not ended_once(queue | wrong), wrong


def test_the_journal_has_to_know_of_expired_locks() -> None:
    returned = [
        Returned(HANDOVER, "close", 7),
        Returned(HANDOVER, "timeout", 5),
        Returned("other", "timeout", 9),
    ]
    account = Reconciliation(64, [], returned=returned)
    assert (taken_back(account, HANDOVER), taken_back(account, SETTLEMENT)) == (5, 0)
    assert is_in_journal(account, shift(5))
    assert is_in_journal(account, shift(4))
    assert not is_in_journal(account, shift(6))
    assert not is_in_journal(account, shift(0))
    late = replace(account, returned=[*returned, Returned(SETTLEMENT, "timeout", 1)])
    assert not is_in_journal(late, shift(5))


def test_fc_17_the_scene_with_a_broker(broker: BrokerProcess) -> None:
    demo_credit.declare(pika.ConnectionParameters(port=broker.amqp_port))
    url = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/"
    old = demo_credit.work(url, HANDOVER, "handover")
    new = demo_credit.work(url, SETTLEMENT, "settlement")
    assert old.shows_the_fault(), old
    assert new.shows_none(), new
    assert (old.warned, new.warned) == (True, False)
    assert new.labels == ORDERS


def test_a_queue_that_is_not_there_fails_the_scene(broker: BrokerProcess) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/"
    with pytest.raises(CheckFailed, match=r"no queue 'demo\.nothing'"):
        demo_credit.work(url, "demo.nothing", "settlement")
