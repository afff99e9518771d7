"""format("tallymark"): a queue as a stream or as a batch, and the ledger as a table.

Where things run: Spark keeps one Python process per streaming query, in which the reader's
initialOffset, latestOffset, partitions and commit are called in turn; `read` runs on executors, on
a pickled copy of the reader, and yields Arrow batches only. That one process has ten seconds to
start on however busy a machine: what only reading and writing need is imported there.

When a message is settled: Spark calls latestOffset(start) only after the batch that ends at `start`
is in its commit log. So `start` is settled there, and again in commit(end), which Spark calls one
batch later: with commit alone the last batch of an idle or an available-now query would stay leased
for ever. Nothing else settles: stopping, failing and disconnecting mean nothing to the broker.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
)
from pyspark.sql.types import StructType

from tallymark.spark.admission import Admission, MadeAgain, Tail, part_of
from tallymark.spark.client import BrokerRefused, Client, Json, api_path
from tallymark.spark.formats.format_options import REJECT
from tallymark.spark.options import SUBSCRIPTION_BYTES, SUBSCRIPTION_ROWS, SourceOptions
from tallymark.spark.reading import ANSWER_BYTES, freeze_modules, limits, shared_client

if TYPE_CHECKING:
    import pyarrow as pa

    from tallymark.spark.gather import Ints
    from tallymark.spark.sink_options import SinkOptions


class TallymarkDataSource(DataSource):
    """Data source that Spark finds under the name "tallymark". Options: see
    tallymark.spark.options."""

    @classmethod
    def name(cls) -> str:
        return "tallymark"

    def schema(self) -> str:
        options = SourceOptions.parse(self.options)
        if options.ledger is not None:
            from tallymark.spark import ledger

            return ledger.DDL
        return options.ddl()

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.parse(self.options).with_type(schema)
        if options.bodies is not None and options.bodies.bad == REJECT:
            raise ValueError("option badBodies=reject: a browse takes nothing and rejects nothing")
        if options.ledger is not None:
            from tallymark.spark.ledger_reader import LedgerReader

            return LedgerReader(options.ledger, options.upto)
        if options.is_of_several:
            from tallymark.spark.several import SeveralTables

            return SeveralTables(options, _table_of)
        return _table_of(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = SourceOptions.parse(self.options).with_type(schema)
        if options.is_of_several:
            from tallymark.spark.several import SeveralStreams

            checked = options.for_tail() if options.of_streams else options.for_stream()
            return SeveralStreams(checked, _stream_of)
        return _stream_of(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from tallymark.spark.sink import BatchWriter

        if overwrite:
            raise ValueError('mode "overwrite": a queue is only appended to, expected "append"')
        return BatchWriter(checked_sink(self.options, schema).for_batch())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from tallymark.spark.sink import StreamWriter

        if overwrite:
            raise ValueError('output mode "complete": a queue is only appended to')
        return StreamWriter(checked_sink(self.options, schema).for_stream())


def _table_of(options: SourceOptions) -> DataSourceReader:
    if options.stream:
        from tallymark.spark.streams import FilteredStreamTable, StreamTable

        return FilteredStreamTable(options) if options.push_filters else StreamTable(options)
    return QueueBrowser(options.for_queue())


def _stream_of(options: SourceOptions) -> Tail:
    if options.stream:
        from tallymark.spark.streams import StreamTail

        return StreamTail(options.for_tail())
    return QueueStream(options.for_stream())


def checked_sink(options: Mapping[str, str], given: StructType) -> SinkOptions:
    """The options of a write of rows like these. Raises ValueError."""
    from tallymark.spark.frames import check_columns
    from tallymark.spark.sink_options import SinkOptions

    parsed = SinkOptions.parse(options)
    check_columns(given, parsed.routing_key is None)
    return parsed


def moved_on(subscription: str, start: int, floor: int) -> str:
    """Return the error text for a checkpoint below the settled floor."""
    return (
        f"the checkpoint stands at message {start} of subscription {subscription!r}, which is "
        f"settled up to {floor}: another driver of this query went on while this one started, and "
        "it is to be started again; or another checkpoint moved this subscription on, its messages "
        "are in that table, and this query is to begin with a new folder"
    )


class Span(InputPartition):
    """Rows first..end-1 of a subscription's leases or of a browse plan."""

    def __init__(self, first: int, end: int, source: str, fence: int = 0) -> None:
        self.first = first
        self.end = end
        self.source = source
        """The epoch of the subscription, or the browse plan."""
        self.fence = fence
        """Number of the attach under which the span was planned."""


