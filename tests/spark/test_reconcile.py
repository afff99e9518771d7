"""The equation in Spark: what balances, what does not, and which messages are named.

One ledger with a queue for every case is reconciled once; each test looks at its queue.
"""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tallymark.engine.record import Record
from tallymark.spark import ledger
from tallymark.spark.account import STILL_THERE, Account, Claim, Reconciliation, Returned
from tallymark.spark.claims import kept
from tallymark.spark.ledger_rows import read_ledger
from tallymark.spark.reconcile_table import show
from tallymark.stored import records
from tests.journal.builders import TIME as LONG_AGO
from tests.journal.builders import Disk, entering
from tests.journal.test_formats import FORMATS
from tests.spark.both import reconcile, run

pytestmark = pytest.mark.spark

TIME = datetime(2026, 1, 1, tzinfo=UTC)
Rows = list[tuple[Any, ...]]


def row(
    kind: str,
    queue: int,
    first: int,
    last: int,
    reason: str | None = None,
    blob: str | None = None,
    source: tuple[int, int] | tuple[None, None] = (None, None),
    flags: int = 0,
) -> tuple[Any, ...]:
    where = "checkpoint" if kind in ("live", "still leased", "still pending") else "journal"
    kind = kind.removeprefix("still ")
    count = last - first + 1
    extra = (None, None, *source, *(None,) * (len(ledger.SCHEMA) - 17))
    return (where, 64, 0, kind, queue, first, count, TIME, reason, 0, 0, flags, blob, *extra)


class Story:
    """A ledger in the making, a queue at a time."""

    def __init__(self) -> None:
        self.rows: Rows = []
        self.claims: list[Claim] = []
        self.ids: dict[str, int] = {}

    def queue(self, name: str, *events: tuple[Any, ...], vhost: str = "/", **claimed: Any) -> None:
        """events: (kind, first, last[, reason]); claimed: the broker's counters, None if it has no
        such queue any more. What was settled by a reader was taken before, unless it says "by
        nobody"."""
        number = self.ids[name] = len(self.ids) + 1
        for kind, first, last, *reason in events:
            if kind == "settled by nobody":
                kind = "settled"
            elif kind == "settled" and reason[0] in ("client", "batch"):
                self.rows.append(row("acquired", number, first, last))
            self.rows.append(row(kind, number, first, last, *reason))
        definition = {"op": "queue", "vhost": vhost, "id": number, "name": name}
        self.rows.append(row("definition", 0, 0, -1, blob=json.dumps(definition)))
        if claimed:
            self.claims.append(Claim(number, vhost, name, claimed))

    def letters(self, target: str, first: int, last: int, source: str, at: int) -> None:
        """Messages first..last of `target` came as dead letters of `source`, from `at` on there."""
        ids = self.ids
        self.rows.append(row("entered", ids[target], first, last, source=(ids[source], at)))


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
        ("still leased", 91, 100),
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
    story.queue(
        "given back",
        ("entered", 1, 9),
        ("returned", 1, 5, "timeout"),
        ("returned", 4, 5, "timeout"),
        ("returned", 1, 1, "close"),
        ("settled", 1, 9, "client"),
        entered=9, settled=9,
    )  # fmt: skip
    story.queue(
        "taken by nobody",
        ("entered", 1, 9),
        ("settled", 1, 3, "client"),
        ("settled by nobody", 4, 5, "client"),
        ("settled", 6, 6, "on_send"),
        ("leased", 7, 7),
        ("settled by nobody", 7, 8, "batch"),
        ("live", 9, 9),
        entered=9, settled=8, ready=1,
    )  # fmt: skip
    story.queue(  # what its policy lets the ledger leave out
        "sparse",
        ("entered", 1, 2),
        ("settled by nobody", 1, 2, "client"),
        vhost="thrifty", entered=2, settled=2,
    )  # fmt: skip
    about = {"op": "policy", "vhost": "thrifty", "definition": {"ledger": "account"}}
    story.rows.append(row("definition", 0, 0, -1, blob=json.dumps(about)))
    story.queue(
        "began unbalanced",
        ("entered", 51, 60),
        ("live", 51, 60),
        entered=60, ready=10, settled=40,
    )  # fmt: skip
    story.queue("miscounted", ("entered", 1, 5), ("live", 1, 5), entered=4, ready=5)
    tell_of_letters(story)
    return story


