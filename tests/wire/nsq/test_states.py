"""The table of NQ-4: what may come in which state."""

from __future__ import annotations

import pytest

from tallymark.wire.nsq.commands import CLS, NOP, auth, dpub, fin, identify, mpub, pub, req, touch
from tallymark.wire.nsq.errors import WireError
from tallymark.wire.nsq.limits import Limits
from tallymark.wire.nsq.states import COMMANDS, OUR_TURN, OVER, READING, VERBS, State
from tests.support.nsq import Server, connected, failures, flatten

COMMAND = {
    b"IDENTIFY": identify(b"{}"),
    b"AUTH": auth(b"secret"),
    b"SUB": b"SUB t c\n",
    b"PUB": pub("t", b"x"),
    b"MPUB": mpub("t", [b"x", b"y"]),
    b"DPUB": dpub("t", 5, b"x"),
    b"RDY": b"RDY 3\n",
    b"FIN": fin(1),
    b"REQ": req(1, 5),
    b"TOUCH": touch(1),
    b"CLS": CLS,
    b"NOP": NOP,
}
LEGAL = {
    State.INIT: "IDENTIFY AUTH SUB PUB MPUB DPUB NOP",
    State.SUBSCRIBED: "FIN REQ TOUCH RDY CLS PUB MPUB DPUB NOP",
    State.CLOSING: "FIN REQ TOUCH RDY PUB MPUB DPUB NOP",
}


def server_in(state: State, *, authorized: bool) -> Server:
    server = connected(Limits(auth_required=True))
    if authorized or state is not State.INIT:
        server.feed(auth(b"secret"))
    if state is not State.INIT:
        server.feed(b"SUB t c\n")
    if state is State.CLOSING:
        server.feed(CLS)
    assert server.connection.state is state
    server.sent()
    return server


def test_nq_4_every_verb_is_tried() -> None:
    assert set(COMMAND) == VERBS
    assert set(LEGAL) == READING - {State.MAGIC}
    assert set(State) == READING | OUR_TURN | OVER


@pytest.mark.parametrize("verb", sorted(VERBS))
@pytest.mark.parametrize("state", LEGAL, ids=lambda state: state.value)
def test_nq_4_what_is_not_legal_is_fatal(state: State, verb: bytes) -> None:
    server = server_in(state, authorized=verb != b"AUTH")
    legal = verb.decode() in LEGAL[state].split()
    assert legal == ((state, verb) in COMMANDS)
    found = failures(server.feed(COMMAND[verb]))
    if legal:
        assert not found
        assert server.connection.state not in OVER
    else:
        (error,) = found
        assert str(error) == f"E_INVALID cannot {verb.decode()} in current state"
        assert server.connection.state is State.CLOSED


def test_nq_4_answers() -> None:
    server = connected()
    server.feed(identify(b"{}"), b"SUB t c\n", COMMAND[b"PUB"], COMMAND[b"MPUB"], COMMAND[b"DPUB"])
    server.feed(b"RDY 3\n", fin(1), req(1, 5), touch(1), NOP, CLS)
    assert server.sent() == [(0, b"OK")] * 5 + [(0, b"CLOSE_WAIT")]


def test_nq_4_rdy_is_ignored_after_cls_whatever_it_says() -> None:
    server = server_in(State.CLOSING, authorized=True)
    assert server.feed(b"RDY 5\nRDY -1\nRDY 99999\n") == []
    assert flatten(server.feed(fin(9))) == [("FIN", 9)]


def test_rdy_without_a_count_is_one_and_with_an_empty_one_is_none() -> None:
    server = server_in(State.SUBSCRIBED, authorized=True)
    assert flatten(server.feed(b"RDY\nRDY \nRDY 2500\nRDY 0007 x\n")) == [
        ("RDY", 1),
        ("RDY", 0),
        ("RDY", 2500),
        ("RDY", 7),
    ]


