"""Bytes that cannot be read: one message is put aside, and everything else goes on [LC-5]."""

from __future__ import annotations

import pytest

from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.outcomes import REJECTED
from tests.support.engine_rig import Rig, Said
from tests.support.engine_steps import finish, manual, reject

NO_MEMORY = 0
"""A budget for bodies that has each read back from the journal."""


def rig_with(*numbers: int, **arguments: object) -> Rig:
    """A queue q with these messages, each a payload of its own, none in memory."""
    rig = manual()
    rig.declare("q", {key.replace("_", "-"): value for key, value in arguments.items()})
    publish(rig, *numbers)
    return rig


def publish(rig: Rig, *numbers: int) -> None:
    for number in numbers:
        rig.send("q", number)
    rig.turn(NO_MEMORY)
    rig.turn(NO_MEMORY)


def letters_by_hops(rig: Rig, *numbers: int) -> None:
    """Letters that are looked into when they die: their senders may give hop limits."""
    rig.exchange("dlx", "fanout", ("dead", ""))
    for number in numbers:
        rig.says[number] = Said(hop_limit=3)


def test_lc_5_a_message_that_is_rejected_and_cannot_be_read_is_counted_once() -> None:
    rig = manual()
    rig.declare("dead")
    letters_by_hops(rig, 1, 2)
    queue = rig.declare("q", {"dead-letter-exchange": "dlx", "dead-letter-hop-limit": 5})
    publish(rig, 1, 2)
    session = rig.session()
    tags = []
    for _ in range(2):
        got = rig.take(session, "q")
        assert got is not None
        tags.append(got[1])
    rig.turn(NO_MEMORY)
    rig.log.spoiled.add(1)
    for tag in tags:
        rig.broker.settlement.settle(session, tag, tag, REJECTED)
    finish(rig)
    assert (queue.acquired, session.unacked) == (0, 0)
    assert rig.ready("dead") == [2]
    assert queue.account.quarantined == 1


def test_lc_5_a_message_that_expires_and_cannot_be_read_is_put_aside() -> None:
    rig = manual()
    rig.declare("dead")
    letters_by_hops(rig, 1, 2)
    queue = rig.declare(
        "q",
        {"dead-letter-exchange": "dlx", "dead-letter-hop-limit": 5, "message-ttl": 1000},
    )
    publish(rig, 1, 2)
    rig.log.spoiled.add(1)
    rig.advance(1000)
    rig.broker.check()
    assert rig.ready("dead") == [2]
    assert (queue.ready, queue.account.quarantined) == (0, 1)


def test_a_consumer_goes_on_behind_a_message_that_cannot_be_read() -> None:
    rig = rig_with(1, 2, 3)
    rig.log.spoiled.add(2)
    rig.consume(rig.session(), "q", "c")
    assert [d.number for d in rig.settle_down()] == [1, 3]
    queue = rig.vhost.queues["q"]
    assert (queue.acquired, queue.account.quarantined) == (2, 1)
    rig.broker.check()
    told = [signal.values for signal in rig.signals if signal.name == "message.unreadable"]
    assert [(said["queue"], said["first"], said["count"]) for said in told] == [("q", 2, 1)]


def test_a_get_gives_the_next_one_that_can_be_read() -> None:
    rig = rig_with(1, 2)
    rig.log.spoiled.add(1)
    assert rig.get(rig.session(), rig.vhost.queues["q"]) == (2, 1)
    assert rig.get(rig.session(), rig.vhost.queues["q"]) is None
    rig.broker.check()


@pytest.mark.parametrize("limits", [{"max_length_bytes": 1000}, {"max_length": 1}])
def test_a_limit_that_is_set_meets_a_message_that_cannot_be_read(limits: dict[str, int]) -> None:
    rig = rig_with(1, 2)
    rig.log.spoiled.add(1)
    rig.set_policy("q", {key.replace("_", "-"): value for key, value in limits.items()})
    finish(rig)
    assert rig.ready("q") == [2]
    rig.broker.check()


def test_dl_25_a_virtual_host_ends_with_a_letter_that_cannot_be_read() -> None:
    rig = rig_with(1, dead_letter_exchange="x", dead_letter_strategy="at-least-once")
    queue = rig.vhost.queues["q"]
    reject(rig, "q")
    rig.turn(NO_MEMORY)
    rig.turn(NO_MEMORY)
    rig.log.spoiled.add(1)
    rig.set_policy("q", {"max-length-bytes": 1000})
    rig.turn(NO_MEMORY)
    assert (queue.pending, queue.account.quarantined) == (0, 1)
    rig.broker.registry.delete_vhost(rig.vhost.name)
    rig.turn(NO_MEMORY)
    assert rig.broker.queues == {}


def test_if_empty_does_not_delete_a_queue_with_messages_that_cannot_be_read_now() -> None:
    rig = rig_with(1)
    rig.log.spoiled.add(1)
    assert rig.take(rig.session(), "q") is None
    with pytest.raises(PreconditionFailed, match="not empty"):
        rig.broker.registry.delete_queue(rig.connection, "q", False, True)
    rig.log.spoiled.clear()
    assert rig.broker.readmission.retry(rig.vhost.queues["q"]) == 1
    assert rig.ready("q") == [1]


def test_dl_23_letters_of_a_queue_to_itself_are_tried_where_one_cannot_be_read() -> None:
    """The bytes of its messages are counted for the first time when the first letter enters."""
    rig = rig_with(
        1, 2, 3,
        dead_letter_exchange="x", dead_letter_strategy="at-least-once",
        overflow="reject-publish", max_length_bytes=1000,
    )  # fmt: skip
    reject(rig, "q", 3)
    rig = rig.restart()
    rig.log.spoiled.add(2)
    rig.exchange("x", "fanout", ("q", ""))
    rig.advance(1000)
    queue = rig.vhost.queues["q"]
    assert (rig.ready("q"), queue.pending, queue.account.quarantined) == ([1, 3], 0, 1)
    rig.broker.check()


def test_bytes_that_retention_let_go_are_the_same_after_a_restart() -> None:
    """A message that cannot be read comes back when retention has passed it, and is dropped: the
    replay counted its bytes, and the queue had not."""
    rig = rig_with(1, 2, 3, queue_type="stream", max_age="1s")
    queue = rig.vhost.queues["q"]
    rig.log.spoiled.add(1)
    rig.broker.consuming.browse(rig.session(), queue, "c", None)
    rig.turn(NO_MEMORY)
    assert queue.account.quarantined == 1
    rig.advance(2000)
    rig.log.spoiled.clear()
    assert rig.broker.readmission.retry(queue) == 1
    finish(rig)
    assert (queue.ready, queue.account.quarantined) == (0, 0)
    let_go = queue.retention.let_go_bytes
    assert rig.restart().vhost.queues["q"].retention.let_go_bytes == let_go
