"""AMQP 1.0: consuming on a link: credit, drain, outcomes, modes, what is shown."""

from __future__ import annotations

import pytest

from tallymark.bridge.permissions import Permissions
from tallymark.engine.queue_consumers import consumers_of
from tallymark.wire.amqp10.events import (
    DispositionReceived,
    DrainFinished,
    LinkDetached,
    SettlementReceived,
)
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import (
    Accepted,
    DeliveryState,
    Error,
    Modified,
    Received,
    Rejected,
    Released,
)
from tallymark.wire.amqp10.performatives import Attach, Source, Target
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.types import Described, Symbol, Timestamp
from tests.bridge.rig10 import Peer, Rig

ACCEPTED = Accepted()
RELEASED = Released()


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.declare("q")
    return made


def fill(rig: Rig, count: int, name: str = "q", first: int = 0) -> None:
    """Messages 0, 1, ... of an AMQP 1.0 publisher."""
    peer = rig.connect10()
    link = peer.sender(peer.session(), f"/queues/{name}", snd=1)
    sent = 0
    while sent < count:
        n = min(link.credit, count - sent)
        peer.send(link, *[b"%d" % (first + sent + i) for i in range(n)], settled=True)
        sent += n
    peer.wire.close()
    peer.pump()


def counts(rig: Rig, name: str = "q") -> tuple[int, int, int]:
    """Ready, acquired, settled."""
    queue = rig.queue(name)
    return queue.ready, queue.acquired, queue.account.settled


def numbers(peer: Peer) -> list[int]:
    return [int(body) for body in peer.bodies()]


def failed(rig: Rig, name: str = "q") -> list[int]:
    """How often each ready message has failed."""
    return [piece.failed for piece in rig.queue(name).slices() for _ in range(len(piece))]


# -- credit


@pytest.mark.parametrize("chunk", [0, 1])
def test_nothing_comes_without_credit_and_no_more_than_it_lc_3(rig: Rig, chunk: int) -> None:
    fill(rig, 10)
    peer = rig.connect10(chunk=chunk)
    link = peer.receiver(peer.session())
    assert numbers(peer) == []
    link.flow(3)
    peer.pump()
    assert numbers(peer) == [0, 1, 2]
    assert link.credit == 0
    assert counts(rig) == (7, 3, 0)


def test_credit_is_spent_by_sending_not_by_holding_fc_2(rig: Rig) -> None:
    """Settling gives nothing back: the client grants anew [FC-17, LC-3]."""
    fill(rig, 10)
    peer = rig.connect10()
    link = peer.receiver(peer.session(), credit=3)
    for got in peer.got:
        peer.settle(got, ACCEPTED)
    assert len(peer.got) == 3
    assert counts(rig) == (7, 0, 3)
    link.flow(2)
    peer.pump()
    assert numbers(peer) == [0, 1, 2, 3, 4]


def test_fc_3_a_flow_sets_the_credit_it_does_not_add(rig: Rig) -> None:
    peer = rig.connect10()
    link = peer.receiver(peer.session(), credit=5)
    link.flow(2)
    peer.pump()
    fill(rig, 10)
    peer.pump()
    assert numbers(peer) == [0, 1]
    link.flow(0)
    link.flow(1)
    peer.pump()
    assert numbers(peer) == [2]


def test_credit_given_before_the_answer_counts(rig: Rig) -> None:
    fill(rig, 3)
    peer = rig.connect10()
    session = peer.session()
    asked = Attach(name="l", source=Source(address="q"), target=Target())
    link = session.attach_receiver(asked)
    link.flow(2)
    peer.pump()
    assert numbers(peer) == [0, 1]


@pytest.mark.parametrize("chunk", [0, 1])
def test_fc_5_drain_gives_what_there_is_and_gives_up_the_rest(rig: Rig, chunk: int) -> None:
    fill(rig, 3)
    peer = rig.connect10(chunk=chunk)
    link = peer.receiver(peer.session())
    link.flow(10)
    link.drain()
    peer.pump()
    assert numbers(peer) == [0, 1, 2]
    assert peer.take(DrainFinished).given_up == 7
    assert (link.credit, link.delivery_count) == (0, 10)
    fill(rig, 2, first=3)
    peer.pump()
    assert numbers(peer) == []
    link.flow(1)
    peer.pump()
    assert (numbers(peer), link.delivery_count) == ([3], 11)


