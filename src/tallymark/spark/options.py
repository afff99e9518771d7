"""The options of format("tallymark"), checked before anything is asked of a broker."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tallymark.spark import schema
from tallymark.spark.broker_options import DEFAULT_ENDPOINT, OF_BROKER, endpoints_of
from tallymark.spark.client import Endpoint
from tallymark.spark.formats.format_options import (
    AUTO,
    COLUMN,
    CORRUPT,
    DATA,
    OF_FORMATS,
    REJECT,
    FormatOptions,
)
from tallymark.spark.option_values import (
    SECURITY_OF_KAFKA,
    duration_ms,
    milliseconds,
    number,
    truth,
    unknown_option,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DEFAULT_MAX_ROWS: Final = 50_000
"""Rows of a batch by default: half of what a subscription may hold unsettled."""
DEFAULT_MAX_BYTES: Final = 128 * 1024 * 1024
SUBSCRIPTION_ROWS: Final = 100_000
SUBSCRIPTION_BYTES: Final = 256 * 1024 * 1024
"""Bytes that a subscription may hold unsettled unless an option says otherwise."""
STREAM_MAX_ROWS: Final = 1_000_000
STREAM_MAX_BYTES: Final = 1024 * 1024 * 1024
"""A stream's reader holds nothing in the broker; a micro-batch costs 0.2 s whatever is in it."""
DEFAULT_WAIT_MS: Final = 1_000
FEWEST_ROWS: Final = 2_000
"""A partition of fewer rows costs more in its start than it saves."""

