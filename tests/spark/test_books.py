"""Books: an account that goes on from an earlier one says what an account of everything says, and
costs what happened since. And what is outside of a journal is believed against it.

Without Spark: tests/spark/both.py has both ways say the same on every history of the other tests.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.day_of_traffic import Day, Plan
from tallymark.engine.record import Record
from tallymark.spark import ledger, reconcile
from tallymark.spark.account import Reconciliation
from tallymark.spark.books import Books
from tallymark.spark.client import CannotRun
from tallymark.spark.ledger_files import LedgerIncomplete, find_checkpoint
from tallymark.spark.ranges import Gathered, from_batches, to_batch
from tallymark.spark.reconcile import TooLarge, run
from tallymark.stored import records
from tests.journal.builders import TIME, Disk, entering, settling
from tests.journal.test_formats import FORMATS


class WatchedDay(Day):
    """A day whose account is taken at each of its checkpoints, from the one before."""

    books: Path
    outcomes: list[Reconciliation]

    def _checkpoint(self, clean: bool) -> None:
        super()._checkpoint(clean)
        self.journal.flush()
        self.outcomes.append(run(None, self.folder, None, True, since=self.books))


def test_an_account_that_goes_on_says_what_one_of_everything_says(tmp_path: Path) -> None:
    day = WatchedDay(tmp_path / "day", Plan(20_000, segment_bytes=1 << 20))
    day.books, day.outcomes = tmp_path / "books", []
    day.run()
    assert len(day.outcomes) > 5
    assert [one.faults for one in day.outcomes if not one.balanced] == []
    whole = run(None, day.folder, None, True)
    last = day.outcomes[-1]
    assert sorted(last.hours, key=str) == sorted(whole.hours, key=str)
    assert last == whole
    assert whole.accounts


QUEUE = {"op": "queue", "id": 5, "vhost": "/", "name": "q"}


class Ledger:
    """A journal's folder with one queue, and checkpoints that say what they are told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = Disk(folder, segment_bytes=1 << 16)
        self.disk.start()

    def commit(self, *rows: Record) -> None:
        self.disk.journal.commit([*rows], TIME)
        self.disk.wait()

    def enter(self, first: int, count: int) -> None:
        self.turn = entering(first, count)
        self.commit(*self.turn)

    def take(self, first: int, count: int) -> None:
        self.commit(Record(records.ACQUIRED, 5, first, count, TIME, owner=9))

    def settle(self, first: int, count: int) -> None:
        self.commit(*settling(first, count))

    def checkpoint(self, *there: int, more: Sequence[Record] = (), **counters: int) -> None:
        """there: sequences, of the last that entered together. more: of its rows."""
        payload, first = self.turn[1].payload, self.turn[1].first
        rows = [
            Record(records.DEFINITION, 5, 0, 0, TIME, blob=json.dumps(QUEUE).encode()),
            Record(records.COUNTERS, 5, 0, 0, TIME, blob=json.dumps(counters).encode()),
            *(Record(records.LIVE, 5, one, 1, TIME, payload, one - first) for one in there),
            *more,
        ]
        assert self.disk.journal.checkpoint(rows, TIME)
        self.disk.finish_cleaning()
        self.disk.journal.clean(TIME, 1 << 40)  # hears that it is written

    def account(self, books: Path | None = None) -> Reconciliation:
        return run(None, self.folder, None, since=books)

    def close(self) -> None:
        self.disk.journal.close()


@pytest.fixture
def begun(tmp_path: Path) -> Ledger:
    """Ten messages entered, five are settled, and books of that in the folder `books`."""
    ledger = Ledger(tmp_path / "data")
    ledger.enter(1, 10)
    ledger.take(1, 10)
    ledger.settle(1, 5)
    ledger.checkpoint(6, 7, 8, 9, 10, entered=10, settled=5, ready=5)
    assert ledger.account(tmp_path / "books").balanced
    return ledger


def faults(outcome: Reconciliation) -> list[tuple[int, int, str]]:
    return [(one.first, one.last, one.fault) for one in outcome.faults]


