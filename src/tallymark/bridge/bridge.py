"""Bridge: the interface between the owner of a client's socket and a protocol's bridge.

A bridge turns a client's input into engine commands, and the engine's effects for that client into
bytes. It is pure: bytes and time come from its owner, which also passes it the effects for its
client: it feeds `receive`, carries effects to the methods of their names, and writes what
`take_output` gives. It reads no more while `wants_data` is false. When `closing` turns true it
closes the transport after writing.

Output may have to wait for the disk: the answer to a durable declaration until its record is there,
and a message that a consumer was given in advance, because a command examined its queue
(`Dispatcher.look`), although the queue's high-water mark on disk does not cover it yet. All later
output of the connection waits behind it, so that the order is kept. Without gates nothing is copied
or queued.
"""

from __future__ import annotations

from typing import final

from tallymark.bridge.permissions import Permissions
from tallymark.engine.broker import Broker
from tallymark.engine.effects import (
    Activated,
    Cancelled,
    CloseConsumer,
    CloseSession,
    Confirm,
    Deliver,
    Drained,
    Refused,
    TimedOut,
    TransactionExpired,
)
from tallymark.engine.session import Connection
from tallymark.units import UNLIMITED, EngineMs
from tallymark.wire.line import Line, MonotonicMs


class Bridge:
    """The bridge of one client. Methods that a protocol does not need do nothing."""

    __slots__ = (
        "asked",
        "broker",
        "gate",
        "is_behind",
        "is_over",
        "line",
        "now_ms",
        "reason",
        "room",
        "engine_ms",
    )

    def __init__(self, broker: Broker, line: Line) -> None:
        self.broker = broker
        self.line = line
        """Input, output and time of the wire connection."""
        self.gate = OutputGate(self)
        self.asked = 0
        """Number of things in its input so far that a client may wait for an answer to: all but
        settlements and credit."""
        self.now_ms = MonotonicMs(0)
        """Time of the last input or tick, monotonic milliseconds."""
        self.engine_ms = EngineMs(0)
        """Arrival of the last input, engine time."""
        self.is_over = False
        """True once the wire connection has ended: output so far is still written."""
        self.reason = ""
        """Reason for which the connection ended or is about to; empty while it is open."""
        self.room = UNLIMITED
        """Bytes of messages that may still be output in answer to input. The owner sets it before
        `receive`, by the free space in the client's socket buffer."""
        self.is_behind = False
        """True if input was left unprocessed for want of room. The owner reads no more, and calls
        `receive` again once there is room, with empty input if there is nothing new."""

    @property
    def closing(self) -> bool:
        """True if the transport is to be closed once the output of take_output is written."""
        return self.is_over and not self.gate.shut

    @property
    def asks(self) -> bool:
        """True while the owner has something to do for the bridge besides reading and writing:
        close the transport, or what a protocol says."""
        return self.is_over and not self.gate.shut

    @property
    def connection(self) -> Connection | None:
        """Connection in the engine, once there is one. Its `handle` is this bridge."""
        raise NotImplementedError

    @property
    def user(self) -> str:
        """Name of the user whose permissions apply; empty: none, or not known yet."""
        return ""

    @property
    def publishes_as(self) -> tuple[str, str] | None:
        """Virtual host and user that its publishes count for; None: it is not known yet."""
        connection = self.connection
        return None if connection is None else (connection.vhost, connection.user)

    def rights_changed(self, permissions: Permissions) -> None:
        """Apply changed permissions of the user. Earlier permissions no longer count, and
        activities that would be refused now end."""

    @property
    def holds_itself(self) -> bool:
        """Return whether a client that respects its protocol stops publishing on request (`block`)
        while it continues to consume. A client that does not is not read meanwhile."""
        return False

    @property
    def wants_data(self) -> bool:
        """False while enough input waits for room, or for an answer of the owner: read no more for
        now."""
        return not self.is_behind

    @property
    def lacks_room(self) -> bool:
        """True while `receive` would leave all input unprocessed, since earlier answers have not
        left yet. The owner waits until it has taken output."""
        return False

    @property
    def output_bytes(self) -> int:
        """Bytes of output that take_output holds back: they wait for the disk or to be sent with
        more."""
        gate = self.gate
        return gate.held_bytes() if gate.shut else 0

    def receive(self, data: bytes, now_ms: MonotonicMs, engine_ms: EngineMs) -> None:
        """Process input. now_ms: monotonic; engine_ms: arrival of the messages in it."""
        self.now_ms = now_ms
        self.engine_ms = engine_ms
        self.receive_data(data, now_ms)
        self.handle_events()

    def receive_data(self, data: bytes, now_ms: MonotonicMs) -> None:
        """Pass input to the wire connection."""
        raise NotImplementedError

    def handle_events(self) -> None:
        """Handle what the wire connection reports."""
        raise NotImplementedError

    def eof(self) -> None:
        """Handle the end of the peer's input."""
        raise NotImplementedError

    def let_go(self) -> None:
        """Drop references to this bridge after the connection has ended and `eof` was called, so
        that it is freed at once. Later effects are ignored."""
        self.gate.let_go()

    def tick(self, now_ms: MonotonicMs) -> None:
        """Handle deadlines. Called at `next_deadline`."""
        raise NotImplementedError

    def next_deadline(self) -> MonotonicMs | None:
        """Return when `tick` is due, monotonic milliseconds; None: there is no deadline."""
        raise NotImplementedError

    def said(self) -> list[bytes]:
        """Take what the connection has said since, for its `OutputGate`."""
        return self.line.take(self.now_ms)

    def take_output(self) -> list[bytes]:
        """Return the output to write now, in order. While some output waits for the disk, no
        messages are taken from queues for this connection: they would only wait behind it."""
        gate = self.gate
        was_shut = gate.shut
        chunks = gate.take()
        line = self.line
        if line.content_bytes:
            line.content_bytes = gate.held_bytes()
        if was_shut:
            connection = self.connection
            if connection is not None and connection.gated != gate.shut:
                connection.gated = gate.shut
                if not connection.gated:
                    self.broker.clients.wake(connection)
        return chunks

    def shutdown(self, reason: str = "shutdown") -> None:
        """End the connection on request of the operator or the broker."""
        raise NotImplementedError

    def credential_expired(self) -> None:
        """End the connection, since what its client logged in with holds no longer."""
        self.shutdown("credential expired")

    def block(self, reason: str) -> None:
        """Announce, where the protocol can, that no input of the client is read for now."""

    def unblock(self) -> None:
        """Announce that input is read again."""

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
        """End a session that the engine has ended. effect.error has the reason, such as TooSlow
        [SC-9]."""
        raise NotImplementedError

    def close_consumer(self, effect: CloseConsumer) -> None:
        """End a consumer that the engine has ended; its session continues. Only for protocols whose
        consumers have links (`Consumer.by_link`)."""


