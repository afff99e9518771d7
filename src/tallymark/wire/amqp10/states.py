"""The legal orders of connections, sessions and links, as tables that serve both roles.

Connection [amqp-1.0 §2.4.6], with SASL in front of it where it is used [§5.3.2]; `>` is received,
`<` is sent. A server:

    START > sasl header < header, mechanisms  SASL_MECHANISMS > init  SASL_DECIDING
    SASL_DECIDING < challenge  SASL_CHALLENGED > response  SASL_DECIDING < outcome ok  SASL_DONE
    START or SASL_DONE > header < header  HDR_EXCH > open  OPEN_RCVD < open  OPENED

A client:

    START < sasl header  SASL_HDR_SENT > header  SASL_HDR_EXCH > mechanisms  SASL_CHOOSING
    SASL_CHOOSING < init  SASL_INIT_SENT > challenge  SASL_ANSWERING < response  SASL_INIT_SENT
    SASL_INIT_SENT > outcome ok < header  HDR_SENT       START < header  HDR_SENT
    HDR_SENT > header  HDR_EXCH < open  OPEN_SENT > open  OPENED
    HDR_SENT < open  OPEN_PIPE > header  OPEN_SENT

Either, then:

    OPENED < close  CLOSE_SENT > close  END      OPENED > close  CLOSE_RCVD < close  END
    OPENED < close with an error  DISCARDING > close  END

Session [§2.5.5] and link [§2.6.1 to §2.6.6] are small enough for their tables. What is not listed
is amqp:illegal-state where the peer did it, and ValueError where our owner did.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(Enum):
    """States of a connection."""

    __hash__ = object.__hash__  # Enum's is interpreted, and states are looked up per frame

    START = "START"
    SASL_MECHANISMS = "SASL MECHANISMS"
    SASL_DECIDING = "SASL DECIDING"
    SASL_CHALLENGED = "SASL CHALLENGED"
    SASL_DONE = "SASL DONE"
    SASL_HDR_SENT = "SASL HDR SENT"
    SASL_HDR_EXCH = "SASL HDR EXCH"
    SASL_CHOOSING = "SASL CHOOSING"
    SASL_INIT_SENT = "SASL INIT SENT"
    SASL_ANSWERING = "SASL ANSWERING"
    HDR_SENT = "HDR SENT"
    HDR_EXCH = "HDR EXCH"
    OPEN_PIPE = "OPEN PIPE"
    OPEN_RCVD = "OPEN RCVD"
    OPEN_SENT = "OPEN SENT"
    OPENED = "OPENED"
    CLOSE_RCVD = "CLOSE RCVD"
    CLOSE_SENT = "CLOSE SENT"
    DISCARDING = "DISCARDING"
    END = "END"


class Input(Enum):
    """Inputs that change the state of a connection, a session or a link; one name for both
    directions."""

    HEADER = "protocol header"
    SASL_HEADER = "SASL protocol header"
    MECHANISMS = "sasl-mechanisms"
    INIT = "sasl-init"
    CHALLENGE = "sasl-challenge"
    RESPONSE = "sasl-response"
    OUTCOME = "sasl-outcome"
    OPEN = "open"
    CLOSE = "close"
    CLOSE_ERROR = "close with an error"
    BEGIN = "begin"
    END = "end"
    END_ERROR = "end with an error"
    ATTACH = "attach"
    ATTACH_NULL = "attach without a terminus"
    DETACH = "detach"
    DETACH_ERROR = "detach with an error"


RECEIVING: Final[dict[tuple[State, Input], State]] = {
    (State.START, Input.SASL_HEADER): State.SASL_MECHANISMS,
    (State.SASL_MECHANISMS, Input.INIT): State.SASL_DECIDING,
    (State.SASL_CHALLENGED, Input.RESPONSE): State.SASL_DECIDING,
    (State.SASL_HDR_SENT, Input.SASL_HEADER): State.SASL_HDR_EXCH,
    (State.SASL_HDR_EXCH, Input.MECHANISMS): State.SASL_CHOOSING,
    (State.SASL_INIT_SENT, Input.CHALLENGE): State.SASL_ANSWERING,
    (State.SASL_INIT_SENT, Input.OUTCOME): State.HDR_SENT,
    (State.START, Input.HEADER): State.HDR_EXCH,
    (State.SASL_DONE, Input.HEADER): State.HDR_EXCH,
    (State.HDR_SENT, Input.HEADER): State.HDR_EXCH,
    (State.OPEN_PIPE, Input.HEADER): State.OPEN_SENT,
    (State.HDR_EXCH, Input.OPEN): State.OPEN_RCVD,
    (State.OPEN_SENT, Input.OPEN): State.OPENED,
    (State.OPENED, Input.CLOSE): State.CLOSE_RCVD,
    (State.CLOSE_SENT, Input.OPEN): State.CLOSE_SENT,
    (State.CLOSE_SENT, Input.CLOSE): State.END,
    (State.DISCARDING, Input.OPEN): State.DISCARDING,
    (State.DISCARDING, Input.CLOSE): State.END,
}

SENDING: Final[dict[tuple[State, Input], State]] = {
    (State.START, Input.SASL_HEADER): State.SASL_HDR_SENT,
    (State.SASL_CHOOSING, Input.INIT): State.SASL_INIT_SENT,
    (State.SASL_ANSWERING, Input.RESPONSE): State.SASL_INIT_SENT,
    (State.SASL_DECIDING, Input.CHALLENGE): State.SASL_CHALLENGED,
    (State.SASL_DECIDING, Input.OUTCOME): State.SASL_DONE,
    (State.START, Input.HEADER): State.HDR_SENT,
    (State.HDR_SENT, Input.OPEN): State.OPEN_PIPE,
    (State.HDR_EXCH, Input.OPEN): State.OPEN_SENT,
    (State.OPEN_RCVD, Input.OPEN): State.OPENED,
    (State.OPEN_SENT, Input.CLOSE): State.CLOSE_SENT,
    (State.OPEN_SENT, Input.CLOSE_ERROR): State.DISCARDING,
    (State.OPENED, Input.CLOSE): State.CLOSE_SENT,
    (State.OPENED, Input.CLOSE_ERROR): State.DISCARDING,
    (State.CLOSE_RCVD, Input.CLOSE): State.END,
    (State.CLOSE_RCVD, Input.CLOSE_ERROR): State.END,
}

AWAITS_HEADER: Final = frozenset(
    (State.START, State.SASL_HDR_SENT, State.SASL_DONE, State.HDR_SENT, State.OPEN_PIPE)
)
"""States in which the next bytes are a protocol header."""

SASL_STATES: Final = frozenset(
    (
        State.SASL_MECHANISMS,
        State.SASL_DECIDING,
        State.SASL_CHALLENGED,
        State.SASL_HDR_EXCH,
        State.SASL_CHOOSING,
        State.SASL_INIT_SENT,
        State.SASL_ANSWERING,
    )
)
"""States in which only SASL frames are exchanged."""

CHECKING: Final = frozenset((State.SASL_DECIDING, State.OPEN_RCVD))
"""States in which a server identifies the peer."""

OUR_TURN: Final = frozenset(
    (
        State.SASL_DECIDING,
        State.SASL_CHOOSING,
        State.SASL_ANSWERING,
        State.OPEN_RCVD,
        State.CLOSE_RCVD,
    )
)
"""States in which the owner has to answer: input is kept and not processed."""

CAN_CLOSE: Final = frozenset((State.OPEN_SENT, State.OPENED, State.CLOSE_RCVD))
"""States in which we have sent our open, and no close yet."""

CAN_OPEN: Final = frozenset((State.HDR_EXCH, State.OPEN_RCVD))
"""States in which an open, and then a close, may be sent: the peer is identified and listens."""

CLOSING: Final = frozenset((State.CLOSE_SENT, State.DISCARDING))
"""States in which all input but the peer's close is dropped."""

