"""The ledger as a table that traffic can be played from: the ledger's rows (spark/ledger.py), and
what their files have beside them.

    synced       position below which all was on disk when the block was written
    code         the number of the row's reason; of a payload, that of its messages' format
    sizes        of a payload: bytes of each message, framing included
    bodies       of a payload: bytes of each body; null: as `sizes`
    exchanges    of a payload: exchange of each message, or the one of all of them
    keys         the same of routing keys
    headers      of a payload: those headers of each message that bindings ask for, as a field table
                 of AMQP 0-9-1; null: not there
    since, upto  positions between which the ledger was read; nothing is missing there

A table grows: what came since it was last written is appended, so it may have what the broker has
long let go of. Files are read in the order of their positions, whoever wrote them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tallymark.spark.blocks import Block
from tallymark.spark.claims import RETRY_MS, asked
from tallymark.spark.client import CannotRun, Endpoint
from tallymark.spark.ledger import (
    CHECKPOINT,
    DDL,
    JOURNAL,
    SCHEMA,
    LedgerPart,
    batches_of,
    blocks_of,
    plan,
)
from tallymark.stored import records
from tallymark.whatif.rows import AT, KIND, FromFile, Headers, Row, named_headers
from tallymark.wire.amqp091.fields import decode_table, encode_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ADDED: Final = (
    ("synced", "bigint", pa.int64()),
    ("code", "int", pa.int32()),
    ("sizes", "array<bigint>", pa.list_(pa.int64())),
    ("bodies", "array<bigint>", pa.list_(pa.int64())),
    ("exchanges", "array<binary>", pa.list_(pa.binary())),
    ("keys", "array<binary>", pa.list_(pa.binary())),
    ("headers", "array<binary>", pa.list_(pa.binary())),
    ("since", "bigint", pa.int64()),
    ("upto", "bigint", pa.int64()),
)
"""Columns beside those of the ledger: name, Spark's type, Arrow's."""
TABLE: Final = pa.schema([*SCHEMA, *((name, kind) for name, _, kind in ADDED)])
TABLE_DDL: Final = ", ".join([DDL, *(f"{name} {kind}" for name, kind, _ in ADDED)])
READ: Final = (
    "source", "position", "row", "kind", "queue_id", "first", "count", "time", "owner", "other",
    "flags", "blob", "payload", "lo", *(name for name, _, _ in ADDED),
)  # fmt: skip
"""Columns that are read again."""
_CODES: Final = {name: code for code, name in records.KINDS.items()}
_DELTA: Final = "_delta_log"
PART: Final = ".part"
"""End of the name of a file that is being written, or that a run that was killed left."""


class NoTable(CannotRun):
    """The table is not one that traffic can be played from."""


# -- writing


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the ledger as it is written to a table: rows between two positions."""

    part: LedgerPart
    since: int
    upto: int


def stretches(
    folder: Path, upto: int | None = None, since: int = 0
) -> tuple[list[Stretch], set[str]]:
    """Return what a table lacks that has the ledger of a data folder up to `since`, in its order:
    what lies between, and the checkpoint at `upto`, the newest for None; and the headers that
    messages are routed by, as any of these definitions says. Raises LedgerIncomplete."""
    state, *parts = plan(folder, upto, is_unbroken=True)
    end = state.file.number
    low = max(since, parts[0].file.number << 32) if parts else end
    found: list[Stretch] = []
    names = _names(blocks_of(state))
    for i, part in enumerate(parts):
        stop = parts[i + 1].file.number << 32 if i + 1 < len(parts) else end
        begin = max(since, part.file.number << 32)
        wanted = LedgerPart(part.file, JOURNAL, end, begin)
        blocks = blocks_of(wanted) if stop > begin else []
        if blocks:
            names |= _names(blocks)
            found.append(Stretch(wanted, low, stop))
            low = stop
    if end > since:
        found.append(Stretch(state, low, end))
    return found, names


