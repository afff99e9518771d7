"""State of one receiver: its buffer, its window, its credit, and the calls that wait for a message.

What becomes of its messages is in inbox.py. Waiting readers are woken with nothing in their hands:
who gets a message is decided when it is taken (`take`), so nobody holds one across an await, or
when cancelled [TX-18, TX-21].
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeAlias, final

from tallymark.client.adapter import ReceiverOwner, ReceiverPort, SessionPort
from tallymark.client.arguments import ReceiverOptions
from tallymark.client.credit import Flow, Window
from tallymark.client.deliveries import Deliveries
from tallymark.client.errors import ClientError, NotPossible, TimedOut
from tallymark.client.events import CreditDecided, Decision, Event
from tallymark.client.inbox import Inbox
from tallymark.client.leaks import LeakWatch
from tallymark.client.link import Link
from tallymark.client.outcomes import (
    ACCEPTED,
    RELEASED,
    Modified,
    Outcome,
    Released,
    check_outcome,
)
from tallymark.client.received import (
    BUFFERED,
    HELD,
    IGNORED,
    LOST,
    RETURNED,
    SETTLED,
    ReceivedMessage,
)
from tallymark.client.transaction import Transaction
from tallymark.client.turn import TIME_IS_UP, Waiter, answer_to, resolve

StateCallback: TypeAlias = Callable[[ReceivedMessage, Outcome | None], None]


@final
class Consumer(Link[ReceiverPort], ReceiverOwner):
    """A receiver for as long as it lives."""

    def __init__(self, dispatcher: Deliveries, options: ReceiverOptions) -> None:
        super().__init__(dispatcher, options.address, options.name)
        self.options = options
        self.address = options.address or ""
        self.filter: Mapping[str, object] = {}
        """Source filters in effect."""
        self.mode = "first"
        """rcv-settle-mode in effect."""
        self.is_manual = options.credit_mode == "manual"
        self.window = Window(
            0 if self.is_manual else options.credit, options.credit_on == "handover"
        )
        self.inbox = Inbox(self.window)
        self.flow = Flow(dispatcher, self.window, self.is_manual, self._report_decision)
        self.leaks = LeakWatch(self, self.inbox, options, dispatcher)
        self.batching: Waiter | None = None
        """Caller that waits for a batch; see receiver.py."""
        self.on_state_changed: StateCallback | None = None
        self._waiters: deque[Waiter] = deque()
        """Calls that wait for a message; see `wake`."""
        self._link_error: ClientError | None = None
        """Reason why the last link ended."""
        self._will_evaluate = False

    # Called by the adapter

    def begin(self, session: SessionPort) -> ReceiverPort:
        return session.add_receiver(self, self.options)

    def attached(
        self, port: ReceiverPort, address: str, mode: str, filter: Mapping[str, object]
    ) -> None:
        self.filter = filter
        self.address = address
        self.mode = mode
        self.inbox.is_attached = True
        self.flow.attach(port)
        self.evaluate_later()
        self.now_attached(port)

    def deliver(self, messages: list[ReceivedMessage]) -> None:
        if self.error is not None:
            return  # given up already
        self.dispatcher.highest_tag = messages[-1].tag  # before anybody can see them [TX-17]
        self.inbox.add(messages)
        if self.ending is not None:  # they can be read, but not settled [FC-A7]
            self.inbox.lose_buffered(self.ending)
        self.evaluate_later()
        self.leaks.arrived(messages)
        if self._waiters or self.batching is not None:
            self.wake(len(messages))

    def answered(self, first: int, last: int, state: Outcome | None) -> None:
        self.inbox.answer(first, last, state)
        self.evaluate_later()

    def drained(self, given_up: int) -> None:
        self.flow.drained(given_up)

    # Reading

    @property
    def buffered(self) -> int:
        """Number of messages that can be read."""
        return len(self.inbox.buffer)

    @property
    def is_finished(self) -> bool:
        return self.error is not None and not self.inbox.buffer

    def take(self) -> ReceivedMessage | None:
        """The next message, if the application may have one now. Raises the error after the last
        one of a closed receiver [FC-19]."""
        inbox = self.inbox
        dispatcher = self.dispatcher
        if not inbox.buffer:
            if self.error is not None:
                raise self.error.copied()
            return None
        if dispatcher.gate.is_shut:
            return None
        message = inbox.buffer.popleft()
        self.window.buffered -= 1
        if message.state == BUFFERED:
            assert message.tag > dispatcher.rollback_mark, (message.tag, dispatcher.rollback_mark)
            inbox.hold(message, dispatcher.turn.now_ms())
            if self.leaks.is_on:
                self.leaks.taken()
            if self.window.on_handover:
                self.evaluate_later()
        elif message.state == SETTLED:  # its slot comes back now [FC-10]
            inbox.last_tag = message.delivery_tag
            self.evaluate_later()
        return message

    async def next(self, timeout: float | None) -> ReceivedMessage:
        """The next message, when there is one. See Receiver.receive."""
        loop = self.dispatcher.loop
        end = None if timeout is None else loop.time() + timeout
        while True:
            message = self.take()
            if message is not None:
                return message
            remaining = None if end is None else end - loop.time()
            if remaining is not None and remaining <= 0:
                raise TimedOut(f"no message from {self.address!r} within {timeout} s")
            await self.readable(remaining)

    async def readable(self, timeout: float | None) -> None:
        """Wait until a message may be in the buffer, or the time-out ends. The caller checks
        again."""
        waiter: Waiter = self.dispatcher.loop.create_future()
        self._waiters.append(waiter)
        parked = self.dispatcher.gate.park()
        try:
            result = await answer_to(waiter, timeout)
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self.wake(1)  # it was woken and cannot take: wake another
            self._forget(waiter)
            raise
        finally:
            self.dispatcher.gate.unpark(parked)
        if result is TIME_IS_UP:
            self._forget(waiter)

    def _forget(self, waiter: Waiter) -> None:
        """Remove a waiting call; `wake` may have removed it already."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    def wake(self, count: int) -> None:
        """Let so many readers look whether there is something for them."""
        if self.batching is not None:
            resolve(self.batching, None)
        waiters = self._waiters
        while count > 0 and waiters:
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def resumed(self) -> None:
        self.wake(self.buffered)

    # Credit

    def evaluate_later(self) -> None:
        """Look at the credit at the end of this turn."""
        if not self._will_evaluate:
            self._will_evaluate = True
            self.dispatcher.evaluate_later(self)

    def evaluate(self) -> None:
        self._will_evaluate = False
        if (
            self.port is not None
            and not self.dispatcher.has_no_inflow
            and self.flow.evaluate() == 0
        ):
            self.leaks.paused()

    @property
    def credit(self) -> int:
        """Messages the peer may still send; 0 while there is no link."""
        return self.flow.credit

    def issue(self, count: int) -> None:
        """See Receiver.issue_credit."""
        self.flow.issue(self._port_by_hand("issue_credit"), count)

    async def drain(self) -> int:
        """See Receiver.drain."""
        return await self.flow.drain(self._port_by_hand("drain"))

    async def end_batch(self) -> None:
        """Stop deliveries at the end of a batch."""
        await self.flow.end_batch(self.drain)

    def _port_by_hand(self, call: str) -> ReceiverPort:
        if not self.is_manual:
            raise NotPossible(
                f"{call} on a receiver with credit_mode='auto': its window of "
                f"{self.window.size} gives the credit; pass credit_mode='manual'"
            )
        if self.port is None:
            raise (self.error or self._link_error or NotPossible("not attached")).copied()
        if self.flow.draining is not None:
            raise NotPossible(f"{call} while a drain is under way")
        self.dispatcher.send_settlements()
        return self.port

    # Settling: the owner of its messages

    def check(self, outcome: Outcome) -> None:
        check_outcome(outcome)
        port = self.dispatcher.port
        is_annotated = isinstance(outcome, Modified) and outcome.message_annotations
        if is_annotated and port is not None and not port.can_annotate:
            raise NotPossible(
                "modify with annotations: AMQP 0-9-1 cannot change a message that it gives back"
            )

    def settle(
        self, message: ReceivedMessage, outcome: Outcome, transaction: Transaction | None = None
    ) -> None:
        if outcome is not ACCEPTED and outcome is not RELEASED:
            self.check(outcome)
        state = message.state
        if state == HELD:
            dispatcher = self.dispatcher
            work = dispatcher.work if transaction is None else dispatcher.work_of(transaction)
            if work is not None:
                if work.error is not None:
                    if isinstance(outcome, Released):
                        return  # as the rollback will
                    raise work.error.copied()
                work.settled.append(message)
            self.inbox.settle(message, outcome, work is not None)
            second: Consumer | None = None
            if work is None:
                if message.is_second:
                    second = self
                elif not self._will_evaluate:
                    self.evaluate_later()
            if dispatcher.settlements.add(message.tag, outcome, second, work):
                dispatcher.request_flush()
        elif state == LOST or (state == RETURNED and not isinstance(outcome, Released)):
            error = message.outcome_or_error
            assert isinstance(error, ClientError)
            raise error.copied()

    def release_unread(self, message: ReceivedMessage) -> None:
        self.inbox.hold_unread(message, self.dispatcher.turn.now_ms())
        self.settle(message, RELEASED)

    def ignore(self, message: ReceivedMessage) -> None:
        if message.state == HELD:
            self.inbox.ignore(message)
            self.evaluate_later()
        elif message.state == LOST:
            message.state = IGNORED

    def drop(self, message: ReceivedMessage) -> None:
        if self.inbox.drop(message):
            self.leaks.dropped(message)

    def end_staged(self, message: ReceivedMessage, error: ClientError | None) -> None:
        self.inbox.end_staged(message, error)
        self.evaluate_later()

    def changed_by_peer(self, first: int, last: int, state: Outcome | None) -> None:
        def changed(message: ReceivedMessage) -> None:
            if self.on_state_changed is not None:
                callback = self.on_state_changed
                self.dispatcher.call_back("on_delivery_state_changed", callback, message, state)

        self.inbox.change(first, last, state, changed)
        self.evaluate_later()

    # A rollback, or recover

    def stop_inflow(self) -> None:
        self.flow.stop()

    def recall(self, mark: int, error: ClientError) -> list[int]:
        return self.inbox.recall(mark, error, self.options.browse)

    def resume_inflow(self) -> None:
        self.flow.resume()
        self.evaluate_later()

    # The end

    async def detach(self) -> None:
        if self.ending is None and self.inbox.staged:
            await self.dispatcher.all_sent(
                self.inbox.staged
            )  # of a transaction that begins with it
        await super().detach()

    def close(self, error: ClientError) -> None:
        """No more messages come; buffered ones may still be read, but are lost [FC-19, FC-A6]."""
        super().close(error)
        self.leaks.close()
        self.wake(len(self._waiters))

    def suspend(self, error: ClientError) -> None:
        """Unsettled messages come again, so buffered ones must not be read; readers wait on
        [FC-19, TX-22]."""
        if self.ending is None:
            self.flow.suspend()
            self.inbox.lose_buffered(error)
            self.inbox.clear()
        super().suspend(error)

    def lose(self, error: ClientError) -> None:
        self._link_error = error
        if self.inbox.staged:
            self.dispatcher.receiver_gone(self.inbox.staged, self.ending is not None, error)
        self.inbox.lose_held(error)
        self.flow.lose(error)

    def give_up(self, error: ClientError) -> None:
        self.inbox.lose_buffered(error)

    # Reporting

    def report(self, event: Event, error: BaseException | None = None) -> None:
        self.dispatcher.reporter.report(event, error)

    def _report_decision(self, decision: Decision) -> None:
        reporter = self.dispatcher.reporter
        if not reporter.wants(CreditDecided):
            return
        port = self.port
        window = self.window
        reporter.report(
            CreditDecided(
                decision=decision,
                address=self.address,
                link=self.name,
                credit=self.credit,
                delivery_count=0 if port is None else port.delivery_count,
                buffered=window.buffered,
                unsettled=window.held,
                window=window.size,
                settle_mode=self.mode,
                delivery_tag=self.inbox.last_tag,
            )
        )
