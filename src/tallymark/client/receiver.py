"""Receivers: where messages come from, in three forms, with one credit rule behind them [FC-17].

One by one (`receive`, `async for`); in batches, of up to n messages, or fewer when the time-out
ends [FC-24]; or with a handler: a few tasks that take a message, call the handler, settle, and take
the next [FC-23]. No task per message. What becomes of a message is decided in `Runner` whatever its
handler does: none leaks because a handler raises or is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self, TypeAlias, final

from tallymark.client.arguments import (
    OnError,
    OnSuccess,
    check_call,
    check_choice,
    check_int,
    check_timeout,
    check_type,
    listed,
)
from tallymark.client.consumer import Consumer, StateCallback
from tallymark.client.errors import (
    ClientError,
    Closed,
    NotPossible,
    SettlementRefused,
    TransactionError,
)
from tallymark.client.events import HandlerFailed, SettlementFailed, Unsettled
from tallymark.client.outcomes import (
    RELEASED,
    Outcome,
    OutcomeName,
    check_outcome,
    modified,
    named_outcome,
    rejected,
)
from tallymark.client.received import HELD, LOST, RETURNED, ReceivedMessage
from tallymark.client.topology import Declaring
from tallymark.client.transaction import Transaction
from tallymark.client.turn import Closing, answer_to


async def next_batch(consumer: Consumer, n: int, timeout: float | None) -> list[ReceivedMessage]:
    """Return up to n messages. See Receiver.receive_batch.

    They stay in the buffer until there are enough, or time is up: nobody holds them meanwhile.
    """
    if consumer.batching is not None:
        raise NotPossible("receive_batch while another one is under way")
    loop = consumer.dispatcher.loop
    end = None if timeout is None else loop.time() + timeout
    if consumer.is_manual and consumer.port is not None:
        missing = n - consumer.buffered - consumer.flow.promised
        if missing > 0:
            consumer.issue(missing)
    await _gathered(consumer, n, end)
    if consumer.is_manual and consumer.buffered < n:
        await consumer.end_batch()
    batch: list[ReceivedMessage] = []
    while len(batch) < n and consumer.buffered and (message := consumer.take()) is not None:
        batch.append(message)
    if not batch and consumer.error is not None:
        raise consumer.error.copied()
    return batch


async def _gathered(consumer: Consumer, n: int, end: float | None) -> None:
    """Wait until n messages are in the buffer, no more will come, or the time `end` is
    reached."""
    loop = consumer.dispatcher.loop
    while consumer.error is None and (consumer.buffered < n or consumer.dispatcher.is_stopped):
        remaining = None if end is None else end - loop.time()
        if remaining is not None and remaining <= 0:
            return
        consumer.batching = loop.create_future()
        parked = consumer.dispatcher.gate.park()
        try:
            await answer_to(consumer.batching, remaining)
        finally:
            consumer.batching = None
            consumer.dispatcher.gate.unpark(parked)


Handler: TypeAlias = Callable[[ReceivedMessage], Awaitable[object]]
Middleware: TypeAlias = Callable[[ReceivedMessage, Handler], Awaitable[object]]

ON_ERROR: Final = ("release", "reject", "modify", "ignore", "raise")


def composed(handler: Handler, middleware: Sequence[Middleware]) -> Handler:
    """Wrap a handler in middleware, the first outermost."""
    for layer in reversed(middleware):
        handler = _around(layer, handler)
    return handler


def _around(layer: Middleware, inner: Handler) -> Handler:
    def call(message: ReceivedMessage) -> Awaitable[object]:
        return layer(message, inner)

    return call


@final
class Runner:
    """A call of `Receiver.run`."""

    def __init__(
        self, consumer: Consumer, handler: Handler, on_success: OnSuccess, on_error: OnError
    ) -> None:
        self._consumer = consumer
        self._handler = handler
        self._on_success = on_success
        self._on_error = on_error
        self._failure: Exception | None = None
        self.raised: Exception | None = None
        """Exception raised by a handler, for on_error="raise"."""

    async def run(self, concurrency: int) -> None:
        """Run the handlers until the application closes the receiver."""
        if concurrency == 1:
            await self._work()
        else:
            async with asyncio.TaskGroup() as group:
                workers = [group.create_task(self._work()) for _ in range(concurrency)]
                try:
                    await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
                finally:  # one ends: the receiver is closed, or a handler failed for good
                    if self._failure is not None:
                        for worker in workers:
                            worker.cancel()
        if self._failure is not None:
            raise self._failure

    async def _work(self) -> None:
        consumer = self._consumer
        task = asyncio.current_task()
        assert task is not None
        while self._failure is None:
            try:
                message = consumer.take()
            except Closed as closed:
                if not closed.was_asked_for:
                    self._failure = closed
                return
            if message is None:
                await consumer.readable(None)
            elif message.state != LOST:  # a lost one cannot be settled and comes again
                await self._handle(message, task)
            del message  # who keeps it now, is the application

    async def _handle(self, message: ReceivedMessage, task: asyncio.Task[Any]) -> None:
        gate = self._consumer.dispatcher.gate
        gate.handler_begins(task)
        try:
            await self._handler(message)
            if self._on_success == "accept" and message.state in (HELD, LOST):
                await self._settle(message)
        except Exception as error:
            self._failed(message, error)
        except BaseException:
            self._give_back(message)
            raise
        finally:
            gate.handler_ended(task)

    async def _settle(self, message: ReceivedMessage) -> None:
        try:
            await message.accept()
        except (Closed, SettlementRefused, TransactionError) as error:
            self._not_settled(message, error)

    def _failed(self, message: ReceivedMessage, error: Exception) -> None:
        consumer = self._consumer
        on_error = self._on_error
        consumer.report(
            HandlerFailed(consumer.address, message.delivery_id, error, on_error), error
        )
        if on_error == "ignore":
            message.ignore()
            return
        if on_error == "raise" and self._failure is None:
            self._failure = self.raised = error
        if message.state == RETURNED:  # by a rollback of its own, or of another task
            return
        try:
            if on_error == "reject":
                message.settle_nowait(rejected(error))
            elif on_error == "modify":
                message.settle_nowait(modified(True, False, None))
            else:
                message.settle_nowait(RELEASED)
        except (Closed, TransactionError) as closed:
            self._not_settled(message, closed)

    def _give_back(self, message: ReceivedMessage) -> None:
        """Release the message: its handler was cancelled."""
        if message.state == RETURNED:
            return
        try:
            message.settle_nowait(RELEASED)
        except (Closed, TransactionError) as closed:
            self._not_settled(message, closed)

    def _not_settled(self, message: ReceivedMessage, error: ClientError) -> None:
        """Report a settlement that failed while no call waited for it; the broker delivers the
        message again."""
        consumer = self._consumer
        consumer.report(SettlementFailed(consumer.address, message.delivery_id, error))


@final
class Receiver(Closing):
    """Made by `Session.receiver`. Read it in one way at a time: `receive`, `async for`,
    `receive_batch`, or `run`; several tasks may read the same one, each message goes to one of
    them. Closed with `close`, or by `async with`."""

    def __init__(self, session: Declaring, consumer: Consumer) -> None:
        self.session = session
        self._consumer = consumer

    # Reading

    async def receive(self, timeout: float | None = None) -> ReceivedMessage:
        """The next message; `timeout` in seconds, None: wait for ever.

        Raises TimedOut, and Closed (LinkClosed, SessionClosed, ConnectionClosed) when the receiver
        is closed and everything buffered was read; what is read after that cannot be settled any
        more. A call that is cancelled or timed out has taken nothing.
        """
        if timeout is not None:
            check_timeout("timeout", timeout)
        return await self._consumer.next(timeout)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """Return the next message, as `receive` does; the loop ends when the application itself
        closes the receiver."""
        try:
            message = self._consumer.take()
            if message is None:
                message = await self._consumer.next(None)
        except Closed as closed:
            if closed.was_asked_for:
                raise StopAsyncIteration from None
            raise
        return message

    async def receive_batch(self, n: int, timeout: float | None) -> list[ReceivedMessage]:
        """Up to n messages: as many as come within `timeout` seconds (None: wait for all n).

        With credit_mode="manual" it asks for them itself: issues credit for what is not buffered
        yet, and drains the rest when time is up, so that nothing comes behind its back [FC-24].
        (From a peer that does not answer a drain within 5 s the credit is taken back instead; what
        was on its way is in the next batch.)
        With credit_mode="auto" it reads what the window brings, so n is at most its size.

        Raises Closed when there is nothing to return; NotPossible while another batch is awaited. A
        cancelled call has taken nothing; in manual mode the credit it issued stays issued.
        """
        consumer = self._consumer
        check_int("n", n, 1)
        check_timeout("timeout", timeout)
        if not consumer.is_manual and n > consumer.window.size:
            raise ValueError(
                f"a batch of {n} from a window of {consumer.window.size}: pass credit={n} or "
                "credit_mode='manual'"
            )
        return await next_batch(consumer, n, timeout)

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        on_success: OnSuccess = "accept",
        on_error: OnError = "release",
        middleware: Sequence[Middleware] = (),
    ) -> None:
        """Call `handler(message)` for each message, `concurrency` at a time, until the receiver is
        closed [FC-23].

        on_success: what happens when it returns: "accept", or None: the handler settles, now or
            later; its slot is free when it does.
        on_error: what happens when it raises, unless it has settled the message:
            "release"   the broker makes it available again
            "reject"    the broker drops or dead-letters it, with the error's text
            "modify"    as release, counted as failed
            "ignore"    nothing, see `ReceivedMessage.ignore`
            "raise"     the message is released, the receiver closed, and the error raised from here
        middleware: `async def layer(message, handler)` calls `await handler(message)` where it
            sees fit; the first is the outermost.

        Returns when the application closes the receiver, its session or its connection; raises
        Closed when the peer does. When it is cancelled, so are the handlers, and their messages
        are released.
        """
        consumer = self._consumer
        check_call("handler", handler)
        check_choice("on_error", on_error, ON_ERROR)
        check_choice("on_success", on_success, ("accept", None))
        check_int("concurrency", concurrency, 1)
        layers = listed("middleware", middleware, "a list of functions")
        for layer in layers:
            check_call("middleware", layer)
        if not consumer.is_manual and concurrency > consumer.window.size:
            raise ValueError(
                f"{concurrency} handlers at a time with a window of {consumer.window.size}: "
                f"pass credit={concurrency} or more to session.receiver"
            )
        runner = Runner(consumer, composed(handler, layers), on_success, on_error)
        try:
            await runner.run(concurrency)
        except Exception as error:
            if error is runner.raised:
                await self._close_after(error)
            raise

    async def _close_after(self, error: Exception) -> None:
        try:
            await self.close()
        except ClientError as failed:
            error.add_note(f"and the receiver could not be closed: {failed}")

    # Settling many

    async def settle_many(
        self,
        messages: Iterable[ReceivedMessage],
        outcome: Outcome | OutcomeName,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """Settle messages alike, in as few frames as their numbers allow: one for each stretch of
        consecutive ones. They may be of any receiver of this client: each settles through its own.

        In mode second this waits for the sender's answers. Messages that are settled already are
        left as they are. Raises what the first one raises that fails, when all have been tried. A
        cancelled call leaves all of them settled, or under way.

        outcome: or "accept", "reject", "release", "modify" (counted as failed).

        Raises TypeError, ValueError or NotPossible, and settles none, where one of `messages` is
        no message that was received, or `outcome` is none, or one that the protocol cannot express.
        """
        tried = listed("messages", messages, "received messages")
        chosen = named_outcome(outcome)
        check_outcome(chosen)
        if transaction is not None:
            check_type("transaction", transaction, Transaction, "a Transaction or None")
        for message in tried:
            if not isinstance(message, ReceivedMessage):
                raise TypeError(f"settle_many of {message!r:.80}, expected received messages")
        for consumer in {message.consumer for message in tried}:
            consumer.check(chosen)
        failure: ClientError | None = None
        for message in tried:
            try:
                message.settle_nowait(chosen, transaction=transaction)
            except ClientError as error:
                failure = failure or error
        for message in tried:
            try:
                await message.settlement()
            except ClientError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def on_delivery_state_changed(self, callback: StateCallback | None) -> StateCallback | None:
        """Call `callback(message, outcome)` when the sender changes the state of a message that the
        application still holds: it takes it back (Released, Modified) because its time is up, or
        settles it (None: without an outcome). The message is settled then, its slot free, and
        settling it changes nothing [FC-18]. One callback; returns it, so this decorates."""
        check_call("callback", callback, optional=True)
        self._consumer.on_state_changed = callback
        return callback

    # Credit by hand [FC-14]

    def issue_credit(self, n: int) -> None:
        """Let the peer send n more messages. Raises NotPossible unless credit_mode="manual", and
        while a drain is under way; Closed when the receiver is."""
        check_int("n", n, 1)
        self._consumer.issue(n)

    async def drain(self) -> int:
        """Have the peer use its credit or give it up; returns how much it gave up. When this
        returns there is no credit, and everything that was sent is in the buffer [FC-5].

        Raises as `issue_credit`. When it is cancelled, the drain is still under way, and the credit
        is unknown until the peer has answered; until then neither `drain` nor `issue_credit` are
        possible.
        """
        return await self._consumer.drain()

    # Properties

    @property
    def address(self) -> str:
        """The peer's name of the source; of a dynamic receiver, the address to send to."""
        return self._consumer.address

    @property
    def name(self) -> str:
        """Name of the link."""
        return self._consumer.name

    @property
    def settle_mode(self) -> str:
        """rcv-settle-mode in effect: "first" or "second"."""
        return self._consumer.mode

    @property
    def filter(self) -> Mapping[str, object]:
        """Source filters in effect: a broker leaves out those that it does not know."""
        return self._consumer.filter

    @property
    def credit(self) -> int:
        """Messages that the peer may send now."""
        return self._consumer.credit

    @property
    def buffered(self) -> int:
        """Messages that arrived and were not read."""
        return self._consumer.window.buffered

    @property
    def unsettled(self) -> int:
        """Messages that were read and take a slot of the window."""
        return self._consumer.window.held

    @property
    def window(self) -> int:
        """Slots: at no time are credit, buffered and unsettled together more. 0: by hand."""
        return self._consumer.window.size

    @property
    def oldest_unsettled_age(self) -> int:
        """Milliseconds since the application was given the message it holds for longest; 0 when it
        holds none. O(unsettled)."""
        return self._consumer.leaks.oldest_age_ms()

    def unsettled_messages(self, most: int = 20) -> tuple[Unsettled, ...]:
        """The oldest messages the application holds, by name and age."""
        check_int("most", most, 0)
        return self._consumer.leaks.unsettled(most)

    @property
    def ignored_total(self) -> int:
        """Messages ever ignored: the broker holds them for us [FC-25]."""
        return self._consumer.window.ignored

    @property
    def settled_total(self) -> int:
        return self._consumer.inbox.settled_total

    @property
    def is_closed(self) -> bool:
        """Return whether it is closed by either side, or is being closed."""
        return self._consumer.is_closed

    # The end

    async def close(self) -> None:
        """Detach. What was settled before is sent first; what the application or the buffer
        still holds goes back to the broker, and settling it raises LinkClosed. What is buffered can
        be read all the same.

        Does nothing if it is closed. Raises TimedOut when the peer does not answer: then it is
        closed on our side. A cancelled call leaves the detach under way.
        """
        await self._consumer.detach()

    def __repr__(self) -> str:
        return f"<receiver of {self.address!r}>"
