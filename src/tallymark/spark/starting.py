"""Starting a streaming query on a machine that is busy with something else.

For the source of a streaming query Spark starts a Python process, which has ten seconds to connect
back. The limit is fixed in Spark (PythonWorkerFactory). A query that fails so has read nothing and
changed nothing: it can be started again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

STARTS: Final = 5
"""Maximum number of starts."""
LOOK_EVERY_S: Final = 0.1
TOO_BUSY: Final = "Python worker failed to connect back"
"""Spark's text for a Python process that took too long."""
INITIALIZING: Final = "Initializing"
"""Beginning of a query's status until its sources are there."""


def begin(start: Callable[[], StreamingQuery], stop: Event | None = None) -> StreamingQuery:
    """Start a streaming query and wait until its sources are there. Where the machine was too busy
    for its Python process, start it again and say so on stderr.

    A query that failed for another reason, or too often, is returned as it is: awaitTermination
    raises what it failed with. So is the present one as soon as `stop` is set.
    """
    stop = stop or Event()
    query = _initialized(start(), stop)
    for left in range(STARTS - 1, 0, -1):
        if stop.is_set() or TOO_BUSY not in str(query.exception() or ""):
            break
        print(
            "tallymark: Spark's Python process did not start within 10 s, this machine is busy; "
            f"nothing was read yet: starting the query again (up to {left} more)",
            file=sys.stderr,
            flush=True,
        )
        query = _initialized(start(), stop)
    return query


def _initialized(query: StreamingQuery, stop: Event) -> StreamingQuery:
    from pyspark.errors import StreamingQueryException

    while (
        not stop.is_set()
        and query.isActive
        and str(query.status["message"]).startswith(INITIALIZING)
    ):
        with suppress(StreamingQueryException):  # kept by the query: see begin
            query.awaitTermination(LOOK_EVERY_S)  # type: ignore[arg-type]  # parts of a second, too
    return query
