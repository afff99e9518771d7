"""Deliberate bugs of queues, deliveries, transactions, time and housekeeping."""

from __future__ import annotations

from typing import Any

from tallymark.engine import deadletters, timeouts
from tallymark.engine.account import MOVING, READY, Account
from tallymark.engine.admission import Admission
from tallymark.engine.broker import Broker
from tallymark.engine.clock import Clock
from tallymark.engine.commit import Commit
from tallymark.engine.deadletters import DeadLetters
from tallymark.engine.delivery import Dispatcher
from tallymark.engine.entrance import Entrance
from tallymark.engine.quarantine import Quarantine
from tallymark.engine.queue import Queue
from tallymark.engine.queue_parts import Deduplication
from tallymark.engine.session import Consumer
from tallymark.engine.settlement import Settlement
from tallymark.engine.slow.actions import SlowSubscription
from tallymark.engine.state import Agenda
from tallymark.engine.timeouts import Timeouts
from tallymark.engine.topology import Targets
from tallymark.engine.transactions import Transactions
from tallymark.engine.upkeep import Upkeep
from tallymark.server.heap import HeapTrim
from tallymark.stored import records
from tallymark.units import UNLIMITED
from tests.simulation.bugs.registry import (
    has_cycles,
    has_deferrals,
    has_durable_slow,
    has_failing_reads,
    has_own_ttl,
    has_repeats,
    has_seen_transactions,
    has_shared,
    has_timeouts,
    has_times_and_clock_steps,
    has_ttl,
    mutant,
    replaced,
)


@mutant("rollback commits")
def _() -> None:
    def commits(self: Any, transaction: Any, lost: bool = False) -> None:
        self.commit(transaction)

    Transactions.rollback = commits  # type: ignore[method-assign]


@mutant("commit forgets its second run")
def _() -> None:
    def make(publish: Any) -> Any:
        def first(self: Any, run: Any, now: int) -> None:
            if run is self._transaction.runs[0]:
                publish(self, run, now)

        return first

    replaced(Commit, "_publish", make)


@mutant("acknowledgement in a transaction forgotten")
def _() -> None:
    Commit._settle = lambda self, settlement: False  # type: ignore[method-assign]


@mutant("lost connection returns nothing")
def _() -> None:
    def make(return_all: Any) -> Any:
        def nothing(self: Any, session: Any, reason: int, *rest: Any) -> None:
            if reason != records.RETURNED_BY_LOSS:
                return_all(self, session, reason, *rest)

        return nothing

    replaced(Settlement, "return_all", make)


@mutant("acknowledged twice counts twice")
def _() -> None:
    def make(add: Any) -> Any:
        def more(self: Any, bucket: int, count: int, size: int) -> None:
            add(self, bucket, count, size)
            if count == 3:
                self.settled += 1

        return more

    replaced(Account, "_add", make)


@mutant("dead letter dropped")
def _() -> None:
    def lost(self: Any, queue: Any, address: Any, letter: Any) -> list[Any]:
        self._complete(queue, letter)
        return []

    DeadLetters._deliver = lost  # type: ignore[method-assign]


@mutant("credit never comes back")
def _() -> None:
    Settlement.free_credit = lambda self, session, consumer, n: None  # type: ignore[method-assign]


@mutant("freed credit to the first queue only", has_shared)
def _() -> None:
    def make(share_out: Any) -> Any:
        def to_first(self: Any) -> Any:
            for session in self._agenda.offers:
                for consumer in list(session.line.values()):
                    if consumer.id != min(session.line):
                        session.step_out(consumer)
            return share_out(self)

        return to_first

    replaced(Dispatcher, "_share_out", make)


@mutant("slow consumer closed that is durable", has_durable_slow)
def _() -> None:
    SlowSubscription.is_durable = property(lambda self: False)  # type: ignore[assignment,method-assign]


@mutant("account changed before bytes are loaded", has_failing_reads)
def _() -> None:
    def make(has_read: Any) -> Any:
        def changed(self: Any, queue: Any, head: Any) -> bool:
            queue.account.move(head, READY, MOVING)
            is_there = bool(has_read(self, queue, head))
            if is_there:
                queue.account.move(head, MOVING, READY)
            return is_there

        return changed

    replaced(Quarantine, "has_read", make)


@mutant("time to live ignored", has_ttl)
def _() -> None:
    Upkeep._overdue = lambda self, queue, head, upto, now: 0  # type: ignore[method-assign]


@mutant("delivery limit ignored")
def _() -> None:
    Settlement._bury_worn = lambda self, queue, pieces, failed: pieces  # type: ignore[method-assign]


@mutant("marks not waited for")
def _() -> None:
    Dispatcher._within_mark = lambda self, queue, head, n, wanted: n  # type: ignore[method-assign]


@mutant("clock that stands still", has_times_and_clock_steps)
def _() -> None:
    def make(read: Any) -> Any:
        def still(self: Any, wall_ms: int, monotonic_ms: int) -> Any:
            if self.jumps:
                return self.now_ms
            return read(self, wall_ms, monotonic_ms)

        return still

    replaced(Clock, "read", make)


