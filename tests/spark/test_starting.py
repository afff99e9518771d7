"""A query whose Python process could not be started in time is started again."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import StreamingQueryException

from tallymark.spark.land import land_batches
from tallymark.spark.starting import STARTS, TOO_BUSY, begin


class Query:
    """What a query shows of itself: its sources are there after some looks, or it fails."""

    def __init__(self, failure: str | None, looks: int = 2) -> None:
        self._failure = failure
        self._looks = looks

    @property
    def isActive(self) -> bool:
        return self._looks > 0 or self._failure is None

    @property
    def status(self) -> dict[str, Any]:
        return {"message": "Initializing sources" if self._looks else "Waiting for data to arrive"}

    def awaitTermination(self, seconds: float) -> bool:
        self._looks -= 1
        if self._looks == 0 and self._failure:
            raise StreamingQueryException(self._failure)
        return False

    def exception(self) -> StreamingQueryException | None:
        return StreamingQueryException(self._failure) if self._failure and not self._looks else None


def begun(*failures: str | None) -> tuple[Query, int]:
    """Return the query and how often it was started, each start failing so."""
    queries = [Query(failure) for failure in failures]
    starts = iter(queries)
    query = cast(Query, begin(lambda: cast(Any, next(starts))))
    return query, queries.index(query) + 1


def test_a_query_that_starts_is_started_once() -> None:
    assert begun(None, None)[1] == 1


def test_a_busy_machine_has_it_started_again_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    query, starts = begun(TOO_BUSY, TOO_BUSY, None)
    assert starts == 3
    assert query.exception() is None
    told = capsys.readouterr().err.splitlines()
    assert [line.rpartition("(")[2] for line in told] == ["up to 4 more)", "up to 3 more)"]


def test_another_failure_is_the_query_s_own() -> None:
    query, starts = begun("the broker is gone", None)
    assert starts == 1
    assert "the broker is gone" in str(query.exception())


def test_a_command_that_is_stopped_waits_for_no_sources_and_starts_nothing_again() -> None:
    stop = Event()
    stop.set()
    waiting = Query(None, looks=1)
    assert cast(Any, begin(lambda: cast(Any, waiting), stop)) is waiting
    assert waiting.status["message"].startswith("Initializing")
    failed = Query(TOO_BUSY, looks=0)
    starts = iter([failed])
    assert cast(Any, begin(lambda: cast(Any, next(starts)), stop)) is failed


def test_it_is_not_started_for_ever() -> None:
    query, starts = begun(*[TOO_BUSY] * STARTS)
    assert starts == STARTS
    assert TOO_BUSY in str(query.exception())


class Writer:
    """A writer of a query, which takes all that it is told, and starts one."""

    def __init__(self) -> None:
        self.options: dict[str, str] = {}

    def foreachBatch(self, landing: object) -> Writer:
        return self

    def option(self, name: str, value: str) -> Writer:
        self.options[name] = value
        return self

    def trigger(self, **how: object) -> Writer:
        return self

    def start(self) -> Query:
        return Query(None)


@pytest.mark.parametrize("to", ["hdfs://nn:9000/lake/orders", "s3a://lake/orders/", "lake/orders"])
def test_a_checkpoint_lies_in_the_tables_folder_whatever_address_that_has(to: str) -> None:
    """A path of this machine has one slash where an address has two."""
    writer = Writer()
    messages = cast(Any, SimpleNamespace(writeStream=writer))
    land_batches(messages, to, lambda batch, number: None)
    assert writer.options == {"checkpointLocation": f"{to.rstrip('/')}/_checkpoint"}
