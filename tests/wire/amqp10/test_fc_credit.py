"""FC-1 to FC-6 and FC-13: link credit, drain, echo, what a delivery must look like."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp10.events import (
    CreditReceived,
    DeliveriesWithdrawn,
    DrainFinished,
    FlowReceived,
    LinkFailed,
    LinkRequested,
    SessionFailed,
    TransfersReceived,
)
from tallymark.wire.amqp10.frames import frame
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import Accepted, Received, TransactionalState
from tallymark.wire.amqp10.performatives import (
    SENDER,
    Attach,
    Begin,
    Flow,
    Source,
    Target,
    Transfer,
)
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sending import text_tag
from tests.support.amqp10_pair import BODY, CUTS, Cut, Pair, Server, conditions, run_of, transfer

WRAP = 2**32


def receiving(initial: int, credit: int, cut: Cut = CUTS["whole"]) -> tuple[Server, ReceiverLink]:
    """A link on which the peer sends, from this delivery-count."""
    server = Server(cut=cut)
    server.begin()
    server.say(
        Attach("p", 0, SENDER, source=Source(), target=Target(), initial_delivery_count=initial)
    )
    link = server.connection.sessions[0].links[0]
    assert isinstance(link, ReceiverLink)
    link.flow(credit)
    server.take(0)
    return server, link


# FC-1, FC-2, FC-3


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_fc_2_the_receiver_counts_deliveries_and_not_frames(cut: Cut) -> None:
    server, link = receiving(100, 10, cut)
    server.say(transfer(0, more=True), transfer(None, more=True), payload=BODY)
    assert (link.delivery_count, link.credit) == (100, 10)
    server.say(transfer(None), payload=BODY)
    assert (link.delivery_count, link.credit) == (101, 9)
    server.say(transfer(1), transfer(2), transfer(3), payload=BODY)
    assert (link.delivery_count, link.credit) == (104, 6)


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_fc_2_a_sender_that_does_not_count_aborted_deliveries(cut: Cut) -> None:
    server, link = receiving(0, 4, cut)
    server.say(transfer(0, more=True), transfer(None, aborted=True), payload=BODY)
    server.say(transfer(1, aborted=True), payload=BODY)
    server.say(transfer(2, more=True), transfer(2, more=True, aborted=True))
    assert (link.delivery_count, link.credit, link.unfinished) == (3, 1, 0)
    assert [flow.echo for flow in server.sent(Flow)[-3:]] == [True] * 3
    assert len(server.of(FlowReceived)) == 3  # the owner looks at its credit
    server.say(Flow(0, 9, 5, 9, handle=0, delivery_count=0, link_credit=4))
    assert (link.delivery_count, link.credit) == (0, 4)  # neither has changed
    server.say(*[transfer(i) for i in range(3, 7)], payload=BODY)
    assert [message[0] for message in server.messages()] == [3, 4, 5, 6]
    server.say(transfer(7), payload=BODY)
    assert conditions(server) == [("Detach", "amqp:link:transfer-limit-exceeded")]


@pytest.mark.parametrize("answers", [False, True])
def test_fc_2_a_sender_that_counts_aborted_deliveries(answers: bool) -> None:
    """proton: with a window of 1 nothing would ever come again if we did not count them."""
    server, link = receiving(0, 1)
    server.say(transfer(0, more=True), transfer(None, aborted=True), payload=BODY)
    if answers:
        server.say(Flow(0, 9, 2, 9, handle=0, delivery_count=1, link_credit=0))
    assert (link.delivery_count, link.credit) == (1, 0)
    assert server.of(FlowReceived)[0].link is link
    link.flow(1)
    server.take(0)
    assert server.sent(Flow)[-1].delivery_count == 1
    server.say(transfer(1), payload=BODY)
    assert (link.delivery_count, link.credit) == (2, 0)
    assert len(server.messages()) == 1


def test_fc_2_a_sender_that_does_not_say_may_send_one_more_for_each() -> None:
    server, link = receiving(0, 2)
    server.say(transfer(0, more=True), transfer(None, aborted=True), payload=BODY)
    link.flow(1)  # makes two for a sender that is at 0 still
    server.hear(_frame(transfer(1)) + _frame(transfer(2)))
    assert len(server.messages()) == 2
    assert conditions(server) == []
    server.say(transfer(3), payload=BODY)
    assert conditions(server) == [("Detach", "amqp:link:transfer-limit-exceeded")]


def test_fc_2_a_drain_may_end_with_an_aborted_delivery() -> None:
    server, link = receiving(0, 1)
    link.drain()
    server.say(transfer(0, more=True), transfer(None, aborted=True), payload=BODY)
    assert server.one(DrainFinished).link is link


@pytest.mark.parametrize(
    ("sent", "count", "credit", "expected"),
    [
        (0, 0, 5, 5),
        (3, 0, 5, 2),  # three are on their way
        (3, 3, 5, 5),
        (3, 2, 1, 0),
        (3, 0, 2, 0),  # negative: taken back
        (0, 0, 2**32 - 1, 2**32 - 1),
    ],
)
@pytest.mark.parametrize("initial", [0, 2**32 - 2, 2**31 - 1])
def test_fc_3_credit_of_the_sender(
    initial: int, sent: int, count: int, credit: int, expected: int
) -> None:
    server = Server()
    server.initial_delivery_count = initial
    link = server.subscriber()
    server.credit(10, initial)
    for _ in range(sent):
        link.send(BODY)
    assert link.delivery_count == (initial + sent) % WRAP
    server.credit(credit, (initial + count) % WRAP)
    assert link.credit == server.last(CreditReceived).credit == expected


def test_fc_3_a_receiver_that_does_not_know_our_count_means_the_initial_one() -> None:
    server = Server()
    server.initial_delivery_count = 77
    link = server.subscriber()
    server.credit(5, None)
    assert link.credit == 5
    link.send(BODY)
    link.send(BODY)
    server.credit(5, None)  # sent before it saw our attach
    assert link.credit == 3


@pytest.mark.parametrize("ahead", [1, 2**31 - 1])
def test_fc_3_a_receiver_whose_count_is_ahead_has_no_more_credit_than_can_be_said(
    ahead: int,
) -> None:
    server = Server()
    link = server.subscriber()
    server.credit(WRAP - 1, ahead, echo=True)
    assert link.credit == WRAP - 1
    assert [flow.link_credit for flow in server.sent(Flow)] == [WRAP - 1]
    link.send(BODY)
    server.take(0)
    assert (link.delivery_count, link.credit) == (1, WRAP - 2)


def test_fc_3_without_credit_nothing_is_sent() -> None:
    server = Server()
    link = server.subscriber()
    with pytest.raises(ValueError, match="1 deliveries on a link with a credit of 0"):
        link.send(BODY)
    server.credit(2)
    raw, cuts = run_of([BODY] * 3)
    with pytest.raises(ValueError, match="3 deliveries on a link with a credit of 2"):
        link.send_run(raw, cuts, 0, 3, settled=True)
    server.take(0)
    assert server.sent(Transfer) == []
    assert (link.delivery_count, link.credit, link.session.next_delivery_id) == (0, 2, 0)


@pytest.mark.parametrize("left", [0, 2])
def test_fc_3_deliveries_decided_on_before_the_credit_was_taken_back(left: int) -> None:
    server = Server()
    link = server.subscriber()
    server.credit(5)
    server.credit(left)
    raw, cuts = run_of([b"%d" % i for i in range(5)])
    assert link.send_run(raw, cuts, 0, 5, settled=False, beyond_credit=True) == 0
    server.take(0)
    server.read()
    assert [frame[2] for frame in server.frames if isinstance(frame[1], Transfer)] == [
        b"%d" % i for i in range(left)
    ]
    withdrawn = server.one(DeliveriesWithdrawn)
    assert (withdrawn.link, withdrawn.first, withdrawn.last) == (link, left, 4)
    assert (link.delivery_count, link.credit) == (left, 0)
    server.credit(1, left)
    assert link.send(BODY) == 5
    server.take(0)
    assert server.sent(Transfer)[-1].delivery_id == left


def test_a_flow_without_link_credit_says_nothing_about_credit() -> None:
    server = Server()
    link = server.subscriber()
    server.credit(5)
    server.say(Flow(0, 1000, 0, 1000, handle=0, properties={"x": 1}))
    assert link.credit == 5
    assert server.last(CreditReceived).properties == {"x": 1}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_fc_a10_three_deliveries_across_the_wrap_keep_credit_right(cut: Cut) -> None:
    pair = Pair(cut=cut).open()
    pair.server.initial_delivery_count = 2**32 - 1
    ours, theirs = pair.session()
    theirs.next_delivery_id = 2**32 - 2
    receiver, sender = pair.receiver(ours)
    assert receiver.delivery_count == sender.delivery_count == 2**32 - 1
    receiver.flow(5)
    pair.pump()
    for _ in range(3):
        sender.send(BODY)
        pair.pump()
    assert receiver.delivery_count == sender.delivery_count == 2
    assert receiver.credit == sender.credit == 2
    assert [message[0] for message in pair.client.messages()] == [2**32 - 2, 2**32 - 1, 0]
    receiver.flow(4)
    pair.pump()
    assert sender.credit == 4
    raw, cuts = run_of([BODY] * 4)
    assert sender.send_run(raw, cuts, 0, 4, settled=True) == 1
    pair.pump()
    assert receiver.credit == sender.credit == 0
    assert receiver.delivery_count == sender.delivery_count == 6


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_a_run_whose_delivery_ids_wrap_is_taken_whole(cut: Cut) -> None:
    pair = Pair(cut=cut).open()
    ours, theirs = pair.session()
    theirs.next_delivery_id = 2**32 - 3
    receiver, sender = pair.receiver(ours)
    receiver.flow(10)
    pair.pump()
    raw, cuts = run_of([b"%d" % i for i in range(6)])
    sender.send_run(raw, cuts, 0, 6, settled=False)
    pair.pump()
    ids = [(2**32 - 3 + i) % WRAP for i in range(6)]
    assert [message[0] for message in pair.client.messages()] == ids
    assert [message[1] for message in pair.client.messages()] == [
        text_tag(delivery_id).to_bytes(4, "big") for delivery_id in ids
    ]
    assert [message[2] for message in pair.client.messages()] == [b"%d" % i for i in range(6)]


# FC-4


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("credit", [0, 1, 3])
@pytest.mark.parametrize("more", [False, True])
def test_fc_4_fc_d3_a_delivery_without_credit_costs_the_link(
    cut: Cut, credit: int, more: bool
) -> None:
    server, link = receiving(0, credit, cut)
    for delivery_id in range(credit):
        server.say(transfer(delivery_id), payload=BODY)
    server.say(transfer(credit, more=more), transfer(credit + 1), payload=BODY)
    assert len(server.messages()) == credit
    assert server.one(LinkFailed).error.condition == "amqp:link:transfer-limit-exceeded"
    assert conditions(server) == [("Detach", "amqp:link:transfer-limit-exceeded")]
    assert link.credit == 0
    assert not server.of(SessionFailed)


def test_fc_4_in_one_stretch_the_first_of_too_many_are_taken() -> None:
    server, link = receiving(0, 3)
    data = b"".join([_frame(transfer(i)) for i in range(5)])
    server.hear(data)
    assert [len(event) for event in server.of(TransfersReceived)] == [3]
    assert server.one(LinkFailed).link is link


def _frame(transfer: Transfer) -> bytes:
    return frame(0, transfer.encode(), BODY)


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_fc_4_what_was_sent_before_credit_was_taken_back_is_taken(cut: Cut) -> None:
    server, link = receiving(0, 4, cut)
    server.say(transfer(0), payload=BODY)
    link.flow(1)
    server.hear(_frame(transfer(1)) + _frame(transfer(2)))
    assert [message[0] for message in server.messages()] == [0, 1, 2]
    assert (link.delivery_count, link.credit) == (3, 0)
    link.flow(0)
    server.say(transfer(3), payload=BODY)
    assert conditions(server) == []
    server.say(transfer(4), payload=BODY)  # there never was credit for that one
    assert conditions(server) == [("Detach", "amqp:link:transfer-limit-exceeded")]


@pytest.mark.parametrize("said", [0, 2])
def test_fc_4_once_the_sender_has_heard_of_it_there_is_no_more(said: int) -> None:
    server, link = receiving(0, 10)
    link.flow(0)
    server.say(Flow(0, 9, 0, 9, handle=0, delivery_count=0, link_credit=said))
    server.say(*[transfer(i) for i in range(said)], payload=BODY)
    assert conditions(server) == []
    server.say(transfer(said), payload=BODY)
    assert server.one(LinkFailed).link is link


# FC-5, FC-A9, FC-D1


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("available", [0, 3, 7, 10])
@pytest.mark.parametrize("initial", [0, 2**32 - 5])
def test_fc_5_fc_d1_a_drain_takes_what_there_is_and_returns_the_rest(
    cut: Cut, available: int, initial: int
) -> None:
    pair = Pair(cut=cut).open()
    pair.server.initial_delivery_count = initial
    ours, _ = pair.session()
    receiver, sender = pair.receiver(ours)
    receiver.flow(10)
    pair.pump()
    assert receiver.drain()
    pair.pump()
    asked = pair.client.sent(Flow)[-1]
    assert (asked.link_credit, asked.drain, asked.echo) == (10, True, False)
    assert pair.server.last(CreditReceived).drain
    assert sender.is_draining
    assert not pair.client.of(DrainFinished)
    for _ in range(available):
        sender.send(BODY)
    sender.drained()
    pair.pump()
    said = pair.server.sent(Flow)[-1]
    assert (said.delivery_count, said.link_credit) == ((initial + 10) % WRAP, 0)
    assert said.drain
    kinds = [type(frame[1]) for frame in pair.server.frames]
    assert kinds[-available - 1 :] == [Transfer] * available + [Flow]
    assert len(pair.client.messages()) == available
    finished = pair.client.one(DrainFinished)
    assert finished.link is receiver
    assert finished.given_up == 10 - available
    assert receiver.delivery_count == sender.delivery_count == (initial + 10) % WRAP
    assert receiver.credit == sender.credit == 0
    assert not receiver.is_draining
    receiver.flow(4)
    pair.pump()
    assert sender.credit == 4  # the next grant is not short of what was drained
    assert not sender.is_draining


def test_fc_a9_one_flow_however_often_it_is_asked_for() -> None:
    server, link = receiving(0, 5)
    server.forget()
    assert link.drain()
    assert link.drain()
    server.take(0)
    assert [flow.drain for flow in server.sent(Flow)] == [True]


def test_fc_a9_a_drain_without_credit_is_done_at_once() -> None:
    server, link = receiving(0, 0)
    server.forget()
    assert not link.drain()
    server.take(0)
    assert server.sent(Flow) == []


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_fc_a9_a_drain_ends_behind_the_transfers_that_come_with_the_answer(cut: Cut) -> None:
    server, link = receiving(0, 5, cut)
    link.drain()
    answer = Flow(0, 9, 2, 9, handle=0, delivery_count=5, link_credit=0, available=0, drain=True)
    server.hear(_frame(transfer(0)) + _frame(transfer(1)) + frame(0, answer.encode()))
    assert len(server.messages()) == 2
    kinds = [type(event) for event in server.events[-3:]]
    assert kinds[0] is TransfersReceived
    assert kinds.index(DrainFinished) > 0
    assert server.one(DrainFinished).given_up == 3
    assert (link.delivery_count, link.credit) == (5, 0)


@pytest.mark.parametrize("last", [[transfer(1)], [transfer(1, more=True), transfer(None)]])
def test_fc_5_a_sender_that_used_all_of_it_need_not_say_so(last: list[Transfer]) -> None:
    server, link = receiving(0, 2)
    link.drain()
    server.say(transfer(0), *last, payload=BODY)
    assert server.one(DrainFinished).given_up == 0
    link.flow(3)  # and then it does say so, late
    server.say(Flow(0, 9, 2, 9, handle=0, delivery_count=2, link_credit=0, drain=True))
    assert server.one(DrainFinished)
    assert (link.delivery_count, link.credit) == (2, 3)


def test_fc_5_a_sender_that_does_not_advance_its_count_is_done_all_the_same() -> None:
    server, link = receiving(0, 5)
    link.drain()
    server.say(Flow(0, 9, 0, 9, handle=0, delivery_count=0, link_credit=0, drain=True))
    assert server.one(DrainFinished)
    assert link.credit == 0


def test_an_echo_in_the_middle_of_a_drain_does_not_end_it() -> None:
    server, link = receiving(0, 5)
    link.drain()
    server.say(Flow(0, 9, 0, 9, handle=0, delivery_count=0, link_credit=5, drain=True))
    assert not server.of(DrainFinished)
    assert link.is_draining


def test_a_count_ahead_of_ours_is_believed_and_one_behind_is_not() -> None:
    server, link = receiving(10, 5)
    server.say(Flow(0, 9, 0, 9, handle=0, delivery_count=12, link_credit=3))
    assert (link.delivery_count, link.credit) == (12, 3)
    assert server.one(FlowReceived).link is link
    server.say(Flow(0, 9, 0, 9, handle=0, delivery_count=11, link_credit=4))
    assert (link.delivery_count, link.credit) == (12, 3)
    server.say(Flow(0, 9, 0, 9, handle=0, delivery_count=2**31 + 11, link_credit=4))
    assert (link.delivery_count, link.credit) == (2**31 + 11, 0)


def test_within_a_delivery_some_senders_have_counted_it_already() -> None:
    server, link = receiving(0, 5)
    server.say(transfer(0, more=True), payload=BODY)
    server.say(Flow(0, 9, 1, 9, handle=0, delivery_count=1, link_credit=4))
    server.say(transfer(0), payload=BODY)
    assert (link.delivery_count, link.credit) == (1, 4)


def test_drained_without_being_asked_does_nothing() -> None:
    server = Server()
    link = server.subscriber()
    server.credit(5)
    server.forget()
    link.drained()
    server.take(0)
    assert server.frames == []
    assert link.credit == 5


def test_a_drain_without_credit_is_answered_all_the_same() -> None:
    """There are clients that wait for the flow."""
    server = Server()
    link = server.subscriber()
    server.credit(0, drain=True)
    assert link.is_draining
    server.forget()
    link.drained()
    server.take(0)
    assert [(flow.drain, flow.link_credit) for flow in server.sent(Flow)] == [(True, 0)]


# FC-6


@pytest.mark.parametrize("properties", [None, {"queue-depth": 5}])
def test_fc_6_an_echo_is_answered_with_how_the_link_stands(
    properties: dict[object, object] | None,
) -> None:
    server = Server()
    link = server.subscriber()
    link.available = 12
    server.credit(5)
    link.send(BODY)
    server.forget()
    server.credit(5, 0, next_incoming_id=1, echo=True, properties=properties)
    answer = server.sent(Flow)[0]
    assert (answer.handle, answer.delivery_count, answer.link_credit) == (0, 1, 4)
    assert (answer.available, answer.drain, answer.echo) == (12, False, False)
    assert server.one(CreditReceived).properties == properties


def test_fc_6_an_echo_of_the_sender_is_answered_too() -> None:
    server, link = receiving(3, 5)
    server.forget()
    server.say(Flow(0, 9, 0, 9, handle=0, delivery_count=3, available=8, echo=True))
    answer = server.sent(Flow)[0]
    assert (answer.handle, answer.delivery_count, answer.link_credit) == (0, 3, 5)
    assert not answer.echo
    assert server.one(FlowReceived).available == link.available == 8


def test_fc_6_an_echo_before_the_attach_is_answered_has_no_answer() -> None:
    """What would it be about? The link has no handle of ours yet."""
    server = Server()
    server.begin()
    server.answers = False
    server.say(Attach("p", 0, SENDER, source=Source(), target=Target(), initial_delivery_count=3))
    server.say(Flow(0, 9, 0, 9, handle=0, delivery_count=3, available=8, echo=True))
    assert server.sent(Flow) == []
    link = server.one(LinkRequested).link
    assert isinstance(link, ReceiverLink)
    link.answer(Attach(source=Source(), target=Target()))
    link.flow(5)
    server.take(0)
    assert [(flow.delivery_count, flow.link_credit) for flow in server.sent(Flow)] == [(3, 5)]
    assert link.available == 8


def test_fc_6_an_echo_for_the_session_is_answered_for_the_session() -> None:
    server = Server()
    server.begin()
    server.say(Flow(0, 10, 0, 10, echo=True))
    answer = server.sent(Flow)[0]
    assert (answer.handle, answer.echo, answer.next_incoming_id) == (None, False, 0)
    assert not server.of(FlowReceived)


def test_fc_6_two_that_ask_each_other_do_not_go_on_for_ever() -> None:
    pair = Pair().open()
    ours, theirs = pair.session()
    receiver, sender = pair.receiver(ours)
    receiver.flow(3, echo=True)
    sender.flow(echo=True)
    ours.flow(echo=True)
    theirs.flow(echo=True)
    pair.pump()
    assert len(pair.client.sent(Flow)) == 4
    assert len(pair.server.sent(Flow)) == 4


def test_fc_6_a_flow_without_a_handle_leaves_links_alone() -> None:
    server = Server()
    link = server.subscriber()
    server.credit(5)
    server.say(Flow(0, 10, 0, 10, link_credit=0, delivery_count=0, properties={"a": True}))
    assert link.credit == 5
    assert server.one(FlowReceived).link is None
    assert server.one(FlowReceived).properties == {"a": True}


def test_fc_6_a_flow_without_next_incoming_id_ends_the_session() -> None:
    server = Server()
    server.subscriber()
    server.credit(5, next_incoming_id=None)  # it may not have seen our begin yet
    assert not server.of(SessionFailed)
    server.credit(5)
    server.credit(5, next_incoming_id=None)
    assert server.one(SessionFailed).error.condition == "amqp:not-allowed"
    assert conditions(server) == [("End", "amqp:not-allowed")]


def test_fc_6_of_a_session_that_we_began_the_peer_knows_the_begin() -> None:
    server = Server().open()
    session = server.connection.begin()
    server.say(Begin(session.channel, 0, 10, 10))
    server.say(Flow(None, 10, 0, 10))
    assert server.one(SessionFailed).error.condition == "amqp:not-allowed"


# FC-13


@pytest.mark.parametrize(
    "bad",
    [
        [transfer(0, delivery_tag=None)],
        [transfer(0, message_format=None)],
        [transfer(None, delivery_tag=b"x", message_format=0)],
        [transfer(0, delivery_tag=b"x" * 33)],
        [transfer(0, more=True), transfer(1)],
        [transfer(0, more=True), transfer(None, delivery_tag=b"other")],
        [transfer(0, more=True), transfer(None, message_format=1)],
        [transfer(0, rcv_settle_mode=1)],
        [transfer(0, more=True), transfer(None, rcv_settle_mode=1)],
    ],
)
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_fc_13_a_delivery_that_contradicts_itself(cut: Cut, bad: list[Transfer]) -> None:
    server, link = receiving(0, 5, cut)
    server.say(*bad, payload=BODY)
    assert server.one(LinkFailed).error.condition == "amqp:not-allowed"
    assert conditions(server) == [("Detach", "amqp:not-allowed")]
    assert server.messages() == []
    assert link.unfinished == 0


def test_fc_13_later_transfers_may_repeat_what_the_first_says() -> None:
    server, _ = receiving(0, 5)
    server.say(transfer(7, more=True), transfer(7), payload=BODY)
    server.say(transfer(8, delivery_tag=b"x" * 32), payload=BODY)
    server.say(transfer(9, delivery_tag=b"", message_format=2**31), payload=BODY)
    assert [(message[0], message[1]) for message in server.messages()] == [
        (7, b"7"),
        (8, b"x" * 32),
        (9, b""),
    ]
    assert server.last(TransfersReceived).message_format == 2**31


@pytest.mark.parametrize("place", [0, 1, 2])
def test_fc_13_settled_on_any_transfer_settles_it(place: int) -> None:
    server, _ = receiving(0, 5)
    for i in range(3):
        settled = True if i == place else None
        first = transfer(0, more=True, settled=settled)
        later = transfer(None, more=i < 2, settled=settled)
        server.say(first if i == 0 else later, payload=BODY)
    assert [message[3] for message in server.messages()] == [True]


def test_the_last_state_and_the_format_are_passed_on() -> None:
    server, _ = receiving(0, 5)
    state = TransactionalState(b"txn", Accepted())
    server.say(transfer(0, more=True, state=Received(0, 0), message_format=3), payload=BODY)
    server.say(transfer(None, state=state), payload=BODY)
    event = server.one(TransfersReceived)
    assert (event.state, event.message_format) == (state, 3)


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("frames", [1, 4])
def test_fc_13_a_message_that_is_too_large(cut: Cut, frames: int) -> None:
    server = Server(Limits(max_message_size=1000), cut)
    link = server.publisher()
    server.say(transfer(0), payload=bytes(1000))
    assert len(server.messages()) == 1
    for i in range(frames):
        said = transfer(1 if i == 0 else None, more=i < frames - 1)
        server.say(said, payload=bytes(1001 // frames + 1))
    assert server.one(LinkFailed).error.condition == "amqp:link:message-size-exceeded"
    assert conditions(server) == [("Detach", "amqp:link:message-size-exceeded")]
    assert len(server.messages()) == 1
    assert link.unfinished == 0


def test_fc_13_a_link_has_its_own_limit() -> None:
    server = Server()
    session = server.begin()
    link = session.attach_receiver(Attach("x", source=Source(), max_message_size=10))
    server.say(Attach("x", 0, SENDER, source=Source(), target=Target(), initial_delivery_count=0))
    link.flow(5)
    server.say(transfer(0), payload=bytes(10))
    server.say(transfer(1), payload=bytes(11))
    assert server.one(LinkFailed).error.condition == "amqp:link:message-size-exceeded"


def test_deliveries_are_not_resumed() -> None:
    server, _ = receiving(0, 5)
    server.say(transfer(0, resume=True), payload=BODY)
    assert server.one(LinkFailed).error.condition == "amqp:not-implemented"


def test_unfinished_deliveries_of_all_links_are_counted_together() -> None:
    server = Server(Limits(max_message_size=1000, max_unfinished_bytes=1500))
    server.publisher(handle=0)
    server.publisher(handle=1)
    server.say(transfer(0, more=True), payload=bytes(900))
    server.say(transfer(1, handle=1, more=True), payload=bytes(600))
    assert conditions(server) == []
    server.say(transfer(None, handle=1), payload=bytes(300))  # is complete: counts no more
    server.say(transfer(2, handle=1, more=True), payload=bytes(600))
    assert conditions(server) == []
    server.say(transfer(None, handle=1, more=True), payload=bytes(1))
    assert conditions(server) == [("Close", "amqp:resource-limit-exceeded")]


def test_deliveries_of_two_links_may_be_interleaved() -> None:
    server = Server()
    server.publisher(handle=0)
    server.publisher(handle=1)
    server.say(transfer(0, more=True), payload=b"a")
    server.say(transfer(1, handle=1, more=True), payload=b"b")
    server.say(transfer(None), payload=b"A")
    server.say(transfer(None, handle=1), payload=b"B")
    assert [message[::2] for message in server.messages()] == [(0, b"aA"), (1, b"bB")]


def test_a_negative_credit_is_a_mistake() -> None:
    _, link = receiving(0, 5)
    with pytest.raises(ValueError, match="credit -1"):
        link.flow(-1)


def test_credit_may_be_given_before_the_attach_is_answered() -> None:
    server = Server()
    session = server.begin()
    link = session.attach_receiver(Attach("x", source=Source(), target=Target()))
    link.flow(7)
    server.take(0)
    flow = server.sent(Flow)[0]
    assert (flow.delivery_count, flow.link_credit) == (None, 7)
    server.say(Attach("x", 0, SENDER, source=Source(), target=Target(), initial_delivery_count=9))
    assert (link.delivery_count, link.credit) == (9, 7)
    server.say(transfer(0), payload=BODY)
    assert (link.delivery_count, link.credit) == (10, 6)


def test_a_receiver_hears_of_nothing_new_only_once() -> None:
    server, _ = receiving(0, 5)
    server.say(Flow(0, 9, 0, 9, handle=0, delivery_count=0, link_credit=5))
    assert not server.of(FlowReceived)
