"""format("tallymark") with option `stream`: a stream by offset, followed or as a table.

Nothing is leased and nothing is settled: what Spark has read stands in its checkpoint alone, as
`{"stream", "id", "offset", "began"}`, the offset to go on from. The id is the stream's, so that a
checkpoint is not taken for one of a stream that was deleted and made again under its name. `began`
is where the query began: Spark keeps the end of its first batch and not the start, and asks for
that again where the first batch has to be run again, when `latest` means another place.

Retention waits for no reader. A batch's range is held by a *plan* from when it is planned to when
the next one is; what was gone before is data loss: it fails the query, or, with failOnDataLoss
false, is said and left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from http.client import BAD_REQUEST
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
)

from tallymark.spark.admission import Admission, MadeAgain, Tail, part_of
from tallymark.spark.client import BrokerRefused, BrokerUnreachable, Client, Gone, api_path
from tallymark.spark.options import SourceOptions
from tallymark.spark.reading import ANSWER_BYTES, freeze_modules, limits, shared_client

if TYPE_CHECKING:
    import pyarrow as pa

PLACES_BYTES: Final = 64 << 20
"""Raw bytes asked for at a time where only their places come."""
MOST: Final = (1 << 62) - 1
COMPARISONS: Final = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


class DataLoss(RuntimeError):
    """Retention deleted messages that were to be read."""


class Stretch(InputPartition):
    """Offsets low..high-1 of the stream with this id."""

    def __init__(self, low: int, high: int, id: int, plan: str) -> None:
        self.low = low
        self.high = high
        self.id = id
        self.plan = plan
        """Holds the range against retention; "": nothing does."""


def stream_path(options: SourceOptions, *rest: str) -> str:
    return api_path("streams", options.vhost, options.stream, *rest)


def lose(options: SourceOptions, low: int, first: int, failure: Gone | None = None) -> None:
    """Offsets low..first-1 are gone. Raises DataLoss, or says so on stderr and goes on."""
    text = (
        f"offsets {low} to {first - 1} of stream {options.stream!r} are not kept any more, it "
        f"begins at {first}"
    )
    if options.fail_on_data_loss:
        raise DataLoss(
            f"{text}: retention was faster than this query. Set failOnDataLoss to false to go on "
            "with what there is, or begin with a new checkpoint"
        ) from failure
    print(f"tallymark: data loss: {text}", file=sys.stderr, flush=True)


class _Planner:
    """Part of both stream readers that runs on the driver."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.client = Client(options.endpoint)

    def stat(self) -> dict[str, Any]:
        return self.client.call("GET", stream_path(self._options))

    def place(self, said: str) -> int:
        """The offset that `at=...` or `time=...` means now."""
        answer = self.client.call("GET", stream_path(self._options, "offset") + "?" + said)
        return int(answer["offset"])

    def plan(self, low: int, high: int, id: int) -> tuple[int, str]:
        """Hold a range. Returns where it begins, which is later where something is lost."""
        while low < high:
            try:
                body = {"from": low, "to": high, "id": id}
                answer = self.client.call("POST", stream_path(self._options, "plans"), body)
                return low, str(answer["plan"])
            except Gone as failure:
                first = int(self.stat()["first"])
                lose(self._options, low, min(first, high), failure)
                low = first
        return high, ""

    def release(self, plan: str) -> None:
        """Give up a plan. One that cannot be given up ends by itself when it is not used."""
        once = Client(replace(self._options.endpoint, retry_ms=0, timeout_ms=5_000))
        with suppress(BrokerRefused, BrokerUnreachable):
            once.call("DELETE", stream_path(self._options, "plans", plan))
        once.close()

    def stretches(self, low: int, high: int, id: int, plan: str) -> list[InputPartition]:
        return [Stretch(a, b, id, plan) for a, b in self._options.spans(low, high)]

    def close(self) -> None:
        self.client.close()


