"""The journal's rows as a table: what each kind says, and files of earlier versions."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tallymark.engine.record import Record
from tallymark.spark import ledger, ledger_files
from tallymark.stored import records
from tallymark.stored.segment import checkpoint_name
from tests.journal.builders import TIME, Disk, entering, payload
from tests.journal.test_formats import FORMATS

HISTORY = b'{"v":1,"form":3}'
DUE_MS = 1_800_000_000_123
LATER = b'{"v":1,"form":0,"due":1800000000123}'


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The whole ledger up to the newest checkpoint, journal before checkpoint."""
    found: list[dict[str, Any]] = []
    for part in ledger.plan(folder):
        for batch in ledger.read_file(part):
            assert batch.schema == ledger.SCHEMA
            batch.validate(full=True)
            found += batch.to_pylist()
    return sorted(found, key=lambda row: row["source"] != ledger.JOURNAL)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    disk = Disk(tmp_path_factory.mktemp("ledger"))
    disk.start()
    turn = entering(1, 4)
    p = turn[1].payload
    assert p is not None
    turn[1].reason = 9
    journal = [
        *turn,
        Record(records.ENTERED, 6, 1, 2, TIME, p, 1, owner=5, other=2, reason=3, blob=HISTORY),
        Record(records.ENTERED, 7, 1, 2, TIME, p, 1, owner=5, other=2, blob=HISTORY),
        Record(records.DEAD_LETTERED, 5, 2, 2, TIME, p, 1, reason=records.DEAD_MAXLEN),
        Record(records.PENDING, 5, 4, 1, TIME, p, 3, reason=records.DEAD_EXPIRED, blob=b"{}"),
        Record(records.SEEN, 6, 0, 0, TIME, blob=b'["a"]'),
        Record(records.RETURNED, 5, 1, 1, TIME, owner=8, reason=records.RETURNED_BY_TIMEOUT),
        Record(records.RETURNED, 5, 1, 1, TIME, owner=8, reason=records.RETURNED_BY_CLIENT,
               flags=records.RETURNED_FAILED),
        *(Record(records.DROPPED, 5, 1, 1, TIME, reason=reason) for reason in records.DROP_REASONS),
        Record(records.ENTERED, 5, 5, 2, TIME, p, 0, blob=LATER),
        Record(records.ENTERED, 6, 3, 2, TIME, p, 0, blob=LATER),
        Record(records.ENTERED, 6, 5, 1, TIME, p, 0, blob=b'{"v":9,"due":5}'),
        Record(records.DEFERRED, 5, 1, 1, TIME, owner=8, other=DUE_MS + 1,
               reason=records.RETURNED_BY_LOSS, flags=records.RETURNED_FAILED | records.TO_TAIL),
        Record(records.DEFERRED, 5, 2, 1, TIME, owner=8, other=DUE_MS,
               reason=records.RETURNED_BY_CLIENT),
        Record(records.SETTLED, 5, 3, 1, TIME, reason=records.SETTLED_BY_TRANSFER),
        Record(records.ACQUIRED, 5, 1, 1, TIME, owner=8, other=2),
        Record(records.LEASED, 5, 1, 1, TIME, p, 0, owner=3, other=40, reason=9, blob=HISTORY),
        *(Record(records.SLOW, 5, 0, 0, TIME, owner=8, reason=reason, blob=b'{"v":1}')
          for reason in records.SLOW_EVENTS),
        *(Record(records.CONSUMER, 5, 0, 0, TIME, owner=8, other=3, reason=reason, blob=b'{"v":1}')
          for reason in records.CONSUMER_EVENTS),
    ]  # fmt: skip
    disk.journal.commit(journal, TIME)
    kept = payload([b"x"], 90)
    kept.position = p.position
    disk.journal.checkpoint(
        [
            Record(records.PAYLOAD, 0, 90, 1, TIME, kept),
            Record(records.LIVE, 5, 4, 1, TIME, kept, other=1 << 32 | 2, reason=4, flags=2),
            Record(records.DEFERRED, 5, 4, 1, TIME, other=DUE_MS),
        ],
        TIME,
    )
    disk.finish_cleaning()
    disk.journal.close()
    return rows_of(disk.folder)


def of_kind(rows: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == kind]