def test_fc_a9_drain_of_an_empty_queue_and_of_one_that_has_all(rig: Rig) -> None:
    peer = rig.connect10()
    link = peer.receiver(peer.session())
    link.flow(4)
    assert link.drain()
    peer.pump()
    assert peer.take(DrainFinished).given_up == 4
    fill(rig, 4)
    link.flow(4)
    assert link.drain()
    peer.pump()
    assert numbers(peer) == [0, 1, 2, 3]
    assert peer.take(DrainFinished).given_up == 0


def test_drain_waits_for_what_the_disk_holds_back(rig: Rig) -> None:
    fill(rig, 2)
    peer = rig.connect10()
    link = peer.receiver(peer.session())
    rig.hold_disk = True
    link.flow(5)
    link.drain()
    peer.pump()
    rig.hold_disk = False
    rig.settle_down()
    peer.pump()
    assert numbers(peer) == [0, 1]
    assert peer.take(DrainFinished).given_up == 3


def test_fc_6_echo_is_answered_with_what_is_available(rig: Rig) -> None:
    fill(rig, 7)
    peer = rig.connect10()
    link = peer.receiver(peer.session())
    link.flow(0, echo=True)
    peer.pump()
    assert link.available == 7


def test_an_attach_to_an_empty_queue_gets_what_comes_later(rig: Rig) -> None:
    peer = rig.connect10()
    peer.receiver(peer.session(), credit=100)
    fill(rig, 3)
    peer.pump()
    assert numbers(peer) == [0, 1, 2]


# -- the session's window [FC-7]


@pytest.mark.parametrize("chunk", [0, 1])
def test_fc_7_a_closed_window_holds_deliveries_back_in_order(rig: Rig, chunk: int) -> None:
    fill(rig, 50)
    rig.declare("r")
    fill(rig, 50, "r", 100)
    peer = rig.connect10(chunk=chunk, limits=Limits(incoming_window=8))
    session = peer.session()
    session.hold_window(True)
    first = peer.receiver(session, "q", credit=20)
    second = peer.receiver(session, "r", credit=20)
    assert len(peer.got) == 8
    session.hold_window(False)
    peer.pump()
    assert [got.id for got in peer.got] == list(range(40))
    assert [int(got.body) for got in peer.got if got.link is first] == list(range(20))
    assert [int(got.body) for got in peer.got if got.link is second] == list(range(100, 120))
    for got in peer.got:
        peer.settle(got, ACCEPTED)
    assert counts(rig) == (30, 0, 20)
    assert counts(rig, "r") == (30, 0, 20)


def test_while_the_window_is_closed_no_more_is_taken_from_queues(rig: Rig) -> None:
    fill(rig, 100)
    peer = rig.connect10(limits=Limits(incoming_window=8))
    session = peer.session()
    session.hold_window(True)
    link = peer.receiver(session, credit=10)
    link.flow(92)
    peer.pump()
    assert counts(rig)[1] == 10, "what was decided before, and nothing since"
    session.hold_window(False)
    peer.pump()
    assert numbers(peer) == list(range(100))


def test_a_drain_is_answered_behind_what_the_window_holds_back(rig: Rig) -> None:
    fill(rig, 12)
    peer = rig.connect10(limits=Limits(incoming_window=4))
    session = peer.session()
    session.hold_window(True)
    link = peer.receiver(session)
    link.flow(20)
    link.drain()
    peer.pump()
    assert len(peer.got) == 4
    assert not [event for event in peer.events if isinstance(event, DrainFinished)]
    session.hold_window(False)
    peer.pump()
    assert numbers(peer) == list(range(12))
    assert peer.take(DrainFinished).given_up == 8


def test_what_the_window_held_back_of_a_link_that_is_gone_returns(rig: Rig) -> None:
    fill(rig, 12)
    peer = rig.connect10(limits=Limits(incoming_window=4))
    session = peer.session()
    session.hold_window(True)
    link = peer.receiver(session, credit=12)
    assert counts(rig) == (0, 12, 0)
    link.detach()
    peer.pump()
    assert counts(rig) == (12, 0, 0)
    session.hold_window(False)
    peer.pump()
    peer.got.clear()
    peer.receiver(session, credit=20)
    assert [int(got.body) for got in peer.got] == list(range(12))
    for got in peer.got:
        peer.settle(got, ACCEPTED)
    assert counts(rig) == (0, 0, 12), "numbers and tags are still in step"


