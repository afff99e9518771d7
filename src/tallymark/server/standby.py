"""Brokers of one journal on PostgreSQL: one leads, the others follow until they do.

Every broker begins by following: it brings its folder to what the tables say, and applies the
records to an engine of its own. One that may lead claims the lease when it is free, reads the rest
and goes on as a leader. So the start of a first broker and a takeover are the same.

The work is done in threads: the loop serves HTTP meanwhile.
"""

from __future__ import annotations

import errno
import os
import platform
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

import psycopg

from tallymark.journal.postgresql.connection import Connection, Doubtful
from tallymark.journal.postgresql.errors import (
    REMEDY,
    AnotherLeads,
    LeadLost,
    SchemaRefused,
    WentBack,
)
from tallymark.journal.postgresql.leadership import Leadership
from tallymark.journal.postgresql.lease import (
    HANDOVER,
    RENEWALS,
    Follower,
    Lease,
    furthest_behind,
)
from tallymark.journal.postgresql.mirror import Mirror
from tallymark.journal.recovery import JournalCorrupt, Opened
from tallymark.server.logs import log_of
from tallymark.server.replay import Replay
from tallymark.server.view import View

POLL_S: Final = 0.2
"""Seconds between two looks at the tables where nothing is announced."""
RETRY_S: Final = 0.3
"""Seconds after which a database that did not answer is asked again."""
LONGEST_PAUSE_S: Final = 1.0
"""Seconds between two renewals, at most: a request for a handover is heard with one."""
PATIENCE: Final = 2
"""Leases for which a broker that is no standby waits for a leader that may have died."""

log = log_of("server")


def process_name() -> str:
    """Return a name for this process that no other broker of a journal has, nor had. Host and
    process number alone come again: a container that is started anew has both of the last one."""
    return f"{platform.node() or 'localhost'}.{secrets.token_hex(4)}:{os.getpid()}"


@final
class Following:
    """A broker that follows its journal, in a thread, until it leads."""

    def __init__(
        self, leadership: Leadership, folder: Path, journal: int, accept_loss: bool
    ) -> None:
        """Raises FolderInUse, NotAMirror, OSError."""
        self._leadership = leadership
        self._opened = Opened(folder, accept_loss, remedy=REMEDY)
        self._mirror = Mirror(folder, leadership, journal)
        self._mirror.open(compares_all=accept_loss)
        threads = leadership.access.threads
        self._stopped = threads.event()
        self._now_s = threads.monotonic
        self._shown = 0
        """Number of the newest view that there is."""
        self._furthest = 0
        """Position that the folder reached to with the last step."""
        self._viewed = (-1, 0)
        """Position and cuts of that view."""
        self._checkpoint = -1
        """Position of the checkpoint that the replay began with."""
        self._cuts = 0
        """Cuts of the mirror at that time: what was cut must not be in the replay."""
        self._replayed = 0
        """Position that the replay reaches to."""
        self.replay = Replay(self._opened)
        self.lease = Lease(0, "", 0)
        """Lease as it was seen last."""
        self.problem = ""
        """Reason for which the database is not read; empty: it is."""
        self.seen_at = 0.0
        """Monotonic time at which this broker had read everything, in seconds; 0: never."""
        self.wanted = 0
        """Number of the newest view that a reader waits for."""
        self.on_view: Callable[[int, View | None], None] = _nobody_waits
        """Called from the thread with the number and the view; None: the last one is as new."""

    @property
    def position(self) -> int:
        """Position that the folder reaches to."""
        return self._mirror.position

    @property
    def cuts(self) -> int:
        """Times that the folder lost blocks: it may be another one at the same position."""
        return self._mirror.cuts

    @property
    def behind_s(self) -> float:
        """Return for how many seconds it has not read everything; -1: it never had."""
        return self._now_s() - self.seen_at if self.seen_at else -1.0

    def stop(self) -> None:
        """Have `until_leading` return soon. From any thread."""
        self._stopped.set()

    def cut(self) -> None:
        """Make what waits for the database fail now. From any thread."""
        self._leadership.cut()

    def close(self) -> None:
        """Let go of the folder, of a broker that does not lead."""
        self._opened.release()

    def until_leading(self, waits: bool) -> int:
        """Follow until this broker leads; return its epoch, 0 after `stop`.

        waits: for as long as another one leads. Otherwise only while that one may have died.

        Raises:
            AnotherLeads: another one leads, and does not stop to.
            JournalCorrupt, NotUnderstood, Differs, OSError: it cannot be followed.
        """
        others: list[int] = []
        while not self._stopped.is_set():
            try:
                self._step()
                epoch = self._leadership.claim() if self._is_free() else 0
                if epoch:
                    return epoch
                if not waits:
                    self._check_patience(others)
                self.problem = ""
                self._leadership.wait(POLL_S)
            except (psycopg.Error, Doubtful) as error:
                self._trouble(error)
        return 0

    def read_rest(self) -> None:
        """Read what leaders before this one committed; nobody else writes any more. Raises as
        `until_leading`."""
        while not self._stopped.is_set():
            try:
                seen = self._leadership.followers()
                self._step()
            except (psycopg.Error, Doubtful) as error:
                self._trouble(error)
            else:
                # A segment's ledger may have come last, and alone.
                self._opened.recovery.look_again()
                self._check_end([one for one in seen if one.name != self._leadership.name])
                return

    def _check_end(self, seen: list[Follower]) -> None:
        """Warn where the tables end before what brokers have read of them: the database was
        restored to an earlier point, or failed over to a server that was behind."""
        end = max(self.position, self._mirror.checkpoint)
        lacking = furthest_behind(seen, end)
        if lacking is not None:
            log.warning(
                "journal.went_back",
                ends=f"{end:#x}",
                was_read_to=f"{lacking.position:#x}",
                by=lacking.name,
            )

    def _step(self) -> None:
        """Read what came, and apply it; have a view of it, where one is wanted. A copy that is
        damaged where it was not compared is compared, and read again."""
        wanted = self.wanted
        try:
            self._read()
        except JournalCorrupt as error:
            if not self._compare_all(str(error)):
                raise
            self._read()
        if self._opened.recovery.unreadable and self._compare_all("messages are not as written"):
            self._read()
        self._check_end([Follower(self._leadership.name, self._furthest, 0)])
        self._furthest = self.position
        self._leadership.follow(self._mirror.position)
        self.seen_at = self._now_s()
        if wanted != self._shown:
            self._shown = wanted
            self._show(wanted)

    def _compare_all(self, problem: str) -> bool:
        """Have the whole copy compared, with the next `_read`. Returns False: it was."""
        if not self._mirror.compare_all():
            return False
        log.warning("copy.compared_again", problem=problem)
        self._checkpoint = -1
        return True

    def _read(self) -> None:
        """Bring the folder to what the tables have, and the replay to what the folder has. The two
        are compared, since a step may have been broken off between them."""
        self._mirror.catch_up()
        now = self._mirror.checkpoint, self.cuts
        if now != (self._checkpoint, self._cuts):
            self._checkpoint, self._cuts = now
            self._opened.begin_again()
            self.replay = Replay(self._opened)
        elif self.position != self._replayed:
            self._opened.recovery.look_again()
        else:
            return
        self.replay.advance()
        self._replayed = self.position

    def _show(self, number: int) -> None:
        """Make a view of the folder as it is now, unless the last one is that."""
        view = None
        now = self.position, self.cuts
        if self._viewed != now:
            self._viewed = now
            view = View(self._opened, *now)
        self.on_view(number, view)

    def _is_free(self) -> bool:
        self.lease, now_ms = self._leadership.look()
        return self.lease.is_free(now_ms) or self.lease.holder == self._leadership.name

    def _check_patience(self, seen: list[int]) -> None:
        """Raises AnotherLeads: the lease was renewed while this broker looked."""
        if self.lease.expires_ms not in seen:
            seen.append(self.lease.expires_ms)
        if len(seen) > PATIENCE:
            raise AnotherLeads(
                f"{self.lease.holder} leads this journal: start with --standby to follow it"
            )

    def _trouble(self, error: Exception) -> None:
        text = " ".join(str(error).split())
        if text != self.problem:
            log.warning("standby.waits", problem=text)
        self.problem = text
        self._stopped.wait(RETRY_S)


