"""Deliveries and settlements of a session, and the outcomes of sent messages.

Everything is decided in one step, without an await; see dispatcher.py for who changes what.
"""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, final

from tallymark.client.errors import ClientError, NotPossible
from tallymark.client.events import CallbackFailed, Reporter
from tallymark.client.gate import Gate, State
from tallymark.client.outcomes import RELEASED, Modified, Outcome, Released, check_outcome
from tallymark.client.received import (
    BUFFERED,
    HELD,
    IGNORED,
    LOST,
    RETURNED,
    SETTLED,
    ReceivedMessage,
)
from tallymark.client.transaction import Work
from tallymark.client.turn import Turn

if TYPE_CHECKING:
    from tallymark.client.adapter import SessionPort
    from tallymark.client.consumer import Consumer
    from tallymark.client.sender import Pending
    from tallymark.client.transaction import Transaction, Work


class Run(NamedTuple):
    """Consecutive tags that were settled alike."""

    first: int
    last: int
    outcome: Outcome
    second: Consumer | None
    """Consumer whose link settles them in two steps; None: one step."""
    work: Work | None
    """The transaction that they are settled in."""

    @property
    def tags(self) -> range:
        return range(self.first, self.last + 1)


@final
class Settlements:
    """Joined into ranges: order does not matter to a broker, which puts back what is released in
    its old place."""

    __slots__ = ("_first", "_last", "_outcome", "_runs", "_second", "_work")

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._first = 0
        self._last = -1
        self._outcome: Outcome | None = None
        self._second: Consumer | None = None
        self._work: Work | None = None

    def add(self, tag: int, outcome: Outcome, second: Consumer | None, work: Work | None) -> bool:
        """Returns whether it is the first."""
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
        self._last = -1
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


def ranges_of(tags: list[int]) -> list[tuple[int, int]]:
    """Ranges of consecutive tags, ascending."""
    ranges: list[tuple[int, int]] = []
    for tag in sorted(tags):
        if ranges and ranges[-1][1] == tag - 1:
            ranges[-1] = (ranges[-1][0], tag)
        else:
            ranges.append((tag, tag))
    return ranges


ErrorCallback = Callable[[ClientError], object]