def tell_of_letters(story: Story) -> None:
    story.queue(
        "work",
        ("entered", 1, 20),
        ("settled", 1, 5, "client"),
        ("dead_lettered", 6, 10, "rejected"),
        ("dead_lettered", 11, 12, "expired"),
        ("dropped", 13, 13, "dead_letter_cycle"),
        ("pending", 14, 18, "maxlen"),
        ("dead_lettered", 14, 15, "maxlen"),
        ("pending", 16, 18, "maxlen"),
        ("dropped", 16, 16, "purged"),
        ("live", 19, 20),
        ("still pending", 17, 18),
        entered=20, ready=2, settled=5, dead_letter_pending=2, dead_lettered=9,
        dropped={"dead_letter_cycle": 1, "purged": 1},
    )  # fmt: skip
    story.queue("parking", ("live", 1, 11), entered=11, ready=11)
    story.letters("parking", 1, 5, "work", 6)
    story.letters("parking", 6, 7, "work", 11)
    story.letters("parking", 8, 11, "work", 14)  # 16 was purged, 17 goes on to another queue
    story.queue("copy", ("live", 1, 5), entered=5, ready=5)
    story.letters("copy", 1, 5, "work", 6)
    story.queue(
        "swallowed",
        ("entered", 1, 9),
        ("dead_lettered", 1, 9, "rejected"),
        entered=9, dead_lettered=9,
    )  # fmt: skip
    story.letters("copy", 6, 8, "swallowed", 1)
    story.letters("copy", 9, 10, "swallowed", 6)
    story.rows.append(row("live", story.ids["copy"], 6, 10))
    story.queue("alive", ("entered", 1, 3), ("live", 1, 3), entered=3, ready=3)
    story.letters("copy", 11, 12, "alive", 2)
    story.letters("copy", 13, 13, "alive", 4)
    story.rows.append(row("settled", story.ids["copy"], 11, 13, "on_send"))
    story.queue(
        "dead twice",
        ("entered", 1, 3),
        ("dead_lettered", 1, 3, "expired"),
        ("dead_lettered", 2, 2, "maxlen"),
        entered=3, dead_lettered=4,
    )  # fmt: skip
    story.letters("copy", 14, 16, "dead twice", 1)
    story.queue(
        "dead and settled",
        ("entered", 1, 2),
        ("settled", 2, 2, "client"),
        ("dead_lettered", 1, 2, "expired"),
        entered=2, dead_lettered=2,
    )  # fmt: skip
    story.letters("copy", 17, 18, "dead and settled", 1)
    story.rows.append(row("live", story.ids["copy"], 14, 18))
    story.queue(
        "letters kept in part",  # of sequence 30, which died before the ledger begins, one is here
        ("entered", 51, 52),
        ("dead_lettered", 40, 41, "rejected"),
        ("dead_lettered", 51, 52, "rejected"),
        entered=52, dead_lettered=4, settled=48,
    )  # fmt: skip
    story.letters("copy", 19, 19, "letters kept in part", 30)
    story.letters("copy", 20, 21, "letters kept in part", 51)
    story.rows.append(row("live", story.ids["copy"], 19, 21))
    story.queue("letters to a queue without rows", ("entered", 1, 4), entered=4, dead_lettered=4)
    number = story.ids["letters to a queue without rows"]
    story.rows.append(row("dead_lettered", number, 1, 4, "expired", flags=1))
    # Handed on as they were: the rows of their new queues name the old one, though nothing died.
    story.queue(
        "backlog",
        ("entered", 1, 9),
        ("settled", 1, 4, "transfer"),
        ("settled", 5, 5, "client"),
        ("settled", 6, 8, "transfer"),  # to queues without rows
        ("dead_lettered", 9, 9, "rejected"),
        entered=9, settled=8, dead_lettered=1,
    )  # fmt: skip
    story.queue("channel", ("live", 1, 6), entered=6, ready=2, deferred=4)
    story.letters("channel", 1, 3, "backlog", 1)
    story.letters("channel", 4, 4, "backlog", 4)
    story.letters("channel", 5, 5, "backlog", 9)
    story.letters("channel", 6, 6, "backlog", 5)
    # A queue that is not durable has no rows, but its letters have.
    story.letters("copy", 22, 23, "not durable", 1)
    story.rows.append(row("live", story.ids["copy"], 22, 23))
    story.claims = [
        Claim(c.id, c.vhost, c.name, {"entered": 23, "ready": 20, "settled": 3})
        if c.name == "copy"
        else c
        for c in story.claims
    ]


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


