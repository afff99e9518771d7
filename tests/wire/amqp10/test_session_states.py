"""Sessions begin and end, from either side; what the peer may not do in one [amqp-1.0 §2.5]."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp10.events import (
    ConnectionFailed,
    LinkRequested,
    SessionBegun,
    SessionEnded,
    SessionFailed,
    SessionRequested,
)
from tallymark.wire.amqp10.frames import frame
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import Accepted, Error
from tallymark.wire.amqp10.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Source,
    Target,
)
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.states import LinkState, SessionState
from tests.support.amqp10_pair import BODY, CUTS, Cut, Pair, Server, conditions, transfer


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("beginner", ["client", "server"])
def test_either_side_begins_and_either_ends(cut: Cut, beginner: str) -> None:
    pair = Pair(Limits(handle_max=3), Limits(handle_max=9, incoming_window=7), cut).open()
    first, second = pair.client, pair.server
    if beginner == "server":
        first, second = second, first
    ours = first.connection.begin(Begin(None, 5, properties={"a": 1}))
    assert ours.state is SessionState.BEGIN_SENT
    pair.pump()
    theirs = second.one(SessionRequested).session
    assert ours.state is theirs.state is SessionState.MAPPED
    begun = first.one(SessionBegun)
    assert begun.session is ours
    assert begun.begin.remote_channel == ours.channel
    asked = second.one(SessionRequested).begin
    assert (asked.next_outgoing_id, asked.properties) == (5, {"a": 1})
    assert theirs.next_incoming_id == 5
    assert ours.remote_incoming_window == second.connection.limits.incoming_window
    theirs.end(Error("amqp:resource-deleted"))
    assert theirs.state is SessionState.DISCARDING
    pair.pump()
    assert first.one(SessionEnded).error == Error("amqp:resource-deleted")
    assert second.one(SessionEnded).error is None
    assert ours.state is theirs.state is SessionState.UNMAPPED
    assert pair.client.connection.sessions == pair.server.connection.sessions == []
    ours.end()  # does nothing
    pair.pump()
    assert len(pair.client.sent(End) + pair.server.sent(End)) == 2


def test_both_end_at_once() -> None:
    pair = Pair().open()
    ours, theirs = pair.session()
    ours.end()
    theirs.end(Error("amqp:internal-error"))
    pair.pump()
    assert pair.client.one(SessionEnded).error == Error("amqp:internal-error")
    assert pair.server.one(SessionEnded).error is None
    assert ours.state is theirs.state is SessionState.UNMAPPED
    assert pair.session()[0].channel == 0


def test_a_session_is_ended_before_it_was_granted() -> None:
    pair = Pair().open()
    ours = pair.client.connection.begin()
    ours.end()
    assert ours.state is SessionState.END_SENT
    pair.pump()
    assert not pair.client.of(SessionBegun)
    assert pair.client.one(SessionEnded).session is ours
    assert pair.client.connection.sessions == pair.server.connection.sessions == []


def test_a_refused_session_is_begun_and_ended() -> None:
    server = Server()
    server.open()
    server.answers = False
    server.say(Begin(None, 0, 1, 1), channel=5)
    session = server.one(SessionRequested).session
    session.end(Error("amqp:resource-limit-exceeded"))
    server.take(0)
    assert [type(frame[1]) for frame in server.frames[1:]] == [Begin, End]
    assert server.sent(Begin)[0].remote_channel == 5
    server.say(End(), channel=5)
    assert session.state is SessionState.UNMAPPED
    server.say(Begin(None, 0, 1, 1), channel=5)
    assert server.last(SessionRequested).session is not session


def test_a_peer_ends_a_session_that_we_have_not_granted_yet() -> None:
    server = Server()
    server.open()
    server.answers = False
    server.say(Begin(None, 0, 1, 1), End())
    session = server.one(SessionEnded).session
    assert session.state is SessionState.END_RCVD
    session.end()
    server.take(0)
    assert [type(frame[1]) for frame in server.frames[1:]] == [Begin, End]
    assert server.connection.sessions == []


def test_a_late_grant_of_a_session_that_is_gone_does_nothing() -> None:
    server = Server()
    server.open()
    server.answers = False
    server.say(Begin(None, 0, 1, 1))
    session = server.one(SessionRequested).session
    server.connection.close()
    session.begin()
    session.end()
    server.take(0)
    assert [type(frame[1]).__name__ for frame in server.frames] == ["Open", "Close"]
    with pytest.raises(ValueError, match="attach in a session in state UNMAPPED"):
        session.attach_sender(Attach("x"))


def test_frames_on_a_session_that_we_ended_are_dropped_until_its_end() -> None:
    server = Server()
    link = server.publisher()
    session = link.session
    session.end()
    assert link.state is LinkState.DETACHED
    assert session.links == []
    server.take(0)
    server.forget()
    server.say(transfer(0), Attach("x", 77), Detach(5), Flow(0, 1, 0, 1), Disposition(SENDER, 0))
    assert server.events == []
    assert server.frames == []
    server.say(End())
    assert server.one(SessionEnded)


def test_links_are_gone_with_their_session_without_events() -> None:
    pair = Pair().open()
    ours, _ = pair.session()
    receiver, sender = pair.receiver(ours)
    receiver.flow(5)
    pair.pump()
    pair.server.forget()
    ours.end()
    pair.pump()
    assert [type(event) for event in pair.server.events] == [SessionEnded]
    assert receiver.is_gone()
    assert sender.is_gone()
    assert sender.credit == 0
    sender.detach()
    receiver.flow(3)
    receiver.settle(0, 0, Accepted())
    pair.pump()
    assert pair.server.frames[-1][1] == End()
    with pytest.raises(ValueError):
        sender.send(BODY)


def fails(server: Server, *said: Performative, channel: int = 0) -> str:
    """The condition with which the session was ended; the connection goes on."""
    server.say(*said, channel=channel)
    failed = server.one(SessionFailed)
    assert conditions(server) == [("End", failed.error.condition)]
    assert failed.session.state is SessionState.DISCARDING
    assert not server.of(ConnectionFailed)
    server.say(Begin(None, 0, 1, 1), channel=9)
    assert server.last(SessionRequested).session.channel == 1
    server.say(End(), channel=channel)
    assert failed.session.state is SessionState.UNMAPPED
    return failed.error.condition


@pytest.mark.parametrize(
    "said",
    [
        Flow(0, 10, 0, 10, handle=7, link_credit=1),
        Detach(7),
        transfer(0, handle=7),
    ],
)
def test_a_handle_that_is_not_attached(said: Performative) -> None:
    server = Server()
    server.publisher()
    assert fails(server, said) == "amqp:session:unattached-handle"


def test_a_handle_twice() -> None:
    server = Server()
    server.publisher()
    said = Attach("other", 0, SENDER, source=Source(), target=Target(), initial_delivery_count=0)
    assert fails(server, said) == "amqp:session:handle-in-use"


def test_a_handle_is_free_again_after_the_detach() -> None:
    server = Server()
    server.publisher()
    server.say(Detach(0, closed=True))
    link = server.publisher()
    assert link.state is LinkState.ATTACHED
    assert link.handle == 0


def test_more_links_than_the_peer_can_number() -> None:
    server = Server()
    server.begin(Begin(None, 0, 100, 100, handle_max=1))
    server.publisher(handle=0)
    server.subscriber(handle=1)
    said = Attach("c2", 2, RECEIVER, source=Source(), target=Target())
    assert fails(server, said) == "amqp:not-allowed"


def test_our_links_up_to_the_peers_handle_max() -> None:
    pair = Pair(Limits(), Limits(handle_max=1)).open()
    ours, _ = pair.session()
    first, _ = pair.receiver(ours, "a")
    pair.sender(ours, "a")
    with pytest.raises(ValueError, match="the peer takes no more"):
        pair.sender(ours, "b")
    first.detach()
    pair.pump()
    assert pair.sender(ours, "b")[0].handle == 0


@pytest.mark.parametrize(("first", "last"), [(5, 4), (0, 2**31), (2**32 - 1, 2**32 - 2)])
def test_a_range_that_ends_before_it_begins(first: int, last: int) -> None:
    server = Server()
    server.publisher()
    assert fails(server, Disposition(RECEIVER, first, last, True)) == "amqp:invalid-field"


@pytest.mark.parametrize("again", [3, 2, 0, 2**31 + 3])
def test_delivery_ids_that_do_not_go_up(again: int) -> None:
    server = Server()
    server.publisher(handle=0)
    server.publisher(handle=1)
    server.say(transfer(3), payload=BODY)
    assert fails(server, transfer(again, handle=1)) == "amqp:invalid-field"
    assert len(server.messages()) == 1


def test_gaps_in_delivery_ids_are_let_pass() -> None:
    server = Server()
    server.publisher()
    for delivery_id in (2**32 - 2, 2**32 - 1, 7, 1000):
        server.say(transfer(delivery_id), payload=BODY)
    assert [message[0] for message in server.messages()] == [2**32 - 2, 2**32 - 1, 7, 1000]


def test_the_owner_of_a_failed_session_hears_of_its_end_and_of_nothing_else() -> None:
    server = Server()
    server.publisher()
    server.subscriber(handle=1)
    server.forget()
    server.say(Detach(7), transfer(0), Flow(0, 10, 0, 10, handle=1, link_credit=1), End())
    assert [type(event) for event in server.events] == [SessionFailed, SessionEnded]


def test_a_begin_without_fields_for_limits_means_no_limit() -> None:
    server = Server()
    server.open(Open("peer"))
    server.say(Begin(None, 0, 1, 1))
    session = server.one(SessionRequested).session
    for number in range(300):
        session.attach_receiver(Attach(f"r{number}", source=Source(), target=Target()))
    assert [link.handle for link in session.links] == list(range(300))


def test_everything_at_once_without_waiting() -> None:
    """Open, begin, attach, credit and messages in one write, as impatient clients do."""
    server = Server()
    server.hear(b"AMQP\x00\x01\x00\x00")

    said = [
        Open("peer"),
        Begin(None, 0, 100, 100),
        Attach("r", 0, RECEIVER, source=Source(address="q"), target=Target()),
        Flow(None, 100, 0, 100, handle=0, link_credit=5),
        Attach("s", 1, SENDER, source=Source(), target=Target(address="q")),
    ]
    server.hear(b"".join([frame(0, one.encode()) for one in said]))
    links = [event.link for event in server.of(LinkRequested)]
    assert [link.state for link in links] == [LinkState.ATTACHED] * 2
    assert links[0].session.links == links
    assert isinstance(links[1], ReceiverLink)
    assert links[1].delivery_count == 0