class Deliveries(ABC):
    """A Dispatcher without the beginning and end of sessions and transactions."""

    __slots__ = (
        "_is_marked",
        "_touched",
        "callbacks",
        "consumers",
        "error",
        "gate",
        "has_no_inflow",
        "highest_tag",
        "loop",
        "port",
        "reporter",
        "rollback_mark",
        "sent",
        "settlements",
        "turn",
        "unsaid",
        "wall_ms",
        "work",
    )

    def __init__(self, turn: Turn, reporter: Reporter) -> None:
        self.turn = turn
        self.loop = turn.loop
        self.reporter = reporter
        self.wall_ms: Callable[[], int] = _wall_ms
        """Milliseconds since 1970; tests set it."""
        self.port: SessionPort | None = None
        self.gate = Gate(turn.loop, self._resumed)
        self.error: ClientError | None = None
        self.highest_tag = -1
        """Highest tag of the deliveries that have arrived; -1: none yet on this protocol's session
        [TX-22]."""
        self.rollback_mark = -1
        """Highest tag that a rollback has taken back: deliveries up to it are not shown any more
        [TX-18]."""
        self.has_no_inflow = False
        """True during a rollback: no credit is granted, and no delivery expected."""
        self.work: Work | None = None
        """The session's transaction: all that is settled and sent is done in it."""
        self.consumers: list[Consumer] = []
        self.sent: dict[int, Pending] = {}
        """Sent messages by number, until their outcome is known."""
        self.settlements = Settlements()
        self.unsaid: list[Run] = []
        """Settlements that wait for their transaction to begin, or for another one to end."""
        self.callbacks: list[ErrorCallback] = []
        self._touched: list[Consumer] = []
        self._is_marked = False

    @abstractmethod
    def work_of(self, transaction: Transaction) -> Work:
        """Return the present unit of work of a named transaction, to which a settlement or message
        is added."""

    @abstractmethod
    def may_say(self, work: Work | None) -> bool:
        """Return whether settlements and messages of this unit of work, or of none, may be sent to
        the broker now."""

    # A rollback

    def take_back(self, error: ClientError) -> list[int]:
        """Step 4, of all receivers, also those that were closed."""
        tags: list[int] = []
        for consumer in self.consumers:
            tags += consumer.take_back(self.rollback_mark, error)
        return tags

    def forget_unsaid(self, work: Work) -> list[int]:
        """Forget the unit's settlements that were not sent to the broker, and return their tags."""
        runs = self.unsaid + self.settlements.take()
        self.unsaid = [run for run in runs if run.work is not work]
        if self.unsaid:
            self.mark()
        return [tag for run in runs if run.work is work for tag in range(run.first, run.last + 1)]

    # Telling the application

    def scoped_error(self, error: ClientError) -> None:
        """Report the loss of a link, the session or the connection that the application did not ask
        for: once, besides the errors of calls that wait."""
        for callback in list(self.callbacks):
            self.call_back("on_error", callback, error)

    def call_back(self, name: str, callback: Callable[..., object], *arguments: object) -> None:
        """Call the application's callback; an exception of it is reported and not raised."""
        try:
            callback(*arguments)
        except Exception as raised:
            self.reporter.report(CallbackFailed(name, raised), raised)

    @property
    def state(self) -> State:
        return self.gate.state

    @property
    def is_stopped(self) -> bool:
        """Return whether delivery to the application is stopped, and may be resumed."""
        return self.gate.is_shut

    def _resumed(self) -> None:
        for consumer in self.consumers:
            consumer.wake(len(consumer.buffer))

    # Deliveries

    def hand_over(self, consumer: Consumer) -> ReceivedMessage | None:
        """The next message of the consumer's buffer, which is not empty; None while stopped."""
        if self.gate.is_shut:
            return None
        message = consumer.buffer.popleft()
        window = consumer.window
        window.buffered -= 1
        if message.state == BUFFERED:
            assert message.tag > self.rollback_mark, (message.tag, self.rollback_mark)
            message.state = HELD
            message.taken_ms = self.turn.now_ms()
            window.held += 1
            consumer.held[message.tag] = weakref.ref(message)
            if consumer.leaks.is_on:
                consumer.leaks.handed()
            if window.on_handover:
                consumer.touch()
        elif message.state == SETTLED:  # its slot comes back now [FC-10]
            consumer.last_tag = message.delivery_tag
            consumer.touch()
        return message

    def settle(
        self, message: ReceivedMessage, outcome: Outcome, transaction: Transaction | None = None
    ) -> None:
        """Settle a message that the application holds, at the end of the turn with others; in a
        transaction, if that is committed. A no-op on what is settled already, or ignored.

        Raises Closed where the link is gone, TransactionRolledBack where the transaction is or a
        rollback has given the message back, and as `check`.
        """
        self.check(outcome)
        state = message.state
        if state == HELD:
            work = self.work if transaction is None else self.work_of(transaction)
            if work is not None:
                if work.error is not None:
                    if isinstance(outcome, Released):
                        return  # as the rollback will
                    raise work.error.again()
                work.settled.append(message)
            consumer = message.consumer
            consumer.settled(message, outcome, work is not None)
            second = consumer if message.is_second and work is None else None
            if self.settlements.add(message.tag, outcome, second, work):
                self.mark()
        elif state == LOST or (state == RETURNED and not isinstance(outcome, Released)):
            error = message.outcome_or_error
            assert isinstance(error, ClientError)
            raise error.again()

    def check(self, outcome: Outcome) -> None:
        """Raise TypeError or ValueError for a value that is no outcome, NotPossible for one that
        the protocol cannot express."""
        check_outcome(outcome)
        port = self.port
        is_annotated = isinstance(outcome, Modified) and outcome.message_annotations
        if is_annotated and port is not None and not port.can_annotate:
            raise NotPossible(
                "modify with annotations: AMQP 0-9-1 cannot change a message that it gives back"
            )

    def release_buffered(self, message: ReceivedMessage) -> None:
        """Release a buffered message that was never read."""
        consumer = message.consumer
        consumer.buffer.remove(message)
        consumer.window.buffered -= 1
        consumer.window.held += 1
        message.state = HELD
        message.taken_ms = self.turn.now_ms()
        consumer.held[message.tag] = weakref.ref(message)
        self.settle(message, RELEASED)

    def ignore(self, message: ReceivedMessage) -> None:
        if message.state == HELD:
            message.consumer.ignore(message)
        elif message.state == LOST:
            message.state = IGNORED

    def changed_by_peer(self, first: int, last: int, state: Outcome | None) -> None:
        """The sender has settled deliveries, or given them another outcome, unasked [FC-18]."""
        for consumer in list(self.consumers):
            consumer.changed_by_peer(first, last, state)

    # What we sent

    def sent_settled(self, low: int, high: int, outcome: Outcome | None) -> None:
        """The receiver has decided about messages low..high (numbers); None: settled without a
        word, which is taken for accepted."""
        sent = self.sent
        if high - low < len(sent):
            for number in range(low, high + 1):
                pending = sent.pop(number, None)
                if pending is not None:
                    pending.finish(outcome)
        else:
            for number in [known for known in sent if low <= known <= high]:
                sent.pop(number).finish(outcome)

    # Turns

    def touched(self, consumer: Consumer) -> None:
        """Look at its credit at the end of the turn."""
        self._touched.append(consumer)
        self.mark()

    def mark(self) -> None:
        if not self._is_marked:
            self._is_marked = True
            self.turn.mark(self)

    def flush(self) -> None:
        """Settlements, and then the credit they free."""
        self._is_marked = False
        self.say_settlements()
        touched = self._touched
        self._touched = []
        for consumer in touched:
            consumer.evaluate()

    def say_settlements(self) -> None:
        """Send the settlements of this turn so far, before credit that they may have freed."""
        runs = self.settlements.take()
        if self.unsaid:
            runs = self.unsaid + runs
            self.unsaid = []
        for run in runs:
            if not self.may_say(run.work):
                self.unsaid.append(run)
            elif run.second is not None:
                if run.second.port is not None:
                    run.second.port.settle(run.first, run.last, run.outcome, run.work)
            elif self.port is not None:
                self.port.settle(run.first, run.last, run.outcome, run.work)


MS_PER_S: Final = 1000


def _wall_ms() -> int:
    return int(time.time() * MS_PER_S)
