"""Received messages: the properties of one, its state, and its settlement; and the settlements of
a turn, which leave together as ranges."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Final, NamedTuple, Self, final
from uuid import UUID

from tallymark.client.errors import ClientError, SettlementRefused
from tallymark.client.events import Event, SettlementFailed, tag_as_uuid
from tallymark.client.message import Message, datetime_of
from tallymark.client.outcomes import (
    ACCEPTED,
    RELEASED,
    Error,
    Outcome,
    OutcomeName,
    Rejected,
    modified,
    named_outcome,
    rejected,
)
from tallymark.client.transaction import NO_TAG, Tag, Transaction, Work, tags_of
from tallymark.client.turn import Waiter, answer_to

STREAM_OFFSET: Final = "x-stream-offset"
LOCKED_UNTIL: Final = "x-opt-locked-until"

BUFFERED: Final = 0
"""A state of a received message: waits to be read."""
HELD: Final = 1
"""The application has it and has not settled it."""
SETTLING: Final = 2
"""Settled by the application; the sender's answer is awaited (mode second)."""
SETTLED: Final = 3
IGNORED: Final = 4
LOST: Final = 5
"""Its link ended before it was settled: the broker delivers it again."""
STAGED: Final = 6
"""Settled in a transaction that has not ended."""
RETURNED: Final = 7
"""Given back to the broker by a rollback or by recover: it comes again."""


class MessageOwner(ABC):
    """The receiver that a message came on, as the message needs it."""

    address: str

    @abstractmethod
    def check(self, outcome: Outcome) -> None:
        """Raise TypeError or ValueError for a value that is no outcome, NotPossible for one that
        the protocol cannot express."""

    @abstractmethod
    def settle(
        self, message: ReceivedMessage, outcome: Outcome, transaction: Transaction | None = None
    ) -> None:
        """Settle a message that the application holds, at the end of the turn with others; in a
        transaction, if that is committed. Does nothing to one that is settled already, or ignored.

        Raises Closed where the link is gone, TransactionRolledBack where the transaction is or a
        rollback has given the message back, and as `check`.
        """

    @abstractmethod
    def settle_second(self, first: Tag, last: Tag, outcome: Outcome, work: Work | None) -> None:
        """Send the settlement of these tags, in two steps, unless the link is gone [FC-12]."""

    @abstractmethod
    def release_unread(self, message: ReceivedMessage) -> None:
        """Release a buffered message that was never read."""

    @abstractmethod
    def ignore(self, message: ReceivedMessage) -> None:
        """See ReceivedMessage.ignore."""

    @abstractmethod
    def drop(self, message: ReceivedMessage) -> None:
        """The application has no reference to it any more, and it is not settled [FC-D2]."""

    @abstractmethod
    def end_staged(self, message: ReceivedMessage, error: ClientError | None) -> None:
        """The transaction that it was settled in is committed, or rolled back with that error."""

    @abstractmethod
    def report(self, event: Event, error: BaseException | None = None) -> None: ...


