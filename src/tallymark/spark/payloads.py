"""Messages of the ledger's rows: ids and routes, found by the position of their payload.

A row names the bytes it speaks of by their position in the journal, and the PAYLOAD row of the same
position says which ids those messages have and how they were routed. Here that is looked up among
the rows of one file, all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tallymark.engine import records
from tallymark.journal import layout
from tallymark.spark.blocks import Block

NONE: Final = -1


@final
class Payloads:
    """The payloads of one file."""

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