def test_credit_taken_back_while_the_window_is_closed_gives_back_what_had_not_left(
    rig: Rig,
) -> None:
    fill(rig, 12)
    peer = rig.connect10(limits=Limits(incoming_window=4))
    session = peer.session()
    session.hold_window(True)
    link = peer.receiver(session, credit=12)
    assert (len(peer.got), counts(rig)) == (4, (0, 12, 0))
    link.flow(0)
    peer.pump()
    assert counts(rig) == (8, 4, 0)
    session.hold_window(False)
    link.flow(5)
    peer.pump()
    assert [int(got.body) for got in peer.got] == list(range(9))
    for got in peer.got:
        peer.settle(got, ACCEPTED)
    assert counts(rig) == (3, 0, 9), "numbers and tags are still in step"


# -- outcomes [FC-20, LC-1]


@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize(
    ("state", "ready", "settled", "dead", "failures"),
    [
        (ACCEPTED, 0, 1, 0, []),
        (Rejected(Error("amqp:x", "bad")), 0, 0, 1, []),
        (RELEASED, 1, 0, 0, [0]),
        (Modified(), 1, 0, 0, [0]),
        (Modified(delivery_failed=True), 1, 0, 0, [1]),
        (Modified(undeliverable_here=True), 0, 0, 1, []),
        (Modified(delivery_failed=True, undeliverable_here=True), 0, 0, 1, []),
    ],
)
def test_fc_20_what_an_outcome_does(
    rig: Rig,
    state: DeliveryState,
    ready: int,
    settled: int,
    dead: int,
    failures: list[int],
    mode: int,
    chunk: int,
) -> None:
    rig.declare("dead")
    rig.declare("w", dead_letter_exchange="", dead_letter_routing_key="dead")
    fill(rig, 1, "w")
    peer = rig.connect10(chunk=chunk)
    link = peer.receiver(peer.session(), "w", credit=1, rcv=mode)
    peer.settle(peer.got[0], state)
    queue = rig.queue("w")
    assert (queue.ready, queue.acquired, queue.account.settled) == (ready, 0, settled)
    assert rig.queue("dead").ready == dead
    assert failed(rig, "w") == failures
    if mode == 1:
        answer = peer.take(SettlementReceived)
        assert (answer.link, answer.first, answer.last) == (link, 0, 0)
        assert answer.state == state
        assert link.in_flight() == []


def test_letters_carry_the_failures_of_their_refusal_dl_5(rig: Rig) -> None:
    rig.declare("dead")
    rig.declare("w", queue_type="quorum", dead_letter_exchange="", dead_letter_routing_key="dead")
    fill(rig, 3, "w")
    peer = rig.connect10()
    session = peer.session()
    peer.receiver(session, "w", credit=3)
    peer.settle(peer.got[0], Rejected())
    peer.settle(peer.got[1], Modified(undeliverable_here=True))
    peer.settle(peer.got[2], Modified(delivery_failed=True, undeliverable_here=True))
    peer.got.clear()
    peer.receiver(session, "dead", credit=3)
    counted = []
    for got in peer.got:
        assert got.sections.header is not None
        counted.append(got.sections.header.delivery_count)
    assert counted == [1, 0, 1]


def test_fc_20_annotations_of_modified_are_kept_and_shown(rig: Rig) -> None:
    fill(rig, 1)
    peer = rig.connect10()
    session = peer.session()
    link = peer.receiver(session, credit=1)
    annotations = {
        Symbol("x-opt-why"): "too hot",
        Symbol("x-n"): Timestamp(7),
        Symbol("other"): "not kept",
    }
    peer.settle(peer.got.pop(), Modified(delivery_failed=True, message_annotations=annotations))
    link.flow(1)
    peer.pump()
    got = peer.got.pop()
    shown = got.sections.message_annotations
    assert shown is not None
    assert shown["x-opt-why"] == "too hot"
    assert shown["x-n"] == Timestamp(7)
    assert "other" not in shown
    assert got.sections.header is not None
    assert got.sections.header.delivery_count == 1
    peer.settle(got, Modified(message_annotations={Symbol("x-n"): "again"}))
    link.flow(1)
    peer.pump()
    shown = peer.got[0].sections.message_annotations
    assert shown is not None
    assert (shown["x-n"], shown["x-opt-why"]) == ("again", "too hot")