def test_what_nobody_had_taken_was_settled_by_nobody(outcome: Reconciliation) -> None:
    untaken = "settled, though nobody had taken it"
    assert account(outcome, "taken by nobody").difference == 0
    assert faults(outcome, "taken by nobody") == [(4, 5, untaken), (8, 8, untaken)]
    assert faults(outcome, "sparse") == []


def test_counters_of_a_start_that_do_not_balance_are_named(outcome: Reconciliation) -> None:
    """Of what came before the ledger, the broker counted 50 in and 40 out, and none is there."""
    assert account(outcome, "began unbalanced").difference == 0
    ((first, last, fault),) = faults(outcome, "began unbalanced")
    assert (first, last) == (1, 50)
    assert fault == (
        "the counters it began with do not balance: 60 entered, 10 there, 40 ended by the broker"
    )


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


def test_letters_are_a_term_of_the_equation(outcome: Reconciliation) -> None:
    found = account(outcome, "work")
    assert (found.entered, found.settled, found.dead_lettered) == (20, 5, 9)
    assert found.dropped == {"dead_letter_cycle": 1, "purged": 1}
    assert (found.still_there["ready"], found.still_there["dead_letter_pending"]) == (2, 2)
    assert found.difference == 0
    whole = ("work", "parking", "copy", "letters kept in part", "letters to a queue without rows")
    for name in whole:
        assert faults(outcome, name) == []
    assert account(outcome, "letters kept in part").dead_lettered == 2
    assert account(outcome, "copy").difference == 0


@pytest.mark.parametrize(
    ("name", "difference", "named"),
    [
        ("swallowed", 0, [(4, 5, "dead-lettered, but no queue has a letter of it"),
                          (8, 9, "dead-lettered, but no queue has a letter of it")]),
        ("alive", 0, [(2, 3, "named by a letter, but it never died"),
                      (4, 4, "named by a letter, but never entered")]),
        ("dead twice", -1, [(2, 2, "dead-lettered more than once")]),
        ("dead and settled", -1, [(2, 2, "settled and dead-lettered")]),
    ],
)  # fmt: skip
def test_letters_that_lead_nowhere_are_named(
    outcome: Reconciliation, name: str, difference: int, named: list[tuple[int, int, str]]
) -> None:
    assert account(outcome, name).difference == difference
    assert faults(outcome, name) == named


def test_nq_9_messages_that_were_handed_on_are_settled_and_no_letters(
    outcome: Reconciliation,
) -> None:
    found, channel = account(outcome, "backlog"), account(outcome, "channel")
    assert (found.entered, found.settled, found.dead_lettered, found.difference) == (9, 8, 1, 0)
    assert (channel.still_there["deferred"], channel.difference) == (4, 0)
    assert faults(outcome, "backlog") == [(5, 5, "named by a letter, but it never died")]
    assert faults(outcome, "channel") == []
    counted = {(one.source, one.target): one.count for one in outcome.letters}
    assert counted[("backlog", "channel")] == 2


def test_letters_are_counted_by_source_and_target(outcome: Reconciliation) -> None:
    counted = {(one.source, one.target): one.count for one in outcome.letters}
    assert counted[("work", "parking")] == 11
    assert counted[("work", "copy")] == 5
    assert counted[("swallowed", "copy")] == 5
    assert counted[("not durable", "copy")] == 2


def test_deliveries_that_came_back_are_counted_each_time_and_end_nothing(
    outcome: Reconciliation,
) -> None:
    found = {one.reason: one.count for one in outcome.returned if one.queue == "given back"}
    assert found == {"timeout": 7, "close": 1}
    assert {one.queue for one in outcome.returned} == {"given back"}
    assert (account(outcome, "given back").settled, faults(outcome, "given back")) == (9, [])


def test_one_fault_unbalances_all(outcome: Reconciliation) -> None:
    assert not outcome.balanced
    assert Reconciliation(64, [account(outcome, "balanced")]).balanced


