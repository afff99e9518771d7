"""Insert: rows of blocks into one segment's table, each a statement of its own.

An append is the one thing that a leader does all day. psycopg's own `execute` lets go of Python's
lock and takes it again about ten times in it, for which the writer's thread waits for the loop and
the loop for the writer's thread. So this is one call of libpq, which lets go of it once: the values
as PostgreSQL has them, a statement that the server has parsed before, and the answer.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, TypeAlias, final

import psycopg
from psycopg import sql
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format

from tallymark.journal.postgresql import schema

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_LONG: Final = Struct(">q")
_INT8: Final = 20
_BYTEA: Final = 17
_TYPES: Final = [_INT8, _INT8, _INT8, _INT8, _BYTEA]
"""Numbers of the types of its values: journal, epoch, position, crc, bytes."""
_BINARY: Final = int(Format.BINARY)
_DONE: Final = int(ExecStatus.COMMAND_OK)
"""Plain numbers: to look up a member of an enumeration costs a call of Python's."""
_FORMATS: Final = [_BINARY] * len(_TYPES)
_STATEMENT: Final = (
    "WITH held AS (" + schema.held("$1", "$2") + ") "
    "INSERT INTO {} (journal, position, epoch, crc, bytes) "
    "SELECT $1, $3, $2, $4, $5 FROM held ON CONFLICT DO NOTHING"
)


@final
class Insert:
    """Inserts rows into the table of one segment while the lead is held. One thread."""

    def __init__(self, connection: Connection, journal: int, epoch: int, segment: int) -> None:
        """Prepare the statement; the table is there. Raises psycopg.Error."""
        self.connection = connection
        self.segment = segment
        self._name = f"tallymark_insert_{segment}".encode()
        self._journal = _LONG.pack(journal)
        self._epoch = _LONG.pack(epoch)
        text = sql.SQL(_STATEMENT).format(schema.partition(journal, segment))
        made = connection.pgconn.prepare(self._name, text.as_bytes(connection), _TYPES)
        if made.status != ExecStatus.COMMAND_OK:
            raise error_from_result(made)

    def row(self, position: int, crc: int, data: bytes) -> bool:
        """Insert a row. False: the lead is not held, or there is a row at its position. Raises
        psycopg.Error."""
        values = [self._journal, self._epoch, _LONG.pack(position), _LONG.pack(crc), data]
        done = self.connection.pgconn.exec_prepared(self._name, values, _FORMATS, _BINARY)
        if done.status != _DONE:
            raise error_from_result(done)
        return bool(done.command_tuples)

    def close(self) -> None:
        """Have the server forget the statement. Raises psycopg.Error."""
        self.connection.execute(b"DEALLOCATE " + self._name)