def test_lc_1_modified_with_a_delivery_time_comes_back_then(rig: Rig) -> None:
    fill(rig, 2)
    peer = rig.connect10()
    link = peer.receiver(peer.session(), credit=2)
    first, second = peer.got
    later = {Symbol("x-opt-delivery-time"): Timestamp(rig.now_ms + 10_000)}
    peer.settle(first, Modified(delivery_failed=True, message_annotations=later))
    peer.settle(second, Modified(undeliverable_here=True, message_annotations=later))
    queue = rig.queue("q")
    assert (queue.ready, queue.deferred, queue.acquired) == (0, 1, 0)
    peer.got.clear()
    link.flow(5)
    peer.pump()
    assert peer.got == []
    rig.now_ms += 10_001
    rig.settle_down()
    peer.pump()
    (again,) = peer.got
    assert again.body == b"0"
    assert again.sections.header is not None
    assert again.sections.header.delivery_count == 1


def test_returned_messages_go_back_to_their_place_lc_4(rig: Rig) -> None:
    fill(rig, 6)
    peer = rig.connect10()
    link = peer.receiver(peer.session(), credit=4)
    for i in (2, 0, 3, 1):
        peer.settle(peer.got[i], RELEASED)
    peer.got.clear()
    link.flow(6)
    peer.pump()
    assert [int(got.body) for got in peer.got] == list(range(6))
    first = [got.sections.header.first_acquirer for got in peer.got if got.sections.header]
    assert first == [False] * 4 + [True] * 2


def test_one_disposition_settles_a_range_over_two_links_fc_a11(rig: Rig) -> None:
    rig.declare("r")
    fill(rig, 3)
    fill(rig, 3, "r", 10)
    peer = rig.connect10()
    session = peer.session()
    peer.receiver(session, "q", credit=3)
    peer.receiver(session, "r", credit=3)
    session.settle_received(1, 4, ACCEPTED)
    peer.pump()
    assert counts(rig) == (0, 1, 2)
    assert counts(rig, "r") == (0, 1, 2)
    session.settle_received(0, 5, RELEASED)
    peer.pump()
    assert counts(rig) == (1, 0, 2)
    assert counts(rig, "r") == (1, 0, 2)


def test_settling_what_is_settled_changes_nothing(rig: Rig) -> None:
    fill(rig, 5)
    peer = rig.connect10()
    session = peer.session()
    peer.receiver(session, credit=5)
    session.settle_received(1, 1, ACCEPTED)
    session.settle_received(3, 3, ACCEPTED)
    session.settle_received(0, 4, RELEASED)
    session.settle_received(0, 4, ACCEPTED)
    peer.pump()
    assert counts(rig) == (3, 0, 2)
    assert not peer.events


def test_fc_12_the_answer_in_mode_second_waits_for_the_disk(rig: Rig) -> None:
    fill(rig, 1)
    peer = rig.connect10()
    link = peer.receiver(peer.session(), credit=1, rcv=1)
    rig.hold_disk = True
    peer.settle(peer.got[0], ACCEPTED)
    assert counts(rig) == (0, 0, 1)
    assert link.in_flight() == [(0, 0)]
    assert not peer.events
    rig.hold_disk = False
    rig.settle_down()
    peer.pump()
    assert peer.take(SettlementReceived).state == ACCEPTED


def test_fc_11_mode_first_gets_no_answer(rig: Rig) -> None:
    fill(rig, 1)
    peer = rig.connect10()
    peer.receiver(peer.session(), credit=1, rcv=0)
    peer.sent_bytes.clear()
    peer.settle(peer.got[0], ACCEPTED)
    assert peer.sent_bytes == []


def test_fc_a1_one_at_a_time_in_mode_second(rig: Rig) -> None:
    fill(rig, 3)
    peer = rig.connect10()
    link = peer.receiver(peer.session(), credit=1, rcv=1)
    for i in range(3):
        (got,) = peer.got
        peer.got.clear()
        assert int(got.body) == i
        rig.now_ms += 20_000
        peer.pump()
        assert peer.got == []
        peer.settle(got, ACCEPTED)
        assert peer.take(SettlementReceived).first == got.id
        assert peer.got == []
        link.flow(1)
        peer.pump()
    assert counts(rig) == (0, 0, 3)


