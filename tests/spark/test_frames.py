"""Rows to frames: a broker reads what stood in the columns; what cannot be said is named."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from tallymark.spark import schema
from tallymark.spark.frames import CHUNK_BYTES, Encoder, check_columns
from tallymark.wire.amqp091.frames import body, property_section
from tallymark.wire.amqp091.kernel import PublishReceived, scan_publishes
from tallymark.wire.amqp091.properties import decode_properties

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HEADERS = pa.map_(pa.string(), pa.string())
TYPED = schema.TYPED_HEADERS.arrow
FLOAT = {"type": "float", "value": "1e50"}
"""A header that 32 bits have no room for."""


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def chunks(rows: pa.RecordBatch, key: str | None = "q") -> list[tuple[bytes, int]]:
    return list(Encoder("x", key, True).chunks([rows]))


def read(data: bytes) -> PublishReceived:
    """As the broker does."""
    found = scan_publishes(data, 0, len(data), 1, 131_072, 1 << 30, {})
    assert found is not None
    return found


def test_times_beyond_those_of_python_are_written_and_those_before_1970_are_named() -> None:
    """Spark's go to the year 294247, those of AMQP further."""
    at_us = 300_000_000_000 * 1_000_000
    times = [at_us, 1_999_999, None]
    given = pa.array(times, pa.timestamp("us", "UTC"))
    [(data, _)] = chunks(batch(body=[b"a", b"b", b"c"], app_timestamp=given))
    event = read(data)
    cells = [data[event.cuts[i] : event.cuts[i + 1]] for i in range(3)]
    found = [decode_properties(property_section(cell)).timestamp for cell in cells]
    assert found == [300_000_000_000, 1, None]
    before = pa.array([-1], pa.timestamp("us", "UTC"))
    with pytest.raises(ValueError, match=r"column 'app_timestamp': -1 s since 1970, expected 0 or"):
        chunks(batch(body=[b"a"], app_timestamp=before, message_id=["m"]))


def test_every_column_is_read_again_as_it_was() -> None:
    rows = batch(
        body=[b"one", b"\0\xce\1", b""],
        headers=pa.array([[("a", "1"), ("b", "")], [], None], HEADERS),
        priority=pa.array([0, 255, None], pa.int32()),
        app_timestamp=pa.array([WHEN, None, None], pa.timestamp("us", "UTC")),
        message_id=["m", None, "\u00e9"],
        sequence=[1, 2, 3],
    )
    [(data, count)] = chunks(rows)
    assert count == 3
    event = read(data)
    cells = [data[event.cuts[i] : event.cuts[i + 1]] for i in range(len(event.cuts) - 1)]
    assert [body(cell) for cell in cells[:2]] == [b"one", b"\0\xce\1"]
    found = [decode_properties(property_section(cell)) for cell in cells]
    assert [one.headers for one in found[:2]] == [{"a": "1", "b": ""}, {}]
    assert [one.priority for one in found[:2]] == [0, 255]
    assert found[0].timestamp == int(WHEN.timestamp())
    assert [one.message_id for one in found[:2]] == ["m", None]
    assert {one.delivery_mode for one in found} == {2}


@pytest.mark.parametrize("columns", [schema.ALL, schema.ALL_OF_STREAM])
def test_rows_of_a_queue_or_a_stream_are_written_as_they_are(columns: tuple[str, ...]) -> None:
    check_columns(from_arrow_schema(schema.arrow(columns)), True)


def test_each_row_may_have_its_own_key() -> None:
    [(data, _)] = chunks(batch(body=[b"1", b"2", b"3"], routing_key=["a", "b", "b"]), None)
    event = read(data)
    assert event.starts == [0, 1]
    assert [b"\1a\1" in event.methods[0], b"\1b\1" in event.methods[1]] == [True, True]


def test_a_value_is_not_taken_for_that_of_another_column_of_an_earlier_batch() -> None:
    nothing = pa.array([None], pa.string())
    rows = [
        batch(body=[b"1"], content_type=["a"], message_id=nothing),
        batch(body=[b"2"], content_type=nothing, message_id=["a"]),
    ]
    [(data, _)] = Encoder("x", "q", True).chunks(rows)
    event = read(data)
    cells = [data[event.cuts[i] : event.cuts[i + 1]] for i in range(2)]
    found = [decode_properties(property_section(cell)) for cell in cells]
    assert [(one.content_type, one.message_id) for one in found] == [("a", None), (None, "a")]


def test_what_is_handed_over_is_some_mib() -> None:
    size = CHUNK_BYTES // 4
    found = chunks(batch(body=[bytes(size)] * 9))
    assert [count for _, count in found] == [4, 4, 1]
    assert all(len(data) < CHUNK_BYTES + 2 * size for data, _ in found)


@pytest.mark.parametrize(
    ("columns", "key", "reason"),
    [
        ({"body": [None]}, "q", "column 'body' is null"),
        (
            {"body": [b""], "routing_key": pa.array([None], pa.string())}, None,
            "column 'routing_key' is null",
        ),
        ({"body": [b""], "routing_key": ["k" * 256]}, None, "column 'routing_key': "),
        ({"body": [b""], "message_id": ["m" * 256]}, "q", "column 'message_id': "),
        ({"body": [b""], "priority": [256], "type": ["t"]}, "q", "column 'priority': .*type='t'"),
        ({"body": [b""], "priority": [-1]}, "q", "column 'priority': "),
        (
            {"body": [b""], "headers": pa.array([[("k" * 256, "")]], HEADERS)}, "q",
            "column 'headers': ",
        ),
        (
            {"body": [b""], "typed_headers": pa.array([[("h", FLOAT)]], TYPED), "type": ["t"]}, "q",
            "column 'typed_headers': .*type='t'",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_said_names_its_column(
    columns: dict[str, Any], key: str | None, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        chunks(batch(**columns), key)