def _names(blocks: Iterable[Block]) -> set[str]:
    """Return the headers that messages are routed by, as definitions of these blocks say."""
    names: set[str] = set()
    for block in blocks:
        for row in block.rows[block.rows["kind"] == records.DEFINITION]:
            names |= named_headers(json.loads(block.blob(row)))
    return names


def batches(one: Stretch, names: Collection[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a stretch, as TABLE says. names: headers that are read."""
    found = blocks_of(one.part)
    added = _added(found, one, frozenset(names))
    low = 0
    for batch in batches_of(found, one.part):
        count = batch.num_rows
        columns = [*batch.columns, *(column.slice(low, count) for column in added)]
        yield pa.RecordBatch.from_arrays(columns, schema=TABLE)
        low += count


def _added(found: Sequence[Block], one: Stretch, names: frozenset[str]) -> list[pa.Array]:
    """Return the columns beside those of the ledger."""
    synced: list[int] = []
    cells: dict[str, list[Any]] = {name: [] for name, _, _ in ADDED[2:7]}
    for block in found:
        told = FromFile(block)
        synced += [told.synced] * len(told.rows)
        for row in told.rows:
            _add(cells, told, row if row[KIND] == records.PAYLOAD else None, names)
    codes = [block.rows["reason"] for block in found]
    count = len(synced)
    return [
        pa.array(synced, pa.int64()),
        pa.array(np.concatenate(codes).astype(np.int32) if codes else [], pa.int32()),
        *(pa.array(cells[name], kind) for name, _, kind in ADDED[2:7]),
        pa.array(np.full(count, one.since), pa.int64()),
        pa.array(np.full(count, one.upto), pa.int64()),
    ]


def _add(
    cells: dict[str, list[Any]], told: FromFile, row: Row | None, names: frozenset[str]
) -> None:
    if row is None:
        for column in cells.values():
            column.append(None)
        return
    routes = told.routes(row)
    headers = told.headers(row, names) if names else None
    cells["sizes"].append(told.sizes(row))
    cells["bodies"].append(told.bodies(row))
    cells["exchanges"].append([exchange for exchange, _ in routes])
    cells["keys"].append([key for _, key in routes])
    cells["headers"].append(headers and [encode_table(one) for one in headers])


def write_table(folder: Path, to: Path, upto: int | None, headers: Collection[str] = ()) -> int:
    """Append to a Parquet table what it lacks of a data folder's ledger; return the number of rows.
    A file is there whole or not at all, and a run that was killed is gone on with. Raises
    LedgerIncomplete, NoTable."""
    left = list(to.iterdir()) if to.exists() else []
    known = find_table(to) if any(path.suffix != PART for path in left) else None
    found, names = stretches(folder, upto, known.upto if known is not None else 0)
    names.update(headers)
    to.mkdir(parents=True, exist_ok=True)
    count = 0
    for one in found:
        path = to / f"{one.part.source}-{one.since:016x}-{one.upto:016x}.parquet"
        part = path.with_suffix(PART)
        with pq.ParquetWriter(part, TABLE) as file:
            for batch in batches(one, names):
                file.write_batch(batch)
                count += batch.num_rows
        part.replace(path)
    return count


def write_delta(folder: Path, to: Path, upto: int | None, headers: Collection[str] = ()) -> int:
    """Append to a Delta table, as write_table does to one of Parquet, in one commit."""
    from deltalake import DeltaTable, write_deltalake

    # Files that no log names are none of the table's: a run that was killed left them.
    known = find_table(to) if DeltaTable.is_deltatable(str(to)) else None
    found, names = stretches(folder, upto, known.upto if known is not None else 0)
    names.update(headers)
    count = 0

    def rows() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for one in found:
            for batch in batches(one, names):
                count += batch.num_rows
                yield batch

    if not found:
        return 0
    write_deltalake(
        str(to), pa.RecordBatchReader.from_batches(TABLE, rows()), mode="append", name="ledger"
    )
    return count


def read_traffic(
    spark: SparkSession, folder: Path, url: str | None = None, headers: Collection[str] = ()
) -> DataFrame:
    """Read the ledger of a data folder as a DataFrame that traffic can be played from, a file a
    task: what `tallymark pipeline ledger --rows` writes. url: of the broker there, which writes a
    checkpoint first. Raises LedgerIncomplete; with `url` BrokerRefused, BrokerUnreachable."""
    upto = None
    if url is not None:
        upto = asked(Endpoint.from_url(url, retry_ms=RETRY_MS), folder)
    found, names = stretches(folder, upto)
    names.update(headers)

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from batches(found[number], names)

    return spark.range(0, len(found), 1, len(found)).mapInArrow(read, TABLE_DDL)


# -- reading


class FromTable:
    """A block of the table."""

    def __init__(self, position: int, synced: int, rows: list[Row], cells: Cells) -> None:
        self._cells = cells
        self.position = position
        self.synced = synced
        self.rows: Sequence[Row] = rows

    def blob(self, row: Row) -> bytes:
        text = self._cells.blob[row[AT]]
        return b"" if text is None else text.encode()

    def sizes(self, row: Row) -> list[int]:
        return self._cells.sizes[row[AT]] or []

    def bodies(self, row: Row) -> list[int] | None:
        return self._cells.bodies[row[AT]]

    def routes(self, row: Row) -> list[tuple[bytes, bytes]]:
        at = row[AT]
        return list(zip(self._cells.exchanges[at], self._cells.keys[at], strict=True))

    def headers(self, row: Row, names: frozenset[str]) -> list[Headers] | None:
        found = self._cells.headers[row[AT]]
        if found is None:
            return None
        tables = {one: decode_table(one) for one in set(found)}
        return [
            {name: value for name, value in tables[one].items() if name in names} for one in found
        ]


class Cells:
    """Texts and lists of the rows of a batch, by the row's number in it."""

    def __init__(self, batch: pa.Table) -> None:
        self.blob: list[str | None] = batch["blob"].to_pylist()
        self.sizes: list[list[int] | None] = batch["sizes"].to_pylist()
        self.bodies: list[list[int] | None] = batch["bodies"].to_pylist()
        self.exchanges: list[Any] = batch["exchanges"].to_pylist()
        self.keys: list[Any] = batch["keys"].to_pylist()
        self.headers: list[list[bytes] | None] = batch["headers"].to_pylist()


@dataclass(frozen=True, slots=True)
class Table:
    """A ledger's table: its groups of rows, and what stretch of the ledger it has without a gap."""

    name: str
    groups: list[tuple[Path, int, int, int]]
    """File, number of the row group in it, and its lowest and highest position; by position."""
    since: int
    upto: int
    stamp: str

    def blocks(self, source: str = JOURNAL) -> Iterator[FromTable]:
        """Yield the blocks between `since` and `upto`; of the checkpoint at `upto` its rows as
        one."""
        for group in _together(self.groups):
            read = [
                pq.ParquetFile(path).read_row_group(number, list(READ))
                for path, number, _, _ in group
            ]
            yield from blocks_in(pa.concat_tables(read), source, self.since, self.upto)


def find_table(folder: Path) -> Table:
    """Return the table in a folder, Parquet or Delta. Raises NoTable."""
    if (folder / _DELTA).is_dir():
        from deltalake import DeltaTable

        table = DeltaTable(str(folder))
        paths = [Path(one.removeprefix("file://")) for one in table.file_uris()]
    else:
        paths = [
            path
            for path in sorted(folder.rglob("*.parquet"))
            if not any(step.startswith(("_", ".")) for step in path.relative_to(folder).parts)
        ]
    if not paths:
        raise NoTable(f"{folder}: no table here, expected Parquet files or a Delta table")
    groups = []
    pairs: set[tuple[int, int]] = set()
    for path in paths:
        file = pq.ParquetFile(path)
        lacks = sorted(set(READ) - set(file.schema_arrow.names))
        if lacks:
            raise NoTable(
                f"{path} has no column {lacks[0]}, expected a table that `tallymark pipeline "
                "ledger --rows` has written"
            )
        for number in range(file.num_row_groups):
            told = file.read_row_group(number, ["position", "since", "upto"])
            position = told["position"].to_numpy()
            groups.append((path, number, int(position.min()), int(position.max())))
            both = np.unique(np.stack([told["since"].to_numpy(), told["upto"].to_numpy()]), axis=1)
            pairs.update((int(low), int(high)) for low, high in both.T)
    since, upto = unbroken(pairs)
    stamp = repr([(path.name, path.stat().st_size) for path in sorted(paths)])
    groups.sort(key=lambda one: (one[2], str(one[0]), one[1]))
    return Table(str(folder), groups, since, upto, f"{folder.absolute()} {stamp}")


def unbroken(pairs: Collection[tuple[int, int]]) -> tuple[int, int]:
    """Return the last stretch of the ledger without a gap. pairs: all that were read."""
    begin = end = -1
    for since, upto in sorted(pairs):
        if since > end:
            begin = since
        end = max(end, upto)
    return begin, end


def _together(
    groups: Sequence[tuple[Path, int, int, int]],
) -> Iterator[list[tuple[Path, int, int, int]]]:
    """Yield the groups of rows that have to be read at once, since their positions overlap."""
    group: list[tuple[Path, int, int, int]] = []
    end = -1
    for one in groups:
        if group and one[2] > end:
            yield group
            group = []
        group.append(one)
        end = max(end, one[3])
    if group:
        yield group


def blocks_in(found: pa.Table, source: str, since: int, upto: int) -> Iterator[FromTable]:
    """Yield the blocks of rows in any order. Rows that are there twice are read once."""
    position = found["position"].to_numpy()
    low, high = (upto, upto + 1) if source == CHECKPOINT else (since, upto)
    is_from = found["source"].to_numpy(zero_copy_only=False) == source
    at = np.flatnonzero(is_from & (position >= low) & (position < high))
    row = found["row"].to_numpy()
    if source == JOURNAL:
        at = at[np.lexsort((row[at], position[at]))]
        keys = position[at].astype(np.int64), row[at]
        is_new = np.ones(len(at), bool)
        is_new[1:] = (np.diff(keys[0]) != 0) | (np.diff(keys[1]) != 0)
        at = at[is_new]
    if not len(at):
        return
    some = found.take(pa.array(at))
    rows = _rows(some)
    cells = Cells(some)
    synced = some["synced"].to_numpy()
    positions = some["position"].to_numpy()
    ends = [*(np.flatnonzero(np.diff(positions)) + 1).tolist(), len(rows)]
    begin = 0
    for end in ends:
        yield FromTable(int(positions[begin]), int(synced[begin]), rows[begin:end], cells)
        begin = end


def _rows(found: pa.Table) -> list[Row]:
    """Return the rows as the journal has them; in the place of offsets, their numbers here."""

    def column(name: str) -> list[int]:
        numbers: list[int] = found[name].fill_null(0 if name == "lo" else -1).to_pylist()
        return numbers

    kinds = [_kind(name) for name in found["kind"].to_pylist()]
    times = found["time"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy() // 1000
    columns = [
        kinds, column("flags"), column("code"), [0] * len(kinds), column("queue_id"),
        column("first"), times.tolist(), column("count"), column("lo"), column("owner"),
        column("other"), column("payload"), list(range(len(kinds))), [0] * len(kinds),
    ]  # fmt: skip
    return list(zip(*columns, strict=True))


def _kind(name: str) -> int:
    code = _CODES.get(name)
    return int(name.removeprefix("kind_")) if code is None else code
