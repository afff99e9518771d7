"""What the server counts on, of the journal on disk and of its twin in memory alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tallymark.engine.message import Payload
from tallymark.engine.record import Record
from tallymark.journal.journal import BytesLost, Journal
from tallymark.stored.records import COUNTERS, ENTERED, LIVE, PAYLOAD, SETTLED
from tests.journal.builders import HOMES, TIME, Disk, all_shown, entering, payload, settling
from tests.support.memory_journal import MemoryJournal

pytestmark = pytest.mark.parametrize("disk", ["twin", *HOMES], indirect=True)


class OnDisk:
    """The real one, in each of its homes. `synced` is waited for; restarts reopen the folder."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.disk.start()

    @property
    def journal(self) -> Journal:
        return self.disk.journal

    def sync(self) -> None:
        self.disk.wait()

    def restarted(self) -> list[Record]:
        self.disk.finish_cleaning()
        self.journal.close(clean=False)
        return self.disk.start()

    def close(self) -> None:
        self.journal.close()


class InMemory:
    def __init__(self) -> None:
        self.journal = MemoryJournal(4096)
        self.journal.start()

    def sync(self) -> None:
        self.journal.sync()

    def restarted(self) -> list[Record]:
        self.journal = self.journal.crash()
        found = []
        for record in self.journal.recovered():
            if record.kind == ENTERED and record.payload is not None:
                record.payload.live += record.count
            found.append(record)
        self.journal.start()
        return found

    def close(self) -> None:
        self.journal.close()


Kept = OnDisk | InMemory


@pytest.fixture
def kept(disk: Disk | None) -> Iterator[Kept]:
    made = InMemory() if disk is None else OnDisk(disk)
    yield made
    made.close()


def the_payload(records: list[Record]) -> Payload:
    found = records[0].payload
    assert found is not None
    return found


def without_bytes(p: Payload) -> Payload:
    p.raw = None
    return p


class TestJournal:
    def test_positions_grow_and_everything_is_synced_in_the_end(self, kept: Kept) -> None:
        ends = [kept.journal.commit(entering(i), TIME) for i in range(1, 200)]
        assert ends == sorted(set(ends))
        assert kept.journal.end == ends[-1]
        kept.sync()
        assert kept.journal.synced == kept.journal.written == kept.journal.end
        assert kept.journal.pending_bytes == 0

    def test_nothing_committed_means_nothing_to_wait_for(self, kept: Kept) -> None:
        assert kept.journal.synced == kept.journal.end

    def test_a_restart_gives_every_record_in_order(self, kept: Kept) -> None:
        turns = [entering(1, 60), settling(1, 7), [], entering(61, 1), entering(62, 400)]
        turns += [settling(8 + i) for i in range(60)]
        for turn in turns:
            kept.journal.commit(turn, TIME)
        kept.sync()
        expected = all_shown(r for turn in turns for r in turn)
        assert all_shown(kept.restarted()) == expected
        assert all_shown(kept.restarted()) == expected

    def test_bytes_are_fetched_before_and_after_they_are_on_disk(self, kept: Kept) -> None:
        turns = [entering(1 + 10 * i, 10, 30 + i) for i in range(60)]
        expected = [the_payload(turn).raw for turn in turns]
        for turn in turns:
            kept.journal.commit(turn, TIME)
            p = the_payload(turn)
            raw = p.raw
            assert kept.journal.fetch(without_bytes(p)) == raw
        kept.sync()
        assert [kept.journal.fetch(the_payload(turn)) for turn in turns] == expected
        found = [r.payload for r in kept.restarted() if r.kind == PAYLOAD]
        assert [kept.journal.fetch(p) for p in found if p] == expected

    def test_large_payloads_are_whole(self, kept: Kept) -> None:
        big = payload([bytes([i]) * 30_000 for i in range(9)])
        raw = big.raw
        turn = [Record(PAYLOAD, 0, 1, 9, TIME, big), *entering(10)]
        kept.journal.commit(turn, TIME)
        assert kept.journal.fetch(big) == raw
        kept.sync()
        assert kept.journal.fetch(big) == raw
        kept.journal.commit(entering(11), TIME)
        kept.sync()
        assert kept.journal.fetch(big) == raw

    def test_what_was_never_committed_cannot_be_fetched(self, kept: Kept) -> None:
        with pytest.raises(BytesLost):
            kept.journal.fetch(payload([b"x"]))

    def test_a_refused_turn_changes_nothing(self, kept: Kept) -> None:
        kept.journal.commit(entering(1), TIME)
        end = kept.journal.end
        turn = entering(2) + entering(3)
        without_bytes(the_payload(turn[2:]))
        with pytest.raises(ValueError, match="none in memory"):
            kept.journal.commit(turn, TIME)
        assert kept.journal.end == end
        assert the_payload(turn).position == -1
        kept.journal.commit(entering(4), TIME)
        kept.sync()
        assert [r.first for r in kept.restarted() if r.kind == ENTERED] == [1, 4]

    def test_a_checkpoint_and_what_follows_it_stand_for_everything(self, kept: Kept) -> None:
        turn = entering(1, 5)
        kept.journal.commit(turn, TIME)
        kept.journal.commit(settling(1, 2), TIME)
        p = the_payload(turn)
        raw = p.raw
        state = [
            Record(COUNTERS, 5, 0, 0, TIME, blob=b'{"entered": 5}'),
            Record(PAYLOAD, 0, 1, 5, TIME, p),
            Record(LIVE, 5, 3, 3, TIME, p, 2, other=1),
        ]
        assert kept.journal.checkpoint(state, TIME)
        kept.journal.commit(settling(3, 1), TIME)
        kept.sync()
        found = kept.restarted()
        assert [r.kind for r in found] == [COUNTERS, PAYLOAD, LIVE, SETTLED]
        assert all_shown(found[:3]) == all_shown(state)
        assert found[2].payload is found[1].payload is not None
        assert kept.journal.fetch(found[1].payload) == raw

    def test_moved_payloads_are_found_at_their_new_place_and_stay_shared(self, kept: Kept) -> None:
        turn = entering(1, 5)
        kept.journal.commit(turn, TIME)
        p = the_payload(turn)
        raw, old = p.raw, p.position
        kept.sync()
        kept.journal.relocate([without_bytes(p)], TIME)
        assert p.position > old
        assert kept.journal.fetch(p) == raw
        kept.journal.commit([Record(ENTERED, 6, 1, 5, TIME, p)], TIME)
        kept.sync()
        found = kept.restarted()
        assert [r.kind for r in found] == [PAYLOAD, ENTERED, ENTERED]
        assert found[0].payload is found[1].payload is found[2].payload is not None
        assert found[0].payload.position == p.position
        assert kept.journal.fetch(found[0].payload) == raw

    def test_more_cannot_be_released_than_is_live(self, kept: Kept) -> None:
        turn = entering(1)
        kept.journal.commit(turn, TIME)
        p = the_payload(turn)
        kept.journal.release(p.position, p.size)
        with pytest.raises(ValueError, match="released"):
            kept.journal.release(p.position, p.size)
