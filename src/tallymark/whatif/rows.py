"""Rows of the ledger as the journal has them, what they refer to, and the place of a reader."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, Protocol

from tallymark.bridge.amqp091.format import Amqp091Format
from tallymark.bridge.amqp10.format import Amqp10Format
from tallymark.engine.message import Format, Payload
from tallymark.engine.table_values import wire_bytes
from tallymark.spark.blocks import Block
from tallymark.stored import layout
from tallymark.stored.annotations import Route
from tallymark.stored.formats import AMQP091, AMQP10
from tallymark.units import EngineMs, MessageId
from tallymark.wire.amqp091.frames import section_at

Row = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int]
"""A row of the ledger, as layout.ROW_DTYPE names its fields."""
(
    KIND, FLAGS, REASON, _, QUEUE, FIRST, TIME, COUNT, LO, OWNER, OTHER, PAYLOAD, AT, SIZE,
) = range(14)  # fmt: skip
FORMATS: Final[dict[int, Format]] = {AMQP091: Amqp091Format(), AMQP10: Amqp10Format()}
"""Readers of the headers of stored messages, by format; messages of NSQ have none."""
Headers = dict[str, object]


class Told(Protocol):
    """Contents of one block of the ledger."""

    position: int
    synced: int
    """Position below which all was on disk when it was written. A block without its bodies does not
    say it: all before it, as a rule."""
    rows: Sequence[Row]

    def blob(self, row: Row) -> bytes:
        """Return the bytes that a row has beside its numbers."""
        ...

    def sizes(self, row: Row) -> list[int]:
        """Return the bytes of each message of a PAYLOAD row, framing included."""
        ...

    def bodies(self, row: Row) -> list[int] | None:
        """Return the bytes of their bodies; None: those of their frames."""
        ...

    def routes(self, row: Row) -> list[tuple[bytes, bytes]]:
        """Return exchange and key of each of its messages, or the one of all of them."""
        ...

    def headers(self, row: Row, names: frozenset[str]) -> list[Headers] | None:
        """Return those headers of each of its messages that are asked for; None: their bytes are
        not there, or nobody reads the headers of their format."""
        ...


class FromFile:
    """A block of a file of the data folder."""

    def __init__(self, block: Block) -> None:
        header = block.header
        self._block = block
        self._routes: list[bytes] | None = None
        self.position = header.position
        self.synced = header.position if header.flags & layout.STRIPPED else header.known_synced
        self.rows: Sequence[Row] = block.rows.tolist()

    def blob(self, row: Row) -> bytes:
        start = self._block.header.at + row[AT]
        return self._block.data[start : start + row[SIZE]] if row[SIZE] else b""

    def sizes(self, row: Row) -> list[int]:
        return [high - low for low, high in pairwise(self._bounds(row))]

    def bodies(self, row: Row) -> list[int] | None:
        if row[REASON] != AMQP091 or not row[AT]:
            return None
        data, start = self._block.data, self._block.header.at + row[AT]
        found = []
        for low in self._bounds(row)[:-1]:
            at = section_at(data, start + low)
            found.append(int.from_bytes(data[at - 8 : at], "big"))
        return found

    def routes(self, row: Row) -> list[tuple[bytes, bytes]]:
        if self._routes is None:
            self._routes = self._block.routes().to_pylist()
        cells = self._routes
        if row[FLAGS] & layout.ROUTE_COLUMN:
            at = row[OWNER]
            numbers = self._block.bounds[at : at + row[COUNT]].tolist()
        else:
            numbers = [row[OWNER]]
        return [(cells[2 * n], cells[2 * n + 1]) for n in numbers]

    def headers(self, row: Row, names: frozenset[str]) -> list[Headers] | None:
        reader = FORMATS.get(row[REASON])
        if reader is None or not row[AT]:
            return None
        start, bounds = self._block.header.at + row[AT], self._bounds(row)
        raw = bytes(self._block.data[start : start + bounds[-1]])
        if not any(name[0] == "\0" or wire_bytes(name) in raw for name in names):
            return [{}] * row[COUNT]  # the usual case, in which nothing is decoded
        payload = Payload(
            row[REASON], raw, array("I", bounds), Route("", ""), None, MessageId(row[FIRST]),
            EngineMs(row[TIME]), True, 0,
        )  # fmt: skip
        found = []
        for i in range(row[COUNT]):
            said = reader.headers(payload, i)
            found.append({name: said[name] for name in sorted(names & said.keys())})
        return found

    def _bounds(self, row: Row) -> list[int]:
        bounds: list[int] = self._block.bounds[row[LO] : row[LO] + row[COUNT] + 1].tolist()
        return bounds


class Here:
    """The place of a reader in the ledger."""

    def __init__(self) -> None:
        self.block: Told
        self.order = self.block_order = 0
        """Orders of the row and of its block, see recording.Input."""
        self.turn_order = 0
        """Order of the first row of the turn: settlements are heard there, whose rows are the last
        of a turn."""
        self.time_ms = 0
        """The latest time of all rows so far."""
        self.next: Row | None = None
        """The row behind this one in its block."""

    def blob(self, row: Row) -> bytes:
        """Return the bytes that a row of this block has beside its numbers."""
        return self.block.blob(row)


def named_headers(definition: dict[str, Any]) -> set[str]:
    """Return the headers that a definition has messages routed by: those that a binding asks for,
    and the one that an exchange hashes."""
    arguments = definition.get("arguments")
    if not isinstance(arguments, dict):
        return set()
    if definition["op"] == "binding":
        return set(arguments) - {"x-match", ""}
    if definition["op"] == "exchange":
        found = {arguments.get("hash-header")} - {None}
        hashed = arguments.get("hash-property")
        return {str(one) for one in found} | ({"\0" + str(hashed)} if hashed else set())
    return set()