class Waiter:
    """A waiter that a bridge passes to `Broker.await_durable`."""

    __slots__ = ("owner",)

    def __init__(self, owner: Bridge) -> None:
        self.owner = owner
        """Bridge whose output `durable` may add to."""

    def durable(self) -> None:
        """Continue: the records that it waited for are on disk."""
        raise NotImplementedError


@final
class Gate(Waiter):
    """A gate: output behind it waits for `waits` releases."""

    __slots__ = ("chunks", "waits")

    def __init__(self, owner: Bridge) -> None:
        super().__init__(owner)
        self.waits = 1
        self.chunks: list[bytes] = []

    def durable(self) -> None:
        """Count one release; the output leaves with the next take_output."""
        self.waits -= 1


@final
class OutputGate:
    """Orders one connection's output around its gates."""

    __slots__ = ("_fresh", "_gates", "_open", "_owner", "shut")

    def __init__(self, owner: Bridge) -> None:
        """owner: bridge whose `said` gives the new output."""
        self._owner: Bridge | None = owner
        self._open: list[bytes] = []
        """Output from before the first gate."""
        self._gates: list[Gate] = []  # mostly none: an empty deque takes 760 bytes
        self._fresh = False
        """True if the last gate was made since the last `take`."""
        self.shut = False
        """True while some output waits for the disk: there are gates."""

    def held_bytes(self) -> int:
        """Return the bytes that wait behind gates. O(chunks)."""
        size = 0
        for gate in self._gates:
            for chunk in gate.chunks:
                size += len(chunk)
        return size

    def let_go(self) -> None:
        """Drop all gates because the connection is gone."""
        self._owner = None

    def shut_for(self, broker: Broker) -> None:
        """Hold back all output from now on until the records emitted so far are on disk."""
        if self._fresh:
            gate = self._gates[-1]
            gate.waits += 1
        else:
            owner = self._owner
            if owner is None:
                return
            self._hold_back(owner)
            gate = Gate(owner)
            self._gates.append(gate)
            self._fresh = self.shut = True
        broker.await_durable(gate)

    def take(self) -> list[bytes]:
        """Return the output that may be written now, in order."""
        owner = self._owner
        if not self.shut:
            return [] if owner is None else owner.said()
        self._fresh = False
        gates = self._gates
        if owner is not None:
            self._hold_back(owner)
        passed = 0
        while passed < len(gates) and gates[passed].waits <= 0:
            self._open += gates[passed].chunks
            passed += 1
        del gates[:passed]
        self.shut = len(gates) > 0
        chunks = self._open
        self._open = []
        return chunks

    def _hold_back(self, owner: Bridge) -> None:
        """Move the output written since the last gate behind it."""
        if self._gates:
            self._gates[-1].chunks += owner.said()
        else:
            self._open += owner.said()
