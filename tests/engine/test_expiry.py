"""Time to live of messages [DL-4] and expiry of unused queues, to the millisecond."""

from __future__ import annotations

import pytest

from tallymark.engine.clock import NEVER
from tallymark.engine.delivery import IN_A_TURN
from tallymark.engine.message import Filter, Payload
from tallymark.engine.outcomes import ACCEPTED, RETURNED
from tallymark.engine.packing import Packing
from tallymark.stored.annotations import Annotations
from tallymark.units import LeaseSequence
from tests.support.engine_rig import START_MS, Rig, Said, numbers
from tests.support.engine_steps import finish, manual, reject


def pair(**arguments: object) -> Rig:
    """Queue q, whose letters go to queue dead."""
    rig = manual()
    settings = {key.replace("_", "-"): value for key, value in arguments.items()}
    rig.declare("q", {"dead-letter-exchange": "", "dead-letter-routing-key": "dead"} | settings)
    rig.declare("dead")
    return rig


# -- messages


@pytest.mark.parametrize(
    ("queue_ttl", "own", "lives"),
    [(100, -1, 100), (-1, 70, 70), (100, 70, 70), (70, 100, 70), (1, 1, 1), (5, 0, 0), (0, 5, 0)],
)
def test_dl_4_the_smaller_of_two_ttls_to_the_millisecond(
    queue_ttl: int, own: int, lives: int
) -> None:
    rig = pair(**({} if queue_ttl < 0 else {"message_ttl": queue_ttl}))
    rig.send("q", 1, ttl=own)
    finish(rig)
    if lives:
        assert rig.broker.next_due() == START_MS + lives
        rig.advance(lives - 1)
        assert rig.ready("q") == [1]
        rig.advance(1)
    assert (rig.ready("q"), rig.ready("dead")) == ([], [1])
    assert rig.now_ms == START_MS + lives


def test_dl_4_a_long_lived_head_shields_those_behind_it() -> None:
    rig = pair()
    rig.send("q", 1, ttl=100)
    rig.send("q", 2, ttl=10)
    rig.advance(99)
    assert rig.ready("q") == [1, 2]
    rig.advance(1)
    assert rig.ready("dead") == [1, 2]


def test_dl_4_a_head_that_lives_for_ever_shields_for_ever_and_its_leaving_ends_that() -> None:
    rig = pair()
    rig.send("q", 1)
    rig.send("q", 2, ttl=10)
    rig.advance(1 << 40)
    assert rig.ready("q") == [1, 2]
    session = rig.session()
    got = rig.take(session, "q")
    assert got is not None
    assert got[0].number == 1
    finish(rig)
    assert (rig.ready("q"), rig.ready("dead")) == ([], [2])


def test_dl_4_what_lies_behind_messages_on_lease_expires_at_its_time() -> None:
    rig = pair()
    rig.send("q", 1)
    rig.send("q", 2, ttl=10)
    leases = rig.broker.leases
    leases.lease(leases.attach(rig.vhost.queues["q"], "s"), 0, 1, 0)
    finish(rig)
    rig.advance(10)
    assert rig.ready("dead") == [2]


def behind_long(**arguments: object) -> Rig:
    """Messages 1 and 5 live on; 2, 3 and 4, between them, have had their time."""
    rig = pair(**arguments)
    for number, ttl in ((1, 100), (2, 10), (3, 10), (4, 10), (5, 100)):
        rig.send("q", number, ttl=ttl)
    rig.advance(10)
    assert rig.ready("q") == [1, 2, 3, 4, 5]
    return rig


@pytest.mark.parametrize("prefetch", [0, 1, 5])
@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize("no_ack", [False, True])
@pytest.mark.parametrize("priorities", [False, True])
def test_dl_4_consumers_are_not_given_what_had_its_time_behind_a_head_that_lives(
    prefetch: int, consumers: int, no_ack: bool, priorities: bool
) -> None:
    rig = behind_long(**({"max_priority": 3} if priorities else {}))
    sessions = [rig.session() for _ in range(consumers)]
    for session in sessions:
        rig.consume(session, "q", "c", prefetch, no_ack)
    seen = []
    while new := finish(rig):
        seen += [delivery.number for delivery in new]
        for session in sessions:
            rig.broker.settlement.settle_up_to(session, 0, ACCEPTED)
    assert seen == [1, 5]
    assert [h.deaths for h in rig.holds("dead")] == [[("q", "expired", 1)]] * 3