OVER: Final = frozenset((State.CLOSE_RCVD, State.CLOSE_SENT, State.DISCARDING, State.END))


class SessionState(Enum):
    __hash__ = object.__hash__  # Enum's is interpreted, and states are looked up per frame

    UNMAPPED = "UNMAPPED"
    BEGIN_SENT = "BEGIN SENT"
    BEGIN_RCVD = "BEGIN RCVD"
    MAPPED = "MAPPED"
    END_SENT = "END SENT"
    END_RCVD = "END RCVD"
    DISCARDING = "DISCARDING"


SESSION_RECEIVING: Final[dict[tuple[SessionState, Input], SessionState]] = {
    (SessionState.UNMAPPED, Input.BEGIN): SessionState.BEGIN_RCVD,
    (SessionState.BEGIN_SENT, Input.BEGIN): SessionState.MAPPED,
    (SessionState.BEGIN_RCVD, Input.END): SessionState.END_RCVD,
    (SessionState.MAPPED, Input.END): SessionState.END_RCVD,
    (SessionState.END_SENT, Input.BEGIN): SessionState.END_SENT,
    (SessionState.END_SENT, Input.END): SessionState.UNMAPPED,
    (SessionState.DISCARDING, Input.BEGIN): SessionState.DISCARDING,
    (SessionState.DISCARDING, Input.END): SessionState.UNMAPPED,
}

