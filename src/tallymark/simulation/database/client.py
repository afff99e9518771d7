"""A broker's connection to the simulated database, in the place of psycopg's.

What is sent arrives after a time, in order; what is sent while a direction is cut off arrives once
that is over, as by TCP's repeats, unless the connection is given up before.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from struct import Struct
from types import SimpleNamespace
from typing import Any, Final, cast

import psycopg
from psycopg.pq import ExecStatus

from tallymark.journal.postgresql import connection as real
from tallymark.journal.postgresql.connection import CONNECT_S, LOST_MS, Access
from tallymark.journal.threads import REAL
from tallymark.simulation.database.server import Server, Session
from tallymark.simulation.database.transactions import Answer
from tallymark.simulation.threads import Crashed, Process, SimulatedThread
from tallymark.simulation.world import SECOND_NS

_LONG: Final = Struct(">q")
LOST_S: Final = LOST_MS / 1000


class Wire:
    """The network between one broker's process and the database."""

    def __init__(self, server: Server, process: Process | None, latency_s: float = 0.000_2) -> None:
        """process: whose threads wait; None: the caller runs the world meanwhile."""
        self.server = server
        self.process = process
        self.latency_s = latency_s
        self.there_ns = self.back_ns = 0
        """Times until which nothing arrives at the server, and at the broker."""
        self.connections: list[Connection] = []
        self.cuts_next: Callable[[str], bool] | None = None
        """Says of a request whether the connection is cut while it is under way."""
        self.is_cut_after = False
        """True if such a request is done, and its answer lost."""

    @property
    def access(self) -> Access:
        """Return the ways in which the journal connects."""
        threads = REAL if self.process is None else self.process.threads
        return Access(
            lambda url: cast(real.Connection, self._connect()),
            lambda made: cast(Connection, made).cut(), threads,
        )  # fmt: skip

    def _connect(self) -> Connection:
        made = Connection(self)
        try:
            made.open()
        except BaseException:
            made.close()
            raise
        return made

    def delay_s(self) -> float:
        return self.server.world.random.expovariate(1 / self.latency_s) if self.latency_s else 0.0

    def cut_off(self, seconds: float, there: bool, back: bool) -> None:
        """Let nothing arrive for so long, at the server, at the broker or both. A direction that is
        cut off for longer already stays so: what was sent meanwhile arrives no earlier."""
        until_ns = self.server.world.now_ns + int(seconds * SECOND_NS)
        self.there_ns = max(self.there_ns, until_ns if there else 0)
        self.back_ns = max(self.back_ns, until_ns if back else 0)
        if seconds > LOST_S:
            self.server.loop.call_later(LOST_S, self._give_up)

    def _give_up(self) -> None:
        """The broker's system has heard nothing for too long."""
        if max(self.there_ns, self.back_ns) > self.server.world.now_ns:
            for one in list(self.connections):
                one.broken("no answer for 10 s")

    def heal(self) -> None:
        self.there_ns = self.back_ns = 0
        self.cuts_next = None

    def process_ended(self, is_heard: bool) -> None:
        """The broker's process is gone. is_heard: its machine says so to the server."""
        for one in list(self.connections):
            one.left(is_heard)


