"""Links are attached, refused, detached, from either side [amqp-1.0 §2.6]."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp10.events import (
    CreditReceived,
    Event,
    LinkAttached,
    LinkDetached,
    LinkFailed,
    LinkRequested,
    TransfersReceived,
)
from tallymark.wire.amqp10.frames import frame
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.link import Link
from tallymark.wire.amqp10.outcomes import Accepted, Error, Rejected
from tallymark.wire.amqp10.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Coordinator,
    Detach,
    Flow,
    Source,
    Target,
)
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.states import LinkState
from tests.support.amqp10_pair import BODY, CUTS, Cut, Pair, Server, conditions, transfer

UNSETTLED, SETTLED, MIXED = 0, 1, 2
FIRST, SECOND = 0, 1


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("by_server", [False, True])
@pytest.mark.parametrize("sends", [False, True])
def test_either_side_attaches_either_end(cut: Cut, by_server: bool, sends: bool) -> None:
    pair = Pair(cut=cut).open()
    ours, theirs = pair.session()
    first, second = (pair.client, pair.server) if not by_server else (pair.server, pair.client)
    session = theirs if by_server else ours
    attach = Attach(
        name="x",
        source=Source(address="from", capabilities=("queue",)),
        target=Target(address="to"),
        max_message_size=12345,
        properties={"paired": True},
        initial_delivery_count=7,
    )
    link: Link = session.attach_sender(attach) if sends else session.attach_receiver(attach)
    assert link.state is LinkState.ATTACH_SENT
    pair.pump()
    other = second.one(LinkRequested).link
    asked = second.one(LinkRequested).attach
    assert (asked.name, asked.role) == ("x", SENDER if sends else RECEIVER)
    assert asked.source == Source(address="from", capabilities=("queue",))
    assert (asked.target, asked.properties) == (Target(address="to"), {"paired": True})
    assert asked.max_message_size == 12345
    assert asked.initial_delivery_count == (7 if sends else None)
    assert other.is_sender is not sends
    assert link.is_sender is sends
    if isinstance(other, SenderLink):
        assert other.max_message_size == 12345
        assert isinstance(link, ReceiverLink)
        assert link.delivery_count == other.delivery_count == 0
    else:
        assert isinstance(other, ReceiverLink)
        assert other.delivery_count == 7
    assert first.one(LinkAttached).link is link
    assert first.one(LinkAttached).attach == link.remote_attach
    assert link.state is other.state is LinkState.ATTACHED
    assert link.snd_settle_mode == other.snd_settle_mode == MIXED
    assert link.rcv_settle_mode == other.rcv_settle_mode == FIRST


def test_names_tell_links_apart_by_role_and_answers_by_name() -> None:
    """Two receivers and a sender of names that overlap, answered in another order."""
    server = Server()
    session = server.begin()
    a = session.attach_receiver(Attach("a", source=Source(), target=Target()))
    b = session.attach_receiver(Attach("b", source=Source(), target=Target()))
    also_a = session.attach_sender(Attach("a", source=Source(), target=Target()))
    with pytest.raises(ValueError, match="'a' is being attached"):
        session.attach_receiver(Attach("a", source=Source(), target=Target()))
    server.take(0)
    for handle, (name, role) in enumerate([("b", SENDER), ("a", RECEIVER), ("a", SENDER)]):
        server.say(Attach(name, handle, role, source=Source(), target=Target()))
    assert [event.link for event in server.of(LinkAttached)] == [b, also_a, a]
    assert [a.handle, b.handle, also_a.handle] == [0, 1, 2]


def test_both_sides_attach_the_same_link_at_once() -> None:
    pair = Pair().open()
    ours, theirs = pair.session()
    receiver = ours.attach_receiver(Attach("x", source=Source(), target=Target()))
    sender = theirs.attach_sender(Attach("x", source=Source(), target=Target()))
    pair.pump()
    assert receiver.state is sender.state is LinkState.ATTACHED
    receiver.flow(1)
    pair.pump()
    sender.send(BODY)
    pair.pump()
    assert len(pair.client.messages()) == 1


def test_a_coordinator_is_a_target_like_any() -> None:
    pair = Pair().open()
    ours, _ = pair.session()
    link = ours.attach_sender(Attach("x", source=Source(), target=Coordinator(("a:b",))))
    pair.pump()
    assert pair.server.one(LinkRequested).attach.target == Coordinator(("a:b",))
    assert link.state is LinkState.ATTACHED


# Refusing


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("sends", [False, True])
def test_a_refused_attach(cut: Cut, sends: bool) -> None:
    pair = Pair(cut=cut).open()
    ours, _ = pair.session()
    pair.server.answers = False
    attach = Attach("x", source=Source(address="nowhere"), target=Target(address="nowhere"))
    link: Link = ours.attach_sender(attach) if sends else ours.attach_receiver(attach)
    pair.pump()
    other = pair.server.one(LinkRequested).link
    other.refuse(Error("amqp:not-found", "no queue"))
    pair.pump()
    detached = pair.client.one(LinkDetached)
    assert (detached.link, detached.closed, detached.refused) == (link, True, True)
    assert detached.error == Error("amqp:not-found", "no queue")
    assert not pair.client.of(LinkAttached)
    said = pair.server.sent(Attach)[0]
    assert (said.source, said.target) == (None, None)
    assert other.state is LinkState.DETACHED
    assert pair.server.one(LinkDetached).refused is False
    assert ours.links == []


def test_a_refused_link_may_be_detached_before_the_peer_does() -> None:
    server = Server()
    session = server.begin()
    link = session.attach_receiver(Attach("x", source=Source(), target=Target()))
    server.say(Attach("x", 0, SENDER, target=Target()))
    assert link.state is LinkState.REFUSED
    assert link.drain() is False
    link.flow(5)
    link.detach()
    assert link.state is LinkState.DETACH_SENT
    server.say(Detach(0, True, Error("amqp:not-found")))
    assert link.state is LinkState.DETACHED
    assert server.sent(Flow) == []


def test_an_answer_comes_late() -> None:
    """The peer has detached before its attach was answered."""
    server = Server()
    server.begin()
    server.answers = False
    server.say(Attach("x", 0, RECEIVER, source=Source(), target=Target()), Detach(0, True))
    link = server.one(LinkRequested).link
    assert server.one(LinkDetached).link is link
    link.answer(Attach(source=Source(), target=Target()))
    link.detach()
    server.take(0)
    assert [type(frame[1]) for frame in server.frames[-2:]] == [Attach, Detach]
    assert link.state is LinkState.DETACHED
    assert link.session.links == []


def test_credit_and_detach_before_the_answer() -> None:
    server = Server()
    server.begin()
    server.answers = False
    server.say(
        Attach("x", 0, RECEIVER, source=Source(), target=Target()),
        Flow(None, 100, 0, 100, handle=0, link_credit=5),
    )
    link = server.one(LinkRequested).link
    assert isinstance(link, SenderLink)
    assert server.one(CreditReceived).credit == link.credit == 5
    link.answer(Attach(source=Source(), target=Target(), initial_delivery_count=2**32 - 1))
    assert (link.delivery_count, link.credit) == (2**32 - 1, 5)
    link.send(BODY, settled=True)
    assert (link.delivery_count, link.credit) == (0, 4)


def test_a_second_answer_is_a_mistake() -> None:
    server = Server()
    link = server.subscriber()
    with pytest.raises(ValueError, match="answer for a link in state ATTACHED"):
        link.answer(Attach())


# FC-9


@pytest.mark.parametrize(
    ("snd", "rcv"), [(UNSETTLED, SECOND), (SETTLED, FIRST), (MIXED, SECOND), (None, None)]
)
@pytest.mark.parametrize("sends", [False, True])
def test_fc_9_modes_asked_for_are_granted(snd: int | None, rcv: int | None, sends: bool) -> None:
    pair = Pair().open()
    ours, _ = pair.session()
    link, other = pair.sender(ours, "x", snd, rcv) if sends else pair.receiver(ours, "x", snd, rcv)
    wanted = (MIXED if snd is None else snd, FIRST if rcv is None else rcv)
    assert (link.snd_settle_mode, link.rcv_settle_mode) == wanted
    assert (other.snd_settle_mode, other.rcv_settle_mode) == wanted
    assert link.state is LinkState.ATTACHED


@pytest.mark.parametrize(
    ("asked", "got"),
    [((SETTLED, None), (MIXED, FIRST)), ((None, SECOND), (MIXED, FIRST)), ((0, 0), (0, 1))],
)
@pytest.mark.parametrize("sends", [False, True])
def test_fc_9_a_mode_not_granted_fails_the_attach(
    asked: tuple[int | None, int | None], got: tuple[int, int], sends: bool
) -> None:
    pair = Pair().open()
    ours, _ = pair.session()
    pair.server.answers = False
    attach = Attach("x", source=Source(), target=Target())
    link: Link = (
        ours.attach_sender(attach, *asked) if sends else ours.attach_receiver(attach, *asked)
    )
    pair.pump()
    pair.server.one(LinkRequested).link.answer(Attach(source=Source(), target=Target()), *got)
    pair.server.answers = True
    pair.pump()
    failed = pair.client.one(LinkFailed)
    assert failed.error.condition == "amqp:not-allowed"
    assert pair.server.one(LinkDetached).error == failed.error
    assert pair.server.one(LinkDetached).closed
    assert link.state is LinkState.DETACHED
    assert not pair.client.of(LinkAttached)


def test_fc_9_what_was_not_asked_for_is_as_the_peer_says() -> None:
    pair = Pair().open()
    ours, _ = pair.session()
    pair.server.answers = False
    link = ours.attach_receiver(Attach("x", source=Source(), target=Target()))
    pair.pump()
    answer = Attach(source=Source(), target=Target())
    pair.server.one(LinkRequested).link.answer(answer, SETTLED, SECOND)
    pair.pump()
    assert pair.client.one(LinkAttached).link is link
    assert (link.snd_settle_mode, link.rcv_settle_mode) == (SETTLED, SECOND)


# Detaching


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("by_server", [False, True])
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("error", [None, Error("amqp:resource-deleted")])
def test_either_side_detaches(cut: Cut, by_server: bool, closed: bool, error: Error | None) -> None:
    pair = Pair(cut=cut).open()
    ours, _ = pair.session()
    receiver, sender = pair.receiver(ours)
    first, second = (pair.client, pair.server) if not by_server else (pair.server, pair.client)
    link: Link = sender if by_server else receiver
    other: Link = receiver if by_server else sender
    second.answers = False
    link.detach(error, closed)
    assert link.state is (LinkState.DETACH_SENT if error is None else LinkState.DISCARDING)
    pair.pump()
    detached = second.one(LinkDetached)
    assert (detached.link, detached.closed, detached.error) == (other, closed, error)
    assert other.state is LinkState.DETACH_RCVD
    assert first.of(LinkDetached) == []
    other.detach()  # answers in kind
    pair.pump()
    assert first.one(LinkDetached).closed is closed
    assert link.state is other.state is LinkState.DETACHED
    assert link.session.links == other.session.links == []
    link.detach()
    other.detach(Error("amqp:internal-error"))
    pair.pump()
    assert len(first.sent(Detach) + second.sent(Detach)) == 2


def test_an_answer_to_a_detach_may_differ_in_kind() -> None:
    server = Server()
    link = server.publisher()
    server.answers = False
    server.say(Detach(0, closed=False))
    link.detach(Error("amqp:not-implemented", "links are not suspended"), closed=True)
    server.take(0)
    assert server.sent(Detach)[0].closed
    assert link.state is LinkState.DETACHED


def test_both_sides_detach_at_once() -> None:
    pair = Pair().open()
    ours, _ = pair.session()
    receiver, sender = pair.receiver(ours)
    receiver.detach()
    sender.detach(Error("amqp:resource-deleted"))
    pair.pump()
    assert pair.client.one(LinkDetached).error == Error("amqp:resource-deleted")
    assert pair.server.one(LinkDetached).error is None
    assert receiver.state is sender.state is LinkState.DETACHED


def test_a_link_is_detached_before_it_was_granted() -> None:
    pair = Pair().open()
    ours, theirs = pair.session()
    link = ours.attach_receiver(Attach("x", source=Source(), target=Target()))
    link.detach()
    pair.pump()
    assert not pair.client.of(LinkAttached)
    assert pair.client.one(LinkDetached).link is link
    assert ours.links == theirs.links == []


def test_fc_21_a_handle_is_not_used_again_before_the_peers_detach() -> None:
    server = Server()
    session = server.begin()
    link = session.attach_receiver(Attach("x", source=Source(), target=Target()))
    server.say(Attach("x", 0, SENDER, source=Source(), target=Target(), initial_delivery_count=0))
    link.flow(10)
    server.say(transfer(0, message_format=None))  # breaks FC-13
    assert server.one(LinkFailed).link is link
    assert link.state is LinkState.DISCARDING
    assert session.attach_receiver(Attach("y")).handle == 1
    server.forget()
    server.say(
        transfer(1), transfer(2), Flow(0, 9, 3, 9, handle=0, delivery_count=2, link_credit=0)
    )
    assert server.events == []  # dropped, and no error
    server.say(Detach(0, True))
    assert server.one(LinkDetached).link is link
    assert session.attach_receiver(Attach("z")).handle == 0


def test_fc_21_an_answer_to_an_attach_that_we_gave_up_is_dropped() -> None:
    server = Server()
    session = server.begin()
    link = session.attach_receiver(Attach("x", source=Source(), target=Target()))
    link.detach(Error("amqp:internal-error"))
    server.say(Attach("x", 3, SENDER, source=Source(), target=Target(), initial_delivery_count=0))
    assert link.state is LinkState.DISCARDING
    server.say(Detach(3, True))
    assert link.state is LinkState.DETACHED
    assert [type(event) for event in server.events[2:]] == [LinkDetached]


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_fc_a7_transfers_between_our_detach_and_the_peers_are_taken(cut: Cut) -> None:
    server = Server(cut=cut)
    link = server.publisher(credit=5)
    link.detach()
    server.say(transfer(0), transfer(1), payload=BODY)
    server.say(transfer(2, more=True), transfer(2), payload=BODY)
    assert [message[0] for message in server.messages()] == [0, 1, 2]
    assert server.messages()[2][2] == BODY * 2
    server.say(Detach(0, True))
    assert server.one(LinkDetached).link is link
    assert conditions(server) == []


def test_fc_a7_but_not_more_than_there_was_credit_for() -> None:
    server = Server()
    link = server.publisher(credit=1)
    link.detach()
    server.say(transfer(0), transfer(1), transfer(2), payload=BODY)
    assert len(server.messages()) == 1
    assert not server.of(LinkFailed)  # it is detached already
    server.say(Detach(0, True))
    assert server.one(LinkDetached)


def test_behind_a_detach_with_an_error_everything_is_dropped() -> None:
    server = Server()
    link = server.publisher(credit=5)
    server.say(transfer(0, more=True), payload=BODY)
    assert link.unfinished == len(BODY)
    link.detach(Error("amqp:resource-deleted"))
    assert link.unfinished == 0
    server.say(transfer(0), transfer(1), payload=BODY)
    assert server.messages() == []
    assert link.session.next_incoming_id == 3  # the session counts them all the same


def test_an_unfinished_delivery_is_gone_with_its_link() -> None:
    server = Server(Limits(max_message_size=100, max_unfinished_bytes=100))
    for handle in range(5):
        link = server.publisher(handle=0)
        server.say(transfer(handle, more=True), payload=bytes(90))
        server.say(Detach(0, True))
        assert link.unfinished == 0
    assert server.connection.sessions[0].links == []


def test_a_link_of_a_name_that_is_taken_is_the_owners_affair() -> None:
    server = Server()
    server.publisher(handle=0)
    server.say(Attach("p0", 1, SENDER, source=Source(), target=Target(), initial_delivery_count=0))
    first, second = [event.link for event in server.of(LinkRequested)]
    assert first is not second
    assert (second.name, second.state) == ("p0", LinkState.ATTACHED)


def test_a_transfer_to_a_link_on_which_we_send() -> None:
    server = Server()
    link = server.subscriber()
    server.say(transfer(0), payload=BODY)
    assert server.one(LinkFailed).link is link
    assert conditions(server) == [("Detach", "amqp:not-allowed")]


@pytest.mark.parametrize("state", ["ATTACHED", "DETACH SENT"])
def test_the_same_events_however_the_bytes_come(state: str) -> None:
    """A whole life of a link, cut in all ways; stretches may be cut, messages may not."""
    found: list[list[object]] = []
    for cut in CUTS.values():
        server = Server(cut=cut)
        link = server.publisher(credit=100)
        if state == "DETACH SENT":
            link.detach()
        said = [
            *[(transfer(i), BODY) for i in range(10)],
            (transfer(10, more=True), b"a" * 300),
            (transfer(None, more=True), b"b" * 300),
            (transfer(None), b"c" * 300),
            (transfer(11, settled=True), BODY),
            (transfer(12, state=Accepted()), BODY),
            (transfer(13), b""),
        ]
        data = b"".join([frame(0, one.encode(), payload) for one, payload in said])
        server.hear(data + frame(0, Detach(0, True).encode()))
        rest: list[object] = [
            type(event) for event in server.events if not isinstance(event, TransfersReceived)
        ]
        found.append([server.messages(), rest, link.credit, link.delivery_count])
    assert found[0] == found[1] == found[2]
    assert len(server.messages()) == 14


def test_events_are_what_the_owner_acts_on() -> None:
    """What the owner does in answer to an event is in force before the next frame is looked at."""
    server = Server()
    link = server.publisher(credit=5)
    server.answers = False
    data = frame(0, transfer(0, state=Accepted()).encode(), BODY)
    data += frame(0, transfer(1).encode(), BODY)
    server.connection.receive_data(data, 0)
    first = server.connection.next_event()
    assert isinstance(first, TransfersReceived)
    link.detach(Error("amqp:resource-deleted"))
    rest: list[Event] = []
    while (event := server.connection.next_event()) is not None:
        rest.append(event)
    assert rest == []


def test_begin_is_needed_before_attach() -> None:
    server = Server()
    server.open()
    server.answers = False
    server.say(Begin(None, 0, 1, 1), Attach("x", 0, RECEIVER, source=Source(), target=Target()))
    link = server.one(LinkRequested).link
    link.session.begin()
    link.answer(Attach(source=Source(), target=Target()))
    assert link.state is LinkState.ATTACHED


@pytest.mark.parametrize("sends", [False, True])
def test_an_attach_that_does_not_fit_its_fields_changes_nothing(sends: bool) -> None:
    server = Server()
    session = server.begin()
    bad = Attach("x", source=Source(address="q"), target=Target(timeout=-1))
    for _ in range(2):
        with pytest.raises(ValueError, match="-1"):
            _ = session.attach_sender(bad) if sends else session.attach_receiver(bad)
    assert session.links == []
    link = session.attach_sender(Attach("x", source=Source(), target=Target()))
    assert link.handle == 0
    server.answers = False
    server.say(Attach("y", 0, RECEIVER, source=Source(), target=Target()))
    asked = server.last(LinkRequested).link
    with pytest.raises(ValueError, match="-1"):
        asked.answer(Attach(source=Source(timeout=-1), target=Target()))
    assert asked.state is LinkState.ATTACH_RCVD
    asked.answer(Attach(source=Source(), target=Target()))
    assert asked.handle == 1
    server.take(0)
    assert len(server.sent(Attach)) == 2


def test_a_settlement_that_does_not_fit_its_fields_changes_nothing() -> None:
    server = Server()
    session = server.begin()
    link = session.attach_receiver(Attach("x", source=Source(), target=Target()), None, SECOND)
    server.say(Attach("x", 0, SENDER, None, SECOND, Source(), Target(), initial_delivery_count=0))
    link.flow(1)
    server.say(transfer(0), payload=BODY)
    server.forget()
    with pytest.raises(ValueError, match="ascii"):
        link.settle(0, 0, Rejected(Error("nicht möglich")))
    with pytest.raises(ValueError, match="ascii"):
        link.detach(Error("nicht möglich"))
    with pytest.raises(ValueError, match="ascii"):
        session.end(Error("nicht möglich"))
    with pytest.raises(ValueError, match="ascii"):
        server.connection.close(Error("nicht möglich"))
    server.take(0)
    assert server.frames == []
    assert link.in_flight() == []
    assert link.state is LinkState.ATTACHED
