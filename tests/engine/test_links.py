"""Consumers by link: credit that is spent on sending, drains, and being taken away [FC]."""

from __future__ import annotations

import pytest

from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.outcomes import ACCEPTED, DISCARDED, FAILED, REJECTED, RETURNED
from tallymark.engine.session import RELEASES, Consumer, Session
from tallymark.engine.timeouts import MERGE_MS
from tests.support.engine_rig import Rig
from tests.support.engine_steps import manual


def link(
    rig: Rig, name: str, session: Session | None = None, *, tag: str = "c", no_ack: bool = False,
    **arguments: object,
) -> Consumer:  # fmt: skip
    given = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    queue = rig.vhost.queues[name]
    session = session or rig.session()
    consumer = rig.broker.consuming.consume(session, queue, tag, no_ack, False, 0, given)
    rig.broker.consuming.grant(consumer, 0, False)
    consumer.on_timeout = RELEASES
    return consumer


def got(rig: Rig, consumer: Consumer, credit: int, drain: bool = False) -> list[int]:
    rig.broker.consuming.grant(consumer, credit, drain)
    found = [delivery.number for delivery in rig.settle_down()]
    rig.broker.check()
    return found


@pytest.mark.parametrize("no_ack", [False, True])
def test_lc_3_credit_is_spent_on_sending_and_settling_gives_none_back(no_ack: bool) -> None:
    rig = manual()
    rig.declare("q")
    consumer = link(rig, "q", no_ack=no_ack)
    rig.send("q", 1, 2, 3, 4, 5)
    assert rig.settle_down() == []
    assert got(rig, consumer, 3) == [1, 2, 3]
    assert consumer.limit == 0
    if not no_ack:
        rig.broker.settlement.settle(consumer.session, 1, 3, ACCEPTED)
        assert rig.settle_down() == []
    assert got(rig, consumer, 1) == [4]
    assert rig.ready("q") == [5]


def test_fc_3_a_grant_replaces_what_was_left() -> None:
    rig = manual()
    rig.declare("q")
    consumer = link(rig, "q")
    assert got(rig, consumer, 5) == []
    assert got(rig, consumer, 1) == []
    rig.send("q", 1, 2)
    assert [d.number for d in rig.settle_down()] == [1]


def test_fc_5_a_drain_ends_after_what_there_is() -> None:
    rig = manual()
    rig.declare("q")
    consumer = link(rig, "q")
    rig.send("q", 1, 2, 3)
    assert got(rig, consumer, 10, drain=True) == [1, 2, 3]
    assert rig.drained == ["c"]
    assert consumer.limit == 0
    rig.send("q", 4)
    assert rig.settle_down() == []


def test_fc_a9_a_drain_on_an_idle_link_ends_at_once() -> None:
    rig = manual()
    rig.declare("q")
    consumer = link(rig, "q")
    assert got(rig, consumer, 10, drain=True) == []
    assert rig.drained == ["c"]
    assert got(rig, consumer, 10, drain=True) == []
    assert rig.drained == ["c", "c"]


def test_fc_5_a_drain_waits_for_what_the_disk_holds_up() -> None:
    rig = manual()
    rig.declare("q")
    rig.settle_down()
    consumer = link(rig, "q")
    rig.hold_disk = True
    rig.send("q", 1)
    rig.broker.consuming.grant(consumer, 2, True)
    assert rig.settle_down() == []
    assert rig.drained == []
    rig.hold_disk = False
    assert [d.number for d in rig.settle_down()] == [1]
    assert rig.drained == ["c"]


def test_fc_5_a_drain_waits_for_a_session_without_flow() -> None:
    rig = manual()
    rig.declare("q")
    consumer = link(rig, "q")
    rig.broker.consuming.set_flow(consumer.session, False)
    rig.send("q", 1)
    assert got(rig, consumer, 2, drain=True) == []
    assert rig.drained == []
    rig.broker.consuming.set_flow(consumer.session, True)
    assert [d.number for d in rig.settle_down()] == [1]
    assert rig.drained == ["c"]


def test_fc_5_a_drain_with_two_consumers_ends_for_the_one_that_asked() -> None:
    rig = manual()
    rig.declare("q")
    one, other = link(rig, "q", tag="one"), link(rig, "q", tag="other")
    rig.broker.consuming.grant(one, 5, False)
    rig.send("q", 1, 2)
    assert sorted([*got(rig, other, 5, drain=True)]) == [1, 2]
    assert rig.drained == ["other"]
    assert one.limit > 0


def test_fc_19_detaching_returns_what_it_held_uncounted_and_in_order() -> None:
    rig = manual()
    rig.declare("q", {"queue-type": "quorum"})
    session = rig.session()
    gone, stays = link(rig, "q", session, tag="gone"), link(rig, "q", session, tag="stays")
    rig.send("q", 1, 2, 3, 4)
    assert got(rig, gone, 2) == [1, 2]
    assert got(rig, stays, 1) == [3]
    rig.broker.settlement.settle(session, 1, 1, ACCEPTED)
    rig.broker.consuming.detach(gone)
    rig.settle_down()
    rig.broker.check()
    back = rig.holds("q")
    assert [(m.number, m.failed, m.acquired) for m in back] == [(2, 0, 1), (4, 0, 0)]
    with pytest.raises(PreconditionFailed, match="unknown delivery tag 2"):
        rig.broker.settlement.settle(session, 2, 2, ACCEPTED)
    rig.broker.settlement.settle(session, 3, 3, ACCEPTED)
    assert session.unacked == 0


