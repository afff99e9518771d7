"""FC-7, FC-A8, FC-A12, FC-A13: session windows, and what waits for them."""

from __future__ import annotations

import random

import pytest

from tallymark.wire.amqp10.events import (
    CreditReceived,
    DeliveriesWithdrawn,
    DispositionReceived,
    LinkDetached,
    SessionFailed,
    SessionUnblocked,
)
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import Accepted, Error, Released, TransactionalState
from tallymark.wire.amqp10.performatives import (
    RECEIVER,
    Begin,
    Detach,
    Disposition,
    Flow,
    Open,
    Transfer,
)
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.session import Session
from tests.support.amqp10_pair import BODY, CUTS, Cut, Pair, Server, conditions, run_of, transfer


def narrow(window: int, links: int = 1, size: int = 131_072) -> tuple[Server, list[SenderLink]]:
    """We send on links to a peer with this window, each with a credit of 100."""
    server = Server()
    server.open(Open("peer", max_frame_size=size))
    server.say(Begin(None, 0, window, 1000))
    found = []
    for handle in range(links):
        found.append(server.subscriber(handle))
        server.credit(100, handle=handle, incoming_window=window)
    server.forget()
    return server, found


def opens(server: Server, window: int, seen: int | None = None) -> None:
    """The peer's flow: so many frames more, behind `seen` of them (all)."""
    session = server.connection.sessions[0]
    server.take(0)
    next_id = session.next_outgoing_id if seen is None else seen
    server.say(Flow(next_id, window, 0, 1000))


def sent_ids(server: Server) -> list[int | None]:
    return [frame.delivery_id for frame in server.sent(Transfer)]


def bodies(server: Server) -> list[bytes]:
    """The messages that left, put together from their frames."""
    found: list[bytes] = []
    partial: dict[int, bytes] = {}
    for _, said, payload in server.frames:
        if isinstance(said, Transfer):
            data = partial.pop(said.handle, b"") + payload
            if said.aborted:
                continue
            if said.more:
                partial[said.handle] = data
            else:
                found.append(data)
    return found


# Incoming


def test_fc_7_the_window_is_opened_when_half_of_it_is_used_up() -> None:
    server = Server(Limits(incoming_window=10))
    link = server.publisher(credit=1000)
    server.forget()
    for delivery_id in range(4):
        server.say(transfer(delivery_id), payload=BODY)
    assert server.sent(Flow) == []
    server.say(transfer(4), payload=BODY)
    flow = server.sent(Flow)[0]
    assert (flow.next_incoming_id, flow.incoming_window, flow.handle) == (5, 10, None)
    assert link.session.next_incoming_id == 5


def test_fc_7_frames_are_counted_and_not_deliveries() -> None:
    server = Server(Limits(incoming_window=4))
    server.publisher()
    server.forget()
    server.say(transfer(0, more=True), transfer(None, more=True), payload=BODY)
    assert len(server.sent(Flow)) == 1
    server.say(transfer(None, more=True), transfer(None, aborted=True))
    assert len(server.sent(Flow)) == 2


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_fc_7_more_frames_than_the_window_lets_end_the_session(cut: Cut) -> None:
    server = Server(Limits(incoming_window=4), cut)
    link = server.publisher(credit=100)
    link.session.hold_window(True)
    for delivery_id in range(4):
        server.say(transfer(delivery_id), payload=BODY)
    assert not server.of(SessionFailed)
    server.say(transfer(4), payload=BODY)
    assert conditions(server) == [("End", "amqp:session:window-violation")]
    assert len(server.messages()) == 4


def test_fc_7_a_held_window_is_opened_later() -> None:
    server = Server(Limits(incoming_window=4))
    link = server.publisher(credit=100)
    session = link.session
    server.forget()
    session.hold_window(True)
    server.say(transfer(0), transfer(1), transfer(2), payload=BODY)
    link.flow(50)  # says how much is left, and no more
    server.take(0)
    assert [flow.incoming_window for flow in server.sent(Flow)] == [1]
    session.hold_window(False)
    server.take(0)
    assert [flow.incoming_window for flow in server.sent(Flow)] == [1, 4]
    session.hold_window(False)
    server.take(0)
    assert len(server.sent(Flow)) == 2


