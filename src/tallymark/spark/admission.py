"""Size of a micro-batch: the share of each of several queues, and how many rows are worth one."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from tallymark.spark.client import Client, Json
from tallymark.spark.options import SourceOptions

BEHIND: Final = "/api/tallymark/behind"


class MadeAgain(ValueError):
    """The checkpoint is of what was deleted and made again under its name."""


class Tail(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of one queue or stream as it grows, alone or as one of several."""

    @abstractmethod
    def is_of(self, offset: dict[str, Any]) -> bool:
        """Return whether this is what an offset is of, and not deleted and made again since then.
        Makes nothing. Raises BrokerRefused: it is deleted."""

    @abstractmethod
    def committed(self, offset: dict[str, Any]) -> int:
        """Settle what is below an offset, whose batch is committed; return its number."""

    @abstractmethod
    def place(self, begin: int) -> Json:
        """Return the reader that has planned what is below `begin`, as /behind wants it."""

    @abstractmethod
    def until_target(self, begin: int) -> int | None:
        """Return how much is left under available-now; None: this is no such run."""

    @abstractmethod
    def extend(self, begin: int, max_rows: int, max_bytes: int, wait_ms: int) -> int:
        """Return the number behind a batch that begins there; no message: `begin`."""

    @abstractmethod
    def offset(self, number: int, /) -> dict[str, Any]:
        """Return the offset with this number, for Spark's checkpoint."""


def part_of(offset: Mapping[str, Any], name: str, what: str) -> Any:
    """Return a part of an offset, which each checkpoint of this way to read has. what: this way.
    Raises ValueError: the checkpoint is of another one."""
    if name not in offset:
        raise ValueError(
            f"the checkpoint is not of {what}, but has {sorted(offset)}: begin with a new one, or "
            "read as before"
        )
    return offset[name]


class Admission:
    """Decides whether a batch is begun: there are `minRowsPerBatch` rows, or there are some and the
    last batch was begun `maxTriggerDelay` ago."""

    def __init__(self, options: SourceOptions, now_s: Callable[[], float] = time.monotonic) -> None:
        self._min_rows = options.min_rows
        self._delay_s = options.max_delay_ms / 1000
        self._wait_ms = options.wait_ms
        self._now_s = now_s
        self._since_s = now_s()

    def admits(self, client: Client, reader: Tail, begin: int) -> bool:
        """Return whether to begin a batch of one reader. Waits for rows for `waitMs` at most."""
        if self._min_rows == 1:
            return True
        wait_ms = self.wait_ms(self._wait_ms)
        return self.is_enough(sum(behind(client, [reader.place(begin)], self._min_rows, wait_ms)))

    @property
    def rows(self) -> int:
        """Rows that a batch waits for."""
        return self._min_rows

    def wait_ms(self, most: int) -> int:
        """Return for how long to wait for `rows`."""
        left_s = self._since_s + self._delay_s - self._now_s()
        return most if left_s <= 0 else min(most, int(left_s * 1000) + 1)

    def is_enough(self, rows: int) -> bool:
        """Return whether so many rows are worth a batch; one is begun then."""
        now_s = self._now_s()
        is_late = now_s >= self._since_s + self._delay_s
        if rows < self._min_rows and not (rows and is_late):
            return False
        self._since_s = now_s
        return True


def behind(client: Client, places: Sequence[Json], rows: int, wait_ms: int) -> list[int]:
    """Return how many messages each reader has not planned yet, once there are `rows` in all, or
    after `wait_ms`. Of what does not exist there are none. Raises Fenced."""
    leased = [place for place in places if "subscription" in place]
    kept = [place for place in places if "subscription" not in place]
    wanted = {"subscriptions": leased, "streams": kept, "rows": rows, "wait_ms": wait_ms}
    answer = client.call("POST", BEHIND, wanted, wait_ms)
    told = {True: iter(answer["subscriptions"]), False: iter(answer["streams"])}
    return [next(told["subscription" in place]) or 0 for place in places]


def shares(
    waiting: Mapping[str, int], most: int, most_each: int = 0, turn: int = 0
) -> dict[str, int]:
    """Return the rows that each queue gives to a batch of `most`: by what waits in it, one at
    least. most_each: limit for each; 0: none. turn: of more queues than rows, the number of the
    first to give.

    >>> shares({"a": 900, "b": 100, "c": 0}, 100)
    {'b': 10, 'a': 90}
    >>> shares({"a": 5, "b": 5, "c": 5}, 2, turn=1)
    {'b': 1, 'c': 1}
    """
    some = [name for name, rows in waiting.items() if rows]
    at = turn % len(some) if some else 0
    some = (some[at:] + some[:at])[:most]
    found = {}
    left, left_waiting = most, sum(waiting[name] for name in some)
    for name in sorted(some, key=waiting.__getitem__):
        share = max(1, left * waiting[name] // left_waiting)
        left_waiting -= waiting[name]
        share = min(share, waiting[name], most_each or share)
        left -= share
        found[name] = share
    return found
