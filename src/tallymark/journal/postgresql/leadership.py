"""Leadership: the lease and the epoch of a journal in the database. The rules are lease.py's.

Every change is one transaction that locks the lease's row, a renewal one statement. What raises the
epoch, and what a standby relies on, counts only once it is safe (connection.py): after an answer
that was lost, or a wait that was cancelled, a later commit covers the earlier one. Renewals do not
wait for a standby server: a lease guards nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, final

from tallymark.journal.postgresql.connection import DIRECT, Access, Connection, Link
from tallymark.journal.postgresql.errors import LeadLost
from tallymark.journal.postgresql.lease import Follower, Lease
from tallymark.journal.postgresql.schema import HELD, add_journal, install

_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_LEASE: Final = (
    f"SELECT holder, (extract(epoch FROM expires) * 1000)::bigint, request, {_NOW} "
    "FROM tallymark.lease WHERE journal = %s"
)
_EPOCH: Final = "SELECT epoch FROM tallymark.leader WHERE journal = %s"
_RENEW: Final = """
WITH alone AS MATERIALIZED (SELECT set_config('synchronous_commit', 'local', true))
UPDATE tallymark.lease SET expires = clock_timestamp() + %s * interval '1 millisecond'
FROM alone WHERE journal = %s AND holder = %s
RETURNING (extract(epoch FROM expires) * 1000)::bigint, request
"""
"""Renewal: `Lease.renewed` in one statement, which waits for no standby, and in whose midst no
broker can stop. Where a claim is under way it waits for that, and looks at the holder again."""
_BRIEFLY: Final = "SET LOCAL idle_in_transaction_session_timeout TO '1s'; "
"""Setting of a transaction that locks the lease: a broker that is stopped in its midst does not
hold up the others."""
_ALONE: Final = "SET LOCAL synchronous_commit TO local"
"""Setting of a transaction that waits for no standby."""


@final
class Leadership:
    """One broker's connection to the lease of its journal. Any method raises psycopg.Error when
    there is no answer; the next one connects again. One thread."""

    def __init__(
        self, url: str, journal: int, name: str, lasting_ms: int, access: Access = DIRECT
    ) -> None:
        """name: the broker's own, which no other process has."""
        self._journal = journal
        self.name = name
        self.lasting_ms = lasting_ms
        self.access = access
        self._link = Link(url, access)
        self._known: Connection | None = None
        """Connection in whose database the tables are known to be there."""
        self._listens = False

    def look(self) -> tuple[Lease, int]:
        """Return the lease, and the database's time in milliseconds."""
        return self._read(self.connected(), "")

    def claim(self) -> int:
        """Claim the lease where it is free. Returns the new epoch once that is safe, and no commit
        of an older one can happen any more; 0: another broker holds it, or claimed it before this
        claim was safe. Raises Doubtful."""
        with self._locked() as (connection, lease, now_ms):
            if lease.holder == self.name:
                epoch = lease.epoch  # claimed before, and the answer was lost
            else:
                claimed = lease.claimed(self.name, now_ms, self.lasting_ms)
                if claimed is None:
                    return 0
                epoch = claimed.epoch
                connection.execute(
                    "UPDATE tallymark.leader SET epoch = %s WHERE journal = %s",
                    (epoch, self._journal),
                )
                self._write(connection, claimed)
        return epoch if self._confirm(epoch) else 0

    def renew(self, epoch: int) -> Lease:
        """Renew the lease, of which this broker is the holder; return it as it is now, with what
        operators ask for. Raises LeadLost."""
        values = (self.lasting_ms, self._journal, self.name)
        row = self.connected().execute(_RENEW, values).fetchone()
        if row is None:
            raise LeadLost(self._journal, epoch, self.look()[0].epoch)
        return Lease(epoch, self.name, *row)

    def release(self, epoch: int) -> None:
        """Give the lease back: a standby may claim it at once."""
        with self._locked(_ALONE) as (connection, lease, now_ms):
            released = lease.released(epoch, now_ms)
            if released is not None:
                self._write(connection, released)
        self._announce()

    def request(self, request: str) -> Lease:
        """Note an operator's request; return the lease with it. Raises ValueError."""
        with self._locked() as (connection, lease, _):
            asked = lease.requested(request)
            self._write(connection, asked)
        self._announce()
        return asked

    def _announce(self) -> None:
        self.connected().execute(f"NOTIFY {self.channel}".encode())

    def follow(self, position: int) -> None:
        """Note how far this broker follows. When it returns, whatever was visible before it is on a
        synchronous standby, too. Raises Doubtful."""
        self.connected().execute(
            "INSERT INTO tallymark.standby VALUES (%s, %s, %s, clock_timestamp()) "
            "ON CONFLICT (journal, name) DO UPDATE SET position = EXCLUDED.position, "
            "seen = EXCLUDED.seen",
            (self._journal, self.name, position),
        )
        self._link.check()

    def unfollow(self) -> None:
        """Remove this broker from those that follow, and all that were not seen for a day."""
        self.connected().execute(
            "DELETE FROM tallymark.standby WHERE journal = %s "
            "AND (name = %s OR seen < clock_timestamp() - interval '1 day')",
            (self._journal, self.name),
        )

    def followers(self) -> list[Follower]:
        """Return the brokers that follow, those seen last first."""
        rows = self.connected().execute(
            "SELECT name, position, "
            "(extract(epoch FROM clock_timestamp() - seen) * 1000)::bigint AS age "
            "FROM tallymark.standby WHERE journal = %s ORDER BY age",
            (self._journal,),
        )
        return [Follower(*row) for row in rows]

    def wait(self, seconds: float) -> None:
        """Wait until a change is announced, at most so long."""
        connection = self.connected()
        if not self._listens:
            connection.execute(f"LISTEN {self.channel}".encode())
            self._listens = True
        for _ in connection.notifies(timeout=seconds, stop_after=1):
            return

    @property
    def channel(self) -> str:
        """Name of the channel on which changes are announced."""
        return f"tallymark_{self._journal}"

    def cut(self) -> None:
        """Make what waits for the server fail now. From any thread."""
        self._link.cut()

    def close(self) -> None:
        self._link.drop()

    # -- the connection

    def connected(self) -> Connection:
        """Return the connection, made anew where the last one is broken, with the tables there."""
        connection = self._link.open()
        if connection is not self._known:
            install(connection)
            add_journal(connection, self._journal)
            self._known = connection
            self._listens = False
        return connection

    @contextmanager
    def _locked(self, settings: str = "") -> Iterator[tuple[Connection, Lease, int]]:
        """Run a transaction that has locked the lease: its connection, the lease and the time."""
        connection = self.connected()
        with connection.transaction():
            connection.execute((_BRIEFLY + settings).encode())
            lease, now_ms = self._read(connection, " FOR UPDATE")
            yield connection, lease, now_ms

    def _confirm(self, epoch: int) -> bool:
        """Return once a commit in this epoch is safe; False: the journal is in another. Raises
        Doubtful."""
        values = {"journal": self._journal, "epoch": epoch}
        if self.connected().execute(HELD, values).fetchone() is None:
            return False
        self._link.check()
        return True

    def _read(self, connection: Connection, locking: str) -> tuple[Lease, int]:
        """Return the lease and the time. The epoch is read in a statement of its own, after the
        lock: it is the one that belongs to the lease."""
        row = connection.execute((_LEASE + locking).encode(), (self._journal,)).fetchone()
        epoch = connection.execute(_EPOCH, (self._journal,)).fetchone()
        assert row is not None, "add_journal made it"
        assert epoch is not None
        holder, expires_ms, request, now_ms = row
        return Lease(epoch[0], holder, expires_ms, request), now_ms

    def _write(self, connection: Connection, lease: Lease) -> None:
        connection.execute(
            "UPDATE tallymark.lease SET holder = %s, expires = to_timestamp(%s / 1000.0), "
            "request = %s WHERE journal = %s",
            (lease.holder, lease.expires_ms, lease.request, self._journal),
        )
