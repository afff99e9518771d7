"""Reading from a broker in Spark's workers: one connection for each process, how much is asked for
at a time, and what a task costs beside its rows."""

from __future__ import annotations

import gc
from typing import Final

from pyspark import TaskContext
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)

from tallymark.spark.client import Client, Endpoint
from tallymark.spark.options import SourceOptions

ANSWER_BYTES: Final = 24 << 20
"""Raw bytes asked for at a time from the journal's files. Each answer costs the broker nearly half
a millisecond beside its bytes. From 32 MiB on malloc gives each answer memory that is new, which
costs the worker more than the broker saves."""
_is_frozen = False
"""True once the modules of this process are left out of garbage collections."""
_clients: dict[Endpoint, Client] = {}


def shared_client(endpoint: Endpoint) -> Client:
    """The connection of this process to that broker. Spark forks its workers and uses them again
    and again: they keep it from task to task (Client notices the fork)."""
    return _clients.setdefault(endpoint, Client(endpoint))


def freeze_modules() -> None:
    """In a worker of Spark, once: leave what is there now, modules nearly all, out of garbage
    collections. Spark's daemon makes a full one behind each task, which looked through PySpark,
    Arrow and numpy each time: 50 ms of CPU, more than 20,000 rows cost to read."""
    global _is_frozen
    if not _is_frozen and TaskContext.get() is not None:
        gc.freeze()
        _is_frozen = True


def limits(options: SourceOptions, limit: ReadLimit) -> tuple[int, int]:
    """Return the most rows and raw bytes of the next batch: the engine's limit comes first."""
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows, options.max_bytes
    if isinstance(limit, ReadMaxBytes):
        return options.max_rows, limit.max_bytes
    return options.max_rows, options.max_bytes
