"""What is handed out when the disk has it: commits, dead letters, moves, and what is told to."""

from __future__ import annotations

import pytest

from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.outcomes import ACCEPTED, REJECTED, RETURNED
from tallymark.engine.policies import Policy
from tallymark.engine.queue_consumers import consumers_of
from tallymark.engine.sinks import StagedPart
from tests.support.engine_rig import Rig
from tests.support.engine_steps import finish, manual
from tests.support.nsq_client import Client


def held() -> Rig:
    """A rig with a consumer on q whose mark is on disk, and a disk that hangs from now on."""
    rig = manual()
    rig.declare("q")
    rig.declare("other")
    watch(rig, "q")
    return rig


def watch(rig: Rig, name: str) -> None:
    """A consumer of the queue, which may be handed some messages without another mark."""
    rig.consume(rig.session(), name, name)
    rig.publish(rig.session(), name, [0])
    assert numbers(rig) == [0]


def numbers(rig: Rig) -> list[int]:
    return [delivery.number for delivery in rig.settle_down()]


def hang(rig: Rig) -> None:
    rig.settle_down()
    rig.hold_disk = True


def go_on(rig: Rig) -> list[int]:
    rig.hold_disk = False
    return numbers(rig)


def test_tx_d1_what_a_commit_publishes_is_handed_out_when_the_disk_has_it() -> None:
    rig = held()
    session = rig.session()
    transaction = rig.broker.transactions.begin(session)
    rig.stage(transaction, "q", 1, 2)
    hang(rig)
    rig.broker.transactions.commit(transaction)
    assert numbers(rig) == []
    rig.publish(session, "q", [3])
    assert numbers(rig) == [], "nor what is behind it"
    assert go_on(rig) == [1, 2, 3]
    rig.publish(session, "q", [4])
    rig.hold_disk = True
    assert numbers(rig) == [4], "what nobody commits is not held"


def test_tx_d1_nor_to_a_queue_that_does_not_outlive_the_broker() -> None:
    rig = held()
    rig.declare("short", durable=False)
    watch(rig, "short")
    transaction = rig.broker.transactions.begin(rig.session())
    rig.stage(transaction, "short", 1)
    rig.stage(transaction, "q", 2)
    hang(rig)
    rig.broker.transactions.commit(transaction)
    assert numbers(rig) == []
    assert sorted(go_on(rig)) == [1, 2]


def test_a_sink_s_batch_is_handed_out_when_the_disk_has_it() -> None:
    rig = held()
    sinks = rig.broker.sinks
    part = StagedPart(rig.payload("q", [1], True), None, True, rig.now_ms)
    staging = sinks.stage("/", "spark", [part], 60_000)
    hang(rig)
    rig.broker.publishing.commit_sink("/", "spark", "w", 0, [staging.id])
    assert numbers(rig) == []
    assert go_on(rig) == [1]


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_dead_letter_is_handed_out_when_the_disk_has_it(in_transaction: bool) -> None:
    rig = held()
    rig.declare("source", {"dead-letter-exchange": "", "dead-letter-routing-key": "q"})
    session = rig.session()
    rig.publish(session, "source", [1])
    rig.settle_down()
    got = rig.take(session, "source")
    assert got is not None
    hang(rig)
    if in_transaction:
        transaction = rig.broker.transactions.begin(session)
        rig.broker.transactions.settle(transaction, session, got[1], got[1], REJECTED)
        rig.broker.transactions.commit(transaction)
    else:
        rig.broker.settlement.settle(session, got[1], got[1], REJECTED)
    assert numbers(rig) == []
    assert go_on(rig) == [1]


def test_what_is_moved_is_handed_out_when_the_disk_has_it() -> None:
    rig = held()
    rig.publish(rig.session(), "other", [1])
    queue = rig.vhost.queues["other"]
    hang(rig)
    wanted = [(piece.first, piece.payload.first_id) for piece in queue.slices()]
    found = rig.broker.redrives.look(queue, wanted, "", "q")
    rig.broker.redrives.move(queue, found)
    assert numbers(rig) == []
    assert go_on(rig) == [1]


def by_argument(rig: Rig, value: str) -> None:
    rig.delete("q")
    rig.declare("q", {"deliver-after": value})


def by_policy(rig: Rig, value: str) -> None:
    rig.set_policy("q", {"deliver-after": value})


def by_broker(rig: Rig, value: str) -> None:
    rig.broker.deliver_after_sync(value == "synced")


@pytest.mark.parametrize("say", [by_argument, by_policy, by_broker])
@pytest.mark.parametrize("value", ["written", "synced"])
def test_other_persistent_messages_are_handed_out_as_the_queue_was_told(
    say: object, value: str
) -> None:
    rig = manual()
    rig.declare("q")
    rig.broker.deliver_after_sync(value == "written")  # the queue's word goes before it
    assert callable(say)
    say(rig, value)
    watch(rig, "q")
    hang(rig)
    session = rig.session()
    rig.publish(session, "q", [1])
    assert numbers(rig) == ([1] if value == "written" else [])
    rig.publish(session, "q", [2], persistent=False)
    assert numbers(rig) == ([2] if value == "written" else []), "order is kept"
    assert go_on(rig) == ([] if value == "written" else [1, 2])


def test_what_follows_while_the_disk_is_at_work_comes_in_order() -> None:
    rig = manual()
    rig.declare("q", {"deliver-after": "synced"})
    watch(rig, "q")
    rig.hold_disk = True
    session = rig.session()
    for number in range(1, 6):
        rig.publish(session, "q", [number])
        rig.turn()
    first = rig.log.end
    rig.publish(session, "q", [6, 7])
    rig.turn()
    rig.log.synced = first
    rig.broker.synced(first)
    assert numbers(rig) == [1, 2, 3, 4, 5]
    assert go_on(rig) == [6, 7]
    rig.broker.check()


