"""The dispatcher of a session's deliveries: the one object that owns delivery, stop, commit,
rollback, recover and close [TX-17 to TX-26].

It knows no protocol: tags are whole numbers that only grow within a session, settlements are
ranges of them.

    highest_tag      set by Consumer.deliver, before a message can be seen; no await between
    buffers          tail: Consumer.deliver; head: Readers.take, and nobody else; recall
    the gate's state, rollback_mark, has_no_inflow
                     stop, rollback, recover, close; looked at after every await of a reader
    held, settling, staged
                     take, settle, ignore, answers, recall: each in one step
    work             what is sent and settled at present is in it; changed by commit and rollback,
                     under the session lock, in the step in which they are sent

There is no dispatcher task and so no message in its hands: readers are tasks of the application,
woken with nothing, and `Readers.take` decides at the moment it gives [TX-18]. Buffers hold
messages and nothing else: stops, barriers and the ends of receivers are states, so no such item is
ever compared with the mark.

Lock order: session, then nothing. What belongs to the dispatcher and to a consumer changes in steps
without an await and needs no lock. The session lock is held by tasks of the dispatcher's own, never
while a handler that could want it runs: who waits for it in a handler counts as not at work
(`Gate`), so that a rollback in a handler waits neither for itself nor for another such [TX-20].
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, final

from tallymark.client.adapter import SessionPort
from tallymark.client.arguments import ANSWER_S
from tallymark.client.deliveries import Deliveries, Gate
from tallymark.client.errors import (
    ClientError,
    Closed,
    ConnectionLost,
    MessagesReturned,
    NotPossible,
    RollbackUncertain,
    TransactionError,
    TransactionRolledBack,
)
from tallymark.client.events import Reporter, TransactionFailed
from tallymark.client.received import ranges_of
from tallymark.client.transaction import Stage, Tag, Transaction, Work, rolled_back
from tallymark.client.turn import Turn, Waiter, answer_to, resolve


@final
class Endings:
    """Commits and rollbacks under way of one session."""

    __slots__ = ("_gate", "_loop", "_reporter", "_tasks")

    def __init__(self, loop: asyncio.AbstractEventLoop, gate: Gate, reporter: Reporter) -> None:
        self._loop = loop
        self._gate = gate
        self._reporter = reporter
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, steps: Coroutine[Any, Any, None], waiter: Waiter) -> None:
        """Begin. The waiter's result is how it ended: None, or a ClientError."""
        task = self._loop.create_task(self._finish(steps, waiter))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, steps: Coroutine[Any, Any, None], waiter: Waiter) -> None:
        try:
            await steps
        except ClientError as error:
            if waiter.done():  # nobody waits any more
                self._reporter.report(TransactionFailed(error), error)
            resolve(waiter, error)
        except BaseException:
            waiter.cancel()
            raise
        else:
            resolve(waiter, None)

    async def over(self, limit_s: float) -> None:
        """Wait for all of them, at most so long."""
        with self._gate.parked():
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=limit_s)


@final
class Selection:
    """Answer to whether the session takes transactions; asked for once a port, when the first
    transaction is wanted [TX-1, TX-11]."""

    __slots__ = ("_is_asked", "error", "is_granted")

    def __init__(self) -> None:
        self.is_granted = False
        self.error: ClientError | None = None
        """Reason why it takes none; asked again for the next one."""
        self._is_asked = False

    @property
    def is_answered(self) -> bool:
        return self.is_granted or self.error is not None

    def ask(self, port: SessionPort) -> bool:
        """Ask, unless that was done. Return whether the answer is known at once: no."""
        if self.is_granted or self._is_asked:
            return False
        self._is_asked = True
        self.error = None
        try:
            port.select()
        except NotPossible as error:
            self.answer(error)
        return self.error is not None

    def answer(self, error: ClientError | None) -> None:
        self._is_asked = False
        self.is_granted = error is None
        self.error = error

    def forget(self) -> None:
        """Begin anew: the port is another one."""
        self.is_granted = self._is_asked = False