def test_what_was_there_may_end_later(begun: Ledger, tmp_path: Path) -> None:
    begun.settle(6, 4)
    begun.checkpoint(10, entered=10, settled=9, ready=1)
    outcome = begun.account(tmp_path / "books")
    assert (faults(outcome), outcome.balanced) == ([], True)
    assert outcome == begun.account()
    assert (outcome.accounts[0].settled, outcome.accounts[0].entered) == (9, 10)
    begun.close()


def test_what_breaks_the_account_later_is_named_and_stays_so(begun: Ledger, tmp_path: Path) -> None:
    begun.settle(4, 3)
    begun.checkpoint(7, 8, 9, entered=10, settled=8, ready=3)
    twice = (4, 5, "ended before the account that this one goes on from, and again")
    lost = (10, 10, "neither ended nor there: lost")
    for _ in range(2):
        outcome = begun.account(tmp_path / "books")
        assert faults(outcome) == [twice, lost]
        assert [one.message_id for one in outcome.faults] == [4, 10]
        assert not outcome.balanced
    begun.close()


def test_a_row_that_is_read_again_counts_once(begun: Ledger, tmp_path: Path) -> None:
    first = begun.account(tmp_path / "books")
    assert first == begun.account(tmp_path / "books") == begun.account()
    begun.close()


def test_the_books_are_a_table_of_queue_and_hour(begun: Ledger, tmp_path: Path) -> None:
    (folder,) = (tmp_path / "books").iterdir()
    assert int(folder.name, 16) == find_checkpoint(begun.folder, None).number
    (row,) = pq.read_table(folder / "balances.parquet").to_pylist()
    assert (row["vhost"], row["name"], row["entered"], row["settled"]) == ("/", "q", 5, 5)
    assert row["hour"] == TIME // 3_600_000
    begun.close()


def test_books_of_another_journal_and_of_a_later_time_are_refused(
    begun: Ledger, tmp_path: Path
) -> None:
    begun.close()
    other = Ledger(tmp_path / "other")
    other.enter(1, 1)
    other.checkpoint(1, entered=1, ready=1)
    with pytest.raises(LedgerIncomplete, match=r"another journal|cannot be gone on from"):
        run(None, other.folder, None, since=tmp_path / "books")
    other.close()


def test_books_that_are_none_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "0000000000000040"
    folder.mkdir()
    (folder / "books.json").write_text('{"version": 1}')
    with pytest.raises(CannotRun, match=r"not the books of an account.*remove the folder"):
        Books.read(tmp_path)


def test_only_so_many_ranges_are_held(begun: Ledger) -> None:
    begun.close()
    parts = ledger.plan(begun.folder)
    with pytest.raises(TooLarge, match=r"more than 1"):
        reconcile._gathered(parts, most=1)


def test_a_newest_segment_that_a_checkpoint_describes_is_missed(begun: Ledger) -> None:
    """The anchor lags behind, and is no witness."""
    begun.close()
    (begun.folder / "tail.json").unlink(missing_ok=True)
    (last,) = begun.disk.segments()
    state = find_checkpoint(begun.folder, None)
    last.rename(begun.folder / last.name.replace(f"{1:010}", f"{0:010}"))
    assert state.number >> 32 == 1, "else this test shows nothing"
    with pytest.raises(LedgerIncomplete, match=r"segment 1 is missing at the end of the journal"):
        begun.account()


def test_what_several_files_say_is_summed_up_however_spark_cuts_it() -> None:
    """The rows that a task made of several files come to the driver as one batch."""
    files = [
        Gathered(returned={(7, 1): 2}, leased={77: 40}, definitions={"{}"}),
        Gathered(returned={(7, 1): 3, (7, 2): 1}, leased={77: 30}),
    ]
    batches = [to_batch(one) for one in files]
    together = pa.Table.from_batches(batches).combine_chunks().to_batches()
    assert len(together) == 1
    for cut in (batches, together):
        found = from_batches(cut)
        assert found.returned == {(7, 1): 5, (7, 2): 1}
        assert found.leased == {77: 40}
        assert found.definitions == {"{}"}