def test_a_queue_of_which_nothing_entered_in_the_ledger_balances(spark: SparkSession) -> None:
    """What entered last may be older than the ledger, while traces of earlier messages are not."""
    names = [row("live", 1, 3, 3), row("settled", 1, 1, 2)]
    claims = [Claim(1, "/", "idle", {"entered": 10, "ready": 1, "settled": 9})]
    outcome = reconcile(spark.createDataFrame(names, ledger.DDL), 1, claims)
    assert (outcome.balanced, outcome.accounts[0].before_ledger) == (True, 10)
    claims = [Claim(1, "/", "idle", {"entered": 2, "ready": 1, "settled": 1})]
    outcome = reconcile(spark.createDataFrame(names, ledger.DDL), 1, claims)
    assert [fault.fault for fault in outcome.faults] == ["entered: 2 by the broker, 3 here"]


def test_a_hole_that_retention_made_unbalances_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """A message that stays keeps its segment, and ledgers behind it go before it: messages 1 and 2
    entered in what is there, and ended in what is gone."""
    disk = Disk(tmp_path)
    disk.start()

    def commit(*rows: Record) -> int:
        """The number of the segment; what comes next is in another."""
        disk.journal.commit([*rows], LONG_AGO)
        number = disk.journal.end >> 32
        while disk.journal.end >> 32 == number:
            filler = Record(records.SEEN, 6, 0, 0, LONG_AGO, blob=b"[]" + b" " * 500)
            disk.journal.commit([filler], LONG_AGO)
            disk.wait()
        return number

    turn = entering(1, 3)
    kept_payload = turn[1].payload
    commit(*turn)
    hole = commit(Record(records.SETTLED, 5, 1, 2, LONG_AGO))
    commit(Record(records.SEEN, 6, 0, 0, LONG_AGO, blob=b"[]"))
    counters = {"entered": 3, "ready": 1, "settled": 2}
    queue = {"op": "queue", "id": 5, "vhost": "/", "name": "q"}
    rows = [
        Record(records.DEFINITION, 5, 0, 0, LONG_AGO, blob=json.dumps(queue).encode()),
        Record(records.COUNTERS, 5, 0, 0, LONG_AGO, blob=json.dumps(counters).encode()),
        Record(records.LIVE, 5, 3, 1, LONG_AGO, kept_payload, 2),
    ]
    disk.journal.checkpoint(rows, LONG_AGO)
    disk.finish_cleaning()
    disk.journal.close()
    (gone,) = tmp_path.glob(f"{hole:010}-*")
    gone.unlink()
    outcome = run(spark, tmp_path, None)
    assert (outcome.faults, outcome.balanced) == ([], True)
    assert [(one.queue, one.before_ledger) for one in outcome.accounts] == [("q", 3)]


def test_a_ledger_that_is_let_go_of_while_it_is_read_is_read_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = shutil.copytree(FORMATS / "before_dead_letters", tmp_path / "data")
    listed: list[int] = []

    def attempt() -> int:
        parts = ledger.plan(folder)
        listed.append(len(parts))
        rows = read_ledger(spark, folder)
        if len(listed) == 1:  # as a broker may, between the list and the reading
            next(part for part in parts if part.source == ledger.JOURNAL).file.path.unlink()
        return rows.count()

    assert kept(attempt) > 0
    assert listed == [listed[0], listed[0] - 1]


def test_what_is_wrong_otherwise_is_not_tried_again(spark: SparkSession) -> None:
    tried: list[int] = []

    def attempt() -> None:
        tried.append(1)
        spark.sql("select raise_error('no')").collect()

    with pytest.raises(PySparkException, match="no"):
        kept(attempt)
    assert tried == [1]


def test_a_name_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """NSQ's channel `two` of the topic `a` is the queue `a:two`, and a colon follows."""
    account = Account("a:two", "/", 0, dict.fromkeys(STILL_THERE, 0), 0, 0, {}, 0, before_ledger=7)
    show(Reconciliation(1, [account], returned=[Returned("a:two", "loss", 1)]), False)
    assert capsys.readouterr().out.count("a:two:") == 2


def test_a_name_cannot_write_elsewhere_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "[red]a\x1b[2J"
    account = Account(name, "/", 0, dict.fromkeys(STILL_THERE, 0), 0, 0, {}, 0, before_ledger=7)
    show(Reconciliation(1, [account], returned=[Returned(name, "loss", 1)]), False)
    assert capsys.readouterr().out.count(r"[red]a\x1b[2J") == 3