def test_superfluous_words_and_carriage_returns() -> None:
    server = connected()
    raw = b"SUB t c and more\r\n" + b"PUB t more\r\n\0\0\0\1x" * 2 + b"NOP 1\r\n"
    raw += b"RDY 1 2\r\nFIN 00000000000000ff more\r\nREQ 00000000000000ff 0 more\n"
    raw += b"TOUCH 00000000000000ff\r\nCLS now\r\n"
    assert flatten(server.feed(raw)) == [
        ("SUB", "t", "c"),
        ("PUB", "t", 0, b"x"),
        ("PUB", "t", 0, b"x"),
        ("RDY", 1),
        ("FIN", 255),
        ("REQ", 255, 0),
        ("TOUCH", 255),
        ("CLS",),
    ]


def test_nq_5_auth_comes_first() -> None:
    for raw, verb in [
        (b"SUB t c\n", b"SUB"),
        (pub("t", b"x"), b"PUB"),
        (dpub("t", 0, b"x"), b"DPUB"),
        (b"MPUB t\n", b"MPUB"),
    ]:
        server = connected(Limits(auth_required=True))
        server.feed(raw)
        assert server.sent() == [(1, b"E_AUTH_FIRST AUTH required before " + verb)]


def test_auth_is_answered_and_is_not_repeated() -> None:
    server = connected(Limits(auth_required=True))
    assert flatten(server.feed(auth(b"secret"))) == [("AUTH", b"secret")]
    answer = b'{"identity":"someone","identity_url":"http://where","permission_count":1}'
    assert server.sent() == [(0, answer)]
    server.feed(pub("t", b"x"))
    assert server.sent() == [(0, b"OK")]
    server.feed(auth(b"again"))
    assert server.sent() == [(1, b"E_INVALID AUTH already set")]


def test_a_secret_that_can_be_renewed_is_also_while_subscribed() -> None:
    server = connected(Limits(auth_required=True))
    server.feed(auth(b"secret"))
    server.sent()
    server.connection.is_renewable = True
    answer = b'{"identity":"someone","identity_url":"http://where","permission_count":1}'
    for raw, says in ((b"", []), (b"SUB t c\n", [(0, b"OK")]), (b"CLS\n", [(0, b"CLOSE_WAIT")])):
        server.feed(raw)
        assert server.sent() == says
        state = server.connection.state
        assert flatten(server.feed(auth(b"again"))) == [("AUTH", b"again")]
        assert server.sent() == [(0, answer)]
        assert server.connection.state is state


def test_nothing_is_read_while_the_authority_is_asked() -> None:
    server = connected(Limits(auth_required=True))
    connection = server.connection
    connection.receive_data(auth(b"secret") + pub("t", b"x"), 0)
    assert connection.next_event() is not None
    connection.receive_data(pub("t", b"y"), 0)
    assert connection.next_event() is None
    assert connection.wants_data
    connection.send_auth("", "", 1)
    assert [row[3] for row in flatten([connection.next_event() or 0])] == [b"x"]  # type: ignore[list-item]


def test_who_is_far_ahead_of_our_answer_is_cut_off() -> None:
    server = connected(Limits(auth_required=True))
    connection = server.connection
    connection.receive_data(auth(b"secret"), 0)
    assert connection.next_event() is not None
    chunk = pub("t", b"x" * 60_000)
    while connection.wants_data:
        connection.receive_data(chunk, 0)
    assert connection.next_event() is None
    for _ in range(20):
        connection.receive_data(chunk, 0)
    assert flatten([connection.next_event() or 0]) == [  # type: ignore[list-item]
        ("CLOSED", "more than 1048576 bytes sent ahead of our answer", False)
    ]
    assert connection.line.inbox.size() == 0


def test_what_is_answered_after_the_end_of_input_still_leaves() -> None:
    server = connected()
    connection = server.connection
    connection.receive_data(pub("t", b"x"), 0)
    assert connection.next_event() is not None
    connection.receive_eof()
    assert flatten([connection.next_event() or 0]) == [("CLOSED", "closed by the peer", True)]  # type: ignore[list-item]
    assert connection.state is State.ENDED
    connection.send_ok()
    connection.send_error(WireError("E_PUB_FAILED", "PUB failed"))
    assert server.sent() == [(0, b"OK"), (1, b"E_PUB_FAILED PUB failed")]
    assert connection.next_event() is None, "the end is told once"
    connection.receive_broken("cut")
    assert connection.next_event() is None
