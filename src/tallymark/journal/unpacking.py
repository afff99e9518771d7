"""Unpacking: blocks of the journal read back into records. Their layout is drawn in
stored/layout.py."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from struct import error as StructError
from typing import final

from tallymark.engine.message import PACKED, Pack, Payload
from tallymark.engine.record import Record
from tallymark.stored.annotations import Route
from tallymark.stored.layout import (
    CHECKED,
    COLUMNS,
    ELSEWHERE,
    HEADER,
    IS_LITTLE,
    NUMBER,
    PERSISTENT,
    RELOCATED,
    ROUTE_COLUMN,
    ROW_STRUCT,
    STRIPPED,
    Header,
    LayoutError,
    header_at,
    is_whole,
)
from tallymark.stored.records import MOVED, PAYLOAD
from tallymark.units import EngineMs, MessageId, Position


@final
class Unpacker:
    """Turns blocks back into records. Caches the last route table, since neighbours mostly have the
    same."""

    __slots__ = ("_older", "_routes", "_table", "moved", "packed", "payloads", "with_raw")

    def __init__(
        self,
        payloads: dict[int, Payload],
        with_raw: bool,
        older: Callable[[int], Payload | None] | None = None,
    ) -> None:
        self.payloads = payloads
        """Payloads by position. Rows find theirs here, and PAYLOAD rows add to it."""
        self.with_raw = with_raw
        self._older = older
        """Function that returns a payload missing here, by its position."""
        self.packed: list[Payload] = []
        """Payloads in which each message has a position of its own."""
        self.moved: dict[int, int] = {}
        """New positions of moved messages, by old positions: see `apply_moves`."""
        self._table = b""
        self._routes: list[Route] = []

    def records(self, data: bytes, header: Header) -> list[Record]:
        """Return the records of a sound block, in order.

        A PAYLOAD record's payload is new, with `raw` (when asked for, and there) or its position.
        A row whose payload is not known has none. Relocations are applied, not returned: the
        payload that moved keeps its identity and gets its new position. Rows that share a blob
        in the block have the same bytes object.

        Raises LayoutError when a row points outside the block (its checksum being right).
        """
        start = header.at
        found: list[Record] = []
        payloads = self.payloads
        blobs: dict[int, bytes] = {}
        rows = memoryview(data)[start + HEADER : start + header.bounds_at]
        for (
            kind, flags, reason, _, queue, first, time_ms, count, lo, owner, other, position, at,
            size,
        ) in ROW_STRUCT.iter_unpack(rows):  # fmt: skip
            if kind == PAYLOAD:
                payload = self._payload(
                    data, header, flags, reason, first, time_ms, count, lo, owner, other, at, size
                )
                if flags & CHECKED and payload.pack is None:
                    payload.sum = queue
                payload.position = Position(position if payload.pack is None else PACKED)
                payloads[position] = payload
                if flags & RELOCATED:
                    continue
                found.append(Record(PAYLOAD, 0, first, count, time_ms, payload))
            elif kind == MOVED:
                self._moved(position, other)
            else:
                blob = b""
                if size:
                    if at + size > header.raw_at:
                        raise LayoutError(f"blob ends at {at + size}, text ends at {header.raw_at}")
                    place = at << 32 | size
                    blob = blobs.get(place, b"")
                    if not blob:
                        blob = blobs[place] = data[start + at : start + at + size]
                meant: Payload | None = None
                if position >= 0:
                    meant = payloads.get(position)
                    if meant is None and self._older is not None:
                        meant = self._older(position)
                record = Record(
                    kind, queue, first, count, time_ms, meant, lo, owner, other, reason, flags,
                    blob,
                )  # fmt: skip
                found.append(record)
        return found

    def _moved(self, position: int, old: int) -> None:
        self.moved[old] = position
        payload = self.payloads.get(old)
        if payload is not None and payload.pack is None:
            del self.payloads[old]
            payload.position = Position(position)
            self.payloads[position] = payload

    def apply_moves(self) -> None:
        """Apply the moves to packed messages, after all blocks were read."""
        moved = self.moved
        segments = {old >> 32 for old in moved}
        for payload in self.packed:
            pack = payload.pack
            assert pack is not None
            if moved:
                positions = pack.positions
                for i in range(payload.count):
                    at = positions[i]
                    while at >> 32 in segments and at in moved:
                        at = moved[at]
                    positions[i] = at
        moved.clear()
        self.packed.clear()

    def _payload(
        self, data: bytes, header: Header, flags: int, format: int, first: int, time_ms: int,
        count: int, bound: int, owner: int, size: int, at: int, largest_frame: int,
    ) -> Payload:  # fmt: skip
        cuts = self._numbers(data, header, bound, count + 1)
        if cuts[count] != size:
            raise LayoutError(f"payload of {size} bytes, its bounds end at {cuts[count]}")
        routes = self._route_table(data, header)
        own: list[Route] | None = None
        try:
            if flags & ROUTE_COLUMN:
                own = [routes[n] for n in self._numbers(data, header, owner, count)]
                route = own[0] if own else Route("", "")
            else:
                route = routes[owner]
        except IndexError:
            raise LayoutError(f"route number beyond the block's {header.routes} routes") from None
        raw: bytes | None = None
        if self.with_raw and at and not header.flags & STRIPPED:
            if at + size > header.length:
                raise LayoutError(f"raw ends at {at + size}, the block at {header.length}")
            raw = data[header.at + at : header.at + at + size]
        found = Payload(
            format,
            raw,
            cuts,
            route,
            own,
            MessageId(first),
            EngineMs(time_ms),
            flags & PERSISTENT != 0,
            largest_frame,
        )
        if flags & COLUMNS and flags & ELSEWHERE:
            at = bound + count + 1 + (count if own is not None else 0)
            ids = self._column(data, header, at, count)
            arrivals = self._column(data, header, at + 2 * count, count)
            positions = self._column(data, header, at + 4 * count, count)
            found.pack = Pack(positions, ids, arrivals, [])
            if flags & CHECKED:
                found.pack.sums = self._numbers(data, header, at + 6 * count, count)
            self.packed.append(found)
        return found

    def _column(self, data: bytes, header: Header, index: int, count: int) -> array[int]:
        """Read numbers of 64 bits, each in two entries of the bounds column."""
        if index < 0 or index + 2 * count > header.bounds:
            raise LayoutError(f"bounds {index} to {index + 2 * count} of {header.bounds}")
        start = header.at + header.bounds_at + 4 * index
        numbers = array("Q")
        numbers.frombytes(data[start : start + 8 * count])
        if not IS_LITTLE:
            numbers.byteswap()
        return numbers

    def _numbers(self, data: bytes, header: Header, index: int, count: int) -> array[int]:
        if index < 0 or index + count > header.bounds:
            raise LayoutError(f"bounds {index} to {index + count} of {header.bounds}")
        start = header.at + header.bounds_at + 4 * index
        return _decoded_array(data[start : start + 4 * count])

    def _route_table(self, data: bytes, header: Header) -> list[Route]:
        if not header.routes:
            return []
        ends_at = header.at + header.routes_at
        text_at = header.at + header.text_at
        text_end = text_at + NUMBER.unpack_from(data, text_at - 4)[0]
        table = data[ends_at:text_end]
        if table != self._table:
            if text_end > header.at + header.raw_at:
                raise LayoutError("routes end beyond the text of the block")
            ends = _decoded_array(data[ends_at:text_at])
            for i in range(2 * header.routes):
                if ends[i] > ends[i + 1]:  # compiled, a slice that ends before it begins raises
                    raise LayoutError(f"route text {i} ends before it begins")
            cells = [
                data[text_at + ends[i] : text_at + ends[i + 1]].decode("utf-8", "surrogateescape")
                for i in range(2 * header.routes)
            ]
            self._routes = [Route(cells[i], cells[i + 1]) for i in range(0, len(cells), 2)]
            self._table = table
        return self._routes


def _decoded_array(data: bytes) -> array[int]:
    numbers = array("I")
    numbers.frombytes(data)
    if not IS_LITTLE:
        numbers.byteswap()
    return numbers


def rows_in(rows: bytes) -> list[tuple[int, ...]]:
    """Return the fields of each row of a rows column, in the order of ROW_DTYPE."""
    return list(ROW_STRUCT.iter_unpack(rows))


def unpack(block: bytes) -> list[Record]:
    """Return the records of one or more blocks end to end; payloads have their bytes.

    Raises LayoutError for anything else, whatever the bytes.
    """
    found: list[Record] = []
    at = 0
    while at < len(block):
        header = header_at(block, at)
        if header is None or not is_whole(block, header):
            raise LayoutError(f"no sound block at byte {at} of {len(block)}")
        try:
            found += Unpacker({}, True).records(block, header)
        except StructError as error:
            raise LayoutError(str(error)) from error
        at += header.length
    return found