@pytest.mark.parametrize(("window", "batch"), [(5000, 1000), (5000, 7), (400, 100), (2, 2), (1, 1)])
def test_fc_a8_no_burst_of_flows(window: int, batch: int) -> None:
    """As many session flows as half windows, and one at most besides."""
    total = 20_000
    limits = Limits(incoming_window=window)
    pair = Pair(limits, limits).open()
    ours, _ = pair.session()
    sender, receiver = pair.sender(ours)
    receiver.flow(total)
    pair.pump()
    pair.server.forget()
    raw, cuts = run_of([b"x"] * batch)
    sent = 0
    while sent < total:
        count = min(batch, total - sent)
        sender.send_run(raw, cuts, 0, count, settled=True)
        sent += count
        pair.pump()
    assert len(pair.server.messages()) == total
    assert len(pair.server.sent(Flow)) <= total / (window / 2) + 1
    assert not ours.is_blocked


# Outgoing


def test_fc_7_what_the_window_has_no_room_for_waits() -> None:
    server, (link,) = narrow(3)
    session = link.session
    raw, cuts = run_of([b"%d" % i for i in range(10)])
    assert link.send_run(raw, cuts, 0, 10, settled=False) == 0
    assert session.is_blocked
    assert link.send(b"10") == 10
    assert (link.credit, link.delivery_count) == (89, 3)
    opens(server, 3, seen=3)
    assert bodies(server) == [b"%d" % i for i in range(6)]
    assert not server.of(SessionUnblocked)
    opens(server, 5, seen=5)  # one that it had not seen yet is counted off
    assert bodies(server) == [b"%d" % i for i in range(10)]
    opens(server, 1)
    assert bodies(server) == [b"%d" % i for i in range(11)]
    assert sent_ids(server) == list(range(11))
    assert server.one(SessionUnblocked).session is session
    assert not session.is_blocked
    assert (link.credit, link.delivery_count) == (89, 11)


def test_fc_7_a_window_smaller_than_what_is_on_its_way_is_closed() -> None:
    server, (link,) = narrow(10)
    for _ in range(5):
        link.send(BODY)
    opens(server, 2, seen=0)
    link.send(BODY)
    assert link.session.remote_incoming_window == -3
    assert link.session.is_blocked
    opens(server, 5, seen=0)
    assert link.session.is_blocked
    opens(server, 6, seen=0)
    assert not link.session.is_blocked


def test_transfer_ids_wrap_around() -> None:
    pair = Pair(Limits(incoming_window=4), Limits(incoming_window=4)).open()
    ours, theirs = pair.session(Begin(None, 2**32 - 3))
    sender, receiver = pair.sender(ours)
    receiver.flow(100)
    pair.pump()
    raw, cuts = run_of([b"%d" % i for i in range(50)])
    sender.send_run(raw, cuts, 0, 50, settled=True)
    pair.pump()
    assert [message[2] for message in pair.server.messages()] == [b"%d" % i for i in range(50)]
    assert ours.next_outgoing_id == theirs.next_incoming_id == 47
    assert not theirs.is_blocked


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("size", [512, 600, 1500])
@pytest.mark.parametrize("window", [1, 3, 400])
def test_large_messages_are_split_by_frame_size_and_window(
    cut: Cut, size: int, window: int
) -> None:
    pair = Pair(
        Limits(max_frame_size=size, incoming_window=window),
        Limits(max_frame_size=size, incoming_window=window),
        cut,
    ).open()
    ours, _ = pair.session()
    sender, receiver = pair.sender(ours)
    receiver.flow(100)
    pair.pump()
    chance = random.Random(size * window)
    sizes = [0, 1, size - 40, size - 30, size - 20, size, size + 1, 3 * size, 10_000, 5]
    messages = [chance.randbytes(n) for n in sizes]
    front = b"front"
    raw, cuts = run_of([b"skip" + message for message in messages])
    state = TransactionalState(b"t", Accepted())
    tags = [b"%d" % i * (i % 3) for i in range(len(sizes))]
    sender.send_run(
        raw, cuts, 0, len(sizes), settled=False, front=front, skip=4, tags=tags, state=state
    )
    sender.send_run(raw, cuts, 3, 9, settled=True, front=b"", skip=4)
    pair.pump()
    got = pair.server.messages()
    assert [message[2] for message in got] == [front + m for m in messages] + messages[3:9]
    assert [message[0] for message in got] == list(range(16))
    assert [message[1] for message in got[:10]] == tags
    assert [message[3] for message in got] == [False] * 10 + [True] * 6
    assert max(map(len, _frames(pair))) <= size
    assert receiver.credit == sender.credit == 84
    assert receiver.delivery_count == sender.delivery_count == 16
    assert pair.server.connection.sessions[0].next_incoming_id == ours.next_outgoing_id


