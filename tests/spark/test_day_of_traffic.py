"""A day of mixed traffic under a manual clock: its account comes out, hour by hour, and one forged
record is found. The long day is bench/day_of_traffic.py [LC-5].
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bench.day_of_traffic import Day, Plan, Told
from bench.forge import Forged, forge
from tallymark.spark import ledger
from tallymark.spark.account import Reconciliation
from tests.spark.both import run
from tests.support.long import longer, sized

pytestmark = [pytest.mark.spark, longer]

TRANSITIONS = sized(100_000, 300_000, 11_500_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("day")


@pytest.fixture(scope="module")
def told(folder: Path) -> Told:
    return Day(folder, Plan(TRANSITIONS, segment_bytes=1 << 20)).run()


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, folder: Path, told: Told) -> Reconciliation:
    return run(spark, folder, None, hourly=True)


@pytest.fixture(scope="module")
def forged(folder: Path, outcome: Reconciliation) -> Forged:
    """After the account was taken."""
    return forge(folder)


def ledger_rows(folder: Path) -> Iterator[dict[str, Any]]:
    for part in ledger.plan(folder):
        for batch in ledger.read_file(part):
            yield from batch.to_pylist()


def entering(folder: Path, forged: Forged) -> tuple[dict[str, Any], int]:
    """The one row with which that message entered, and its place in it."""
    (found,) = [
        (row, forged.sequence - row["first"])
        for row in ledger_rows(folder)
        if (row["source"], row["kind"], row["queue_id"]) == ("journal", "entered", forged.queue_id)
        and 0 <= forged.sequence - row["first"] < row["count"]
    ]
    return found


def test_everything_happens_in_a_day(told: Told, folder: Path) -> None:
    assert told.transitions > TRANSITIONS * 0.8
    reasons = {(row["kind"], row["reason"]) for row in ledger_rows(folder)}
    assert reasons >= {
        ("settled", "client"), ("settled", "on_send"), ("settled", "batch"),
        ("settled", "transfer"), ("returned", "client"), ("returned", "close"),
        ("returned", "loss"), ("returned", "timeout"), ("deferred", "client"),
        ("dead_lettered", "rejected"), ("dead_lettered", "expired"), ("dead_lettered", "maxlen"),
        ("dead_lettered", "delivery_limit"), ("dropped", "purged"), ("dropped", "duplicate"),
        ("dropped", "queue_deleted"), ("dropped", "transient_at_restart"),
        ("dropped", "retention"), ("staged", "accepted"), ("unstaged", None),
        ("committed", None), ("leased", None),
    }  # fmt: skip


def test_lc_5_a_day_of_mixed_traffic_comes_out(outcome: Reconciliation, told: Told) -> None:
    assert outcome.faults == []
    assert {account.difference for account in outcome.accounts} == {0}
    assert {hour.difference for hour in outcome.hours} == {0}
    assert {hour.hour for hour in outcome.hours if hour.queue == "bill"} == {
        f"2026-01-01T{hour:02}:00Z" for hour in range(24)
    }


def test_lc_5_the_hours_of_a_queue_add_up_to_its_account(outcome: Reconciliation) -> None:
    for account in outcome.accounts:
        hours = [h for h in outcome.hours if (h.queue, h.vhost) == (account.queue, account.vhost)]
        if account.queue == "brief":  # deleted and made again: several accounts of one name
            continue
        assert sum(hour.entered for hour in hours) == account.entered
        assert sum(hour.there for hour in hours) == sum(account.still_there.values())
        assert sum(hour.settled for hour in hours) == account.settled
        assert sum(hour.dead_lettered for hour in hours) == account.dead_lettered
        for reason, count in account.dropped.items():
            assert sum(hour.dropped.get(reason, 0) for hour in hours) == count


def test_lc_5_one_forged_record_is_found_and_its_message_named(
    spark: SparkSession, folder: Path, forged: Forged
) -> None:
    row, behind = entering(folder, forged)
    payloads = {
        payload["payload"]: payload["first"]
        for payload in ledger_rows(folder)
        if payload["kind"] == "payload"
    }
    expected = payloads[row["payload"]] + row["lo"] + behind

    found = run(spark, folder, None, hourly=True)
    assert not found.balanced
    (fault,) = found.faults
    assert (fault.first, fault.last) == (forged.sequence, forged.sequence)
    assert fault.fault == "neither ended nor there: lost"
    assert fault.message_id == expected
    (wrong,) = [hour for hour in found.hours if hour.difference or hour.faults]
    assert (wrong.queue, wrong.difference, wrong.faults) == (fault.queue, 1, 1)
    assert wrong.hour == f"{row['time']:%Y-%m-%dT%H:00Z}"
    assert [account.difference for account in found.accounts if account.queue == fault.queue] == [1]
