"""Senders: where messages go. A send returns when the receiver has decided about the message.

A message that waits for credit is in its `Producer` and nowhere else: the protocol gets it when it
may leave. So a send that is cancelled before that leaves no trace, and credit and delivery-count
are as if it never had been [FC-A13]. What may leave, leaves once per turn of the event loop, as one
stretch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias, final

from tallymark.client.adapter import Number, SenderOwner, SenderPort, SessionPort
from tallymark.client.arguments import SenderOptions, check_flag, check_timeout, listed
from tallymark.client.deliveries import WAITING, WITHDRAWN, Deliveries, Group, Pending
from tallymark.client.errors import (
    BatchNotAccepted,
    ClientError,
    MessageModified,
    MessageRejected,
    MessageReleased,
    NotPossible,
    TimedOut,
)
from tallymark.client.link import Link
from tallymark.client.message import Message
from tallymark.client.outcomes import Modified, Outcome, Rejected, Released
from tallymark.client.topology import Declaring
from tallymark.client.transaction import Transaction, Work
from tallymark.client.turn import TIME_IS_UP, Closing, Waiter, answer_to

TURN_BYTES: Final = 1_048_576
"""Bytes of messages that leave one sender in one turn; more wait for the next."""


@final
class Producer(Link[SenderPort], SenderOwner):
    """State of one sender: messages that wait for credit, and the calls that wait for them."""

    def __init__(self, dispatcher: Deliveries, options: SenderOptions) -> None:
        super().__init__(dispatcher, options.address, options.name)
        self.options = options
        self.address = options.address
        self.queue: deque[Pending] = deque()
        self._will_flush = False
        self._leaving: list[Pending] = []  # sent settled, and behind the session's window

    # Called by the adapter

    def begin(self, session: SessionPort) -> SenderPort:
        return session.add_sender(self, self.options)

    def attached(self, port: SenderPort, address: str | None) -> None:
        self.address = address
        self.port = port
        self.may_send()
        self.now_attached(port)

    def may_send(self) -> None:
        if not self._will_flush:
            self._will_flush = True
            self.dispatcher.turn.flush_later(self)

    def send_waiting(self) -> None:
        if self.queue:
            self.may_send()

    def unblocked(self) -> None:
        leaving = self._leaving
        self._leaving = []
        for pending in leaving:
            if self.dispatcher.sent.pop(pending.number, None) is not None:
                pending.done()
        self.may_send()

    def requeue(self, low: Number, high: Number) -> None:
        sent = self.dispatcher.sent
        for number in range(high, low - 1, -1):
            pending = sent.pop(Number(number), None)
            if pending is not None:
                pending.number = WAITING
                self.queue.appendleft(pending)
        self._leaving = [pending for pending in self._leaving if pending.number != WAITING]

    # Sending

    @property
    def waiting(self) -> int:
        """Number of messages that have not left."""
        return sum(pending.number == WAITING for pending in self.queue)

    def post(self, messages: Sequence[bytes], settled: bool, work: Work | None) -> list[Pending]:
        """Add messages to the queue; their group's waiter is done when all have left or have their
        outcomes. Raises TransactionRolledBack where their transaction was rolled back."""
        if work is not None:
            work.check()
        waiter: Waiter = self.dispatcher.loop.create_future()
        group = Group(len(messages), waiter)
        posted = [
            Pending(self, group, index, data, settled, work) for index, data in enumerate(messages)
        ]
        self.queue.extend(posted)
        self.may_send()
        return posted

    def withdraw(self, posted: Sequence[Pending]) -> bool:
        """Withdraw messages that no call waits for any more: those that have not left will not be
        sent. Returns whether any message may have reached the receiver without its outcome being
        known."""
        in_doubt = False
        port = self.port
        for pending in posted:
            number = pending.number
            if number == WAITING:
                pending.withdraw()
            elif number >= 0 and self.dispatcher.sent.get(number) is pending:
                if port is not None and port.withdraw(number):
                    del self.dispatcher.sent[number]
                    pending.withdraw()
                else:
                    in_doubt = True
        while self.queue and self.queue[0].number == WITHDRAWN:
            self.queue.popleft()
        return in_doubt

    def flush(self) -> None:
        """Send the messages that may leave, at most once per turn."""
        self._will_flush = False
        port = self.port
        if port is None:
            return
        queue = self.queue
        room = TURN_BYTES
        while queue and room > 0 and not self.dispatcher.turn.is_paused:
            run = self._next_run(port.sendable, room)
            if not run:
                break
            room -= sum(len(pending.data) for pending in run)
            self._send(port, run)
        if not queue:
            port.idle()
        elif room <= 0:
            self.dispatcher.loop.call_soon(self.may_send)

    def _next_run(self, most: int, room: int) -> list[Pending]:
        """Return messages from the front of the queue that leave alike: settled or not, in the same
        transaction."""
        queue = self.queue
        run: list[Pending] = []
        while queue and most > 0 and room > 0:
            pending = queue[0]
            if pending.group.waiter.done():  # cancelled or timed out: it may not know yet
                pending.withdraw()
                queue.popleft()
                continue
            if run and (pending.settled != run[0].settled or pending.work is not run[0].work):
                break
            if not run and not self.dispatcher.may_send(pending.work):
                break
            run.append(queue.popleft())
            room -= len(pending.data)
            most -= 1
        return run

    def _send(self, port: SenderPort, run: list[Pending]) -> None:
        settled = run[0].settled
        numbers = port.send([pending.data for pending in run], settled, run[0].work)
        sent = self.dispatcher.sent
        has_left = settled and not port.is_blocked
        for pending, number in zip(run, numbers, strict=True):
            pending.number = number
            if has_left:
                pending.done()
            else:
                sent[number] = pending
        if settled and not has_left:
            self._leaving += run

    # The end

    def give_up(self, error: ClientError) -> None:
        queue = self.queue
        self.queue = deque()
        for pending in queue:
            if pending.number == WAITING:
                pending.finish(error.copied())

    def fail_posted(self, work: Work, error: ClientError) -> None:
        failed = [pending for pending in self.queue if pending.work is work]
        if failed:
            self.queue = deque(pending for pending in self.queue if pending.work is not work)
            for pending in failed:
                pending.finish(error.copied())

    def lose(self, error: ClientError) -> None:
        """Fail the messages that were sent: their outcomes will not be known. Those that have not
        left wait on, unless they are part of a transaction."""
        self._leaving.clear()
        sent = self.dispatcher.sent
        for number in [number for number, pending in sent.items() if pending.producer is self]:
            pending = sent.pop(number)
            work = pending.work
            is_lost = work is not None and work.error is not None  # for sure, with all of it
            pending.finish(error.copied(in_doubt=not is_lost))


Sendable: TypeAlias = Message | bytes | str


@final
class Sender(Closing):
    """Made by `Session.sender`. Any number of tasks may send at the same time: messages leave in
    the order of the calls, never more than the receiver has given credit for."""

    def __init__(self, session: Declaring, producer: Producer) -> None:
        self.session = session
        self._producer = producer

    async def send(
        self,
        message: Sendable,
        *,
        settled: bool | None = None,
        timeout: float | None = None,
        transaction: Transaction | None = None,
    ) -> Outcome | None:
        """Send a message (bytes and str stand for one with that body and no properties) and wait
        for its outcome: that it was accepted, by a broker that it has it safely. With
        `settled=True`, or on a sender with settle_mode="settled", it returns None as soon as the
        message has left, and nobody will ever know.

        In the session's transaction, or in the `transaction` named, accepted means that the broker
        holds the message for it: nobody sees it before the commit.

        Raises MessageRejected, MessageReleased, MessageModified for the other outcomes; Closed when
        the sender goes; TimedOut after `timeout` seconds; TransactionRolledBack. Where
        `error.in_doubt` is set the message had left, and may have arrived.

        A cancelled or timed out call has not sent the message if it was still waiting, for credit
        or for the session's or the socket's buffer; otherwise the message is under way.
        """
        check_timeout("timeout", timeout)
        posted = self._post([message], settled, transaction)
        await self._finished(posted, timeout)
        result = posted[0].group.outcomes[0]
        if isinstance(result, ClientError):
            raise result
        _check(result)
        return result

    async def send_batch(
        self,
        messages: Iterable[Sendable],
        *,
        settled: bool | None = None,
        timeout: float | None = None,
        transaction: Transaction | None = None,
    ) -> list[Outcome | None]:
        """Send messages, as many at a time as there is credit for, and wait for all outcomes; they
        are returned in the order of the messages.

        Raises BatchNotAccepted, which has them all, unless every message was accepted; TimedOut
        after `timeout` seconds for all. Cancelled or timed out, it leaves behind what `send` does,
        message by message.
        """
        check_timeout("timeout", timeout)
        batch = listed("messages", messages, "an iterable of messages")
        if not batch:
            return []
        posted = self._post(batch, settled, transaction)
        await self._finished(posted, timeout)
        outcomes = posted[0].group.outcomes
        accepted: list[Outcome | None] = []
        for outcome in outcomes:
            if isinstance(outcome, (ClientError, Rejected, Released, Modified)):
                raise _batch_error(outcomes)
            accepted.append(outcome)
        return accepted

    def _post(
        self, messages: Sequence[Sendable], settled: bool | None, transaction: Transaction | None
    ) -> list[Pending]:
        producer = self._producer
        error = producer.error or producer.ending
        if error is not None:
            raise error.copied()
        mode = producer.options.settle_mode
        if settled is not None:
            check_flag("settled", settled)
        if settled is None:
            settled = mode == "settled"
        elif settled == (mode == "unsettled") and mode in ("settled", "unsettled"):
            raise NotPossible(f"settled={settled} on a sender with settle_mode={mode!r}")
        encoded = [self._encoded(message) for message in messages]
        return producer.post(encoded, settled, producer.dispatcher.work_of(transaction))

    def _encoded(self, message: Sendable) -> bytes:
        if not isinstance(message, Message):
            message = Message(message)
        if self._producer.address is None and not message.to:
            raise ValueError("a message without `to` on a sender without an address")
        data = message.encode()
        port = self._producer.port
        if port is not None and 0 < port.max_message_size < len(data):
            raise ValueError(
                f"a message of {len(data)} bytes, {self._producer.address!r} takes at most "
                f"{port.max_message_size}"
            )
        return data

    async def _finished(self, posted: list[Pending], timeout: float | None) -> None:
        """Wait until all messages of a call have their outcomes; withdraw them if the wait ends
        early."""
        try:
            result = await answer_to(posted[0].group.waiter, timeout)
        except BaseException:
            self._producer.withdraw(posted)
            raise
        if result is TIME_IS_UP:
            error = TimedOut(f"no outcome from {self.address!r} within {timeout} s")
            error.in_doubt = self._producer.withdraw(posted)
            raise error

    # Properties

    @property
    def address(self) -> str | None:
        """The peer's name of the target; None: each message says where it goes (`to`)."""
        return self._producer.address

    @property
    def name(self) -> str:
        """Name of the link."""
        return self._producer.name

    @property
    def credit(self) -> int:
        """Messages that may leave now; 0 too while the session's window is closed."""
        port = self._producer.port
        return 0 if port is None else port.sendable

    @property
    def waiting(self) -> int:
        """Number of messages that have not left."""
        return self._producer.waiting

    @property
    def is_closed(self) -> bool:
        """Return whether it is closed by either side, or is being closed."""
        return self._producer.is_closed

    # The end

    async def close(self) -> None:
        """Detach. Sends that wait raise LinkClosed; where the message had left, it is in doubt.

        Does nothing if it is closed. Raises TimedOut when the peer does not answer: then it is
        closed on our side. A cancelled call leaves the detach under way.
        """
        await self._producer.detach()

    def __repr__(self) -> str:
        return f"<sender to {self.address!r}>"


def _check(outcome: Outcome | None) -> None:
    """Raise NotAccepted unless the receiver accepted."""
    if isinstance(outcome, Rejected):
        error = outcome.error
        if error is None:
            raise MessageRejected("rejected without a reason", outcome)
        raise MessageRejected(
            error.description or "rejected",
            outcome,
            condition=error.condition,
            info=dict(error.info or {}),
        )
    if isinstance(outcome, Released):
        raise MessageReleased("the receiver does not take the message", outcome)
    if isinstance(outcome, Modified):
        raise MessageModified("the receiver gives the message back", outcome)


def _batch_error(outcomes: list[Outcome | ClientError | None]) -> BatchNotAccepted:
    bad = [o for o in outcomes if isinstance(o, (ClientError, Rejected, Released, Modified))]
    first = bad[0]
    shown = str(first) if isinstance(first, ClientError) else type(first).__name__.lower()
    return BatchNotAccepted(
        f"{len(bad)} of {len(outcomes)} messages were not accepted, the first: {shown}", outcomes
    )