@pytest.mark.parametrize(
    ("default", "ready", "settled"), [(None, 1, 0), (Accepted(), 0, 1), (Released(), 1, 0)]
)
def test_settled_without_an_outcome_is_the_default_outcome(
    rig: Rig, default: DeliveryState | None, ready: int, settled: int
) -> None:
    fill(rig, 1)
    peer = rig.connect10()
    session = peer.session()
    link = peer.receiver(session, source=Source(address="q", default_outcome=default))
    link.flow(1)
    peer.pump()
    assert link.remote_attach is not None
    assert link.remote_attach.source is not None
    assert link.remote_attach.source.default_outcome == (default or RELEASED)
    session.settle_received(0, 0, None)  # type: ignore[arg-type]
    peer.pump()
    assert counts(rig) == (ready, 0, settled)


def test_a_default_outcome_of_modified_says_all_that_it_says(rig: Rig) -> None:
    fill(rig, 1)
    peer = rig.connect10()
    session = peer.session()
    due = rig.broker.clock.wall_ms + 60_000
    said = {Symbol("x-opt-why"): "closed", Symbol("x-opt-delivery-time"): Timestamp(due)}
    default = Modified(delivery_failed=True, message_annotations=said)  # type: ignore[arg-type]
    link = peer.receiver(session, source=Source(address="q", default_outcome=default))
    link.flow(2)
    peer.pump()
    session.settle_received(0, 0, None)  # type: ignore[arg-type]
    peer.pump()
    assert len(peer.got) == 1
    rig.now_ms += 60_000
    peer.pump()
    again = peer.got[1].sections
    assert again.message_annotations is not None
    assert again.message_annotations["x-opt-why"] == "closed"
    assert again.header is not None
    assert again.header.delivery_count == 1


def test_received_is_no_outcome(rig: Rig) -> None:
    fill(rig, 1)
    peer = rig.connect10()
    session = peer.session()
    link = peer.receiver(session, credit=1, rcv=1)
    session.settle_second(link, 0, 0, Received(0, 0))
    peer.pump()
    assert counts(rig) == (0, 1, 0)
    assert not peer.events


# -- settled by sending


def test_fc_10_a_settled_link_takes_messages_for_good(rig: Rig) -> None:
    fill(rig, 5)
    peer = rig.connect10()
    link = peer.receiver(peer.session(), credit=3, snd=1)
    assert link.snd_settle_mode == 1
    assert [got.settled for got in peer.got] == [True] * 3
    assert counts(rig) == (2, 0, 3)
    assert numbers(peer) == [0, 1, 2]
    link.detach()
    peer.pump()
    assert counts(rig) == (2, 0, 3)


def test_settled_and_unsettled_links_share_a_sessions_numbers(rig: Rig) -> None:
    rig.declare("r")
    fill(rig, 4)
    fill(rig, 4, "r", 10)
    peer = rig.connect10()
    session = peer.session()
    unsettled = peer.receiver(session, "q")
    settled = peer.receiver(session, "r", snd=1)
    for _ in range(4):
        unsettled.flow(1)
        peer.pump()
        settled.flow(1)
        peer.pump()
    assert [(got.id, got.settled) for got in peer.got] == [(i, i % 2 == 1) for i in range(8)]
    session.settle_received(0, 7, ACCEPTED)
    peer.pump()
    assert counts(rig) == (0, 0, 4)


# -- what is shown


def test_annotations_say_where_it_came_from_and_until_when_it_is_locked(rig: Rig) -> None:
    rig.declare("t", consumer_timeout=60_000)
    rig.broker.vhost("/").bind_queue("t", "amq.topic", "a.#", {}, rig.owner.id)
    peer = rig.connect10()
    session = peer.session()
    peer.send(peer.sender(session, "/exchanges/amq.topic/a.b"), "x")
    peer.receiver(session, "t", credit=1)
    shown = peer.got[0].sections.message_annotations
    assert shown is not None
    assert (shown["x-exchange"], shown["x-routing-key"]) == ("amq.topic", "a.b")
    until = shown["x-opt-locked-until"]
    assert isinstance(until, Timestamp)
    assert rig.now_ms - 100 < until - 60_000 <= rig.now_ms


def test_no_lock_no_time(rig: Rig) -> None:
    fill(rig, 2)
    peer = rig.connect10()
    session = peer.session()
    peer.receiver(session, credit=1, snd=1)
    asked = Attach(
        name="t", source=Source(address="q"), target=Target(),
        properties={Symbol("rabbitmq:consumer-timeout"): 0},
    )  # fmt: skip
    peer.receiver(session, attach=asked, credit=1)
    for got in peer.got:
        assert "x-opt-locked-until" not in (got.sections.message_annotations or {})
    assert len(peer.got) == 2


