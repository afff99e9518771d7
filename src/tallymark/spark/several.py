"""format("tallymark") over several queues or streams: by list, by pattern, on several brokers.

Each is read by a reader of its own, with a lease and a fence of its own; an offset of the query is
the map of theirs, `{"queues": {"orders": {...}, "returns": {...}}}`. So a batch is a range of each,
and each is settled up to there only when Spark has committed the batch: a driver that dies between
two settlements leaves the second to the next start, which settles what the checkpoint has
committed before it asks for more.

Which queues a batch has stands in its offset. The options only say from which queues more is asked
for: what was taken out of the list is settled, where it is still there, and not asked again; what
is new begins at its subscription's settled floor.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from http.client import NOT_FOUND
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from tallymark.spark.admission import Admission, MadeAgain, Tail, behind, part_of, shares
from tallymark.spark.client import BrokerRefused, Client, Endpoint, Json, api_path, host_and_port
from tallymark.spark.options import SourceOptions
from tallymark.spark.reading import limits

if TYPE_CHECKING:
    import pyarrow as pa

Made = TypeVar("Made")

TURN_MS: Final = 100
"""Milliseconds for which each of several brokers is waited for in turn."""


class Part(InputPartition):
    """A partition of one of the readers."""

    def __init__(self, key: str, inner: InputPartition) -> None:
        self.key = key
        self.inner = inner


class _Named:
    """The queues or streams that the options name. Key: a name, after the broker's address where
    there are several brokers."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._one_broker = len(options.endpoints) == 1
        self._by_address = {_address(one): one for one in options.endpoints}
        self.clients = {_address(one): Client(one) for one in options.endpoints}

    def all(self) -> list[str]:
        """The keys of those that are read now, in order."""
        options = self._options
        return [
            self._key(address, name)
            for address in self._by_address
            for name in (self._matching(address) if options.pattern else options.names)
        ]

    def has(self, key: str) -> bool:
        """Return whether the options name this one, whether or not it is there."""
        name = self.split(key)[1]
        if self._options.pattern:
            return re.fullmatch(self._options.pattern, name) is not None
        return name in self._options.names

    def options_of(self, key: str) -> SourceOptions:
        """Raises ValueError: the key is of a broker that the options do not name."""
        address, name = self.split(key)
        if address not in self._by_address:
            raise ValueError(
                f"the checkpoint is of {key!r}: expected a broker of option urls, "
                f"{', '.join(self._by_address)}"
            )
        endpoint = self._by_address[address]
        shown = host_and_port(endpoint.host, endpoint.port)
        return replace(
            self._options,
            endpoint=endpoint, names=(), pattern="",
            queue="" if self._options.of_streams else name,
            stream=name if self._options.of_streams else "",
            label="" if self._one_broker else f"{shown}/{name}",
        )  # fmt: skip

    def split(self, key: str) -> tuple[str, str]:
        """Return the broker's address and the name."""
        if self._one_broker:
            return next(iter(self._by_address)), key
        address, _, name = key.partition("/")
        return address, name

    def close(self) -> None:
        for client in self.clients.values():
            client.close()

    def _key(self, address: str, name: str) -> str:
        return name if self._one_broker else f"{address}/{name}"

    def _matching(self, address: str) -> list[str]:
        """The names of durable, shared queues that the pattern matches from end to end."""
        pattern = re.compile(self._options.pattern)
        rows = self.clients[address].call("GET", api_path("queues"))["queues"]
        return sorted(
            row["name"]
            for row in rows
            if row["vhost"] == self._options.vhost
            and row["durable"]
            and not row["exclusive"]
            and "first_offset" not in row  # a stream
            and pattern.fullmatch(row["name"])
        )


