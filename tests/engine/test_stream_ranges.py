"""Ranges of a stream: how far a batch goes, what retention took, what a pin holds."""

from __future__ import annotations

import random

import pytest

from tallymark import is_compiled
from tallymark.engine import store, streams
from tallymark.engine.errors import Fenced, Gone, PreconditionFailed
from tallymark.engine.message import Slice
from tallymark.engine.packing import Packing
from tallymark.engine.queue import Queue
from tallymark.engine.queue_parts import Pin
from tallymark.engine.streams import first_offset
from tests.engine.test_stream_publishers import numbered
from tests.engine.test_streams import STREAM
from tests.support.engine_rig import SIZE, Rig, number_at, numbers
from tests.support.engine_steps import manual


def numbers_of(rig: Rig, pieces: list[Slice]) -> list[int]:
    """The messages of slices that may be packed."""
    found = []
    for piece in pieces:
        if piece.payload.pack is None:
            assert rig.broker.store.lent(piece.payload)
            found += numbers(piece)
            continue
        for i in range(piece.lo, piece.hi):
            one = piece.payload.single(i)
            one.raw = rig.log.fetch(one)
            found.append(number_at(one, 0))
    return found


def between(rig: Rig, queue: Queue, low: int, high: int, pin: Pin | None = None) -> list[int]:
    streams.check_range(queue, low, high, pin)
    return numbers_of(rig, streams.between(queue, low, high, pin))


def batch(queue: Queue, low: int, most: int = 1 << 60, most_bytes: int = 1 << 60) -> list[int]:
    found = streams.batch(queue, low, most, most_bytes)
    return [found.end, found.messages, found.bytes]


def test_retention_that_goes_beyond_what_readers_may_see_is_not_told_before() -> None:
    """Else a reader that goes on with the oldest message asks for what is not there yet."""
    rig = manual()
    queue = rig.declare("s", {**STREAM, "max-length-bytes": 3 * SIZE})
    rig.send("s", 1, 2)
    rig.settle_down()
    rig.hold_disk = True
    rig.send("s", 3, 4, 5, 6, 7, 8)
    rig.settle_down()
    assert rig.dropped("s") == {"retention": 5}
    assert first_offset(queue) == queue.end() - 1 == 2
    assert batch(queue, first_offset(queue) + 1) == [3, 0, 0]
    with pytest.raises(Gone, match=r"offsets 1 to 1 .* begins at 2"):
        batch(queue, 2)
    rig.hold_disk = False
    rig.settle_down()
    assert first_offset(queue) == 5
    with pytest.raises(Gone, match=r"offsets 2 to 4 .* begins at 5"):
        batch(queue, 3)


def test_a_range_is_what_it_says() -> None:
    rig = manual()
    queue = rig.declare("s", STREAM)
    rig.send("s", 1, 2, 3)
    rig.send("s", 4, 5)
    rig.settle_down()
    assert between(rig, queue, 1, 6) == [1, 2, 3, 4, 5]
    assert between(rig, queue, 3, 5) == [3, 4]
    assert between(rig, queue, 4, 4) == between(rig, queue, 6, 6) == []
    for low, high in ((0, 3), (-4, 3), (1, 7), (5, 4), (7, 7)):
        with pytest.raises(PreconditionFailed, match="expected 0 <= from <= to <= 5"):
            between(rig, queue, low, high)


def test_a_batch_ends_at_the_readers_limits() -> None:
    rig = manual()
    queue = rig.declare("s", STREAM)
    rig.send("s", 1, 2, 3)
    rig.send("s", 4, 5)
    rig.settle_down()
    assert batch(queue, 1) == [6, 5, 5 * SIZE]
    assert batch(queue, 2) == [6, 4, 4 * SIZE]
    assert batch(queue, 2, most=3) == [5, 3, 3 * SIZE]
    assert batch(queue, 2, most_bytes=3 * SIZE) == [5, 3, 3 * SIZE]
    assert batch(queue, 2, most_bytes=4 * SIZE - 1) == [5, 3, 3 * SIZE]
    assert batch(queue, 3, most_bytes=1) == [4, 1, SIZE]
    assert batch(queue, 6) == [6, 0, 0]
    with pytest.raises(PreconditionFailed, match="offsets from 6 to 6 of stream 's' in vhost '/'"):
        batch(queue, 7)


