"""What keeps the messages of a queue, in words; under the engine alone."""

from __future__ import annotations

import pytest

from tallymark.engine.outcomes import ACCEPTED
from tallymark.server.page.flow import reason_of
from tests.support.engine_rig import Rig


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.queue("q")
    made.publish(made.session(), "q", list(range(10)))
    made.settle_down()
    return made


def reason(rig: Rig) -> str:
    return reason_of(rig.vhost.queues["q"])


def test_nobody_is_there(rig: Rig) -> None:
    assert reason(rig) == "No consumer takes its messages."


def test_consumers_are_at_their_limit(rig: Rig) -> None:
    rig.consume(rig.session(), "q", "a", prefetch=2)
    rig.settle_down()
    assert reason(rig).startswith("Its consumer is at its prefetch limit, with 2 unsettled")
    rig.consume(rig.session(), "q", "b", prefetch=3)
    rig.settle_down()
    assert reason(rig).startswith("All 2 consumers are at their prefetch limit, with 5 unsettled")


def test_consumers_hold_messages_and_have_credit_left(rig: Rig) -> None:
    rig.consume(rig.session(), "q", "a", prefetch=20)
    rig.settle_down()
    assert reason(rig) == "Its consumer has 10 unsettled messages and settled none."


def test_an_operator_has_paused_it(rig: Rig) -> None:
    rig.consume(rig.session(), "q", "a", prefetch=2)
    rig.broker.registry.pause(rig.vhost.queues["q"], True)
    assert reason(rig).startswith("Paused by an operator")


def test_consumers_do_not_read(rig: Rig) -> None:
    session = rig.session()
    rig.consume(session, "q", "a", prefetch=2)
    session.connection.paused = True
    assert reason(rig) == "Its consumer does not read what was sent."


def test_they_are_settled_in_a_transaction(rig: Rig) -> None:
    session, queue = rig.session(), rig.vhost.queues["q"]
    transaction = rig.broker.transactions.begin(session)
    for _ in range(10):
        rig.get(session, queue)
    rig.broker.transactions.settle_up_to(transaction, session, 10, ACCEPTED)
    assert queue.account.staged == 10
    assert reason(rig) == "They were settled in a transaction that has not ended."


def test_a_durable_subscription_takes_none(rig: Rig) -> None:
    rig.broker.leases.attach(rig.vhost.queues["q"], "spark", 0, 0)
    assert reason(rig).startswith("Its durable subscription takes none")
