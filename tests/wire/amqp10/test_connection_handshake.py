"""Protocol headers, SASL, open and close, of both roles [amqp-1.0 §2.2, §2.4, §5.3]."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp10.connection import Connection
from tallymark.wire.amqp10.events import (
    CloseReceived,
    ConnectionFailed,
    Ended,
    OpenReceived,
    SaslReceived,
    SessionRequested,
)
from tallymark.wire.amqp10.frames import (
    AMQP_HEADER,
    SASL_HEADER,
    TLS_HEADER,
    frame,
    sasl_frame,
)
from tallymark.wire.amqp10.lifecycle import EARLY_MAX
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import Error
from tallymark.wire.amqp10.performatives import Begin, Close, Open
from tallymark.wire.amqp10.sasl import (
    AUTH,
    OK,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    plain_response,
)
from tallymark.wire.amqp10.states import State
from tests.support.amqp10_pair import CUTS, Cut, End, Pair, Server, conditions


def sasl_pair(cut: Cut, mechanisms: tuple[str, ...] = ("PLAIN", "ANONYMOUS")) -> Pair:
    pair = Pair(cut=cut)
    pair.server = End(Connection(Limits(), is_server=True, mechanisms=mechanisms, needs_sasl=True))
    pair.client.connection.start(sasl=True)
    return pair


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_plain_with_a_server_that_decides_later(cut: Cut) -> None:
    pair = sasl_pair(cut)
    pair.pump()
    offer = pair.client.one(SaslReceived).frame
    assert offer == SaslMechanisms(("PLAIN", "ANONYMOUS"))
    pair.client.connection.sasl_init("PLAIN", plain_response("u", "p"), "host")
    pair.pump()
    init = pair.server.one(SaslReceived).frame
    assert init == SaslInit("PLAIN", b"\0u\0p", "host")
    assert pair.server.connection.state is State.SASL_DECIDING
    pair.pump()  # nothing happens until the server has made up its mind
    assert len(pair.client.events) == 1
    pair.server.connection.sasl_outcome(OK)
    pair.pump()
    assert pair.client.last(SaslReceived).frame == SaslOutcome(OK)
    pair.client.connection.open(Open("me", hostname="vhost:/"))
    pair.pump()
    assert pair.server.one(OpenReceived).open.container_id == "me"
    assert pair.client.one(OpenReceived).open.container_id == "server"
    assert pair.client.connection.state is State.OPENED
    assert pair.server.connection.state is State.OPENED


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_challenges_and_responses(cut: Cut) -> None:
    pair = sasl_pair(cut, ("SCRAM-SHA-256",))
    pair.pump()
    pair.client.connection.sasl_init("SCRAM-SHA-256", b"n,,")
    pair.pump()
    for step in (b"1", b"2"):
        pair.server.connection.sasl_challenge(step)
        pair.pump()
        assert pair.client.last(SaslReceived).frame == SaslChallenge(step)
        pair.client.connection.sasl_response(step * 2)
        pair.pump()
        assert pair.server.last(SaslReceived).frame == SaslResponse(step * 2)
    pair.server.connection.sasl_outcome(OK, b"v=verified")
    pair.pump()
    assert pair.client.last(SaslReceived).frame == SaslOutcome(OK, b"v=verified")


def test_a_failed_login_ends_both_sides() -> None:
    pair = sasl_pair(CUTS["whole"])
    pair.pump()
    pair.client.connection.sasl_init("PLAIN", b"\0u\0wrong")
    pair.pump()
    pair.server.connection.sasl_outcome(AUTH)
    pair.server.read()
    assert not pair.server.one(Ended).clean
    pair.pump()
    assert pair.client.last(SaslReceived).frame == SaslOutcome(AUTH)
    assert "sasl-code 1" in pair.client.one(Ended).reason
    assert not pair.server.connection.take_output(0)


def test_a_client_that_is_ahead_of_the_outcome_is_read_later() -> None:
    server = Server()
    server.connection = Connection(Limits(), is_server=True, mechanisms=("PLAIN",), needs_sasl=True)
    server.answers = False
    early = frame(0, Open("me").encode()) + frame(0, Begin(None, 0, 1, 1).encode())
    server.hear(SASL_HEADER + sasl_frame(SaslInit("PLAIN", b"\0u\0p").encode()) + AMQP_HEADER)
    server.hear(early)
    assert len(server.events) == 1
    server.connection.sasl_outcome(OK)
    server.read()
    assert isinstance(server.events[-1], OpenReceived)
    assert len(server.events) == 2
    server.connection.open(Open("server"))
    server.read()
    assert isinstance(server.events[-1], SessionRequested)


def test_a_client_too_far_ahead_is_cut_off() -> None:
    connection = Connection(Limits(), is_server=True, mechanisms=("PLAIN",), needs_sasl=True)
    connection.receive_data(SASL_HEADER + sasl_frame(SaslInit("PLAIN").encode()), 0)
    assert isinstance(connection.next_event(), SaslReceived)
    assert connection.wants_data
    connection.receive_data(bytes(EARLY_MAX // 2), 0)
    assert not connection.wants_data
    connection.receive_data(bytes(EARLY_MAX // 2 + 1), 0)
    failed = connection.next_event()
    assert isinstance(failed, ConnectionFailed)
    assert failed.error.condition == "amqp:resource-limit-exceeded"
    assert isinstance(connection.next_event(), Ended)
    assert connection.next_event() is None
    connection.sasl_outcome(OK)  # the owner's answer comes too late, and that is no mistake


@pytest.mark.parametrize("header", [b"AMQP\0\0\x09\x01", b"GET / HT", TLS_HEADER, SASL_HEADER])
def test_another_protocol_header_is_answered_with_ours(header: bytes) -> None:
    connection = Connection(Limits(), is_server=True)
    connection.receive_data(header, 0)
    ended = connection.next_event()
    assert isinstance(ended, Ended)
    assert repr(header) in ended.reason
    assert connection.take_output(0) == [AMQP_HEADER]
    assert connection.next_deadline() is None


@pytest.mark.parametrize("header", [AMQP_HEADER, TLS_HEADER, b"AMQP\x03\x01\x01\x00"])
def test_a_server_that_wants_sasl_says_so(header: bytes) -> None:
    connection = Connection(Limits(), is_server=True, mechanisms=("PLAIN",), needs_sasl=True)
    connection.receive_data(header, 0)
    assert isinstance(connection.next_event(), Ended)
    assert connection.take_output(0) == [SASL_HEADER]


def test_sasl_may_be_left_out_where_the_server_lets() -> None:
    connection = Connection(Limits(), is_server=True, mechanisms=("PLAIN",))
    connection.receive_data(AMQP_HEADER + frame(0, Open("me").encode()), 0)
    assert isinstance(connection.next_event(), OpenReceived)


def test_behind_sasl_only_the_plain_header_may_come() -> None:
    connection = Connection(Limits(), is_server=True, mechanisms=("PLAIN",))
    connection.receive_data(SASL_HEADER + sasl_frame(SaslInit("PLAIN").encode()), 0)
    connection.next_event()
    connection.sasl_outcome(OK)
    connection.take_output(0)
    connection.receive_data(SASL_HEADER, 0)
    assert isinstance(connection.next_event(), Ended)
    assert connection.take_output(0) == [AMQP_HEADER]


@pytest.mark.parametrize(("sasl", "wanted"), [(True, SASL_HEADER), (False, AMQP_HEADER)])
def test_a_client_gives_up_on_another_header(sasl: bool, wanted: bytes) -> None:
    connection = Connection(Limits(), is_server=False)
    connection.start(sasl)
    assert connection.take_output(0) == [wanted]
    connection.receive_data(TLS_HEADER, 0)
    ended = connection.next_event()
    assert isinstance(ended, Ended)
    assert repr(wanted) in ended.reason
    assert connection.take_output(0) == []


@pytest.mark.parametrize(
    "first",
    [
        sasl_frame(SaslResponse(b"").encode()),
        sasl_frame(SaslMechanisms(("PLAIN",)).encode()),
        sasl_frame(b""),
        frame(0, Open("me").encode()),
        sasl_frame(SaslInit("PLAIN").encode() + b"\0"),
        sasl_frame(SaslInit("PLAIN").encode())[:-1] + b"\xff",
    ],
)
def test_what_does_not_belong_into_sasl_ends_the_connection(first: bytes) -> None:
    connection = Connection(Limits(), is_server=True, mechanisms=("PLAIN",))
    connection.receive_data(SASL_HEADER, 0)
    assert connection.next_event() is None
    connection.take_output(0)
    connection.receive_data(first, 0)
    assert isinstance(connection.next_event(), ConnectionFailed)
    assert isinstance(connection.next_event(), Ended)
    assert connection.take_output(0) == []  # nothing may be said before open


# Open and close


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_limits_are_exchanged_in_open(cut: Cut) -> None:
    pair = Pair(
        Limits(max_frame_size=1000, channel_max=7, idle_time_out_ms=0),
        Limits(max_frame_size=5000, channel_max=300, idle_time_out_ms=5000),
        cut,
    ).open()
    said = pair.client.sent(Open)[0]
    assert (said.max_frame_size, said.channel_max, said.idle_time_out) == (1000, 7, None)
    said = pair.server.sent(Open)[0]
    assert (said.max_frame_size, said.channel_max, said.idle_time_out) == (5000, 300, 5000)
    for end in (pair.client, pair.server):
        assert end.connection.max_frame_size == 1000
        assert end.connection.channel_max == 7


def test_all_fields_of_open_reach_the_other_side() -> None:
    pair = Pair()
    pair.client.connection.start(sasl=False)
    said = Open(
        "me",
        hostname="vhost:a",
        outgoing_locales=("en-US",),
        incoming_locales=("de-DE",),
        offered_capabilities=("a", "b"),
        desired_capabilities=("c",),
        properties={"product": "test"},
    )
    pair.client.connection.open(said)
    pair.pump()
    assert pair.server.one(OpenReceived).open == said
    assert pair.server.connection.remote_open == said


def test_open_may_be_sent_behind_the_header_without_waiting() -> None:
    connection = Connection(Limits(), is_server=False)
    connection.start(sasl=False)
    connection.open(Open("me"))
    assert connection.state is State.OPEN_PIPE
    connection.receive_data(AMQP_HEADER, 0)
    connection.next_event()
    assert connection.state is State.OPEN_SENT
    connection.receive_data(frame(0, Open("server").encode()), 0)
    assert isinstance(connection.next_event(), OpenReceived)
    assert connection.state is State.OPENED


@pytest.mark.parametrize("closer", ["client", "server"])
@pytest.mark.parametrize("error", [None, Error("amqp:connection:forced", "bye")])
def test_either_side_closes(closer: str, error: Error | None) -> None:
    pair = Pair().open()
    first, second = pair.client, pair.server
    if closer == "server":
        first, second = second, first
    session, theirs = pair.session()
    first.connection.close(error)
    assert first.connection.state is (State.CLOSE_SENT if error is None else State.DISCARDING)
    pair.pump()
    assert second.one(CloseReceived).error == error
    assert first.one(Ended).clean
    assert second.one(Ended).clean
    assert not first.of(CloseReceived)
    assert pair.client.connection.sessions == []
    session.end()  # gone with the connection: does nothing
    theirs.end()
    pair.client.connection.close()
    assert pair.client.connection.take_output(0) == []


def test_sessions_are_gone_when_the_owner_hears_of_the_close() -> None:
    server = Server()
    link = server.publisher()
    server.answers = False
    server.say(Close(Error("amqp:connection:forced")))
    assert isinstance(server.events[-1], CloseReceived)
    assert server.connection.sessions == []
    assert link.is_gone()
    assert server.connection.next_deadline() == 30_000
    server.connection.close()
    server.read()
    assert server.one(Ended).clean


def test_closing_twice_is_closing_once() -> None:
    server = Server().open()
    server.connection.close()
    server.connection.close(Error("amqp:internal-error"))
    server.read()
    server.take(0)
    assert server.sent(Close) == [Close()]
    assert not server.of(Ended)


def test_both_sides_close_at_once() -> None:
    pair = Pair().open()
    pair.client.connection.close()
    pair.server.connection.close(Error("amqp:connection:forced"))
    pair.pump()
    assert pair.client.one(Ended).clean
    assert pair.server.one(Ended).clean
    assert pair.client.one(Ended).reason == "closed: amqp:connection:forced"


def test_a_server_refuses_open_with_open_and_close() -> None:
    server = Server()
    server.answers = False
    server.hear(AMQP_HEADER)
    server.say(Open("me", hostname="nowhere"))
    server.connection.close(Error("amqp:not-found", "no virtual host 'nowhere'"))
    server.take(0)
    assert [type(frame[1]) for frame in server.frames] == [Open, Close]
    assert conditions(server) == [("Close", "amqp:not-found")]
    server.say(Close())
    assert server.one(Ended).clean


def test_closing_before_open_says_nothing() -> None:
    connection = Connection(Limits(), is_server=True, mechanisms=("PLAIN",))
    connection.close()
    assert isinstance(connection.next_event(), Ended)
    assert connection.take_output(0) == []


def test_behind_our_close_all_but_the_peers_is_dropped() -> None:
    server = Server()
    server.begin()
    server.connection.close()
    server.take(0)
    server.forget()
    server.say(Begin(None, 0, 1, 1), channel=3)
    server.say(Begin(77, 0, 1, 1), channel=4)
    server.hear(b"\0\0\0\x09\x02\x09\0\0x")
    assert server.events == []
    assert server.frames == []
    server.say(Close())
    assert server.one(Ended).clean


def test_end_of_file_without_a_close_is_not_clean() -> None:
    server = Server().open()
    server.connection.receive_eof()
    server.read()
    assert not server.one(Ended).clean
    assert server.connection.next_event() is None


def test_a_broken_transport_ends_it_at_once() -> None:
    server = Server().open()
    server.connection.receive_broken("connection reset")
    server.read()
    assert server.one(Ended).reason == "connection reset"
    server.connection.receive_broken("again")
    server.connection.close()
    server.connection.tick(99_999)
    server.read()
    assert len(server.of(Ended)) == 1


def test_a_peer_that_does_not_answer_close_is_left_alone_after_a_while() -> None:
    server = Server().open()
    server.connection.close()
    server.connection.take_output(0)
    deadline = server.connection.next_deadline()
    assert deadline == 30_000
    server.connection.tick(deadline - 1)
    assert server.connection.next_event() is None
    server.connection.tick(deadline)
    server.read()
    assert not server.one(Ended).clean


def test_an_owner_out_of_turn_is_told() -> None:
    connection = Connection(Limits(), is_server=False)
    with pytest.raises(ValueError, match="open in state START"):
        connection.open(Open("me"))
    with pytest.raises(ValueError, match="sasl-init in state START"):
        connection.sasl_init("PLAIN")
    with pytest.raises(ValueError, match="begin in state START"):
        connection.begin()
    connection.start(sasl=False)
    with pytest.raises(ValueError, match="protocol header in state HDR SENT"):
        connection.start(sasl=False)