@mutant("returned without a flag")
def _() -> None:
    def make(give_back: Any) -> Any:
        def unflagged(self: Any, queue: Any, pieces: list[Any], *rest: Any, **more: Any) -> None:
            give_back(self, queue, pieces, *rest, **more)
            for piece in pieces:
                piece.acquired = 0

        return unflagged

    replaced(Settlement, "give_back", make)


@mutant("dead letter entered twice")
def _() -> None:
    def make(enter: Any) -> Any:
        def twice(self: Any, *letter: Any) -> bool:
            enter(self, *letter)
            return bool(enter(self, *letter))

        return twice

    replaced(DeadLetters, "_enter", make)


@mutant("published before the commit")
def _() -> None:
    def at_once(
        self: Any, transaction: Any, session: Any, targets: Any, payload: Any, *rest: Any
    ) -> None:
        transaction.check_open()
        self.broker_of_mutant.publishing.publish(session, targets, payload)

    def make(init: Any) -> Any:
        def begin(self: Any, *parts: Any, **more: Any) -> None:
            init(self, *parts, **more)
            self.transactions.__class__.broker_of_mutant = self

        return begin

    replaced(Broker, "__init__", make)
    Transactions.publish = at_once  # type: ignore[method-assign]


@mutant("fan-out forgets the last queue")
def _() -> None:
    def make(publish: Any) -> Any:
        def fewer(self: Any, targets: Any, payload: Any, *rest: Any) -> Any:
            if len(targets.queues) > 1:
                targets = Targets(targets.queues[:-1])
            return publish(self, targets, payload, *rest)

        return fewer

    replaced(Admission, "publish", make)


@mutant("newest message first")
def _() -> None:
    def make(enter: Any) -> Any:
        def reversed_parts(
            self: Any, queue: Any, payload: Any, lo: int, hi: int, *rest: Any
        ) -> Any:
            if hi - lo < 2:
                return enter(self, queue, payload, lo, hi, *rest)
            for one in range(hi - 1, lo - 1, -1):
                found = enter(self, queue, payload, one, one + 1, *rest)
            return found

        return reversed_parts

    replaced(Entrance, "enter", make)


@mutant("returned to the tail")
def _() -> None:
    def make(give_back: Any) -> Any:
        def behind(self: Any, pieces: list[Any], failed: bool, to_tail: bool = True) -> None:
            give_back(self, pieces, failed, True)

        return behind

    replaced(Queue, "give_back", make)


@mutant("one more than the prefetch")
def _() -> None:
    def make(init: Any) -> Any:
        def more(self: Any, *parts: Any, **named: Any) -> None:
            init(self, *parts, **named)
            if not self.by_link and 0 < self.limit < UNLIMITED:
                self.limit += 1

        return more

    replaced(Consumer, "__init__", make)


@mutant("half a transaction visible", has_seen_transactions)
def _() -> None:
    def at_once(self: Agenda, queue: Any, first: Any, kept: bool, is_moved: bool) -> None:
        if is_moved or (kept and self._syncs_first(queue)):
            self._hold(queue, first)

    Agenda.entered = at_once  # type: ignore[method-assign]


@mutant("dedup window off by one", has_repeats)
def _() -> None:
    def make(forget: Any) -> Any:
        def one_more(self: Any, time_ms: int, most: int = UNLIMITED) -> bool:
            is_done = bool(forget(self, time_ms, most))
            if self.ids:
                self.ids.popitem()
            return is_done

        return one_more

    replaced(Deduplication, "forget_until", make)


@mutant("late FIN accepted", has_timeouts)
def _() -> None:
    def keeping(self: Any, session: Any, late: list[Any]) -> None:
        for entry in late:
            consumer, pieces = entry.consumer, entry.pieces(entry.first, entry.last)
            self.settlement.give_back(
                entry.queue, [entry.part(a, b) for a, b in pieces], consumer.id,
                records.RETURNED_BY_TIMEOUT, False, True,
            )  # fmt: skip
            entry.since_ms = self.clock.now_ms

    Timeouts._requeue = keeping  # type: ignore[method-assign]


@mutant("time-out too early", has_timeouts)
def _() -> None:
    def make(due: Any) -> Any:
        def early(entry: Any) -> int:
            return int(entry.since_ms + (due(entry) - entry.since_ms) // 8)

        return early

    replaced(timeouts, "_due", make)


@mutant("deferral ends too early", has_deferrals)
def _() -> None:
    def make(defer: Any) -> Any:
        def sooner(self: Any, piece: Any, due_ms: int, to_tail: bool) -> None:
            defer(self, piece, due_ms - 60, to_tail)

        return sooner

    replaced(Queue, "defer", make)


@mutant("cycle not cut", has_cycles)
def _() -> None:
    deadletters.is_cycle = lambda deaths, target: False


@mutant("time to live ignored behind a head", has_own_ttl)
def _() -> None:
    Upkeep.next_head = lambda self, queue: queue.head()  # type: ignore[method-assign]


@mutant("housekeeping that fails")
def _() -> None:
    async def fails(self: HeapTrim) -> None:
        raise AttributeError("a name that is not there")

    HeapTrim.run = fails  # type: ignore[method-assign]
