"""Options that say how bodies are read, of the source and of `from_message`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

JSON, CSV, MSGPACK, AVRO, PROTOBUF, AUTO = "json", "csv", "msgpack", "avro", "protobuf", "auto"
FORMATS: Final = (JSON, CSV, MSGPACK, AVRO, PROTOBUF)
COLUMN, REJECT, FAIL = "column", "reject", "fail"
DATA: Final = "data"
CORRUPT: Final = "_corrupt"
OF_FORMATS: Final = {
    "format": "of bodies: json, csv, msgpack, avro, protobuf, or auto, by each content type",
    "schema": "of bodies: columns in Spark's DDL, its JSON, or @file; avro and protobuf have one",
    "avroSchema": "schema of the table in Avro's JSON, or @file",
    "schemaRegistry": "http://... of a schema registry, or file:///folder with <number>.avsc",
    "descriptorFile": "of protobuf: descriptor set, on every machine",
    "messageName": "of protobuf: full name of the message",
    "delimiter": "of csv (,)",
    "badBodies": "column: data is null, _corrupt says why; reject: at the broker; fail (column)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatOptions:
    """Format of bodies, and what becomes of those that are not in it."""

    format: str
    schema: str = ""
    avro_schema: str = ""
    registry: str = ""
    descriptor_file: str = ""
    message_name: str = ""
    delimiter: str = ","
    bad: str = COLUMN

    @staticmethod
    def parse(options: Mapping[str, str]) -> FormatOptions | None:
        """Parse the options; None: bodies stay as they are. Raises ValueError."""
        given = [name for name in OF_FORMATS if name in options]
        if not given:
            return None
        has_avro, has_protobuf = "avroSchema" in options, "descriptorFile" in options
        default = AVRO if has_avro else PROTOBUF if has_protobuf else JSON
        format = options.get("format", default)
        if format not in (*FORMATS, AUTO):
            raise ValueError(f"option format={format!r}: expected {', '.join(FORMATS)} or {AUTO}")
        bad = options.get("badBodies", COLUMN)
        if bad not in (COLUMN, REJECT, FAIL):
            raise ValueError(f"option badBodies={bad!r}: expected {COLUMN}, {REJECT} or {FAIL}")
        made = FormatOptions(
            format=format,
            schema=_text_of("schema", options.get("schema", "")),
            avro_schema=_text_of("avroSchema", options.get("avroSchema", "")),
            registry=options.get("schemaRegistry", ""),
            descriptor_file=options.get("descriptorFile", ""),
            message_name=options.get("messageName", ""),
            delimiter=options.get("delimiter", ","),
            bad=bad,
        )
        made._check()
        return made

    def _check(self) -> None:
        if self.format == AVRO and not self.avro_schema:
            raise ValueError('option "avroSchema" is missing: the schema of the table')
        if self.format == PROTOBUF and not (self.descriptor_file and self.message_name):
            raise ValueError('options "descriptorFile" and "messageName" say what protobuf is')
        if self.format not in (AVRO, PROTOBUF) and not self.schema:
            raise ValueError(f'option "schema" is missing: the columns of bodies in {self.format}')
        if len(self.delimiter) != 1:
            raise ValueError(f"option delimiter={self.delimiter!r}: expected one character")


def _text_of(option: str, given: str) -> str:
    """The contents of `@file`, and any other text unchanged. Raises ValueError."""
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"option {option}={given!r} cannot be read: {error}") from None
