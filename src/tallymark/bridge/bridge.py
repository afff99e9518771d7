"""What the owner of a client's socket may ask of the bridge, whatever the protocol.

A bridge turns what a client sends into engine commands, and what the engine wants done for a client
into bytes. It is pure: bytes and time come from its owner, who also brings it the effects that are
meant for it.
"""

from __future__ import annotations

from tallymark.bridge.permissions import Permissions
from tallymark.engine.effects import (
    Activated,
    Cancelled,
    CloseConsumer,
    CloseSession,
    Confirm,
    Deliver,
    Drained,
    Durable,
    Refused,
    TimedOut,
    TransactionExpired,
)
from tallymark.engine.session import Connection


class Bridge:
    """One client's. What a protocol has no use for does nothing here."""

    __slots__ = ("reason",)

    def __init__(self) -> None:
        self.reason = ""
        """Why the connection ended or is about to; empty while it lives."""

    @property
    def closing(self) -> bool:
        """The transport is to be closed, once what take_output gives is written."""
        raise NotImplementedError

    @property
    def connection(self) -> Connection | None:
        """The engine's side, once there is one. Its `handle` is this bridge."""
        raise NotImplementedError

    @property
    def user(self) -> str:
        """Name of the user whose permissions it acts with; empty: none, or not known yet."""
        return ""

    def rights_changed(self, permissions: Permissions) -> None:
        """The user may do this from now on: what was asked before counts no more, and what is going
        on that would be refused now ends."""

    @property
    def holds_itself(self) -> bool:
        """Whether a client that keeps to its protocol stops publishing when it is told to (`block`)
        and goes on consuming; one that does not is not read meanwhile."""
        return False

    def receive(self, data: bytes, now_ms: int, wall_ms: int) -> None:
        """Take what was read. now_ms: monotonic; wall_ms: since 1970."""
        raise NotImplementedError

    def eof(self) -> None:
        """The peer will send nothing more."""
        raise NotImplementedError

    def tick(self, now_ms: int) -> None:
        """Call at `next_deadline`."""
        raise NotImplementedError

    def next_deadline(self) -> int | None:
        """When `tick` is due, monotonic milliseconds; None: it is not."""
        raise NotImplementedError

    def take_output(self) -> list[bytes]:
        """What to write now, in order."""
        raise NotImplementedError

    def shutdown(self, reason: str = "shutdown") -> None:
        """End the connection by the operator's or the broker's will."""
        raise NotImplementedError

    def block(self, reason: str) -> None:
        """Nothing the client sends is read for now; tell it, where the protocol has a word."""

    def unblock(self) -> None:
        """It is read again."""

    # -- effects

    def deliver(self, effect: Deliver) -> None:
        raise NotImplementedError

    def confirm(self, effect: Confirm) -> None:
        pass

    def refused(self, effect: Refused) -> None:
        pass

    def cancelled(self, effect: Cancelled) -> None:
        pass

    def drained(self, effect: Drained) -> None:
        pass

    def activated(self, effect: Activated) -> None:
        pass

    def timed_out(self, effect: TimedOut) -> None:
        pass

    def transaction_expired(self, effect: TransactionExpired) -> None:
        pass

    def close_session(self, effect: CloseSession) -> None:
        """The engine ended a session. effect.error says why: TooSlow among others [SC-9]."""
        raise NotImplementedError

    def close_consumer(self, effect: CloseConsumer) -> None:
        """The engine ended a consumer for its own sake, and its session goes on. Only for protocols
        whose consumers have links (`Consumer.by_link`)."""

    def durable(self, effect: Durable) -> None:
        """What a Waiter of this bridge waited for is on disk."""
        raise NotImplementedError


class Waiter:
    """What a bridge gives to `Broker.await_durable`."""

    __slots__ = ("owner",)

    def __init__(self, owner: Bridge) -> None:
        self.owner = owner
        """Whoever gets the Durable effect hands it to this bridge."""
