"""The demo's rollback scene: what its checks refuse, and its worker for real."""

from __future__ import annotations

import pika

from tallymark.spark.account import Reconciliation, Returned
from tallymark_demo import rollback as demo_rollback
from tallymark_demo.rollback import (
    BOOKINGS,
    FAILURES,
    IN_ONE,
    NAMES,
    Work,
    ended_once,
    given_back,
    name_of,
)
from tests.support.process import BrokerProcess

COMMITTED = [NAMES[i : i + IN_ONE] for i in range(0, len(NAMES), IN_ONE)]


def test_tx_a2_the_checks_see_what_came_out_of_its_turn() -> None:
    good = Work([NAMES[:IN_ONE]] * FAILURES + COMMITTED, FAILURES)
    assert good.begins_again()
    assert good.is_in_order()
    assert good.after_rollbacks == [name_of(0)] * FAILURES
    overtaken = Work([NAMES[:IN_ONE], NAMES[IN_ONE : 2 * IN_ONE], *good.attempts[2:]], FAILURES)
    assert not overtaken.begins_again()
    assert not Work(good.attempts[:-1], FAILURES).is_in_order()
    assert not Work(good.attempts[1:], FAILURES - 1).begins_again()


def test_what_the_journal_says_was_given_back() -> None:
    returned = [Returned(BOOKINGS, "client", 7), Returned("other", "client", 9)]
    assert given_back(Reconciliation(64, [], returned=returned)) == 7


def test_tx_a2_the_scene_with_a_broker(broker: BrokerProcess) -> None:
    parameters = pika.ConnectionParameters(port=broker.amqp_port)
    demo_rollback.declare(parameters)
    assert demo_rollback.without_stopping(parameters) == name_of(IN_ONE)
    work = demo_rollback.invoice(f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/")
    assert work.begins_again(), work
    assert work.is_in_order(), work
    assert ended_once(broker.queues()[BOOKINGS])
    assert demo_rollback.invoices(parameters) == NAMES
