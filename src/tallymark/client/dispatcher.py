"""Who gets a session's deliveries, and when: the one object that owns delivery, stop and close.

It knows no protocol: tags are whole numbers that only grow within a session, settlements are
ranges of them. States [TX-25]:

    running --stop()--> stopping --no handler runs any more--> stopped --resume()--> running
    closed from any

| Data | Written by | Read by | Guard |
|---|---|---|---|
| highest_tag | Consumer.deliver, before a message can be seen | who stops | one step, no await |
| buffers | Consumer.deliver (tail), hand_over (head) | - | only hand_over takes |
| state | stop, resume, close | hand_over, after every await of a reader | one step |
| what is held, settling | hand_over, settle, ignore, answered | leaks, close | one step |
| settlements of this turn | settle | flush | one step |

There is no dispatcher task and so no message in its hands: readers are tasks of the application,
woken with nothing, and `hand_over` decides at the moment it gives. A stop is in force at once for
readers that wait; it is acknowledged when no handler works on a message any more. The caller's own
handler does not count: a stop from inside it does not wait for itself [TX-18, TX-20, TX-21].
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, final

from tallymark.client.errors import ClientError
from tallymark.client.events import CallbackFailed, Reporter
from tallymark.client.outcomes import RELEASED, Outcome
from tallymark.client.received import BUFFERED, HELD, IGNORED, LOST, SETTLED, ReceivedMessage
from tallymark.client.turn import Turn
from tallymark.client.waiting import Waiter, answer_to, resolve

if TYPE_CHECKING:
    from tallymark.client.adapter import SessionPort
    from tallymark.client.consumer import Consumer
    from tallymark.client.producer import Pending, Producer
    from tallymark.client.work import Work

ErrorCallback = Callable[[ClientError], object]


class State(Enum):
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    CLOSED = "closed"


@final
class Settlements:
    """What was settled in this turn, joined into ranges: order does not matter to a broker, which
    puts back what is released in its old place."""

    __slots__ = ("_first", "_last", "_outcome", "_runs", "_second")

    def __init__(self) -> None:
        self._runs: list[tuple[int, int, Outcome, Consumer | None]] = []
        self._first = 0
        self._last = -1
        self._outcome: Outcome | None = None
        self._second: Consumer | None = None

    def add(self, tag: int, outcome: Outcome, second: Consumer | None) -> bool:
        """`second`: whose link settles it in two steps. Returns whether it is the first."""
        if tag == self._last + 1 and outcome is self._outcome and second is self._second:
            self._last = tag
            return False
        was_empty = self._outcome is None
        if self._outcome is not None:
            self._runs.append((self._first, self._last, self._outcome, self._second))
        self._first = self._last = tag
        self._outcome = outcome
        self._second = second
        return was_empty

    def take(self) -> list[tuple[int, int, Outcome, Consumer | None]]:
        """(first, last, outcome, second) of contiguous tags only, ascending; then it is empty."""
        if self._outcome is None:
            return []
        runs = self._runs
        runs.append((self._first, self._last, self._outcome, self._second))
        self._runs = []
        self._outcome = self._second = None
        self._last = -1
        if len(runs) == 1:
            return runs
        runs.sort(key=_first_of)
        joined = [runs[0]]
        for run in runs[1:]:
            first, last, outcome, second = joined[-1]
            if run[0] == last + 1 and run[2] is outcome and run[3] is second:
                joined[-1] = (first, run[1], outcome, second)
            else:
                joined.append(run)
        return joined


def _first_of(run: tuple[int, int, Outcome, Consumer | None]) -> int:
    return run[0]


@final
class Dispatcher:
    """Of one session, for as long as that lives; the protocol's session may be replaced."""

    __slots__ = (
        "_asked",
        "_handling",
        "_is_marked",
        "_settlements",
        "_stop_waiters",
        "_stopping",
        "_touched",
        "callbacks",
        "closing",
        "consumers",
        "error",
        "highest_tag",
        "is_ending",
        "loop",
        "opening",
        "port",
        "producers",
        "reporter",
        "sent",
        "state",
        "turn",
        "wall_ms",
        "was_open",
    )

    def __init__(self, turn: Turn, reporter: Reporter) -> None:
        self.turn = turn
        self.loop = turn.loop
        self.reporter = reporter
        self.wall_ms: Callable[[], int] = _wall_ms
        """Milliseconds since 1970; tests set it."""
        self.port: SessionPort | None = None
        self.state = State.RUNNING
        self.error: ClientError | None = None
        self.was_open = False
        self.highest_tag = -1
        """Of the deliveries that have arrived; -1: none yet on this protocol's session [TX-22]."""
        self.consumers: list[Consumer] = []
        self.producers: list[Producer] = []
        self.sent: dict[int, Pending] = {}
        """Sent messages by number, until their outcome is known."""
        self.opening: Waiter | None = None
        self.closing: list[Waiter] = []
        self.is_ending = False
        """The application has closed it, and the peer has not answered."""
        self.callbacks: list[ErrorCallback] = []
        self._settlements = Settlements()
        self._touched: list[Consumer] = []
        self._asked: Waiter | None = None
        self._is_marked = False
        self._handling: set[asyncio.Task[Any]] = set()
        self._stopping: set[asyncio.Task[Any]] = set()
        self._stop_waiters: list[Waiter] = []

    # Deliveries

    def hand_over(self, consumer: Consumer) -> ReceivedMessage | None:
        """The next message of the consumer's buffer, which is not empty; None while stopped."""
        if self.state is not State.RUNNING and self.state is not State.CLOSED:
            return None
        message = consumer.buffer.popleft()
        window = consumer.window
        window.buffered -= 1
        if message.state == BUFFERED:
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

    def settle(self, message: ReceivedMessage, outcome: Outcome) -> None:
        """Settle what the application holds, at the end of the turn with others; a no-op on what is
        settled already, or ignored. Raises Closed where the link is gone."""
        state = message.state
        if state == HELD:
            consumer = message.consumer
            consumer.settled(message, outcome)
            second = consumer if message.is_second else None
            if self._settlements.add(message.tag, outcome, second):
                self._mark()
        elif state == LOST:
            error = message.outcome_or_error
            assert isinstance(error, ClientError)
            raise error.again()

    def release_buffered(self, message: ReceivedMessage) -> None:
        """Give back what nobody has read."""
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
                    pending.group.finish(pending.index, outcome)
        else:
            for number in [known for known in sent if low <= known <= high]:
                pending = sent.pop(number)
                pending.group.finish(pending.index, outcome)

    # Turns

    def touched(self, consumer: Consumer) -> None:
        """Look at its credit at the end of the turn."""
        self._touched.append(consumer)
        self._mark()

    def _mark(self) -> None:
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
        """Those of this turn so far: before credit that may have come of them."""
        port = self.port
        for first, last, outcome, second in self._settlements.take():
            if second is None:
                if port is not None:
                    port.settle(first, last, outcome)
            elif second.port is not None:
                second.port.settle(first, last, outcome)

    @property
    def is_stopped(self) -> bool:
        """Nothing is handed over, but something may be later."""
        return self.state is State.STOPPING or self.state is State.STOPPED

    # Stop and go on [TX-20, TX-21, TX-25]

    async def stop(self) -> None:
        """See Session.stop."""
        if self.state is State.CLOSED:
            assert self.error is not None
            raise self.error.again()
        if self.state is State.RUNNING:
            self.state = State.STOPPING
        task = asyncio.current_task()
        assert task is not None
        self._stopping.add(task)
        try:
            self._tell_stop_waiters()
            while self._handling - self._stopping and self.state is State.STOPPING:
                waiter: Waiter = self.loop.create_future()
                self._stop_waiters.append(waiter)
                await answer_to(waiter, None)
        finally:
            self._stopping.discard(task)
        if self.state is State.STOPPING:
            self.state = State.STOPPED

    def resume(self) -> None:
        """See Session.resume."""
        if self.state is State.CLOSED:
            assert self.error is not None
            raise self.error.again()
        self.state = State.RUNNING
        self._tell_stop_waiters()
        for consumer in self.consumers:
            consumer.wake(len(consumer.buffer))

    def handler_begins(self, task: asyncio.Task[Any]) -> None:
        self._handling.add(task)

    def handler_ended(self, task: asyncio.Task[Any]) -> None:
        self._handling.discard(task)
        self._tell_stop_waiters()

    def _tell_stop_waiters(self) -> None:
        waiters = self._stop_waiters
        self._stop_waiters = []
        for waiter in waiters:
            resolve(waiter, None)

    # Coming and going, told by the adapter or the connection

    # What the adapter answers of transactions: one question at a time

    def selected(self, error: ClientError | None) -> None:
        """The session takes transactions, or why not."""
        self._answer(error)

    def inflow_stopped(self, error: ClientError | None = None) -> None:
        """The last delivery is in."""
        self._answer(error)

    def given_back(self, error: ClientError | None = None) -> None:
        """The broker has what was ours; what it delivers from now on is new."""
        self._answer(error)

    def work_changed(self, work: Work) -> None:
        """It has begun, or is over: what waited for that is said."""
        self._answer(None)
        self._mark()
        for producer in self.producers:
            producer.may_send()

    def _answer(self, result: ClientError | None) -> None:
        if self._asked is not None:
            resolve(self._asked, result)

    def opened(self, port: SessionPort) -> None:
        self.port = port
        self.was_open = True
        self.highest_tag = -1
        if self.opening is not None:
            resolve(self.opening, None)

    def closed(self, error: ClientError, by_peer: bool) -> None:
        """The session is gone, and all its links."""
        was_open = self.was_open
        if self.state is State.CLOSED:
            self.ended()
            return
        self.port = None
        self.error = error
        self.state = State.CLOSED
        self._settlements.take()
        if self.opening is not None:
            resolve(self.opening, error)
        for consumer in self.consumers:
            if consumer.error is None:
                consumer.close(error)
        for producer in self.producers:
            if producer.error is None:
                producer.close(error)
        self.ended()
        self._tell_stop_waiters()
        if by_peer and was_open:
            self.scoped_error(error)

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
        """The peer knows."""
        self.is_ending = False
        for waiter in self.closing:
            resolve(waiter, None)
        self.closing.clear()

    def suspend(self, error: ClientError) -> None:
        """The connection broke and is made again: begin and attach follow."""
        if self.state is State.CLOSED:
            self.ended()
            return
        self.port = None
        self._settlements.take()
        if self.opening is not None:
            resolve(self.opening, error)
        for consumer in self.consumers:
            consumer.suspend(error)
        for producer in self.producers:
            producer.suspend(error)
        self.scoped_error(error)

    def scoped_error(self, error: ClientError) -> None:
        """A link, the session or the connection is gone, and nobody here asked for it: told once,
        besides what the calls that wait are told."""
        for callback in list(self.callbacks):
            self.call_back("on_error", callback, error)

    def call_back(self, name: str, callback: Callable[..., object], *arguments: object) -> None:
        """Call the application's callback; what it raises is reported and goes no further."""
        try:
            callback(*arguments)
        except Exception as raised:
            self.reporter.report(CallbackFailed(name, raised), raised)


MS_PER_S: Final = 1000


def _wall_ms() -> int:
    return int(time.time() * MS_PER_S)
