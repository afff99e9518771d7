"""The columns a message becomes: one table, from which Spark's schema and Arrow's both come.

Spark refuses a batch whose Arrow schema is not exactly the one it made itself, so each column's two
types stand side by side here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn

MS_OF_DAY: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the source."""

    name: str
    ddl: str
    """Its type in Spark's words."""
    arrow: pa.DataType
    meaning: str


_TIME: Final = pa.timestamp("us", "UTC")
_TEXT: Final = pa.string()
_DEATH: Final = pa.struct(
    [
        ("queue", _TEXT),
        ("reason", _TEXT),
        ("count", pa.int64()),
        ("exchange", _TEXT),
        ("routing_keys", pa.list_(pa.field("element", _TEXT))),
        ("first_time", _TIME),
        ("last_time", _TIME),
        ("original_expiration", _TEXT),
    ]
)
_DEATH_DDL: Final = (
    "struct<queue:string,reason:string,count:bigint,exchange:string,routing_keys:array<string>,"
    "first_time:timestamp,last_time:timestamp,original_expiration:string>"
)
_PLACE: Final = pa.struct([("reason", _TEXT), ("queue", _TEXT), ("exchange", _TEXT)])
_PLACE_DDL: Final = "struct<reason:string,queue:string,exchange:string>"

OFFSET: Final = Column("offset", "bigint", pa.int64(), "place in the stream; never changes")
TYPED_HEADERS: Final = Column(
    "typed_headers",
    "map<string,struct<type:string,value:string>>",
    pa.map_(_TEXT, pa.struct([("type", _TEXT), ("value", _TEXT)])),
    "headers with the type of each; only where `columns` names it",
)
COLUMNS: Final = (
    Column("queue", "string", _TEXT, "name of the queue"),
    Column("sequence", "bigint", pa.int64(), "number in the queue; never reused"),
    Column(
        "lease_sequence", "bigint", pa.int64(), "dense number in the subscription; null in a browse"
    ),
    Column(
        "lease_fence", "bigint", pa.int64(), "attach of the reader, for verdicts; null in a browse"
    ),
    Column(
        "broker_message_id", "bigint", pa.int64(), "the broker's own id, equal in all its queues"
    ),
    Column("timestamp", "timestamp", _TIME, "when the broker received it"),
    Column("exchange", "string", _TEXT, "where it was published; a dead letter: sent on"),
    Column("routing_key", "string", _TEXT, "with which key"),
    Column("redelivered", "boolean", pa.bool_(), "whether it was handed out before"),
    Column("content_type", "string", _TEXT, "as the publisher set it, here and below"),
    Column("content_encoding", "string", _TEXT, ""),
    Column(
        "headers", "map<string,string>", pa.map_(_TEXT, _TEXT), "scalars as text, nested as JSON"
    ),
    Column("delivery_mode", "int", pa.int32(), "1 transient, 2 persistent"),
    Column("priority", "int", pa.int32(), "0 to 255"),
    Column("correlation_id", "string", _TEXT, ""),
    Column("reply_to", "string", _TEXT, ""),
    Column("expiration", "string", _TEXT, "milliseconds, as text; null after a death"),
    Column("message_id", "string", _TEXT, "the publisher's own id"),
    Column("app_timestamp", "timestamp", _TIME, "null outside the years 1970 to 9999"),
    Column("type", "string", _TEXT, ""),
    Column("user_id", "string", _TEXT, ""),
    Column("app_id", "string", _TEXT, ""),
    Column("body", "binary", pa.binary(), "the content, exactly as it was published"),
    Column(
        "malformed", "boolean", pa.bool_(), "frames (body null) or properties could not be read"
    ),
    Column(
        "deaths",
        f"array<{_DEATH_DDL}>",
        pa.list_(pa.field("element", _DEATH)),
        "a dead letter's history, newest death first; null for other messages",
    ),
    Column("first_death", _PLACE_DDL, _PLACE, "why and where it died first, and published where"),
    Column("last_death", _PLACE_DDL, _PLACE, "the same of its last death"),
)
BY_NAME: Final = {column.name: column for column in (*COLUMNS, OFFSET, TYPED_HEADERS)}
ALL: Final = tuple(column.name for column in COLUMNS)
"""Names of a queue's columns."""
OF_LEASES: Final = ("lease_sequence", "lease_fence")
"""Columns of messages that were read through a subscription."""
ALL_OF_STREAM: Final = tuple(
    "offset" if name == "lease_sequence" else name for name in ALL if name != "lease_fence"
)


def choose(text: str | None, there: tuple[str, ...] = ALL) -> tuple[str, ...]:
    """The columns named in an option `columns="sequence, body"`; all that are there for None, and
    in the place of a "*".

    In the order given. Raises ValueError for an unknown or repeated name, naming the nearest.
    """
    if text is None or not text.strip():
        return there
    given = [name.strip() for name in text.split(",")]
    names = tuple(name for one in given for name in (there if one == "*" else (one,)))
    known = (*there, TYPED_HEADERS.name)
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"
            raise ValueError(f"columns: no column {name!r}{hint}")
    if len(set(names)) != len(names):
        raise ValueError(f"columns: {text!r} names a column twice")
    return names


def ddl(names: Sequence[str]) -> str:
    """Spark's schema of these columns."""
    return ", ".join(f"`{name}` {BY_NAME[name].ddl}" for name in names)


def arrow(names: Sequence[str]) -> pa.Schema:
    """Arrow's schema of these columns, as Spark makes it from `ddl`."""
    return pa.schema([pa.field(name, BY_NAME[name].arrow) for name in names])


def utc_date(time: str) -> SparkColumn:
    """The date of a column of times since 1970 in UTC, whatever the session's time zone: the folder
    of a table in which a row lies must not depend on who writes it."""
    from pyspark.sql import functions as f

    return f.expr(f"date_from_unix_date(cast(unix_millis(`{time}`) div {MS_OF_DAY} as int))")
