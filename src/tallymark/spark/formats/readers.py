"""Readers of bodies, and the types that they make, by the options."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tallymark.spark.formats.format_options import (
    AUTO,
    AVRO,
    CSV,
    JSON,
    MSGPACK,
    PROTOBUF,
    FormatOptions,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

    from tallymark.spark.formats.decoding import BodyReader, Read


def ddl_of(options: FormatOptions) -> str:
    """Return the type of bodies in Spark's words. Raises ValueError, NotInstalled."""
    if options.schema:
        if not options.schema.lstrip().startswith("{"):
            return f"struct<{options.schema}>"
        from pyspark.sql.types import StructType

        try:
            return _ddl(StructType.fromJson(json.loads(options.schema)))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"option schema: {error}: expected a schema of Spark's") from None
    if options.format == AVRO:
        from tallymark.spark.formats import avro

        return avro.ddl_of(avro.parsed(options.avro_schema))
    from tallymark.spark.formats import protobuf

    return protobuf.ddl_of(protobuf.message_of(options.descriptor_file, options.message_name))


def _ddl(type: DataType) -> str:
    """Return a type in Spark's words. Its own, simpleString, has names without quotes."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(type, StructType):
        fields = [f"`{one.name.replace('`', '``')}`:{_ddl(one.dataType)}" for one in type.fields]
        return f"struct<{','.join(fields)}>"
    if isinstance(type, ArrayType):
        return f"array<{_ddl(type.elementType)}>"
    if isinstance(type, MapType):
        return f"map<{_ddl(type.keyType)},{_ddl(type.valueType)}>"
    return type.simpleString()


def reader_of(options: FormatOptions, type: pa.StructType) -> BodyReader:
    """Return what reads bodies as this type. Raises ValueError, NotInstalled."""
    from tallymark.spark.formats.decoding import BodyReader

    wanted = [options.format] if options.format != AUTO else _possible(options)
    return BodyReader(type, {one: _read(options, one, type) for one in wanted}, options.format)


@lru_cache(maxsize=16)
def reader_by_json(options: FormatOptions, type_json: str) -> tuple[BodyReader, pa.DataType]:
    """Return the reader for a type in Spark's JSON, and that type as Spark has it in Arrow."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    field = {"name": "data", "type": json.loads(type_json), "nullable": True, "metadata": {}}
    whole: dict[str, Any] = {"type": "struct", "fields": [field]}
    type = to_arrow_schema(StructType.fromJson(whole), timezone="UTC").field(0).type
    return reader_of(options, type), type


def _possible(options: FormatOptions) -> list[str]:
    """Return the formats for which enough is said."""
    some = [JSON, CSV, MSGPACK]
    if options.avro_schema:
        some.append(AVRO)
    if options.descriptor_file:
        some.append(PROTOBUF)
    return some


def _read(options: FormatOptions, format: str, type: pa.StructType) -> Read:
    from tallymark.spark.formats import avro, decoding, protobuf

    if format == AVRO:
        return avro.read_avro(options.avro_schema, options.registry)
    if format == PROTOBUF:
        message = protobuf.message_of(options.descriptor_file, options.message_name)
        return protobuf.read_protobuf(message)
    if format == CSV:
        return decoding.read_csv([field.name for field in type], options.delimiter)
    return decoding.read_msgpack() if format == MSGPACK else decoding.read_json(type)
