"""The server: sessions, transactions, locks, a synchronous standby, and what befalls all of it.

A commit is in the log of the primary at once. Then it waits until the standby has it, and only then
is it visible and its locks are free, as in PostgreSQL. A session that has lost its client goes on
with what it was told, and ends then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Any, Protocol

import psycopg

from tallymark.simulation.database.statements import run, statements_of
from tallymark.simulation.database.tables import HELD, ROW, Change, Tables
from tallymark.simulation.database.transactions import (
    ENDLESS_S,
    Answer,
    Blocked,
    Rows,
    Transaction,
)
from tallymark.simulation.loop import SimulatedLoop
from tallymark.simulation.threads import Process
from tallymark.simulation.world import EPOCH_NS, SECOND_NS, World


class Client(Protocol):
    """The other end of a session."""

    def answer(self, number: int, answer: Answer) -> None:
        """Get the answer to a request."""

    def notified(self) -> None:
        """Get a notification."""

    def reset(self) -> None:
        """Be told that the session has ended."""

    def silent(self) -> None:
        """Hear nothing any more."""


class Server:
    """Whichever server takes writes now, and the standby that its commits wait for."""

    def __init__(self, world: World, standby_s: float = 0.0) -> None:
        """standby_s: mean seconds until the standby has a commit."""
        self.world = world
        process = Process(world)
        self.loop = process.loop = SimulatedLoop(world, process)
        self._standby_s = standby_s
        self.tables = Tables()
        self.log: list[list[Change]] = []
        """Changes of each commit."""
        self.copied = 0
        """Commits that the standby has."""
        self._copied_at_ns = 0
        self.stalls_until_ns = 0
        """Time until which the standby gets nothing."""
        self.is_up = True
        self.sessions: list[Session] = []
        self.locks: dict[Hashable, dict[Session, bool]] = {}
        """Holders of locks, and whether they are to be alone."""
        self._is_retrying = False
        self.last_epoch: dict[int, int] = {}
        """Epoch of the last row of blocks that was committed, by journal."""
        self.seen: set[str] = set()
        """Names of interesting states that were reached."""
        self.doubtful: set[tuple[int, int, int]] = set()
        """Journal, epoch and position of rows whose client lost its connection."""
        self.on_commit: Callable[[list[Change]], None] = _nobody

    def wall_ms(self) -> int:
        """Return the time of its own clock, which has no steps."""
        return (self.world.now_ns + EPOCH_NS) // 1_000_000

    # -- transactions

    def logged(self, changes: list[Change], is_local: bool) -> int:
        """Write a commit to the log; return its number."""
        self.log.append(changes)
        number = len(self.log)
        now_ns = self.world.now_ns
        mean_s = self._standby_s
        delay_s = self.world.random.expovariate(1 / mean_s) if mean_s else 0.0
        at_ns = max(now_ns, self.stalls_until_ns) + int(delay_s * SECOND_NS)
        self._copied_at_ns = max(self._copied_at_ns + 1, at_ns)
        self.loop.call_at(self._copied_at_ns / SECOND_NS, self._copy, number, self.log)
        return number

    def _copy(self, number: int, log: list[list[Change]]) -> None:
        """The standby has a commit, unless another server has taken over since."""
        if self.is_up and log is self.log and number > self.copied:
            self.copied = number
            self.retry()

    def show(self, changes: list[Change]) -> None:
        """Make a commit visible. No leader's row may follow one of a later epoch."""
        for kind, key, value in changes:
            if kind == ROW and value is not None:
                journal = key[0]
                if value.epoch < self.last_epoch.get(journal, 0):
                    last = self.last_epoch[journal]
                    self.world.failures.append(
                        f"split brain: blocks of epoch {value.epoch} came after some of {last}"
                    )
                self.last_epoch[journal] = value.epoch
        self.tables.apply(changes)
        self.on_commit(changes)

    def release(self, session: Session) -> None:
        """Let go of a session's locks."""
        for key in [key for key, holders in self.locks.items() if session in holders]:
            del self.locks[key][session]
            if not self.locks[key]:
                del self.locks[key]
        self.retry()

    def retry(self) -> None:
        """Let those go on soon that wait for something."""
        if not self._is_retrying:
            self._is_retrying = True
            self.loop.call_soon(self._retry)

    def _retry(self) -> None:
        self._is_retrying = False
        for session in list(self.sessions):
            session.go_on()

    def notify(self, channel: str) -> None:
        for session in self.sessions:
            if channel in session.channels:
                session.connection.notified()

    # -- what befalls it

    def stall(self, seconds: float) -> None:
        """Let the standby get nothing for a while: commits wait."""
        self.stalls_until_ns = self.world.now_ns + int(seconds * SECOND_NS)

    def down(self, is_heard: bool = True) -> None:
        """End the primary: every session is lost, and what it had not committed."""
        self.is_up = False
        sessions, self.sessions = self.sessions, []
        self.locks.clear()
        for session in sessions:
            session.is_over = True
            if is_heard:
                session.connection.reset()
            else:
                session.connection.silent()

    def restart(self) -> None:
        """Let the same server be there again, with all that is in its log."""
        self._come_back(len(self.log))

    def fail_over(self, behind: int = 0) -> int:
        """Promote a server that has what the synchronous standby has, less so many commits. Returns
        how many commits are gone that the primary had."""
        kept = max(0, self.copied - behind)
        gone = len(self.log) - kept
        self._come_back(kept)
        return gone

    def _come_back(self, kept: int) -> None:
        self.log = self.log[:kept]
        self.copied = kept
        self._copied_at_ns = self.stalls_until_ns = 0
        self.tables = Tables()
        self.last_epoch.clear()
        for changes in self.log:
            self.tables.apply(changes)
        self.is_up = True


