"""Frame sizes, channels, time-outs: what a connection bears and what it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tallymark.wire.amqp10.connection import Connection
from tallymark.wire.amqp10.events import (
    ConnectionFailed,
    Ended,
    LinkRequested,
    OpenReceived,
    SessionRequested,
)
from tallymark.wire.amqp10.frames import AMQP_HEADER, HEARTBEAT, frame
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import Error, Rejected
from tallymark.wire.amqp10.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Source,
    Target,
    Transfer,
)
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.states import State
from tests.support.amqp10_pair import BODY, CUTS, Cut, Pair, Server, conditions, transfer
from tests.support.growth import assert_linear


def failure(server: Server) -> str:
    """The condition of the one fatal error, which was also said in a close."""
    condition = server.one(ConnectionFailed).error.condition
    assert conditions(server) == [("Close", condition)]
    assert server.connection.state is State.DISCARDING
    assert server.connection.sessions == []
    return condition


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize(
    "bad",
    [
        b"\0\0\0\x07\x02\0\0\0",  # smaller than its own head
        b"\0\0\0\x08\x01\0\0\0",  # a data offset within the head
        b"\0\0\0\x08\x03\0\0\0",  # a data offset behind the frame
        b"\0\x02\0\x01\x02\0\0\0",  # a frame of 131,073 bytes
    ],
)
def test_a_frame_that_cannot_be_is_a_framing_error(cut: Cut, bad: bytes) -> None:
    server = Server(cut=cut).open()
    server.hear(bad + frame(0, Close().encode()))
    assert failure(server) == "amqp:connection:framing-error"
    assert server.connection.next_deadline() == 3_000  # the peer's close would not be seen
    server.connection.tick(3_000)
    server.read()
    assert not server.one(Ended).clean


def test_a_frame_of_exactly_the_limit_is_read() -> None:
    server = Server(Limits(max_frame_size=512))
    link = server.publisher()
    front = transfer(0).encode()
    server.say(transfer(0), payload=bytes(512 - 8 - len(front)))
    assert len(server.messages()[0][2]) == 512 - 8 - len(front)
    server.say(transfer(1), payload=bytes(512 - 8 - len(front) + 1))
    assert failure(server) == "amqp:connection:framing-error"
    assert link.is_gone()


def test_before_open_frames_may_be_larger_than_512_but_not_much() -> None:
    server = Server(Limits(max_frame_size=512))
    server.hear(AMQP_HEADER)
    server.say(Open("x" * 4000))
    assert server.one(OpenReceived)
    server = Server(Limits(max_frame_size=512))
    server.hear(AMQP_HEADER)
    server.say(Open("x" * 9000))
    assert server.one(ConnectionFailed).error.condition == "amqp:connection:framing-error"
    assert [type(frame[1]) for frame in server.frames] == [Open, Close]  # a close needs an open


def test_extended_headers_are_skipped() -> None:
    server = Server().open()
    body = Begin(None, 0, 1, 1).encode()
    size = 8 + 4 + len(body)
    server.hear(size.to_bytes(4, "big") + b"\x03\0\0\0" + b"more" + body)
    assert server.one(SessionRequested)


@pytest.mark.parametrize(
    ("said", "channel", "condition"),
    [
        (Open("again"), 0, "amqp:illegal-state"),
        (Begin(None, 0, 1, 1), 0, "amqp:illegal-state"),
        (Begin(None, 0, 1, 1), 256, "amqp:connection:framing-error"),
        (Begin(9, 0, 1, 1), 1, "amqp:not-allowed"),
        (Begin(0, 0, 1, 1), 1, "amqp:not-allowed"),
        (End(), 1, "amqp:not-allowed"),
        (Attach("x", 0), 1, "amqp:not-allowed"),
        (Detach(0), 1, "amqp:not-allowed"),
        (Flow(0, 1, 0, 1), 1, "amqp:not-allowed"),
        (Transfer(0), 1, "amqp:not-allowed"),
        (Attach("x", 256), 0, "amqp:connection:framing-error"),
    ],
)
def test_what_does_not_belong_there_ends_the_connection(
    said: Performative, channel: int, condition: str
) -> None:
    server = Server()
    server.begin()
    server.say(said, channel=channel)
    assert failure(server) == condition


@pytest.mark.parametrize("said", [Begin(None, 0, 1, 1), Attach("x", 0), Close(), Transfer(0)])
def test_before_open_there_is_nothing_else(said: Performative) -> None:
    server = Server()
    server.hear(AMQP_HEADER)
    server.say(said)
    assert failure(server) == "amqp:illegal-state"
    assert [type(frame[1]) for frame in server.frames] == [Open, Close]


@pytest.mark.parametrize(
    ("frames", "condition"),
    [
        (frame(0, b"\0\x53\x99\x45"), "amqp:decode-error"),  # unknown performative
        (frame(0, b"\0\x53\x10\x45"), "amqp:decode-error"),  # open without container-id
        (frame(0, Flow(0, 1, 0, 1).encode(), b"payload"), "amqp:decode-error"),
        (b"\0\0\0\x0c\x02\x01\0\0\0\x53\x18\x45", "amqp:connection:framing-error"),  # SASL frame
        (b"\0\0\0\x0c\x02\x07\0\0\0\x53\x18\x45", "amqp:connection:framing-error"),  # frame type 7
    ],
)
def test_malformed_frames(frames: bytes, condition: str) -> None:
    server = Server()
    server.begin()
    server.hear(frames)
    assert failure(server) == condition
    server.say(Close())  # where frames begin is still known
    assert server.one(Ended).clean


@pytest.mark.parametrize(("size", "told"), [(512, None), (600, {"product": "x" * 460})])
def test_an_open_says_less_of_us_to_a_peer_whose_frames_are_small(size: int, told: object) -> None:
    """As on a machine with a long name, which is there three times."""
    server = Server()
    server.answers = False
    server.open(Open("peer", max_frame_size=size))
    server.connection.open(Open("server", properties={"product": "x" * 460}))
    server.take(0)
    [said] = server.sent(Open)
    assert (said.container_id, said.properties) == ("server", told)
    assert largest_frame(server) <= size
    assert server.connection.state is State.OPENED


def test_sessions_up_to_channel_max_of_both() -> None:
    pair = Pair(Limits(channel_max=5), Limits(channel_max=2)).open()
    sessions = [pair.session()[0] for _ in range(3)]
    assert [session.channel for session in sessions] == [0, 1, 2]
    with pytest.raises(ValueError, match="channel-max is 2"):
        pair.client.connection.begin()
    sessions[1].end()
    pair.pump()
    assert pair.session()[0].channel == 1  # the lowest that is free


def test_more_sessions_than_the_peer_itself_can_number() -> None:
    server = Server()
    server.open(Open("peer", channel_max=0))
    server.say(Begin(None, 0, 1, 1), channel=0)
    server.say(Begin(None, 0, 1, 1), channel=1)
    assert failure(server) == "amqp:not-allowed"


def test_a_frame_the_peer_cannot_take_closes_the_connection() -> None:
    server = Server()
    server.open(Open("peer", max_frame_size=512))
    server.say(Begin(None, 0, 1, 1))
    session = server.one(SessionRequested).session
    session.attach_sender(Attach("x" * 600, source=Source(), target=Target()))
    server.take(0)
    server.read()
    assert failure(server) == "amqp:frame-size-too-small"


def narrow() -> Server:
    """A server with a session, whose peer takes frames of 512 bytes, and which answers nothing more
    by itself."""
    server = Server()
    server.open(Open("peer", max_frame_size=512))
    server.say(Begin(None, 0, 1000, 1000))
    server.answers = False
    server.forget()
    return server


def largest_frame(server: Server) -> int:
    return max(len(frame(0, said.encode())) for _, said, _ in server.frames)


TEXTS = {
    "ASCII": "x" * 1000, "two bytes": "Ã©" * 500, "four bytes": "\N{GRINNING FACE}" * 200,
    "no UTF-8": "\ud800" * 600,
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("of", ["connection", "session", "link", "delivery"])
def test_an_error_whose_text_is_too_long_is_cut_to_fit(of: str, text: str) -> None:
    """The smallest scope is told of it, and the connection goes on."""
    server = narrow()
    error = Error("amqp:internal-error", text)
    if of == "connection":
        server.connection.close(error)
    elif of == "session":
        server.connection.sessions[0].end(error)
    else:
        server.say(Attach("p", 0, SENDER, source=Source(), target=Target(address="q"),
                          initial_delivery_count=0))  # fmt: skip
        link = server.one(LinkRequested).link
        if of == "link":
            link.refuse(error)
        else:
            assert isinstance(link, ReceiverLink)
            link.answer(Attach(source=Source(), target=Target(address="q")))
            link.flow(1)
            server.say(transfer(0), payload=BODY)
            link.settle(0, 0, Rejected(error))
    server.take(0)
    if of == "delivery":
        state = server.sent(Disposition)[-1].state
        assert isinstance(state, Rejected)
        told = state.error
    else:
        kinds: dict[str, type[Close | End | Detach]] = {
            "connection": Close, "session": End, "link": Detach,
        }  # fmt: skip
        told = server.sent(kinds[of])[-1].error
    assert told is not None
    assert told.condition == "amqp:internal-error"
    cut = told.description or ""
    assert cut.endswith("...")
    assert text.replace("\ud800", "?").startswith(cut[:-3])
    assert 495 <= largest_frame(server) <= 512
    assert server.of(ConnectionFailed) == []


@pytest.mark.parametrize("role", [SENDER, RECEIVER])
def test_a_link_that_the_owner_is_asked_for_can_be_refused(role: bool) -> None:
    """The answer has the link's name. Where the peer takes no answer it is told so, and the owner
    is not asked, who would make a consumer or a queue for nobody."""
    asked = []
    for size in range(430, 512):
        server = narrow()
        server.say(Attach("n" * size, 0, role, source=Source(), target=Target(),
                          initial_delivery_count=0))  # fmt: skip
        for requested in server.of(LinkRequested):
            asked.append(size)
            requested.link.refuse(Error("amqp:not-found"))
            server.take(0)
            server.read()
        if asked and asked[-1] == size:
            assert conditions(server) == [("Detach", "amqp:not-found")]
        else:
            error = server.one(ConnectionFailed).error
            assert failure(server) == "amqp:frame-size-too-small"
            assert f"a link with a name of {size} bytes" in (error.description or "")
        assert largest_frame(server) <= 512
    assert asked == list(range(430, 430 + len(asked)))
    assert 0 < len(asked) < 82


@pytest.mark.parametrize(
    ("said", "condition"),
    [
        (Open("peer", max_frame_size=511), "amqp:invalid-field"),
        (Open("peer", idle_time_out=99), "amqp:not-allowed"),
    ],
)
def test_an_open_that_cannot_be_agreed_to(said: Open, condition: str) -> None:
    server = Server().open(said)
    assert failure(server) == condition


# Time


def test_empty_frames_at_half_the_time_the_peer_bears() -> None:
    server = Server(Limits(idle_time_out_ms=0))
    server.open(Open("peer", idle_time_out=10_000))
    connection = server.connection
    assert connection.next_deadline() == 5_000
    connection.tick(4_999)
    assert connection.take_output(4_999) == []
    connection.tick(5_000)
    assert connection.take_output(5_000) == [HEARTBEAT]
    assert connection.next_deadline() == 10_000
    connection.begin()
    connection.take_output(8_000)  # anything sent puts it off
    connection.tick(10_000)
    assert connection.take_output(10_000) == []
    assert connection.next_deadline() == 13_000


def test_a_silent_peer_is_closed_after_twice_the_announced_time() -> None:
    server = Server(Limits(idle_time_out_ms=10_000)).open()
    assert server.sent(Open)[0].idle_time_out == 10_000
    connection = server.connection
    assert connection.next_deadline() == 20_000
    server.now_ms = 1_000
    server.hear(HEARTBEAT)  # any byte counts
    assert server.events[1:] == []
    connection.tick(20_999)
    assert connection.next_event() is None
    connection.tick(21_000)
    server.read()
    server.take(21_000)
    assert failure(server) == "amqp:resource-limit-exceeded"
    assert connection.next_deadline() == 24_000
    connection.tick(24_000)
    server.read()
    assert not server.one(Ended).clean


def test_no_time_outs_where_nobody_asked_for_one() -> None:
    server = Server(Limits(idle_time_out_ms=0)).open(Open("peer", idle_time_out=0))
    assert server.connection.next_deadline() is None


def test_the_handshake_has_its_time() -> None:
    connection = Connection(Limits(handshake_timeout_ms=500), is_server=True)
    assert connection.next_deadline() == 0
    connection.tick(100)
    assert connection.next_deadline() == 600
    connection.receive_data(AMQP_HEADER, 599)
    assert connection.next_event() is None
    connection.tick(600)
    ended = connection.next_event()
    assert isinstance(ended, Ended)
    assert "500 ms" in ended.reason
    connection.open(Open("too late"))
    connection.close()
    assert connection.take_output(600) == [AMQP_HEADER]


def test_behind_a_fatal_error_there_is_nothing_but_the_end() -> None:
    server = Server()
    server.publisher()
    server.hear(b"\0\0\0\x07\x02\0\0\0" + frame(0, transfer(0).encode(), b"x"))
    server.say(transfer(0), payload=b"x")
    server.say(Close())
    assert [type(event).__name__ for event in server.events][-1] == "ConnectionFailed"
    assert server.messages() == []


def test_links_of_a_session_are_forgotten_in_as_many_steps_as_there_are() -> None:
    def prepare(size: int) -> Callable[[], object]:
        pair = Pair(Limits(handle_max=size), Limits(handle_max=size)).open()
        session, _ = pair.session()
        for number in range(size):
            session.attach_sender(Attach(name=str(number), source=Source(), target=Target()))
        links = session.links
        assert len(links) == size

        def forget() -> None:
            for link in reversed(links):
                session.forget_link(link)
            assert not session.links

        return forget

    assert_linear(prepare, 250)