def test_a_letter_names_the_queue_it_died_in(rows: list[dict[str, Any]]) -> None:
    published, letter, copy, *_ = of_kind(rows, "entered")
    assert (published["from_queue_id"], published["from_first"]) == (None, None)
    assert (letter["queue_id"], letter["from_queue_id"], letter["from_first"]) == (6, 5, 2)
    assert (copy["queue_id"], copy["from_queue_id"], copy["from_first"]) == (7, 5, 2)
    assert letter["blob"] == copy["blob"] == HISTORY.decode()


def test_an_owner_is_no_source_where_nothing_entered(rows: list[dict[str, Any]]) -> None:
    others = [row for row in rows if row["kind"] != "entered"]
    assert [row["owner"] for row in of_kind(others, "acquired")] == [8]
    assert {row["from_queue_id"] for row in others} == {None}


def test_what_is_said_of_consumers_names_them_and_no_messages(rows: list[dict[str, Any]]) -> None:
    slow, came_to = of_kind(rows, "slow_consumer"), of_kind(rows, "consumer")
    assert [row["reason"] for row in slow] == ["near", "found", "acted", "recovered"]
    assert [row["reason"] for row in came_to] == ["goes_on", "ended", "started", "credit"]
    for row in (*slow, *came_to):
        assert (row["queue_id"], row["owner"], row["first"], row["count"]) == (5, 8, 0, 0)
        assert row["blob"] == '{"v":1}'


def test_reasons_of_death_have_their_names(rows: list[dict[str, Any]]) -> None:
    (dead,), (pending,) = of_kind(rows, "dead_lettered"), of_kind(rows, "pending")
    assert (dead["first"], dead["count"], dead["reason"]) == (2, 2, "maxlen")
    assert (pending["first"], pending["reason"], pending["blob"]) == (4, "expired", "{}")
    assert [row["reason"] for row in of_kind(rows, "dropped")] == [
        "rejected", "purged", "queue_deleted", "transient_at_restart", "lost", "expired", "maxlen",
        "delivery_limit", "dead_letter_cycle", "dead_letter_unroutable", "dead_letter_hop_limit",
        "dead_letter_refused", "duplicate", "retention", "slow_consumer",
        "archived", "unreadable",
    ]  # fmt: skip
    assert [row["blob"] for row in of_kind(rows, "seen")] == ['["a"]']


def test_priorities_are_numbers_and_no_reasons(rows: list[dict[str, Any]]) -> None:
    for kind, expected in (("entered", [9, 3, 0, 0, 0, 0]), ("leased", [9]), ("live", [4])):
        assert [row["priority"] for row in of_kind(rows, kind)] == expected
        assert {row["reason"] for row in of_kind(rows, kind)} == {None}
    with_priority = {row["kind"] for row in rows if row["priority"] is not None}
    assert with_priority == {"entered", "leased", "live"}


def test_a_return_says_whether_it_counts_as_failed(rows: list[dict[str, Any]]) -> None:
    assert [(row["reason"], row["failed"]) for row in of_kind(rows, "returned")] == [
        ("timeout", False),
        ("client", True),
    ]
    others = {row["failed"] for row in rows if row["kind"] not in ("returned", "deferred")}
    assert others == {None}


def test_nq_16_what_is_deferred_says_until_when_and_why(rows: list[dict[str, Any]]) -> None:
    due = datetime(2027, 1, 15, 8, 0, 0, 123_000, UTC)
    told = [
        (row["source"], row["first"], row["reason"], row["failed"], row["due"])
        for row in of_kind(rows, "deferred")
    ]
    assert told == [
        ("journal", 1, "loss", True, due + timedelta(milliseconds=1)),
        ("journal", 2, "client", False, due),
        ("checkpoint", 4, None, False, due),
    ]
    entered = [(row["queue_id"], row["first"], row["due"]) for row in of_kind(rows, "entered")]
    assert entered[3:] == [(5, 5, due), (6, 3, due), (6, 5, None)]  # of a later version: not known
    assert {row["due"] for row in of_kind(rows, "entered")[:3]} == {None}
    others = {row["due"] for row in rows if row["kind"] not in ("entered", "deferred")}
    assert others == {None}