@final
class ReceivedMessage(Message):
    """A message from a receiver: settle it, once, by one of accept, reject, release and modify, or
    by `async with message:`; or give its slot back with `ignore`. While it is neither, it takes a
    slot of the receiver's window [FC-22, FC-25].

    A message that is forgotten unsettled is reported (`message.dropped`).
    """

    __slots__ = (
        "__weakref__",
        "arrived_ms",
        "consumer",
        "delivery_tag",
        "is_second",
        "outcome_or_error",
        "state",
        "tag",
        "taken_ms",
        "waiters",
    )

    def __init__(
        self,
        consumer: MessageOwner,
        tag: Tag,
        delivery_tag: bytes,
        raw: bytes,
        is_settled: bool,
        is_second: bool,
        arrived_ms: int,
    ) -> None:
        """Make a message; called by the adapter. arrived_ms: wall clock, milliseconds since
        1970."""
        self._raw = raw
        self._content = None
        self.consumer = consumer
        self.tag = tag
        self.delivery_tag = delivery_tag
        self.state = SETTLED if is_settled else BUFFERED
        self.is_second = is_second
        self.arrived_ms = arrived_ms
        self.taken_ms = 0
        self.outcome_or_error: Outcome | ClientError | None = None
        self.waiters: list[Waiter] | None = None

    # Properties

    @property
    def delivery_id(self) -> int:
        """Its number in the session, 0..2^32-1."""
        return self.tag & 0xFFFF_FFFF

    @property
    def delivery_uuid(self) -> UUID | None:
        """The delivery-tag where it has 16 bytes: some brokers' lock token."""
        return tag_as_uuid(self.delivery_tag)

    @property
    def delivery_count(self) -> int:
        """Failed attempts before this one."""
        return self._parts.header.delivery_count

    @property
    def first_acquirer(self) -> bool:
        return self._parts.header.first_acquirer

    @property
    def stream_offset(self) -> int | None:
        """Offset in the stream that it was read from (annotation x-stream-offset); None: it comes
        from a queue."""
        offset = self._parts.annotations.get(STREAM_OFFSET)
        return offset if isinstance(offset, int) else None

    @property
    def locked_until(self) -> datetime | None:
        """Time at which the broker delivers it again unless it is settled (annotation
        x-opt-locked-until); None: the broker does not say. By the broker's clock."""
        return datetime_of(self.locked_until_ms())

    def locked_until_ms(self) -> int | None:
        """The time `locked_until` in milliseconds since 1970."""
        until = self._parts.annotations.get(LOCKED_UNTIL)
        return until if isinstance(until, int) else None

    @property
    def expires_at(self) -> datetime | None:
        """Time at which its time to live ends: as its sender says, or counted from its arrival
        here. It may be settled later all the same."""
        at = self._parts.properties.absolute_expiry_time
        ttl = self._parts.header.ttl
        if at is None and ttl is not None:
            at = self.arrived_ms + ttl
        return datetime_of(at)

    @property
    def settled(self) -> bool:
        """Return whether it is settled: by us (in mode second also confirmed by the sender; in a
        transaction also committed), or by the sender."""
        return self.state == SETTLED

    @property
    def outcome(self) -> Outcome | None:
        """Outcome that it was settled with; None while it is unsettled, and for a message sent
        settled."""
        found = self.outcome_or_error
        return None if isinstance(found, ClientError) or self.state != SETTLED else found

    # Settling. The first call wins; later ones change nothing and have the same result.

    async def accept(self, *, transaction: Transaction | None = None) -> Outcome | None:
        """Settle it as processed. Returns the outcome it has been settled with.

        In mode first the settlement leaves at the end of this turn of the event loop, with others,
        and nobody answers; in mode second this waits for the sender's answer [FC-11, FC-12].

        In the session's transaction, or in the `transaction` named, it takes effect with the
        commit, which is the answer in either mode; until then the message keeps its slot.

        Raises SettlementRefused where the sender settled it otherwise, and Closed (LinkClosed,
        SessionClosed, ConnectionClosed) where the link it came on is gone: then the broker gives it
        to somebody again; TransactionRolledBack where a rollback has given it back. A cancelled
        call in mode second leaves the settlement under way; call again to wait on.
        """
        self.consumer.settle(self, ACCEPTED, transaction)
        return await self._result() if self.state == SETTLING else self._outcome()

    async def reject(
        self,
        reason: Error | BaseException | str | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> Outcome | None:
        """Settle it as invalid: a broker drops or dead-letters it. See `accept`."""
        self.consumer.settle(self, rejected(reason), transaction)
        return await self._result()

    async def release(self, *, transaction: Transaction | None = None) -> Outcome | None:
        """Settle it as not processed: a broker puts it back in its place. See `accept`."""
        self.consumer.settle(self, RELEASED, transaction)
        return RELEASED if self.state == RETURNED else await self._result()

    async def modify(
        self,
        failed: bool = True,
        undeliverable_here: bool = False,
        annotations: Mapping[str, object] | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> Outcome | None:
        """Release it, counted as failed, and with annotations for the next receiver (keys begin
        with `x-`). `undeliverable_here`: not to this receiver again; most brokers take it for a
        rejection. See `accept`. Raises NotPossible for annotations over AMQP 0-9-1, which has no
        way to say them."""
        outcome = modified(failed, undeliverable_here, annotations)
        self.consumer.settle(self, outcome, transaction)
        return await self._result()

    def ignore(self) -> None:
        """Free its slot without settling it: the broker holds it until the link is closed or its
        own lock expires. It cannot be settled any more, and is counted (`receiver.ignored_total`)
        [FC-25]. No-op on one that is settled."""
        self.consumer.ignore(self)

    async def settlement(self) -> Outcome | None:
        """Wait until it is settled, where it was asked for; as `accept`."""
        return await self._result()

    def settle_nowait(
        self, outcome: Outcome | OutcomeName, *, transaction: Transaction | None = None
    ) -> None:
        """Settle, and do not wait for an answer: where waiting is out of place, as in cleaning up.
        An answer that refuses it is reported as an event. Raises as `accept` where the link is
        gone, or a rollback has given it back."""
        self.consumer.settle(self, named_outcome(outcome), transaction)

    def _outcome(self) -> Outcome | None:
        found = self.outcome_or_error
        if isinstance(found, ClientError):
            raise found.copied()
        return found

    async def _result(self) -> Outcome | None:
        if self.state != SETTLING:
            return self._outcome()
        waiter: Waiter = asyncio.get_running_loop().create_future()
        if self.waiters is None:
            self.waiters = [waiter]
        else:
            self.waiters.append(waiter)
        await answer_to(waiter, None)
        return self._outcome()

    def answered(self, result: Outcome | ClientError, state: int) -> None:
        """Set the settlement's result and the message's new state."""
        self.state = state
        self.outcome_or_error = result
        waiters = self.waiters
        self.waiters = None
        is_awaited = False
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)
                is_awaited = True
        if isinstance(result, ClientError) and not is_awaited:
            self.consumer.report(SettlementFailed(self.consumer.address, self.delivery_id, result))

    def end_staged(self, error: ClientError | None) -> None:
        """Settle it for good, or give it back with that error: the transaction it was settled in is
        over."""
        self.consumer.end_staged(self, error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Accept on a clean exit, release on an exception or a cancellation (without waiting for an
        answer), unless it was settled or ignored inside, or a rollback has given it back."""
        if self.state == HELD:
            if error is None:
                await self.accept()
            else:
                self.settle_nowait(RELEASED)
        elif self.state == LOST and error is None:
            self._outcome()

    def __del__(self) -> None:
        if self.state == HELD:
            self.consumer.drop(self)

    def __repr__(self) -> str:
        state = _STATES[self.state]
        return f"<message {self.delivery_id} of {self.consumer.address!r}, {state}>"


_STATES: Final = (
    "buffered",
    "unsettled",
    "settling",
    "settled",
    "ignored",
    "lost",
    "staged",
    "returned",
)


def result_of(message: ReceivedMessage, state: Outcome | None) -> Outcome | ClientError:
    """Return the settlement's result, given the `state` that the sender answered."""
    asked = message.outcome_or_error
    assert asked is not None
    assert not isinstance(asked, ClientError)
    if state is None or type(state) is type(asked):
        return asked if state is None else state
    error = state.error if isinstance(state, Rejected) else None
    text = f"the sender answered {_name(state)} to {_name(asked)}"
    if error is None:
        return SettlementRefused(text, asked, state)
    return SettlementRefused(
        error.description or text,
        asked,
        state,
        condition=error.condition,
        info=error.info or {},
    )


def _name(outcome: Outcome) -> str:
    return type(outcome).__name__.lower()


class Run(NamedTuple):
    """Consecutive tags that were settled alike."""

    first: Tag
    last: Tag
    outcome: Outcome
    second: MessageOwner | None
    """Receiver whose link settles them in two steps; None: one step."""
    work: Work | None
    """The transaction that they are settled in."""

    @property
    def tags(self) -> Sequence[Tag]:
        return tags_of(self.first, self.last)


@final
class Settlements:
    """Settlements of one turn, joined into ranges: order does not matter to a broker, which puts
    back what is released in its old place."""

    __slots__ = ("_first", "_last", "_outcome", "_runs", "_second", "_work")

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._first: Tag = NO_TAG
        self._last: Tag = NO_TAG
        self._outcome: Outcome | None = None
        self._second: MessageOwner | None = None
        self._work: Work | None = None

    def add(
        self, tag: Tag, outcome: Outcome, second: MessageOwner | None, work: Work | None
    ) -> bool:
        """Add one settlement. Return whether it is the first."""
        if (
            tag == self._last + 1
            and outcome is self._outcome
            and second is self._second
            and work is self._work
        ):
            self._last = tag
            return False
        was_empty = self._outcome is None
        if self._outcome is not None:
            self._runs.append(Run(self._first, self._last, self._outcome, self._second, self._work))
        self._first = self._last = tag
        self._outcome = outcome
        self._second = second
        self._work = work
        return was_empty

    def take(self) -> list[Run]:
        """Return the settlements since the last call as runs of contiguous tags, ascending, and
        forget them."""
        if self._outcome is None:
            return []
        runs = self._runs
        runs.append(Run(self._first, self._last, self._outcome, self._second, self._work))
        self._runs = []
        self._outcome = self._second = self._work = None
        self._last = NO_TAG
        if len(runs) == 1:
            return runs
        runs.sort(key=_first_of)
        joined = [runs[0]]
        for run in runs[1:]:
            before = joined[-1]
            if run.first == before.last + 1 and run[2:] == before[2:]:
                joined[-1] = before._replace(last=run.last)
            else:
                joined.append(run)
        return joined


def _first_of(run: Run) -> int:
    return run.first


def ranges_of(tags: list[Tag]) -> list[tuple[Tag, Tag]]:
    """Ranges of consecutive tags, ascending."""
    ranges: list[tuple[Tag, Tag]] = []
    for tag in sorted(tags):
        if ranges and ranges[-1][1] == tag - 1:
            ranges[-1] = (ranges[-1][0], tag)
        else:
            ranges.append((tag, tag))
    return ranges
