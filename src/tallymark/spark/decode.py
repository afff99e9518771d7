"""Blocks to Arrow batches: every message a row, no loop over messages.

A block names its messages by ranges: a LEASED row says "lease sequences from 40 on are the messages
3.. of that payload". Ranges are spread out into columns by arithmetic, the cells' places come from
the bounds, and cells/ reads what is in them. One core makes more than a million rows a second of
all columns with bodies of 1 KiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tallymark.spark import gather, letters, schema
from tallymark.spark.blocks import Block, Segments, blocks, check_sums, spread
from tallymark.spark.cells.amqp091 import decode_cells
from tallymark.spark.cells.amqp10 import decode_amqp10_cells
from tallymark.spark.cells.nsq import decode_nsq_cells
from tallymark.spark.gather import Ints
from tallymark.stored import layout
from tallymark.stored.formats import AMQP091, AMQP10, NSQ
from tallymark.stored.records import DROPPED, ENTERED, LEASED, LIVE, PAYLOAD

BATCH_ROWS: Final = 8_192
BATCH_BYTES: Final = 32 * 1024 * 1024
"""A batch ends here too, but holds at least one message: batches cross two processes."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Rows, and the numbers by which a reader checks that they are the right ones."""

    batch: pa.RecordBatch
    sequences: Ints
    lease_sequences: Ints
    """-1 for messages that are not leased."""


@dataclass(frozen=True, slots=True)
class _Places:
    """One entry per message of a block."""

    sequence: Ints
    lease: Ints
    fence: Ints
    message_id: Ints
    arrived_ms: Ints
    redelivered: Any
    route: Ints
    format: Ints
    starts: Ints
    ends: Ints
    known: Ints
    """Index into the block's letters.Table, which has the broker's annotations of the message."""

    def part(self, index: Any) -> _Places:
        return _Places(*(getattr(self, name)[index] for name in self.__slots__))


def decode_answer(
    data: bytes, queue: str, names: Sequence[str], fence: int = 0
) -> Iterator[Messages]:
    """The messages of a READ answer, in its order, as batches of the columns `names`.

    fence: number of the attach that leased messages are read under; 0: none are leased.
    Raises LayoutError when these are not sound blocks; never because of a message's content.
    """
    for block in blocks(data):
        yield from decode_block(block, queue, names, fence)


def decode_offsets(
    data: bytes, low: int, end: int, stream: str, names: Sequence[str], files: Segments | None
) -> Iterator[pa.RecordBatch]:
    """The messages at offsets low..end-1 of a stream, as batches of the columns `names`. `files`:
    where the bytes are, for an answer that has places in place of them.

    Raises LayoutError when these are not sound blocks, or do not say of each offset what became
    of it; LookupError for a file that cannot be read; never because of a message's content.
    """
    sequence = low + 1
    for block in blocks(data):
        sequence = _check_all_told(block, sequence)
        if files is None:
            for found in decode_block(block, stream, names):
                yield found.batch
        else:
            yield from _decode_places(block, stream, names, files)
    if sequence != end + 1:
        raise layout.LayoutError(f"an answer up to offset {end} ends before {sequence - 1}")


def _check_all_told(block: Block, sequence: int) -> int:
    """Raises LayoutError unless the rows follow on `sequence` without a gap; returns the number
    behind them."""
    rows = block.rows[np.isin(block.rows["kind"], (LIVE, DROPPED))]
    counts = rows["count"].astype(np.int64)
    ends = sequence + np.cumsum(counts)
    if not (rows["first"] == ends - counts).all():
        raise layout.LayoutError(f"an answer from offset {sequence - 1} on has a gap")
    return int(ends[-1]) if len(ends) else sequence


def decode_block(
    block: Block, queue: str, names: Sequence[str], fence: int = 0
) -> Iterator[Messages]:
    """The messages of one block whose payloads are in it."""
    places, table = _find_messages(block, fence)
    if block.header.flags & layout.APART:  # its bytes come from the journal as they lie there
        check_sums(block, pa.py_buffer(block.data))
    yield from _batches(block, pa.py_buffer(block.data), places, table, queue, names)


