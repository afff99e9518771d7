"""Ranges of sequences: what an account needs of the ledger, gathered in one pass over its files.

A row of the ledger speaks of a range of messages of a queue. Ranges of the same queue and kind that
touch are one, so that what is left of a file is small: a queue that was settled in order is a range
for each hour. A file's ranges need no other file; they are gathered one file after the other, or by
the tasks of a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymark.spark.blocks import ROW
from tallymark.spark.ledger import CHECKPOINT, LedgerPart, blocks_of
from tallymark.stored import records

if TYPE_CHECKING:
    from tallymark.spark.gather import Ints

MS_OF_HOUR: Final = 3_600_000
MOVED_ON: Final = ("transfer", "redrive")
"""Reasons of messages settled without a consumer: they were moved to other queues."""
MOVES: Final = (records.SETTLED_BY_TRANSFER, records.SETTLED_BY_REDRIVE)
BY_READERS: Final = (records.SETTLED_BY_CLIENT, records.SETTLED_BY_BATCH)
"""Reasons of settlements by somebody who had taken the messages before."""

WHATS: Final = (
    "entered", "settled", "dropped", "dead_lettered", "pending", "live", "letter", "transferred",
    "taken", "read",
)  # fmt: skip
"""Properties and events of a range of sequences: the first five are rows of the journal. live: in
the queue at the checkpoint, in whatever state. letter: named as its source by what entered another
queue (or this one is in no ledger). transferred: settled because they were handed on as they were,
or redriven. taken: delivered or leased. read: settled by somebody who had to take them first."""
ENTERED, SETTLED, DROPPED, DEAD_LETTERED, PENDING, LIVE, LETTER, TRANSFERRED, TAKEN, READ = range(
    len(WHATS)
)
EVENTS: Final = {
    ENTERED: (records.ENTERED,), SETTLED: (records.SETTLED,), DROPPED: (records.DROPPED,),
    DEAD_LETTERED: (records.DEAD_LETTERED,), PENDING: (records.PENDING,),
    TAKEN: (records.ACQUIRED, records.LEASED),
}  # fmt: skip
STATES: Final = (records.LIVE, records.LEASED, records.PENDING)
"""Kinds of rows of a checkpoint that say that messages are there."""

RANGE: Final = np.dtype(
    [("queue", "i8"), ("low", "i8"), ("high", "i8"), ("target", "i8"), ("hour", "i4"),
     ("what", "u1"), ("reason", "u1")]
)  # fmt: skip
"""high: exclusive. target: of a letter, the queue that it entered. hour: of what entered, since
1970. reason: of what was dropped."""
Ranges = NDArray[Any]

KEPT: Final = (
    "queue", "policy", "operator_policy", "delete_policy", "delete_operator_policy", "sink",
    "subscription",
)  # fmt: skip
"""Operations of the definitions that an account looks at."""


@dataclass(slots=True)
class Gathered:
    """All that an account needs of some files of the ledger."""

    ranges: Ranges = field(default_factory=lambda: np.empty(0, RANGE))
    returned: dict[tuple[int, int], int] = field(default_factory=dict)
    """Deliveries that came back, by queue and reason."""
    leased: dict[int, int] = field(default_factory=dict)
    """The end of what was leased to each subscription, by its epoch."""
    definitions: set[str] = field(default_factory=set)
    """JSON objects."""

    def add(self, other: Gathered) -> None:
        self.ranges = np.concatenate([self.ranges, other.ranges])
        for key, count in other.returned.items():
            self.returned[key] = self.returned.get(key, 0) + count
        for epoch, end in other.leased.items():
            self.leased[epoch] = max(self.leased.get(epoch, 0), end)
        self.definitions |= other.definitions


def gather(part: LedgerPart) -> Gathered:
    """Gather from one file. Raises LedgerIncomplete."""
    blocks = blocks_of(part)
    if not blocks:
        return Gathered()
    texts = {
        block.blob(row).decode("utf-8", "replace")
        for block in blocks
        for row in block.rows[block.rows["kind"] == records.DEFINITION]
    }
    rows = np.concatenate([block.rows for block in blocks])
    return gathered(rows, part.source == CHECKPOINT, texts)


def gathered(rows: NDArray[Any], is_state: bool, texts: Iterable[str]) -> Gathered:
    """rows: of the layout ROW. is_state: of a checkpoint. texts: of the definitions among them."""
    definitions = {text for text in texts if json.loads(text).get("op") in KEPT}
    if is_state:
        there = np.isin(rows["kind"], STATES)
        state = merged(_own(rows, there, LIVE))
        return Gathered(state, leased=_leased(rows), definitions=definitions)
    return Gathered(merged(_happened(rows)), _returned(rows), _leased(rows), definitions)


def gathered_table(table: pa.Table) -> Gathered:
    """Gather from rows of the ledger as a table (ledger.SCHEMA), of both sources."""
    kinds = {name: code for code, name in records.KINDS.items()}
    codes = {
        (kind, name): code
        for kind, named in records.REASONS.items()
        for code, name in named.items()
    }
    rows = np.zeros(table.num_rows, ROW)
    columns = {name: table.column(name).to_pylist() for name in ("kind", "reason", "source")}
    rows["kind"] = [kinds.get(name, 0) for name in columns["kind"]]
    named = zip(rows["kind"].tolist(), columns["reason"], strict=True)
    rows["reason"] = [codes.get(key, 0) for key in named]
    times = table.column("time").cast(pa.timestamp("us")).cast(pa.int64()).fill_null(0)
    rows["time"] = times.to_numpy() // 1000
    rows["queue"] = table.column("queue_id").fill_null(0).to_numpy()
    for name in ("first", "count", "flags", "owner", "other"):
        rows[name] = table.column(name).fill_null(0).to_numpy()
    letters = rows["kind"] == records.ENTERED
    for name, field_name in (("from_queue_id", "owner"), ("from_first", "other")):
        values = table.column(name).fill_null(0).to_numpy()
        rows[field_name] = np.where(letters, values, rows[field_name])
    is_state = np.array([source == CHECKPOINT for source in columns["source"]], bool)
    blobs = table.column("blob").to_pylist()
    texts = {blobs[i] for i in np.flatnonzero(rows["kind"] == records.DEFINITION) if blobs[i]}
    found = gathered(rows[~is_state], False, texts)
    found.add(gathered(rows[is_state], True, ()))
    return found


def _happened(rows: NDArray[Any]) -> Ranges:
    kinds, reasons = rows["kind"], rows["reason"]
    parts = [_own(rows, np.isin(kinds, of), what) for what, of in EVENTS.items()]
    settled = kinds == records.SETTLED
    parts.append(_own(rows, settled & np.isin(reasons, MOVES), TRANSFERRED))
    parts.append(_own(rows, settled & np.isin(reasons, BY_READERS), READ))
    # Where no target outlives the broker none has rows: the source's own row has to do.
    unstored = (kinds == records.DEAD_LETTERED) & (rows["flags"] & records.TRANSIENT != 0)
    parts.append(_own(rows, unstored, LETTER))
    letters = rows[(kinds == records.ENTERED) & (rows["owner"] > 0)]
    named = _ranges(letters, LETTER, letters["owner"], letters["other"])
    named["target"] = letters["queue"]
    return np.concatenate([*parts, named])


def _own(rows: NDArray[Any], which: NDArray[np.bool_], what: int) -> Ranges:
    chosen = rows[which]
    out = _ranges(chosen, what, chosen["queue"], chosen["first"])
    if what == ENTERED:
        out["hour"] = chosen["time"] // MS_OF_HOUR
    elif what == DROPPED:
        out["reason"] = chosen["reason"]
    return out


def _ranges(rows: NDArray[Any], what: int, queues: Any, lows: Any) -> Ranges:
    out: Ranges = np.zeros(len(rows), RANGE)
    out["queue"], out["low"], out["what"] = queues, lows, what
    out["high"] = out["low"] + rows["count"]
    if not rows["count"].all():
        out = out[out["high"] > out["low"]]
    return out


def merged(ranges: Ranges) -> Ranges:
    """Return the ranges in order, those that touch and say the same as one. What is in several
    ranges stays in as many."""
    if len(ranges) < 2:
        return ranges
    kind = (
        ranges["what"].astype(np.int64) << 48
        | ranges["reason"].astype(np.int64) << 40
        | (ranges["hour"].astype(np.int64) & 0xFF_FFFF_FFFF)
    )
    order = np.lexsort((ranges["low"], kind, ranges["target"], ranges["queue"]))
    ranges, kind = ranges[order], kind[order]
    goes_on = (ranges["low"][1:] == ranges["high"][:-1]) & (kind[1:] == kind[:-1])
    for name in ("queue", "target"):
        goes_on &= ranges[name][1:] == ranges[name][:-1]
    if not goes_on.any():
        return ranges
    begins = np.concatenate([[True], ~goes_on])
    out: Ranges = ranges[begins]
    out["high"] = ranges["high"][np.concatenate([~goes_on, [True]])]
    return out


def _returned(rows: NDArray[Any]) -> dict[tuple[int, int], int]:
    back = rows[rows["kind"] == records.RETURNED]
    keys = back["queue"].astype(np.int64) << 8 | back["reason"]
    return {
        (key >> 8, key & 0xFF): count for key, count in _sums(keys, back["count"].astype(np.int64))
    }


def _leased(rows: NDArray[Any]) -> dict[int, int]:
    ends: dict[int, int] = {}
    leased = rows[rows["kind"] == records.LEASED]
    end = (leased["other"] & records.LEASE_BITS) + leased["count"]
    floors = rows[rows["kind"] == records.LEASE_SETTLED]
    for owners, of in ((leased["owner"], end), (floors["owner"], floors["other"])):
        for owner in np.unique(owners).tolist():
            ends[owner] = max(ends.get(owner, 0), int(of[owners == owner].max()))
    return ends


def _sums(keys: Ints, counts: Ints) -> Iterator[tuple[int, int]]:
    found, where = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(found), np.int64)
    np.add.at(sums, where, counts)
    return zip(found.tolist(), sums.tolist(), strict=True)


# -- between the tasks of a cluster and its driver

RETURNED_SUM: Final = 32
LEASED_END: Final = 33
DEFINITION: Final = 34
DDL: Final = (
    "queue bigint, low bigint, high bigint, target bigint, hour int, what int, reason int, "
    "text string"
)
"""A range; or, by `what`, what else was gathered: a sum of returned deliveries and the end of what
was leased in `high`, a definition in `text`."""
SCHEMA: Final = pa.schema(
    [("queue", pa.int64()), ("low", pa.int64()), ("high", pa.int64()), ("target", pa.int64()),
     ("hour", pa.int32()), ("what", pa.int32()), ("reason", pa.int32()), ("text", pa.string())]
)  # fmt: skip


def to_batch(found: Gathered) -> pa.RecordBatch:
    """Return what was gathered as rows of DDL."""
    rest = [(key[0], count, RETURNED_SUM, key[1], "") for key, count in found.returned.items()]
    rest += [(epoch, end, LEASED_END, 0, "") for epoch, end in found.leased.items()]
    rest += [(0, 0, DEFINITION, 0, text) for text in sorted(found.definitions)]
    rows = np.zeros(len(rest), RANGE)
    for name, i in (("queue", 0), ("high", 1), ("what", 2), ("reason", 3)):
        rows[name] = [one[i] for one in rest]
    rows = np.concatenate([found.ranges, rows])
    texts = [None] * len(found.ranges) + [one[4] or None for one in rest]
    columns = [
        pa.array(np.ascontiguousarray(rows[name])).cast(SCHEMA.field(name).type)
        for name in SCHEMA.names[:-1]
    ]
    return pa.RecordBatch.from_arrays([*columns, pa.array(texts, pa.string())], schema=SCHEMA)


def from_batches(batches: Sequence[pa.RecordBatch]) -> Gathered:
    """Return what several files' rows of DDL say together."""
    found = Gathered()
    for batch in batches:
        rows = np.zeros(batch.num_rows, RANGE)
        for name in RANGE.names or ():
            rows[name] = batch.column(name).to_numpy(zero_copy_only=False)
        whats = batch.column("what").to_pylist() if (rows["what"] >= RETURNED_SUM).any() else []
        ranges = rows[rows["what"] < RETURNED_SUM]
        one = Gathered(ranges)
        for i in np.flatnonzero(rows["what"] >= RETURNED_SUM).tolist():
            queue, high = int(rows["queue"][i]), int(rows["high"][i])
            # A batch may be of several files, each with its sums.
            if whats[i] == RETURNED_SUM:
                key = queue, int(rows["reason"][i])
                one.returned[key] = one.returned.get(key, 0) + high
            elif whats[i] == LEASED_END:
                one.leased[queue] = max(one.leased.get(queue, 0), high)
            else:
                one.definitions.add(batch.column("text")[i].as_py())
        found.add(one)
    return found
