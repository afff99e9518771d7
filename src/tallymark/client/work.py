"""One transaction of the protocol's, and what was done in it.

    NEW --first work--> BEGINNING --begun--> OPEN --commit, rollback--> ENDING --ended--> ENDED
    FAILED from any but ENDED: it was rolled back, unasked

It begins when something is done in it, and not before: one without work costs the broker nothing.
What is posted and settled before it has begun waits here in the client.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, final

from tallymark.client.errors import ClientError

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
    """Of one session. The adapter calls begun, ended and failed."""

    __slots__ = ("dispatcher", "error", "handle", "returned", "settled", "stage", "unanswered")

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.stage = Stage.NEW
        self.handle: object = None
        """The adapter's own, such as a transaction's id."""
        self.settled: list[ReceivedMessage] = []
        """What was settled in it, in that order: each takes its slot until the end [TX-4]."""
        self.unanswered = 0
        """Messages posted in it whose outcome is not known yet."""
        self.returned = 0
        """Messages that the broker gave back at the commit."""
        self.error: ClientError | None = None
        """Why it failed."""

    @property
    def is_empty(self) -> bool:
        """Nothing was done in it: there is nothing to end."""
        return self.stage is Stage.NEW and not self.settled and not self.unanswered

    # Called by the adapter

    def begun(self) -> None:
        """What waits for it may be said."""
        if self.stage is Stage.BEGINNING:
            self.stage = Stage.OPEN
            self.dispatcher.work_changed(self)

    def ended(self, error: ClientError | None, returned: int = 0) -> None:
        """The broker's answer to commit or rollback. `error`: of a commit, that it was rolled back
        instead. `returned`: messages which the commit found no queue for."""
        if self.stage is Stage.ENDING:
            self.stage = Stage.ENDED
            self.error = error
            self.returned = returned
            self.dispatcher.work_changed(self)

    def failed(self, error: ClientError) -> None:
        """The broker could not begin it, or has rolled it back unasked."""
        if self.stage is not Stage.ENDED and self.stage is not Stage.FAILED:
            self.stage = Stage.FAILED
            self.error = error
            self.dispatcher.work_changed(self)
