"""Senders: where messages go. A send returns when the receiver has decided about the message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias, final

from tallymark.client.errors import (
    BatchNotAccepted,
    ClientError,
    LinkClosed,
    MessageModified,
    MessageRejected,
    MessageReleased,
    NotPossible,
    TimedOut,
)
from tallymark.client.message import Message
from tallymark.client.outcomes import Modified, Outcome, Rejected, Released
from tallymark.client.producer import Pending, Producer
from tallymark.client.waiting import TIME_IS_UP, Waiter, answer_to

if TYPE_CHECKING:
    from tallymark.client.session import Session
    from tallymark.client.transaction import Transaction

Sendable: TypeAlias = Message | bytes | str


@final
class Sender:
    """Made by `Session.sender`. Any number of tasks may send at the same time: messages leave in
    the order of the calls, never more than the receiver has given credit for."""

    def __init__(self, session: Session, producer: Producer) -> None:
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
        listed = list(messages)
        if not listed:
            return []
        posted = self._post(listed, settled, transaction)
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
            raise error.again()
        mode = producer.options.settle_mode
        if settled is None:
            settled = mode == "settled"
        elif settled == (mode == "unsettled") and mode in ("settled", "unsettled"):
            raise NotPossible(f"settled={settled} on a sender with settle_mode={mode!r}")
        encoded = [self._encoded(message) for message in messages]
        dispatcher = producer.dispatcher
        work = dispatcher.work if transaction is None else dispatcher.work_of(transaction)
        return producer.post(encoded, settled, work)

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

    # What is known of it

    @property
    def address(self) -> str | None:
        """The peer's name of the target; None: each message says where it goes (`to`)."""
        return self._producer.address

    @property
    def name(self) -> str:
        """Name of the link."""
        return self._producer.options.name

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
        return self._producer.error is not None or self._producer.ending is not None

    # The end

    async def close(self) -> None:
        """Detach. Sends that wait raise LinkClosed; where the message had left, it is in doubt.

        Does nothing if it is closed. Raises TimedOut when the peer does not answer: then it is
        closed on our side. A cancelled call leaves the detach under way.
        """
        producer = self._producer
        if producer.error is not None:
            return
        dispatcher = producer.dispatcher
        if producer.ending is None:
            dispatcher.turn.finish()
            error = LinkClosed("closed by the application")
            error.was_asked_for = True
            was_attached = producer.port is not None
            producer.begin_close(error)
            if not was_attached:
                producer.close(error)
                return
        waiter: Waiter = dispatcher.loop.create_future()
        producer.closing.append(waiter)
        if await answer_to(waiter, self.session.timeout_s) is TIME_IS_UP:
            assert producer.ending is not None
            producer.close(producer.ending)
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
        return f"<sender to {self.address!r}>"


def _check(outcome: Outcome | None) -> None:
    """Raises where the receiver did not accept."""
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
