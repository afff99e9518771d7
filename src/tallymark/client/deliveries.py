"""A session for as long as it lives, without its transactions: its links, the settlements of a
turn, the outcomes of sent messages, the marks that rollbacks and receivers share, and its gate. The
protocol's session behind it may be replaced. Everything is decided in one step, without an await;
see dispatcher.py for who changes what.

The gate opens and closes delivery to the application, and counts the handlers at work on a message
[TX-20, TX-21, TX-25]:

    running --stop, pause--> stopping --no handler runs any more--> stopped --resume--> running
    closed from any

A stop is in force at once for readers that wait; it is acknowledged when no handler works on a
message any more. Handlers that wait do not count, or two would wait for each other: for a stop, a
commit or a rollback that they have asked for themselves, or for a message.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any, Final, final
from weakref import WeakSet

from tallymark.client.adapter import Number, ReceiverOwner, SenderOwner, SessionOwner, SessionPort
from tallymark.client.arguments import ANSWER_S, check_type
from tallymark.client.errors import ClientError, NotPossible, SessionClosed, TimedOut
from tallymark.client.events import CallbackFailed, Reporter
from tallymark.client.outcomes import ACCEPTED, Outcome
from tallymark.client.received import Run, Settlements
from tallymark.client.topology import Topology
from tallymark.client.transaction import NO_TAG, Coordinator, Tag, Transaction, Work
from tallymark.client.turn import Turn, Waiter, answer_to, resolve


class State(Enum):
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    CLOSED = "closed"


@final
class Gate:
    """The gate of one session."""

    __slots__ = (
        "_at_work",
        "_is_paused",
        "_loop",
        "_parked",
        "_resumed",
        "_resumes",
        "_waiters",
        "error",
        "state",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, resumed: Callable[[], None]) -> None:
        self._loop = loop
        self._resumed = resumed
        self.state = State.RUNNING
        self.error: ClientError | None = None
        """Reason why it is closed; None: it is not."""
        self._at_work: set[asyncio.Task[Any]] = set()
        self._parked: dict[asyncio.Task[Any], int] = {}
        self._waiters: list[Waiter] = []
        self._is_paused = False
        self._resumes = False

    @property
    def is_shut(self) -> bool:
        """Return whether delivery to the application is stopped, and may be resumed."""
        return self.state is State.STOPPING or self.state is State.STOPPED

    def close(self, error: ClientError) -> None:
        self.error = error
        self.state = State.CLOSED
        self._wake()

    # Handlers

    def handler_begins(self, task: asyncio.Task[Any]) -> None:
        self._at_work.add(task)

    def handler_ended(self, task: asyncio.Task[Any]) -> None:
        self._at_work.discard(task)
        self._wake()

    def park(self) -> asyncio.Task[Any] | None:
        """Note that the calling task waits for something that a stop may hold up: until `unpark`,
        it does not count as at work. Return the task; None: it runs no handler, and does not
        count."""
        if not self._at_work:
            return None
        task = asyncio.current_task()
        if task is None or task not in self._at_work:
            return None
        self._parked[task] = self._parked.get(task, 0) + 1
        self._wake()
        return task

    def unpark(self, task: asyncio.Task[Any] | None) -> None:
        if task is not None:
            depth = self._parked.pop(task)
            if depth > 1:
                self._parked[task] = depth - 1

    @contextmanager
    def parked(self) -> Iterator[None]:
        """`park` until the end of the block."""
        task = self.park()
        try:
            yield
        finally:
            self.unpark(task)

    def is_quiet(self) -> bool:
        """No handler is at work on a message."""
        return not self._at_work.difference(self._parked)

    def _wake(self) -> None:
        waiters = self._waiters
        self._waiters = []
        for waiter in waiters:
            resolve(waiter, None)

    async def quiet(self) -> None:
        """Wait for the acknowledgement of a stop, or until it is over."""
        while self.is_shut and not self.is_quiet():
            waiter: Waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await answer_to(waiter, None)
        if self.state is State.STOPPING:
            self.state = State.STOPPED

    # The application's stop

    async def stop(self) -> None:
        """See Session.stop."""
        self._check()
        self._shut()
        self._resumes = False
        with self.parked():
            await self.quiet()

    def resume(self) -> None:
        """See Session.resume. During a rollback: when that is done."""
        self._check()
        if self._is_paused:
            self._resumes = True
        else:
            self._open()

    # A rollback's

    def pause(self) -> None:
        """Stop, whatever the application says, until `unpause`."""
        self._is_paused = True
        self._resumes = self.state is State.RUNNING
        self._shut()

    def unpause(self) -> None:
        """Go on, unless the application has stopped it."""
        self._is_paused = False
        if self._resumes and self.state is not State.CLOSED:
            self._open()

    def _check(self) -> None:
        if self.error is not None:
            raise self.error.copied()

    def _shut(self) -> None:
        if self.state is State.RUNNING:
            self.state = State.STOPPING
            self._wake()

    def _open(self) -> None:
        self.state = State.RUNNING
        self._wake()
        self._resumed()


WAITING: Final = Number(-1)
"""Number of a message that has not left."""
WITHDRAWN: Final = Number(-2)
"""Number of a message that will not leave."""


@final
class Group:
    """Messages that one call sent, and their outcomes."""

    __slots__ = ("outcomes", "remaining", "waiter")

    def __init__(self, size: int, waiter: Waiter) -> None:
        self.outcomes: list[Outcome | ClientError | None] = [None] * size
        self.remaining = size
        self.waiter = waiter

    def finish(self) -> None:
        """Count one message of the group as finished: it has its outcome, or will get none."""
        self.remaining -= 1
        if not self.remaining:
            resolve(self.waiter, None)


@final
class Pending:
    """A message on its way."""

    __slots__ = ("data", "group", "index", "number", "producer", "settled", "work")

    def __init__(
        self,
        producer: SenderOwner,
        group: Group,
        index: int,
        data: bytes,
        settled: bool,
        work: Work | None,
    ) -> None:
        self.producer = producer
        self.group = group
        self.index = index
        self.data = data
        self.settled = settled
        self.number = WAITING
        """The protocol's, once it has it; or WAITING, or WITHDRAWN."""
        self.work = work
        """The transaction it is sent in."""
        if work is not None:
            work.unanswered += 1

    def finish(self, outcome: Outcome | ClientError | None) -> None:
        """Give the message its outcome or error; None: accepted."""
        self.group.outcomes[self.index] = ACCEPTED if outcome is None else outcome
        self.done()

    def done(self) -> None:
        """Finish the message: it has its outcome; or it was sent settled, has left, and gets
        none."""
        self.group.finish()
        self.forget()

    def withdraw(self) -> None:
        """Withdraw the message: it will not be sent, and no call waits for it."""
        self.number = WITHDRAWN
        self.data = b""
        self.forget()

    def forget(self) -> None:
        """Its transaction does not wait for it any more."""
        work = self.work
        if work is not None:
            self.work = None
            work.answered()