def _nobody_waits(number: int, view: View | None) -> None:
    """Do nothing: no view was asked for."""


@final
class Keeper:
    """Renews a leader's lease, in a thread of its own."""

    def __init__(
        self,
        leadership: Leadership,
        epoch: int,
        on_lost: Callable[[OSError], None],
        on_handover: Callable[[], None],
    ) -> None:
        """leadership: of this thread alone. on_lost: told why this broker leads no more; it and
        on_handover are called from the thread, once."""
        self._leadership = leadership
        self.epoch = epoch
        self._on_lost = on_lost
        self._on_handover = on_handover
        threads = leadership.access.threads
        self._now_s = threads.monotonic
        self._ending = threads.event()
        self._thread = threads.thread(self._run, "lease")
        self.renewed_at = self._now_s()
        """Monotonic time, in seconds, at which the last renewal that succeeded was begun."""
        self.check: Callable[[Connection], bool] = _nothing_written
        """Checks, on a new connection, that the database has what this leader wrote; False: not
        yet, and the lease is renewed meanwhile."""
        self._checked: Connection | None = None

    @property
    def is_valid(self) -> bool:
        """Return whether nobody else can have claimed the lease by its time."""
        return self._now_s() < self.renewed_at + self._leadership.lasting_ms / 1000

    def start(self) -> None:
        self._thread.start()

    def cut(self) -> None:
        """Make what waits for the database fail now. From any thread."""
        self._leadership.cut()

    def stop(self) -> None:
        """Renew no more, and give the lease back so that a standby may claim it at once."""
        self._ending.set()
        self._thread.join()
        try:
            self._leadership.release(self.epoch)
        except (psycopg.Error, SchemaRefused) as error:
            log.warning("lease.not_released", problem=str(error))
        self._leadership.close()

    def _run(self) -> None:
        pause = min(self._leadership.lasting_ms / 1000 / RENEWALS, LONGEST_PAUSE_S)
        is_asked = False
        wait = 0.0  # the first at once: a connection may take long
        while not self._ending.wait(wait):
            wait = pause
            began = self._now_s()
            try:
                lease = self._leadership.renew(self.epoch)
                self._check()
            except (LeadLost, WentBack) as error:
                self._on_lost(error)
                return
            except SchemaRefused as error:  # another program has made other tables of them
                self._on_lost(OSError(errno.EPROTO, str(error)))
                return
            except psycopg.Error as error:
                log.warning("lease.not_renewed", problem=" ".join(str(error).split()))
                continue
            self.renewed_at = began
            if lease.request == HANDOVER and not is_asked:
                is_asked = True
                self._on_handover()

    def _check(self) -> None:
        """Check, once per connection, what was written before. Raises WentBack, psycopg.Error."""
        connection = self._leadership.connected()
        if connection is not self._checked and self.check(connection):
            self._checked = connection


def _nothing_written(connection: Connection) -> bool:
    """Check nothing: the journal's home is not there yet."""
    return True
