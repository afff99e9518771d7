"""Headers with their types: what was read is published again as it was."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pika
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.spark import schema
from tallymark.spark.cells.tables import decode_typed
from tallymark.spark.frames import Encoder
from tallymark.spark.header_types import INTEGERS, TYPES, field_value, type_of
from tallymark.wire.amqp091.fields import (
    Float32,
    Timestamp,
    WireInt,
    decode_table,
    encode_table,
)
from tallymark.wire.amqp091.frames import property_section
from tallymark.wire.amqp091.kernel import scan_publishes
from tallymark.wire.amqp091.properties import decode_properties
from tests.support.process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY: dict[str, Any] = {
    "truth": True,
    "small": WireInt(-7, "b"),
    "octet": WireInt(255, "B"),
    "short": WireInt(-300, "s"),
    "ushort": WireInt(60_000, "u"),
    "int": -70_000,
    "uint": WireInt(4_000_000_000, "i"),
    "long": 1 << 40,
    "narrow long": WireInt(5, "l"),
    "f": Float32(0.1),
    "d": 0.1,
    "inf": float("-inf"),
    "price": Decimal("12.50"),
    "text": "caf\u00e9",
    "raw": b"\0\xff",
    "at": Timestamp(1_767_323_045),
    "far": Timestamp(1 << 60),
    "list": [1, "two", None],
    "table": {"a": {"b": True}},
    "void": None,
}
KINDS = (
    "boolean", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "int64", "float",
    "double", "double", "decimal", "string", "binary", "timestamp", "timestamp", "array", "table",
    "void",
)  # fmt: skip


def typed(table: dict[str, object]) -> pa.MapArray:
    maps, readable = decode_typed(pa.array([encode_table(table)[4:]], pa.binary()))
    assert readable.all()
    return maps


def test_every_type_is_named_and_written_back_with_the_same_bytes() -> None:
    [found] = typed(EVERY).to_pylist()
    assert [said["type"] for _, said in found] == list(KINDS)
    assert set(KINDS) == set(TYPES)
    back = {name: field_value(said["type"], said["value"]) for name, said in found}
    assert encode_table(back) == encode_table(EVERY)


@given(
    st.dictionaries(
        st.text("abc", max_size=5),
        st.none()
        | st.booleans()
        | st.integers(-(1 << 63), (1 << 63) - 1)
        | st.floats(allow_nan=False)
        | st.floats(width=32, allow_nan=False).map(Float32)
        | st.integers(0, (1 << 64) - 1).map(Timestamp)
        | st.integers(0, 127).flatmap(
            lambda n: st.sampled_from("bBsuiIlL").map(lambda t: WireInt(n, t))
        )
        | st.text(st.characters(codec="utf-8"))
        | st.binary(),
    )
)
def test_any_table_of_plain_values_comes_back(table: dict[str, object]) -> None:
    [found] = typed(table).to_pylist()
    back = {name: field_value(said["type"], said["value"]) for name, said in found}
    read, again = decode_table(encode_table(table)), decode_table(encode_table(back))
    assert again == read
    assert [type_of(value) for value in again.values()] == [type_of(x) for x in read.values()]


def test_a_row_is_published_with_its_typed_headers() -> None:
    text = pa.array([[("a", "1")]] * 3, pa.map_(pa.string(), pa.string()))
    wanted = [
        [("n", {"type": "int16", "value": "3"})],
        None,
        [("v", {"type": "void", "value": None})],
    ]
    rows = pa.RecordBatch.from_pydict(
        {
            "body": [b"1", b"2", b"3"],
            "headers": text,
            "typed_headers": pa.array(wanted, schema.TYPED_HEADERS.arrow),
        }
    )
    [(data, _)] = Encoder("x", "q", True).chunks([rows])
    event = scan_publishes(data, 0, len(data), 1, 131_072, 1 << 30, {})
    assert event is not None
    cells = [data[event.cuts[i] : event.cuts[i + 1]] for i in range(3)]
    found = [decode_properties(property_section(cell)).headers for cell in cells]
    assert found == [{"n": 3}, {"a": "1"}, {"v": None}]
    assert found[0] is not None
    assert type_of(found[0]["n"]) == "int16"


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("int", "1", "a header of type 'int', expected one of boolean, int8"),
        (None, "1", "a header of type None"),
        ("int8", "one", "'one' is no int8"),
        ("boolean", "yes", "'yes' is no boolean"),
        ("decimal", "1,5", "'1,5' is no decimal"),
        ("timestamp", "today", "'today' is no timestamp"),
        ("binary", "?", "'\\?' is no binary"),
        ("array", "{}", "'{}' is no array"),
        ("table", "{", "'{' is no table"),
    ],
)
def test_what_is_no_value_is_refused(kind: str | None, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        field_value(kind, text)


def test_a_time_without_a_zone_is_of_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the executor is."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        found = field_value("timestamp", "2026-01-01T00:00:00")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found == field_value("timestamp", "2026-01-01T00:00:00Z") == 1_767_225_600


def test_a_star_stands_for_all_columns() -> None:
    assert schema.choose("*, typed_headers") == (*schema.ALL, "typed_headers")
    assert schema.choose("*") == schema.ALL
    with pytest.raises(ValueError, match="names a column twice"):
        schema.choose("*, body")
    with pytest.raises(ValueError, match="did you mean 'typed_headers'"):
        schema.choose("typed_header")


def test_the_width_of_whole_numbers_is_checked_as_they_are_written() -> None:
    for kind in INTEGERS:
        with pytest.raises(ValueError, match="does not fit"):
            encode_table({"n": field_value(kind, str(1 << 64))})


PUBLISHED: dict[str, Any] = {
    "n": 7, "big": 1 << 40, "yes": True, "text": "caf\u00e9", "raw": b"\0\xff", "void": None,
    "price": Decimal("12.50"), "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "list": [1, "two", True], "table": {"a": 1},
}  # fmt: skip


@pytest.mark.spark
def test_spark_publishes_headers_again_with_the_types_that_it_read(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as link:
        channel = link.channel()
        for queue in ("typed.in", "typed.out"):
            channel.queue_declare(queue, durable=True)
        matched = {"x-match": "all", "n": 7, "yes": True}  # not the texts "7" and "true"
        channel.queue_bind("typed.out", "amq.headers", arguments=matched)
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2, headers=PUBLISHED)
        channel.basic_publish("", "typed.in", b"", properties)
        rows = (
            spark.read.format("tallymark").option("url", broker.url).option("queue", "typed.in")
            .option("columns", "*, typed_headers").load()
        )  # fmt: skip
        kinds = rows.selectExpr("transform_values(typed_headers, (name, said) -> said.type) AS t")
        assert kinds.collect()[0].t["n"] == "int32"
        writer = rows.write.format("tallymark").option("url", broker.url)
        writer.option("exchange", "amq.headers").option("routingKey", "").mode("append").save()
        method, found, _ = channel.basic_get("typed.out", auto_ack=True)
        assert method is not None
        assert found.headers == PUBLISHED
        assert all(isinstance(found.headers[name], type(PUBLISHED[name])) for name in PUBLISHED)
