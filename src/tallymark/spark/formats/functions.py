"""Bodies as data on any DataFrame: `from_message`, beside Spark's own from_json and from_csv."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tallymark.spark.formats.format_options import AUTO, CORRUPT, DATA, OF_FORMATS, FormatOptions
from tallymark.spark.formats.readers import ddl_of, reader_by_json

if TYPE_CHECKING:
    from pyspark.sql import Column


def from_message(
    body: Column | str, content_type: Column | str | None = None, **options: str
) -> Column:
    """Return bodies as a struct of `data` and `_corrupt`: the values, or why there are none.

        rows.select("*", from_message("body", schema="id bigint, note string").alias("read"))
            .select("queue", "read.data.id", "read._corrupt")

    content_type: with it, each message is read as its content type says (`format="auto"`).
    options: `format`, `schema`, `avroSchema`, ... as of the source.
    Raises ValueError, NotInstalled.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.types import StructType

    if unknown := options.keys() - (OF_FORMATS.keys() - {"badBodies"}):
        raise ValueError(f"from_message has no option {sorted(unknown)[0]!r}")
    if content_type is not None:
        options = {"format": AUTO, **options}
    bodies = FormatOptions.parse({"format": "json", **options})
    assert bodies is not None
    ddl = f"`{DATA}` {ddl_of(bodies)}, `{CORRUPT}` string"
    parsed = StructType.fromDDL(ddl)
    assert isinstance(parsed, StructType)
    type_json = parsed[DATA].dataType.json()

    def read(given: pa.Array, types: pa.Array) -> pa.Array:
        return _decoded(bodies, type_json, given, types)

    types = f.lit(None).cast("string") if content_type is None else content_type
    made: Column = arrow_udf(read, parsed)(body, types)  # type: ignore[call-overload]
    return made


def _decoded(bodies: FormatOptions, type_json: str, given: pa.Array, types: pa.Array) -> pa.Array:
    reader, _ = reader_by_json(bodies, type_json)
    if pa.types.is_string(given.type):
        given = given.cast(pa.binary())
    found = reader.decode(given, types)
    return pa.StructArray.from_arrays([found.data, found.corrupt], names=[DATA, CORRUPT])