def decode_payload(
    block: Block, row: int, which: Ints, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The messages `which` of the payload that row `row` of a journal's block stores, as batches
    of the columns `names`; what only a queue knows of them is 0 or null there."""
    payload = block.rows[row]
    bounds = block.bounds.astype(np.int64)
    nothing = np.zeros(len(which), np.int64)
    message_id, arrived_ms = _by_columns(bounds, block.rows[row : row + 1], nothing, which)
    bound = int(payload["lo"]) + which
    start = int(payload["at"]) + block.header.at
    route = nothing + int(payload["owner"])
    if payload["flags"] & layout.ROUTE_COLUMN:
        route = bounds[route + which]
    places = _Places(
        sequence=nothing,
        lease=nothing - 1,
        fence=nothing,
        message_id=message_id,
        arrived_ms=arrived_ms,
        redelivered=nothing > 0,
        route=route,
        format=nothing + int(payload["reason"]),
        starts=start + bounds[bound],
        ends=start + bounds[bound + 1],
        known=nothing,
    )
    for found in _batches(block, pa.py_buffer(block.data), places, None, "", names):
        yield found.batch


def _decode_places(
    block: Block, queue: str, names: Sequence[str], files: Segments
) -> Iterator[pa.RecordBatch]:
    """The messages of one block whose payloads are in segment files, in their order."""
    places, table = _find_messages(block)
    segments = places.starts >> 32
    cuts = np.flatnonzero(np.diff(segments)) + 1
    for low, high in pairwise([0, *cuts.tolist(), len(segments)]):
        if low == high:
            continue
        raw = files.segment(int(segments[low]))
        part = places.part(slice(low, high))
        base = int(segments[low]) << 32
        check_sums(block, raw, int(segments[low]))
        part = replace(part, starts=part.starts - base, ends=part.ends - base)
        if int(part.ends.max()) > raw.size:
            raise layout.LayoutError(f"a message lies outside its segment of {raw.size}")
        for found in _batches(block, raw, part, table, queue, names):
            yield found.batch


def _batches(
    block: Block,
    raw: pa.Buffer,
    places: _Places,
    table: letters.Table | None,
    queue: str,
    names: Sequence[str],
) -> Iterator[Messages]:
    """Messages whose bytes are in `raw`, as batches that are neither too long nor too large."""
    total = len(places.sequence)
    ends = np.cumsum(places.ends - places.starts)
    low = 0
    while low < total:
        begun = int(ends[low - 1]) if low else 0
        fitting = int(np.searchsorted(ends, begun + BATCH_BYTES, "right"))
        high = min(total, low + BATCH_ROWS, max(fitting, low + 1))
        part = places.part(slice(low, high))
        columns = _columns(block, raw, part, table, queue, frozenset(names))
        batch = pa.RecordBatch.from_arrays(
            [columns[name] for name in names], schema=schema.arrow(names)
        )
        yield Messages(batch, part.sequence, part.lease)
        low = high


def _find_messages(block: Block, fence: int = 0) -> tuple[_Places, letters.Table | None]:
    ranges, payload = _find_ranges(block)
    # A field of a range, or of its payload, becomes that of each message by [of].
    of, step = spread(ranges["count"].astype(np.int64))
    message = ranges["lo"].astype(np.int64)[of] + step
    bounds = block.bounds.astype(np.int64)
    bound = payload["lo"].astype(np.int64)[of] + message
    own_route = payload["flags"] & layout.ROUTE_COLUMN != 0
    route = payload["owner"][of]
    if own_route.any():
        route_bound = np.where(own_route[of], route + message, 0)
        _check_bounds(block, route_bound)
        route = np.where(own_route[of], bounds[route_bound], route)
    _check_bounds(block, bound + 1)
    message_id, arrived_ms = _by_columns(bounds, payload, of, message)
    elsewhere = payload["flags"] & layout.ELSEWHERE != 0
    begin = payload["at"] + np.int64(block.header.at)
    start = np.where(elsewhere, payload["payload"], begin)[of]
    starts, ends = start + bounds[bound], start + bounds[bound + 1]
    alone = (elsewhere & (payload["flags"] & layout.COLUMNS != 0))[of]
    if alone.any():
        sizes = ends[alone] - starts[alone]
        starts[alone] = _own_column(bounds, payload, of[alone], message[alone], 2)
        ends[alone] = starts[alone] + sizes
    leased = ranges["kind"] == LEASED
    times = ranges["other"] & 0xFFFF_FFFF
    handed_out = np.where(leased, ranges["flags"], np.where(ranges["kind"] == LIVE, times, 0))
    said = letters.read_table(block, ranges)
    places = _Places(
        sequence=ranges["first"][of] + step,
        lease=np.where(leased[of], ranges["other"][of] + step, -1),
        fence=np.full(len(of), fence),
        message_id=message_id,
        arrived_ms=arrived_ms,
        redelivered=(handed_out > 0)[of],
        route=route,
        format=payload["reason"].astype(np.int64)[of],
        starts=starts,
        ends=ends,
        known=np.zeros(len(of), np.int64) if said is None else said[1][of],
    )
    end = block.header.at + block.header.length
    if len(of) and not (
        ((payload["at"] > 0) | elsewhere).all()
        and (places.starts <= places.ends).all()
        and (elsewhere[of] | (places.ends <= end)).all()
        and int(places.route.min()) >= 0
        and int(places.route.max()) < block.header.routes
    ):
        raise layout.LayoutError(f"a message lies outside its block of {block.header.length}")
    return places, None if said is None else said[0]


def _find_ranges(block: Block) -> tuple[Any, Any]:
    """The rows of a block that are ranges of messages with bytes, and for each the row of the
    payload that it means. Raises LayoutError for a range that is not within one."""
    rows = block.rows
    payloads = rows[rows["kind"] == PAYLOAD]
    ranges = rows[np.isin(rows["kind"], (LEASED, ENTERED, LIVE)) & (rows["payload"] >= 0)]
    order = np.argsort(payloads["payload"], kind="stable")
    found = np.searchsorted(payloads["payload"], ranges["payload"], sorter=order)
    known = found < len(payloads)
    meant = order[np.where(known, found, 0)] if len(payloads) else np.zeros(len(ranges), np.int64)
    if len(ranges) and not (len(payloads) and known.all()):
        raise layout.LayoutError("a row means a payload that is not in its block")
    payload = payloads[meant]
    if not (payload["payload"] == ranges["payload"]).all():
        raise layout.LayoutError("a row means a payload that is not in its block")
    ends = ranges["lo"].astype(np.int64) + ranges["count"]
    if ((ranges["count"] > 0) & (ends > payload["count"])).any():
        raise layout.LayoutError("a row means more messages than its payload has")
    return ranges, payload


def _check_bounds(block: Block, at: Ints) -> None:
    if len(at) and not 0 <= int(at.min()) <= int(at.max()) < len(block.bounds):
        raise layout.LayoutError(f"a payload's bounds lie outside the block's {len(block.bounds)}")


def _by_columns(bounds: Ints, payloads: Any, of: Ints, message: Ints) -> tuple[Ints, Ints]:
    """Message ids and arrivals: one after the other and all together, but where messages arrived
    one by one and the payload has columns of its own. of: each message's row in `payloads`."""
    ids, arrivals = payloads["first"][of] + message, payloads["time"].astype(np.int64)[of]
    own = (payloads["flags"] & layout.COLUMNS != 0)[of]
    if own.any():
        ids[own] = _own_column(bounds, payloads, of[own], message[own], 0)
        arrivals[own] = _own_column(bounds, payloads, of[own], message[own], 1)
    return ids, arrivals


def _own_column(bounds: Ints, payloads: Any, of: Ints, message: Ints, number: int) -> Ints:
    """Return the column `number` of payloads with columns of their own, for each message: ids,
    arrivals, positions."""
    count = payloads["count"].astype(np.int64)
    routes = np.where(payloads["flags"] & layout.ROUTE_COLUMN != 0, count, 0)
    begin = payloads["lo"].astype(np.int64) + count + 1 + routes + 2 * number * count
    at = begin[of] + 2 * message
    if int(at.max()) + 1 >= len(bounds):
        raise layout.LayoutError(f"columns of a payload lie outside the {len(bounds)} bounds")
    found: Ints = bounds[at] | bounds[at + 1] << 32
    return found


def _columns(
    block: Block,
    raw: pa.Buffer,
    places: _Places,
    table: letters.Table | None,
    queue: str,
    wanted: frozenset[str],
) -> dict[str, pa.Array]:
    rows = len(places.sequence)
    if not places.known.any():
        table = None
    columns = _content(raw, places, wanted)
    make: dict[str, Any] = {
        "queue": lambda: pa.repeat(pa.scalar(queue), rows),
        "sequence": lambda: pa.array(places.sequence),
        "offset": lambda: pa.array(places.sequence - 1),
        "lease_sequence": lambda: _of_leased(places.lease, places),
        "lease_fence": lambda: _of_leased(places.fence, places),
        "broker_message_id": lambda: pa.array(places.message_id),
        "timestamp": lambda: pa.array(places.arrived_ms * 1000, schema.BY_NAME["timestamp"].arrow),
        "exchange": lambda: gather.text(block.routes().take(pa.array(2 * places.route))),
        "routing_key": lambda: gather.text(block.routes().take(pa.array(2 * places.route + 1))),
        "redelivered": lambda: pa.array(places.redelivered),
    }
    columns.update((name, make[name]()) for name in make.keys() & wanted)
    for name in wanted.intersection(letters.COLUMNS):
        if table is None:
            columns[name] = letters.nothing(name, rows)
        else:
            columns[name] = table.take(name, places.known)
    if table is not None:
        table.replace(columns, places.known)
    return columns


def _of_leased(numbers: Ints, places: _Places) -> pa.Array:
    """Return numbers of leased messages; of others there are none."""
    is_leased = places.lease >= 0
    return pa.array(numbers) if is_leased.all() else pa.array(numbers, mask=~is_leased)


def _content(whole: pa.Buffer, places: _Places, wanted: frozenset[str]) -> dict[str, pa.Array]:
    """Return the columns read from inside the messages: properties, body, malformed."""
    # Cells are read in the order they lie in. They lie in the order they are read, unless messages
    # came back to their queue behind others.
    starts, ends = places.starts, places.ends
    order = None
    if (starts[1:] < ends[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    base = int(starts[0])
    raw = whole.slice(base, int(ends.max()) - base)
    formats = places.format if order is None else places.format[order]
    columns = _by_format(raw, starts - base, ends - base, formats, wanted)
    if order is not None:
        back = pa.array(np.argsort(order, kind="stable"))
        columns = {name: column.take(back) for name, column in columns.items()}
    return columns


def _by_format(
    raw: pa.Buffer, starts: Ints, ends: Ints, formats: Ints, wanted: frozenset[str]
) -> dict[str, pa.Array]:
    """The cells of each wire format by its own reader, in the order they came in."""
    if (formats == formats[0]).all():
        return _of_format(int(formats[0]), raw, starts, ends, wanted)
    found = np.unique(formats).tolist()
    which = [np.flatnonzero(formats == one) for one in found]
    parts = [
        _of_format(one, raw, starts[at], ends[at], wanted)
        for one, at in zip(found, which, strict=True)
    ]
    back = pa.array(np.argsort(np.concatenate(which), kind="stable"))
    return {name: pa.concat_arrays([part[name] for part in parts]).take(back) for name in parts[0]}


def _of_format(
    format: int, raw: pa.Buffer, starts: Ints, ends: Ints, wanted: frozenset[str]
) -> dict[str, pa.Array]:
    if format == AMQP091:
        return decode_cells(raw, starts, ends, wanted)
    if format == AMQP10:
        return decode_amqp10_cells(raw, starts, ends, wanted)
    columns = decode_nsq_cells(raw, starts, ends, wanted)
    if format != NSQ:
        # A format unknown to this version of the connector: marked malformed, not guessed.
        columns = {name: pa.nulls(len(starts), column.type) for name, column in columns.items()}
        columns["malformed"] = pa.array(np.ones(len(starts), np.bool_))
    return columns
