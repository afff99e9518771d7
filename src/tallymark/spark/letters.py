"""Annotations of messages, which the broker stores beside their bytes, as columns: above all, how
they died.

A row of a block carries it as a blob, which all messages of the row share and mostly those of other
rows too. So each distinct blob is read once, and a message's column is a take of what was read.
Blocks without such blobs, which is the ordinary case, cost nothing here.

What a consumer sees of a dead letter is what a reader here sees: exchange and routing key are those
it was dead-lettered with, and its expiration is gone [DL-10, DL-11]. `headers` stay the publisher's
own; the history, an AMQP 0-9-1 consumer's x-death header, is the column `deaths`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallymark.spark.blocks import Block
from tallymark.spark.gather import Ints
from tallymark.spark.schema import BY_NAME
from tallymark.stored.annotations import Annotations, Death
from tallymark.stored.layout import LayoutError

NOTHING: Final = 0
"""Index of messages without annotations."""
COLUMNS: Final = ("deaths", "first_death", "last_death")
"""Null for a message that is no dead letter."""
REPLACED: Final = ("exchange", "routing_key", "expiration")


@dataclass(frozen=True, slots=True)
class Table:
    """The distinct blobs of a block, as read; index 0 is NOTHING."""

    known: list[Annotations | None]
    """Annotations by index; None where there are none or, beyond index 0, where they could not be
    read."""

    def take(self, name: str, index: Ints) -> pa.Array:
        """Return one of COLUMNS for the messages with these indices."""
        values = [_VALUES[name](known) for known in self.known]
        return pa.array(values, BY_NAME[name].arrow).take(pa.array(index))

    def replace(self, columns: dict[str, pa.Array], index: Ints) -> None:
        """Correct those of the columns REPLACED that are present, and mark unreadable
        annotations."""
        unreadable = [i > 0 and known is None for i, known in enumerate(self.known)]
        for name in REPLACED:
            if name in columns:
                columns[name] = self._replaced(name, columns[name], index)
        if any(unreadable):
            torn = pa.array(np.array(unreadable)[index])
            columns["malformed"] = pc.or_(columns["malformed"].fill_null(True), torn)

    def _replaced(self, name: str, column: pa.Array, index: Ints) -> pa.Array:
        """Return the column with the annotations' values in place of the message's own; null for
        none."""
        values: list[str | None] = [None] * len(self.known)
        changed = [i > 0 for i in range(len(self.known))]
        for i, known in enumerate(self.known):
            if known is None:
                continue
            if name == "expiration":
                changed[i] = bool(known.deaths)
            elif known.route is None:
                changed[i] = False
            else:
                route = known.route
                values[i] = _text(route.exchange if name == "exchange" else route.key)
        if not any(changed):
            return column
        others = pa.array(values, pa.string()).take(pa.array(index))
        return pc.if_else(pa.array(np.array(changed)[index]), others, column)


def read_table(block: Block, rows: Any) -> tuple[Table, Ints] | None:
    """Return the annotations of these rows' messages: a table, and its index for each row. None
    where no message has any.

    Raises LayoutError when a row points outside the text of its block.
    """
    size = rows["size"].astype(np.int64)
    if not size.any():
        return None
    at = rows["at"].astype(np.int64)
    if int((at + size)[size > 0].max()) > block.header.raw_at:
        raise LayoutError(f"a blob ends beyond the text of its block, at {block.header.raw_at}")
    places = np.where(size > 0, at << 32 | size, 0)
    distinct, index = np.unique(places, return_inverse=True)
    if distinct[0] == 0:
        distinct = distinct[1:]
    else:
        index = index + 1
    known: list[Annotations | None] = [None]
    for place in distinct.tolist():
        start = block.header.at + (place >> 32)
        known.append(_read(block.data[start : start + (place & 0xFFFF_FFFF)]))
    return Table(known), index.astype(np.int64)


def nothing(name: str, rows: int) -> pa.Array:
    """Return one of COLUMNS for messages without annotations."""
    return pa.nulls(rows, BY_NAME[name].arrow)


def _read(blob: bytes) -> Annotations | None:
    try:
        return Annotations.from_bytes(blob)
    except ValueError:
        return None  # a later version's form: marked `malformed`, never guessed [DL-20]


def _deaths(known: Annotations | None) -> list[dict[str, Any]] | None:
    if known is None or not known.deaths:
        return None
    return [_death(death) for death in known.deaths]


def _death(death: Death) -> dict[str, Any]:
    return {
        "queue": _text(death.queue),
        "reason": death.reason,
        "count": death.count,
        "exchange": _text(death.exchange),
        "routing_keys": [_text(key) for key in death.keys],
        "first_time": death.first_ms * 1000,
        "last_time": death.last_ms * 1000,
        "original_expiration": str(death.ttl_ms) if death.ttl_ms >= 0 else None,
    }


def _first(known: Annotations | None) -> dict[str, str] | None:
    return None if known is None else _place(known.first_death)


def _last(known: Annotations | None) -> dict[str, str] | None:
    return None if known is None else _place(known.last_death)


def _place(place: tuple[str, str, str] | None) -> dict[str, str] | None:
    if place is None:
        return None
    reason, queue, exchange = place
    return {"reason": reason, "queue": _text(queue), "exchange": _text(exchange)}


def _text(text: str) -> str:
    """Names that are not UTF-8 show U+FFFD, as everywhere in the source."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


_VALUES: Final = {"deaths": _deaths, "first_death": _first, "last_death": _last}