def test_nq_9_messages_that_were_handed_on_are_settled_so(rows: list[dict[str, Any]]) -> None:
    assert [row["reason"] for row in of_kind(rows, "settled")] == ["transfer"]


def test_executors_find_the_files_of_a_folder_that_was_named_from_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(FORMATS)
    parts = ledger.plan(Path("before_dead_letters"))
    monkeypatch.chdir(tmp_path)  # as on a cluster
    assert sum(batch.num_rows for part in parts for batch in ledger.read_file(part)) > 0


def test_a_file_that_is_gone_when_it_is_read_was_let_go_of(tmp_path: Path) -> None:
    folder = shutil.copytree(FORMATS / "before_dead_letters", tmp_path / "data")
    parts = [part for part in ledger.plan(folder) if part.source == ledger.JOURNAL]
    parts[0].file.path.unlink()
    with pytest.raises(ledger_files.LedgerLetGo, match="ledger_retention is over"):
        list(ledger.read_file(parts[0]))
    assert parts[0].file not in [part.file for part in ledger.plan(folder)]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([], []), ([4], [4]), ([1, 2, 3], [1, 2, 3]), ([1, 4, 7, 8, 9], [7, 8, 9]), ([1, 3], [3])],
)
def test_an_account_begins_behind_the_last_gap(
    numbers: list[int], expected: list[int], tmp_path: Path
) -> None:
    files = [ledger_files.LedgerFile(tmp_path / str(number), number, 0) for number in numbers]
    assert [file.number for file in ledger_files.since_the_last_gap(files)] == expected


def test_dl_20_the_ledger_of_an_earlier_version_is_read() -> None:
    folder = FORMATS / "before_dead_letters"
    found = rows_of(folder)
    expected = json.loads((folder / "state.json").read_text())["rows"]
    counted: dict[str, int] = {}
    for row in found:
        if row["source"] == ledger.JOURNAL:
            counted[row["kind"]] = counted.get(row["kind"], 0) + 1
    # The last turns lie behind the checkpoint.
    assert set(counted) == set(expected) - {"moved"}
    assert all(counted[kind] <= expected[kind] for kind in counted)
    entered = of_kind(found, "entered")
    assert {(row["from_queue_id"], row["priority"]) for row in entered} == {(None, 0)}
    assert {row["failed"] for row in of_kind(found, "returned")} == {False}
    assert {row["reason"] for row in of_kind(found, "dropped")} == {"rejected", "purged"}


def checkpointed(folder: Path) -> Disk:
    """A folder with two segments of blocks, a checkpoint behind them, and an anchor."""
    disk = Disk(folder)
    disk.start()
    for number in range(1, 21):
        disk.journal.commit(entering(number, 1, 500), TIME + number)
    disk.wait()
    disk.journal.checkpoint([], TIME)
    disk.finish_cleaning()
    disk.journal.write_anchor([], [], TIME)
    disk.journal.close()
    return disk


def test_the_newest_segment_that_is_missing_is_told(tmp_path: Path) -> None:
    disk = checkpointed(tmp_path)
    ledger_files.check_end(tmp_path)
    disk.segments()[-1].unlink()
    with pytest.raises(ledger_files.LedgerIncomplete, match="missing at the end of the journal"):
        ledger_files.check_end(tmp_path)


def test_a_ledger_without_a_checkpoint_is_told_with_how_to_get_one(tmp_path: Path) -> None:
    disk = checkpointed(tmp_path)
    for name in disk.names(".checkpoint"):
        (tmp_path / name).unlink()
    with pytest.raises(
        ledger_files.LedgerIncomplete, match="POST /api/tallymark/ledger/checkpoint"
    ):
        ledger_files.find_checkpoint(tmp_path, None)


def test_a_checkpoint_that_is_not_of_its_names_position_is_told(tmp_path: Path) -> None:
    disk = checkpointed(tmp_path)
    (name,) = disk.names(".checkpoint")
    found = ledger_files.find_checkpoint(tmp_path, None)
    (tmp_path / name).rename(tmp_path / checkpoint_name(found.number + 64))
    with pytest.raises(ledger_files.LedgerIncomplete, match="not the one of its name"):
        ledger_files.find_checkpoint(tmp_path, None)