def test_dl_4_nor_are_consumers_with_credit_of_their_link_or_a_ready_count() -> None:
    rig = behind_long()
    consumer = rig.consume(rig.session(), "q", "c", no_ack=True)
    rig.broker.consuming.grant(consumer, 5, drain=True)
    assert [delivery.number for delivery in finish(rig)] == [1, 5]
    assert rig.ready("dead") == [2, 3, 4]


def test_dl_4_nor_are_consumers_with_a_filter() -> None:
    class All(Filter):
        def matches(self, payload: Payload, i: int, known: Annotations | None) -> bool:
            return True

    rig = behind_long()
    session, queue = rig.session(), rig.vhost.queues["q"]
    consumer = rig.broker.consuming.consume(session, queue, "f", False, False, 0, {}, All())
    rig.broker.consuming.grant(consumer, 5, drain=False)
    assert [delivery.number for delivery in finish(rig)] == [1, 5]
    assert rig.ready("dead") == [2, 3, 4]


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_dl_4_nor_are_durable_subscriptions(rows: int) -> None:
    rig = behind_long()
    leases = rig.broker.leases
    subscription = leases.attach(rig.vhost.queues["q"], "s")
    found: list[int] = []
    while (end := leases.lease(subscription, len(found), rows, 0)) > len(found):
        for _, piece in leases.read(subscription, len(found), end):
            found += numbers(piece)
    assert found == [1, 5]
    finish(rig)
    assert rig.ready("dead") == [2, 3, 4]


@pytest.mark.parametrize("at_checkpoint", [False, True])
def test_dl_4_what_was_on_lease_over_a_restart_expires_when_it_is_given_back(
    at_checkpoint: bool,
) -> None:
    """World 8801900: its own time to live was forgotten, where it was all that the queue had."""
    rig = pair()
    rig.send("q", 1, ttl=10)
    leases = rig.broker.leases
    leases.lease(leases.attach(rig.vhost.queues["q"], "s"), 0, 1, 0)
    finish(rig)
    if at_checkpoint:
        rig.checkpoint()
    after = rig.restart()
    after.advance(10)
    leases = after.broker.leases
    subscription = leases.attach(after.vhost.queues["q"], "s")
    leases.judge(subscription, [(0, 1, RETURNED)])
    leases.settle(subscription, 1)
    finish(after)
    assert (after.ready("q"), after.ready("dead")) == ([], [1])


def test_dl_4_what_a_rollback_gives_back_expires() -> None:
    """Its own time to live was forgotten where the queue was attended to while it was staged, and
    nothing else was ready or handed out."""
    rig = pair()
    rig.send("q", 1, ttl=10)
    finish(rig)
    session, queue = rig.session(), rig.vhost.queues["q"]
    rig.get(session, queue)
    transactions = rig.broker.transactions
    transaction = transactions.begin(session)
    transactions.settle(transaction, session, 1, 1, ACCEPTED, is_final=True)
    assert rig.get(session, queue) is None
    transactions.rollback(transaction)
    finish(rig)
    assert rig.ready("q") == [1]
    rig.advance(10)
    assert (rig.ready("q"), rig.ready("dead")) == ([], [1])


def test_dl_4_more_of_it_than_fits_a_turn_is_gone_before_the_next_head_is_served() -> None:
    rig = pair()
    rig.send("q", 0)
    for number in range(1, IN_A_TURN + 100):
        rig.send("q", number, ttl=10)
    rig.send("q", 10_000)
    rig.advance(10)
    rig.consume(rig.session(), "q", "c")
    assert [delivery.number for delivery in rig.turn()] == []  # its mark is on its way to the disk
    assert [delivery.number for delivery in finish(rig)] == [0, 10_000]
    assert len(rig.ready("dead")) == IN_A_TURN + 99


def test_dl_4_a_run_that_arrived_together_expires_together_and_late_ones_later() -> None:
    rig = pair(message_ttl=50)
    rig.send("q", *range(10))
    rig.advance(20)
    rig.send("q", 10)
    rig.advance(30)
    assert (rig.ready("q"), rig.ready("dead")) == ([10], list(range(10)))
    rig.advance(20)
    assert rig.ready("q") == []