def query(folder: Path, batch: int, offset: dict[str, object], id: str = "q1") -> Path:
    """A checkpoint as Spark leaves it after batches up to this one."""
    for kind, text in (("offsets", f"v1\n{{}}\n{json.dumps(offset)}"), ("commits", "v1\n{}")):
        (folder / kind).mkdir(parents=True)
        (folder / kind / str(batch)).write_text(text)
    (folder / "metadata").write_text(json.dumps({"id": id}))
    return folder


def test_rows_that_a_query_has_committed_are_missed(begun: Ledger, tmp_path: Path) -> None:
    sink = {"op": "sink", "vhost": "/", "name": "s", "identity": "q1", "batch": 2, "forget_ms": 0}
    begun.commit(
        Record(records.LEASED, 5, 6, 4, TIME, owner=77, other=100),
        Record(records.DEFINITION, 0, 0, 0, TIME, blob=json.dumps(sink).encode()),
    )
    begun.checkpoint(6, 7, 8, 9, 10, entered=10, settled=5, ready=1, acquired=4)
    begun.close()
    there = {"subscription": "lake", "epoch": 77, "seq": 104}
    knows = query(tmp_path / "as much", 2, there)
    assert run(None, begun.folder, None, outside=[knows]).balanced
    leased = query(tmp_path / "leased", 2, {**there, "seq": 105})
    with pytest.raises(LedgerIncomplete, match=r"up to lease sequence 105.*has leased it 104"):
        run(None, begun.folder, None, outside=[knows, leased])
    written = query(tmp_path / "written", 3, there)
    with pytest.raises(LedgerIncomplete, match=r"committed batch 3, and the sink 's' has 2"):
        run(None, begun.folder, None, outside=[written])
    with pytest.raises(FileNotFoundError, match="no checkpoint of a query"):
        run(None, begun.folder, None, outside=[tmp_path])


def test_a_lease_that_is_older_than_the_ledger_is_not_missed(begun: Ledger, tmp_path: Path) -> None:
    """Its rows went with their ledger; the checkpoint has the subscription's floor."""
    floor = Record(records.LEASE_SETTLED, 5, 0, 0, TIME, owner=77, other=104)
    begun.checkpoint(6, 7, 8, 9, 10, more=[floor], entered=10, settled=5, ready=5)
    begun.close()
    there = {"subscription": "lake", "epoch": 77, "seq": 104}
    assert run(None, begun.folder, None, outside=[query(tmp_path / "q", 2, there)]).balanced
    leased = query(tmp_path / "leased", 2, {**there, "seq": 105})
    with pytest.raises(LedgerIncomplete, match=r"up to lease sequence 105.*has leased it 104"):
        run(None, begun.folder, None, outside=[leased])


def test_of_a_query_of_several_queues_each_is_looked_at(begun: Ledger, tmp_path: Path) -> None:
    begun.commit(Record(records.LEASED, 5, 6, 4, TIME, owner=77, other=100))
    begun.checkpoint(6, 7, 8, 9, 10, entered=10, settled=5, ready=1, acquired=4)
    begun.close()
    there = {"subscription": "lake", "epoch": 77, "seq": 104}
    more = {**there, "seq": 105}
    knows = query(tmp_path / "as much", 2, {"queues": {"other": {**there, "seq": 7}, "q": there}})
    # Numbers of epochs mean something at one broker only.
    brokers = query(tmp_path / "brokers", 2, {"queues": {"a:15672/q": there, "b:15672/q": more}})
    assert run(None, begun.folder, None, outside=[knows, brokers]).balanced
    leased = query(tmp_path / "leased", 2, {"queues": {"q": more}})
    with pytest.raises(LedgerIncomplete, match=r"up to lease sequence 105.*has leased it 104"):
        run(None, begun.folder, None, outside=[leased])


@pytest.mark.parametrize("version", sorted(path.name for path in FORMATS.iterdir()))
def test_folders_of_earlier_versions_are_accounted_for(version: str, tmp_path: Path) -> None:
    folder = shutil.copytree(FORMATS / version, tmp_path / "data")
    outcome = run(None, folder, None, True)
    again = run(None, folder, None, True, since=tmp_path / "books")
    assert replace(again, beyond=outcome.beyond) == outcome
    assert outcome.faults == []