@final
class Dispatcher(Deliveries):
    """A session with its transactions: the one object that decides what is delivered, and when."""

    def __init__(self, turn: Turn, reporter: Reporter, answer_s: float = ANSWER_S) -> None:
        super().__init__(turn, reporter, answer_s)
        self.transaction: Transaction | None = None
        """The session's, if it is in one."""
        self.explicit = 0
        """Number of explicit transactions, which settlements and messages have to name."""
        self._lock = asyncio.Lock()
        self._live: list[Work] = []
        self._ending: Work | None = None
        """The session's unit of work whose commit or rollback was sent and is not answered."""
        self._endings = Endings(turn.loop, self.gate, reporter)
        self._selection = Selection()
        self._has_stopped = False
        """The peer's word that the last delivery has arrived."""
        self._is_given_back = False

    # Transactions: one ends at a time, and no handler of the application runs in it [TX-23]

    async def enter(self, transaction: Transaction) -> None:
        with self.gate.parked():
            async with self._lock:
                port = self.port
                if port is None:
                    raise (self.error or NotPossible("the session is not there")).copied()
                if self.transaction is not None:
                    raise NotPossible("a transaction on a session that is in one")
                if self.explicit and not transaction.is_explicit:
                    raise NotPossible(
                        f"a transaction of the session beside {self.explicit} explicit ones"
                    )
                await self._select(port)
                if transaction.is_explicit and not port.has_several:
                    raise NotPossible("explicit transactions: the broker has one a session")
                self._open(transaction)

    async def _select(self, port: SessionPort) -> None:
        selection = self._selection
        self._ask_for_transactions(port)
        await self.until(port, lambda: selection.is_answered, self.answer_s)
        if selection.error is not None:
            raise selection.error.copied()
        if self.port is not port:
            raise (self.error or ConnectionLost("while a transaction was opened")).copied()

    def _ask_for_transactions(self, port: SessionPort) -> None:
        if self._selection.ask(port):
            self.changed()
        self.turn.request()

    def _open(self, transaction: Transaction) -> None:
        if transaction.is_explicit:
            self.explicit += 1
        else:
            self.transaction = transaction
        transaction.lock = asyncio.Lock() if transaction.is_explicit else self._lock
        self._renew(transaction, False)

    def _renew(self, transaction: Transaction, last: bool) -> Work | None:
        """Begin the transaction's next unit of work, or with `last` end the transaction. Return the
        unit before."""
        before = transaction.work
        work: Work | None = None
        if not last:
            work = Work(self.changed)
            self._live.append(work)
        elif transaction.is_explicit:
            self.explicit -= 1
        else:
            self.transaction = None
        transaction.work = work
        if not transaction.is_explicit:
            self.work = work
        return before

    def receiver_gone(
        self, staged: Mapping[Tag, object], was_closed: bool, error: ClientError
    ) -> None:
        """Doom the transaction where nobody can tell whether the broker was sent the settlements:
        nothing of it must take effect."""
        if was_closed:  # the broker hears of everything first, if it can
            unsure = {run.work for run in self.unsent if any(t in staged for t in run.tags)}
        else:
            unsure = {work for work in self._live if any(m.tag in staged for m in work.settled)}
        for work in unsure:
            if work is not None:
                work.doom(rolled_back(f"with a receiver: {error}", error))

    def may_send(self, work: Work | None) -> bool:
        """Begins the transaction on the broker if nothing was sent in it yet."""
        port = self.port
        if port is None:
            return False
        if self._ending is not None and not port.has_several:
            return False  # [TX-5]
        if work is None:
            return True
        if work.error is not None:
            return False  # a rollback finds it
        if work.stage is Stage.NEW and self._ending is None:
            selection = self._selection
            if selection.is_granted:
                work.stage = Stage.BEGINNING
                port.begin(work)
                self.turn.request()
            elif selection.error is not None:
                work.failed(rolled_back("before it began", selection.error))
            else:
                self._ask_for_transactions(port)
        return work.stage is Stage.OPEN

    async def commit(self, transaction: Transaction, last: bool) -> None:
        rollbacks = transaction.rollbacks
        lock = transaction.lock
        with self.gate.parked():
            await lock.acquire()
            waiter: Waiter | None = None
            try:
                work = transaction.present()
                if transaction.rollbacks != rollbacks:
                    raise _by_the_application()
                if work.is_empty:
                    if last:
                        self._renew(transaction, True)
                        self._live.remove(work)
                    ended = self._ended_by_others()
                    if ended is not None:
                        raise rolled_back(f"with its session: {ended}", ended)
                    return
                await self._all_answered(work)
                waiter = self.loop.create_future()
                self._end(transaction, work, last, waiter)
            finally:
                if waiter is None:
                    lock.release()
            await answer_to(waiter, None)

    async def _all_answered(self, work: Work) -> None:
        """Wait until everything done in a transaction was sent to the broker, and every message has
        its outcome [TX-24]; or the transaction has failed. As long as a send would wait."""

        def is_answered() -> bool:
            self.send_settlements()
            return work.error is not None or (
                work.stage is Stage.OPEN
                and not work.unanswered
                and not any(run.work is work for run in self.unsent)
            )

        while not is_answered():
            await self.until(self.port, is_answered, None)

    def _end(self, transaction: Transaction, work: Work, last: bool, waiter: Waiter) -> None:
        """Send the commit. Later work of other tasks belongs to the next transaction."""
        self._renew(transaction, last)
        port = self.port
        if work.error is None and port is not None:
            work.stage = Stage.ENDING
            work.is_committing = True
            if not transaction.is_explicit:
                self._ending = work
            port.commit(work)
            self.turn.request()
        self._endings.run(self._committed(transaction, work, port), waiter)

    async def _committed(
        self, transaction: Transaction, work: Work, port: SessionPort | None
    ) -> None:
        """Wait for the answer to a commit, and give everything back if it failed."""
        try:
            await self.answered(port, lambda: work.stage is not Stage.ENDING)
            error = work.error
            if error is not None:
                self._may_begin_next(work)  # a handler that is waited for may need it
                transaction.rollbacks += 1
                with suppress(RollbackUncertain):  # this is what it would be uncertain about
                    if transaction.is_explicit:
                        await self._give_one_back(work, error)
                    else:
                        await self._give_all_back(error, lambda: work)
                raise error.copied()
            self._is_over(work, None)
            transaction.commits += 1
            if work.returned:
                text = f"committed, and no queue took {work.returned} of its messages"
                raise MessagesReturned(text, work.returned)
        finally:
            transaction.lock.release()

    async def rollback(self, transaction: Transaction, last: bool) -> None:
        waiter: Waiter = self.loop.create_future()
        with self.gate.parked():
            self._endings.run(self._roll_back(transaction, last), waiter)
            await answer_to(waiter, None)

    async def _roll_back(self, transaction: Transaction, last: bool) -> None:
        async with transaction.lock:
            if transaction.work is None:
                return
            error = _by_the_application()

            def taken() -> Work | None:
                transaction.rollbacks += 1
                return self._renew(transaction, last)

            if transaction.is_explicit:
                work = taken()
                assert work is not None
                await self._give_one_back(work, error)
            else:
                await self._give_all_back(error, taken)
        ended = self._ended_by_others()
        if ended is not None and not last:
            raise ended.copied()

    def _ended_by_others(self) -> ClientError | None:
        """Return why the session was closed by others for good, if it was: its next commit and
        rollback raise that as well [SC-10]."""
        error = self.error
        return None if isinstance(error, Closed) and error.was_asked_for else error

    async def _give_one_back(self, work: Work, error: ClientError) -> None:
        """Roll an explicit transaction back: only what was settled in it is undone."""
        port = self.port
        is_done = True
        if port is not None:
            is_done = await self._roll_back_at_broker(port, work, self.forget_unsent(work), error)
        self._is_over(work, error)
        if not is_done:
            raise _uncertain(work)

    async def recover(self) -> None:
        """See Session.recover [TX-26]."""
        waiter: Waiter = self.loop.create_future()
        with self.gate.parked():
            self._endings.run(self._recover(), waiter)
            await answer_to(waiter, None)

    async def _recover(self) -> None:
        async with self._lock:
            if self.error is not None:
                raise self.error.copied()
            await self._give_all_back(NotPossible("given back by recover: it comes again"))

    async def _give_all_back(
        self, error: ClientError, taken: Callable[[], Work | None] = lambda: None
    ) -> None:
        """Give all unsettled deliveries back to the broker, to come again in their old order;
        before they come, roll back what `taken` returns [TX-19, TX-19a, TX-25, TX-26].

        Raises RollbackUncertain where the session goes in the middle of it.
        """
        self.gate.pause()
        try:
            await self.gate.quiet()
            port = self.port
            is_done = port is None or await self._stop_inflow(port)
            work = taken()
            if port is not None and is_done:
                is_done = await self._rolled_back(port, work, error)
            if work is not None:
                self._is_over(work, error)
            self._go_on(port if is_done else None)
        finally:
            self.has_no_inflow = False
            self.gate.unpause()
        if not is_done:
            raise _uncertain(work)

    async def _stop_inflow(self, port: SessionPort) -> bool:
        """Step 1: until the last delivery is in. False: the session is gone."""
        self.has_no_inflow = True
        for consumer in self.consumers:
            consumer.stop_inflow()
        self._has_stopped = False
        port.stop_inflow()
        self.turn.request()
        return await self.answered(port, lambda: self._has_stopped)

    def _recall(self, error: ClientError) -> list[Tag]:
        """Step 4, of all receivers, also those that were closed."""
        tags: list[Tag] = []
        for consumer in (*self.consumers, *self.unread):
            tags += consumer.recall(self.rollback_mark, error)
        return tags

    async def _rolled_back(self, port: SessionPort, work: Work | None, error: ClientError) -> bool:
        """Steps 2 to 6. False: the session is gone. There is nothing to wait for at step 3: no
        message is in anybody's hands who has not got it."""
        self.rollback_mark = self.highest_tag
        tags = self._recall(error)
        if work is None:
            return await self._given_back(port, tags)
        tags += self.forget_unsent(work)
        return await self._roll_back_at_broker(port, work, tags, error)

    async def _roll_back_at_broker(
        self, port: SessionPort, work: Work, tags: list[Tag], error: ClientError
    ) -> bool:
        for producer in self.producers:
            producer.fail_posted(work, error)
        if not await self.answered(port, lambda: work.stage is not Stage.BEGINNING):
            return False
        if work.stage is Stage.OPEN:
            work.stage = Stage.ENDING
            if self.has_no_inflow:
                self._ending = work
            port.rollback(work)
            self.turn.request()
            if not await self.answered(port, lambda: work.stage is not Stage.ENDING):
                return False
        return await self._given_back(port, tags)

    async def _given_back(self, port: SessionPort, tags: list[Tag]) -> bool:
        """Step 5. What a broker sent behind our back meanwhile is not shown either [TX-18]."""
        if self.has_no_inflow and self.highest_tag > self.rollback_mark:
            self.rollback_mark = self.highest_tag
            tags += self._recall(NotPossible("given back: it comes again"))
        self.send_settlements()  # behind it their tags would mean nothing any more
        self._is_given_back = False
        port.give_back(ranges_of(tags))
        self.turn.request()
        return await self.answered(port, lambda: self._is_given_back)

    def _is_over(self, work: Work, error: ClientError | None) -> None:
        """End a unit of work: its messages free their slots, and waiting settlements may be
        sent."""
        settled = work.settled
        work.settled = []
        for message in settled:
            message.end_staged(error)
        if work in self._live:
            self._live.remove(work)
        self._may_begin_next(work)

    def _may_begin_next(self, work: Work) -> None:
        """Let the session's next transaction begin: the broker has answered the end of this one."""
        if self._ending is work:
            self._ending = None
        self.changed()

    def _go_on(self, port: SessionPort | None) -> None:
        """Step 7: credit, for those whose session is still there."""
        self.has_no_inflow = False
        if port is not None:
            port.resume_inflow()
            for consumer in self.consumers:
                consumer.resume_inflow()

    async def endings(self) -> None:
        """Wait for commits and rollbacks that are under way, as long as an answer may take."""
        await self._endings.over(self.answer_s)

    # What the adapter answers

    def selected(self, error: ClientError | None) -> None:
        self._selection.answer(error)
        self.changed()

    def transactions_lost(self, error: TransactionError) -> None:
        for work in list(self._live):
            if work.is_known:
                work.failed(error)

    def inflow_stopped(self) -> None:
        self._has_stopped = True
        self.changed()

    def given_back(self) -> None:
        self._is_given_back = True
        self.changed()

    # Opened and closed

    def opened(self, port: SessionPort) -> None:
        self._selection.forget()
        super().opened(port)

    def lose_work(self, error: ClientError) -> None:
        for work in list(self._live):
            work.lose(error)
            if work.error is not None:
                for producer in self.producers:
                    producer.fail_posted(work, work.error)
                for message in work.settled:
                    message.end_staged(work.error)
                work.settled = []


def _by_the_application() -> TransactionRolledBack:
    error = TransactionRolledBack("rolled back by the application")
    error.was_asked_for = True
    return error


def _uncertain(work: Work | None) -> TransactionError:
    if work is not None and isinstance(work.error, RollbackUncertain):
        return work.error.copied()
    return RollbackUncertain("the session went before everything was given back")
