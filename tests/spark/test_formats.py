"""Bodies as data: each format, what does not fit, and where it goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import pika
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, LongType, StructField, StructType, TimestampType

from tallymark.spark.formats.avro import NoRegistry
from tallymark.spark.formats.decoding import BodyReader, Decoded
from tallymark.spark.formats.format_options import FormatOptions
from tallymark.spark.formats.readers import ddl_of, reader_by_json, reader_of
from tallymark.spark.formats.shaping import BadBody
from tallymark.spark.source import TallymarkDataSource
from tests.spark.test_several import broker as broker
from tests.support.http_server import HttpServer
from tests.support.long import long
from tests.support.process import BrokerProcess

ROW = pa.struct(
    [
        ("id", pa.int64()),
        ("note", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
    ]
)
SHALLOW = pa.struct([("id", pa.int64()), ("note", pa.string()), ("ok", pa.bool_())])
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def reader(type: pa.StructType, **options: str) -> BodyReader:
    parsed = FormatOptions.parse({"schema": "any bigint", **options})
    assert parsed is not None
    return reader_of(parsed, type)


def values(found: Decoded) -> list[Any]:
    """The rows, and of corrupt ones the reason."""
    return [
        reason if reason is not None else row
        for row, reason in zip(found.data.to_pylist(), found.corrupt.to_pylist(), strict=True)
    ]


def test_json_fits_or_says_why_not() -> None:
    bodies = [
        b'{"id": 1, "note": "a", "price": 1.5, "at": "2026-03-01T12:00:00Z", "tags": ["x", 7]}',
        b'{"more": 1}', b"[1]", b"no JSON", b"\xff", b"", None, b'{"id": "two"}', b'{"id": 1.5}',
        b'{"at": "soon"}', b'{"note": {"deep": 1}}', b'{"id": 99999999999999999999}',
        b'{"price": 123456789012}', b'{"tags": 7}',
    ]  # fmt: skip
    found = reader(ROW).decode(pa.array(bodies, pa.binary()))
    nothing = dict.fromkeys(["id", "note", "price", "at", "tags"])
    said = values(found)
    assert said[0] == {
        "id": 1, "note": "a", "price": Decimal("1.50"), "at": NOON, "tags": ["x", "7"],
    }  # fmt: skip
    assert said[1] == nothing
    assert said[10] == {**nothing, "note": '{"deep": 1}'}
    assert said[6] == "there is no body"
    bad = [at for at, one in enumerate(said) if isinstance(one, str)]
    assert bad == [2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13]
    assert all(found.data[at].as_py() is None for at in bad)
    assert said[2] == "the body does not fit: expected a JSON object"
    assert found.data.type == ROW


def test_a_decimal_keeps_each_digit_of_a_number_in_json() -> None:
    """Also within lists and maps; a float beside it stays one, and so does one in a text."""
    exact = pa.decimal128(20, 2)
    type = pa.struct(
        [
            ("price", exact), ("by", pa.map_(pa.string(), pa.list_(exact))),
            ("rate", pa.float64()), ("note", pa.string()),
        ]
    )  # fmt: skip
    body = (
        b'{"price": 12345678901234567.89, "by": {"a": [98765432109876543.21, 1e3]}, "rate": 0.5, '
        b'"note": [1.50]}'
    )
    (said,) = values(reader(type).decode(pa.array([body])))
    assert said == {
        "price": Decimal("12345678901234567.89"),
        "by": [("a", [Decimal("98765432109876543.21"), Decimal(1000)])],
        "rate": 0.5,
        "note": "[1.5]",
    }


def test_names_in_a_schema_of_spark_are_any() -> None:
    line = ArrayType(StructType([StructField("unit`s", LongType())]))
    rows = StructType([StructField("order-id", LongType()), StructField("the line", line)])
    options = FormatOptions.parse({"schema": rows.json()})
    assert options is not None
    assert ddl_of(options) == "struct<`order-id`:bigint,`the line`:array<struct<`unit``s`:bigint>>>"


def test_a_body_without_what_may_not_be_null_does_not_fit() -> None:
    line = pa.struct([pa.field("n", pa.int64(), nullable=False)])
    type = pa.struct([pa.field("id", pa.int64(), nullable=False), ("line", line)])
    bodies = [b'{"id": 1}', b"{}", b'{"id": null}', b'{"id": 1, "line": {}}']
    said = values(reader(type).decode(pa.array(bodies)))
    assert said[0] == {"id": 1, "line": None}
    assert said[1:3] == ["the body does not fit: id is null, expected a value"] * 2
    assert said[3] == "the body does not fit: n is null, expected a value"


@pytest.mark.parametrize("value", [b"true", b'"1_000"', b'"1_0.5"'])
@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.decimal128(10, 2)])
def test_what_only_python_takes_for_a_number_is_none(kind: pa.DataType, value: bytes) -> None:
    type = pa.struct([("n", kind)])
    said = values(reader(type).decode(pa.array([b'{"n": %s}' % value, b'{"n": " 7 "}'])))
    assert said[0].startswith("the body does not fit: ")
    assert said[1] == {"n": 7}


def test_a_number_is_no_date() -> None:
    """Nor are the digits of one: Arrow takes a number for days since 1970."""
    type = pa.struct([("day", pa.date32())])
    said = values(reader(type).decode(pa.array([b'{"day": 20260301}', b'{"day": "2026-03-01"}'])))
    assert said[0] == "the body does not fit: 20260301, expected a date in ISO 8601"
    assert said[1] == {"day": date(2026, 3, 1)}
    msgpack = pytest.importorskip("msgpack", reason="pip install 'tallymark[formats]'")
    packed = [msgpack.packb({"day": NOON}, datetime=True), msgpack.packb({"day": 7})]
    said = values(reader(type, format="msgpack").decode(pa.array(packed)))
    assert said[0] == {"day": date(2026, 3, 1)}
    assert isinstance(said[1], str)


@pytest.mark.parametrize("tags", [b'"red"', b'{"red": 1}', b"7"])
def test_what_is_no_list_is_not_taken_apart(tags: bytes) -> None:
    (said,) = values(reader(ROW).decode(pa.array([b'{"tags": %s}' % tags])))
    assert said.endswith("expected a list")


def test_csv_is_by_position() -> None:
    bodies = [b'1,"a, b",true', b"2,,", b"3,c", b"x,y,true", b'1,"open,true']
    said = values(reader(SHALLOW, format="csv").decode(pa.array(bodies)))
    assert said[:2] == [
        {"id": 1, "note": "a, b", "ok": True}, {"id": 2, "note": None, "ok": None},
    ]  # fmt: skip
    assert "2 fields, expected 3" in said[2]
    assert all(isinstance(one, str) for one in said[3:])
    tab = values(reader(SHALLOW, format="csv", delimiter="\t").decode(pa.array([b"1\ta,b\t0"])))
    assert tab == [{"id": 1, "note": "a,b", "ok": False}]


def test_msgpack_keeps_its_types() -> None:
    msgpack = pytest.importorskip("msgpack", reason="pip install 'tallymark[formats]'")
    packed = msgpack.packb({"id": 7, "note": "n", "at": NOON, "tags": []}, datetime=True)
    said = values(reader(ROW, format="msgpack").decode(pa.array([packed, b"\xc1", packed[:-1]])))
    assert said[0] == {"id": 7, "note": "n", "price": None, "at": NOON, "tags": []}
    assert all(isinstance(one, str) for one in said[1:])


AVRO = json.dumps(
    {
        "type": "record", "name": "order", "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "lines", "type": {"type": "array", "items": {
                "type": "record", "name": "line", "fields": [{"name": "n", "type": "int"}]}}},
            {"name": "by", "type": {"type": "map", "values": "double"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        ],
    }
)  # fmt: skip
AVRO_DDL = (
    "struct<`id`:bigint,`note`:string,`at`:timestamp,`lines`:array<struct<`n`:int>>,"
    "`by`:map<string,double>,`day`:date>"
)
AVRO_TYPE = pa.struct(
    [
        ("id", pa.int64()), ("note", pa.string()), ("at", pa.timestamp("us", "UTC")),
        ("lines", pa.list_(pa.struct([("n", pa.int32())]))),
        ("by", pa.map_(pa.string(), pa.float64())), ("day", pa.date32()),
    ]
)  # fmt: skip
ORDER = {
    "id": 1, "note": "x", "at": NOON, "lines": [{"n": 2}], "by": {"a": 0.5},
    "day": date(2026, 3, 1),
}  # fmt: skip
READ = {**ORDER, "by": [("a", 0.5)]}
OLD = json.dumps({"type": "record", "name": "order", "fields": json.loads(AVRO)["fields"][2:]})


def avro(schema: str, row: dict[str, Any]) -> bytes:
    fastavro = pytest.importorskip("fastavro", reason="pip install 'tallymark[formats]'")
    data = BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(json.loads(schema)), row)
    return data.getvalue()


def test_avro_by_the_tables_schema() -> None:
    body = avro(AVRO, ORDER)
    options = FormatOptions.parse({"avroSchema": AVRO})
    assert options is not None
    assert ddl_of(options) == AVRO_DDL
    said = values(
        reader_of(options, AVRO_TYPE).decode(pa.array([body, body + b"x", body[:-3], b""]))
    )
    assert said[0] == READ
    assert said[1] == "the body does not fit: bytes are left behind the message"
    assert all(isinstance(one, str) for one in said[2:])


def test_avro_by_a_registrys_schemas(tmp_path: Path) -> None:
    """Written by schemas of today and of yesterday, read as the table has it."""
    fields = json.loads(AVRO)["fields"]
    old = json.dumps({"type": "record", "name": "order", "fields": [fields[0], *fields[2:]]})
    (tmp_path / "1.avsc").write_text(old)
    (tmp_path / "2.avsc").write_text(AVRO)
    bodies = [
        b"\0\0\0\0\1" + avro(old, {k: v for k, v in ORDER.items() if k != "note"}),
        b"\0\0\0\0\2" + avro(AVRO, ORDER),
        avro(AVRO, ORDER), b"\0\0",
    ]  # fmt: skip
    made = reader(AVRO_TYPE, avroSchema=AVRO, schemaRegistry=tmp_path.as_uri())
    said = values(made.decode(pa.array(bodies)))
    assert said[:2] == [{**READ, "note": None}, READ]
    assert "no number of a schema in front" in said[2]


class Registry(HttpServer):
    """A registry of schemas by number, in the words of Confluent's."""

    def __init__(self) -> None:
        super().__init__()
        self.schemas: dict[str, str] = {}
        self.asked: list[str] = []
        self.otherwise = 404, b'{"error_code":40403,"message":"Schema not found"}'

    def respond(self, path: str) -> tuple[int, Mapping[str, str], bytes]:
        number = path.rpartition("/")[2]
        self.asked.append(number)
        if number in self.schemas:
            return 200, {}, json.dumps({"schema": self.schemas[number]}).encode()
        status, body = self.otherwise
        return status, {}, body


