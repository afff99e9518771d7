"""The state tables against the standard's figures, and against each other."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

import pytest

from tallymark.wire.amqp10 import states
from tallymark.wire.amqp10.states import Input, LinkState, SessionState, State

S = TypeVar("S", bound=Enum)
Table = dict[tuple[S, Input], S]

ANSWERED: dict[State, set[Input]] = {
    State.SASL_DECIDING: {Input.CHALLENGE, Input.OUTCOME},
    State.SASL_CHOOSING: {Input.INIT},
    State.SASL_ANSWERING: {Input.RESPONSE},
    State.OPEN_RCVD: {Input.OPEN},
    State.CLOSE_RCVD: {Input.CLOSE, Input.CLOSE_ERROR},
}


def reached(first: S, *tables: Table[S]) -> set[S]:
    found = {first}
    while True:
        more = {to for table in tables for (state, _), to in table.items() if state in found}
        if more <= found:
            return found
        found |= more


# Not sent but answered by the connection itself: the server's header with its mechanisms, and the
# client's second header behind the outcome.
@pytest.mark.parametrize(
    ("first", "tables", "everything"),
    [
        (State.START, (states.RECEIVING, states.SENDING), set(State)),
        (
            SessionState.UNMAPPED,
            (states.SESSION_RECEIVING, states.SESSION_SENDING),
            set(SessionState),
        ),
        (LinkState.DETACHED, (states.LINK_RECEIVING, states.LINK_SENDING), set(LinkState)),
    ],
)
def test_every_state_is_reached(
    first: Enum, tables: tuple[Table[Enum], ...], everything: set[Enum]
) -> None:
    assert reached(first, *tables) == everything


def test_where_it_is_our_turn_nothing_is_received_and_something_may_be_sent() -> None:
    assert set(ANSWERED) == states.OUR_TURN
    for state in states.OUR_TURN:
        assert not [moved for at, moved in states.RECEIVING if at is state]
        assert {moved for at, moved in states.SENDING if at is state} == ANSWERED[state]


def test_sets_of_states_agree_with_the_tables() -> None:
    headers = {Input.HEADER, Input.SASL_HEADER}
    assert {at for at, moved in states.RECEIVING if moved in headers} == states.AWAITS_HEADER
    closes = {Input.CLOSE, Input.CLOSE_ERROR}
    assert {at for at, moved in states.SENDING if moved in closes} == states.CAN_CLOSE
    assert states.CLOSING < states.OVER
    for state in states.OVER - states.CLOSING:
        assert not [moved for at, moved in states.RECEIVING if at is state]
    sasl = {Input.MECHANISMS, Input.INIT, Input.CHALLENGE, Input.RESPONSE, Input.OUTCOME}
    speaking = {at for at, moved in states.RECEIVING if moved in sasl}
    speaking |= {at for at, moved in states.SENDING if moved in sasl}
    assert speaking == states.SASL_STATES
    for state in states.CAN_OPEN:
        assert (state, Input.OPEN) in states.SENDING


@pytest.mark.parametrize(
    ("sending", "receiving"),
    [
        (states.SESSION_SENDING, states.SESSION_RECEIVING),
        (states.LINK_SENDING, states.LINK_RECEIVING),
    ],
)
def test_sessions_and_links_look_the_same_from_both_sides(
    sending: Table[Enum], receiving: Table[Enum]
) -> None:
    """Mirrored, a state's sends are its peer's receipts: SENT and RCVD change places."""
    mirror = {
        "BEGIN SENT": "BEGIN RCVD",
        "END SENT": "END RCVD",
        "DISCARDING": "END RCVD",
        "ATTACH SENT": "ATTACH RCVD",
        "DETACH SENT": "DETACH RCVD",
    }
    plain = {Input.BEGIN, Input.END, Input.ATTACH, Input.DETACH}
    for (state, moved), after in sending.items():
        if moved not in plain or state.value in ("REFUSED", "BEGIN SENT", "ATTACH SENT"):
            continue
        if "RCVD" in state.value and "RCVD" in after.value:
            continue  # a late begin or attach, before the end or detach: its own line below
        other = {value: key for key, value in mirror.items() if key != "DISCARDING"}
        before = other.get(state.value, state.value)
        wanted = mirror.get(after.value, after.value)
        found = {
            to.value for (at, got), to in receiving.items() if at.value == before and got is moved
        }
        assert wanted in found, (state, moved)


def test_the_standards_figure_of_a_session() -> None:
    """[amqp-1.0 §2.5.5]: S sends, R receives."""
    send = states.SESSION_SENDING
    receive = states.SESSION_RECEIVING
    path = SessionState.UNMAPPED
    for table, moved, after in (
        (send, Input.BEGIN, "BEGIN SENT"),
        (receive, Input.BEGIN, "MAPPED"),
        (send, Input.END, "END SENT"),
        (receive, Input.END, "UNMAPPED"),
        (receive, Input.BEGIN, "BEGIN RCVD"),
        (send, Input.BEGIN, "MAPPED"),
        (receive, Input.END, "END RCVD"),
        (send, Input.END, "UNMAPPED"),
        (send, Input.BEGIN, "BEGIN SENT"),
        (receive, Input.BEGIN, "MAPPED"),
        (send, Input.END_ERROR, "DISCARDING"),
        (receive, Input.END, "UNMAPPED"),
    ):
        path = table[path, moved]
        assert path.value == after


def test_the_standards_figure_of_a_connection() -> None:
    """[amqp-1.0 §2.4.6], the client's way and the server's."""
    send = states.SENDING
    receive = states.RECEIVING
    for steps in (
        "S HEADER HDR SENT, R HEADER HDR EXCH, S OPEN OPEN SENT, R OPEN OPENED, "
        "S CLOSE CLOSE SENT, R CLOSE END",
        "S HEADER HDR SENT, S OPEN OPEN PIPE, R HEADER OPEN SENT, R OPEN OPENED, "
        "S CLOSE_ERROR DISCARDING, R CLOSE END",
        "R HEADER HDR EXCH, R OPEN OPEN RCVD, S OPEN OPENED, R CLOSE CLOSE RCVD, S CLOSE END",
        "S HEADER HDR SENT, R HEADER HDR EXCH, S OPEN OPEN SENT, S CLOSE CLOSE SENT, "
        "R OPEN CLOSE SENT, R CLOSE END",
    ):
        state = State.START
        for step in steps.split(", "):
            direction, moved, after = step.split(" ", 2)
            state = (send if direction == "S" else receive)[state, Input[moved]]
            assert state.value == after
