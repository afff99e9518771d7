"""Ids of the messages at fault: the broker's, which are the same in every queue.

Looked for only where there are faults, in the rows with which their messages entered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tallymark.spark.sweep import Array
from tallymark.stored import records


@dataclass(slots=True)
class Piece:
    """Sequences low to high - 1 of a queue, at fault in the same way, whose ids follow each
    other."""

    queue: int
    low: int
    high: int
    fault: int
    message_id: int | None = None
    """Id of the first of them, where the ledger has it."""


class Entrances(Protocol):
    """Rows of the ledger as layout.ROW_DTYPE has them."""

    def entered(self, queues: list[int]) -> NDArray[Any]:
        """Return the rows with which messages entered these queues."""

    def first_ids(self, positions: list[int]) -> dict[int, int]:
        """Return the first id of the messages at each position, where the ledger has it."""


class Rows:
    """Entrances in arrays, one a file, which are made anew for each question."""

    def __init__(self, files: Iterable[NDArray[Any]]) -> None:
        """files: can be gone through several times."""
        self._files = files

    def entered(self, queues: list[int]) -> NDArray[Any]:
        found = [
            rows[(rows["kind"] == records.ENTERED) & np.isin(rows["queue"], queues)]
            for rows in self._files
        ]
        return np.concatenate(found)

    def first_ids(self, positions: list[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        for rows in self._files:
            of = rows[(rows["kind"] == records.PAYLOAD) & np.isin(rows["payload"], positions)]
            found.update(zip(of["payload"].tolist(), of["first"].tolist(), strict=True))
        return found


def with_ids(faults: Array, ledger: Entrances) -> list[Piece]:
    """Return the faults (sweep.FAULT), each cut where the ids of its messages do not go on."""
    if not len(faults):
        return []
    entered = ledger.entered(np.unique(faults["queue"]).tolist())
    entered = entered[np.argsort(entered["first"], kind="stable")]
    of_queue = {int(id): entered[entered["queue"] == id] for id in np.unique(faults["queue"])}
    cut = [_cut(fault, of_queue[int(fault["queue"])]) for fault in faults]
    positions = {int(row["payload"]) for pieces in cut for _, row in pieces if row is not None}
    firsts = ledger.first_ids(sorted(positions))
    out: list[Piece] = []
    for pieces in cut:
        last: Piece | None = None
        for piece, row in pieces:
            piece.message_id = _id(piece, row, firsts)
            if last is not None and _goes_on(last, piece):
                last.high = piece.high
            else:
                out.append(piece)
                last = piece
    return out


def _cut(fault: Any, entered: NDArray[Any]) -> list[tuple[Piece, Any]]:
    """Return pieces of a fault, each with the row with which its messages entered; None: there is
    no such row."""
    queue, low, high = (int(fault[name]) for name in ("queue", "low", "high"))
    number = int(fault["fault"])
    ends = entered["first"] + entered["count"]
    out = []
    for row in entered[(entered["first"] < high) & (ends > low)]:
        begin, end = max(low, int(row["first"])), min(high, int(row["first"] + row["count"]))
        if begin > low:
            out.append((Piece(queue, low, begin, number), None))
        if end > max(low, begin):
            out.append((Piece(queue, max(low, begin), end, number), row))
            low = end
    if low < high:
        out.append((Piece(queue, low, high, number), None))
    return out


def _id(piece: Piece, row: Any, firsts: Mapping[int, int]) -> int | None:
    if row is None or int(row["payload"]) not in firsts:
        return None
    return firsts[int(row["payload"])] + int(row["lo"]) + piece.low - int(row["first"])


def _goes_on(last: Piece, piece: Piece) -> bool:
    if last.message_id is None or piece.message_id is None:
        return last.message_id is piece.message_id
    return last.message_id + last.high - last.low == piece.message_id
