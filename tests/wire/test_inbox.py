"""Input that waits: whatever the reads, and what is awaited of them, each byte comes once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.line import APART, CHUNKS_MAX, Inbox

sizes = st.integers(1, 60) | st.integers(APART - 2, APART + 2) | st.integers(1, 4 * APART)


@given(st.lists(sizes, min_size=1, max_size=12), st.lists(sizes, min_size=1, max_size=12))
def test_what_is_awaited_comes_as_soon_as_it_is_there(reads: list[int], needs: list[int]) -> None:
    sent = bytes(number * 7 % 251 for number in range(sum(reads)))
    inbox = Inbox(needs[0])
    got = added = asked = 0
    for size in reads:
        inbox.add(sent[added : added + size])
        added += size
        while True:
            need = needs[asked % len(needs)]
            assert inbox.size() == added - got
            assert inbox.gather() == (added - got >= need)
            if added - got < need:
                break
            assert inbox.data[inbox.pos : inbox.pos + need] == sent[got : got + need]
            got += need
            asked += 1
            inbox.advance(inbox.pos + need, needs[asked % len(needs)])
    assert inbox.take() == sent[got:]
    assert inbox.size() == 0


def test_a_large_frame_is_made_whole_without_what_came_behind_it() -> None:
    inbox = Inbox(APART)
    inbox.add(b"a" * 10)
    assert not inbox.gather()
    behind = b"a" * (APART - 10) + b"b" * 3 * APART
    inbox.add(behind)
    assert inbox.gather()
    assert inbox.data == b"a" * APART
    inbox.advance(APART, 1)
    assert inbox.gather()
    assert inbox.data is behind, "the rest is not moved"
    assert inbox.pos == APART - 10


def test_many_reads_behind_a_part_of_one_are_kept_together() -> None:
    inbox = Inbox(APART)
    inbox.add(b"a")
    assert not inbox.gather()
    inbox.add(b"a" * (APART - 1) + b"b" * 2 * APART)
    assert inbox.gather()
    inbox.advance(APART, 1 << 20)
    for _ in range(CHUNKS_MAX):
        inbox.add(b"c")
    assert not inbox.gather()
    assert inbox.take() == b"b" * 2 * APART + b"c" * CHUNKS_MAX
