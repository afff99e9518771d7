"""FC-10 to FC-12, FC-18, FC-A1, FC-A4, FC-A5, FC-A10, FC-A11, FC-D4, FC-D5: who settles what."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp10.events import (
    CreditReceived,
    DispositionReceived,
    LinkDetached,
    LinkRequested,
    SessionFailed,
    SettlementReceived,
    TransfersReceived,
)
from tallymark.wire.amqp10.frames import frame
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import (
    Accepted,
    DeliveryState,
    Error,
    Modified,
    Rejected,
    Released,
    TransactionalState,
)
from tallymark.wire.amqp10.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    Detach,
    Disposition,
    Flow,
    Performative,
    Source,
    Target,
    Transfer,
)
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.session import Session
from tests.support.amqp10_pair import BODY, CUTS, Cut, Pair, Server, conditions, run_of, transfer

FIRST, SECOND = 0, 1
WRAP = 2**32


def delivering(
    count: int, mode: int, cut: Cut = CUTS["whole"], start: int = 0, settled: bool = False
) -> tuple[Pair, ReceiverLink, SenderLink]:
    """The server has sent so many messages, and the client has them."""
    pair = Pair(cut=cut).open()
    ours, theirs = pair.session()
    theirs.next_delivery_id = start
    receiver, sender = pair.receiver(ours, rcv=mode)
    receiver.flow(count)
    pair.pump()
    raw, cuts = run_of([BODY] * count)
    sender.send_run(raw, cuts, 0, count, settled=settled)
    pair.pump()
    assert len(pair.client.messages()) == count
    pair.client.forget()
    pair.server.forget()
    return pair, receiver, sender


def settlements(pair: Pair) -> list[tuple[int, int, DeliveryState | None]]:
    return [(e.first, e.last, e.state) for e in pair.client.of(SettlementReceived)]


def dispositions(end_events: list[DispositionReceived]) -> list[tuple[int, int, bool]]:
    return [(event.first, event.last, event.settled) for event in end_events]


OUTCOMES = [
    Accepted(),
    Released(),
    Rejected(Error("amqp:precondition-failed", "no")),
    Modified(True, True, {"x-why": "because"}),
    TransactionalState(b"txn", Rejected()),
]


# FC-10


def test_fc_10_a_settled_delivery_says_so() -> None:
    pair = Pair().open()
    ours, _ = pair.session()
    receiver, sender = pair.receiver(ours)
    receiver.flow(2)
    pair.pump()
    sender.send(BODY, settled=True)
    sender.send(BODY, settled=False)
    pair.pump()
    assert [event.settled for event in pair.client.of(TransfersReceived)] == [True, False]


# FC-11, FC-A5


@pytest.mark.parametrize("state", OUTCOMES, ids=lambda state: type(state).__name__)
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_fc_11_mode_first_is_one_disposition_and_no_answer_is_awaited(
    cut: Cut, state: DeliveryState
) -> None:
    pair, receiver, sender = delivering(3, FIRST, cut)
    receiver.settle(1, 1, state)
    assert receiver.in_flight() == []
    pair.pump()
    assert pair.client.sent(Disposition) == [Disposition(RECEIVER, 1, None, True, state)]
    event = pair.server.one(DispositionReceived)
    assert (event.session, event.by_sender) == (sender.session, False)
    assert (event.first, event.last, event.settled, event.state) == (1, 1, True, state)
    assert pair.server.frames == []
    assert pair.client.events == []


def test_fc_a5_settling_twice_is_two_dispositions_and_no_table() -> None:
    pair, receiver, _ = delivering(1, FIRST)
    receiver.settle(0, 0, Accepted())
    receiver.settle(0, 0, Released())
    pair.pump()
    assert dispositions(pair.server.of(DispositionReceived)) == [(0, 0, True)] * 2
    assert len(receiver.session.in_flight) == 0
    pair, receiver, _ = delivering(1, FIRST, settled=True)
    assert len(receiver.session.in_flight) == 0


# FC-12


@pytest.mark.parametrize("state", OUTCOMES, ids=lambda state: type(state).__name__)
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_fc_12_mode_second_takes_the_senders_word(cut: Cut, state: DeliveryState) -> None:
    pair, receiver, sender = delivering(3, SECOND, cut)
    receiver.settle(1, 2, state)
    assert receiver.in_flight() == [(1, 2)]  # before a byte of it is written
    pair.pump()
    assert pair.client.sent(Disposition) == [Disposition(RECEIVER, 1, 2, False, state)]
    event = pair.server.one(DispositionReceived)
    assert (event.first, event.last, event.settled, event.state) == (1, 2, False, state)
    assert settlements(pair) == []
    assert receiver.in_flight() == [(1, 2)]
    sender.session.settle_sent(1, 2, state)
    pair.pump()
    assert pair.server.sent(Disposition) == [Disposition(SENDER, 1, 2, True, state)]
    assert settlements(pair) == [(1, 2, state)]
    assert pair.client.one(SettlementReceived).link is receiver
    assert receiver.in_flight() == []
    assert len(pair.client.events) == 1


def test_fc_12_a_rejected_answer_is_passed_on_with_its_error() -> None:
    pair, receiver, sender = delivering(1, SECOND)
    receiver.settle(0, 0, Accepted())
    pair.pump()
    refused = Rejected(Error("amqp:transaction:rollback", "too late"))
    sender.session.settle_sent(0, 0, refused)
    pair.pump()
    assert settlements(pair) == [(0, 0, refused)]


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_fc_12_answers_in_any_order_and_in_other_pieces(cut: Cut) -> None:
    pair, receiver, sender = delivering(10, SECOND, cut, start=WRAP - 5)
    session = sender.session

    def ids(first: int, last: int) -> tuple[int, int]:
        return (WRAP - 5 + first) % WRAP, (WRAP - 5 + last) % WRAP

    receiver.settle(*ids(0, 3), Accepted())
    receiver.settle(*ids(7, 8), Released())
    receiver.settle(*ids(4, 5), Accepted())
    pair.pump()
    assert receiver.in_flight() == [ids(0, 3), ids(7, 8), ids(4, 5)]
    session.settle_sent(*ids(8, 8), None)
    session.settle_sent(*ids(2, 4), None)
    session.settle_sent(*ids(0, 9), None)
    pair.pump()
    assert [found[:2] for found in settlements(pair)] == [
        ids(8, 8),
        ids(2, 3),
        ids(4, 4),
        ids(0, 1),
        ids(5, 5),
        ids(7, 7),
    ]
    unasked = dispositions(pair.client.of(DispositionReceived))
    assert unasked == [
        (*ids(2, 4), True),
        (*ids(6, 6), True),
        (*ids(8, 9), True),
    ]
    assert receiver.in_flight() == []


def test_fc_12_an_answer_that_does_not_settle_is_no_answer() -> None:
    pair, receiver, sender = delivering(1, SECOND)
    receiver.settle(0, 0, Accepted())
    pair.pump()
    sender.session.settle_sent(0, 0, Released(), settled=False)
    pair.pump()
    assert settlements(pair) == []
    event = pair.client.one(DispositionReceived)
    assert (event.by_sender, event.settled, event.state) == (True, False, Released())
    assert receiver.in_flight() == [(0, 0)]


def test_fc_12_an_answer_that_is_repeated_counts_once() -> None:
    pair, receiver, sender = delivering(2, SECOND)
    receiver.settle(0, 1, Accepted())
    pair.pump()
    sender.session.settle_sent(0, 1, Accepted())
    sender.session.settle_sent(0, 1, Accepted())
    pair.pump()
    assert [found[:2] for found in settlements(pair)] == [(0, 1)]


def test_settling_one_delivery_twice_in_mode_second_is_answered_once() -> None:
    pair, receiver, sender = delivering(3, SECOND)
    receiver.settle(0, 1, Accepted())
    receiver.settle(1, 2, Accepted())
    pair.pump()
    sender.session.settle_sent(0, 2, Accepted())
    pair.pump()
    assert [found[:2] for found in settlements(pair)] == [(0, 1), (2, 2)]
    assert receiver.in_flight() == []


def test_a_transfer_may_say_first_on_a_link_of_mode_second() -> None:
    server = Server()
    session = server.begin()
    link = session.attach_receiver(Attach("x", source=Source(), target=Target()), None, SECOND)
    server.say(Attach("x", 0, SENDER, None, SECOND, Source(), Target(), initial_delivery_count=0))
    link.flow(10)
    server.say(transfer(0, rcv_settle_mode=FIRST), transfer(1), payload=BODY)
    server.say(transfer(2, rcv_settle_mode=SECOND), payload=BODY)
    server.say(transfer(3, rcv_settle_mode=FIRST, more=True), transfer(3), payload=BODY)
    seconds = [(event.first, event.is_second) for event in server.of(TransfersReceived)]
    assert seconds == [(0, False), (1, True), (2, True), (3, False)]


def test_on_a_link_of_mode_first_no_delivery_is_second() -> None:
    pair, _, sender = delivering(1, FIRST)
    assert sender.rcv_settle_mode == FIRST
    server = Server()
    server.publisher()
    server.say(transfer(0, rcv_settle_mode=FIRST), transfer(1), payload=BODY)
    assert [event.is_second for event in server.of(TransfersReceived)] == [False, False]
    assert pair.client.events == []


# FC-A1 and FC-A4, as far as the wire goes


def test_fc_a1_disposition_answer_flow_delivery_and_nothing_else() -> None:
    lines: list[str] = []
    pair = Pair(trace=lines.append).open()
    ours, _ = pair.session()
    receiver, sender = pair.receiver(ours, rcv=SECOND)
    receiver.flow(1)
    pair.pump()
    sender.send(BODY)
    pair.pump()
    lines.clear()
    pair.now_ms += 20_000
    pair.client.connection.tick(pair.now_ms)
    pair.pump()
    assert lines == []
    receiver.settle(0, 0, Accepted())
    pair.pump()
    sender.session.settle_sent(0, 0, Accepted())
    pair.pump()
    assert pair.client.one(SettlementReceived)
    receiver.flow(1)
    pair.pump()
    sender.send(BODY)
    pair.pump()
    assert lines == [
        "-> [0] Disposition role=receiver first=0 state=Accepted",
        "<- [0] Disposition role=sender first=0 settled=True state=Accepted",
        "-> [0] Flow next-incoming-id=1 incoming-window=400 next-outgoing-id=0 "
        "outgoing-window=4294967295 handle=0 delivery-count=1 link-credit=1",
        "<- [0] Transfer handle=0 delivery-id=1 delivery-tag=00000001 message-format=0 +10",
    ]


def test_fc_a4_the_answer_may_come_much_later() -> None:
    pair, receiver, sender = delivering(1, SECOND)
    receiver.settle(0, 0, Accepted())
    for _ in range(3):
        pair.now_ms += 10_000
        pair.client.connection.tick(pair.now_ms)
        pair.server.connection.tick(pair.now_ms)
        pair.pump()
    assert receiver.in_flight() == [(0, 0)]
    sender.session.settle_sent(0, 0, Accepted())
    pair.pump()
    assert settlements(pair) == [(0, 0, Accepted())]
    receiver.flow(1)
    pair.pump()
    assert sender.credit == 1


# FC-A10, FC-D5


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_fc_a10_a_range_across_the_wrap_settles_four_deliveries(cut: Cut) -> None:
    pair, receiver, sender = delivering(4, SECOND, cut, start=WRAP - 2)
    receiver.settle(WRAP - 2, 1, Accepted())
    pair.pump()
    event = pair.server.one(DispositionReceived)
    assert (event.first, event.last) == (4294967294, 1)
    sender.session.settle_sent(WRAP - 2, 1, Accepted())
    pair.pump()
    assert settlements(pair) == [(4294967294, 1, Accepted())]
    assert len(receiver.session.in_flight) == 0


@pytest.mark.parametrize(("first", "last"), [(0, WRAP // 2 - 9), (WRAP - 1, WRAP - 1), (5, 9)])
def test_fc_d5_ranges_of_what_never_was_are_cut_off(first: int, last: int) -> None:
    pair, _, sender = delivering(8, FIRST)
    server = pair.server
    said = [
        Disposition(RECEIVER, first, last, True, Accepted()),
        Disposition(RECEIVER, (first - 3) % WRAP, last, True, Accepted()),
    ]
    for one in said:
        server.give(frame(0, one.encode()), 0)
    expected = {
        0: [(0, 7, True)] * 2,
        WRAP - 1: [],
        5: [(5, 7, True), (2, 7, True)],
    }[first]
    assert dispositions(server.of(DispositionReceived)) == expected
    assert sender.state.value == "ATTACHED"


def test_fc_d5_also_of_what_was_received() -> None:
    server = Server()
    server.publisher()
    server.say(Disposition(SENDER, 0, 5, True, Accepted()))
    assert not server.of(DispositionReceived)
    server.say(transfer(3), transfer(4), payload=BODY)
    server.say(Disposition(SENDER, 0, WRAP // 2 - 1, True))
    assert dispositions(server.of(DispositionReceived)) == [(3, 4, True)]
    assert conditions(server) == []


def test_dispositions_in_one_read_are_one_event() -> None:
    server = Server()
    link = server.subscriber()
    server.credit(500)
    raw, cuts = run_of([BODY] * 300)
    link.send_run(raw, cuts, 0, 300, settled=False)
    server.take(0)
    said: list[Performative] = [
        Disposition(RECEIVER, i, None, True, Accepted()) for i in range(100)
    ]
    said += [Disposition(RECEIVER, 100, 199, True, Accepted())]
    said += [Disposition(RECEIVER, i, i, True, Released()) for i in range(200, 300)]
    server.hear(b"".join([frame(0, one.encode()) for one in said]))
    found = [(e.first, e.last, e.state) for e in server.of(DispositionReceived)]
    assert found == [(0, 199, Accepted()), (200, 299, Released())]


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_dispositions_mean_the_same_however_they_come(cut: Cut) -> None:
    server = Server(cut=cut)
    link = server.subscriber()
    server.credit(50)
    raw, cuts = run_of([BODY] * 30)
    link.send_run(raw, cuts, 0, 30, settled=False)
    server.take(0)
    said = [
        Disposition(RECEIVER, 0, None, True, Accepted()),
        Disposition(RECEIVER, 1, 3, True, Accepted(), batchable=True),
        Disposition(RECEIVER, 4, 4, False, Accepted()),
        Disposition(RECEIVER, 5, 9, True, Rejected(Error("amqp:internal-error", "x" * 300))),
        Disposition(RECEIVER, 10, 11, True),
        Disposition(RECEIVER, 12, 12),
        Disposition(RECEIVER, 14, 29, True, Modified(True)),
    ]
    server.hear(b"".join([frame(0, one.encode()) for one in said]))
    found: list[tuple[int, bool, str]] = []
    for event in server.of(DispositionReceived):
        for i in range(event.first, event.last + 1):
            found.append((i, event.settled, type(event.state).__name__))
    expected = [(0, True, "Accepted"), (1, True, "Accepted"), (2, True, "Accepted")]
    expected += [(3, True, "Accepted"), (4, False, "Accepted")]
    expected += [(i, True, "Rejected") for i in range(5, 10)]
    expected += [(10, True, "NoneType"), (11, True, "NoneType"), (12, False, "NoneType")]
    expected += [(i, True, "Modified") for i in range(14, 30)]
    assert found == expected


# FC-A11


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("mode", [FIRST, SECOND])
def test_fc_a11_one_range_over_two_links_of_a_session(cut: Cut, mode: int) -> None:
    pair = Pair(cut=cut).open()
    ours, theirs = pair.session()
    a, sends_a = pair.receiver(ours, "a", rcv=mode)
    b, sends_b = pair.receiver(ours, "b", rcv=mode)
    for receiver in (a, b):
        receiver.flow(1)
    pair.pump()
    sends_a.send(BODY)
    sends_b.send(BODY)
    pair.pump()
    pair.client.forget()
    if mode == FIRST:
        ours.settle_received(0, 1, Accepted())
        pair.pump()
        assert dispositions(pair.server.of(DispositionReceived)) == [(0, 1, True)]
    else:
        a.settle(0, 0, Accepted())
        b.settle(1, 1, Accepted())
        pair.pump()
        theirs.settle_sent(0, 1, Accepted())
        theirs.settle_sent(0, 1, Accepted())
        pair.pump()
        found = [(e.link, e.first, e.last) for e in pair.client.of(SettlementReceived)]
        assert found == [(a, 0, 0), (b, 1, 1)]  # each exactly once
    for receiver in (a, b):
        receiver.flow(1)
    pair.pump()
    assert sends_a.credit == sends_b.credit == 1


# FC-18


@pytest.mark.parametrize("settled", [False, True])
def test_fc_18_what_the_sender_says_unasked_is_reported(settled: bool) -> None:
    pair, receiver, sender = delivering(5, FIRST)
    sender.session.settle_sent(1, 3, Released(), settled=settled)
    pair.pump()
    event = pair.client.one(DispositionReceived)
    assert (event.session, event.by_sender) == (receiver.session, True)
    assert (event.first, event.last, event.settled, event.state) == (1, 3, settled, Released())
    receiver.session.settle_received(1, 3, Released())
    pair.pump()
    answer = pair.server.one(DispositionReceived)
    assert (answer.first, answer.last, answer.settled, answer.state) == (1, 3, True, Released())


# FC-19, FC-D4


@pytest.mark.parametrize("how", ["detach", "peer", "error", "end", "close"])
def test_fc_d4_nothing_is_in_flight_on_a_link_that_is_gone(how: str) -> None:
    pair, receiver, sender = delivering(3, SECOND)
    session = receiver.session
    receiver.settle(0, 2, Accepted())
    assert len(session.in_flight) == 1
    if how == "detach":
        receiver.detach()
        assert receiver.in_flight() == [(0, 2)]  # the answer may still come
    elif how == "peer":
        sender.detach()
    elif how == "error":
        receiver.detach(Error("amqp:internal-error"))
    elif how == "end":
        session.end()
    else:
        pair.client.connection.close()
    pair.pump()
    assert len(session.in_flight) == 0
    receiver.settle(0, 2, Accepted())
    assert len(session.in_flight) == 0


def test_an_answer_that_comes_before_the_peers_detach_still_counts() -> None:
    pair, receiver, sender = delivering(2, SECOND)
    receiver.settle(0, 1, Accepted())
    receiver.detach()
    sender.session.settle_sent(0, 1, Accepted())
    pair.pump()
    kinds = [type(event) for event in pair.client.events]
    assert kinds == [SettlementReceived, LinkDetached]


def test_settling_behind_the_peers_detach_is_still_said() -> None:
    """FC-19: the broker may settle what it received while it answers the detach."""
    server = Server()
    link = server.publisher()
    server.answers = False
    server.say(transfer(0), payload=BODY)
    server.say(Detach(0, True))
    link.settle(0, 0, Accepted())
    link.detach()
    server.take(0)
    assert [type(frame[1]) for frame in server.frames[-2:]] == [Disposition, Detach]


def test_a_session_that_is_gone_settles_nothing() -> None:
    pair, receiver, sender = delivering(1, FIRST)
    receiver.session.end()
    pair.pump()
    pair.client.forget()
    pair.server.forget()
    sender.session.settle_sent(0, 0, Accepted())
    receiver.session.settle_received(0, 0, Accepted())
    receiver.session.flow()
    pair.pump()
    assert pair.client.frames == pair.server.frames == []


def test_dispositions_in_a_session_that_failed_are_dropped() -> None:
    server = Server()
    link = server.subscriber()
    server.credit(5)
    link.send(BODY)
    server.take(0)
    server.say(Detach(9), Disposition(RECEIVER, 0, 0, True, Accepted()))
    assert server.one(SessionFailed)
    assert not server.of(DispositionReceived)


def test_transactional_states_pass_through_in_both_directions() -> None:
    pair = Pair().open()
    ours, theirs = pair.session()
    sender, receiver = pair.sender(ours)
    receiver.flow(5)
    pair.pump()
    state = TransactionalState(b"\x01\x02")
    number = sender.send(BODY, state=state)
    raw, cuts = run_of([BODY] * 2)
    sender.send_run(raw, cuts, 0, 2, settled=False, state=state)
    pair.pump()
    assert pair.server.one(TransfersReceived).state == state
    assert len(pair.server.messages()) == 3
    answer = TransactionalState(b"\x01\x02", Accepted())
    theirs.settle_received(number, number + 2, answer)
    pair.pump()
    assert pair.client.one(DispositionReceived).state == answer


def test_modes_of_the_sender_do_not_change_what_frames_say() -> None:
    limits = Limits()
    pair = Pair(limits, limits).open()
    ours, _ = pair.session()
    sender, receiver = pair.sender(ours, snd=1)
    receiver.flow(2)
    pair.pump()
    sender.send(BODY, settled=True)
    pair.pump()
    assert [frame.settled for frame in pair.client.sent(Transfer)] == [True]
    assert pair.server.one(LinkRequested).link is receiver
    assert pair.client.last(CreditReceived).credit == 2
    assert isinstance(ours, Session)
    assert len(pair.server.sent(Flow)) == 1
