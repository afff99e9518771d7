"""Dead letters share the bytes of the message that died: the row of a letter names a payload that
may lie segments before it, before a checkpoint, or that was moved meanwhile."""

from __future__ import annotations

import pytest

from tallymark.engine.message import Payload
from tallymark.engine.record import Record
from tallymark.journal.verify import verify
from tallymark.stored import records
from tallymark.stored.records import DEAD_LETTERED, ENTERED, LEASED, LIVE, PAYLOAD, PENDING, SEEN
from tests.journal.builders import TIME, Disk, all_shown, entering, settling
from tests.journal.test_cleaning import checkpoint, fill, numbers, settle

WORK, PARKING = 5, 6
HISTORY = b'{"v":1,"form":3,"deaths":[{"queue":"work","reason":"rejected","count":1}]}'


def died(source: int, p: Payload, sequence: int, lo: int = 0, n: int = 1) -> list[Record]:
    """Messages lo.. of a payload leave WORK, where the first is `source`, as letters to PARKING."""
    return [
        Record(
            ENTERED, PARKING, sequence, n, TIME, p, lo, owner=WORK, other=source, reason=7,
            blob=HISTORY,
        ),
        Record(DEAD_LETTERED, WORK, source, n, TIME, p, lo, reason=records.DEAD_EXPIRED),
    ]  # fmt: skip


def letters(found: list[Record]) -> list[Record]:
    return [r for r in found if r.kind == ENTERED and r.queue == PARKING]


def payload_of(record: Record) -> Payload:
    assert record.payload is not None
    return record.payload


def test_every_row_about_a_letter_keeps_what_it_says(disk: Disk) -> None:
    disk.start()
    turn = entering(1, 4)
    p = payload_of(turn[1])
    rows = [
        *turn,
        *died(3, p, 1, 2, 2),
        Record(PENDING, WORK, 1, 1, TIME, p, 0, reason=records.DEAD_MAXLEN, blob=b'{"have":[]}'),
        Record(SEEN, PARKING, 0, 0, TIME + 5, blob=b'["a","b"]'),
        Record(LEASED, PARKING, 1, 2, TIME, p, 2, 4, 100, reason=7, flags=1, blob=HISTORY),
    ]
    disk.journal.commit(rows, TIME)
    disk.journal.close()
    found = disk.start()
    assert all_shown(found) == all_shown(rows)
    assert found[2].blob is found[-1].blob
    assert {id(r.payload) for r in found if r.payload} == {id(found[0].payload)}
    counted = verify(disk.folder).rows
    assert (counted["dead_lettered"], counted["pending"], counted["seen"]) == (1, 1, 1)
    disk.journal.close()


def test_a_letter_finds_a_payload_of_an_older_segment(disk: Disk) -> None:
    disk.start()
    first = fill(disk, 1, 1)[0]
    fill(disk, 2, 20)
    disk.journal.commit(died(1, first, 1), TIME)
    assert disk.journal.end >> 32 >= 5
    disk.journal.close()
    found = disk.start()
    letter = letters(found)[0]
    assert letter.payload is found[0].payload
    assert (letter.owner, letter.other, letter.reason) == (WORK, 1, 7)
    assert disk.journal.fetch(payload_of(letter))[:10] == b"message 1 "
    disk.journal.close()


def test_after_a_checkpoint_the_payload_is_known_by_the_checkpoints_row(disk: Disk) -> None:
    disk.start()
    turn = entering(1, 3, 200)
    disk.journal.commit(turn, TIME)
    p = payload_of(turn[1])
    p.raw = None
    settle(disk, fill(disk, 4, 8))
    live = [Record(PAYLOAD, 0, 1, 3, TIME, p), Record(LIVE, WORK, 1, 3, TIME, p)]
    assert disk.journal.checkpoint(live, TIME)
    disk.finish_cleaning()
    settle(disk, fill(disk, 20, 12))
    disk.journal.commit(died(2, p, 1, 1, 2), TIME)
    disk.clean()
    assert p.position >> 32 not in numbers(disk, ".ledger")  # its bytes are needed
    assert numbers(disk, ".ledger")
    disk.journal.close()
    found = disk.start()
    assert found[0].kind == PAYLOAD
    letter = letters(found)[0]
    assert letter.payload is found[0].payload
    assert list(payload_of(letter).cuts) == [0, 200, 400, 600]
    assert payload_of(letter).route.key == "eu.paid"
    assert disk.journal.fetch(payload_of(letter))[200:210] == b"message 2 "
    assert [r.payload is found[0].payload for r in found if r.kind == DEAD_LETTERED] == [True]
    disk.journal.close()


def test_a_checkpoint_keeps_letters_and_what_is_pending(disk: Disk) -> None:
    disk.start()
    first, second = fill(disk, 1, 2)
    disk.journal.commit(died(1, first, 1), TIME)
    fill(disk, 3, 8)
    state = [
        Record(PAYLOAD, 0, 1, 1, TIME, first),
        Record(LIVE, PARKING, 1, 1, TIME, first, other=2 << 32 | 3, reason=7, blob=HISTORY),
        Record(PAYLOAD, 0, 2, 1, TIME, second),
        Record(LIVE, WORK, 2, 1, TIME, second, blob=HISTORY, flags=2),
        Record(PENDING, WORK, 2, 1, TIME, second, reason=records.DEAD_REJECTED, blob=HISTORY),
    ]
    assert disk.journal.checkpoint(state, TIME)
    disk.finish_cleaning()
    disk.journal.close()
    found = disk.start()
    assert all_shown(found) == all_shown(state)
    assert len({id(r.blob) for r in found if r.blob}) == 1
    assert disk.journal.fetch(payload_of(found[4]))[:10] == b"message 2 "
    disk.journal.close()