class StreamTail(Tail):
    """A stream as it grows."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._planner = _Planner(options)
        self._id = 0
        self._reached = 0
        """Offset that the stream has come to, as far as this reader knows."""
        self._initial: int | None = None
        """Answer of initialOffset."""
        self._began: int | None = None
        """Offset at which the query began; None: an earlier version's checkpoint lacks it."""
        self._planned: int | None = None
        """End of the newest batch."""
        self._target: int | None = None
        self._plans: dict[tuple[int, int], tuple[int, str]] = {}
        self._admission = Admission(options)

    # -- called on the driver, one after the other

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset of startingOffsets or startingTimestamp; the same one at every call."""
        self._find()
        if self._initial is None:
            self._initial = self._planner.place(self._options.starting or "at=next")
            self._reached = max(self._reached, self._initial)
        return self._offset(self._initial, self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the target: the stream's present end."""
        self._find()
        self._target = int(self._planner.stat()["next"])

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the offset at which the next batch ends.

        Waits up to `waitMs` for messages (not under available-now): an idle query would otherwise
        ask about 70 times a second.
        Raises DataLoss; Fenced when the stream is another one than that of `start`.
        """
        begin = self.committed(start)
        wait_ms = self._options.wait_ms
        if self._target is not None:
            wait_ms = 0
        elif not self._admission.admits(self._planner.client, self, begin):
            return start
        max_rows, max_bytes = limits(self._options, limit)
        if isinstance(limit, ReadAllAvailable):
            max_rows = max_bytes = MOST
        end = self.extend(begin, max_rows, max_bytes, wait_ms)
        return start if end == begin else self.offset(end)

    def is_of(self, offset: dict[str, Any]) -> bool:
        """Return whether the stream has the offset's id."""
        return int(self._planner.stat()["id"]) == int(offset["id"])

    def committed(self, offset: dict[str, Any]) -> int:
        """Return the number of an offset whose batch is committed: the broker need not know."""
        self._planned = self._place_of(offset)
        self._began = offset.get("began")
        return self._planned

    def place(self, begin: int) -> dict[str, Any]:
        """Return the reader that has planned what is below `begin`, as /behind wants it."""
        options = self._options
        return {"vhost": options.vhost, "stream": options.stream, "id": self._id, "at": begin}

    def until_target(self, begin: int) -> int | None:
        """Return how much is left under available-now; None: this is no such run."""
        return None if self._target is None else max(0, self._target - begin)

    def extend(self, begin: int, max_rows: int, max_bytes: int, wait_ms: int) -> int:
        """Return the offset behind the batch that begins there."""
        end = begin
        if self.until_target(begin) != 0:
            end = int(self._range(begin, max_rows, max_bytes, wait_ms)["to"])
        if self._target is not None:
            end = min(end, self._target)
        self._planned = max(end, begin)
        self._reached = max(self._reached, self._planned)
        return self._planned

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the stream's end, for the query's progress, with how far the newest batch is from
        it; the bytes are estimated from the stream's mean."""
        if self._planned is None:
            return None
        stat = self._planner.stat()
        end = int(stat["next"])
        rows = max(0, end - self._planned)
        mean = int(stat["bytes"]) / max(1, int(stat["messages"]))
        return {
            **self.offset(end),
            "rowsBehind": rows,
            "bytesBehind": min(int(stat["bytes"]), round(rows * mean)),
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch; also the first call of a query that restarts in mid
        batch."""
        low, high = self._place_of(start), self._place_of(end)
        began = end.get("began")
        if began is not None and began != start.get("began"):
            low = int(began)  # the first batch once more, from where it began then
        if low >= high:
            return []
        if (low, high) not in self._plans:
            for earlier in [one for one in self._plans if one[1] <= low]:
                self._planner.release(self._plans.pop(earlier)[1])
            self._plans[low, high] = self._planner.plan(low, high, self._id)
        begin, plan = self._plans[low, high]
        return self._planner.stretches(begin, high, self._id, plan)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the position is in Spark's checkpoint."""

    def stop(self) -> None:
        for _, plan in self._plans.values():
            if plan:
                self._planner.release(plan)
        self._plans.clear()
        self._planner.close()

    # -- called on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one stretch. A task tried again yields the same rows."""
        assert isinstance(partition, Stretch)
        return read_stretch(self._options, partition)

    # -- inside

    def _find(self) -> None:
        if not self._id:
            stat = self._planner.stat()
            self._id, self._reached = int(stat["id"]), int(stat["next"])

    def _range(self, begin: int, max_rows: int, max_bytes: int, wait_ms: int) -> dict[str, Any]:
        while True:
            path = stream_path(self._options, "range")
            query = (
                f"?from={begin}&id={self._id}&max_rows={max_rows}&max_bytes={max_bytes}"
                f"&wait_ms={wait_ms}"
            )
            try:
                return self._planner.client.call("GET", path + query, None, wait_ms)
            except Gone as failure:
                first = int(self._planner.stat()["first"])
                if self._options.fail_on_data_loss:
                    lose(self._options, begin, first, failure)
                begin = max(begin, first)  # reported when the batch is planned

    def offset(self, offset: int) -> dict[str, Any]:
        """Return the offset with this number, for Spark's checkpoint."""
        return self._offset(offset, self._began)

    def _offset(self, offset: int, began: int | None) -> dict[str, Any]:
        found = {"stream": self._options.stream, "id": self._id, "offset": offset}
        return found if began is None else {**found, "began": began}

    def _place_of(self, offset: dict[str, Any]) -> int:
        name = part_of(offset, "stream", "one stream")
        id = int(offset["id"])
        if name != self._options.stream:
            raise ValueError(
                f"the checkpoint belongs to stream {name!r}, not to {self._options.stream!r}: use "
                "one checkpoint per stream"
            )
        self._find()
        if id != self._id:
            raise MadeAgain(
                f"the checkpoint is of stream {name!r} with id {id}, which is now {self._id}: it "
                "was deleted and made again. Begin with a new checkpoint"
            )
        place = int(offset["offset"])
        if place > self._reached:
            self._reach(place)
        return place

    def _reach(self, place: int) -> None:
        """Check that the stream has come to a checkpoint's offset: what is published from there on
        would be taken for messages that were read. A range is asked for, which a broker that stands
        by refuses by its leader's newest word only. Raises ValueError."""
        options = self._options
        path = stream_path(options, "range") + f"?from={place}&id={self._id}&max_rows=1"
        try:
            self._reached = int(self._planner.client.call("GET", path)["next"])
        except BrokerRefused as refusal:
            if refusal.status != BAD_REQUEST:
                raise
            raise ValueError(
                f"the checkpoint stands at offset {place} of stream {options.stream!r}, which ends "
                f"at {self._reached}: the broker goes on from an older state, such as a restored "
                "backup, and its next messages have offsets that were read before. Begin with a "
                "new checkpoint"
            ) from refusal


class StreamTable(DataSourceReader):
    """A range of a stream, fixed when a query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.least, self.end = 0, MOST
        """Offsets that are wanted: those below `least`, and from `end` on, are not read."""

    def partitions(self) -> Sequence[InputPartition]:
        planner = _Planner(self._options)
        try:
            id = int(planner.stat()["id"])
            starting, ending = self._options.starting, self._options.ending
            low = planner.place(starting or "at=first")
            high = planner.place(ending or "at=next")
            if starting.startswith("at=") and starting[3:].isdigit() and int(starting[3:]) < low:
                lose(self._options, int(starting[3:]), low)
            low, high = max(low, self.least), min(high, self.end)
            low, plan = planner.plan(low, high, id)
            # An empty list would mean "one partition, of which nothing is known" to Spark.
            return planner.stretches(low, high, id, plan) or [Stretch(low, low, id, "")]
        finally:
            planner.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Stretch)
        return read_stretch(self._options, partition)


class FilteredStreamTable(StreamTable):
    """A range of a stream, of which a query's filters leave a part out. Spark refuses a reader that
    takes filters where its setting for that is not on: so it is asked for."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the range to the offsets that the filters allow. Return all of them: Spark applies
        them to the rows that are read."""
        for one in filters:
            if not isinstance(one, COMPARISONS) or one.attribute != ("offset",):
                continue
            value = int(one.value)
            if isinstance(one, EqualTo | GreaterThanOrEqual):
                self.least = max(self.least, value)
            if isinstance(one, GreaterThan):
                self.least = max(self.least, value + 1)
            if isinstance(one, LessThan):
                self.end = min(self.end, value)
            if isinstance(one, EqualTo | LessThanOrEqual):
                self.end = min(self.end, value + 1)
        return filters


def read_stretch(options: SourceOptions, stretch: Stretch) -> Iterator[pa.RecordBatch]:
    """The rows of a stretch, an answer at a time.

    Raises LookupError if the broker gives others, DataLoss as the options say.
    """
    from tallymark.spark.blocks import Segments
    from tallymark.spark.decode import decode_offsets
    from tallymark.spark.formats.shaping import shape_of

    freeze_modules()
    # Batches go on as they come: a task that fails later is tried again from its beginning.
    client = shared_client(options.endpoint)
    shape = shape_of(options.bodies, options.data_type, options.columns)
    segments = Segments() if options.read_segments else None
    path = stream_path(options, "read" if segments is None else "places")
    query: dict[str, object] = {
        "to": stretch.high, "id": stretch.id,
        "max_bytes": ANSWER_BYTES if segments is None else PLACES_BYTES,
    }  # fmt: skip
    if stretch.plan:
        query["plan"] = stretch.plan
    low = stretch.low
    while low < stretch.high:
        try:
            answer, headers = client.fetch(path, {**query, "from": low})
        except Gone as failure:
            first = int(client.call("GET", stream_path(options))["first"])
            lose(options, low, min(first, stretch.high), failure)
            low = first
            continue
        except BrokerRefused as refusal:
            if refusal.status != 404 or "plan" not in query:
                raise
            del query["plan"]  # from before the broker was started; the range is mostly there
            continue
        end = int(headers["Tallymark-Next"])
        if not low < end <= stretch.high:
            raise LookupError(
                f"{options.endpoint}{path}: asked for offsets {low} to {stretch.high - 1}, the "
                f"answer ends before {end}"
            )
        raw = None if segments is None else segments.of_answer(headers["Tallymark-Segments"])
        for batch in decode_offsets(answer, low, end, options.shown, options.read_columns, raw):
            yield shape(batch).batch
            del batch
        del answer  # before another is asked for: both would be held, as new memory each time
        low = end
