"""A transaction of the protocol, and what is settled and sent in it.

    NEW --first work--> BEGINNING --begun--> OPEN --commit, rollback--> ENDING --ended--> ENDED
    FAILED from any but ENDED: it was rolled back, unasked

It begins when something is done in it, and not before: one without work costs the broker nothing.
What is posted and settled before it has begun waits here in the client.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, TypeVar, final

from tallymark.client.errors import (
    ClientError,
    CommitUncertain,
    RollbackUncertain,
    TransactionError,
    TransactionRolledBack,
)

if TYPE_CHECKING:
    from tallymark.client.dispatcher import Dispatcher
    from tallymark.client.received import ReceivedMessage


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
        "dispatcher",
        "error",
        "handle",
        "is_committing",
        "returned",
        "settled",
        "stage",
        "unanswered",
    )

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.stage = Stage.NEW
        self.handle: object = None
        """The adapter's own, such as a transaction's id."""
        self.settled: list[ReceivedMessage] = []
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
            raise self.error.again()

    def doom(self, error: TransactionError) -> None:
        """Mark it as one that can only be rolled back: not everything done in it can take
        effect."""
        if self.error is None and self.stage in (Stage.NEW, Stage.BEGINNING, Stage.OPEN):
            self.error = error
            self.dispatcher.work_changed(self)

    def answered(self) -> None:
        """Count one message less whose outcome is not known."""
        self.unanswered -= 1
        if not self.unanswered:
            self.dispatcher.work_changed(self)

    # Called by the adapter

    def begun(self) -> None:
        """Send what waited for the broker to begin the transaction."""
        if self.stage is Stage.BEGINNING:
            self.stage = Stage.OPEN
            self.dispatcher.work_changed(self)

    def ended(self, error: TransactionError | None, returned: int = 0) -> None:
        """The broker's answer to commit or rollback. `error`: of a commit, that it was rolled back
        instead, or that nobody knows. `returned`: messages that the commit found no queue for."""
        if self.stage is Stage.ENDING:
            self.stage = Stage.ENDED
            self.error = error
            self.returned = returned
            self.dispatcher.work_changed(self)

    def failed(self, error: TransactionError) -> None:
        """Mark it as failed: the broker could not begin it, or has rolled it back by itself."""
        if self.stage is not Stage.ENDED and self.stage is not Stage.FAILED:
            self.stage = Stage.FAILED
            self.error = error
            self.dispatcher.work_changed(self)

    # Called by the dispatcher

    def lost(self, error: ClientError) -> None:
        """Fail it: the session is gone, and the broker rolls back its open transactions [TX-16]."""
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