def _frames(pair: Pair) -> list[bytes]:
    """What the client wrote, frame by frame."""
    data = bytes(pair.client.written)[8:]
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(data[:size])
        data = data[size:]
    return found


def test_a_state_that_leaves_no_room_in_a_frame_closes_the_connection() -> None:
    server, (link,) = narrow(10, size=512)
    link.send(bytes(1000), state=TransactionalState(bytes(600), Accepted()))
    server.take(0)
    server.read()
    assert conditions(server) == [("Close", "amqp:frame-size-too-small")]
    assert link.is_gone()


# FC-A12


def test_fc_a12_ids_are_sequential_over_links_and_frames() -> None:
    server, links = narrow(2, links=3, size=512)
    chance = random.Random("a12")
    expected: list[bytes] = []
    for i in range(60):
        link = links[i % 3]
        message = b"%d:" % i + bytes(chance.choice((0, 10, 1200)))
        assert link.send(message) == i
        expected.append(message)
        if chance.random() < 0.5:
            opens(server, chance.randint(1, 4))
    while links[0].session.is_blocked:
        opens(server, 3)
    server.take(0)
    assert bodies(server) == expected
    firsts = [delivery_id for delivery_id in sent_ids(server) if delivery_id is not None]
    assert firsts == list(range(60))


def test_fc_a12_a_link_without_credit_does_not_hold_up_another() -> None:
    server, links = narrow(100, links=2)
    server.credit(0, handle=0, incoming_window=100)
    links[1].send(BODY)
    server.take(0)
    assert [frame.handle for frame in server.sent(Transfer)] == [1]


def test_fc_a12_two_sessions_do_not_hold_each_other_up() -> None:
    server, (link,) = narrow(1)
    link.send(b"1")
    link.send(b"2")
    assert link.session.is_blocked
    server.say(Begin(None, 0, 100, 100), channel=1)
    session = server.connection.sessions[1]
    assert not session.is_blocked
    assert session.remote_incoming_window == 100


# What may not overtake what waits


def test_fc_5_the_flow_of_a_drain_stands_behind_what_waits() -> None:
    server, (link, other) = narrow(2, links=2)
    server.credit(5, drain=True, incoming_window=2)
    raw, cuts = run_of([b"%d" % i for i in range(4)])
    link.send_run(raw, cuts, 0, 4, settled=True)
    link.drained()
    other.send(b"other")
    assert link.credit == 0
    server.take(0)
    server.forget()
    opens(server, 1)
    assert [type(frame[1]) for frame in server.frames] == [Transfer]
    opens(server, 5)
    assert [type(frame[1]) for frame in server.frames] == [Transfer, Transfer, Flow, Transfer]
    flow = server.sent(Flow)[0]
    assert (flow.delivery_count, flow.link_credit, flow.drain) == (5, 0, True)
    assert link.delivery_count == 5


def test_a_drain_that_was_called_off_meanwhile_gives_up_nothing() -> None:
    server, (link,) = narrow(1)
    server.credit(5, drain=True, incoming_window=1)
    raw, cuts = run_of([b"%d" % i for i in range(3)])
    link.send_run(raw, cuts, 0, 3, settled=True)
    link.drained()
    assert link.credit == 0
    server.credit(5, 0, next_incoming_id=1, incoming_window=0)
    assert link.credit == 2
    opens(server, 5)
    assert (link.delivery_count, link.credit) == (3, 2)
    assert server.sent(Flow) == []


def test_fc_3_credit_taken_back_for_what_waits_withdraws_the_newest() -> None:
    server, (link, other) = narrow(2, links=2)
    raw, cuts = run_of([b"%d" % i for i in range(4)])
    link.send_run(raw, cuts, 0, 4, settled=False)  # 2 and 3 wait
    other.send(b"4")
    link.send_run(raw, cuts, 0, 3, settled=False)  # 5 to 7
    assert link.credit == 93
    server.credit(3, 0, next_incoming_id=2, incoming_window=0)
    ranges = [(event.first, event.last) for event in server.of(DeliveriesWithdrawn)]
    assert ranges == [(3, 3), (5, 7)]
    assert all(event.link is link for event in server.of(DeliveriesWithdrawn))
    assert (link.credit, server.one(CreditReceived).credit) == (0, 0)
    opens(server, 10)
    assert bodies(server) == [b"0", b"1", b"2", b"4"]
    assert sent_ids(server) == [0, 1, 2, 3]
    assert (link.delivery_count, link.credit) == (3, 0)
    server.credit(5, 3, next_incoming_id=4)
    assert link.credit == 5