@pytest.mark.parametrize("what", ["letter", "lease"])
@pytest.mark.parametrize("moved", [False, True])
def test_a_payload_that_the_checkpoint_does_not_name_is_looked_up_where_it_lies(
    disk: Disk, what: str, moved: bool
) -> None:
    """Transient messages whose bytes went to the journal for want of memory: what outlives a
    restart may name them later, when a checkpoint has passed them over."""
    disk.start()
    turn = entering(1, 3, 200)
    p, row = payload_of(turn[1]), turn[1]
    p.persistent = False
    row.payload, row.flags = None, records.TRANSIENT
    disk.journal.commit([row], TIME)
    disk.journal.commit(turn[:1], TIME)  # the memory is short
    p.raw = None
    settle(disk, fill(disk, 10, 12))
    checkpoint(disk, [])
    settle(disk, fill(disk, 30, 6))
    if moved:
        disk.journal.relocate([p], TIME)
        checkpoint(disk, [])
    rows = {
        "letter": [Record(ENTERED, PARKING, 1, 2, TIME, p, 1, 99, 2, blob=HISTORY)],
        "lease": [Record(LEASED, WORK, 2, 2, TIME, p, 1, 3, 40)],
    }
    disk.journal.commit(rows[what], TIME)
    disk.clean()
    assert disk.journal.checkpoint_position > p.position
    disk.journal.close(clean=False)
    found = disk.open()
    (row,) = [r for r in found if r.payload is not None and r.count == 2]
    kept = payload_of(row)
    assert (kept.position, list(kept.cuts), kept.first_id) == (p.position, [0, 200, 400, 600], 1)
    assert (kept.route.key, kept.persistent) == ("eu.paid", False)
    assert disk.journal.retain(kept.position, kept.size)
    disk.journal.start()
    assert disk.journal.fetch(kept)[200:210] == b"message 2 "
    disk.journal.close()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_letters_from_before_and_after_a_move_share_the_moved_payload(
    disk: Disk, checkpointed: bool
) -> None:
    disk.start()
    made = fill(disk, 1, 12)
    moved = made[1]
    old = moved.position
    disk.journal.commit(died(2, moved, 1), TIME)
    settle(disk, [p for p in made if p is not moved])
    live = [
        Record(PAYLOAD, 0, 2, 1, TIME, moved),
        Record(LIVE, PARKING, 1, 1, TIME, moved, blob=HISTORY, reason=7),
    ]
    assert disk.journal.checkpoint(live, TIME)
    disk.finish_cleaning()
    disk.journal.clean(TIME, 1 << 40)
    assert old >> 32 in disk.journal.sparse()
    bytes_before = disk.journal.fetch(moved)
    # The same message dies again before and after its bytes move.
    disk.journal.commit([Record(ENTERED, 7, 1, 1, TIME, moved, 0, PARKING, 1)], TIME)
    disk.journal.relocate([moved], TIME)
    disk.journal.commit([Record(ENTERED, 8, 1, 1, TIME, moved, 0, PARKING, 1)], TIME)
    disk.wait()
    if checkpointed:
        checkpoint(disk, [moved])
    disk.clean()
    assert old >> 32 in numbers(disk, ".ledger")
    disk.journal.close(clean=False)
    found = disk.start()
    rows = [r for r in found if r.kind in (ENTERED, LIVE)]
    assert [r.queue for r in rows] == ([5] if checkpointed else [PARKING, 7, 8])
    assert len({id(r.payload) for r in rows}) == 1
    assert payload_of(rows[-1]).position == moved.position != old
    assert disk.journal.fetch(payload_of(rows[-1])) == bytes_before
    disk.journal.close()


def test_a_letter_is_found_through_ledgers_when_the_newest_checkpoint_is_damaged(
    disk: Disk,
) -> None:
    disk.start()
    first = fill(disk, 1, 1)[0]
    settle(disk, fill(disk, 2, 4))
    checkpoint(disk, [first])
    disk.journal.commit(died(1, first, 1), TIME)
    disk.journal.release(first.position, first.size)
    disk.journal.commit(settling(1, queue=PARKING), TIME)
    settle(disk, fill(disk, 10, 12))
    checkpoint(disk, [])
    disk.clean()
    assert first.position >> 32 in numbers(disk, ".ledger")
    _, newest = disk.names(".checkpoint")
    disk.journal.close()
    data = bytearray((disk.folder / newest).read_bytes())
    data[20] ^= 1
    disk.change(newest, bytes(data))
    found = disk.start()
    letter = letters(found)[0]
    assert payload_of(letter) is payload_of(found[0])
    assert payload_of(letter).first_id == 1
    assert [r.first for r in found if r.kind == DEAD_LETTERED] == [1]
    disk.journal.close()