def test_a_number_that_no_schema_has_is_a_body_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any body that begins with a zero has one, and would stop the query for good. The number is
    asked for again after a while, in case that its schema comes."""
    bodies = pa.array([b"\0\0\0\0\x09x", b"\0\0\0\0\2" + avro(AVRO, ORDER), b"\0\0\0\0\x09"])
    (tmp_path / "2.avsc").write_text(AVRO)
    made = reader(AVRO_TYPE, avroSchema=AVRO, schemaRegistry=tmp_path.as_uri())
    missing = f"the body does not fit: no 9.avsc in {tmp_path}"
    assert values(made.decode(bodies)) == [missing, READ, missing]
    with Registry() as registry:
        registry.schemas = {"2": AVRO}
        made = reader(AVRO_TYPE, avroSchema=AVRO, schemaRegistry=f"http://{registry.address}")
        missing = "the body does not fit: no schema 9 in 127.0.0.1"
        assert values(made.decode(bodies)) == [missing, READ, missing]
        assert registry.asked == ["9", "2"]
        registry.schemas["9"] = AVRO
        body = pa.array([b"\0\0\0\0\x09" + avro(AVRO, ORDER)])
        assert values(made.decode(body)) == [missing]
        monkeypatch.setattr("tallymark.spark.formats.avro.MISSING_S", 0.0)
        late = reader(AVRO_TYPE, avroSchema=AVRO, schemaRegistry=f"http://{registry.address}")
        del registry.schemas["9"]
        assert values(late.decode(body)) == [missing]
        registry.schemas["9"] = AVRO
        assert values(late.decode(body)) == [READ]


@pytest.mark.parametrize(
    "answer",
    [(404, b"<html>"), (404, b'{"error_code":404}'), (404, b"[]"), (500, b"{}"), (200, b"[]")],
)
def test_a_registry_that_cannot_be_asked_fails_the_task(answer: tuple[int, bytes]) -> None:
    """Also one that is elsewhere than the option says: no body is corrupt for that."""
    with Registry() as registry:
        registry.otherwise = answer
        made = reader(AVRO_TYPE, avroSchema=AVRO, schemaRegistry=f"http://{registry.address}/x")
        with pytest.raises(NoRegistry, match=r"schema 9 of 127\.0\.0\.1"):
            made.decode(pa.array([b"\0\0\0\0\x09x"]))


@pytest.mark.parametrize("where", ["http://127.0.0.1:1", "file:///nowhere/at/all"])
def test_a_registry_that_is_not_there_fails_the_task(where: str) -> None:
    made = reader(AVRO_TYPE, avroSchema=AVRO, schemaRegistry=where)
    with pytest.raises(NoRegistry, match="schema 9 of"):
        made.decode(pa.array([b"\0\0\0\0\x09x"]))


def test_what_only_a_library_has_a_type_for_is_plain_text() -> None:
    """Avro's UUIDs and MessagePack's times, where a text is wanted: without the quotes of JSON."""
    field = {"name": "note", "type": {"type": "string", "logicalType": "uuid"}}
    schema = json.dumps({"type": "record", "name": "r", "fields": [field]})
    id = "0d2b1e34-7c6f-4c93-9e1c-0d9f1b8a1c11"
    found = reader(SHALLOW, avroSchema=schema).decode(pa.array([avro(schema, {"note": id})]))
    assert values(found) == [{"id": None, "note": id, "ok": None}]
    msgpack = pytest.importorskip("msgpack", reason="pip install 'tallymark[formats]'")
    packed = msgpack.packb({"note": NOON}, datetime=True)
    (said,) = values(reader(SHALLOW, format="msgpack").decode(pa.array([packed])))
    assert said["note"] == "2026-03-01 12:00:00+00:00"


def test_times_of_day_in_avro_are_numbers(tmp_path: Path) -> None:
    """Also in a schema of a registry, by which they are read, and where they may be null."""
    millis = {"type": "int", "logicalType": "time-millis"}
    micros = ["null", {"type": "long", "logicalType": "time-micros"}]
    fields = [{"name": "begin", "type": millis}, {"name": "end", "type": micros}]
    schema = json.dumps({"type": "record", "name": "shift", "fields": fields})
    options = FormatOptions.parse({"avroSchema": schema})
    assert options is not None
    assert ddl_of(options) == "struct<`begin`:int,`end`:bigint>"
    body = avro(schema, {"begin": time(0, 0, 1), "end": time(0, 0, 2)})
    (tmp_path / "1.avsc").write_text(schema)
    type = pa.struct([("begin", pa.int32()), ("end", pa.int64())])
    alone = reader(type, avroSchema=schema).decode(pa.array([body]))
    made = reader(type, avroSchema=schema, schemaRegistry=tmp_path.as_uri())
    numbered = made.decode(pa.array([b"\0\0\0\0\1" + body]))
    assert values(alone) == values(numbered) == [{"begin": 1_000, "end": 2_000_000}]


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [("[", "avroSchema"), ('["int", "string"]', "a union of"), ('{"type": "what"}', "avroSchema")],
)
def test_a_schema_that_is_no_table_is_refused(schema: str, wrong: str) -> None:
    pytest.importorskip("fastavro", reason="pip install 'tallymark[formats]'")
    options = FormatOptions.parse({"avroSchema": schema})
    assert options is not None
    with pytest.raises(ValueError, match=wrong):
        ddl_of(options)


def descriptors(file: Path) -> None:
    """Write a descriptor set as protoc makes it."""
    pb2 = pytest.importorskip(
        "google.protobuf.descriptor_pb2", reason="pip install 'tallymark[formats]'"
    )
    from google.protobuf import timestamp_pb2

    whole = pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(whole.file.add())
    one = whole.file.add(
        name="o.proto", package="shop", syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )  # fmt: skip
    color = one.enum_type.add(name="Color")
    color.value.add(name="RED", number=0)
    color.value.add(name="BLUE", number=1)
    line = one.message_type.add(name="Line")
    line.field.add(name="n", number=1, type=5, label=1)
    order = one.message_type.add(name="Order")
    entry = order.nested_type.add(name="ByEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=1, label=1)
    named = {
        "id": {"type": 3, "label": 1},
        "at": {"type": 11, "label": 1, "type_name": ".google.protobuf.Timestamp"},
        "lines": {"type": 11, "label": 3, "type_name": ".shop.Line"},
        "by": {"type": 11, "label": 3, "type_name": ".shop.Order.ByEntry"},
        "color": {"type": 14, "label": 1, "type_name": ".shop.Color"},
        "line": {"type": 11, "label": 1, "type_name": ".shop.Line"},
    }
    for number, (name, field) in enumerate(named.items(), 1):
        order.field.add(name=name, number=number, **field)
    file.write_bytes(whole.SerializeToString())


def test_protobuf_by_a_descriptor_set(tmp_path: Path) -> None:
    file = tmp_path / "o.desc"
    descriptors(file)
    from tallymark.spark.formats.protobuf import message_of

    given = {"descriptorFile": str(file), "messageName": "shop.Order"}
    options = FormatOptions.parse(given)
    assert options is not None
    assert ddl_of(options) == (
        "struct<`id`:bigint,`at`:timestamp,`lines`:array<struct<`n`:int>>,"
        "`by`:map<string,double>,`color`:string,`line`:struct<`n`:int>>"
    )
    message = message_of(str(file), "shop.Order")()
    message.id, message.color = 5, 1
    message.at.FromDatetime(NOON)
    message.lines.add(n=2)
    message.by["a"] = 0.5
    line = pa.struct([("n", pa.int32())])
    type = pa.struct(
        [
            ("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("lines", pa.list_(line)),
            ("by", pa.map_(pa.string(), pa.float64())), ("color", pa.string()), ("line", line),
        ]
    )  # fmt: skip
    said = values(reader_of(options, type).decode(pa.array([message.SerializeToString(), b"\x0a"])))
    assert said[0] == {
        "id": 5, "at": NOON, "lines": [{"n": 2}], "by": [("a", 0.5)], "color": "BLUE",
        "line": None,
    }  # fmt: skip
    assert isinstance(said[1], str)
    with pytest.raises(ValueError, match=r"messageName='shop\.Nothing'"):
        message_of(str(file), "shop.Nothing")


def test_auto_reads_each_by_its_content_type() -> None:
    msgpack = pytest.importorskip("msgpack", reason="pip install 'tallymark[formats]'")
    bodies = [b'{"id": 1}', msgpack.packb({"id": 2}), b"3,c,true", b'{"id": 4}', b"?", b"{}"]
    types = [
        "application/json; charset=utf-8", "application/msgpack", "TEXT/CSV",
        "application/vnd.order+json", "image/png", None,
    ]  # fmt: skip
    found = reader(SHALLOW, format="auto").decode(pa.array(bodies), pa.array(types))
    said = values(found)
    assert [one["id"] for one in said[:4]] == [1, 2, 3, 4]
    assert "content type 'image/png', expected json" in said[4]
    assert "content type None" in said[5]


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"format": "xml"}, "expected json"),
        ({"format": "json"}, '"schema" is missing'),
        ({"format": "avro"}, '"avroSchema" is missing'),
        ({"format": "protobuf", "messageName": "m"}, '"descriptorFile" and "messageName"'),
        ({"schema": "id bigint", "badBodies": "drop"}, "expected column, reject or fail"),
        ({"schema": "@/nowhere"}, "cannot be read"),
        ({"schema": "a int", "format": "csv", "delimiter": ""}, "expected one character"),
    ],
)
def test_options_that_cannot_be_right_are_refused(given: dict[str, str], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        FormatOptions.parse(given)


# -- at the source: without Spark, driven as Spark drives it


BODIES = [b'{"id": 0}', b"bad", b'{"id": 2}', b'{"id": "x"}', b'{"id": 4}']


def fill(broker: BrokerProcess, queue: str) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as link:
        channel = link.channel()
        channel.queue_declare(f"{queue}.dead", durable=True)
        letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{queue}.dead"}
        channel.queue_declare(queue, durable=True, arguments=letters)
        channel.confirm_delivery()
        for body in BODIES:
            channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))


def source(broker: BrokerProcess, queue: str, **more: str) -> tuple[Any, StructType]:
    given = {
        "url": broker.url, "queue": queue, "subscription": "s", "waitMs": "0",
        "columns": "sequence", "schema": "id bigint", **more,
    }  # fmt: skip
    return (
        TallymarkDataSource(given),  # type: ignore[arg-type]
        StructType([StructField("data", StructType([StructField("id", LongType())]))]),
    )


def test_a_time_is_one_as_spark_has_it() -> None:
    parsed = FormatOptions.parse({"schema": "at timestamp"})
    assert parsed is not None
    rows = StructType([StructField("at", TimestampType())])
    reads, type = reader_by_json(parsed, rows.json())
    assert type.field("at").type == pa.timestamp("us", "UTC")
    assert values(reads.decode(pa.array([b'{"at": "2026-03-01T13:00:00+01:00"}']))) == [
        {"at": NOON}
    ]


def test_bad_bodies_are_a_column(broker: BrokerProcess) -> None:
    fill(broker, "bad.column")
    made, rows = source(broker, "bad.column")
    assert made.schema() == "`sequence` bigint, `data` struct<id bigint>, `_corrupt` string"
    table = made.reader(rows)
    batches = [one for part in table.partitions() for one in table.read(part)]
    found = [row for one in batches for row in one.to_pylist()]
    assert [row["data"] and row["data"]["id"] for row in found] == [0, None, 2, None, 4]
    assert [row["_corrupt"] is None for row in found] == [True, False, True, False, True]
    assert list(found[0]) == ["sequence", "data", "_corrupt"]


def test_bad_bodies_fail_the_query(broker: BrokerProcess) -> None:
    fill(broker, "bad.fail")
    made, rows = source(broker, "bad.fail", badBodies="fail")
    table = made.reader(rows)
    (part,) = table.partitions()
    with pytest.raises(BadBody, match="sequence 2: the body does not fit") as error:
        list(table.read(part))
    assert "badBodies=column keeps it" in str(error.value)


def test_bad_bodies_are_rejected_when_their_batch_is_committed(broker: BrokerProcess) -> None:
    fill(broker, "bad.reject")
    for attempt in range(2):  # the first driver is killed before the batch is committed
        made, rows = source(broker, "bad.reject", badBodies="reject")
        stream = made.streamReader(rows)
        start = stream.initialOffset()
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        (part,) = stream.partitions(start, end)
        for _ in range(2):  # a task is tried again
            found = [row["data"]["id"] for one in stream.read(part) for row in one.to_pylist()]
            assert found == [0, 2, 4]
        if attempt == 0:
            assert broker.queues()["bad.reject.dead"]["ready"] == 0
            stream.stop()
    stream.commit(end)
    stream.stop()
    queues = broker.queues()
    assert queues["bad.reject.dead"]["ready"] == 2
    assert (queues["bad.reject"]["settled"], queues["bad.reject"]["dead_lettered"]) == (3, 2)
    with pytest.raises(ValueError, match="a browse takes nothing"):
        made.reader(rows)


@pytest.mark.spark
@long  # in `make test` without Spark: the tests above
def test_spark_reads_bodies_as_data(spark: SparkSession, broker: BrokerProcess) -> None:
    from tallymark.spark.formats.functions import from_message

    fill(broker, "spark.data")
    frame = spark.read.format("tallymark").option("url", broker.url).option("queue", "spark.data")
    rows = frame.option("schema", "id bigint, at timestamp").load()
    assert rows.schema["data"].dataType.simpleString() == "struct<id:bigint,at:timestamp>"
    assert [row.id for row in rows.select("data.id").collect()] == [0, None, 2, None, 4]
    read = from_message("body", schema="id bigint").alias("read")
    plain = frame.load().select(read).select("read.data.id", "read._corrupt").collect()
    assert [(row.id, row._corrupt is None) for row in plain] == [
        (0, True), (None, False), (2, True), (None, False), (4, True),
    ]  # fmt: skip
    texts = spark.createDataFrame(
        [('{"id": 1}', "application/json"), ("2", "text/csv")], "body string, kind string"
    )
    auto = texts.select(from_message("body", "kind", schema="id bigint").alias("read"))
    assert [row.id for row in auto.select("read.data.id").collect()] == [1, 2]
