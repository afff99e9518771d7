"""Transactions: `Transaction` as the application sees it, and its units of work in the protocol.

    async with session.transaction() as tx:
        async with await receiver.receive() as order:
            await sender.send(invoice_for(order))
    # both, or neither

A unit of work is what is settled and sent between two commits or rollbacks:

    NEW --first work--> BEGINNING --begun--> OPEN --commit, rollback--> ENDING --ended--> ENDED
    FAILED from any but ENDED: it was rolled back, unasked

It begins when something is done in it, and not before: one without work costs the broker nothing.
What is posted and settled before it has begun waits here in the client.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from types import TracebackType
from typing import Final, NewType, Protocol, Self, TypeVar, cast, final

from tallymark.client.errors import (
    ClientError,
    CommitUncertain,
    NotPossible,
    RollbackUncertain,
    TransactionError,
    TransactionRolledBack,
)

Tag = NewType("Tag", int)
"""Number of a delivery in its session. Tags only grow, however the protocol wraps its numbers."""
NO_TAG: Final[Tag] = Tag(-1)
"""Before all tags."""


def tags_of(first: Tag, last: Tag) -> Sequence[Tag]:
    """Return the tags first..last, ascending."""
    return cast("Sequence[Tag]", range(first, last + 1))


class Staged(Protocol):
    """A received message that is settled in a transaction."""

    tag: Tag

    def end_staged(self, error: ClientError | None) -> None: ...


class Coordinator(ABC):
    """The session that a transaction is one of, as the transaction needs it."""

    @abstractmethod
    async def enter(self, transaction: Transaction) -> None:
        """Open a transaction. Raises NotPossible where another one is in the way, or the broker has
        none; TimedOut; Closed."""

    @abstractmethod
    async def commit(self, transaction: Transaction, last: bool) -> None:
        """See Transaction.commit. `last`: its block ends."""

    @abstractmethod
    async def rollback(self, transaction: Transaction, last: bool) -> None:
        """See Transaction.rollback. Once asked for, it is done, whoever waits for it."""


class Stage(Enum):
    NEW = "new"
    BEGINNING = "beginning"
    OPEN = "open"
    ENDING = "ending"
    ENDED = "ended"
    FAILED = "failed"


@final
class Work:
    """A unit of work: what is settled and sent in one transaction of a session. The adapter calls
    begun, ended and failed."""

    __slots__ = (
        "_changed",
        "error",
        "handle",
        "is_committing",
        "returned",
        "settled",
        "stage",
        "unanswered",
    )

    def __init__(self, changed: Callable[[], None]) -> None:
        """`changed` is called at each change of its stage, and when every message sent in it has
        its outcome."""
        self._changed = changed
        self.stage = Stage.NEW
        self.handle = b""
        """The broker's id of the transaction, where the protocol has those."""
        self.settled: list[Staged] = []
        """Messages settled in it, in that order: each takes its slot until the end [TX-4]."""
        self.unanswered = 0
        """Messages sent in it whose outcome is not known yet."""
        self.returned = 0
        """Messages that the commit found no queue for."""
        self.is_committing = False
        """True for a commit, False for a rollback, in stage ENDING."""
        self.error: TransactionError | None = None
        """Reason why it failed, can only be rolled back, or was rolled back instead of
        committed."""

    @property
    def is_empty(self) -> bool:
        """Return whether nothing was done in it, so that there is nothing to end."""
        return self.stage is Stage.NEW and not self.settled and not self.unanswered

    @property
    def is_known(self) -> bool:
        """Return whether the broker was sent its begin, and not yet its end."""
        return self.stage is Stage.BEGINNING or self.stage is Stage.OPEN

    def check(self) -> None:
        """Raise TransactionRolledBack if nothing that is done in it from now on can take effect."""
        if self.error is not None:
            raise self.error.copied()

    def doom(self, error: TransactionError) -> None:
        """Mark it as one that can only be rolled back: not everything done in it can take
        effect."""
        if self.error is None and self.stage in (Stage.NEW, Stage.BEGINNING, Stage.OPEN):
            self.error = error
            self._changed()

    def answered(self) -> None:
        """Count one message less whose outcome is not known."""
        self.unanswered -= 1
        if not self.unanswered:
            self._changed()

    # Called by the adapter

    def begun(self) -> None:
        """Send what waited for the broker to begin the transaction."""
        if self.stage is Stage.BEGINNING:
            self.stage = Stage.OPEN
            self._changed()

    def ended(self, error: TransactionError | None, returned: int = 0) -> None:
        """Note the broker's answer to commit or rollback. `error`: of a commit, that it was rolled
        back instead, or that nobody knows. `returned`: messages that the commit found no queue
        for."""
        if self.stage is Stage.ENDING:
            self.stage = Stage.ENDED
            self.error = error
            self.returned = returned
            self._changed()

    def failed(self, error: TransactionError) -> None:
        """Mark it as failed: the broker could not begin it, or has rolled it back by itself."""
        if self.stage is not Stage.ENDED and self.stage is not Stage.FAILED:
            self.stage = Stage.FAILED
            self.error = error
            self._changed()

    # Called by the session

    def lose(self, error: ClientError) -> None:
        """Fail the unit: the session is gone, and the broker rolls back its open transactions
        [TX-16]."""
        if self.stage is not Stage.ENDING:
            if not self.is_empty:
                self.failed(rolled_back(f"with its session: {error}", error))
        elif self.is_committing:
            self.failed(caused(CommitUncertain(f"commit not answered: {error}"), error))
        else:
            self.failed(caused(RollbackUncertain(f"rollback not confirmed: {error}"), error))