class SeveralStreams(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Several queues or streams as they grow, in one query."""

    def __init__(self, options: SourceOptions, make: Callable[[SourceOptions], Tail]) -> None:
        """make: makes the reader of one queue or stream."""
        self._options = options
        self._make = make
        self._kind = "streams" if options.of_streams else "queues"
        self._named = _Named(options)
        self._readers: dict[str, Tail] = {}
        self._admission = Admission(options)
        self._now: list[str] | None = None
        """Keys that an available-now run reads; None: this is no such run."""
        self._turn = 0
        self._planned: list[str] | None = None
        """Keys of the newest batch."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": {}}

    # -- called on the driver, one after the other

    def initialOffset(self) -> dict[str, Any]:
        return self._offset({key: self._reader(key).initialOffset() for key in self._named.all()})

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the target of each queue that there is now."""
        self._now = self._named.all()
        for key in self._now:
            self._reader(key).prepareForTriggerAvailableNow()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Settle what the batch before has of each queue, and take the next batch's share of each.

        Waits up to `waitMs` for messages in any of them (not under available-now).
        Raises Fenced when another reader attached to one of them.
        """
        offsets = self._parts(start)
        at = self._committed(offsets)
        if self._now is not None:
            self._now = [key for key in self._now if key in at or key not in offsets]
        keys = self._named.all() if self._now is None else self._now
        self._planned = list(keys)
        new = {key: self._reader(key).initialOffset() for key in keys if key not in at}
        if new:  # read from the next batch on, which then says where it begins
            return self._offset({key: new.get(key) or offsets[key] for key in keys})
        # One that was deleted is in no later offset, or it would be looked for at each poll.
        same = start if at.keys() == offsets.keys() else self._offset({k: offsets[k] for k in keys})
        waiting = self._waiting({key: at[key] for key in keys})
        if self._now is None and not self._admission.is_enough(sum(waiting.values())):
            return same
        max_rows, max_bytes = limits(self._options, limit)
        self._turn += 1
        taken = shares(waiting, max_rows, self._options.max_rows_each, self._turn)
        total = sum(taken.values())
        ends = {
            key: self._reader(key).extend(at[key], rows, max(1, max_bytes * rows // total), 0)
            for key, rows in taken.items()
        }
        if all(end == at[key] for key, end in ends.items()):
            return same
        ahead = {key: self._reader(key).offset(end) for key, end in ends.items()}
        return self._offset({key: ahead.get(key, offsets[key]) for key in keys})

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the offsets behind everything there is, for the query's progress; how far behind
        the newest batch is, of all together."""
        if self._planned is None:
            return None
        asked = {
            key: self._unless_deleted(key, self._reader(key).reportLatestOffset)
            for key in self._planned
        }
        told = {key: one for key, one in asked.items() if one is not None}
        found = {
            **self._offset(told),
            "rowsBehind": sum(one.get("rowsBehind", 0) for one in told.values()),
            "bytesBehind": sum(one.get("bytesBehind", 0) for one in told.values()),
        }
        if self._kind == "queues":
            ages = [one.get("oldestUnsettledMs", -1) for one in told.values()]
            found["oldestUnsettledMs"] = max(ages, default=-1)
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch, of all its queues; also the first call of a query that
        restarts in mid batch."""
        begins, found = self._parts(start), list[InputPartition]()
        for key, stop in self._parts(end).items():
            plan = partial(self._plan, key, begins.get(key), stop)
            found += [Part(key, one) for one in self._unless_deleted(key, plan) or []]
        return found

    def commit(self, end: dict[str, Any]) -> None:
        """Settle `end` on each queue; called one batch later, or never."""
        for key, offset in self._parts(end).items():
            if not self._is_over(key, offset):
                self._unless_deleted(key, partial(self._reader(key).commit, offset))

    def stop(self) -> None:
        for reader in self._readers.values():
            reader.stop()
        self._named.close()

    # -- called on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return self._reader(partition.key).read(partition.inner)

    # -- inside

    def _reader(self, key: str) -> Tail:
        if key not in self._readers:
            self._readers[key] = self._make(self._named.options_of(key))
        return self._readers[key]

    def _committed(self, offsets: Mapping[str, dict[str, Any]]) -> dict[str, int]:
        """Settle each; return their numbers, without those that were deleted."""
        found = {}
        for key, offset in offsets.items():
            if self._is_over(key, offset):
                continue
            at = self._unless_deleted(key, partial(self._reader(key).committed, offset))
            if at is not None:
                found[key] = at
        return found

    def _is_over(self, key: str, offset: dict[str, Any]) -> bool:
        """Return whether the options leave this one out, and what its offset is of was deleted:
        nothing is left to be settled, and nothing to be read."""
        if self._named.has(key):
            return False
        try:
            return not self._reader(key).is_of(offset)
        except BrokerRefused as error:
            if error.status != NOT_FOUND:
                raise
            return True

    def _plan(
        self, key: str, begin: dict[str, Any] | None, stop: dict[str, Any]
    ) -> Sequence[InputPartition]:
        reader = self._reader(key)
        if begin is None or _is_made_again(begin, stop):
            begin = reader.initialOffset()
        return [] if begin == stop else reader.partitions(begin, stop)

    def _unless_deleted(self, key: str, work: Callable[[], Made]) -> Made | None:
        """Do something with a queue. Where a pattern named it, it was deleted (and perhaps made
        again), and that is no failure by option, say so and return None."""
        try:
            return work()
        except (BrokerRefused, MadeAgain) as error:
            is_deleted = isinstance(error, MadeAgain) or error.status == NOT_FOUND
            if not is_deleted or self._options.fail_on_data_loss:
                raise
            reason = error.reason if isinstance(error, BrokerRefused) else "it was made again"
            print(f"tallymark: data loss: {key}: {reason}", file=sys.stderr, flush=True)
            self._readers.pop(key).stop()
            return None

    def _waiting(self, at: Mapping[str, int]) -> dict[str, int]:
        """Return how many rows each has beyond its number, once there are as many as a batch waits
        for, or after a while."""
        places: dict[str, dict[str, Json]] = {address: {} for address in self._named.clients}
        for key, number in at.items():
            places[self._named.split(key)[0]][key] = self._reader(key).place(number)
        waiting = self._ask(places, 0)
        if self._now is None and sum(waiting.values()) < self._admission.rows:
            waiting = self._ask(places, self._admission.wait_ms(self._options.wait_ms))
        left = {key: self._reader(key).until_target(number) for key, number in at.items()}
        return {
            key: rows if (most := left[key]) is None else min(rows, most)
            for key, rows in waiting.items()
        }

    def _ask(self, places: Mapping[str, Mapping[str, Json]], wait_ms: int) -> dict[str, int]:
        """Ask each broker, and wait: for one broker, or for several in turns."""
        found: dict[str, int] = {}
        many = len(places) > 1
        turns = -(-wait_ms // (TURN_MS * len(places))) if many else 1
        for _ in range(max(1, turns)):
            for address, of_one in places.items():
                lacking = max(1, self._admission.rows - sum(found.values()))
                most_ms = min(wait_ms, TURN_MS) if many else wait_ms
                told = behind(self._named.clients[address], list(of_one.values()), lacking, most_ms)
                found.update(zip(of_one, told, strict=True))
            if sum(found.values()) >= self._admission.rows:
                break
        return found

    def _offset(self, parts: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        return {self._kind: dict(parts)}

    def _parts(self, offset: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        return dict(part_of(offset, self._kind, f"several {self._kind}"))


class SeveralTables(DataSourceReader):
    """Several queues or streams as one table."""

    def __init__(
        self, options: SourceOptions, make: Callable[[SourceOptions], DataSourceReader]
    ) -> None:
        """make: makes the reader of one."""
        self._named = _Named(options)
        self._make = make

    def partitions(self) -> Sequence[InputPartition]:
        keys = self._named.all()
        self._named.close()
        parts = [Part(key, one) for key in keys for one in self._table(key).partitions()]
        # An empty list would mean "one partition, of which nothing is known" to Spark.
        return parts or [Part("", InputPartition(None))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        if not partition.key:
            return iter(())
        return self._table(partition.key).read(partition.inner)

    def _table(self, key: str) -> DataSourceReader:
        return self._make(self._named.options_of(key))


def _is_made_again(begin: Mapping[str, Any], end: Mapping[str, Any]) -> bool:
    """Return whether a batch ends with another queue of this name than the one it begins with. That
    one was deleted, and of this one nothing is in the batch: it is read from the next one on."""
    return any(begin.get(name) != end.get(name) for name in ("epoch", "id"))


def _address(endpoint: Endpoint) -> str:
    """Return what a broker is called in keys. Without the brackets of an IPv6 address, which are in
    no checkpoint; what is shown has them."""
    return f"{endpoint.host}:{endpoint.port}"
