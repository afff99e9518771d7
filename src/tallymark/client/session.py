"""Sessions: an ordered conversation on a connection, with its receivers and senders."""

from __future__ import annotations

import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal, TypeVar, final

from tallymark.client.arguments import (
    CreditMode,
    CreditOn,
    ReceiverOptions,
    ReceiverSettleMode,
    SenderOptions,
    SenderSettleMode,
    check_call,
    check_flag,
)
from tallymark.client.deliveries import ErrorCallback, State
from tallymark.client.dispatcher import Dispatcher
from tallymark.client.errors import SessionClosed, TimedOut
from tallymark.client.receiver import Consumer, Receiver
from tallymark.client.sender import Producer, Sender
from tallymark.client.topology import Declaring, QueueState, Request
from tallymark.client.transaction import Transaction
from tallymark.client.turn import TIME_IS_UP, Closing, Opening, Waiter, answer_to

C = TypeVar("C", bound=ErrorCallback)

HANDOVER_WARNING = (
    "credit_on='handover' gives a slot back when its message is handed over, not when it is "
    "settled: the broker locks messages that no handler is ready for, their locks expire and they "
    "are delivered again. Use the default, and a larger credit= where more messages at a time "
    "are wanted"
)


class SessionHost(ABC):
    """The connection, as its sessions need it."""

    @abstractmethod
    def session(self) -> Opening[Session]:
        """Begin another session."""

    @abstractmethod
    async def ready(self, timeout: float | None = None) -> None:
        """Wait until the connection is there."""

    @abstractmethod
    async def ask(self, request: Request) -> QueueState | None:
        """Carry out a request of a session to declare, delete, ... See `Session.declare_queue`."""


