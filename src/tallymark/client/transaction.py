"""Transactions of a session, as the application sees them.

async with session.transaction() as tx:
    async with await receiver.receive() as order:
        await sender.send(invoice_for(order))
# both, or neither
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, final

from tallymark.client.errors import ClientError, NotPossible, RollbackUncertain
from tallymark.client.work import Work

if TYPE_CHECKING:
    from tallymark.client.dispatcher import Dispatcher


@final
class Transaction:
    """Made by `Session.transaction`, for one `async with`. Leaving the block commits; leaving it by
    an exception or a cancellation rolls back.

    `commit` and `rollback` may be called as often as you like inside the block, by any task, also
    in a handler: each ends what was done so far and begins the next one [TX-5]. Nothing is said to
    the broker for one in which nothing was done.
    """

    def __init__(self, ready: Callable[[], Awaitable[Dispatcher]], is_explicit: bool) -> None:
        self._ready = ready
        self._dispatcher: Dispatcher | None = None
        self.is_explicit = is_explicit
        self.commits = 0
        """Ends of either kind so far, of which the broker has said so."""
        self.rollbacks = 0
        self.work: Work | None = None
        """The dispatcher's; None: the block is over, or has not begun."""
        self.lock = asyncio.Lock()
        """The dispatcher's: one end at a time."""

    @property
    def is_open(self) -> bool:
        """Inside its block."""
        return self.work is not None

    @property
    def dispatcher(self) -> Dispatcher:
        if self._dispatcher is None:
            raise NotPossible("a transaction outside of its `async with` block")
        return self._dispatcher

    def present(self) -> Work:
        """Return its present unit of work, for the dispatcher. Raises NotPossible outside of the
        block."""
        if self.work is None:
            raise NotPossible("a transaction outside of its `async with` block")
        return self.work

    async def commit(self) -> None:
        """Everything sent and settled in it takes effect together; when this returns the broker has
        it safely. Waits for the outcomes of messages that other tasks are sending in it.

        Raises TransactionRolledBack where the broker does not, and where another task has rolled it
        back meanwhile: nothing took effect, and what was received comes again, as after `rollback`.
        CommitUncertain where the session went before the answer. MessagesReturned where it is
        committed and there was no queue for some messages. An answer takes at most the connection's
        `timeout`: then the session is ended, and the commit uncertain.

        Cancelled while it waits for messages that are being sent, nothing has happened. After that
        the commit is under way; the next call waits for its end first. `commits` counts.
        """
        await self.dispatcher.commit(self, False)

    async def rollback(self) -> None:
        """Roll back: messages sent in it are never published. **Everything** delivered on the
        session and not settled by a commit goes back to the broker and comes again, in its old
        order: what was settled in it, what the application holds, what is in the buffers [TX-19].
        When this returns the buffers are empty, and the next message is the first of those, where
        nobody else reads the queue.

        Waits for handlers that are at work on a message, but not for the one that calls it, nor for
        one that waits for a commit, a rollback, or a message itself [TX-20, TX-25]. Messages that
        were sent settled (`snd_mode="settled"`) stay in the buffers: nobody would send them again.

        Raises RollbackUncertain where the session goes meanwhile [TX-D2]. Where it was gone before,
        the broker has rolled back: this raises why it went, the end of a block does nothing. When
        it is cancelled it is under way all the same: nothing is handed over until it is done.
        """
        await self.dispatcher.rollback(self, False)

    async def __aenter__(self) -> Self:
        if self._dispatcher is not None:
            raise NotPossible("a transaction entered twice: each block has one of its own")
        dispatcher = await self._ready()
        await dispatcher.enter(self)
        self._dispatcher = dispatcher
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Raises as commit, or RollbackUncertain; any other failure of a rollback is noted on the
        error that left the block."""
        if error is None:
            try:
                await self.dispatcher.commit(self, True)
            except BaseException:
                await self._abandoned()
                raise
            return
        try:
            await self.dispatcher.rollback(self, True)
        except RollbackUncertain:
            raise
        except ClientError as failed:
            error.add_note(f"and the transaction could not be rolled back: {failed}")

    async def _abandoned(self) -> None:
        """Roll back after a last commit that was never sent: it was cancelled before."""
        if self.work is not None:
            await self.dispatcher.rollback(self, True)

    def __repr__(self) -> str:
        state = "open" if self.is_open else "over"
        return f"<transaction, {state}, {self.commits} commits, {self.rollbacks} rollbacks>"