ErrorCallback = Callable[[ClientError], object]


class Deliveries(SessionOwner, Coordinator):
    """State that the receivers, the senders and the transactions of one session share."""

    def __init__(self, turn: Turn, reporter: Reporter, answer_s: float = ANSWER_S) -> None:
        self.turn = turn
        self.loop = turn.loop
        self.reporter = reporter
        self.answer_s = answer_s
        """Seconds that a broker may take to answer."""
        self.wall_ms: Callable[[], int] = _wall_ms
        """Milliseconds since 1970; tests set it."""
        self.port: SessionPort | None = None
        self.gate = Gate(turn.loop, self._resumed)
        self.error: ClientError | None = None
        self.highest_tag = NO_TAG
        self.rollback_mark = NO_TAG
        """Highest tag that a rollback has taken back: deliveries up to it are not shown any more
        [TX-18]."""
        self.has_no_inflow = False
        """True during a rollback: no credit is granted, and no delivery expected."""
        self.work: Work | None = None
        """The session's transaction: all that is settled and sent is done in it."""
        self.consumers: list[ReceiverOwner] = []
        self.unread: WeakSet[ReceiverOwner] = WeakSet()
        """Closed receivers whose buffered messages can still be read, by who has a receiver."""
        self.producers: list[SenderOwner] = []
        self.topology = Topology()
        """Declarations to repeat after a reconnect."""
        self.sent: dict[Number, Pending] = {}
        """Sent messages by number, until their outcome is known."""
        self.settlements = Settlements()
        self.unsent: list[Run] = []
        """Settlements that wait for their transaction to begin, or for another one to end."""
        self.callbacks: list[ErrorCallback] = []
        self.was_open = False
        self.opening: Waiter | None = None
        self.closing: list[Waiter] = []
        self.is_ending = False
        """The application has closed it, and the peer has not answered."""
        self._askers: list[Waiter] = []
        self._to_evaluate: list[ReceiverOwner] = []
        self._will_flush = False

    # What its transactions decide

    @abstractmethod
    def may_send(self, work: Work | None) -> bool:
        """Return whether settlements and messages of this unit of work, or of none, may be sent to
        the broker now."""

    @abstractmethod
    def receiver_gone(
        self, staged: Mapping[Tag, object], was_closed: bool, error: ClientError
    ) -> None:
        """A receiver is gone, and messages of it, by tag, are settled in a transaction; was_closed:
        by the application."""

    @abstractmethod
    def lose_work(self, error: ClientError) -> None:
        """The port is gone, and its transactions with it."""

    def work_of(self, transaction: Transaction | None) -> Work | None:
        """Return the unit of work that settlements and messages belong to now: of the transaction
        named, or the session's; None: of none. Raises NotPossible for one of another session."""
        if transaction is None:
            return self.work
        check_type("transaction", transaction, Transaction, "a Transaction or None")
        if transaction.coordinator is not self:
            raise NotPossible("a transaction of another session")
        return transaction.present()

    # Telling the application

    def report_loss(self, error: ClientError) -> None:
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

    def forget_closed(self) -> None:
        """Forget senders and receivers that are closed; what a receiver has buffered is its
        owner's."""
        self.unread.update(
            one for one in self.consumers if one.error is not None and not one.is_finished
        )
        self.consumers[:] = [one for one in self.consumers if one.error is None]
        self.producers[:] = [one for one in self.producers if one.error is None]

    def _resumed(self) -> None:
        for consumer in (*self.consumers, *self.unread):
            consumer.resumed()

    # Called by the adapter

    def changed_by_peer(self, first: Tag, last: Tag, state: Outcome | None) -> None:
        for consumer in list(self.consumers):
            consumer.changed_by_peer(first, last, state)

    def outcomes_received(self, low: Number, high: Number, outcome: Outcome | None) -> None:
        sent = self.sent
        if high - low < len(sent):
            for number in range(low, high + 1):
                pending = sent.pop(Number(number), None)
                if pending is not None:
                    pending.finish(outcome)
        else:
            for number in [one for one in sent if low <= one <= high]:
                sent.pop(number).finish(outcome)

    # Turns

    def evaluate_later(self, consumer: ReceiverOwner) -> None:
        """Look at its credit at the end of the turn."""
        self._to_evaluate.append(consumer)
        self.request_flush()

    def request_flush(self) -> None:
        """Have settlements and credit sent at the end of the turn."""
        if not self._will_flush:
            self._will_flush = True
            self.turn.flush_later(self)

    def flush(self) -> None:
        """Send settlements, and then the credit they free."""
        self._will_flush = False
        self.send_settlements()
        consumers = self._to_evaluate
        self._to_evaluate = []
        for consumer in consumers:
            consumer.evaluate()

    def send_settlements(self) -> None:
        """Send the settlements of this turn so far, before credit that they may have freed."""
        runs = self.settlements.take()
        if self.unsent:
            runs = self.unsent + runs
            self.unsent = []
        for run in runs:
            if not self.may_send(run.work):
                self.unsent.append(run)
            elif run.second is not None:
                run.second.settle_second(run.first, run.last, run.outcome, run.work)
            elif self.port is not None:
                self.port.settle(run.first, run.last, run.outcome, run.work)

    def forget_unsent(self, work: Work) -> list[Tag]:
        """Forget the unit's settlements that were not sent to the broker. Return their tags."""
        runs = self.unsent + self.settlements.take()
        self.unsent = [run for run in runs if run.work is not work]
        if self.unsent:
            self.request_flush()
        return [tag for run in runs if run.work is work for tag in run.tags]

    # Waiting for the broker; at each wait the session may go

    async def answered(self, port: SessionPort | None, is_done: Callable[[], bool]) -> bool:
        """Wait as `until`. A session whose broker does not answer in time is ended, which rolls
        back its transactions."""
        try:
            return await self.until(port, is_done, self.answer_s)
        except TimedOut as late:
            error = SessionClosed(f"ended here: {late}")
            self.begin_close(error)
            self.turn.request()
            self.report_loss(error)
            return False

    async def until(
        self, port: SessionPort | None, is_done: Callable[[], bool], limit_s: float | None
    ) -> bool:
        """Wait until it is done and return True; False: the port was replaced."""
        end = None if limit_s is None else self.loop.time() + limit_s
        while self.port is port and not is_done():
            remaining = None if end is None else end - self.loop.time()
            if remaining is not None and remaining <= 0:
                raise TimedOut(f"no answer within {limit_s} s")
            asker: Waiter = self.loop.create_future()
            self._askers.append(asker)
            await answer_to(asker, remaining)
        return self.port is port

    async def all_sent(self, staged: Mapping[Tag, object]) -> None:
        """Wait until the broker was sent all settlements of these messages, by tag, that may be
        sent."""

        def is_sent() -> bool:
            self.send_settlements()
            return not any(tag in staged for run in self.unsent for tag in run.tags)

        with suppress(TimedOut):
            await self.until(self.port, is_sent, self.answer_s)

    def changed(self) -> None:
        """Wake calls that wait for an answer, and send settlements and messages that waited for
        it."""
        askers = self._askers
        self._askers = []
        for asker in askers:
            resolve(asker, None)
        if self.unsent:
            self.request_flush()
        for producer in self.producers:
            producer.send_waiting()

    # Opened and closed

    def opened(self, port: SessionPort) -> None:
        self.port = port
        self.was_open = True
        self.highest_tag = self.rollback_mark = NO_TAG  # tags begin anew [TX-22]
        if self.opening is not None:
            resolve(self.opening, None)
        self.changed()

    def _lose_port(self, error: ClientError) -> None:
        self.port = None
        self.settlements.take()
        self.unsent.clear()
        self.lose_work(error)
        if self.opening is not None:
            resolve(self.opening, error)

    def closed(self, error: ClientError, by_peer: bool) -> None:
        was_open = self.was_open
        if self.state is State.CLOSED:
            self.ended()
            return
        self.error = error
        self.gate.close(error)
        self._lose_port(error)
        for link in (*self.consumers, *self.producers):
            if link.error is None:
                link.close(error)
        self.ended()
        self.changed()
        if by_peer and was_open:
            self.report_loss(error)

    def begin_close(self, error: ClientError) -> None:
        """The application ends it, and the peer has not heard of it yet."""
        port = self.port
        waiting = self.closing
        self.closing = []
        self.closed(error, False)
        if port is not None:
            self.closing = waiting
            self.is_ending = True
            port.close()
        else:
            for waiter in waiting:
                resolve(waiter, None)

    def ended(self) -> None:
        self.is_ending = False
        for waiter in self.closing:
            resolve(waiter, None)
        self.closing.clear()

    def suspend(self, error: ClientError) -> None:
        """Wait for a reconnect: begin and attach follow."""
        if self.state is State.CLOSED:
            self.ended()
            return
        self._lose_port(error)
        for link in (*self.consumers, *self.producers):
            link.suspend(error)
        self.changed()
        self.report_loss(error)


MS_PER_S: Final = 1000


def _wall_ms() -> int:
    return int(time.time() * MS_PER_S)
