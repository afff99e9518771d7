"""Receivers: where messages come from, in three forms, with one credit rule behind them [FC-17]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, final

from tallymark.client.batch import next_batch
from tallymark.client.consumer import Consumer
from tallymark.client.errors import ClientError, Closed, LinkClosed, TimedOut
from tallymark.client.events import Unsettled
from tallymark.client.handlers import ON_ERROR, Handler, Middleware, Runner, composed
from tallymark.client.options import OnError, OnSuccess
from tallymark.client.outcomes import Outcome
from tallymark.client.received import ReceivedMessage
from tallymark.client.waiting import TIME_IS_UP, Waiter, answer_to

if TYPE_CHECKING:
    from tallymark.client.consumer import StateCallback
    from tallymark.client.session import Session
    from tallymark.client.transaction import Transaction


@final
class Receiver:
    """Made by `Session.receiver`. Read it in one way at a time: `receive`, `async for`,
    `receive_batch`, or `run`; several tasks may read the same one, each message goes to one of
    them. Closed with `close`, or by `async with`."""

    def __init__(self, session: Session, consumer: Consumer) -> None:
        self.session = session
        self._consumer = consumer

    # Reading

    async def receive(self, timeout: float | None = None) -> ReceivedMessage:
        """The next message; `timeout` in seconds, None: wait for ever.

        Raises TimedOut, and Closed (LinkClosed, SessionClosed, ConnectionClosed) when the receiver
        is closed and everything buffered was read; what is read after that cannot be settled any
        more. A call that is cancelled or timed out has taken nothing.
        """
        return await self._consumer.next(timeout)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """Return the next message, as `receive` does; the loop ends when the application itself
        closes the receiver."""
        try:
            message = self._consumer.take()
            if message is None:
                message = await self._consumer.next(None)
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
        if n < 1:
            raise ValueError(f"a batch of {n}, expected 1 or more")
        if not consumer.is_manual and n > consumer.window.size:
            raise ValueError(
                f"a batch of {n} from a window of {consumer.window.size}: pass credit={n} or "
                "credit_mode='manual'"
            )
        return await next_batch(consumer, n, timeout)

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
        middleware: `async def layer(message, handler)` calls `await handler(message)` where it
            sees fit; the first is the outermost.

        Returns when the application closes the receiver, its session or its connection; raises
        Closed when the peer does. When it is cancelled, so are the handlers, and their messages
        are released.
        """
        consumer = self._consumer
        if on_error not in ON_ERROR:
            listed = ", ".join(repr(choice) for choice in ON_ERROR)
            raise ValueError(f"on_error={on_error!r}, expected one of {listed}")
        if on_success not in ("accept", None):
            raise ValueError(f"on_success={on_success!r}, expected 'accept' or None")
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency}, expected 1 or more")
        if not consumer.is_manual and concurrency > consumer.window.size:
            raise ValueError(
                f"{concurrency} handlers at a time with a window of {consumer.window.size}: "
                f"pass credit={concurrency} or more to session.receiver"
            )
        runner = Runner(consumer, composed(handler, middleware), on_success, on_error)
        try:
            await runner.run(concurrency)
        except Exception as error:
            if error is runner.raised:
                await self._close_after(error)
            raise

    async def _close_after(self, error: Exception) -> None:
        try:
            await self.close()
        except ClientError as failed:
            error.add_note(f"and the receiver could not be closed: {failed}")

    # Settling many

    async def settle_many(
        self,
        messages: Iterable[ReceivedMessage],
        outcome: Outcome,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """Settle messages alike, in as few frames as their numbers allow: one for each stretch of
        consecutive ones. They may be of any receiver of this client: each settles through its own.

        In mode second this waits for the sender's answers. Messages that are settled already are
        left as they are. Raises what the first one raises that fails, when all have been tried. A
        cancelled call leaves all of them settled, or under way.

        Raises TypeError, ValueError or NotPossible, and settles none, where one of `messages` is
        no message that was received, or `outcome` is none or nothing that the protocol can say.
        """
        tried = list(messages)
        for message in tried:
            if not isinstance(message, ReceivedMessage):
                raise TypeError(f"settle_many of {message!r:.80}, expected received messages")
        for dispatcher in {message.consumer.dispatcher for message in tried}:
            dispatcher.check(outcome)
        failure: ClientError | None = None
        for message in tried:
            try:
                message.settle_nowait(outcome, transaction=transaction)
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
        self._consumer.on_state_changed = callback
        return callback

    # Credit by hand [FC-14]

    def issue_credit(self, n: int) -> None:
        """Let the peer send n more messages. Raises NotPossible unless credit_mode="manual", and
        while a drain is under way; Closed when the receiver is."""
        self._consumer.issue(n)

    async def drain(self) -> int:
        """Have the peer use its credit or give it up; returns how much it gave up. When this
        returns there is no credit, and everything that was sent is in the buffer [FC-5].

        Raises as `issue_credit`. When it is cancelled, the drain is still under way, and the credit
        is unknown until the peer has answered; until then neither `drain` nor `issue_credit` are
        possible.
        """
        return await self._consumer.drain()

    # What is known of it

    @property
    def address(self) -> str:
        """The peer's name of the source; of a dynamic receiver, the address to send to."""
        return self._consumer.address

    @property
    def name(self) -> str:
        """Name of the link."""
        return self._consumer.options.name

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
        return self._consumer.credit

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
        return self._consumer.leaks.unsettled(most)

    @property
    def ignored_total(self) -> int:
        """Messages ever ignored: the broker holds them for us [FC-25]."""
        return self._consumer.window.ignored

    @property
    def settled_total(self) -> int:
        return self._consumer.settled_total

    @property
    def is_closed(self) -> bool:
        """Return whether it is closed by either side, or is being closed."""
        return self._consumer.error is not None or self._consumer.ending is not None

    # The end

    async def close(self) -> None:
        """Detach. What was settled before, is said first; what the application or the buffer
        still holds goes back to the broker, and settling it raises LinkClosed. What is buffered can
        be read all the same.

        Does nothing if it is closed. Raises TimedOut when the peer does not answer: then it is
        closed on our side. A cancelled call leaves the detach under way.
        """
        consumer = self._consumer
        dispatcher = consumer.dispatcher
        if consumer.ending is None and consumer.staged:
            await dispatcher.all_told(consumer)  # of a transaction that begins with it
        if consumer.error is not None:
            return
        if consumer.ending is None:
            dispatcher.turn.finish()
            error = LinkClosed("closed by the application")
            error.was_asked_for = True
            was_attached = consumer.port is not None
            consumer.begin_close(error)
            if not was_attached:
                consumer.close(error)
                return
        waiter: Waiter = dispatcher.loop.create_future()
        consumer.closing.append(waiter)
        if await answer_to(waiter, self.session.timeout_s) is TIME_IS_UP:
            assert consumer.ending is not None
            consumer.close(consumer.ending)
            raise TimedOut(f"detach of {self.name!r} not answered in {self.session.timeout_s} s")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<receiver of {self.address!r}>"
