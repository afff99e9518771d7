"""What is counted since the start: what became of publishes, what was handed out again, and what
came and went."""

from __future__ import annotations

from tallymark.engine.outcomes import ACCEPTED, FAILED, REJECTED
from tests.support.engine_rig import Rig


def fates(rig: Rig) -> tuple[int, int, int, int]:
    """Queues sent to, returned, discarded, published."""
    traffic = rig.broker.traffic
    return traffic.routed, traffic.returned, traffic.discarded, rig.broker.publishing.published


def made() -> Rig:
    rig = Rig()
    rig.queue("a")
    rig.queue("b")
    rig.exchange("both", "fanout", ("a", ""), ("b", ""))
    return rig


def test_a_message_counts_once_for_each_queue_that_it_is_sent_to() -> None:
    rig = made()
    rig.send("a", 1, 2)
    rig.send("", 3, exchange="both")
    rig.send("nobody", 4, 5)
    assert fates(rig) == (4, 0, 2, 5)


def test_under_a_transaction_what_is_rolled_back_was_sent_nowhere() -> None:
    rig = made()
    session = rig.session()
    for end, expected in (("rollback", 0), ("commit", 3)):
        transaction = rig.broker.transactions.begin(session)
        rig.stage(transaction, "a", 1)
        rig.stage(transaction, "", 2, exchange="both")
        rig.stage(transaction, "nobody", 3)
        getattr(rig.broker.transactions, end)(transaction)
        rig.settle_down()
        assert rig.broker.traffic.routed == expected
    assert rig.broker.traffic.discarded == 1


def test_handed_out_again_and_acknowledged() -> None:
    rig = made()
    session = rig.session()
    queue = rig.vhost.queues["a"]
    rig.send("a", *range(6))
    rig.settle_down()
    held = [rig.get(session, queue) for _ in range(3)]
    tags = [one[1] for one in held if one is not None]
    rig.broker.settlement.settle(session, tags[0], tags[0], FAILED)
    rig.broker.settlement.settle(session, tags[1], tags[1], REJECTED)
    rig.broker.settlement.settle(session, tags[2], tags[2], ACCEPTED)
    rig.consume(session, "a", "c", no_ack=True)
    rig.settle_down()
    counts = queue.handed_out
    assert (counts.got_to_settle, counts.for_good, counts.again) == (3, 4, 1)
    assert counts.acknowledged == 1, "neither the rejected one nor those handed out for good"
    assert rig.get(session, queue) is None
    assert counts.got_nothing == 1


def test_what_came_and_went() -> None:
    rig = made()
    traffic = rig.broker.traffic
    assert (traffic.queues_declared, traffic.queues_created, traffic.queues_deleted) == (2, 2, 0)
    rig.queue("a")
    rig.queue("mine", durable=False, exclusive=True)
    session = rig.session()
    rig.broker.clients.close_session(session, False)
    rig.broker.clients.close_session(session, False)
    rig.broker.clients.close_connection(rig.connection, True)
    rig.broker.clients.close_connection(rig.connection, True)
    assert (traffic.queues_declared, traffic.queues_created, traffic.queues_deleted) == (4, 3, 1)
    assert (traffic.connections_opened, traffic.connections_closed) == (1, 1)
    assert (traffic.sessions_opened, traffic.sessions_closed) == (1, 1)
    again = rig.restart().broker.traffic
    assert (again.queues_declared, again.queues_created, again.routed) == (0, 0, 0)