class QueueStream(Tail):
    """A queue through a durable subscription.

    An offset is {"subscription", "epoch", "seq"}: every lease sequence below seq has been read. The
    epoch names the subscription's incarnation, so that an old checkpoint cannot settle messages of
    a subscription that was deleted and made again.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._client = Client(options.endpoint)
        self._fence: int | None = None
        self._epoch = 0
        self._floor = 0
        self._planned: int | None = None
        """End of the newest batch."""
        self._target: int | None = None
        self._settled: int | None = None
        """Number that this reader settled last."""
        self._admission = Admission(options)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fence": None}

    # -- called on the driver, one after the other

    def initialOffset(self) -> dict[str, Any]:
        """The settled floor at the time of the attach; the same however often it is asked."""
        self._attach()
        return self.offset(self._floor)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the target: the messages leased and ready now."""
        self._attach()
        stat = self._client.call("GET", f"{self._path('stat')}?fence={self._fence}")
        self._target = int(stat["next"]) + int(stat["ready"])

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Settle `start`, whose batch is committed, and lease what comes after it.

        Waits up to `waitMs` for messages (not under available-now): an idle query would otherwise
        ask about 70 times a second.
        Raises Fenced when another reader attached, or when `start` is of another incarnation.
        """
        begin = self.committed(start)
        max_rows, max_bytes = limits(self._options, limit)
        wait_ms = self._options.wait_ms
        if self._target is not None:
            wait_ms = 0
        elif not self._admission.admits(self._client, self, begin):
            return start
        end = self.extend(begin, max_rows, max_bytes, wait_ms)
        return start if end == begin else self.offset(end)

    def is_of(self, offset: dict[str, Any]) -> bool:
        """Return whether the subscription has the offset's epoch. Attaches to none."""
        return int(self._client.call("GET", self._path("stat"))["epoch"]) == int(offset["epoch"])

    def committed(self, offset: dict[str, Any]) -> int:
        """Settle what is below an offset, whose batch is committed; return its number."""
        self._attach()
        begin = self._begin(offset)
        if begin != self._settled:
            self._settle(begin)
            self._settled = begin
        self._planned = begin
        return begin

    def place(self, begin: int) -> Json:
        """Return the reader that has planned what is below `begin`, as /behind wants it."""
        options = self._options
        return {
            "vhost": options.vhost, "queue": options.queue, "subscription": options.subscription,
            "fence": self._fence, "at": begin,
        }  # fmt: skip

    def until_target(self, begin: int) -> int | None:
        """Return how much is left under available-now; None: this is no such run."""
        return None if self._target is None else max(0, self._target - begin)

    def extend(self, begin: int, max_rows: int, max_bytes: int, wait_ms: int) -> int:
        """Lease what comes after `begin`; return the sequence behind it."""
        if (left := self.until_target(begin)) is not None:
            max_rows = min(max_rows, left)
        end = begin
        if max_rows > 0:
            wanted = {
                "start": begin, "max_rows": max_rows, "max_bytes": max_bytes, "wait_ms": wait_ms,
            }  # fmt: skip
            end = int(self._hold("lease", wanted, wait_ms)["end"])
        self._planned = end
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the offset behind everything that is leased or ready now, for the query's
        progress, with how far the newest batch is from it. `oldestUnsettledMs` is the age of the
        message that is settled next; -1: there is none."""
        if self._planned is None:
            return None
        stat = self._client.call(
            "GET", f"{self._path('stat')}?fence={self._fence}&at={self._planned}"
        )
        oldest_ms = stat["oldest_unsettled_ms"]
        return {
            **self.offset(int(stat["next"]) + int(stat["ready"])),
            "rowsBehind": int(stat["rows_behind"]),
            "bytesBehind": int(stat["bytes_behind"]),
            "oldestUnsettledMs": -1 if oldest_ms is None else int(oldest_ms),
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch; also the first call of a query that restarts in mid
        batch."""
        self._attach()
        begin, stop = self._begin(start), self._sequence(end)
        # Verdicts of an earlier reader of this batch are forgotten: it is read again now.
        self._hold("begin", {"start": begin, "end": stop})
        fence = self._fence or 0
        spans = self._options.spans(begin, stop)
        return [Span(first, last, str(self._epoch), fence) for first, last in spans]

    def commit(self, end: dict[str, Any]) -> None:
        """Settle `end`; called one batch later, or never."""
        self._attach()
        self._settle(self._sequence(end))

    def stop(self) -> None:
        """Close the connection. The lease stays: this runs after a crash of the driver too."""
        self._client.close()

    # -- called on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one span. A task tried again yields the same rows; a span settled
        meanwhile is an error, never fewer rows."""
        assert isinstance(partition, Span)
        return read_leased(self._options, partition, self._path("read"), self._path("verdicts"))

    # -- inside

    def _attach(self) -> None:
        """Become the one reader of the subscription, made if it does not exist."""
        if self._fence is not None:
            return
        # A batch must fit into what the subscription may hold; 0 leaves the broker's default.
        rows, size = self._options.max_rows, self._options.max_bytes
        wanted = {
            "limit_rows": rows if rows > SUBSCRIPTION_ROWS else 0,
            "limit_bytes": size if size > SUBSCRIPTION_BYTES else 0,
        }
        answer = self._client.call("POST", self._path("attach"), wanted)
        self._fence = int(answer["fence"])
        self._epoch = int(answer["epoch"])
        self._floor = int(answer["floor"])

    def _settle(self, end: int) -> None:
        # The broker's answer means that the settlement is on disk.
        self._hold("settle", {"end": end})

    def _hold(self, operation: str, wanted: dict[str, int], wait_ms: int = 0) -> Json:
        """Call as the holder of the subscription. Raises Fenced when another reader attached."""
        body = {"fence": self._fence, "epoch": self._epoch, **wanted}
        return self._client.call("POST", self._path(operation), body, wait_ms)

    def _path(self, operation: str) -> str:
        options = self._options
        return api_path(
            "subscriptions", options.vhost, options.queue, options.subscription, operation
        )

    def offset(self, sequence: int) -> dict[str, Any]:
        """Return the offset at a lease sequence, for Spark's checkpoint."""
        return {
            "subscription": self._options.subscription,
            "epoch": self._epoch,
            "seq": sequence,
        }

    def _begin(self, offset: dict[str, Any]) -> int:
        """The sequence of a batch's start, which this query's checkpoint cannot have below the
        settled floor at the attach, unless another checkpoint moved that on."""
        begin = self._sequence(offset)
        if begin < self._floor:
            raise ValueError(moved_on(self._options.subscription, begin, self._floor))
        return begin

    def _sequence(self, offset: dict[str, Any]) -> int:
        name = part_of(offset, "subscription", "one queue")
        epoch = int(offset["epoch"])
        if name != self._options.subscription:
            raise ValueError(
                f"the checkpoint belongs to subscription {name!r}, not to "
                f"{self._options.subscription!r}: use one checkpoint per subscription"
            )
        if epoch != self._epoch:
            raise MadeAgain(
                f"the checkpoint is of epoch {epoch} of subscription {name!r}, which is now at "
                f"epoch {self._epoch}: it was deleted and made again. Begin with a new checkpoint"
            )
        return int(offset["seq"])