def rolled_back(text: str, cause: ClientError | None = None) -> TransactionRolledBack:
    error = TransactionRolledBack(f"rolled back {text}")
    return error if cause is None else caused(error, cause)


E = TypeVar("E", bound=TransactionError)


def caused(error: E, cause: ClientError) -> E:
    error.__cause__ = cause
    error.condition = cause.condition
    error.is_remote = cause.is_remote
    return error


@final
class Transaction:
    """Made by `Session.transaction`, for one `async with`. Leaving the block commits; leaving it by
    an exception or a cancellation rolls back.

    `commit` and `rollback` may be called as often as you like inside the block, by any task, also
    in a handler: each ends what was done so far and begins the next one [TX-5]. Nothing is sent to
    the broker for one in which nothing was done.
    """

    def __init__(self, ready: Callable[[], Awaitable[Coordinator]], is_explicit: bool) -> None:
        self._ready = ready
        self._coordinator: Coordinator | None = None
        self.is_explicit = is_explicit
        self.commits = 0
        """Ends of either kind so far, which the broker has confirmed."""
        self.rollbacks = 0
        self.work: Work | None = None
        """The present unit of work; None: the block is over, or has not begun."""
        self.lock = asyncio.Lock()
        """Held while it ends: one commit or rollback at a time."""

    @property
    def is_open(self) -> bool:
        """Return whether it is inside its block."""
        return self.work is not None

    @property
    def coordinator(self) -> Coordinator:
        if self._coordinator is None:
            raise NotPossible("a transaction outside of its `async with` block")
        return self._coordinator

    def present(self) -> Work:
        """Return its present unit of work. Raises NotPossible outside of the
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
        await self.coordinator.commit(self, False)

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
        await self.coordinator.rollback(self, False)

    async def __aenter__(self) -> Self:
        if self._coordinator is not None:
            raise NotPossible("a transaction entered twice: each block has one of its own")
        coordinator = await self._ready()
        await coordinator.enter(self)
        self._coordinator = coordinator
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
                await self.coordinator.commit(self, True)
            except BaseException:
                await self._abandoned()
                raise
            return
        try:
            await self.coordinator.rollback(self, True)
        except RollbackUncertain:
            raise
        except ClientError as failed:
            error.add_note(f"and the transaction could not be rolled back: {failed}")

    async def _abandoned(self) -> None:
        """Roll back after a last commit that was never sent: it was cancelled before."""
        if self.work is not None:
            await self.coordinator.rollback(self, True)

    def __repr__(self) -> str:
        state = "open" if self.is_open else "over"
        return f"<transaction, {state}, {self.commits} commits, {self.rollbacks} rollbacks>"