def test_x_opt_deaths_tells_the_history_dl_16(rig: Rig) -> None:
    rig.declare("dead")
    rig.declare("w", dead_letter_exchange="", dead_letter_routing_key="dead")
    fill(rig, 1, "w")
    peer = rig.connect10()
    session = peer.session()
    peer.receiver(session, "w", credit=1)
    peer.settle(peer.got.pop(), Rejected())
    peer.receiver(session, "dead", credit=1)
    shown = peer.got[0].sections.message_annotations
    assert shown is not None
    (death,) = shown["x-opt-deaths"]
    assert (death["queue"], death["reason"], death["count"]) == ("w", "rejected", 1)


# -- addresses and permissions


@pytest.mark.parametrize(
    ("source", "condition"),
    [
        (Source(address="none"), "amqp:not-found"),
        (Source(address="/queues/none"), "amqp:not-found"),
        (Source(address="/exchanges/amq.topic/x"), "amqp:invalid-field"),
        (Source(address="/queues/"), "amqp:invalid-field"),
        (Source(), "amqp:invalid-field"),
        (None, "amqp:invalid-field"),
        (Source(address="secret"), "amqp:unauthorized-access"),
        (Source(address="own"), "amqp:resource-locked"),
    ],
)
def test_a_source_that_cannot_be_read_refuses_the_link(
    rig: Rig, source: Source | None, condition: str
) -> None:
    rig.declare("secret")
    rig.broker.registry.declare_queue(rig.owner, "own", False, True, False, {}, False)
    rig.users["guest"] = Permissions("guest", {"/": (".*", ".*", "^(?!secret)")})
    peer = rig.connect10()
    session = peer.session()
    asked = Attach(source=source, target=Target())
    assert peer.refused(session, asked, False).condition == condition
    assert peer.receiver(session)


def test_an_exclusive_consumer_keeps_others_out(rig: Rig) -> None:
    session = rig.broker.clients.open_session(rig.owner)
    rig.broker.consuming.consume(session, rig.queue("q"), "t", False, True, 0, {})
    peer = rig.connect10()
    asked = Attach(source=Source(address="q"), target=Target())
    error = peer.refused(peer.session(), asked, False)
    assert error.condition == "amqp:unauthorized-access"
    assert "exclusive use" in (error.description or "")


def test_priority_is_a_property_of_the_link(rig: Rig) -> None:
    peer = rig.connect10()
    session = peer.session()
    low = peer.receiver(session, "q", credit=5)
    asked = Attach(
        name="high", source=Source(address="q"), target=Target(),
        properties={Symbol("rabbitmq:priority"): 5},
    )  # fmt: skip
    high = peer.receiver(session, attach=asked, credit=2)
    fill(rig, 4)
    peer.pump()
    assert [got.link for got in peer.got] == [high, high, low, low]
    kept = {one.tag: one.arguments for one in consumers_of(rig.queue("q"))}
    assert kept == {high.name: {"x-priority": 5}, low.name: {}}
    bad = Attach(
        source=Source(address="q"), target=Target(),
        properties={Symbol("rabbitmq:priority"): "high"},
    )  # fmt: skip
    assert peer.refused(session, bad, False).condition == "amqp:precondition-failed"


# -- copies


def test_copy_mode_shows_and_takes_nothing(rig: Rig) -> None:
    fill(rig, 4)
    peer = rig.connect10()
    session = peer.session()
    link = peer.receiver(session, source=Source(address="q", distribution_mode="copy"))
    assert link.remote_attach is not None
    assert link.remote_attach.source is not None
    assert link.remote_attach.source.distribution_mode == "copy"
    link.flow(10)
    link.drain()
    peer.pump()
    assert [int(got.body) for got in peer.got] == [0, 1, 2, 3]
    assert peer.take(DrainFinished).given_up == 6
    for got in peer.got:
        peer.settle(got, ACCEPTED)
    assert counts(rig) == (4, 0, 0)
    peer.got.clear()
    peer.receiver(session, credit=4)
    assert [int(got.body) for got in peer.got] == [0, 1, 2, 3]
    for got in peer.got:
        peer.settle(got, ACCEPTED)
    assert counts(rig) == (0, 0, 4)