SESSION_SENDING: Final[dict[tuple[SessionState, Input], SessionState]] = {
    (SessionState.UNMAPPED, Input.BEGIN): SessionState.BEGIN_SENT,
    (SessionState.BEGIN_RCVD, Input.BEGIN): SessionState.MAPPED,
    (SessionState.BEGIN_SENT, Input.END): SessionState.END_SENT,
    (SessionState.BEGIN_SENT, Input.END_ERROR): SessionState.DISCARDING,
    (SessionState.MAPPED, Input.END): SessionState.END_SENT,
    (SessionState.MAPPED, Input.END_ERROR): SessionState.DISCARDING,
    (SessionState.END_RCVD, Input.BEGIN): SessionState.END_RCVD,
    (SessionState.END_RCVD, Input.END): SessionState.UNMAPPED,
    (SessionState.END_RCVD, Input.END_ERROR): SessionState.UNMAPPED,
}

SESSION_ENDING: Final = frozenset((SessionState.END_SENT, SessionState.DISCARDING))
"""States in which all input but the peer's end (and its begin, if that was missing) is dropped."""


class LinkState(Enum):
    """States of a link. REFUSED: attached without a terminus, the detach is on its way [§2.6.3]."""

    __hash__ = object.__hash__  # Enum's is interpreted, and states are looked up per frame

    DETACHED = "DETACHED"
    ATTACH_SENT = "ATTACH SENT"
    ATTACH_RCVD = "ATTACH RCVD"
    ATTACHED = "ATTACHED"
    REFUSED = "REFUSED"
    DETACH_SENT = "DETACH SENT"
    DETACH_RCVD = "DETACH RCVD"
    DISCARDING = "DISCARDING"


LINK_RECEIVING: Final[dict[tuple[LinkState, Input], LinkState]] = {
    (LinkState.DETACHED, Input.ATTACH): LinkState.ATTACH_RCVD,
    (LinkState.ATTACH_SENT, Input.ATTACH): LinkState.ATTACHED,
    (LinkState.ATTACH_SENT, Input.ATTACH_NULL): LinkState.REFUSED,
    (LinkState.DETACH_SENT, Input.ATTACH): LinkState.DETACH_SENT,
    (LinkState.DETACH_SENT, Input.ATTACH_NULL): LinkState.DETACH_SENT,
    (LinkState.DISCARDING, Input.ATTACH): LinkState.DISCARDING,
    (LinkState.DISCARDING, Input.ATTACH_NULL): LinkState.DISCARDING,
    (LinkState.ATTACH_RCVD, Input.DETACH): LinkState.DETACH_RCVD,
    (LinkState.ATTACHED, Input.DETACH): LinkState.DETACH_RCVD,
    (LinkState.REFUSED, Input.DETACH): LinkState.DETACH_RCVD,
    (LinkState.DETACH_SENT, Input.DETACH): LinkState.DETACHED,
    (LinkState.DISCARDING, Input.DETACH): LinkState.DETACHED,
}

LINK_SENDING: Final[dict[tuple[LinkState, Input], LinkState]] = {
    (LinkState.DETACHED, Input.ATTACH): LinkState.ATTACH_SENT,
    (LinkState.ATTACH_RCVD, Input.ATTACH): LinkState.ATTACHED,
    (LinkState.DETACH_RCVD, Input.ATTACH): LinkState.DETACH_RCVD,
    (LinkState.ATTACH_SENT, Input.DETACH): LinkState.DETACH_SENT,
    (LinkState.ATTACH_SENT, Input.DETACH_ERROR): LinkState.DISCARDING,
    (LinkState.ATTACHED, Input.DETACH): LinkState.DETACH_SENT,
    (LinkState.ATTACHED, Input.DETACH_ERROR): LinkState.DISCARDING,
    (LinkState.REFUSED, Input.DETACH): LinkState.DETACH_SENT,
    (LinkState.REFUSED, Input.DETACH_ERROR): LinkState.DISCARDING,
    (LinkState.DETACH_RCVD, Input.DETACH): LinkState.DETACHED,
    (LinkState.DETACH_RCVD, Input.DETACH_ERROR): LinkState.DETACHED,
}
