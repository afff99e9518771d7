"""Witness in the database: every row of blocks that any leader ever committed, in their order, with
its epoch, also after the broker has let go of it.

A trigger writes in the same transaction as the leader, which has locked the leader's row by then.
So rows are numbered in the order of the epochs' commits, and no clock is asked: a row of an older
epoch behind one of a newer would be a commit of a leader that had lost the lead.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import psycopg

from tallymark.journal.postgresql.schema import install
from tallymark.stored.layout import HEADER, ROW, ROW_STRUCT, header_at
from tallymark.stored.records import PAYLOAD
from tests.support.crash_history import number_in

KIND, RAW_BYTES, RAW_AT = 0, 10, 12
"""Fields of a row of a block: its kind; of a payload the bytes of its raw, and their offset."""
FRAME: Final = struct.Struct(">BHI")
"""Type, channel and size of a frame, which ends with one more byte."""
CONTENT, BODY = 2, 3
"""Types of frames: the header of a message's content, and a part of its body."""

_TABLES: Final = """
CREATE SCHEMA witness;
CREATE TABLE witness.row (
    id bigserial PRIMARY KEY,
    epoch bigint NOT NULL,
    bytes bytea NOT NULL
);
ALTER TABLE witness.row ALTER bytes SET STORAGE EXTERNAL;
CREATE FUNCTION witness.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO witness.row (epoch, bytes) VALUES (NEW.epoch, NEW.bytes);
    RETURN NULL;
END $$;
CREATE TRIGGER witness AFTER INSERT ON tallymark.block
    FOR EACH ROW EXECUTE FUNCTION witness.note();
"""


class Witness:
    """What was committed since it was asked last, and by whom."""

    def __init__(self, url: str) -> None:
        """Before the first broker starts."""
        self._url = url
        self._epoch = 0
        """Epoch of the row that was seen last."""
        with psycopg.connect(url, autocommit=True) as connection:
            install(connection)
            connection.execute(_TABLES)

    def epochs(self) -> dict[int, int]:
        """Return for each message that was committed since the last call the epoch that committed
        it first. Fails where an epoch committed anything after a later one had."""
        found: dict[int, int] = {}
        with psycopg.connect(self._url, autocommit=True) as connection:
            rows = connection.execute(
                "SELECT id, epoch, bytes FROM witness.row ORDER BY id", binary=True
            ).fetchall()
            for _, epoch, data in rows:
                assert epoch >= self._epoch, f"epoch {epoch} committed after epoch {self._epoch}"
                self._epoch = epoch
                for number in messages_in(data):
                    found.setdefault(number, epoch)
            if rows:
                connection.execute("DELETE FROM witness.row WHERE id <= %s", (rows[-1][0],))
        return found


def messages_in(data: bytes) -> Iterator[int]:
    """Yield the numbers of the messages in blocks that lie end to end."""
    at = 0
    while at < len(data):
        header = header_at(data, at)
        assert header is not None, f"no block at byte {at} of {len(data)}"
        for index in range(header.rows):
            row = ROW_STRUCT.unpack_from(data, at + HEADER + index * ROW)
            if row[KIND] == PAYLOAD and row[RAW_AT]:
                begin = at + row[RAW_AT]
                yield from _numbers_in(data, begin, begin + row[RAW_BYTES])
        at += header.length


def _numbers_in(data: bytes, at: int, end: int) -> Iterator[int]:
    """Yield the numbers of messages whose frames lie end to end: of each the first of its body."""
    is_first = False
    while at < end:
        kind, _, size = FRAME.unpack_from(data, at)
        at += FRAME.size
        if kind == CONTENT:
            is_first = True
        elif kind == BODY and is_first:
            is_first = False
            yield number_in(data[at : at + size])
        at += size + 1