@final
class Session(Declaring, Closing):
    """Made by `Connection.session`. Closed with `close`, or by `async with`; its senders and
    receivers are closed with it. What it declares outlives it, see `Declaring`."""

    def __init__(self, connection: SessionHost, dispatcher: Dispatcher, timeout_s: float) -> None:
        self.connection = connection
        self.timeout_s = timeout_s
        self._dispatcher = dispatcher

    def receiver(
        self,
        address: str | None,
        *,
        credit: int = 1,
        credit_mode: CreditMode = "auto",
        credit_on: CreditOn = "settlement",
        rcv_mode: ReceiverSettleMode | None = None,
        snd_mode: SenderSettleMode | None = None,
        browse: bool = False,
        dynamic: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        filter: Mapping[str, object] | None = None,
        capabilities: tuple[str, ...] = (),
        properties: Mapping[str, object] | None = None,
        max_unsettled_age: int | Literal["lock"] | None = None,
        release_overdue: bool = True,
        stall_warning_ms: int = 60_000,
        name: str | None = None,
    ) -> Opening[Receiver]:
        """Receive from an address: `receiver = await session.receiver("/queues/orders")`, or
        `async with session.receiver(...) as receiver:`.

        credit: the window: how many messages may be on their way, buffered, or with the application
            and not settled, all together. **Each message has to be settled, or ignored**, to make
            room for another one; see docs/credit.md.
        credit_mode: "manual": no window, you say how much may come: `issue_credit`, `drain`,
            `receive_batch`. After a reconnect, credit that was not used is issued again.
        credit_on: "handover" is the deprecated contract of old clients: see the warning.
        rcv_mode: "first" settles with one message to the broker that nobody answers; "second" waits
            for its answer. None: whatever the broker likes.
        snd_mode: "settled": at most once, a message is settled when it is sent; nothing is left to
            settle, its slot is free when it is read. None: as the broker likes, unsettled mostly.
        browse: look at messages without taking them (distribution-mode copy).
        dynamic: the broker makes a node with an address of its own: `receiver.address`.
        durable: the source outlives the link, where the broker has that.
        exclusive: nobody else may consume from the queue meanwhile, where the broker has that.
        filter: source filters, see `tallymark.client.filters`; several are joined with `|`.
        max_unsettled_age: how long a message may stay unsettled, in milliseconds, or "lock": as
            long as the broker holds its lock (x-opt-locked-until). At 80 % of it a warning names
            the message; then (of a lock: at 90 %) it is released, unless release_overdue=False.
        stall_warning_ms: how long all slots may be taken without any settlement before a warning
            names who takes them; 0: for ever.
        name: of the link; unique on this connection.

        Raises ValueError for arguments that do not go together, LinkRefused where the peer does not
        want it, TimedOut, and Closed. When it is cancelled or times out, no receiver remains.
        """
        if credit_on == "handover":
            warnings.warn(HANDOVER_WARNING, DeprecationWarning, stacklevel=2)
        options = ReceiverOptions(
            address=address,
            name=name or _link_name(address),
            credit=credit,
            credit_mode=credit_mode,
            credit_on=credit_on,
            rcv_mode=rcv_mode,
            snd_mode=snd_mode,
            browse=browse,
            dynamic=dynamic,
            durable=durable,
            exclusive=exclusive,
            filter=filter,
            capabilities=capabilities,
            properties=properties,
            max_unsettled_age=max_unsettled_age,
            release_overdue=release_overdue,
            stall_warning_ms=stall_warning_ms,
        )
        return Opening(lambda: self._receiver(options))

    def sender(
        self,
        address: str | None,
        *,
        settle_mode: SenderSettleMode | None = None,
        rcv_mode: ReceiverSettleMode | None = None,
        dynamic: bool = False,
        durable: bool = False,
        capabilities: tuple[str, ...] = (),
        properties: Mapping[str, object] | None = None,
        name: str | None = None,
    ) -> Opening[Sender]:
        """Send to an address: `sender = await session.sender("/queues/orders")`, or
        `async with session.sender(...) as sender:`.

        address: None, and not dynamic: the anonymous terminus; each message says where it goes.
        settle_mode: "settled": messages are sent settled, nobody says what became of them.
            "unsettled", "mixed": see `Sender.send`. None: as the peer likes.
        rcv_mode: "second": the receiver shall settle only when we have confirmed its outcome.

        Otherwise as `receiver`.
        """
        options = SenderOptions(
            address=address,
            name=name or _link_name(address),
            settle_mode=settle_mode,
            rcv_mode=rcv_mode,
            dynamic=dynamic,
            durable=durable,
            capabilities=capabilities,
            properties=properties,
        )
        return Opening(lambda: self._sender(options))

    async def _ask(self, request: Request, restore: bool = True) -> QueueState | None:
        check_flag("restore", restore)
        dispatcher = self._dispatcher
        if dispatcher.error is not None:
            raise dispatcher.error.copied()
        answer = await self.connection.ask(request)
        dispatcher.topology.record(request, restore)
        return answer

    async def _receiver(self, options: ReceiverOptions) -> Receiver:
        dispatcher = await self._ready()
        consumer = Consumer(dispatcher, options)
        dispatcher.consumers.append(consumer)
        await consumer.open()
        return Receiver(self, consumer)

    async def _sender(self, options: SenderOptions) -> Sender:
        dispatcher = await self._ready()
        producer = Producer(dispatcher, options)
        dispatcher.producers.append(producer)
        await producer.open()
        return Sender(self, producer)

    async def _ready(self) -> Dispatcher:
        """Wait for the connection and return the dispatcher; forgets links that were closed."""
        await self.connection.ready(self.timeout_s)
        dispatcher = self._dispatcher
        if dispatcher.error is not None:
            raise dispatcher.error.copied()
        dispatcher.forget_closed()
        return dispatcher

    def on_error(self, callback: C) -> C:
        """Call `callback(error)` once for each error that takes a link, the session or the
        connection away without the application asking for it, besides what calls that wait raise.
        `error.scope` says what is gone. Returns the callback, so this decorates."""
        check_call("callback", callback)
        self._dispatcher.callbacks.append(callback)
        return callback

    async def stop(self) -> None:
        """Hand over no more messages until `resume`: when this returns, no handler of `run` is at
        work on one, and readers wait. Messages go on arriving into the buffers, up to the credit.

        Called from inside a handler it does not wait for that one. When it is cancelled, the
        session is stopping all the same: nothing is handed over until `resume`.
        """
        await self._dispatcher.gate.stop()

    def resume(self) -> None:
        """Go on after `stop`."""
        self._dispatcher.gate.resume()

    # Transactions

    def transaction(self, *, explicit: bool = False) -> Transaction:
        """`async with session.transaction() as tx:` what is sent and settled on this session until
        the end of the block takes effect all together, or not at all; see `Transaction` and
        docs/client.md. One at a time.

        explicit: only what names it (`sender.send(message, transaction=tx)`,
            `message.accept(transaction=tx)`) is in it, and several may be open side by side; not
            together with one of the session. AMQP 1.0 only, where the broker has that. Its rollback
            gives back what was settled in it and nothing else; it does not stop deliveries.

        Entering raises NotPossible where one is in the way, LinkRefused or NotPossible where the
        broker has no transactions, TimedOut, and Closed. When that is cancelled, there is none.
        """
        check_flag("explicit", explicit)
        return Transaction(self._ready, explicit)

    async def recover(self) -> None:
        """Give back everything that was delivered on this session and is not settled, also what is
        held by the application: it comes again, in its old order, and redelivered. What is settled
        in an open transaction stays in it, what was ignored stays ignored [TX-8, TX-26].

        From inside a handler it does not wait for that one; for others it does, as `stop`. When it
        is cancelled it is under way all the same. Raises RollbackUncertain where the session goes
        meanwhile, and Closed."""
        await self._dispatcher.recover()

    @property
    def is_closed(self) -> bool:
        return self._dispatcher.state is State.CLOSED

    async def close(self) -> None:
        """End the session: its senders and receivers are closed, see there. What was settled and
        sent before goes out first, a commit or rollback that is under way ends first; a transaction
        that is open is rolled back [TX-7, TX-16].

        Does nothing if it is closed. Raises TimedOut when the peer does not answer: then it is
        closed on our side. A cancelled call leaves the end under way.
        """
        dispatcher = self._dispatcher
        if dispatcher.state is State.CLOSED and not dispatcher.is_ending:
            return
        await dispatcher.endings()
        waiter: Waiter = dispatcher.loop.create_future()
        dispatcher.closing.append(waiter)
        if dispatcher.state is not State.CLOSED:
            dispatcher.turn.finish()
            error = SessionClosed("closed by the application")
            error.was_asked_for = True
            dispatcher.begin_close(error)
            dispatcher.turn.request()
        if await answer_to(waiter, self.timeout_s) is TIME_IS_UP:
            dispatcher.ended()
            raise TimedOut(f"end of a session not answered in {self.timeout_s} s")


def _link_name(address: str | None) -> str:
    return f"{address or 'link'}-{uuid.uuid4().hex[:12]}"