def test_what_is_not_on_disk_is_in_no_range() -> None:
    rig = manual()
    queue = rig.declare("s", STREAM)
    rig.send("s", 1)
    rig.settle_down()
    rig.hold_disk = True
    rig.send("s", 2)
    rig.settle_down()
    assert batch(queue, 1) == [2, 1, SIZE]
    with pytest.raises(PreconditionFailed):
        between(rig, queue, 1, 3)
    rig.hold_disk = False
    rig.settle_down()
    assert between(rig, queue, 1, 3) == [1, 2]


def test_a_range_of_which_retention_took_a_part_is_gone() -> None:
    rig = manual()
    queue = rig.declare("s", {**STREAM, "max-length-bytes": 2 * SIZE})
    for n in range(1, 6):
        rig.send("s", n)
        rig.settle_down()
    assert (rig.ready("s"), first_offset(queue)) == ([4, 5], 3)
    with pytest.raises(Gone, match="offsets 1 to 2 of stream 's' in vhost '/' are not kept any"):
        between(rig, queue, 2, 5)
    with pytest.raises(Gone):
        batch(queue, 3)
    assert batch(queue, 4) == [6, 2, 2 * SIZE]
    for after in (rig.restart(), _with_checkpoint(rig).restart()):
        assert first_offset(after.vhost.queues["s"]) == 3


def _with_checkpoint(rig: Rig) -> Rig:
    rig.checkpoint()
    return rig


def test_where_a_stream_begins_is_known_though_nothing_is_left() -> None:
    rig = manual()
    rig.declare("s", {**STREAM, "max-age": "1s"})
    rig.send("s", 1, 2, 3)
    rig.advance(2_000)
    for after in (rig, rig.restart(), _with_checkpoint(rig).restart()):
        queue = after.vhost.queues["s"]
        assert (after.ready("s"), first_offset(queue), queue.end()) == ([], 3, 4)
        assert batch(queue, 4) == [4, 0, 0]


def test_a_pin_holds_what_retention_takes() -> None:
    rig = manual()
    queue = rig.declare("s", {**STREAM, "max-length-bytes": 4 * SIZE})
    rig.send("s", 1, 2, 3)
    rig.send("s", 4)
    rig.settle_down()
    pin = streams.pin(queue, 2, 5)
    for n in range(5, 12):
        rig.send("s", n)
        rig.settle_down()
    assert rig.ready("s") == [8, 9, 10, 11]
    assert between(rig, queue, 2, 5, pin) == [2, 3, 4]
    assert between(rig, queue, 3, 4, pin) == [3]
    with pytest.raises(Gone):
        between(rig, queue, 1, 5, pin)
    with pytest.raises(Gone):
        between(rig, queue, 2, 6, pin)
    rig.broker.check()
    rig.turn()
    # The payload of 1, 2 and 3 is one: none of its bytes goes before the pin does.
    assert sum(size for _, size in rig.released) == 3 * SIZE
    streams.unpin(queue, pin, rig.broker.store)
    streams.unpin(queue, pin, rig.broker.store)
    rig.turn()
    rig.turn()
    assert sum(size for _, size in rig.released) == 7 * SIZE
    assert queue.retention.pins == []


def test_a_range_half_of_which_is_only_pinned() -> None:
    rig = manual()
    queue = rig.declare("s", {**STREAM, "max-length-bytes": 4 * SIZE})
    for n in range(1, 5):
        rig.send("s", n)
    rig.settle_down()
    pin = streams.pin(queue, 1, 5)
    rig.send("s", 5, 6)
    rig.settle_down()
    assert rig.ready("s") == [3, 4, 5, 6]
    assert between(rig, queue, 1, 5, pin) == [1, 2, 3, 4]
    assert between(rig, queue, 2, 4, pin) == [2, 3]


