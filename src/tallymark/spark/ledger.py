"""The ledger as a table: every row of the journal, and the rows of its newest checkpoint.

The journal *is* the ledger: whatever happened to a range of messages of a queue is one row of 64
bytes. `spark.read.format("tallymark").option("ledger", DIR)` reads them file by file, a file a
task, as one array per file. It reads the data folder itself and so is for whoever may read that
folder; a broker may be running on it.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tallymark.spark.blocks import ROW, Block, block_at
from tallymark.spark.ledger_files import (
    READ_AGAIN,
    LedgerFile,
    LedgerIncomplete,
    find_checkpoint,
    ledger_files,
    read_whole,
    since_the_last_gap,
)
from tallymark.stored import layout, records, segment
from tallymark.stored.annotations import Annotations
from tallymark.stored.records import REASONS

JOURNAL: Final = "journal"
CHECKPOINT: Final = "checkpoint"

DDL: Final = (
    "source string, position bigint, row int, kind string, queue_id bigint, first bigint, "
    "count bigint, time timestamp, reason string, owner bigint, other bigint, flags int, "
    "blob string, priority int, failed boolean, from_queue_id bigint, from_first bigint, "
    "due timestamp, payload bigint, lo bigint, message_id bigint, exchange string, "
    "routing_key string"
)
"""source: "journal", or "checkpoint" for the state at the newest checkpoint. position: where the
block lies, or what a checkpoint speaks of. blob: JSON of definitions and counters, of a dead
letter's history, of what is pending, of ids taken, of slow consumers and of what consumers came to.
priority: of messages that enter, are leased
or are still there. failed: whether what was returned or deferred counts as a failed delivery.
from_queue_id, from_first: the queue whose dead letters entered, or which handed its messages on,
and the sequence the first of them had there; null for what was published. due: when messages that
were deferred, or entered so, are ready. payload, lo: where the bytes meant lie, and the first of
their messages that is meant; null for rows that mean none. message_id: of the first message, the
others follow; exchange, routing_key: as published, null where they are several. These three are
null where the bytes lie in another file than the row (of letters, mostly), and stand in the payload
row with the same `payload`. The rest is as tallymark.stored.records says."""

SCHEMA: Final = pa.schema(
    [
        ("source", pa.string()),
        ("position", pa.int64()),
        ("row", pa.int32()),
        ("kind", pa.string()),
        ("queue_id", pa.int64()),
        ("first", pa.int64()),
        ("count", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("reason", pa.string()),
        ("owner", pa.int64()),
        ("other", pa.int64()),
        ("flags", pa.int32()),
        ("blob", pa.string()),
        ("priority", pa.int32()),
        ("failed", pa.bool_()),
        ("from_queue_id", pa.int64()),
        ("from_first", pa.int64()),
        ("due", pa.timestamp("us", "UTC")),
        ("payload", pa.int64()),
        ("lo", pa.int64()),
        ("message_id", pa.int64()),
        ("exchange", pa.string()),
        ("routing_key", pa.string()),
    ]
)

QUIET: Final = (records.MARK, records.CONSUMER)
"""Kinds of rows that record no event of a message or a queue."""
WITH_PRIORITY: Final = (records.ENTERED, records.LEASED, records.LIVE)
"""Kinds whose `reason` is a priority."""
BATCH_ROWS: Final = 32_768


@dataclass(frozen=True, slots=True)
class LedgerPart:
    """One file of the ledger, up to a position."""

    file: LedgerFile
    source: str
    upto: int
    since: int = 0
    """Position of the first block that is wanted."""


def plan(folder: Path, upto: int | None = None, *, is_unbroken: bool = False) -> list[LedgerPart]:
    """Return the parts of the ledger up to the checkpoint at `upto` (None: the newest): that
    checkpoint, and every file with rows below it. Raises LedgerIncomplete.

    is_unbroken: leave out what lies before a gap. The broker deletes a ledger once its retention
    is over, and keeps older segments for as long as somebody needs a body in them."""
    folder = folder.absolute()  # executors of a cluster stand in folders of their own
    state = find_checkpoint(folder, upto)
    files = ledger_files(folder, state.number)
    if is_unbroken:
        files = since_the_last_gap(files)
    return [
        LedgerPart(state, CHECKPOINT, state.number),
        *(LedgerPart(file, JOURNAL, state.number) for file in files),
    ]


def read_file(part: LedgerPart) -> Iterator[pa.RecordBatch]:
    """The rows of one file. Raises LedgerIncomplete when it is damaged below the position."""
    return batches_of(blocks_of(part), part)


def blocks_of(part: LedgerPart) -> list[Block]:
    """Return the blocks of one file that have rows. Raises LedgerIncomplete when it is damaged
    below the position."""
    if part.source == CHECKPOINT:
        data, headers = _checkpoint_blocks(part.file)
    else:
        data, headers = _journal_blocks(part.file, part.upto)
    return [block_at(data, one) for one in headers if one.rows and one.position >= part.since]


def time_of(checkpoint: LedgerFile) -> datetime:
    """Return when the broker wrote a checkpoint, to the millisecond as its own clock had it."""
    data, headers = _checkpoint_blocks(checkpoint)
    times = [int(block_at(data, one).rows["time"].max()) for one in headers if one.rows]
    if not times:
        return datetime.fromtimestamp(checkpoint.path.stat().st_mtime, UTC)
    return datetime.fromtimestamp(max(times) / 1000, UTC)


def beyond(folder: Path, position: int) -> tuple[int, datetime] | None:
    """Return the number of blocks with events after `position`, and the time of the last event;
    None: there are none."""
    count, last = 0, 0
    for file in ledger_files(folder):
        if file.number < position >> 32:
            continue
        data = read_whole(file)
        for header in segment.scan(data, file.number, file.salt)[0]:
            if header.position < position or not header.rows:
                continue
            rows = block_at(data, header).rows
            events = rows[~np.isin(rows["kind"], QUIET)]
            if len(events):
                count, last = count + 1, max(last, int(events["time"].max()))
    return (count, datetime.fromtimestamp(last / 1000, UTC)) if count else None


def user_of(folder: Path) -> int | None:
    """Return the pid of the broker that is using this data folder, 0 if the pid is unknown; None:
    no broker is using it."""
    try:
        with (folder / "lock").open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = lock.read(32).strip()
                return int(text) if text.isdigit() else 0
    except OSError:
        pass  # no lock file: no broker was ever here; an unreadable one: unknown
    return None


def _checkpoint_blocks(file: LedgerFile) -> tuple[bytes, list[layout.Header]]:
    data = file.path.read_bytes()
    return data, segment.scan(data, salt=0)[0]


def _journal_blocks(file: LedgerFile, upto: int) -> tuple[bytes, list[layout.Header]]:
    """The sound blocks of a file that lie below `upto`. Raises LedgerIncomplete."""
    needed = upto & 0xFFFF_FFFF if upto >> 32 == file.number else 0
    for _ in range(READ_AGAIN):
        data = read_whole(file)
        headers, valid, verdict = segment.scan(data, file.number, file.salt, upto)
        stripped = bool(headers) and headers[0].flags & layout.STRIPPED != 0
        # What lies behind `upto` may be in the middle of being written: it is not judged.
        sound = valid >= needed if needed and not stripped else verdict.kind != segment.CORRUPT
        if sound:
            return data, [header for header in headers if header.position < upto]
    raise LedgerIncomplete(
        f"{file.path}: sound up to offset {valid} of {needed or len(data)}: "
        f"{verdict.reason or verdict.kind}. See `tallymark journal verify`"
    )


def batches_of(found: list[Block], part: LedgerPart) -> Iterator[pa.RecordBatch]:
    """The rows of blocks of one file, in batches."""
    if not found:
        return
    rows = np.concatenate([block.rows for block in found])
    counts = [len(block.rows) for block in found]
    starts = np.repeat([block.header.at for block in found], counts)
    if part.source == CHECKPOINT:
        position = np.full(len(rows), part.file.number)
    else:
        position = np.repeat([block.header.position for block in found], counts)
    number = np.concatenate([np.arange(count) for count in counts])
    known = Payloads(found, rows)
    for low in range(0, len(rows), BATCH_ROWS):
        some = slice(low, low + BATCH_ROWS)
        yield _batch(
            found[0].data, rows[some], starts[some], position[some], number[some], part.source,
            known,
        )  # fmt: skip


def _batch(
    data: bytes,
    rows: Any,
    starts: Any,
    position: Any,
    number: Any,
    source: str,
    known: Payloads,
) -> pa.RecordBatch:
    assert rows.dtype == ROW
    kinds = rows["kind"]
    letters = (kinds == records.ENTERED) & (rows["owner"] > 0)
    returned = np.isin(kinds, (records.RETURNED, records.DEFERRED))
    blobs = _blobs(data, rows, starts)
    columns = [
        pa.repeat(pa.scalar(source), len(rows)),
        pa.array(position.astype(np.int64)),
        pa.array(number.astype(np.int32)),
        _named(kinds, records.KINDS),
        pa.array(np.where(kinds == records.PAYLOAD, 0, rows["queue"]).astype(np.int64)),
        pa.array(np.ascontiguousarray(rows["first"])),
        pa.array(rows["count"].astype(np.int64)),
        pa.array(rows["time"] * 1000, pa.timestamp("us", "UTC")),
        _reasons(rows),
        pa.array(np.ascontiguousarray(rows["owner"])),
        pa.array(np.ascontiguousarray(rows["other"])),
        pa.array(rows["flags"].astype(np.int32)),
        pa.array(blobs, pa.string()),
        _where(rows["reason"].astype(np.int32), np.isin(kinds, WITH_PRIORITY)),
        _where(rows["flags"] & records.RETURNED_FAILED != 0, returned),
        _where(rows["owner"], letters),
        _where(rows["other"], letters),
        _dues(rows, blobs),
        _where(rows["payload"], rows["payload"] >= 0),
        _where(rows["lo"].astype(np.int64), (rows["payload"] >= 0) & (kinds != records.PAYLOAD)),
        *known.columns(rows),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _named(codes: Any, names: dict[int, str]) -> pa.Array:
    table = [names.get(code, f"kind_{code}") for code in range(256)]
    return pa.array(table).take(pa.array(codes))


def _reasons(rows: Any) -> pa.Array:
    names = np.full(len(rows), None, object)
    for kind, known in REASONS.items():
        for code, name in known.items():
            names[(rows["kind"] == kind) & (rows["reason"] == code)] = name
    return pa.array(names, pa.string())


def _where(values: Any, holds: Any) -> pa.Array:
    return pa.array(np.ascontiguousarray(values), mask=~holds)


def _dues(rows: Any, blobs: list[str | None]) -> pa.Array:
    """Return when each deferred message becomes ready: DEFERRED rows carry the time, and so do the
    annotations of messages that entered."""
    dues: list[int | None] = [None] * len(rows)
    for i in np.flatnonzero(rows["kind"] == records.DEFERRED).tolist():
        dues[i] = int(rows["other"][i]) * 1000
    said: dict[str, int] = {}
    for i in np.flatnonzero(rows["kind"] == records.ENTERED).tolist():
        blob = blobs[i]
        if blob is None or '"due":' not in blob:
            continue
        due = said.get(blob)
        if due is None:
            due = said[blob] = _due_of(blob)
        if due:
            dues[i] = due * 1000
    return pa.array(dues, pa.timestamp("us", "UTC"))


def _due_of(blob: str) -> int:
    """Milliseconds; 0 where it does not say, or cannot be read [DL-20]."""
    try:
        return Annotations.from_bytes(blob.encode()).due_ms
    except ValueError:
        return 0


def _blobs(data: bytes, rows: Any, starts: Any) -> list[str | None]:
    """The text of each row that has some. Rows of a block share equal texts: each is read once."""
    with_text = np.flatnonzero((rows["size"] > 0) & (rows["kind"] != records.PAYLOAD))
    texts: dict[tuple[int, int], str] = {}
    blobs: list[str | None] = [None] * len(rows)
    ats = (starts[with_text] + rows["at"][with_text]).tolist()
    for i, at, size in zip(with_text, ats, rows["size"][with_text].tolist(), strict=True):
        text = texts.get((at, size))
        if text is None:
            text = texts[at, size] = data[at : at + size].decode("utf-8", "replace")
        blobs[i] = text
    return blobs


NONE: Final = -1


@final
class Payloads:
    """The payloads of one file: ids and routes of the messages that its rows speak of.

    A row names the bytes of its messages by their position in the journal, and the PAYLOAD row of
    the same position says which ids those messages have and how they were routed. That is looked up
    here among the rows of one file, all at once.
    """

    def __init__(self, blocks: Sequence[Block], rows: Any) -> None:
        """rows: of all the blocks, end to end."""
        mine = rows["kind"] == records.PAYLOAD
        of = rows[mine]
        self._order = np.argsort(of["payload"], kind="stable")
        self._positions = of["payload"][self._order]
        self._ids = of["first"][self._order]
        names: dict[str, int] = {}
        exchanges, keys = _routes(blocks, names)
        self._exchanges = exchanges[self._order]
        self._keys = keys[self._order]
        self._names = pa.array([*names, None], pa.string())
        """Names, followed by the null of unknown names."""

    def columns(self, rows: Any) -> list[pa.Array]:
        """Return message_id, exchange and routing_key of rows of this file, null where they are
        unknown."""
        where = np.searchsorted(self._positions, rows["payload"])
        inside = where < len(self._positions)
        where = np.where(inside, where, 0)
        known = inside & (rows["payload"] >= 0)
        if len(self._positions):
            known &= self._positions[where] == rows["payload"]
        if not known.any():
            return [pa.nulls(len(rows), kind) for kind in (pa.int64(), pa.string(), pa.string())]
        lo = np.where(rows["kind"] == records.PAYLOAD, 0, rows["lo"].astype(np.int64))
        return [
            pa.array(self._ids[where] + lo, mask=~known),
            self._named(self._exchanges[where], known),
            self._named(self._keys[where], known),
        ]

    def _named(self, numbers: Any, known: Any) -> pa.Array:
        last = len(self._names) - 1
        return self._names.take(pa.array(np.where(known & (numbers >= 0), numbers, last)))


def _routes(blocks: Sequence[Block], names: dict[str, int]) -> tuple[Any, Any]:
    """The exchange and the key of each payload as numbers of `names`, NONE where it has several."""
    exchanges: list[int] = []
    keys: list[int] = []
    seen: dict[bytes, list[int]] = {}
    for block in blocks:
        rows = block.rows
        mine = np.flatnonzero(rows["kind"] == records.PAYLOAD)
        if not len(mine):
            continue
        cells = _cells(block, names, seen)
        columns = rows["flags"][mine] & layout.ROUTE_COLUMN != 0
        for owner, count, several in zip(
            rows["owner"][mine].tolist(), rows["count"][mine].tolist(), columns.tolist(),
            strict=True,
        ):  # fmt: skip
            routes = {owner} if not several else set(block.bounds[owner : owner + count].tolist())
            exchanges.append(_one({cells[2 * route] for route in routes}))
            keys.append(_one({cells[2 * route + 1] for route in routes}))
    return np.array(exchanges, np.int64), np.array(keys, np.int64)


def _cells(block: Block, names: dict[str, int], seen: dict[bytes, list[int]]) -> list[int]:
    """The texts of a block's routes as numbers of `names`. Blocks tend to have the same routes."""
    header, at = block.header, block.header.at
    ends = block.data[at + header.routes_at : at + header.text_at]
    size = int.from_bytes(ends[-4:], "little")
    raw = ends + block.data[at + header.text_at : at + header.text_at + size]
    cells = seen.get(raw)
    if cells is None:
        texts = [cell.decode("utf-8", "replace") for cell in block.routes().to_pylist()]
        cells = seen[raw] = [names.setdefault(text, len(names)) for text in texts]
    return cells


def _one(numbers: set[int]) -> int:
    return numbers.pop() if len(numbers) == 1 else NONE
