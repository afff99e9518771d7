"""Events that a connection reports to its owner, in the order of the bytes.

Answers must leave in the order of the commands, since a client matches them by order alone. An
owner that delays an `OK` until the message is on disk delays all later answers as well. Each event
names its answer.
"""

from __future__ import annotations

from array import array
from typing import final

from tallymark.wire.nsq.errors import WireError
from tallymark.wire.nsq.identify import Identify


@final
class IdentifyReceived:
    """An IDENTIFY. Answer by `Connection.send_identify`; nothing is read until then."""

    __slots__ = ("identify",)

    def __init__(self, identify: Identify) -> None:
        self.identify = identify


@final
class UpgradeDue:
    """A layer to be put between transport and connection.

    The owner writes all of `Connection.out` first; gives `Connection.take_unread()` and whatever
    the transport brings to the layer; when the layer is ready (TLS: after its handshake) calls
    `Connection.upgraded()`, which says OK inside it. From then on the connection is fed what comes
    out of the layer. If one more layer is due, its event follows, and the same steps.
    """

    __slots__ = ("layer", "level")

    def __init__(self, layer: str, level: int) -> None:
        self.layer = layer
        """Kind of the layer: upgrades.TLS, SNAPPY or DEFLATE."""
        self.level = level
        """Level of deflate, 1..9."""


@final
class AuthReceived:
    """An AUTH. Ask the authority about `secret` and answer by `Connection.send_auth`, or fail with
    errors.auth_failed or no_authorizations. Nothing is read until then."""

    __slots__ = ("secret",)

    def __init__(self, secret: bytes) -> None:
        self.secret = secret


@final
class SubReceived:
    """A SUB. Answer by OK, or fail with E_SUB_FAILED or E_UNAUTHORIZED."""

    __slots__ = ("channel", "topic")

    def __init__(self, topic: str, channel: str) -> None:
        self.topic = topic
        self.channel = channel


@final
class PublishReceived:
    """A stretch of messages to one topic: PUBs or DPUBs with equal command lines, or one MPUB.

    `answers` times OK once all are safe; or fail with E_<verb>_FAILED or E_UNAUTHORIZED. An MPUB is
    taken whole or not at all [NQ-D5].
    """

    __slots__ = ("answers", "cuts", "delay_ms", "head", "raw", "topic", "verb")

    def __init__(
        self, verb: str, topic: str, raw: bytes, cuts: array[int], head: int, delay_ms: int
    ) -> None:
        self.verb = verb
        """Verb: PUB, MPUB or DPUB."""
        self.topic = topic
        self.raw = raw
        """Cells of all messages, end to end; see kernel.py."""
        self.cuts = cuts
        """array('I'): the cell of message i is raw[cuts[i]:cuts[i + 1]]."""
        self.head = head
        """Bytes of each cell before the body."""
        self.delay_ms = delay_ms
        """Delay of DPUB, 0..max_req_timeout_ms; else 0."""
        self.answers = 1 if verb == "MPUB" else len(cuts) - 1

    def __len__(self) -> int:
        return len(self.cuts) - 1


@final
class RdyReceived:
    """A RDY: the client accepts up to `count` messages at a time from now on. No answer. Not
    reported after CLS."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.count = count


@final
class FinReceived:
    """Consecutive FINs. No answer, or one error per message that is not the client's; a client that
    asked for it (Identify.fin_ack) gets an OK for each of the others, in order."""

    __slots__ = ("ids",)

    def __init__(self, ids: array[int]) -> None:
        self.ids = ids
        """Message ids, array('Q')."""


@final
class ReqReceived:
    """Consecutive REQs with equal delays; answered as FIN is."""

    __slots__ = ("delay_ms", "ids")

    def __init__(self, ids: array[int], delay_ms: int) -> None:
        self.ids = ids
        """Message ids, array('Q')."""
        self.delay_ms = delay_ms
        """Delay, 0..max_req_timeout_ms. The highest value may stand for a longer one [NQ-12]."""


@final
class TouchReceived:
    """Consecutive TOUCHes; answered as FIN is."""

    __slots__ = ("ids",)

    def __init__(self, ids: array[int]) -> None:
        self.ids = ids
        """Message ids, array('Q')."""


@final
class ClsReceived:
    """A CLS: send no more messages to this client, and answer by `Connection.send_close_wait`."""

    __slots__ = ()


@final
class ProtocolFailure:
    """An error of the peer: call `Connection.send_error(error)` once earlier commands are answered.
    If the error is fatal, nothing more is read and `PeerClosed` follows that call."""

    __slots__ = ("error",)

    def __init__(self, error: WireError) -> None:
        self.error = error


@final
class PeerClosed:
    """End of the connection, the last event, once: write the rest of `out`, close the transport."""

    __slots__ = ("clean", "reason")

    def __init__(self, reason: str, clean: bool) -> None:
        self.reason = reason
        self.clean = clean
        """True if the peer closed between two commands."""


Event = (
    IdentifyReceived
    | UpgradeDue
    | AuthReceived
    | SubReceived
    | PublishReceived
    | RdyReceived
    | FinReceived
    | ReqReceived
    | TouchReceived
    | ClsReceived
    | ProtocolFailure
    | PeerClosed
)
"""Event of a connection."""