def test_dl_4_ttl_0_reaches_a_consumer_that_waits() -> None:
    rig = pair(message_ttl=0)
    session = rig.session()
    rig.consume(session, "q", "c", prefetch=2)
    rig.send("q", 1, 2, 3)
    assert [d.number for d in finish(rig)] == [1, 2]
    assert rig.ready("dead") == [3]


def test_dl_4_ttl_0_and_a_consumer_that_takes_nothing() -> None:
    rig = pair(message_ttl=0)
    session = rig.session()
    rig.consume(session, "q", "c")
    rig.broker.consuming.set_flow(session, False)
    rig.send("q", 1)
    assert finish(rig) == []
    rig.broker.consuming.set_flow(session, True)
    rig.connection.paused = True
    rig.send("q", 2)
    assert finish(rig) == []
    assert rig.ready("dead") == [1, 2]


def test_dl_4_ttl_0_waits_for_the_disk_with_its_consumer() -> None:
    rig = pair(message_ttl=0)
    session = rig.session()
    rig.consume(session, "q", "c")
    rig.hold_disk = True
    rig.send("q", 1)
    assert rig.turn() == []
    assert rig.turn() == []
    assert rig.ready("dead") == []
    rig.hold_disk = False
    assert [d.number for d in finish(rig)] == [1]


def test_dl_4_ttl_0_is_gone_for_who_asks_afterwards() -> None:
    rig = pair(message_ttl=0)
    rig.send("q", 1)
    assert rig.take(rig.session(), "q") is None
    finish(rig)
    assert rig.ready("dead") == [1]


def test_dl_4_a_requeue_does_not_restart_the_clock() -> None:
    rig = pair(message_ttl=10)
    rig.send("q", 1)
    rig.advance(5)
    reject(rig, "q", outcome=RETURNED)
    rig.advance(4)
    assert rig.ready("q") == [1]
    rig.advance(1)
    assert rig.ready("dead") == [1]


def test_dl_4_the_unacked_do_not_expire_but_what_is_overdue_dies_as_it_returns() -> None:
    rig = pair(message_ttl=10)
    rig.send("q", 1, 2)
    session = rig.session()
    rig.consume(session, "q", "c", prefetch=2)
    assert [d.number for d in finish(rig)] == [1, 2]
    rig.advance(1000)
    assert rig.vhost.queues["q"].acquired == 2
    rig.broker.settlement.settle(session, 2, 2, ACCEPTED)
    rig.broker.settlement.settle(session, 1, 1, RETURNED)
    assert finish(rig) == [], "it is not given to the consumer once more"
    assert [h.deaths for h in rig.holds("dead")] == [[("q", "expired", 1)]]


def test_dl_4_each_lane_has_a_head_of_its_own() -> None:
    rig = pair(max_priority=5)
    rig.says |= {1: Said(priority=5), 2: Said(priority=1), 3: Said(priority=1)}
    rig.send("q", 1)
    rig.send("q", 2, ttl=10)
    rig.send("q", 3)
    rig.advance(10)
    assert (rig.ready("q"), rig.ready("dead")) == ([1, 3], [2])


def test_a_policy_s_ttl_is_in_effect_at_once_for_what_is_there() -> None:
    rig = pair()
    rig.send("q", 1)
    rig.advance(500)
    rig.send("q", 2)
    rig.set_policy("q", {"message-ttl": 400})
    finish(rig)
    assert (rig.ready("q"), rig.ready("dead")) == ([2], [1])
    rig.set_policy("q", {})
    rig.advance(1000)
    assert rig.ready("q") == [2]


def test_dl_6_what_lay_behind_those_over_a_limit_may_be_overdue_already() -> None:
    rig = pair(max_length=1)
    rig.send("q", 1)
    rig.send("q", 2, ttl=0)
    finish(rig)
    assert rig.ready("q") == []
    assert [(h.number, h.deaths[0][1]) for h in rig.holds("dead")] == [
        (1, "maxlen"),
        (2, "expired"),
    ]


