"""The legal orders of a client's commands, as a table [NQ-4].

    MAGIC --("  V2")--> INIT --SUB--> SUBSCRIBED --CLS--> CLOSING
    INIT --IDENTIFY--> IDENTIFYING --(our answer)--> INIT, or
                       UPGRADING --(upgraded, as often as layers are due)--> INIT
    INIT --AUTH--> AUTHENTICATING --(our answer)--> INIT
    SUBSCRIBED or CLOSING, the secret is renewable --AUTH--> AUTHENTICATING --(our answer)--> there
    any --(fatal error)--> FAILED --(error sent)--> CLOSED
    any --(end of input)--> ENDED; what is answered still leaves

In IDENTIFYING, AUTHENTICATING and UPGRADING it is our turn: input is kept and not looked at.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(Enum):
    __hash__ = object.__hash__  # Enum's is interpreted, and states are looked up per frame
    MAGIC = "magic"
    INIT = "init"
    IDENTIFYING = "identifying"
    UPGRADING = "upgrading"
    AUTHENTICATING = "authenticating"
    SUBSCRIBED = "subscribed"
    CLOSING = "closing"
    FAILED = "failed"
    ENDED = "ended"
    CLOSED = "closed"


OUR_TURN: Final = frozenset((State.IDENTIFYING, State.UPGRADING, State.AUTHENTICATING))

OVER: Final = frozenset((State.FAILED, State.ENDED, State.CLOSED))

READING: Final = frozenset(State) - OUR_TURN - OVER

SETTLING: Final = frozenset((State.SUBSCRIBED, State.CLOSING))
"""States in which FIN, REQ and TOUCH are allowed."""

# What may come where, and what it leads to. A pair not listed is E_INVALID "cannot ... in current
# state". RDY after CLS is legal and has no effect.
COMMANDS: Final[dict[tuple[State, bytes], State]] = {
    (State.INIT, b"IDENTIFY"): State.IDENTIFYING,
    (State.INIT, b"AUTH"): State.AUTHENTICATING,
    (State.INIT, b"SUB"): State.SUBSCRIBED,
    (State.SUBSCRIBED, b"RDY"): State.SUBSCRIBED,
    (State.SUBSCRIBED, b"FIN"): State.SUBSCRIBED,
    (State.SUBSCRIBED, b"REQ"): State.SUBSCRIBED,
    (State.SUBSCRIBED, b"TOUCH"): State.SUBSCRIBED,
    (State.SUBSCRIBED, b"CLS"): State.CLOSING,
    (State.CLOSING, b"RDY"): State.CLOSING,
    (State.CLOSING, b"FIN"): State.CLOSING,
    (State.CLOSING, b"REQ"): State.CLOSING,
    (State.CLOSING, b"TOUCH"): State.CLOSING,
    (State.INIT, b"PUB"): State.INIT,
    (State.INIT, b"MPUB"): State.INIT,
    (State.INIT, b"DPUB"): State.INIT,
    (State.INIT, b"NOP"): State.INIT,
    (State.SUBSCRIBED, b"PUB"): State.SUBSCRIBED,
    (State.SUBSCRIBED, b"MPUB"): State.SUBSCRIBED,
    (State.SUBSCRIBED, b"DPUB"): State.SUBSCRIBED,
    (State.SUBSCRIBED, b"NOP"): State.SUBSCRIBED,
    (State.CLOSING, b"PUB"): State.CLOSING,
    (State.CLOSING, b"MPUB"): State.CLOSING,
    (State.CLOSING, b"DPUB"): State.CLOSING,
    (State.CLOSING, b"NOP"): State.CLOSING,
}

RENEWALS: Final[dict[tuple[State, bytes], State]] = {
    (State.SUBSCRIBED, b"AUTH"): State.AUTHENTICATING,
    (State.CLOSING, b"AUTH"): State.AUTHENTICATING,
}
"""Further commands of a client whose secret can be renewed: not in nsqd."""

VERBS: Final = frozenset(verb for _, verb in COMMANDS)
