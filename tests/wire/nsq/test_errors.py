"""Malformed commands, sizes and states: nsqd's texts to the letter, then close [NQ-5, NQ-A4]."""

from __future__ import annotations

from struct import pack

import pytest

from tallymark.wire.nsq.commands import MAGIC, auth, dpub, fin, identify, mpub, pub, req, sized
from tallymark.wire.nsq.errors import (
    FORGIVEN,
    NOT_IN_FLIGHT,
    NOT_OWNER,
    WireError,
    auth_failed,
    go_quoted,
    no_authorizations,
    publish_failed,
    settle_failed,
    sub_raced,
    too_many_consumers,
    unauthorized,
)
from tallymark.wire.nsq.events import PeerClosed, ProtocolFailure
from tallymark.wire.nsq.frames import ERROR
from tallymark.wire.nsq.limits import Limits
from tallymark.wire.nsq.names import is_ephemeral, is_valid_name
from tallymark.wire.nsq.states import State
from tests.support.nsq import connected, failures, subscribed

LIMITS = Limits(max_msg_size=100, max_body_size=1000, max_rdy_count=50)
ID = b"0123456789abcdef"


def int32(number: int) -> bytes:
    return pack(">i", number)


# What a client sends in state init, and what it is told before the connection closes.
FATAL_AT_FIRST = [
    # the cases of NQ-A4
    (pub("t", b"x" * 105), b"E_BAD_MESSAGE PUB message too big 105 > 100"),
    (pub("t", b""), b"E_BAD_MESSAGE PUB invalid message body size 0"),
    (b"MPUB t\n" + int32(1148), b"E_BAD_BODY MPUB body too big 1148 > 1000"),
    (
        mpub("t", [b"a"] * 5 + [b""]),
        b"E_BAD_MESSAGE MPUB invalid message(5) body size 0",
    ),
    (dpub("t", 3_600_100, b"x"), b"E_INVALID DPUB timeout 3600100 out of range 0-3600000"),
    (b"ASDF\n", b"E_INVALID invalid command ASDF"),
    # command lines
    (b"\n", b"E_INVALID invalid command "),
    (b" PUB t\n", b"E_INVALID invalid command "),
    (b"pub t\n", b"E_INVALID invalid command pub"),
    (b"PUBx t\n", b"E_INVALID invalid command PUBx"),
    (b"\xff\xfe\r\n", b"E_INVALID invalid command \xff\xfe"),
    (b"PUB\n", b"E_INVALID PUB insufficient number of parameters"),
    (b"MPUB\n", b"E_INVALID MPUB insufficient number of parameters"),
    (b"DPUB t\n", b"E_INVALID DPUB insufficient number of parameters"),
    (b"SUB t\n", b"E_INVALID SUB insufficient number of parameters"),
    # names
    (b"PUB \n", b'E_BAD_TOPIC PUB topic name "" is not valid'),
    (b"PUB  t\n", b'E_BAD_TOPIC PUB topic name "" is not valid'),
    (b"PUB a$b\n", b'E_BAD_TOPIC PUB topic name "a$b" is not valid'),
    (b'PUB "\\\xff\x01\n', b'E_BAD_TOPIC PUB topic name "\\"\\\\\\xff\\x01" is not valid'),
    (b"PUB #ephemeral\n", b'E_BAD_TOPIC PUB topic name "#ephemeral" is not valid'),
    (b"DPUB a* 1\n", b'E_BAD_TOPIC DPUB topic name "a*" is not valid'),
    (b"MPUB a*\n", b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a*" is not valid'),
    (b"SUB a* c\n", b'E_BAD_TOPIC SUB topic name "a*" is not valid'),
    (b"SUB a b*\n", b'E_BAD_CHANNEL SUB channel name "b*" is not valid'),
    # sizes and numbers
    (b"PUB t\n" + int32(-1), b"E_BAD_MESSAGE PUB invalid message body size -1"),
    (
        b"PUB t\n" + int32(2**31 - 1),
        b"E_BAD_MESSAGE PUB message too big 2147483647 > 100",
    ),
    (dpub("t", 1, b""), b"E_BAD_MESSAGE DPUB invalid message body size 0"),
    (dpub("t", 1, b"x" * 101), b"E_BAD_MESSAGE DPUB message too big 101 > 100"),
    (b"DPUB t -1\n", b"E_INVALID DPUB could not parse timeout -1"),
    (b"DPUB t 1s\n", b"E_INVALID DPUB could not parse timeout 1s"),
    (
        b"DPUB t 00018446744073709551617\n",
        b"E_INVALID DPUB timeout 18446744073709551617 out of range 0-3600000",
    ),
    (b"DPUB t " + b"9" * 9000 + b"\n", None),
    (b"MPUB t\n" + int32(0), b"E_BAD_BODY MPUB invalid body size 0"),
    (b"MPUB t\n" + int32(-5), b"E_BAD_BODY MPUB invalid body size -5"),
    (b"MPUB t\n" + sized(b"abc"), b"E_BAD_BODY MPUB failed to read message count"),
    (b"MPUB t\n" + sized(int32(0)), b"E_BAD_BODY MPUB invalid message count 0"),
    (b"MPUB t\n" + sized(int32(-1)), b"E_BAD_BODY MPUB invalid message count -1"),
    (b"MPUB t\n" + sized(int32(200)), b"E_BAD_BODY MPUB invalid message count 200"),
    (
        b"MPUB t\n" + sized(int32(199)),
        b"E_BAD_MESSAGE MPUB failed to read message(0) body size",
    ),
    (
        b"MPUB t\n" + sized(int32(2) + sized(b"a") + b"\0"),
        b"E_BAD_MESSAGE MPUB failed to read message(1) body size",
    ),
    (
        b"MPUB t\n" + sized(int32(2) + sized(b"a") + int32(-7)),
        b"E_BAD_MESSAGE MPUB invalid message(1) body size -7",
    ),
    (mpub("t", [b"a", b"x" * 101]), b"E_BAD_MESSAGE MPUB message too big 101 > 100"),
    (
        b"MPUB t\n" + sized(int32(1) + int32(5) + b"four"),
        b"E_BAD_MESSAGE MPUB failed to read message body",
    ),
    (
        b"MPUB t\n" + sized(int32(1) + sized(b"a") + b"more"),
        b"E_BAD_BODY MPUB body size 13, but its messages take 9",
    ),
    (
        b"MPUB t\n" + sized(int32(1) + sized(b"a") + sized(b"b")),
        b"E_BAD_BODY MPUB body size 14, but its messages take 9",
    ),
    # states
    (b"RDY 1\n", b"E_INVALID cannot RDY in current state"),
    (b"FIN " + ID + b"\n", b"E_INVALID cannot FIN in current state"),
    (b"REQ " + ID + b" 0\n", b"E_INVALID cannot REQ in current state"),
    (b"TOUCH " + ID + b"\n", b"E_INVALID cannot TOUCH in current state"),
    (b"CLS\n", b"E_INVALID cannot CLS in current state"),
    # IDENTIFY and AUTH
    (b"IDENTIFY\n" + int32(1001), b"E_BAD_BODY IDENTIFY body too big 1001 > 1000"),
    (b"IDENTIFY\n" + int32(0), b"E_BAD_BODY IDENTIFY invalid body size 0"),
    (identify(b"{"), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    (b"AUTH x\n", b"E_INVALID AUTH invalid number of parameters"),
    (b"AUTH\n" + int32(1001), b"E_BAD_BODY AUTH body too big 1001 > 1000"),
    (b"AUTH\n" + int32(-1), b"E_BAD_BODY AUTH invalid body size -1"),
    (auth(b"secret"), b"E_AUTH_DISABLED AUTH disabled"),
]

# The same after SUB.
FATAL_WHEN_SUBSCRIBED = [
    (b"RDY 51\n", b"E_INVALID RDY count 51 out of range 0-50"),
    (b"RDY -1\n", b"E_INVALID RDY could not parse count -1"),
    (
        b"RDY 18446744073709551617\n",
        b"E_INVALID RDY count 18446744073709551617 out of range 0-50",
    ),
    (b"SUB t c\n", b"E_INVALID cannot SUB in current state"),
    (identify(b"{}"), b"E_INVALID cannot IDENTIFY in current state"),
    (auth(b"s"), b"E_INVALID cannot AUTH in current state"),
    (b"FIN\n", b"E_INVALID FIN insufficient number of params"),
    (b"FIN 0123\n", b"E_INVALID invalid message ID"),
    (b"FIN " + ID + b"0\n", b"E_INVALID invalid message ID"),
    (b"TOUCH\n", b"E_INVALID TOUCH insufficient number of params"),
    (b"TOUCH x\n", b"E_INVALID invalid message ID"),
    (b"REQ " + ID + b"\n", b"E_INVALID REQ insufficient number of params"),
    (b"REQ x 0\n", b"E_INVALID invalid message ID"),
    (b"REQ " + ID + b" -1\n", b"E_INVALID REQ could not parse timeout -1"),  # NQ-A3
    (b"REQ ################ ten\n", b"E_INVALID REQ could not parse timeout ten"),
]

# Errors that the client survives.
FORGIVEN_COMMANDS = [
    (
        b"FIN 0123456789ABCDEF\n",
        b"E_FIN_FAILED FIN 0123456789ABCDEF failed ID not in flight",
    ),
    (
        b"FIN \xff###############\r\n",
        b"E_FIN_FAILED FIN \xff############### failed ID not in flight",
    ),
    (
        b"TOUCH ################\n",
        b"E_TOUCH_FAILED TOUCH ################ failed ID not in flight",
    ),
    (
        b"REQ ################ 5\n",
        b"E_REQ_FAILED REQ ################ failed ID not in flight",
    ),
]


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize(("raw", "text"), FATAL_AT_FIRST)
def test_nq_a4_fatal_errors(raw: bytes, text: bytes | None, in_pieces: bool) -> None:
    check_fatal(raw, text, in_pieces, after_sub=False)


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize(("raw", "text"), FATAL_WHEN_SUBSCRIBED)
def test_nq_a4_fatal_errors_of_subscribers(raw: bytes, text: bytes, in_pieces: bool) -> None:
    check_fatal(raw, text, in_pieces, after_sub=True)


def check_fatal(raw: bytes, text: bytes | None, in_pieces: bool, after_sub: bool) -> None:
    server = subscribed(LIMITS) if after_sub else connected(LIMITS)
    before = len(server.events)
    server.feed(*([raw[i : i + 1] for i in range(len(raw))] if in_pieces else [raw]))
    server.feed(b"PUB t\n")
    events = server.events[before:]
    assert [type(event) for event in events] == [ProtocolFailure, PeerClosed]
    ((kind, data),) = server.sent()
    assert kind == ERROR
    if text is None:
        assert data.startswith(b"E_INVALID ")
    else:
        assert data == text
    assert server.connection.state is State.CLOSED


@pytest.mark.parametrize(("raw", "text"), FORGIVEN_COMMANDS)
def test_nq_5_the_connection_survives(raw: bytes, text: bytes) -> None:
    server = subscribed(LIMITS)
    (failure,) = failures(server.feed(raw))
    assert not failure.is_fatal
    assert server.sent() == [(ERROR, text)]
    server.feed(b"RDY 5\n" + fin(7))
    assert len(server.events) == 4
    assert server.connection.state is State.SUBSCRIBED


def test_nq_5_only_three_codes_are_forgiven() -> None:
    assert {"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"} == FORGIVEN
    assert WireError("E_PUB_FAILED", "").is_fatal
    assert not settle_failed("REQ", 1, NOT_IN_FLIGHT).is_fatal


def test_nq_1_another_protocol() -> None:
    server = connected()
    assert server.feed() == []
    other = type(server)()
    events = other.feed(b"  V1PUB t\n")
    assert [type(event) for event in events] == [ProtocolFailure, PeerClosed]
    assert other.sent() == [(ERROR, b"E_BAD_PROTOCOL")]


def test_nq_a3_a_delay_of_req_is_clamped() -> None:
    server = subscribed()
    (event,) = server.feed(req(1, 2 * 3_600_000))
    assert event.delay_ms == 3_600_000  # type: ignore[attr-defined]


def test_an_error_waits_for_the_answers_before_it() -> None:
    """Nothing is read behind a fatal error, and its frame leaves when the owner says so."""
    server = connected(LIMITS)
    connection = server.connection
    connection.receive_data(pub("t", b"x") + b"ASDF\n" + pub("t", b"y"), 0)
    assert connection.next_event() is not None
    failure = connection.next_event()
    assert isinstance(failure, ProtocolFailure)
    assert connection.next_event() is None
    assert connection.line.out == []
    connection.send_ok()
    connection.send_error(failure.error)
    connection.send_ok()
    assert server.sent() == [(0, b"OK"), (1, b"E_INVALID invalid command ASDF")]
    assert isinstance(connection.next_event(), PeerClosed)
    assert connection.next_event() is None


def test_an_error_that_the_owner_found() -> None:
    server = connected()
    connection = server.connection
    connection.receive_data(pub("t", b"x") + sub_and_more(), 0)
    assert connection.next_event() is not None
    connection.refuse()
    assert connection.next_event() is None
    connection.send_error(publish_failed("PUB", "exiting"))
    assert server.sent() == [(1, b"E_PUB_FAILED PUB failed exiting")]
    closed = connection.next_event()
    assert isinstance(closed, PeerClosed)
    assert closed.reason == "E_PUB_FAILED PUB failed exiting"
    assert not closed.clean


def sub_and_more() -> bytes:
    return b"SUB t c\n" + pub("t", b"y")


def test_nq_5_texts_of_what_only_the_owner_knows() -> None:
    number = 0x0DEC_AFC0_FFEE
    finished = settle_failed("FIN", number, NOT_IN_FLIGHT)
    assert finished.payload == b"E_FIN_FAILED FIN 00000decafc0ffee failed ID not in flight"
    other = settle_failed("TOUCH", number, NOT_OWNER)
    assert other.payload == (
        b"E_TOUCH_FAILED TOUCH 00000decafc0ffee failed client does not own message"
    )
    assert str(sub_raced()) == "E_SUB_FAILED SUB failed to deleted topic/channel"
    assert str(too_many_consumers("t", "c", 1)) == (
        "E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 1"
    )
    assert str(auth_failed()) == "E_AUTH_FAILED AUTH failed"
    assert str(no_authorizations()) == "E_UNAUTHORIZED AUTH no authorizations found"
    assert str(unauthorized("PUB", "t", "")) == 'E_UNAUTHORIZED AUTH failed for PUB on "t" ""'


def test_eof_in_the_middle_of_a_command() -> None:
    """nsqd names the body it did not get; a line that it did not get it passes over."""
    for raw, text in [
        (b"PUB t\n\0\0", b"E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB t\n" + int32(5) + b"four", b"E_BAD_MESSAGE PUB failed to read message body"),
        (b"DPUB t 0\n" + int32(5), b"E_BAD_MESSAGE DPUB failed to read message body"),
        (b"MPUB t\n\0", b"E_BAD_BODY MPUB failed to read body size"),
        (b"MPUB t\n" + int32(50), b"E_BAD_BODY MPUB failed to read message count"),
        (b"IDENTIFY\n", b"E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n" + int32(5), b"E_BAD_BODY IDENTIFY failed to read body"),
        (b"AUTH\n" + int32(5), b"E_BAD_BODY AUTH failed to read body"),
        (
            b"MPUB t\n" + int32(50) + int32(2) + sized(b"a") + int32(5),
            b"E_BAD_MESSAGE MPUB failed to read message body",
        ),
    ]:
        server = connected()
        assert server.feed(pub("t", b"x"), raw)[1:] == []
        server.eof()
        assert server.sent() == [(0, b"OK"), (1, text)]
        assert isinstance(server.events[-1], PeerClosed)
    for raw, clean in [(b"", True), (b"NOP\n", True), (b"PUB", False)]:
        server = connected()
        assert server.feed(raw) == []
        (closed,) = server.eof()
        assert isinstance(closed, PeerClosed)
        assert closed.clean is clean
        assert server.sent() == []


def test_eof_in_the_first_bytes() -> None:
    for raw in (b"", MAGIC[:3]):
        server = type(connected())()
        assert server.feed(raw) == []
        (closed,) = server.eof()
        assert isinstance(closed, PeerClosed)
        assert not closed.clean


def test_a_line_that_does_not_end_closes_without_a_word() -> None:
    """As nsqd does when its reader's 16 KiB are full."""
    longest = b"PUB t " + b"x" * (16_384 - 7) + b"\n"
    server = connected()
    (event,) = server.feed(longest + sized(b"body"))
    assert len(event) == 1  # type: ignore[arg-type]
    server.sent()
    (closed,) = server.feed(b"x" * 16_384)
    assert isinstance(closed, PeerClosed)
    assert server.sent() == []
    server = connected()
    assert server.feed(b"x" * 16_383) == []
    (failure, _) = server.feed(b"\n")
    assert isinstance(failure, ProtocolFailure)


def test_nq_3_names_have_up_to_64_bytes() -> None:
    suffix = b"#ephemeral"
    for name, good in [
        (b"x" * 64, True),
        (b"x" * 65, False),
        (b"x" * 54 + suffix, True),
        (b"x" * 55 + suffix, False),
        (b"Aa0._-", True),
        (b"a" + suffix + suffix, False),
        (b"a#other", False),
        ("ä".encode(), False),
        (b"a\r", False),
    ]:
        assert is_valid_name(name) is good
        server = connected()
        found = failures(server.feed(b"SUB " + name + b" " + name + b"\n"))
        assert bool(found) is not good
    assert is_ephemeral("a#ephemeral")
    assert not is_ephemeral("a")


def test_names_in_errors_are_quoted_as_go_does() -> None:
    assert go_quoted("a\tü€\u200b\x7f\U0010ffff".encode()) == '"a\\tü€\\u200b\\x7f\\U0010ffff"'
    assert go_quoted(b"\x80\xed\xb0\x80") == '"\\x80\\xed\\xb0\\x80"'