def test_fc_18_what_takes_too_long_is_released_and_nothing_more_comes_until_it_is_settled() -> None:
    rig = manual()
    queue = rig.declare("q")
    consumer = link(rig, "q", consumer_timeout=1000)
    rig.send("q", 1, 2)
    assert got(rig, consumer, 2) == [1, 2]
    rig.broker.settlement.settle(consumer.session, 2, 2, ACCEPTED)
    rig.advance(1000 + MERGE_MS)
    assert [(who, limit) for _, who, limit in rig.timed_out] == [(consumer, 1000)]
    assert rig.released_tags == [(1, 1)]
    assert rig.ready("q") == [1]
    assert consumer.active
    # It does not get it again before it has said something of the first time, and that is void.
    assert got(rig, consumer, 5) == []
    rig.broker.settlement.settle(consumer.session, 1, 1, ACCEPTED)
    assert [d.number for d in rig.settle_down()] == [1]
    assert (queue.account.settled, queue.acquired) == (1, 1)


def test_fc_20_annotations_of_modified_stay_with_the_message_and_replace_older_ones() -> None:
    rig = manual()
    rig.declare("q")
    consumer = link(rig, "q")
    rig.send("q", 1)
    assert got(rig, consumer, 1) == [1]
    rig.broker.settlement.settle(
        consumer.session, 1, 1, RETURNED, (("x-b", b"\x50\x01"), ("x-a", b"\x42"))
    )
    assert got(rig, consumer, 1) == [1]
    rig.broker.settlement.settle(consumer.session, 2, 2, FAILED, (("x-b", b"\x41"),))
    rig.settle_down()
    for now in (rig, rig.restart()):
        [message] = now.holds("q")
        assert message.annotations is not None
        assert message.annotations.notes == (("x-a", b"\x42"), ("x-b", b"\x41"))
        assert (message.failed, message.acquired) == (1, 2)


def test_fc_20_a_restart_gives_each_message_its_own_annotations() -> None:
    rig = manual()
    rig.declare("q")
    consumer = link(rig, "q")
    rig.send("q", 1, 2, 3, 4)
    assert got(rig, consumer, 3) == [1, 2, 3]
    rig.broker.settlement.settle(consumer.session, 2, 2, RETURNED, (("x-a", b"\x41"),))
    rig.broker.settlement.settle(consumer.session, 3, 3, RETURNED, (("x-a", b"\x42"),))
    rig.broker.settlement.settle(consumer.session, 1, 1, RETURNED)
    rig.settle_down()
    seen = [None if m.annotations is None else m.annotations.notes for m in rig.holds("q")]
    assert seen == [None, (("x-a", b"\x41"),), (("x-a", b"\x42"),), None]
    again = rig.restart()
    assert [m.number for m in again.holds("q")] == [1, 2, 3, 4]
    assert [
        None if m.annotations is None else m.annotations.notes for m in again.holds("q")
    ] == seen


@pytest.mark.parametrize(("outcome", "failed"), [(REJECTED, 1), (DISCARDED, 0)])
def test_dl_a4_annotations_of_modified_go_with_the_letter(outcome: int, failed: int) -> None:
    rig = manual()
    to_d = {"dead-letter-exchange": "", "dead-letter-routing-key": "d"}
    rig.declare("q", {"queue-type": "quorum", **to_d})
    rig.declare("d")
    consumer = link(rig, "q")
    rig.send("q", 1)
    assert got(rig, consumer, 1) == [1]
    rig.broker.settlement.settle(
        consumer.session, 1, 1, outcome, (("x-opt-thekey", b"\xa1\x03val"),)
    )
    rig.settle_down()
    for now in (rig, rig.restart()):
        [letter] = now.holds("d")
        assert letter.annotations is not None
        assert letter.annotations.notes == (("x-opt-thekey", b"\xa1\x03val"),)
        assert letter.counts == (failed, 1)
        assert letter.deaths == [("q", "rejected", 1)]


def test_fc_20_annotations_outlast_a_delayed_retry_and_a_restart_within_it() -> None:
    rig = manual()
    rig.declare("q", {"delayed-retry-type": "all", "delayed-retry-min": 1000})
    consumer = link(rig, "q")
    rig.send("q", 1)
    assert got(rig, consumer, 1) == [1]
    rig.broker.settlement.settle(consumer.session, 1, 1, FAILED, (("x-a", b"\x41"),))
    rig.settle_down()
    again = rig.restart()
    again.tick_ms = 0
    again.advance(1001)
    [message] = again.holds("q")
    assert message.annotations is not None
    assert message.annotations.notes == (("x-a", b"\x41"),)


def test_lc_2_tags_of_the_sessions_own_messages_hold_nothing() -> None:
    rig = manual()
    rig.declare("q")
    consumer = link(rig, "q")
    assert consumer.session.take_tag() == 1
    rig.send("q", 1)
    rig.broker.consuming.grant(consumer, 1, False)
    [delivery] = rig.settle_down()
    assert delivery.tag == 2
    with pytest.raises(PreconditionFailed, match="unknown delivery tag 1"):
        rig.broker.settlement.settle(consumer.session, 1, 1, ACCEPTED)
    assert consumer.session.unacked == 1