def test_fc_3_a_delivery_that_has_begun_is_finished() -> None:
    server, (link,) = narrow(1, size=512)
    message = bytes(1000)
    link.send(message)
    link.send(b"1")
    server.credit(0, 0, next_incoming_id=1, incoming_window=0)
    event = server.one(DeliveriesWithdrawn)
    assert (event.first, event.last) == (1, 1)
    opens(server, 10)
    assert bodies(server) == [message]
    assert (link.delivery_count, link.credit) == (1, 0)


def test_an_echo_tells_what_has_left_and_not_what_waits() -> None:
    server, (link,) = narrow(2)
    raw, cuts = run_of([BODY] * 5)
    link.send_run(raw, cuts, 0, 5, settled=True)
    server.take(0)
    server.forget()
    server.credit(100, 0, next_incoming_id=2, incoming_window=0, echo=True)
    answer = server.sent(Flow)[0]
    assert (answer.delivery_count, answer.link_credit) == (2, 98)
    assert server.one(CreditReceived).credit == link.credit == 95


def test_fc_18_a_disposition_of_what_waits_stands_behind_it() -> None:
    server, (link,) = narrow(2)
    session = link.session
    raw, cuts = run_of([BODY] * 4)
    link.send_run(raw, cuts, 0, 4, settled=False)
    session.settle_sent(0, 1, Accepted())
    session.settle_sent(1, 3, Released(), settled=False)
    server.take(0)
    assert [type(frame[1]) for frame in server.frames] == [Transfer, Transfer, Disposition]
    opens(server, 2)
    kinds = [type(frame[1]) for frame in server.frames]
    assert kinds == [Transfer, Transfer, Disposition, Transfer, Transfer, Disposition]
    last = server.sent(Disposition)[-1]
    assert (last.first, last.last, last.settled, last.state) == (1, 3, False, Released())
    assert last.role is False


# Withdrawing


def test_a_detach_withdraws_what_waits_and_leaves_no_gap() -> None:
    server, (link, other) = narrow(3, links=2)
    session = link.session
    raw, cuts = run_of([b"%d" % i for i in range(5)])
    link.send_run(raw, cuts, 0, 5, settled=False)  # 0 to 4; 3 and 4 wait
    assert other.send(b"5") == 5
    link.send_run(raw, cuts, 0, 2, settled=False)  # 6 and 7
    assert other.send(b"8") == 8
    link.detach(Error("amqp:resource-deleted"))
    opens(server, 10)
    assert sent_ids(server) == [0, 1, 2, 3, 4]
    assert bodies(server)[3:] == [b"5", b"8"]
    assert server.one(SessionUnblocked)
    # and everybody goes on talking in their own numbers
    server.say(Disposition(RECEIVER, 2, 4, True, Accepted()))
    ranges = [(event.first, event.last) for event in server.of(DispositionReceived)]
    assert ranges == [(2, 2), (5, 5), (8, 8)]
    server.forget()
    session.settle_sent(5, 8, Accepted())
    server.take(0)
    said = server.sent(Disposition)[0]
    assert (said.first, said.last) == (3, 4)
    session.settle_sent(6, 7, Accepted())
    server.take(0)
    assert len(server.sent(Disposition)) == 1


def test_the_peers_detach_withdraws_too_and_lets_others_past() -> None:
    server, (link, other) = narrow(1, links=2)
    link.send(b"0")
    link.send(b"1")
    server.credit(50, handle=1, drain=True, next_incoming_id=1, incoming_window=0)
    other.drained()  # waits behind 1
    server.take(0)
    server.forget()
    server.say(Detach(0, True))
    assert server.one(LinkDetached).link is link
    assert [type(frame[1]) for frame in server.frames] == [Flow, Detach]
    assert server.one(SessionUnblocked)
    assert not link.session.is_blocked


def test_the_rest_of_a_delivery_is_not_sent_behind_a_detach() -> None:
    server, (link, other) = narrow(2, links=2, size=512)
    link.send(bytes(2000))
    other.send(b"next")
    link.detach()
    opens(server, 10)
    frames = server.sent(Transfer)
    assert [(frame.handle, frame.more) for frame in frames] == [(0, True), (0, True), (1, False)]
    assert [frame.delivery_id for frame in frames] == [0, None, 1]
    server.say(Disposition(RECEIVER, 0, 1, True, Accepted()))
    event = server.one(DispositionReceived)
    assert (event.first, event.last) == (0, 1)


