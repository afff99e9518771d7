"""The frame trace: a line for each frame, readable, without secrets, however the bytes come."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp10.connection import Connection
from tallymark.wire.amqp10.frames import AMQP_HEADER, HEARTBEAT, SASL_HEADER, frame, sasl_frame
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import Accepted, Error, Modified, TransactionalState
from tallymark.wire.amqp10.performatives import (
    RECEIVER,
    Attach,
    Begin,
    Close,
    Disposition,
    Flow,
    Open,
    Source,
    Transfer,
)
from tallymark.wire.amqp10.sasl import SaslChallenge, SaslInit, SaslMechanisms, SaslOutcome
from tallymark.wire.amqp10.trace import HELD_MAX, RECEIVED, SENT, Tracer
from tallymark.wire.amqp10.types import Symbol, UInt
from tests.support.amqp10_pair import BODY, CUTS, Cut, Pair


def trace(data: bytes, cut: Cut = CUTS["whole"], arrow: str = RECEIVED) -> list[str]:
    lines: list[str] = []
    tracer = Tracer(arrow, lines.append)
    for piece in cut(data):
        tracer.add(piece)
    return lines


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_one_line_per_frame(cut: Cut) -> None:
    data = SASL_HEADER
    data += sasl_frame(SaslMechanisms(("PLAIN", "ANONYMOUS")).encode())
    data += AMQP_HEADER
    data += frame(0, Open("me", hostname="h", idle_time_out=5).encode())
    data += frame(3, Begin(None, 0, 1, 2).encode())
    data += frame(3, Attach("l", 1, RECEIVER, source=Source(address="q", dynamic=True)).encode())
    data += frame(3, Flow(0, 5, 0, 5, handle=1, link_credit=3, drain=True).encode())
    data += frame(3, Transfer(1, 7, b"\x01\xff", 0, True).encode(), BODY)
    data += frame(3, Disposition(RECEIVER, 0, 4, True, Modified(True)).encode())
    data += HEARTBEAT
    data += frame(0, Close(Error("amqp:not-found", "no q")).encode())
    assert trace(data, cut, SENT) == [
        "-> AMQP 3 1.0.0",
        "-> [sasl] SaslMechanisms sasl-server-mechanisms=['PLAIN', 'ANONYMOUS']",
        "-> AMQP 0 1.0.0",
        "-> [0] Open container-id='me' hostname='h' idle-time-out=5",
        "-> [3] Begin next-outgoing-id=0 incoming-window=1 outgoing-window=2",
        "-> [3] Attach name='l' handle=1 role=receiver source=(Source address='q' dynamic=True)",
        "-> [3] Flow next-incoming-id=0 incoming-window=5 next-outgoing-id=0 outgoing-window=5 "
        "handle=1 link-credit=3 drain=True",
        "-> [3] Transfer handle=1 delivery-id=7 delivery-tag=01ff message-format=0 settled=True "
        "+10",
        "-> [3] Disposition role=receiver first=0 last=4 settled=True "
        "state=(Modified delivery-failed=True)",
        "-> [0] (empty)",
        "-> [0] Close error=(Error condition='amqp:not-found' description='no q')",
    ]


def test_credentials_are_not_shown() -> None:
    data = sasl_frame(SaslInit("PLAIN", b"\0user\0secret", "host").encode())
    data += sasl_frame(SaslChallenge(b"secret").encode())
    data += sasl_frame(SaslOutcome(0, b"secret").encode())
    lines = trace(data)
    assert lines == [
        "<- [sasl] SaslInit mechanism='PLAIN' initial-response=(12 bytes) hostname='host'",
        "<- [sasl] SaslChallenge challenge=(6 bytes)",
        "<- [sasl] SaslOutcome code=0 additional-data=(6 bytes)",
    ]


def test_nested_values_are_shown_and_long_ones_cut() -> None:
    state = TransactionalState(b"t", Accepted())
    data = frame(0, Transfer(0, 1, b"", 0, state=state).encode(), bytes(99))
    data += frame(0, Open("x" * 5000).encode())
    lines = trace(data)
    assert lines[0].endswith("state=(TransactionalState txn-id=74 outcome=Accepted) +99")
    assert lines[1].endswith("xxx...")
    assert len(lines[1]) < 300


@pytest.mark.parametrize(
    "bad", [b"\0\0\0\x07\x02\0\0\0", (HELD_MAX + 1).to_bytes(4, "big") + b"\x02\0\0\0"]
)
def test_behind_what_cannot_be_a_frame_nothing_is_traced(bad: bytes) -> None:
    lines = trace(HEARTBEAT + bad + HEARTBEAT)
    assert len(lines) == 2
    assert "not traced any further" in lines[1]


def test_a_malformed_body_is_a_line_like_any() -> None:
    lines = trace(frame(2, b"\0\x53\x99\x45") + HEARTBEAT)
    assert lines[0].startswith("<- [2] (malformed, 4 bytes: ")
    assert lines[1] == "<- [0] (empty)"


def test_a_connection_traces_both_directions() -> None:
    lines: list[str] = []
    pair = Pair(trace=lines.append).open()
    assert [line.split(" ", 3)[:3] for line in lines] == [
        ["->", "AMQP", "0"],
        ["->", "[0]", "Open"],
        ["<-", "AMQP", "0"],
        ["<-", "[0]", "Open"],
    ]
    lines.clear()
    pair.client.connection.close()
    pair.pump()
    assert lines == ["-> [0] Close", "<- [0] Close"]


def test_a_connection_without_a_trace_has_no_tracer() -> None:
    connection = Connection(Limits(), is_server=True)
    assert connection._trace_in is None
    assert connection._trace_out is None


def test_maps_and_symbols_are_shown_plainly() -> None:
    properties: dict[object, object] = {
        Symbol("a"): UInt(5),
        Symbol("b"): [Symbol("x"), b"\xff", True],
        Symbol("c"): {"d": None},
    }
    lines = trace(frame(0, Open("me", properties=properties).encode()))
    assert lines[0].endswith("properties={'a': 5, 'b': ['x', ff, True], 'c': {'d': None}}")
