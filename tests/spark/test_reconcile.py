"""The equation in Spark: what balances, what does not, and which messages are named.

One ledger with a queue for every case is reconciled once; each test looks at its queue.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tallymark.spark import ledger
from tallymark.spark.reconcile import Account, Claim, Reconciliation, reconcile

pytestmark = pytest.mark.spark

TIME = datetime(2026, 1, 1, tzinfo=UTC)
Rows = list[tuple[Any, ...]]


def row(
    kind: str, queue: int, first: int, last: int, reason: str | None = None, blob: str | None = None
) -> tuple[Any, ...]:
    source = "checkpoint" if kind in ("live", "leased") else "journal"
    count = last - first + 1
    return (source, 64, 0, kind, queue, first, count, TIME, reason, 0, 0, 0, blob)


class Story:
    """A ledger in the making, a queue at a time."""

    def __init__(self) -> None:
        self.rows: Rows = []
        self.claims: list[Claim] = []
        self.ids: dict[str, int] = {}

    def queue(self, name: str, *events: tuple[Any, ...], **claimed: Any) -> None:
        """events: (kind, first, last[, reason]); claimed: the broker's counters, None if it has no
        such queue any more."""
        number = self.ids[name] = len(self.ids) + 1
        self.rows += [row(kind, number, *rest) for kind, *rest in events]
        definition = {"op": "queue", "vhost": "/", "id": number, "name": name}
        self.rows.append(row("definition", 0, 0, -1, blob=json.dumps(definition)))
        if claimed:
            self.claims.append(Claim(number, "/", name, claimed))


def tell() -> Story:
    story = Story()
    story.queue(
        "balanced",
        ("entered", 1, 60),
        ("entered", 61, 100),
        ("settled", 11, 30, "client"),
        ("settled", 1, 10, "batch"),
        ("dropped", 31, 35, "rejected"),
        ("dropped", 36, 36, "purged"),
        ("live", 37, 90),
        ("leased", 91, 100),
        entered=100, ready=54, acquired=10, settled=30,
    )  # fmt: skip
    story.queue(
        "settled twice",
        ("entered", 1, 10),
        ("settled", 1, 10, "client"),
        ("settled", 4, 5, "client"),
        entered=10, settled=10,
    )  # fmt: skip
    story.queue(
        "lost", ("entered", 1, 10), ("settled", 1, 7, "client"), entered=10, settled=7, ready=3
    )
    story.queue(
        "back from the dead",
        ("entered", 1, 4),
        ("settled", 1, 4, "client"),
        ("live", 3, 3),
        entered=4, settled=4, ready=1,
    )  # fmt: skip
    story.queue(
        "from nowhere",
        ("entered", 1, 2),
        ("settled", 1, 3, "client"),
        entered=2, settled=3,
    )  # fmt: skip
    story.queue(
        "settled and dropped",
        ("entered", 1, 2),
        ("settled", 1, 2, "client"),
        ("dropped", 2, 2, "purged"),
        entered=2, settled=2,
    )  # fmt: skip
    story.queue(
        "kept in part",  # the files that told of 1..50 are past their retention
        ("settled", 41, 60, "client"),
        ("entered", 51, 100),
        ("dropped", 45, 46, "purged"),
        ("live", 40, 40),
        ("live", 61, 100),
        entered=100, ready=41, settled=57, dropped={"purged": 2},
    )  # fmt: skip
    story.queue("deleted", ("entered", 1, 9), ("dropped", 1, 9, "queue_deleted"))
    story.queue("not durable", entered=9, ready=2, settled=6, dropped={"purged": 1})
    story.queue("miscounted", ("entered", 1, 5), ("live", 1, 5), entered=4, ready=5)
    return story


@pytest.fixture(scope="module")
def outcome(spark: SparkSession) -> Reconciliation:
    story = tell()
    rows = spark.createDataFrame(story.rows, ledger.DDL)
    return reconcile(rows, 64, story.claims)


def account(outcome: Reconciliation, name: str) -> Account:
    return next(one for one in outcome.accounts if one.queue == name)


def faults(outcome: Reconciliation, name: str) -> list[tuple[int, int, str]]:
    return [(one.first, one.last, one.fault) for one in outcome.faults if one.queue == name]


def test_a_queue_that_balances(outcome: Reconciliation) -> None:
    found = account(outcome, "balanced")
    assert (found.entered, found.settled, found.difference) == (100, 30, 0)
    assert found.dropped == {"rejected": 5, "purged": 1}
    assert (found.still_there["ready"], found.still_there["acquired"]) == (54, 10)
    assert faults(outcome, "balanced") == []


@pytest.mark.parametrize(
    ("name", "difference", "named"),
    [
        ("settled twice", -2, (4, 5, "settled more than once")),
        ("lost", 0, (8, 10, "neither ended nor there: lost")),
        ("back from the dead", -1, (3, 3, "ended, and yet still there")),
        ("from nowhere", -1, (3, 3, "ended or is there, but never entered")),
        ("settled and dropped", -1, (2, 2, "settled and dropped")),
        ("miscounted", 0, (5, 5, "entered: 4 by the broker, 5 here")),
    ],
)
def test_what_does_not_balance_is_named(
    outcome: Reconciliation, name: str, difference: int, named: tuple[int, int, str]
) -> None:
    assert account(outcome, name).difference == difference
    assert faults(outcome, name) == [named]


def test_what_is_older_than_the_ledger_is_left_out_and_said(outcome: Reconciliation) -> None:
    found = account(outcome, "kept in part")
    assert found.before_ledger == 50
    assert (found.entered, found.settled, found.dropped) == (50, 10, {})
    assert found.difference == 0
    assert faults(outcome, "kept in part") == []


def test_a_deleted_queue_keeps_its_name_and_its_account(outcome: Reconciliation) -> None:
    found = account(outcome, "deleted")
    assert (found.entered, found.dropped, found.difference) == (9, {"queue_deleted": 9}, 0)


def test_a_queue_outside_the_ledger_is_marked(outcome: Reconciliation) -> None:
    found = account(outcome, "not durable")
    assert not found.from_ledger
    assert found.difference == 0


def test_one_fault_unbalances_all(outcome: Reconciliation) -> None:
    assert not outcome.balanced
    assert Reconciliation(64, [account(outcome, "balanced")]).balanced