def test_a_stream_made_again_is_another() -> None:
    rig = manual()
    old = rig.declare("s", STREAM)
    streams.check_stream(old, old.id)
    streams.check_stream(old, 0)
    rig.delete("s")
    new = rig.declare("s", STREAM)
    with pytest.raises(Fenced, match="was deleted and made again"):
        streams.check_stream(new, old.id)
    with pytest.raises(PreconditionFailed, match="queue 'q' in vhost '/' is no stream"):
        streams.check_stream(rig.declare("q"), 0)


def test_numbers_that_were_passed_over_are_holes() -> None:
    rig = manual()
    queue = rig.declare("s", STREAM)
    rig.send("s", *numbered(rig, 1, "p", 1, 2))
    rig.send("s", *numbered(rig, 3, "p", 1, 2, 3))
    rig.send("s", *numbered(rig, 6, "p", 2, 3))
    rig.settle_down()
    assert queue.end() == 8
    assert between(rig, queue, 1, 8) == [1, 2, 5]
    assert between(rig, queue, 3, 5) == between(rig, queue, 6, 8) == []
    assert batch(queue, 1)[:2] == [8, 3]
    assert batch(queue, 1, most=3)[:2] == [6, 3]
    assert batch(queue, 6)[:2] == [8, 0]


@pytest.mark.parametrize("seed", range(30))
def test_ranges_of_packed_and_other_slices_agree_with_a_list(seed: int) -> None:
    choose = random.Random(seed)
    rig = manual()
    rig.broker.backlogs.packing = Packing(after=6, group=8, fresh=2)
    queue = rig.declare("s", {**STREAM, "max-length-bytes": 50 * SIZE})
    sent = 0
    pins: list[tuple[Pin, int, int]] = []
    for _ in range(60):
        for _ in range(choose.choice([1, 1, 3])):
            more = list(range(sent + 1, sent + 1 + choose.choice([1, 1, 1, 2, 5])))
            sent += len(more)
            rig.send("s", *more)
        rig.settle_down(choose.choice([0, 1 << 40]))
        low = choose.randint(queue.retention.kept_from, queue.end())
        high = choose.randint(low, queue.end())
        assert between(rig, queue, low, high) == list(range(low, high))
        found = streams.batch(queue, low, choose.randint(1, 9), choose.randint(1, 9 * SIZE))
        assert found.end - low == found.messages == found.bytes // SIZE
        if len(pins) < 3:
            pins.append((streams.pin(queue, low, high), low, high))
        for pin, a, b in pins:
            start = choose.randint(a, b)
            assert between(rig, queue, start, b, pin) == list(range(start, b)), seed
        if choose.random() < 0.1:
            streams.unpin(queue, pins.pop(0)[0], rig.broker.store)
        rig.broker.check()
    for pin, _, _ in pins:
        streams.unpin(queue, pin, rig.broker.store)
    rig.set_policy("s", {"max-length-bytes": 0})
    rig.settle_down()
    rig.turn()
    assert sum(size for _, size in rig.released) == sent * SIZE, seed


@pytest.mark.skipif(is_compiled(), reason="a compiled module has its constants built in")
def test_what_a_deep_stream_lets_go_of_goes_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "SWEPT", 20)
    rig = manual()
    rig.broker.backlogs.packing = Packing(after=10, group=16, fresh=2)
    rig.declare("s", STREAM)
    for n in range(1, 301):
        rig.send("s", n)
        rig.settle_down(0)
    rig.set_policy("s", {"max-length-bytes": 0})
    rig.turn(0)
    assert rig.ready("s") == []
    most = turns = 0
    while not turns or rig.broker.has_work():
        before = len(rig.released)
        rig.turn(0)
        most = max(most, len(rig.released) - before)
        turns += 1
    assert sum(size for _, size in rig.released) == 300 * SIZE
    assert most <= 20 + 16
    assert turns >= 8
    assert len(set(rig.released)) == len(rig.released)