def test_skipped_numbers_leave_no_gap() -> None:
    server, (link,) = narrow(100)
    session = link.session
    assert session.skip(3) == 0
    assert link.send(b"a") == 3
    assert session.skip(2) == 4
    assert link.send(b"b") == 6
    server.take(0)
    assert sent_ids(server) == [0, 1]
    assert [frame.delivery_tag for frame in server.sent(Transfer)] == [b"\0\0\0\3", b"\0\0\0\6"]
    server.say(Disposition(RECEIVER, 0, 1, True, Accepted()))
    assert [(event.first, event.last) for event in server.of(DispositionReceived)] == [
        (3, 3),
        (6, 6),
    ]


def test_what_is_sent_on_a_link_that_is_gone_takes_numbers() -> None:
    server, (link, other) = narrow(100, links=2)
    server.say(Detach(0, True))
    raw, cuts = run_of([BODY] * 3)
    assert link.send_run(raw, cuts, 0, 3, settled=False, beyond_credit=True) == 0
    assert other.send(BODY) == 3
    server.take(0)
    assert sent_ids(server) == [0]
    with pytest.raises(ValueError, match="credit of 0"):
        link.send(BODY)


# FC-A13


@pytest.mark.parametrize("at", [2, 3, 4])
def test_fc_a13_a_cancelled_delivery_is_as_if_it_had_never_been(at: int) -> None:
    server, (link,) = narrow(2)
    raw, cuts = run_of([b"%d" % i for i in range(5)])
    link.send_run(raw, cuts, 0, 5, settled=False, tags=[b"t%d" % i for i in range(5)])
    assert link.credit == 95
    assert link.cancel(at)
    assert link.credit == 96
    assert not link.cancel(at)
    assert not link.cancel(1)  # it has left
    assert not link.cancel(77)
    assert link.credit == 96
    opens(server, 10)
    rest = [i for i in range(5) if i != at]
    assert bodies(server) == [b"%d" % i for i in rest]
    assert sent_ids(server) == [0, 1, 2, 3]
    assert [frame.delivery_tag for frame in server.sent(Transfer)] == [b"t%d" % i for i in rest]
    assert (link.delivery_count, link.credit) == (4, 96)
    server.say(Disposition(RECEIVER, 0, 3, True, Accepted()))
    numbers = [
        number
        for event in server.of(DispositionReceived)
        for number in range(event.first, event.last + 1)
    ]
    assert numbers == rest


def test_fc_a13_the_rest_of_a_delivery_is_aborted() -> None:
    server, (link,) = narrow(2, size=512)
    link.send(bytes(2000))
    link.send(b"next")
    assert link.cancel(0)
    assert not link.cancel(0)
    assert link.credit == 99
    opens(server, 10)
    frames = server.sent(Transfer)
    assert [(f.delivery_id, f.more, f.aborted) for f in frames] == [
        (0, True, False),
        (None, True, False),
        (None, False, True),
        (1, False, False),
    ]
    assert bodies(server) == [b"next"]
    assert (link.delivery_count, link.credit) == (1, 99)


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_fc_a13_both_ends_agree_about_an_aborted_delivery(cut: Cut) -> None:
    limits = Limits(max_frame_size=512, incoming_window=2)
    pair = Pair(limits, limits, cut).open()
    ours, theirs = pair.session()
    sender, receiver = pair.sender(ours)
    receiver.flow(10)
    pair.pump()
    theirs.hold_window(True)
    sender.send(bytes(3000))
    pair.pump()
    assert receiver.unfinished > 0
    sender.cancel(0)
    theirs.hold_window(False)
    pair.pump()
    assert receiver.unfinished == 0
    assert receiver.credit == sender.credit == 10
    assert receiver.delivery_count == sender.delivery_count == 0
    sender.send(b"next")
    pair.pump()
    assert [(message[0], message[2]) for message in pair.server.messages()] == [(1, b"next")]


def test_fc_a13_a_cancelled_run_of_one_lets_what_stands_behind_it_go() -> None:
    server, (link,) = narrow(1)
    link.send(b"0")
    link.send(b"1")
    link.session.settle_sent(0, 1, Released(), settled=False)
    link.cancel(1)
    server.take(0)
    server.read()
    said = server.sent(Disposition)[0]
    assert (said.first, said.last) == (0, None)
    assert server.one(SessionUnblocked)