def _nobody(changes: list[Change]) -> None:
    """Tell nobody."""


class Session:
    """One session: it does one thing after the other."""

    def __init__(self, server: Server, connection: Client) -> None:
        self.server = server
        self.connection = connection
        self.channels: set[str] = set()
        self._transaction: Transaction | None = None
        self._asked: deque[tuple[int, str, Any]] = deque()
        self._work: Generator[None, None, None] | None = None
        self._turns = 0
        """Requests so far: an idle time that began before the last one does not count."""
        self.has_lost_client = False
        self.is_over = False
        server.sessions.append(self)

    # -- for statements

    def wall_ms(self) -> int:
        return self.server.wall_ms()

    @property
    def seen(self) -> set[str]:
        return self.server.seen

    def is_doubtful(self, journal: int, epoch: int, position: int) -> bool:
        """Return whether this was asked for before, and the answer was lost."""
        return (journal, epoch, position) in self.server.doubtful and not self.has_lost_client

    @property
    def tables(self) -> Tables:
        """Return what this session sees."""
        transaction = self._transaction
        if transaction is None:
            return self.server.tables
        base = transaction.snapshot or self.server.tables
        own = [one for one in transaction.changes if one[0] != HELD]
        return base.with_changes(own) if own else base

    def open_transaction(self) -> Transaction:
        assert self._transaction is not None
        return self._transaction

    def change(self, kind: str, key: Any, value: Any) -> None:
        self.open_transaction().changes.append((kind, key, value))

    def share(self, key: Hashable) -> None:
        """Lock something together with others. Raises Blocked."""
        holders = self.server.locks.setdefault(key, {})
        if any(is_alone for one, is_alone in holders.items() if one is not self):
            raise Blocked
        holders.setdefault(self, False)

    def own(self, key: Hashable) -> None:
        """Lock something alone. Raises Blocked."""
        holders = self.server.locks.setdefault(key, {})
        if any(one is not self for one in holders):
            raise Blocked
        holders[self] = True

    # -- requests

    def asked(self, number: int, text: str, values: Any) -> None:
        """A request has arrived."""
        if self.is_over:
            return
        self._turns += 1
        self._asked.append((number, text, values))
        self.go_on()

    def lost(self) -> None:
        """The client is gone: what is under way is finished, an open transaction is not."""
        self.has_lost_client = True
        if self._work is None:
            self.end()

    def end(self) -> None:
        """End, with whatever is not committed."""
        if not self.is_over:
            self.is_over = True
            self._transaction = None
            self._work = None
            self.server.sessions.remove(self)
            self.server.release(self)

    def go_on(self) -> None:
        """Do what can be done now."""
        while not self.is_over:
            if self._work is None:
                if not self._asked:
                    if self.has_lost_client:
                        self.end()
                    return
                self._work = self._serve(*self._asked.popleft())
            try:
                next(self._work)
                return  # it waits
            except StopIteration:
                self._work = None
                self._watch()

    def _watch(self) -> None:
        """End a transaction whose client says nothing more for too long."""
        if self._transaction is not None and not self._asked:
            idle_s = self._transaction.idle_s
            self.server.loop.call_later(idle_s, self._been_idle, self._turns)

    def _been_idle(self, turns: int) -> None:
        if turns == self._turns and self._transaction is not None and not self.is_over:
            self.end()
            self.connection.reset()

    def _serve(self, number: int, text: str, values: Any) -> Generator[None, None, None]:
        """Work out the answer to a request, and send it."""
        answer = Answer()
        try:
            for statement in statements_of(text):
                yield from self._step(statement, values, answer)
            if self._transaction is not None and not self._transaction.is_explicit:
                yield from self._commit(answer)
        except psycopg.Error as error:
            answer.error = error
            if self._transaction is not None:
                if self._transaction.is_explicit:
                    self._transaction.has_failed = True
                else:
                    self._roll_back()
        self.connection.answer(number, answer)

    def _step(self, statement: str, values: Any, answer: Answer) -> Generator[None, None, None]:
        """Do one statement. Raises psycopg.Error."""
        if statement == "ROLLBACK":
            self._roll_back()
            return
        transaction = self._transaction
        if transaction is not None and transaction.has_failed:
            raise psycopg.errors.InFailedSqlTransaction("the transaction is aborted")
        if statement == "COMMIT":
            if transaction is not None:
                yield from self._commit(answer)
            return
        if statement == "BEGIN":
            assert transaction is None or not transaction.is_explicit, "BEGIN in a transaction"
            self._transaction = Transaction(is_explicit=True)
            return
        if transaction is None:
            transaction = self._transaction = Transaction(is_explicit=False)
        found = yield from self._unblocked(statement, values, transaction)
        if isinstance(found, int):
            answer.count = found
        else:
            answer.rows, answer.count = found, len(found)

    def _unblocked(
        self, statement: str, values: Sequence[Any], transaction: Transaction
    ) -> Generator[None, None, Rows | int]:
        """Run a statement once nobody holds a lock that it needs; again from its beginning, so that
        it sees what the others have changed. Raises psycopg.Error."""
        world = self.server.world
        patience_s = transaction.lock_s
        until_ns = world.now_ns + int(patience_s * SECOND_NS)
        if patience_s < ENDLESS_S:
            self.server.loop.call_later(patience_s, self.server.retry)
        before = len(transaction.changes)
        while True:
            try:
                return run(self, statement, values)
            except Blocked:
                del transaction.changes[before:]
                if world.now_ns >= until_ns:
                    text = "canceling statement due to lock timeout"
                    raise psycopg.errors.LockNotAvailable(text) from None
            yield

    def _commit(self, answer: Answer) -> Generator[None, None, None]:
        transaction = self.open_transaction()
        server = self.server
        if transaction.changes:
            log = server.log
            number = server.logged(transaction.changes, transaction.is_local)
            while not transaction.is_local and server.copied < number:
                if server.log is not log or self.is_over:
                    return
                yield
            server.show(transaction.changes)
        self._transaction = None
        server.release(self)
        for channel in transaction.notices:
            server.notify(channel)

    def _roll_back(self) -> None:
        self._transaction = None
        self.server.release(self)