class Connection:
    """One connection, as the journal uses psycopg's."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._server = wire.server
        self._session: Session | None = None
        self.closed = False
        self._problem = ""
        self._numbers = itertools.count(1)
        self._answers: dict[int, Answer] = {}
        self._notices: deque[object] = deque()
        self._waiters: list[SimulatedThread] = []
        self._handlers: list[Callable[[Any], None]] = []
        self._there_ns = self._back_ns = 0
        """Times of the last arrivals: what is sent keeps its order."""
        self.adapters = psycopg.adapters
        self.connection = None
        """Connection by whose rules names are quoted; None: those of any."""
        self.pgconn = _Prepared(self)

    # -- for the broker

    def open(self) -> None:
        """Connect. Raises psycopg.OperationalError."""
        wire, server = self._wire, self._server
        now_ns = server.world.now_ns
        waits_s = (max(wire.there_ns, wire.back_ns) - now_ns) / SECOND_NS
        if waits_s > CONNECT_S:
            self._pause(CONNECT_S)
            raise psycopg.OperationalError("connection timeout expired")
        self._pause(max(waits_s, 0.0) + 3 * wire.delay_s())
        if not server.is_up:
            raise psycopg.OperationalError("connection refused")
        self._session = Session(server, self)
        wire.connections.append(self)

    def execute(
        self, query: Any, params: Any = None, *, binary: bool = False, prepare: object = None
    ) -> _Cursor:
        """Run statements. Raises psycopg.Error."""
        return _Cursor(self._ask(_text(query), params or ()))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.execute("BEGIN")
        try:
            yield
        except Crashed:
            raise
        except BaseException:
            with suppress(psycopg.Error):
                self.execute("ROLLBACK")
            raise
        self.execute("COMMIT")

    @contextmanager
    def cursor(self) -> Iterator[Connection]:
        yield self

    def notifies(self, timeout: float, stop_after: int) -> Iterator[object]:
        """Wait for notifications. Raises psycopg.OperationalError."""
        self._wait(lambda: bool(self._notices), timeout)
        while self._notices:
            yield self._notices.popleft()

    def add_notice_handler(self, handler: Callable[[Any], None]) -> None:
        self._handlers.append(handler)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._end(self._wire.delay_s())

    def cut(self) -> None:
        self.broken("the connection was shut down")

    # -- the way there

    def _ask(self, text: str, values: Any) -> Answer:
        """Send a request and wait for its answer. Raises psycopg.Error."""
        self._check()
        number = next(self._numbers)
        wire, server, session = self._wire, self._server, self._session
        assert session is not None
        is_cut = wire.cuts_next is not None and wire.cuts_next(text)
        if is_cut:
            wire.cuts_next = None
        if not is_cut or wire.is_cut_after:
            at_ns = max(server.world.now_ns, wire.there_ns) + int(wire.delay_s() * SECOND_NS)
            self._there_ns = max(self._there_ns + 1, at_ns)
            at_s = self._there_ns / SECOND_NS
            server.loop.call_at(at_s, session.asked, number, text, values)
        if is_cut:
            self.broken("connection reset by peer")
        try:
            self._wait(lambda: number in self._answers, None)
        except psycopg.OperationalError:
            if text.startswith("WITH held"):
                server.doubtful.add((values[0], values[1], values[2]))
            raise
        answer = self._answers.pop(number)
        for text in answer.warnings:
            for handler in self._handlers:
                said = SimpleNamespace(severity_nonlocalized="WARNING", message_primary=text)
                handler(said)
        if answer.error is not None:
            raise answer.error
        return answer

    def _check(self) -> None:
        if self._problem or self.closed:
            self.closed = True
            raise psycopg.OperationalError(self._problem or "the connection is closed")

    def _wait(self, is_over: Callable[[], bool], timeout: float | None) -> None:
        """Wait until that holds, or the connection is broken. Raises psycopg.OperationalError."""
        world, process = self._server.world, self._wire.process
        until_ns = None if timeout is None else world.now_ns + int(timeout * SECOND_NS)
        while not is_over() and (until_ns is None or world.now_ns < until_ns):
            self._check()
            if process is None:
                world.step()
                continue
            thread = process.running
            assert thread is not None, "the loop of a broker does not wait for the database"
            self._waiters.append(thread)
            if until_ns is not None:
                thread.wake_in((until_ns - world.now_ns + 1) / SECOND_NS)
            thread.pause()
            if thread in self._waiters:
                self._waiters.remove(thread)
        self._check()

    def _pause(self, seconds: float) -> None:
        process = self._wire.process
        if process is None:
            world = self._server.world
            until_ns = world.now_ns + int(seconds * SECOND_NS)
            self._server.loop.call_later(seconds, _nothing)
            while world.now_ns < until_ns:
                world.step()
        else:
            process.spend(seconds)

    # -- the way back, and ends

    def answer(self, number: int, answer: Answer) -> None:
        """The server has answered."""
        self._later(self._answered, number, answer)

    def _answered(self, number: int, answer: Answer) -> None:
        self._answers[number] = answer
        self._wake()

    def notified(self) -> None:
        self._later(self._noticed)

    def _noticed(self) -> None:
        self._notices.append(object())
        self._wake()

    def reset(self) -> None:
        """The server has ended the session, and says so."""
        self._later(self.broken, "terminating connection")

    def silent(self) -> None:
        """The server is gone and says nothing: that is noticed by what does not come."""
        self._server.loop.call_later(LOST_S, self.broken, "no answer for 10 s")

    def _later(self, call: Callable[..., None], *args: Any) -> None:
        wire, server = self._wire, self._server
        at_ns = max(server.world.now_ns, wire.back_ns) + int(wire.delay_s() * SECOND_NS)
        self._back_ns = max(self._back_ns + 1, at_ns)
        server.loop.call_at(self._back_ns / SECOND_NS, call, *args)

    def broken(self, problem: str) -> None:
        """Break: nothing comes over this connection any more. The server hears of it after what it
        was asked."""
        if not self._problem and not self.closed:
            self._problem = problem
            asked_s = (self._there_ns + 1 - self._server.world.now_ns) / SECOND_NS
            self._end(max(self._wire.delay_s(), asked_s))
            self._wake()

    def left(self, is_heard: bool) -> None:
        """Its process is gone."""
        self.closed = True
        if is_heard:
            self._end(self._wire.delay_s())
        elif self in self._wire.connections:
            self._wire.connections.remove(self)

    def _end(self, seconds: float) -> None:
        if self in self._wire.connections:
            self._wire.connections.remove(self)
        if self._session is not None:
            self._server.loop.call_later(seconds, self._session.lost)

    def _wake(self) -> None:
        if self._wire.process is not None:
            self._wire.process.wake(self._waiters)


def _nothing() -> None:
    """Do nothing: time passes."""


class _Cursor:
    """The answer to a statement."""

    def __init__(self, answer: Answer) -> None:
        self._rows = answer.rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._rows[0] if self._rows else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._rows)


class _Prepared:
    """Calls of libpq that the journal makes by itself: they raise what psycopg's would."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._texts: dict[bytes, str] = {}

    def prepare(self, name: bytes, command: bytes, types: object) -> SimpleNamespace:
        self._texts[name] = command.decode()
        return SimpleNamespace(status=ExecStatus.COMMAND_OK)

    def exec_prepared(
        self, name: bytes, values: Sequence[bytes], formats: object, form: object
    ) -> SimpleNamespace:
        *numbers, data = values
        plain = [*(_LONG.unpack(one)[0] for one in numbers), data]
        answer = self._connection._ask(self._texts[name], plain)
        return SimpleNamespace(status=ExecStatus.COMMAND_OK, command_tuples=answer.count)

    def exec_(self, command: bytes) -> SimpleNamespace:
        self._connection._ask(command.decode(), ())
        return SimpleNamespace(status=ExecStatus.COMMAND_OK)


def _text(query: Any) -> str:
    if isinstance(query, str):
        return query
    if isinstance(query, bytes):
        return query.decode()
    return str(query.as_string(None))