# Name as documented -> meaning. Spark hands names over in lower case.
KNOWN: Final = {
    **OF_BROKER,
    "urls": "several brokers, comma-separated, in place of url",
    "queue": "the queue to read",
    "subscribe": "several queues, comma-separated, in place of queue",
    "subscribePattern": "all durable queues whose whole name a regular expression matches",
    "stream": "the stream to read by offset, in place of a queue",
    "streams": "several streams, comma-separated, in place of stream",
    "subscription": "of a queue: name of the durable subscription; required for readStream",
    "columns": "comma-separated columns to make (all)",
    **OF_FORMATS,
    "startingOffsets": "of a stream: earliest, latest or an offset (earliest; readStream: latest)",
    "startingTimestamp": "of a stream: messages arrived then or later; ISO 8601, or ms since 1970",
    "endingOffsets": "of a stream read as a batch: latest, or the offset to end before (latest)",
    "endingTimestamp": "of a stream read as a batch: messages that arrived before",
    "failOnDataLoss": "of a stream: whether messages deleted by retention fail the query (true)",
    "pushFilters": "of a stream read as a batch: read only offsets that WHERE allows (false)",
    "readSegments": "of a stream: read the journal's files, where executors see them (false)",
    "maxRowsPerBatch": f"most rows of a micro-batch ({DEFAULT_MAX_ROWS}; stream {STREAM_MAX_ROWS})",
    "maxBytesPerBatch": (
        f"most raw bytes of a micro-batch ({DEFAULT_MAX_BYTES}; stream {STREAM_MAX_BYTES})"
    ),
    "maxRowsPerQueue": "most rows of a micro-batch from each of several queues (no limit)",
    "minRowsPerBatch": "rows that a micro-batch waits for (1)",
    "maxTriggerDelay": "how long a micro-batch waits for minRowsPerBatch, such as 30s (15m)",
    "waitMs": f"how long an idle stream waits for messages at a time ({DEFAULT_WAIT_MS})",
    "partitions": "most tasks that read at the same time (number of processors)",
    "ledger": "a data folder: read the journal's rows instead of a queue",
    "upto": "of the ledger, the position of the checkpoint to read up to (the newest)",
    "asyncProgressTrackingEnabled": "refused: it would settle messages before their commit",
}
PROVIDER: Final = "provider"
"""Property of a table of Spark's catalog: the name of the data source."""
OPTION: Final = "option."
"""Prefix of the properties that are the table's options."""
_SPELLING: Final = {
    **{name.lower(): name for name in KNOWN},
    "maxrows": "maxRowsPerBatch",  # as they were called first
    "maxbytes": "maxBytesPerBatch",
}
OF_KAFKA: Final = {
    "kafka.bootstrap.servers": "url",
    "topic": "queue",
    "assign": "subscribe",
    "maxOffsetsPerTrigger": "maxRowsPerBatch",
    "minOffsetsPerTrigger": "minRowsPerBatch",
    "minPartitions": "partitions",
    "kafka.group.id": "subscription",
    "groupIdPrefix": "subscription",
    "startingOffsetsByTimestamp": "startingTimestamp",
    "endingOffsetsByTimestamp": "endingTimestamp",
    "kafkaConsumer.pollTimeoutMs": "waitMs",
    "fetchOffset.numRetries": "retryMs",
    "fetchOffset.retryIntervalMs": "retryMs",
    "includeHeaders": "columns",
    **SECURITY_OF_KAFKA,
}
"""Options of Spark's source for Kafka, and what serves their purpose here."""
OF_A_TABLE: Final = (
    "of a table of the catalog: Spark hands the options of CREATE TABLE to no source in Python, "
    "say them with each use, FROM name WITH (url '...', queue '...'), or make it a TEMPORARY VIEW"
)
OF_STREAMS: Final = (
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "readSegments",
    "pushFilters",
)
WHAT: Final = ("stream", "streams", "queue", "subscribe", "subscribePattern", "ledger")
"""Options that say what is read, of which one is given."""
DEFAULT_TRIGGER_DELAY: Final = "15m"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of the source as plain values."""

    endpoint: Endpoint = DEFAULT_ENDPOINT
    endpoints: tuple[Endpoint, ...] = ()
    """Brokers of option `urls`, or the one."""
    vhost: str = "/"
    queue: str = ""
    stream: str = ""
    names: tuple[str, ...] = ()
    """Several queues, or several streams."""
    pattern: str = ""
    """Regular expression of the names of several queues."""
    of_streams: bool = False
    label: str = ""
    """Text of the column `queue` where it is not the queue's name."""
    subscription: str = ""
    starting: str = ""
    """Argument `at` or `time` of the request for the starting offset; "": none was given."""
    ending: str = ""
    fail_on_data_loss: bool = True
    read_segments: bool = False
    push_filters: bool = False
    columns: tuple[str, ...] = schema.ALL
    bodies: FormatOptions | None = None
    data_type: str = ""
    """Type of the column of bodies as data, in Spark's JSON; "": not known yet."""
    max_rows: int = DEFAULT_MAX_ROWS
    max_bytes: int = DEFAULT_MAX_BYTES
    max_rows_each: int = 0
    """0: no limit but max_rows."""
    min_rows: int = 1
    max_delay_ms: int = 0
    wait_ms: int = DEFAULT_WAIT_MS
    partitions: int = 1
    ledger: Path | None = None
    upto: int | None = None

    @staticmethod
    def parse(given: Mapping[str, str]) -> SourceOptions:
        """Parse the options. Raises ValueError for an unknown option (naming the nearest known one)
        and for a value out of range."""
        options = _spelled(given)
        of_streams = _check_kind(options)
        columns = schema.choose(
            options.get("columns"), schema.ALL_OF_STREAM if of_streams else schema.ALL
        )
        queue, stream = options.get("queue", ""), options.get("stream", "")
        endpoints = endpoints_of(options)
        names = _names(options, "streams" if of_streams else "subscribe")
        if len(endpoints) > 1 and (queue or stream):
            names, queue, stream = (queue or stream,), "", ""
        least = number(options, "minRowsPerBatch", 1, 1)
        bodies = FormatOptions.parse(options)
        if bodies is not None and bodies.bad == REJECT and of_streams:
            raise ValueError("option badBodies=reject: of a stream, no message can be rejected")
        ledger = options.get("ledger")
        rows, size = DEFAULT_MAX_ROWS, DEFAULT_MAX_BYTES
        if of_streams:
            rows, size = STREAM_MAX_ROWS, STREAM_MAX_BYTES
        delay = options.get("maxTriggerDelay", DEFAULT_TRIGGER_DELAY)
        rows = number(options, "maxRowsPerBatch", rows, 1)
        if least > rows:
            raise ValueError(
                f"option minRowsPerBatch={least}: expected at most maxRowsPerBatch={rows}"
            )
        return SourceOptions(
            endpoint=endpoints[0],
            endpoints=endpoints,
            vhost=options.get("vhost", "/"),
            queue=queue,
            stream=stream,
            names=names,
            pattern=_pattern(options),
            of_streams=of_streams,
            subscription=options.get("subscription", ""),
            starting=_place(options, "starting", ("earliest", "latest")),
            ending=_place(options, "ending", ("latest",)),
            fail_on_data_loss=truth(options, "failOnDataLoss", True),
            read_segments=truth(options, "readSegments", False),
            push_filters=truth(options, "pushFilters", False),
            columns=columns,
            bodies=bodies,
            max_rows=rows,
            max_bytes=number(options, "maxBytesPerBatch", size, 1),
            max_rows_each=number(options, "maxRowsPerQueue", 0, 1),
            min_rows=least,
            max_delay_ms=duration_ms("maxTriggerDelay", delay),
            wait_ms=number(options, "waitMs", DEFAULT_WAIT_MS, 0),
            partitions=number(options, "partitions", os.cpu_count() or 1, 1),
            ledger=Path(ledger) if ledger else None,
            upto=number(options, "upto", 0, 0) or None,
        )

    @property
    def is_of_several(self) -> bool:
        """Return whether queues or streams are named by list or pattern, or on several brokers."""
        return bool(self.names or self.pattern)

    @property
    def read_columns(self) -> tuple[str, ...]:
        """Names of the columns to make of messages, before bodies are read."""
        needed = ["body"] if self.bodies else []
        if self.bodies and self.bodies.format == AUTO:
            needed.append("content_type")
        return (*self.columns, *(name for name in needed if name not in self.columns))

    def ddl(self) -> str:
        """Return Spark's schema of the rows. Raises ValueError."""
        own = schema.ddl(self.columns)
        if self.bodies is None:
            return own
        from tallymark.spark.formats.readers import ddl_of

        corrupt = f", `{CORRUPT}` string" if self.bodies.bad == COLUMN else ""
        return f"{own}, `{DATA}` {ddl_of(self.bodies)}{corrupt}"

    def with_type(self, rows: StructType) -> SourceOptions:
        """Return the options with the type of bodies, as Spark has understood it."""
        if self.bodies is None:
            return self
        return replace(self, data_type=rows[DATA].dataType.json())

    @property
    def shown(self) -> str:
        """Text of the column `queue`."""
        return self.label or self.queue or self.stream

    def for_queue(self) -> SourceOptions:
        """Itself, if a queue is named. Raises ValueError."""
        if not self.queue and not self.is_of_several:
            raise ValueError(
                'option "queue" is missing: the name of the queue to read ("stream": of a stream); '
                + OF_A_TABLE
            )
        return self

    def for_stream(self) -> SourceOptions:
        """Itself, if it is enough for a stream. Raises ValueError."""
        if self.ledger is not None:
            raise ValueError('option "ledger": the journal is read in batches, not as a stream')
        if not self.subscription:
            raise ValueError(
                'option "subscription" is missing: a stream needs the name of a durable '
                "subscription, one per query; it keeps the query's place in the queue"
            )
        return self.for_queue()

    def for_tail(self) -> SourceOptions:
        """Itself, if it is enough to follow a stream. Raises ValueError."""
        if self.ending:
            raise ValueError('options "ending..." are for batch reads; readStream has no end')
        return self

    def spans(self, first: int, end: int) -> list[tuple[int, int]]:
        """first..end-1 cut into at most `partitions` nearly equal spans, none of them tiny."""
        total = end - first
        if total <= 0:
            return []
        count = max(1, min(self.partitions, -(-total // FEWEST_ROWS)))
        cuts = [first + total * k // count for k in range(count + 1)]
        return list(pairwise(cuts))


def own_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a table that CREATE TABLE ... USING tallymark makes: Spark hands over
    all of the table's properties, its own (provider, owner, location) and the user's, and repeats
    the options with a prefix. Options of a read or a write are returned as they are."""
    if PROVIDER not in given:
        return dict(given)
    cut = len(OPTION)
    return {name[cut:]: value for name, value in given.items() if name.startswith(OPTION)}


def _spelled(given: Mapping[str, str]) -> dict[str, str]:
    options = {}
    for name, value in own_options(given).items():
        known = _SPELLING.get(name.lower())
        if known is None:
            raise unknown_option(name, "", KNOWN, OF_KAFKA)
        options[known] = value
    if options.pop("asyncProgressTrackingEnabled", "false").lower() != "false":
        raise ValueError(
            "asyncProgressTrackingEnabled is refused: with it Spark asks for the next batch before "
            "the last one is committed, and messages would be settled too early"
        )
    return options


def _check_kind(options: Mapping[str, str]) -> bool:
    """Return whether streams are read. Raises ValueError for options that do not go together."""
    what = [name for name in WHAT if options.get(name)]
    is_of_streams = bool(options.get("stream") or options.get("streams"))
    if is_of_streams and options.get("subscription"):
        what.append("subscription")
    for given in (what, [name for name in ("urls", "url") if options.get(name)]):
        if len(given) > 1:
            raise ValueError(f'options "{given[0]}" and "{given[1]}" exclude each other')
    if is_of_streams:
        return True
    for name in OF_STREAMS:
        if name in options:
            raise ValueError(f'option "{name}" is of streams: name one by option "stream"')
    if "failOnDataLoss" in options and not options.get("subscribePattern"):
        raise ValueError(
            'option "failOnDataLoss" is of streams and of "subscribePattern": a queue that is '
            "named and deleted fails the query"
        )
    return False


def _names(options: Mapping[str, str], option: str) -> tuple[str, ...]:
    """The names in a list, each once. Raises ValueError."""
    text = options.get(option)
    if not text:
        return ()
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) != len(names):
        raise ValueError(f"option {option}={text!r}: expected names with commas, each once")
    return tuple(names)


def _pattern(options: Mapping[str, str]) -> str:
    text = options.get("subscribePattern", "")
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(
            f"option subscribePattern={text!r}: expected a regular expression of Python: {error}"
        ) from None
    return text


def _place(options: Mapping[str, str], which: str, words: tuple[str, ...]) -> str:
    """A query's words for an offset: `at=...` or `time=...`; "": nothing was said."""
    offsets, timestamp = options.get(f"{which}Offsets"), options.get(f"{which}Timestamp")
    if offsets is not None and timestamp is not None:
        raise ValueError(f'options "{which}Offsets" and "{which}Timestamp" exclude each other')
    if timestamp is not None:
        return f"time={milliseconds(f'{which}Timestamp', timestamp)}"
    if offsets is None:
        return ""
    word = offsets.strip().lower()
    if word in words:
        return {"earliest": "at=first", "latest": "at=next"}[word]
    if not (word.isascii() and word.isdigit()):
        raise ValueError(
            f"option {which}Offsets={offsets!r}: expected {' or '.join(words)}, or an offset"
        )
    return f"at={int(word)}"
