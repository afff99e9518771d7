"""What the owner of a client's socket may ask of the bridge, whatever the protocol.

A bridge turns what a client sends into engine commands, and what the engine wants done for a client
into bytes. It is pure: bytes and time come from its owner, who also brings it the effects that are
meant for it.
"""

from __future__ import annotations

from typing import Final

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

UNLIMITED: Final = 1 << 62


class Bridge:
    """One client's. What a protocol has no use for does nothing here."""

    __slots__ = ("is_behind", "reason", "room")

    def __init__(self) -> None:
        self.reason = ""
        """Why the connection ended or is about to; empty while it lives."""
        self.room = UNLIMITED
        """Bytes of messages that it may still put out in answer to input; the owner sets it before
        `receive`, by what the client's socket takes."""
        self.is_behind = False
        """Whether input is left alone for want of room: the owner reads no more, and calls
        `receive` again once there is room, with nothing if there is nothing new."""

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

    @property
    def wants_data(self) -> bool:
        """False: enough of what it sent waits, for room or for an answer of the owner; read no more
        for now."""
        return not self.is_behind

    @property
    def input_bytes(self) -> int:
        """Bytes received that are not through: incomplete frames, unfinished contents."""
        return 0

    @property
    def output_bytes(self) -> int:
        """Bytes said that take_output does not give yet: what waits for the disk or for company."""
        return 0

    def receive(self, data: bytes, now_ms: int, wall_ms: int) -> None:
        """Take what was read. now_ms: monotonic; wall_ms: since 1970."""
        raise NotImplementedError

    def eof(self) -> None:
        """The peer will send nothing more."""
        raise NotImplementedError

    def let_go(self) -> None:
        """The connection is gone and `eof` was called: drop what refers back to this, so that it
        is free at once. Effects that come late mean nothing."""

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