@pytest.mark.parametrize("mode", [0, 1])
def test_copies_may_be_unsettled_and_settling_them_is_answered(rig: Rig, mode: int) -> None:
    fill(rig, 2)
    peer = rig.connect10()
    source = Source(address="q", distribution_mode="copy")
    link = peer.receiver(peer.session(), source=source, snd=0, rcv=mode)
    link.flow(2)
    peer.pump()
    assert [got.settled for got in peer.got] == [False, False]
    peer.settle(peer.got[0], Rejected())
    if mode:
        assert peer.take(SettlementReceived).first == 0
    assert counts(rig) == (2, 0, 0)


# -- filters


def test_filters_that_are_understood_are_echoed_and_applied(rig: Rig) -> None:
    publisher = rig.connect10()
    link = publisher.sender(publisher.session())
    for i in range(6):
        publisher.send(link, b"%d" % i, application_properties={"n": i})
    peer = rig.connect10()
    asked = {
        Symbol("sql"): Described(Symbol("amqp:sql-filter"), "n > 2 AND n <> 4"),
        Symbol("odd"): Described(Symbol("example:unknown-filter"), "x"),
    }
    receiver = peer.receiver(peer.session(), source=Source(address="q", filter=asked))  # type: ignore[arg-type]
    assert receiver.remote_attach is not None
    assert receiver.remote_attach.source is not None
    assert list(receiver.remote_attach.source.filter or {}) == ["sql"]
    receiver.flow(10)
    peer.pump()
    assert numbers(peer) == [3, 5]
    assert counts(rig) == (4, 2, 0)


def test_a_malformed_filter_refuses_the_link(rig: Rig) -> None:
    peer = rig.connect10()
    bad = {Symbol("sql"): Described(Symbol("amqp:sql-filter"), "n >")}
    asked = Attach(source=Source(address="q", filter=bad), target=Target())  # type: ignore[arg-type]
    assert peer.refused(peer.session(), asked, False).condition == "amqp:invalid-field"


def test_a_filter_on_a_single_active_queue_is_refused(rig: Rig) -> None:
    rig.declare("sac", single_active_consumer=True)
    peer = rig.connect10()
    filter = {Symbol("sql"): Described(Symbol("amqp:sql-filter"), "n > 2")}
    asked = Attach(source=Source(address="sac", filter=filter), target=Target())  # type: ignore[arg-type]
    assert peer.refused(peer.session(), asked, False).condition == "amqp:not-allowed"


# -- dynamic sources


def test_a_dynamic_source_is_a_queue_of_ones_own(rig: Rig) -> None:
    peer = rig.connect10()
    session = peer.session()
    link = peer.receiver(session, source=Source(dynamic=True), credit=0)
    assert link.remote_attach is not None
    source = link.remote_attach.source
    assert source is not None
    assert source.dynamic
    assert source.address is not None
    assert source.dynamic_node_properties is not None
    assert isinstance(source.dynamic_node_properties["lifetime-policy"], Described)
    name = source.address.removeprefix("/queues/")
    queue = rig.queue(name)
    assert queue.auto_delete
    assert not queue.durable
    assert queue.exclusive_owner
    link.flow(5)
    peer.send(peer.sender(session, source.address), "answer")
    assert peer.bodies() == [b"answer"]
    link.detach()
    peer.pump()
    assert name not in rig.broker.vhost("/").queues


def test_a_dynamic_source_goes_with_the_session(rig: Rig) -> None:
    peer = rig.connect10()
    session = peer.session()
    peer.receiver(session, source=Source(dynamic=True))
    assert len(rig.broker.vhost("/").queues) == 2
    session.end()
    peer.pump()
    assert list(rig.broker.vhost("/").queues) == ["q"]


@pytest.mark.parametrize(
    ("filter", "properties"),
    [
        ({Symbol("sql"): Described(Symbol("amqp:sql-filter"), "n >")}, None),
        (None, {Symbol("rabbitmq:priority"): "high"}),
        (None, {Symbol("tallymark:exclusive"): 3}),
    ],
)
def test_no_queue_is_left_of_a_dynamic_source_that_is_refused(
    rig: Rig, filter: dict[object, object] | None, properties: dict[object, object] | None
) -> None:
    peer = rig.connect10()
    source = Source(dynamic=True, filter=filter)
    peer.refused(peer.session(), Attach(source=source, properties=properties), False)
    assert list(rig.broker.vhost("/").queues) == ["q"]


# -- sizes


