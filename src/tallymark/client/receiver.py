"""Receivers: where messages come from. `Receiver` is what the application holds, `Consumer` its
state for as long as it lives, which the adapter and the session call.

What becomes of its messages is in inbox.py, how they are read in reading.py, the life and the
credit of its link in link.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self, TypeAlias, final

from tallymark.client.adapter import ReceiverOwner, ReceiverPort, SessionPort
from tallymark.client.arguments import (
    OnError,
    OnSuccess,
    ReceiverOptions,
    check_call,
    check_choice,
    check_int,
    check_timeout,
    check_type,
    listed,
)
from tallymark.client.deliveries import Deliveries
from tallymark.client.errors import ClientError, Closed, NotPossible
from tallymark.client.events import CreditDecided, Decision, Event, Unsettled
from tallymark.client.inbox import Inbox, LeakWatch
from tallymark.client.link import Flow, Link, Window
from tallymark.client.outcomes import (
    ACCEPTED,
    RELEASED,
    Modified,
    Outcome,
    OutcomeName,
    Released,
    check_outcome,
    named_outcome,
)
from tallymark.client.place import Place
from tallymark.client.reading import ON_ERROR, Handler, Middleware, Readers, Runner, composed
from tallymark.client.received import HELD, IGNORED, LOST, RETURNED, ReceivedMessage
from tallymark.client.topology import Declaring
from tallymark.client.transaction import Tag, Transaction, Work
from tallymark.client.turn import Closing

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
        is_manual = options.credit_mode == "manual"
        self.window = Window(0 if is_manual else options.credit, options.credit_on == "handover")
        self.inbox = Inbox(self.window)
        self.place = Place()
        self.flow = Flow(dispatcher, self.window, is_manual, self._report_decision)
        self.leaks = LeakWatch(self, self.inbox, options, dispatcher)
        self.readers = Readers(
            self, dispatcher, self.inbox, self.flow, self.leaks, self.evaluate_later
        )
        self.on_state_changed: StateCallback | None = None
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
        self.place.arrived(messages)
        if self.ending is not None:  # they can be read, but not settled [FC-A7]
            self.inbox.lose_buffered(self.ending)
        self.evaluate_later()
        self.leaks.arrived(messages)
        self.readers.arrived(len(messages))

    def answered(self, first: Tag, last: Tag, state: Outcome | None) -> None:
        self.inbox.answer(first, last, state)
        self.evaluate_later()

    def drained(self, given_up: int) -> None:
        self.flow.drained(given_up)

    @property
    def stream_offset(self) -> int | None:
        return self.place.next

    @property
    def is_finished(self) -> bool:
        return self.error is not None and not self.inbox.buffer

    def resumed(self) -> None:
        self.readers.resumed()

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

    def settle_second(self, first: Tag, last: Tag, outcome: Outcome, work: Work | None) -> None:
        if self.port is not None:
            self.port.settle(first, last, outcome, work)

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

    def changed_by_peer(self, first: Tag, last: Tag, state: Outcome | None) -> None:
        def changed(message: ReceivedMessage) -> None:
            if self.on_state_changed is not None:
                callback = self.on_state_changed
                self.dispatcher.call_back("on_delivery_state_changed", callback, message, state)

        self.inbox.change(first, last, state, changed)
        self.evaluate_later()

    # A rollback, or recover

    def stop_inflow(self) -> None:
        self.flow.stop()

    def recall(self, mark: Tag, error: ClientError) -> list[Tag]:
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
        self.readers.end()

    def suspend(self, error: ClientError) -> None:
        """Unsettled messages come again, so buffered ones must not be read; readers wait on
        [FC-19, TX-22]. Of a stream they are asked for."""
        if self.ending is None:
            self.flow.suspend()
            self.options = self.place.lost(self.options, self.inbox.unfinished())
            self.inbox.lose_buffered(error)
            self.inbox.clear()
        super().suspend(error)

    def lose(self, error: ClientError) -> None:
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
                credit=self.flow.credit,
                delivery_count=0 if port is None else port.delivery_count,
                buffered=window.buffered,
                unsettled=window.held,
                window=window.size,
                settle_mode=self.mode,
                delivery_tag=self.inbox.last_tag,
            )
        )


@final
class Receiver(Closing):
    """Made by `Session.receiver`. Read it in one way at a time: `receive`, `async for`,
    `receive_batch`, or `run`; several tasks may read the same one, each message goes to one of
    them. Closed with `close`, or by `async with`."""

    def __init__(self, session: Declaring, consumer: Consumer) -> None:
        self.session = session
        self._consumer = consumer

    # Reading

    async def receive(self, timeout: float | None = None) -> ReceivedMessage:
        """The next message; `timeout` in seconds, None: wait for ever.

        Raises TimedOut, and Closed (LinkClosed, SessionClosed, ConnectionClosed) when the receiver
        is closed and everything buffered was read; what is read after that cannot be settled any
        more. A call that is cancelled or timed out has taken nothing.
        """
        if timeout is not None:
            check_timeout("timeout", timeout)
        return await self._consumer.readers.next(timeout)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """Return the next message, as `receive` does; the loop ends when the application itself
        closes the receiver."""
        try:
            readers = self._consumer.readers
            message = readers.take()
            if message is None:
                message = await readers.next(None)
        except Closed as closed:
            if closed.was_asked_for:
                raise StopAsyncIteration from None
            raise
        return message

    async def receive_batch(self, n: int, timeout: float | None) -> list[ReceivedMessage]:
        """Up to n messages: as many as come within `timeout` seconds (None: wait for all n).

        With credit_mode="manual" it asks for them itself: issues credit for what is not buffered
        yet, and drains the rest when time is up, so that nothing comes behind its back [FC-24].
        (From a peer that does not answer a drain within 5 s the credit is taken back instead; what
        was on its way is in the next batch.)
        With credit_mode="auto" it reads what the window brings, so n is at most its size.

        Raises Closed when there is nothing to return; NotPossible while another batch is awaited. A
        cancelled call has taken nothing; in manual mode the credit it issued stays issued.
        """
        consumer = self._consumer
        check_int("n", n, 1)
        check_timeout("timeout", timeout)
        if not consumer.flow.is_manual and n > consumer.window.size:
            raise ValueError(
                f"a batch of {n} from a window of {consumer.window.size}: pass credit={n} or "
                "credit_mode='manual'"
            )
        return await consumer.readers.batch(n, timeout)

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        on_success: OnSuccess = "accept",
        on_error: OnError = "release",
        middleware: Sequence[Middleware] = (),
    ) -> None:
        """Call `handler(message)` for each message, `concurrency` at a time, until the receiver is
        closed [FC-23].

        on_success: what happens when it returns: "accept", or None: the handler settles, now or
            later; its slot is free when it does.
        on_error: what happens when it raises, unless it has settled the message:
            "release"   the broker makes it available again
            "reject"    the broker drops or dead-letters it, with the error's text
            "modify"    as release, counted as failed
            "ignore"    nothing, see `ReceivedMessage.ignore`
            "raise"     the message is released, the receiver closed, and the error raised from here
            The cancellation of a task that it waited for is an error like others.
        middleware: `async def layer(message, handler)` calls `await handler(message)` where it
            sees fit; the first is the outermost.

        Returns when the application closes the receiver, its session or its connection; raises
        Closed when the peer does. When it is cancelled, so are the handlers, and their messages
        are released.
        """
        consumer = self._consumer
        check_call("handler", handler)
        check_choice("on_error", on_error, ON_ERROR)
        check_choice("on_success", on_success, ("accept", None))
        check_int("concurrency", concurrency, 1)
        layers = listed("middleware", middleware, "a list of functions")
        for layer in layers:
            check_call("middleware", layer)
        if not consumer.flow.is_manual and concurrency > consumer.window.size:
            raise ValueError(
                f"{concurrency} handlers at a time with a window of {consumer.window.size}: "
                f"pass credit={concurrency} or more to session.receiver"
            )
        runner = Runner(consumer.readers, composed(handler, layers), on_success, on_error)
        try:
            await runner.run(concurrency)
        except BaseException as error:
            if error is runner.raised:
                await self._close_after(error)
            raise

    async def _close_after(self, error: BaseException) -> None:
        try:
            await self.close()
        except ClientError as failed:
            error.add_note(f"and the receiver could not be closed: {failed}")

    # Settling many

    async def settle_many(
        self,
        messages: Iterable[ReceivedMessage],
        outcome: Outcome | OutcomeName,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """Settle messages alike, in as few frames as their numbers allow: one for each stretch of
        consecutive ones. They may be of any receiver of this client: each settles through its own.

        In mode second this waits for the sender's answers. Messages that are settled already are
        left as they are. Raises what the first one raises that fails, when all have been tried. A
        cancelled call leaves all of them settled, or under way.

        outcome: or "accept", "reject", "release", "modify" (counted as failed).

        Raises TypeError, ValueError or NotPossible, and settles none, where one of `messages` is
        no message that was received, or `outcome` is none, or one that the protocol cannot express.
        """
        tried = listed("messages", messages, "received messages")
        chosen = named_outcome(outcome)
        check_outcome(chosen)
        if transaction is not None:
            check_type("transaction", transaction, Transaction, "a Transaction or None")
        for message in tried:
            if not isinstance(message, ReceivedMessage):
                raise TypeError(f"settle_many of {message!r:.80}, expected received messages")
        for consumer in {message.consumer for message in tried}:
            consumer.check(chosen)
        failure: ClientError | None = None
        for message in tried:
            try:
                message.settle_nowait(chosen, transaction=transaction)
            except ClientError as error:
                failure = failure or error
        for message in tried:
            try:
                await message.settlement()
            except ClientError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def on_delivery_state_changed(self, callback: StateCallback | None) -> StateCallback | None:
        """Call `callback(message, outcome)` when the sender changes the state of a message that the
        application still holds: it takes it back (Released, Modified) because its time is up, or
        settles it (None: without an outcome). The message is settled then, its slot free, and
        settling it changes nothing [FC-18]. One callback; returns it, so this decorates."""
        check_call("callback", callback, optional=True)
        self._consumer.on_state_changed = callback
        return callback

    # Credit by hand [FC-14]

    def issue_credit(self, n: int) -> None:
        """Let the peer send n more messages. Raises NotPossible unless credit_mode="manual", and
        while a drain is under way; Closed when the receiver is."""
        check_int("n", n, 1)
        self._consumer.flow.issue(n)

    async def drain(self) -> int:
        """Have the peer use its credit or give it up; returns how much it gave up. When this
        returns there is no credit, and everything that was sent is in the buffer [FC-5].

        Raises as `issue_credit`. When it is cancelled, the drain is still under way, and the credit
        is unknown until the peer has answered; until then neither `drain` nor `issue_credit` are
        possible.
        """
        return await self._consumer.flow.drain()

    # Properties

    @property
    def address(self) -> str:
        """The peer's name of the source; of a dynamic receiver, the address to send to."""
        return self._consumer.address

    @property
    def name(self) -> str:
        """Name of the link."""
        return self._consumer.name

    @property
    def settle_mode(self) -> str:
        """rcv-settle-mode in effect: "first" or "second"."""
        return self._consumer.mode

    @property
    def filter(self) -> Mapping[str, object]:
        """Source filters in effect: a broker leaves out those that it does not know."""
        return self._consumer.filter

    @property
    def credit(self) -> int:
        """Messages that the peer may send now."""
        return self._consumer.flow.credit

    @property
    def buffered(self) -> int:
        """Messages that arrived and were not read."""
        return self._consumer.window.buffered

    @property
    def unsettled(self) -> int:
        """Messages that were read and take a slot of the window."""
        return self._consumer.window.held

    @property
    def window(self) -> int:
        """Slots: at no time are credit, buffered and unsettled together more. 0: by hand."""
        return self._consumer.window.size

    @property
    def oldest_unsettled_age(self) -> int:
        """Milliseconds since the application was given the message it holds for longest; 0 when it
        holds none. O(unsettled)."""
        return self._consumer.leaks.oldest_age_ms()

    def unsettled_messages(self, most: int = 20) -> tuple[Unsettled, ...]:
        """The oldest messages the application holds, by name and age."""
        check_int("most", most, 0)
        return self._consumer.leaks.unsettled(most)

    @property
    def ignored_total(self) -> int:
        """Messages ever ignored: the broker holds them for us [FC-25]."""
        return self._consumer.window.ignored

    @property
    def settled_total(self) -> int:
        return self._consumer.inbox.settled_total

    @property
    def is_closed(self) -> bool:
        """Return whether it is closed by either side, or is being closed."""
        return self._consumer.is_closed

    # The end

    async def close(self) -> None:
        """Detach. What was settled before is sent first; what the application or the buffer
        still holds goes back to the broker, and settling it raises LinkClosed. What is buffered can
        be read all the same.

        Does nothing if it is closed. Raises TimedOut when the peer does not answer: then it is
        closed on our side. A cancelled call leaves the detach under way.
        """
        await self._consumer.detach()

    def __repr__(self) -> str:
        return f"<receiver of {self.address!r}>"