def test_packed_messages_expire_each_at_its_own_time() -> None:
    rig = pair(message_ttl=1000)
    rig.broker.backlogs.packing = Packing(after=2, group=4, fresh=1)
    for number in range(20):
        rig.send("q", number)
        rig.advance(1)
    assert any(piece.payload.pack for piece in rig.vhost.queues["q"].slices())
    for gone in range(20):
        assert rig.ready("dead") == list(range(gone))
        rig.advance(1000 - 20 if not gone else 1)
    assert rig.ready("dead") == list(range(20))


def test_letters_that_expire_at_one_time_come_in_the_order_of_their_queues_deadlines() -> None:
    rig = manual()
    for name, ttl in (("slow", 20), ("quick", 10)):
        rig.declare(name, {"dead-letter-exchange": "amq.fanout", "message-ttl": ttl})
    rig.declare("dead")
    rig.bind("dead", "amq.fanout", "")
    rig.send("slow", 1)
    rig.send("quick", 2)
    finish(rig)
    rig.now_ms += 1000  # nobody looked for a second
    finish(rig)
    assert rig.ready("dead") == [2, 1]


def test_nothing_is_armed_that_nothing_waits_for() -> None:
    rig = pair()
    rig.send("q", 1)
    finish(rig)
    assert rig.broker.next_due() == NEVER


def test_a_deadline_of_a_purged_or_deleted_queue_does_nothing() -> None:
    rig = pair(message_ttl=10)
    rig.send("q", 1)
    finish(rig)
    rig.broker.contents.purge(rig.vhost.queues["q"])
    rig.advance(10)
    rig.send("q", 2)
    finish(rig)
    rig.delete("q")
    rig.advance(10)
    assert rig.ready("dead") == []
    assert rig.broker.next_due() == NEVER


def test_a_clock_that_is_set_back_stands_still() -> None:
    rig = pair(message_ttl=10)
    rig.advance(100)
    rig.now_ms -= 50
    rig.send("q", 1)
    finish(rig)
    assert rig.ready("q") == [1]
    rig.now_ms += 49
    finish(rig)
    assert rig.broker.clock.now_ms == START_MS + 100


def test_time_goes_on_over_a_restart() -> None:
    rig = pair(message_ttl=10)
    rig.send("q", 1)
    rig.advance(4)
    rig.send("q", 2)
    finish(rig)
    rig.now_ms += 6
    rig = rig.restart()
    finish(rig)
    assert (rig.ready("q"), rig.ready("dead")) == ([2], [1])
    rig.advance(4)
    assert rig.ready("dead") == [1, 2]


def test_the_own_ttl_of_a_message_is_known_after_a_restart() -> None:
    rig = pair()
    rig.send("q", 1, ttl=10)
    finish(rig)
    rig = rig.restart()
    finish(rig)
    assert rig.broker.next_due() == START_MS + 10
    rig.advance(10)
    assert rig.ready("dead") == [1]


# -- queues


def expiring(ms: int = 1000) -> Rig:
    rig = manual()
    rig.declare("q", {"expires": ms})
    finish(rig)
    return rig


def is_there(rig: Rig) -> bool:
    return "q" in rig.vhost.queues


def test_an_unused_queue_is_deleted_to_the_millisecond_with_what_it_holds() -> None:
    rig = expiring()
    rig.set_policy("q", {"dead-letter-exchange": "", "dead-letter-routing-key": "dead"})
    rig.declare("dead")
    rig.send("q", 1)
    rig.advance(999)
    queue = rig.vhost.queues["q"]
    assert is_there(rig)
    rig.advance(1)
    assert not is_there(rig)
    assert rig.ready("dead") == [], "no dead letters: nobody wanted the queue [rabbitmq ttl]"
    assert queue.counters()["dropped"] == {"queue_deleted": 1}
    assert [(x.name, x.values["queue"]) for x in rig.signals] == [("queue.deleted", "q")]
    assert "q" not in rig.restart().vhost.queues


def test_publishing_is_no_use() -> None:
    rig = expiring()
    for _ in range(4):
        rig.send("q", 1)
        rig.advance(250)
    assert not is_there(rig)


