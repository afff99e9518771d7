"""The handler form of receiving: a few tasks that take, call, settle, and take the next [FC-23].

No task per message. What becomes of a message is decided here whatever its handler does: none
leaks because a handler raises or is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from tallymark.client.errors import ClientError, Closed, SettlementRefused, TransactionError
from tallymark.client.events import HandlerFailed, SettlementFailed
from tallymark.client.options import OnError, OnSuccess
from tallymark.client.outcomes import RELEASED, modified, rejected
from tallymark.client.received import HELD, LOST, RETURNED, ReceivedMessage

if TYPE_CHECKING:
    from tallymark.client.consumer import Consumer

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
