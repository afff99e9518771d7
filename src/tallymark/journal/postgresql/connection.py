"""Connections to whichever of the database's servers takes writes, and what their errors mean.

A transaction is *safe* when its commit has returned under synchronous_commit = on without a
warning: every synchronous standby that the server counts on has it on disk. Otherwise its outcome
is unknown, in two cases:

- the connection was lost before the answer came: it may have been committed or not;
- the server stopped waiting for its standbys (it was told to cancel, or shuts down), and warns: the
  transaction is committed and visible, and is lost if a standby takes over now.

The write-ahead log is one sequence. So a transaction of unknown outcome that is found afterwards is
safe once a later one is.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias, final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tallymark.journal.postgresql.url import shown
from tallymark.journal.threads import REAL, Threads

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

CONNECT_S: Final = 5
"""Seconds after which the next host is tried."""
LOST_MS: Final = 10_000
"""Milliseconds after which a connection whose other end says nothing counts as lost."""
IDLE_S: Final = 10
"""Seconds after which the server ends a transaction whose client has stopped in its midst, so that
it lets go of the leader's row."""
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
"""Seconds between two attempts: the first pause, which doubles up to the longest."""
_DEFAULTS: Final = {
    "target_session_attrs": "read-write",
    "connect_timeout": str(CONNECT_S),
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": str(LOST_MS),
    "application_name": "tallymark",
    "client_encoding": "UTF8",
}
"""Parameters of a connection where the URL does not say otherwise. The encoding would be the
database's, and of one without any (SQL_ASCII) psycopg gives texts as bytes, which no name equals.
"""
_SESSION: Final = (
    "SET synchronous_commit TO on; "
    f"SET idle_in_transaction_session_timeout TO '{IDLE_S}s'; "
    "SET statement_timeout TO 0; SET lock_timeout TO 0; SET client_min_messages TO warning"
)


def parameters(url: str) -> str:
    """Return a URL with what it does not say. Raises ValueError: it is none."""
    try:
        said = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise ValueError(f"journal {shown(url)!r}: {_without_secrets(error, url)}") from None
    return make_conninfo("", **{**_DEFAULTS, **said})


def _without_secrets(error: Exception, url: str) -> str:
    """Return the text of an error, which may quote the URL, or the password in it."""
    safe = shown(url)
    if '"' in url:  # nobody can say where what it quotes ends
        return re.sub('".*"', '"..."', str(error).strip(), flags=re.DOTALL)

    def kept(found: re.Match[str]) -> str:
        return found[0] if found[1] in safe or len(found[1]) == 1 else '"..."'

    return re.sub(r'"([^"]*)"', kept, str(error).strip())


def connect(url: str) -> Connection:
    """Connect; every statement is a transaction of its own. Raises psycopg.Error."""
    made: Connection = psycopg.connect(parameters(url), autocommit=True)
    try:
        made.execute(_SESSION)
    except BaseException:
        made.close()
        raise
    return made


def cut(connection: Connection) -> None:
    """Make what waits for the server on a connection fail now. From any thread. Raises
    psycopg.Error, OSError."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


@final
class Access:
    """Ways to the database, and the threads that wait for it: a place where a simulation can take
    their part, as journal/threads.py."""

    __slots__ = ("connect", "cut", "threads")

    def __init__(
        self,
        connect: Callable[[str], Connection] = connect,
        cut: Callable[[Connection], None] = cut,
        threads: Threads = REAL,
    ) -> None:
        self.connect = connect
        self.cut = cut
        self.threads = threads


DIRECT: Final = Access()


class Doubtful(Exception):
    """The outcome of a transaction is not known."""


class Stopped(OSError):
    """The journal's end does not wait for the database."""


@final
class Link:
    """A connection that is made anew when it was lost. Of one thread but for `cut`."""

    def __init__(self, url: str, access: Access = DIRECT) -> None:
        self._url = url
        self._access = access
        self._connection: Connection | None = None
        self._warnings: list[str] = []

    def open(self) -> Connection:
        """Return the connection, made now if there is none. Raises psycopg.Error."""
        found = self._connection
        if found is None or found.closed:
            found = self._access.connect(self._url)
            found.add_notice_handler(self._note)
            self._connection = found
        self._warnings.clear()
        return found

    def _note(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warnings.append(notice.message_primary or "a warning")

    def check(self) -> None:
        """Raise Doubtful if the server has warned since `open`."""
        if self._warnings:
            raise Doubtful(self._warnings[0])

    def drop(self) -> None:
        """Close the connection."""
        found, self._connection = self._connection, None
        if found is not None:
            found.close()

    def cut(self) -> None:
        """Make what waits for the server fail now. From any thread."""
        found = self._connection
        with suppress(psycopg.Error, OSError):
            if found is not None:
                self._access.cut(found)


@final
class Waiting:
    """Attempts of several threads, repeated until the database is there; what keeps them."""

    def __init__(self, threads: Threads = REAL) -> None:
        self._now_s = threads.monotonic
        self._ending = threads.event()
        self._guard = threads.lock()
        self._troubles: dict[object, str] = {}
        """Last errors of what is being attempted again, by its mark."""
        self._begun: dict[object, float] = {}
        """Times at which attempts began that have not succeeded, by their marks."""

    @property
    def trouble(self) -> str:
        """Return why something waits; empty: nothing does. From any thread."""
        with self._guard:
            return next(iter(self._troubles.values()), "")

    @property
    def waits_s(self) -> float:
        """Return for how long the oldest attempt has been waiting, seconds. From any thread."""
        with self._guard:
            oldest = min(self._begun.values(), default=0.0)
        return self._now_s() - oldest if oldest else 0.0

    @property
    def is_ending(self) -> bool:
        return self._ending.is_set()

    def end(self) -> None:
        """Let no attempt be repeated any more."""
        self._ending.set()

    def until_safe(self, link: Link, work: Callable[[Connection, bool], None]) -> None:
        """Run transactions until they are safe.

        work: runs them, all anew if it is called again. Its second argument is whether they may be
        there already; then it must end with a commit of its own.
        Raises what `work` raises but for psycopg.Error, Stopped.
        """
        mark = object()
        is_doubtful = False
        pause = FIRST_PAUSE_S
        with self._guard:
            self._begun[mark] = self._now_s()
        try:
            while True:
                try:
                    work(link.open(), is_doubtful)
                    link.check()
                    return
                except (psycopg.Error, Doubtful) as error:
                    is_doubtful = True
                    self._note(mark, error)
                    link.drop()
                if self._ending.wait(pause):
                    raise Stopped(f"stopped while the database was away: {self.trouble}")
                pause = min(2 * pause, LONGEST_PAUSE_S)
        finally:
            with self._guard:
                self._troubles.pop(mark, None)
                del self._begun[mark]

    def _note(self, mark: object, error: Exception) -> None:
        text = " ".join(str(error).split()) or type(error).__name__
        with self._guard:
            self._troubles[mark] = text
