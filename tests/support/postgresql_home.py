"""A journal on PostgreSQL for tests that know it as a home: a leader in a new epoch at each start,
and a folder that is emptied and filled from the tables, as on a new machine."""

from __future__ import annotations

import itertools
from pathlib import Path

from tallymark.journal.home import Home
from tallymark.journal.postgresql import schema
from tallymark.journal.postgresql.connection import connect
from tallymark.journal.postgresql.home import PostgresqlHome
from tallymark.journal.postgresql.leadership import Leadership
from tallymark.journal.postgresql.mirror import Mirror
from tallymark.stored.segment import parsed_checkpoint, parsed_name

_JOURNALS = itertools.count(1_000_000)
LASTING_MS = 3_600_000


class PostgresqlKeeper:
    """One journal of a database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.journal = next(_JOURNALS)
        self._connection = connect(url)
        self._leadership = Leadership(url, self.journal, "test", LASTING_MS)
        self._leadership.connected()

    def home(self) -> Home:
        row = self._connection.execute(
            "UPDATE tallymark.leader SET epoch = epoch + 1 WHERE journal = %s RETURNING epoch",
            (self.journal,),
        ).fetchone()
        assert row is not None
        return PostgresqlHome(self.url, self.journal, row[0])

    def fill(self, folder: Path) -> None:
        for path in folder.iterdir():
            if parsed_name(path.name) or parsed_checkpoint(path.name) is not None:
                path.unlink()
        mirror = Mirror(folder, self._leadership, self.journal)
        mirror.open()
        mirror.catch_up()

    def change(self, name: str, data: bytes) -> None:
        """As damage would, but for the rows' checksums: they are right."""
        number = _segment(name)
        if number is None:
            with self._connection.transaction():
                self._remove_file(name)
                for part, at in enumerate(range(0, len(data) or 1, schema.PART_BYTES)):
                    cut = data[at : at + schema.PART_BYTES]
                    self._connection.execute(
                        "INSERT INTO tallymark.file VALUES (%s, %s, %s, %s, %s)",
                        (self.journal, name, part, schema.checksum(cut), cut),
                    )
            return
        self.remove(name)
        self._connection.execute(
            "INSERT INTO tallymark.block VALUES (%s, %s, 0, %s, %s)",
            (self.journal, number << 32, schema.row_checksum(data), data),
        )

    def remove(self, name: str) -> None:
        number = _segment(name)
        if number is None:
            self._remove_file(name)
        else:
            self._connection.execute(
                "DELETE FROM tallymark.block WHERE journal = %s AND position >> 32 = %s",
                (self.journal, number),
            )

    def _remove_file(self, name: str) -> None:
        self._connection.execute(
            "DELETE FROM tallymark.file WHERE journal = %s AND name = %s", (self.journal, name)
        )

    def copy(self) -> PostgresqlKeeper:
        """Return the keeper of another journal that has the same."""
        made = PostgresqlKeeper(self.url)
        for segment in schema.partitions(self._connection, self.journal):
            schema.make_partition(self._connection, made.journal, segment)
        for table, columns in (
            ("block", "position, epoch, crc, bytes"),
            ("file", "name, part, crc, bytes"),
        ):
            self._connection.execute(
                f"INSERT INTO tallymark.{table} (journal, {columns}) "
                f"SELECT %s, {columns} FROM tallymark.{table} WHERE journal = %s".encode(),
                (made.journal, self.journal),
            )
        return made

    def close(self) -> None:
        for segment in schema.partitions(self._connection, self.journal):
            name = schema.partition_name(self.journal, segment)
            self._connection.execute(f"DROP TABLE tallymark.{name}".encode())
        self._leadership.close()
        self._connection.close()


def _segment(name: str) -> int | None:
    named = parsed_name(name)
    return named[0] if named is not None and name.endswith(".segment") else None