def test_a_get_is_answered_when_the_disk_has_the_message() -> None:
    rig = manual()
    queue = rig.declare("q", {"deliver-after": "synced"})
    session = rig.session()
    rig.publish(session, "q", [0])
    rig.settle_down()
    assert rig.get(session, queue) == (0, 1)
    rig.broker.settlement.settle(session, 1, 1, ACCEPTED)
    rig.settle_down()
    rig.hold_disk = True
    rig.publish(session, "q", [1])
    assert rig.get(session, queue) == (1, 2)
    assert rig.broker.consuming.get_must_wait


def test_a_browser_and_a_filter_see_what_the_disk_has() -> None:
    rig = manual()
    queue = rig.declare("q", {"deliver-after": "synced"})
    rig.broker.consuming.browse(rig.session(), queue, "b", None)
    rig.hold_disk = True
    rig.publish(rig.session(), "q", [1])
    assert numbers(rig) == []
    assert go_on(rig) == [1]


@pytest.mark.parametrize("value", ["soon", 1, True])
def test_another_word_is_refused(value: object) -> None:
    rig = manual()
    with pytest.raises(PreconditionFailed, match="x-deliver-after"):
        rig.declare("q", {"deliver-after": value})
    with pytest.raises(PreconditionFailed, match="deliver-after"):
        rig.broker.registry.set_policy("/", Policy("p", ".*", {"deliver-after": value}, 0, "all"))


def test_what_is_held_is_its_consumer_s_when_somebody_looks() -> None:
    """It is taken at once, and its connection holds it back until the disk has it."""
    rig = manual()
    queue = rig.declare("q", {"deliver-after": "synced"})
    rig.consume(rig.session(), "q", "c")
    rig.settle_down()
    rig.publish(rig.session(), "q", [1])
    assert rig.get(rig.session(), queue) is None
    assert numbers(rig) == [1]


@pytest.mark.parametrize("delay_ms", [0, 1])
@pytest.mark.parametrize("value", ["written", "synced"])
def test_nq_d9_no_number_of_attempts_is_seen_twice_where_deliveries_wait_for_the_disk(
    value: str, delay_ms: int
) -> None:
    """A REQ right before a crash: what it was redelivered as is not told again of another
    delivery, unless the queue delivers before the disk has what was done."""
    rig = manual()
    rig.declare("q", {"deliver-after": value})
    client = Client(rig, "q", rdy=2)
    rig.send("q", 1, 2)
    finish(rig)
    seen = {1: [1], 2: [1]}
    hang(rig)
    on_disk = len(rig.log.blocks)
    client.req(1, delay_ms)
    rig.now_ms += delay_ms
    rig.settle_down()
    rig.given.clear()
    for _ in range(3):
        rig.settle_down()
    again = rig.vhost.queues["q"].acquired == 2
    assert again == (value == "written")
    if again:
        seen[1].append(2)
    after = rig.reopened(rig.log.upto(on_disk))
    finish(after)
    Client(after, "q", rdy=2)
    finish(after)
    for one in after.given:
        seen[one.number].append(one.acquired + 1)
    assert sorted(len(attempts) - len(set(attempts)) for attempts in seen.values()) == [
        0, 1 if value == "written" else 0,
    ]  # fmt: skip


def test_what_was_given_back_comes_again_when_the_disk_knows_and_nothing_starves() -> None:
    """One given back in each turn: each waits for its own sync, not for all the others'."""
    rig = manual()
    rig.declare("q", {"deliver-after": "synced"})
    client = Client(rig, "q", rdy=1)
    rig.send("q", 1)
    finish(rig)
    for attempt in range(2, 50):
        client.req(attempt - 1)
        rig.given.clear()
        finish(rig)
        assert [(one.number, one.acquired + 1) for one in rig.given] == [(1, attempt)]
    rig.broker.check()
    assert not rig.vhost.queues["q"].disk_hold.returning


def test_a_get_of_what_was_given_back_is_answered_when_the_disk_knows() -> None:
    rig = manual()
    queue = rig.declare("q", {"deliver-after": "synced"})
    session = rig.session()
    rig.send("q", 1)
    finish(rig)
    taken = rig.get(session, queue)
    assert taken is not None
    finish(rig)
    hang(rig)
    rig.broker.settlement.settle(session, taken[1], taken[1], RETURNED)
    assert rig.get(session, queue) == (1, taken[1] + 1)
    assert rig.broker.consuming.get_must_wait


def test_what_was_given_back_twice_waits_for_the_disk_to_know_of_both() -> None:
    """A get may take it while the disk does not know of the first time; the sync that told of that
    let it go on, with a number of attempts that it could have again after a crash."""
    rig = manual()
    queue = rig.declare("q", {"deliver-after": "synced"})
    session = rig.session()
    watch(rig, "q")
    rig.broker.consuming.cancel(consumers_of(queue)[0])
    rig.send("q", 1)
    finish(rig)
    taken = rig.get(session, queue)
    assert taken is not None
    finish(rig)
    hang(rig)
    rig.broker.settlement.settle(session, taken[1], taken[1], RETURNED)
    rig.turn()
    first = rig.log.end
    assert rig.get(session, queue) == (1, taken[1] + 1)
    rig.broker.settlement.settle(session, taken[1] + 1, taken[1] + 1, RETURNED)
    rig.turn()
    rig.consume(rig.session(), "q", "c")
    rig.log.synced = first
    rig.broker.synced(first)
    assert 1 not in numbers(rig)
    assert 1 in go_on(rig)
    rig.broker.check()
    assert not queue.disk_hold.returning
