"""Reading the messages of a receiver: one by one, in batches, or by handlers, with one credit rule
behind them [FC-17].

One by one (`receive`, `async for`); in batches, of up to n messages, or fewer when the time-out
ends [FC-24]; or with a handler: a few tasks that take a message, call the handler, settle, and take
the next [FC-23]. No task per message. What becomes of a message is decided in `Runner` whatever its
handler does: none leaks because a handler raises or is cancelled.

Waiting readers are woken with nothing in their hands: who gets a message is decided when it is
taken (`Readers.take`), so nobody holds one across an await, or when cancelled [TX-18, TX-21].
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias, final

from tallymark.client.adapter import ReceiverOwner
from tallymark.client.arguments import OnError, OnSuccess
from tallymark.client.deliveries import Deliveries
from tallymark.client.errors import (
    ClientError,
    Closed,
    NotPossible,
    SettlementRefused,
    TimedOut,
    TransactionError,
)
from tallymark.client.events import HandlerFailed, SettlementFailed
from tallymark.client.inbox import Inbox, LeakWatch
from tallymark.client.link import Flow
from tallymark.client.outcomes import RELEASED, modified, rejected
from tallymark.client.received import BUFFERED, HELD, LOST, RETURNED, SETTLED, ReceivedMessage
from tallymark.client.turn import TIME_IS_UP, Waiter, answer_to, resolve


@final
class Readers:
    """Calls that wait for a message of one receiver, and the step in which one gets it."""

    __slots__ = (
        "_batching",
        "_dispatcher",
        "_evaluate_later",
        "_flow",
        "_inbox",
        "_leaks",
        "_waiters",
        "gate",
        "owner",
    )

    def __init__(
        self,
        owner: ReceiverOwner,
        dispatcher: Deliveries,
        inbox: Inbox,
        flow: Flow,
        leaks: LeakWatch,
        evaluate_later: Callable[[], None],
    ) -> None:
        """`evaluate_later` has the credit looked at, where taking a message may free a slot."""
        self.owner = owner
        self.gate = dispatcher.gate
        self._dispatcher = dispatcher
        self._inbox = inbox
        self._flow = flow
        self._leaks = leaks
        self._evaluate_later = evaluate_later
        self._waiters: deque[Waiter] = deque()
        self._batching: Waiter | None = None
        """Waiter of the call that waits for a batch."""

    @property
    def _buffered(self) -> int:
        """Number of messages that can be read."""
        return len(self._inbox.buffer)

    def take(self) -> ReceivedMessage | None:
        """The next message, if the application may have one now. Raises the error after the last
        one of a closed receiver [FC-19]."""
        inbox = self._inbox
        if not inbox.buffer:
            error = self.owner.error
            if error is not None:
                raise error.copied()
            return None
        if self.gate.is_shut:
            return None
        message = inbox.buffer.popleft()
        window = inbox.window
        window.buffered -= 1
        if message.state == BUFFERED:
            dispatcher = self._dispatcher
            assert message.tag > dispatcher.rollback_mark, (message.tag, dispatcher.rollback_mark)
            inbox.hold(message, dispatcher.turn.now_ms())
            if self._leaks.is_on:
                self._leaks.taken()
            if window.on_handover:
                self._evaluate_later()
        elif message.state == SETTLED:  # its slot comes back now [FC-10]
            inbox.last_tag = message.delivery_tag
            self._evaluate_later()
        return message

    async def next(self, timeout: float | None) -> ReceivedMessage:
        """The next message, when there is one. See Receiver.receive."""
        loop = self._dispatcher.loop
        end = None if timeout is None else loop.time() + timeout
        while True:
            message = self.take()
            if message is not None:
                return message
            remaining = None if end is None else end - loop.time()
            if remaining is not None and remaining <= 0:
                raise TimedOut(f"no message from {self.owner.address!r} within {timeout} s")
            await self.readable(remaining)

    async def readable(self, timeout: float | None) -> None:
        """Wait until a message may be in the buffer, or the time-out ends. The caller checks
        again."""
        waiter: Waiter = self._dispatcher.loop.create_future()
        self._waiters.append(waiter)
        parked = self.gate.park()
        try:
            result = await answer_to(waiter, timeout)
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self._wake(1)  # it was woken and cannot take: wake another
            self._forget(waiter)
            raise
        finally:
            self.gate.unpark(parked)
        if result is TIME_IS_UP:
            self._forget(waiter)

    def _forget(self, waiter: Waiter) -> None:
        """Remove a waiting call; `_wake` may have removed it already."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    # Waking

    def arrived(self, count: int) -> None:
        """Wake those that wait: so many messages have arrived in the buffer."""
        if self._waiters or self._batching is not None:
            self._wake(count)

    def resumed(self) -> None:
        """Wake those that the buffer has messages for: delivery goes on."""
        self._wake(self._buffered)

    def end(self) -> None:
        """Wake all: the receiver is closed."""
        self._wake(len(self._waiters))

    def _wake(self, count: int) -> None:
        """Let so many readers look whether there is something for them."""
        if self._batching is not None:
            resolve(self._batching, None)
        waiters = self._waiters
        while count > 0 and waiters:
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    # Batches

    async def batch(self, n: int, timeout: float | None) -> list[ReceivedMessage]:
        """Return up to n messages. See Receiver.receive_batch.

        They stay in the buffer until there are enough, or time is up: nobody holds them meanwhile.
        """
        if self._batching is not None:
            raise NotPossible("receive_batch while another one is under way")
        loop = self._dispatcher.loop
        end = None if timeout is None else loop.time() + timeout
        flow = self._flow
        if flow.is_manual:
            missing = n - self._buffered - flow.promised
            if missing > 0:
                flow.ask(missing)
        await self._gathered(n, end)
        if flow.is_manual and self._buffered < n:
            await flow.end_batch()
        batch: list[ReceivedMessage] = []
        while len(batch) < n and self._buffered and (message := self.take()) is not None:
            batch.append(message)
        if not batch and self.owner.error is not None:
            raise self.owner.error.copied()
        return batch

    async def _gathered(self, n: int, end: float | None) -> None:
        """Wait until n messages are in the buffer, no more will come, or the time `end` is
        reached."""
        loop = self._dispatcher.loop
        while self.owner.error is None and (self._buffered < n or self.gate.is_shut):
            remaining = None if end is None else end - loop.time()
            if remaining is not None and remaining <= 0:
                return
            self._batching = loop.create_future()
            parked = self.gate.park()
            try:
                await answer_to(self._batching, remaining)
            finally:
                self._batching = None
                self.gate.unpark(parked)


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
        self, readers: Readers, handler: Handler, on_success: OnSuccess, on_error: OnError
    ) -> None:
        self._readers = readers
        self._owner = readers.owner
        self._handler = handler
        self._on_success = on_success
        self._on_error = on_error
        self._failure: BaseException | None = None
        self.raised: BaseException | None = None
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
        readers = self._readers
        task = asyncio.current_task()
        assert task is not None
        while self._failure is None:
            try:
                message = readers.take()
            except Closed as closed:
                if not closed.was_asked_for:
                    self._failure = closed
                return
            if message is None:
                await readers.readable(None)
            elif message.state != LOST:  # a lost one cannot be settled and comes again
                await self._handle(message, task)
            del message  # who keeps it now, is the application

    async def _handle(self, message: ReceivedMessage, task: asyncio.Task[Any]) -> None:
        gate = self._readers.gate
        gate.handler_begins(task)
        try:
            await self._handler(message)
            if self._on_success == "accept" and message.state in (HELD, LOST):
                await self._settle(message)
        except Exception as error:
            self._failed(message, error)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and not task.cancelling():
                self._failed(message, error)  # of a task that the handler waited for
            else:
                self._give_back(message)
                raise
        finally:
            gate.handler_ended(task)

    async def _settle(self, message: ReceivedMessage) -> None:
        try:
            await message.accept()
        except (Closed, SettlementRefused, TransactionError) as error:
            self._not_settled(message, error)

    def _failed(self, message: ReceivedMessage, error: BaseException) -> None:
        owner = self._owner
        on_error = self._on_error
        owner.report(HandlerFailed(owner.address, message.delivery_id, error, on_error), error)
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
        owner = self._owner
        owner.report(SettlementFailed(owner.address, message.delivery_id, error))
