"""Teller: tells brokers that follow a journal that it has grown (NOTIFY).

On a connection and a thread of its own: a confirm does not wait for it. Not in the transaction of
the blocks: NOTIFY takes a lock of the whole database, which that would keep for as long as it waits
for the synchronous standby. Whoever is not told looks by itself, later: nothing is lost with it.
"""

from __future__ import annotations

from typing import Final, final

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn

from tallymark.journal.postgresql.connection import DIRECT, Access, Link
from tallymark.journal.threads import Worker

PAUSE_S: Final = 0.2
"""Seconds between two notifications, at least: each costs a broker that follows a few queries."""


@final
class Teller:
    """One journal's notifications."""

    def __init__(self, url: str, journal: int, access: Access = DIRECT) -> None:
        self._link = Link(url, access)
        self._thread = access.threads.thread
        self._statement = (
            f"BEGIN; SET LOCAL synchronous_commit TO off; NOTIFY tallymark_{journal}; COMMIT"
        ).encode()
        self._grown = access.threads.event()
        self._ended = access.threads.event()
        self._worker: Worker | None = None

    def tell(self) -> None:
        """Have it told that the journal has grown. Does not wait."""
        if self._worker is None:
            self._worker = self._thread(self._run, "journal-teller")
            self._worker.start()
        if not self._grown.is_set():
            self._grown.set()

    def end(self) -> None:
        """Tell nothing any more. Does not wait."""
        self._ended.set()
        self._grown.set()
        self._link.cut()

    def _run(self) -> None:
        while True:
            self._grown.wait()
            self._grown.clear()
            if self._ended.is_set():
                break
            try:
                self._notify(self._link.open().pgconn)
            except psycopg.Error:
                self._link.drop()  # connected anew with the next growth: the writer says why not
            if self._ended.wait(PAUSE_S):
                break
        self._link.drop()

    def _notify(self, server: PGconn) -> None:
        """Run the statement by one call of libpq, at a third of the CPU of psycopg's `execute`.
        Raises psycopg.Error."""
        done = server.exec_(self._statement)
        if done.status != ExecStatus.COMMAND_OK:
            raise error_from_result(done)