@pytest.mark.parametrize("how", ["declare", "get", "consume", "policy"])
def test_a_use_starts_its_time_anew(how: str) -> None:
    rig = expiring()
    rig.advance(600)
    if how == "declare":
        rig.declare("q", {"expires": 1000})
    elif how == "get":
        assert rig.take(rig.session(), "q") is None
    elif how == "consume":
        rig.broker.consuming.cancel(rig.consume(rig.session(), "q", "c"))
    else:
        rig.set_policy("q", {"max-length": 7})
    rig.advance(999)
    assert is_there(rig)
    rig.advance(1)
    assert not is_there(rig)


def test_a_queue_with_a_consumer_is_used_all_the_time() -> None:
    rig = expiring()
    consumer = rig.consume(rig.session(), "q", "c")
    rig.advance(10_000)
    assert is_there(rig)
    rig.broker.consuming.cancel(consumer)
    rig.advance(999)
    assert is_there(rig)
    rig.advance(1)
    assert not is_there(rig)


def test_a_queue_whose_consumer_s_connection_was_lost_expires_after_that() -> None:
    rig = expiring()
    connection = rig.broker.clients.open_connection("/", "guest", "other")
    rig.consume(rig.session(connection), "q", "c")
    rig.advance(5000)
    rig.broker.clients.close_connection(connection, lost=True)
    rig.advance(999)
    assert is_there(rig)
    rig.advance(1)
    assert not is_there(rig)


@pytest.mark.parametrize("leased", [0, 1])
@pytest.mark.parametrize("arguments", [{}, {"delivery-limit": 3}])
def test_a_queue_whose_durable_subscription_was_dropped_expires_after_that(
    leased: int, arguments: dict[str, object]
) -> None:
    rig = manual()
    rig.declare("q", {"expires": 1000, **arguments})
    if leased:
        rig.send("q", 0)
    finish(rig)
    subscription = rig.broker.leases.attach(rig.vhost.queues["q"], "s")
    rig.broker.leases.lease(subscription, LeaseSequence(0), 10, 0)
    rig.advance(5000)
    rig.broker.drop_subscription(subscription)
    rig.advance(999)
    assert is_there(rig)
    assert rig.ready("q") == list(range(leased))
    rig.advance(1)
    assert not is_there(rig)


def test_a_restart_starts_its_time_anew() -> None:
    rig = expiring()
    rig.advance(600)
    rig = rig.restart()
    rig.advance(999)
    assert is_there(rig)
    rig.advance(1)
    assert not is_there(rig)


def backlog(rig: Rig, n: int) -> None:
    """So many messages in q, one by one, and their time has come without a turn since."""
    session = rig.session()
    for number in range(n):
        rig.publish(session, "q", [number])
    rig.turn()
    rig.now_ms += 50


@pytest.mark.parametrize("waits", [False, True])
def test_a_turn_has_an_end_where_a_deep_backlog_expires(waits: bool) -> None:
    rig = manual()
    queue = rig.declare(
        "q",
        {"message-ttl": 50, "dead-letter-exchange": "", "dead-letter-routing-key": "t"},
    )
    rig.declare("t")
    backlog(rig, 10_000)
    rig.send("q", 10_000)
    gone = 0
    if waits:
        rig.broker.consuming.consume(rig.session(), queue, "c", True, False, 0, {})
        gone = IN_A_TURN
        assert queue.ready == 10_001 - gone
    out = rig.turn()
    assert queue.ready == 10_001 - gone - IN_A_TURN
    assert out == []
    out += rig.settle_down()
    rig.broker.check()
    assert rig.ready("t") == list(range(10_000))
    assert [d.number for d in out] == ([10_000] if waits else [])


def test_a_command_is_told_of_nothing_that_expired_however_deep_the_backlog() -> None:
    rig = manual()
    rig.declare("q", {"message-ttl": 50})
    backlog(rig, 10_000)
    rig.turn()
    assert 0 < rig.vhost.queues["q"].ready < 10_000
    assert rig.take(rig.session(), "q") is None


def test_a_turn_has_an_end_where_a_deep_backlog_is_over_a_new_limit() -> None:
    rig = manual()
    queue = rig.declare("q")
    backlog(rig, 10_000)
    rig.set_policy("q", {"max-length": 10})
    rig.turn()
    assert queue.ready == 10_000 - IN_A_TURN
    rig.settle_down()
    rig.broker.check()
    assert rig.ready("q") == list(range(9_990, 10_000))
