"""Batches of the source with their bodies as the column `data`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tallymark.spark.formats.format_options import COLUMN, CORRUPT, DATA, FAIL, FormatOptions
from tallymark.spark.formats.readers import reader_by_json


class BadBody(ValueError):
    """A body is corrupt, and that is to fail the query."""


class Shaped(NamedTuple):
    """A batch, and which of its rows are to be rejected and are left out."""

    batch: pa.RecordBatch
    rejected: list[int]


Shape = Callable[[pa.RecordBatch], Shaped]


def shape_of(bodies: FormatOptions | None, type_json: str, columns: Sequence[str]) -> Shape:
    """Return the function that makes the columns asked for from those that were read. type_json:
    type of the bodies, in Spark's JSON."""
    if bodies is None:
        return lambda batch: Shaped(batch, [])
    reader, type = reader_by_json(bodies, type_json)
    field = pa.field(DATA, type)

    def shape(batch: pa.RecordBatch) -> Shaped:
        types = batch.column("content_type") if "content_type" in batch.schema.names else None
        found = reader.decode(batch.column("body"), types)
        is_bad = pc.is_valid(found.corrupt)
        rejected: list[int] = []
        if bodies.bad != COLUMN and pc.any(is_bad).as_py():
            rejected = pc.indices_nonzero(is_bad).to_pylist()
            if bodies.bad == FAIL:
                raise BadBody(_told(batch, rejected[0], found.corrupt[rejected[0]].as_py()))
        arrays = [batch.column(name) for name in columns] + [found.data]
        fields = [batch.schema.field(name) for name in columns] + [field]
        if bodies.bad == COLUMN:
            arrays.append(found.corrupt)
            fields.append(pa.field(CORRUPT, pa.string()))
        made = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
        return Shaped(made.filter(pc.invert(is_bad)) if rejected else made, rejected)

    return shape


def _told(batch: pa.RecordBatch, row: int, reason: str) -> str:
    ours = [name for name in ("queue", "sequence", "offset") if name in batch.schema.names]
    where = ", ".join(f"{name} {batch.column(name)[row].as_py()}" for name in ours)
    return f"{where or 'a message'}: {reason}; badBodies=column keeps it, reject refuses it"