class QueueBrowser(DataSourceReader):
    """Reader of the messages in a queue now; none is taken out of it.

    The broker pins the messages under a plan, so that all tasks see the same ones, whatever is
    consumed meanwhile; a plan that nobody uses for ten minutes expires.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        client = Client(self._options.endpoint)
        try:
            path = api_path("browse", self._options.vhost, self._options.queue)
            answer = client.call("POST", path, {})
        finally:
            client.close()
        plan = str(answer["plan"])
        # An empty list would mean "one partition, of which nothing is known" to Spark.
        spans = self._options.spans(0, int(answer["messages"])) or [(0, 0)]
        return [Span(low, high, plan) for low, high in spans]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Span)
        path = api_path("browse", "plans", partition.source, "read")
        return read_browsed(self._options, partition, path)


def read_leased(
    options: SourceOptions, span: Span, path: str, verdicts: str
) -> Iterator[pa.RecordBatch]:
    """The rows of a span of leases, an answer at a time. Messages whose bodies are to be rejected
    are left out; the broker has their verdicts on disk before the rows behind them are given.
    Raises LookupError if the broker gives others."""
    from tallymark.spark.decode import decode_answer
    from tallymark.spark.formats.shaping import shape_of

    shape = shape_of(options.bodies, options.data_type, options.columns)

    freeze_modules()
    # Batches go on as they come: a task that fails later is tried again from its beginning.
    client = shared_client(options.endpoint)
    query: dict[str, object] = {
        "fence": span.fence, "epoch": span.source, "to": span.end, "max_bytes": ANSWER_BYTES,
    }  # fmt: skip
    low = span.first
    while low < span.end:
        answer, headers = client.fetch(path, {**query, "from": low})
        end, at = int(headers["Tallymark-Next"]), low
        for found in decode_answer(answer, options.shown, options.read_columns, span.fence):
            if not is_dense(found.lease_sequences, at):
                raise LookupError(
                    f"{options.endpoint}{path}: lease sequences from {at} on were asked for, the "
                    f"answer has {found.lease_sequences[:3].tolist()}..."
                )
            at += found.batch.num_rows
            shaped = shape(found.batch)
            if shaped.rejected:
                bad = [(int(found.lease_sequences[row]), 1, "rejected") for row in shaped.rejected]
                client.call("POST", verdicts, {"fence": span.fence, "verdicts": bad})
            yield shaped.batch
        if not low < end <= span.end or at != end:
            raise LookupError(
                f"{options.endpoint}{path}: asked for rows {low} to {end - 1}, got {at - low} rows"
            )
        del answer  # before another is asked for: both would be held, as new memory each time
        low = end


def read_browsed(options: SourceOptions, span: Span, path: str) -> Iterator[pa.RecordBatch]:
    """The rows of a span of a browse plan, an answer at a time. Raises LookupError as above, and
    where the broker has given the plan up: Spark asks for the partitions of a DataFrame once, so
    that its later actions read what its first one planned."""
    from tallymark.spark.decode import decode_answer
    from tallymark.spark.formats.shaping import shape_of

    freeze_modules()
    client, shape = (
        shared_client(options.endpoint),
        shape_of(options.bodies, options.data_type, options.columns),
    )
    query: dict[str, object] = {"to": span.end, "max_bytes": ANSWER_BYTES}
    low = span.first
    while low < span.end:
        try:
            answer, headers = client.fetch(path, {**query, "from": low})
        except BrokerRefused as refusal:
            if refusal.status != http.client.NOT_FOUND:
                raise
            raise LookupError(
                f"queue {options.queue!r}: the messages that this DataFrame or view saw when it "
                "was first used are not held any more, since nobody read them for ten minutes or "
                "the broker was started anew. Load it again (SQL: CREATE OR REPLACE) to see what "
                "is there now"
            ) from refusal
        end, at = int(headers["Tallymark-Next"]), low
        for found in decode_answer(answer, options.shown, options.read_columns):
            at += found.batch.num_rows
            yield shape(found.batch).batch
        if not low < end <= span.end or at != end:
            raise LookupError(
                f"{options.endpoint}{path}: asked for rows {low} to {end - 1}, got {at - low} rows"
            )
        del answer  # before another is asked for, as above
        low = end


def is_dense(numbers: Ints, first: int) -> bool:
    """Return whether the numbers are first, first + 1, first + 2, ..."""
    import numpy as np

    expected = np.arange(first, first + len(numbers))
    return bool((numbers == expected).all())