def test_a_reader_with_small_frames_gets_every_byte() -> None:
    rig = Rig()
    rig.declare("q")
    publisher = rig.connect10()
    body = bytes(range(256)) * 40
    publisher.send(publisher.sender(publisher.session()), body, b"x", body)
    peer = rig.connect10(limits=Limits(max_frame_size=512))
    peer.receiver(peer.session(), credit=3)
    assert peer.bodies() == [body, b"x", body]


@pytest.mark.parametrize("settled", [0, 1])
def test_what_is_too_large_for_the_reader_is_refused_in_its_name(rig: Rig, settled: int) -> None:
    rig.declare("dead")
    rig.declare("w", dead_letter_exchange="", dead_letter_routing_key="dead")
    publisher = rig.connect10()
    link = publisher.sender(publisher.session(), "w")
    publisher.send(link, bytes(10), bytes(2000), bytes(11), bytes(3000), bytes(12))
    peer = rig.connect10()
    asked = Attach(name="small", source=Source(address="w"), target=Target(), max_message_size=1000)
    receiver = peer.receiver(peer.session(), attach=asked, credit=3, snd=settled)
    peer.pump()
    assert [len(body) for body in peer.bodies()] == [10, 11, 12]
    assert receiver.credit == 0
    if not settled:
        assert rig.queue("dead").ready == 2
    publisher.send(link, bytes(13))
    receiver.flow(1)
    peer.pump()
    assert [len(body) for body in peer.bodies()] == [13]


@pytest.mark.parametrize("kind", ["classic", "stream"])
@pytest.mark.parametrize("settled", [0, 1])
def test_what_is_too_large_for_one_that_browses_is_passed_over(
    rig: Rig, kind: str, settled: int
) -> None:
    rig.declare("w", queue_type=kind)
    publisher = rig.connect10()
    link = publisher.sender(publisher.session(), "w")
    publisher.send(link, bytes(2000), bytes(10), bytes(3000), bytes(11))
    peer = rig.connect10()
    offset = {"start": Described(Symbol("rabbitmq:stream-offset-spec"), "first")}
    source = Source(
        address="w", distribution_mode="copy", filter=offset if kind == "stream" else None
    )
    asked = Attach(name="small", source=source, target=Target(), max_message_size=1000)
    peer.receiver(peer.session(), attach=asked, credit=2, snd=settled)
    peer.pump()
    assert [len(body) for body in peer.bodies()] == [10, 11]
    assert counts(rig, "w") == (4, 0, 0)


# -- time-outs [FC-18, LC-4]


def test_fc_18_messages_held_for_too_long_are_released_by_us(rig: Rig) -> None:
    rig.declare("t", consumer_timeout=1000)
    fill(rig, 3, "t")
    peer = rig.connect10()
    session = peer.session()
    link = peer.receiver(session, "t", credit=2)
    first, second = peer.got
    peer.got.clear()
    other = rig.connect10()
    other.receiver(other.session(), "t", credit=0)
    rig.now_ms += 1100
    peer.pump()
    told = peer.take(DispositionReceived)
    assert told.by_sender
    assert (told.first, told.last, told.settled, told.state) == (0, 1, False, RELEASED)
    assert counts(rig, "t") == (3, 0, 0)
    assert failed(rig, "t") == [0, 0, 0]
    link.flow(5)
    peer.pump()
    assert peer.got == [], "it gets none before it has settled those"
    session.settle_received(0, 0, ACCEPTED)
    peer.pump()
    assert peer.got == []
    assert counts(rig, "t") == (3, 0, 0), "a late settle changes nothing"
    session.settle_received(1, 1, RELEASED)
    peer.pump()
    assert [got.body for got in peer.got] == [b"0", b"1", b"2"]
    assert first.body + second.body == b"01"


def test_a_deleted_queue_detaches_its_consumers(rig: Rig) -> None:
    fill(rig, 3)
    peer = rig.connect10()
    session = peer.session()
    link = peer.receiver(session, credit=2)
    rig.delete("q")
    peer.pump()
    detached = peer.take(LinkDetached)
    assert detached.link is link
    assert detached.error is not None
    assert detached.error.condition == "amqp:resource-deleted"
    session.settle_received(0, 1, ACCEPTED)
    link.detach()
    peer.pump()
    rig.declare("q")
    fill(rig, 1, first=7)
    peer.got.clear()
    again = peer.receiver(session, credit=1)
    assert isinstance(again, ReceiverLink)
    assert numbers(peer) == [7]
