"""Bodies as columns: JSON read by a schema that is given, or found in the first messages.

A body that cannot be read so is no reason to stop: its row is *bad*, with why. Where the schema is
found, it is the one of the first batch, kept beside the table: a table has one schema, whatever
comes later. And a batch has one schema, however often it is done: what was bad in the first
attempt, of which some may be in the tables, is bad in the next one, also where another schema is
given then.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

CHECKPOINT: Final = "_checkpoint"
"""Folder under the target: Spark passes over names that begin with an underscore."""
QUARANTINE: Final = "_quarantine"
"""Folder under the table, where no other is named."""
BEGUN: Final = "schema-of-batch.json"
"""File in the query's checkpoint with its last batch and the schema of that batch."""

INFER: Final = "infer"
DATA: Final = "data"
"""Name of the column of parsed bodies."""
REASON: Final = "reason"
"""The column that says why a row is bad; null: it is not."""
FOUND: Final = "_schema.json"
_CORRUPT: Final = "_unreadable"


def below(to: Path | str, name: str) -> str:
    """Return the place of a name in a table's folder. A folder may be an address that Spark knows,
    such as hdfs://host/lake, of which a Path would make another one."""
    return f"{str(to).rstrip('/')}/{name}"


class NoSchema(ValueError):
    """A text that is no schema, or messages in which none can be found."""


class Schema:
    """Schema of the bodies in one table."""

    def __init__(self, text: str, folder: Path) -> None:
        """text: `infer`, Spark's DDL (`id bigint, note string`), or `@file` with either that or
        the JSON of a Spark schema. folder: the table's, where one that is found is kept.

        Raises NoSchema.
        """
        self._file = folder / FOUND
        self._begun = folder / CHECKPOINT / BEGUN
        self._known: StructType | None = None
        self._infers = text.strip() == INFER
        if self._infers:
            if self._file.exists():
                self._known = parsed(self._file.read_text())
        else:
            self._known = parsed(text_of(text))

    def of(self, number: int) -> StructType | None:
        """Return the schema of the batch with this number; None: call `find`."""
        if self._begun.exists():
            begun = json.loads(self._begun.read_text())
            if begun["batch"] == number:
                return parsed(json.dumps(begun["schema"]))
        return self._known

    def begin(self, number: int, schema: StructType) -> None:
        """Record the schema of a batch, before anything of the batch is written."""
        _put(self._begun, json.dumps({"batch": number, "schema": schema.jsonValue()}))

    def find(self, batch: DataFrame) -> StructType:
        """The schema of the table, by its first batch. Raises NoSchema: no body is JSON."""
        from pyspark.sql import functions as f

        bodies = batch.where("body is not null and not malformed")
        texts = bodies.select(f.col("body").cast("string").alias("text"))
        found = batch.sparkSession.read.json(texts.rdd.map(_text), dropFieldIfAllNull=True).schema
        names = [name for name in found.fieldNames() if name != "_corrupt_record"]
        if not names:
            raise NoSchema("no body of the first batch is a JSON object: give a schema")
        from pyspark.sql.types import StructType as Struct

        made = Struct([found[name] for name in names])
        _put(self._file, made.json())
        self._known = made
        return made


def read_by(schema: StructType, batch: DataFrame) -> DataFrame:
    """The batch with DATA and REASON."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    wanted = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    text = f.col("body").cast("string")
    read = batch.withColumn(DATA, f.from_json(text, wanted, options))
    named = [f.col(DATA)[name].alias(name) for name in schema.fieldNames()]
    return read.withColumn(REASON, _reason()).withColumn(
        DATA, f.when(f.col(REASON).isNull(), f.struct(*named))
    )


def text_of(given: str) -> str:
    """Return the contents of the file for `@file`, and any other text unchanged. Raises
    NoSchema."""
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NoSchema(f"schema {given!r} cannot be read: {error}") from None


def parsed(text: str) -> StructType:
    """A schema in Spark's DDL or JSON. Raises NoSchema."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        is_json = text.lstrip().startswith("{")
        found = StructType.fromJson(json.loads(text)) if is_json else StructType.fromDDL(text)
    except (PySparkException, ValueError, KeyError, TypeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise NoSchema(f"schema {text!r}: {reason}") from None
    if not isinstance(found, StructType) or not found.fields:
        raise NoSchema(f"schema {text!r}: expected at least one column")
    return found


def _reason() -> Column:
    from pyspark.sql import functions as f

    data = f.col(DATA)
    return (
        f.when(f.col("malformed"), "the message cannot be read")
        .when(f.col("body").isNull(), "there is no body")
        .when(data.isNull() | data[_CORRUPT].isNotNull(), "the body does not fit the schema")
    )


def _put(file: Path, text: str) -> None:
    """Write a file as a whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_suffix(".new")
    aside.write_text(text)
    aside.replace(file)


def _text(row: tuple[str]) -> str:
    return row[0]