def test_an_end_drops_what_waits() -> None:
    server, (link,) = narrow(1)
    link.send(b"0")
    link.send(b"1")
    link.session.end()
    assert not link.session.is_blocked
    server.take(0)
    assert bodies(server) == [b"0"]
    assert not link.cancel(1)


@pytest.mark.parametrize(
    ("tags", "count"), [([], 1), ([b"a"], 2), ([b"a", b"b"], 1), (None, 0), ([b"x" * 33], 1)]
)
def test_mistakes_of_the_owner(tags: list[bytes] | None, count: int) -> None:
    server, (link,) = narrow(5)
    raw, cuts = run_of([BODY] * 2)
    with pytest.raises(ValueError):
        link.send_run(raw, cuts, 0, count, settled=True, tags=tags)
    server.take(0)
    assert server.sent(Transfer) == []
    assert link.credit == 100
    assert link.session.next_delivery_id == 0


@pytest.mark.parametrize("seed", range(25))
def test_any_mixture_arrives_in_order_and_the_counts_agree(seed: int) -> None:
    """Random sends, cancellations, drains, detaches and windows between two ends."""
    chance = random.Random(seed)
    size = chance.choice((512, 700, 131_072))
    window = chance.choice((1, 2, 5, 50))
    limits = Limits(max_frame_size=size, incoming_window=window)
    pair = Pair(limits, limits, CUTS[chance.choice(list(CUTS))]).open()
    ours, theirs = pair.session(Begin(None, chance.choice((0, 2**32 - 5))))
    ours.next_delivery_id = chance.choice((0, 2**32 - 7))
    ends = [pair.sender(ours, f"s{i}") for i in range(3)]
    for _, receiver in ends:
        receiver.flow(20)
    pair.pump()
    expected: list[tuple[int, bytes]] = []
    for step in range(80):
        sender, receiver = chance.choice(ends)
        act = chance.random()
        if act < 0.5 and sender.credit:
            count = chance.randint(1, min(3, sender.credit))
            messages = [b"%d." % step + bytes(chance.choice((0, 3, 900))) for _ in range(count)]
            raw, cuts = run_of(messages)
            first = sender.send_run(raw, cuts, 0, count, settled=False)
            expected += [((first + i) % 2**32, message) for i, message in enumerate(messages)]
        elif act < 0.6 and expected:
            number = chance.choice(expected[-4:])[0]
            for one, _ in ends:
                if one.cancel(number):
                    expected = [entry for entry in expected if entry[0] != number]
        elif act < 0.7:
            theirs.hold_window(chance.random() < 0.5)
        elif act < 0.8:
            receiver.flow(chance.randint(5, 20))
        elif act < 0.85 and receiver.drain():
            pair.pump()
            if sender.is_draining:
                sender.drained()
        else:
            pair.pump()
    theirs.hold_window(False)
    pair.pump()
    assert not ours.is_blocked
    for withdrawn in pair.client.of(DeliveriesWithdrawn):
        count = (withdrawn.last - withdrawn.first) % 2**32 + 1
        gone = [(withdrawn.first + i) % 2**32 for i in range(count)]
        assert set(gone) <= {number for number, _ in expected}
        expected = [entry for entry in expected if entry[0] not in gone]
    got = [message[2] for message in pair.server.messages()]
    assert got == [message for _, message in expected]
    ids = [message[0] for message in pair.server.messages()]
    assert ids == sorted(ids, key=lambda i: (i + 1000) % 2**32)
    for sender, receiver in ends:
        assert sender.delivery_count == receiver.delivery_count
        assert sender.credit == receiver.credit
        assert not receiver.is_draining
    assert pair.client.of(SessionFailed) == pair.server.of(SessionFailed) == []
    if ids:
        _settle_all(pair, theirs, ids, [number for number, _ in expected])


def _settle_all(pair: Pair, theirs: Session, ids: list[int], numbers: list[int]) -> None:
    """One disposition over all of it names each of our numbers once."""
    theirs.settle_received(ids[0], ids[-1], Accepted())
    pair.pump()
    named = [
        (event.first + i) % 2**32
        for event in pair.client.of(DispositionReceived)
        for i in range((event.last - event.first) % 2**32 + 1)
    ]
    assert set(numbers) <= set(named)
    assert len(named) == len(set(named))
    assert len(named) == (ids[-1] - ids[0]) % 2**32 + 1
