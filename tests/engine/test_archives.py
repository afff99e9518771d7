"""Archives of streams: what is recorded of them, and that nothing else is let go of."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tallymark.engine import streams
from tallymark.engine.errors import Fenced, PreconditionFailed
from tallymark.engine.packing import Packing
from tallymark.engine.queue import Queue
from tallymark.engine.queue_parts import Archived
from tallymark.stored import records
from tests.engine.test_stream_publishers import numbered
from tests.engine.test_stream_ranges import between
from tests.engine.test_streams import STREAM
from tests.support.engine_rig import SIZE, Rig
from tests.support.engine_steps import manual


def stream(rig: Rig) -> Queue:
    return rig.vhost.queues["s"]


def filled(count: int) -> Rig:
    """A stream of messages 1, 2, ... of which some came together."""
    rig = manual()
    rig.declare("s", STREAM)
    for number in range(1, count + 1, 2):
        rig.send("s", *range(number, min(number + 2, count + 1)))
    rig.settle_down()
    return rig


def archived(low: int, high: int, rows: int | None = None, **more: str) -> Archived:
    """Sequences low..high-1."""
    said = {"archive": "a", "checksum": f"{low} {high}", "place": "/lake", **more}
    return Archived(low, high, high - low if rows is None else rows, **said)


def record(rig: Rig, low: int, high: int, rows: int | None = None, **more: str) -> bool:
    return rig.broker.archives.record(stream(rig), archived(low, high, rows, **more))


def release(rig: Rig, high: int) -> None:
    while not rig.broker.archives.release(stream(rig), high):
        rig.settle_down()
    rig.settle_down()
    rig.broker.check()


def test_what_is_archived_may_be_let_go_of_and_nothing_else() -> None:
    rig = filled(9)
    with pytest.raises(PreconditionFailed, match="archived are those below 0"):
        release(rig, 2)
    assert record(rig, 1, 6)
    with pytest.raises(PreconditionFailed, match=r"offsets below 6 .* archived are those below 5"):
        release(rig, 7)
    release(rig, 4)
    assert rig.ready("s") == [4, 5, 6, 7, 8, 9]
    release(rig, 6)
    assert rig.ready("s") == [6, 7, 8, 9]
    assert rig.dropped("s") == {"archived": 5}
    assert stream(rig).counters()["kept_from"] == 6


def test_a_repeated_record_changes_nothing_and_another_content_is_refused() -> None:
    rig = filled(9)
    assert record(rig, 1, 6)
    release(rig, 6)
    assert not record(rig, 1, 6)
    for wrong in ({"checksum": "other"}, {"rows": 4}):
        with pytest.raises(PreconditionFailed):
            record(rig, 1, 6, **wrong)  # type: ignore[arg-type]
    with pytest.raises(Fenced, match="the archive of stream 's' in vhost '/' is 'a' at /lake, not"):
        record(rig, 6, 8, archive="b")


@pytest.mark.parametrize(
    ("low", "high"), [(4, 8), (7, 9), (6, 6), (6, 5), (6, 11), (6, 6 + (1 << 31))]
)
def test_a_range_goes_on_from_the_last_one_and_ends_in_the_stream(low: int, high: int) -> None:
    rig = filled(9)
    record(rig, 1, 6)
    with pytest.raises(PreconditionFailed):
        record(rig, low, high)
    assert record(rig, 6, 10)


def test_it_has_as_many_rows_as_the_stream_has_messages() -> None:
    rig = filled(9)
    for rows in (4, 6, 0):
        with pytest.raises(PreconditionFailed, match=f"archived {rows} messages .* expected 5"):
            record(rig, 1, 6, rows)
    assert stream(rig).retention.archive is None


def test_numbers_that_were_passed_over_are_no_rows() -> None:
    rig = manual()
    rig.declare("s", STREAM)
    rig.send("s", *numbered(rig, 1, "p", 1, 2, 2, 3))
    rig.settle_down()
    queue = stream(rig)
    count = queue.ready
    assert count < queue.entered
    with pytest.raises(PreconditionFailed):
        record(rig, 1, queue.end())
    assert record(rig, 1, queue.end(), count)
    release(rig, queue.end())
    assert (queue.ready, queue.retention.kept_from) == (0, queue.end())


def test_what_is_not_on_disk_is_not_archived() -> None:
    rig = filled(4)
    rig.hold_disk = True
    rig.send("s", 5)
    rig.turn()
    with pytest.raises(PreconditionFailed):
        record(rig, 1, 6)
    assert record(rig, 1, 5)


def test_what_retention_took_before_is_no_gap_and_what_it_took_since_not_counted() -> None:
    rig = filled(10)
    rig.set_policy("s", {"max-length-bytes": 8 * SIZE, "stream-max-segment-size-bytes": SIZE})
    rig.settle_down()
    assert rig.ready("s") == [3, 4, 5, 6, 7, 8, 9, 10]
    assert record(rig, 3, 6)
    rig.set_policy("s", {"max-length-bytes": 3 * SIZE, "stream-max-segment-size-bytes": SIZE})
    rig.settle_down()
    assert rig.ready("s") == [8, 9, 10]
    with pytest.raises(PreconditionFailed, match="expected 5 to 7"):
        record(rig, 9, 11)
    with pytest.raises(PreconditionFailed, match=r"archived 1 messages .* expected 2"):
        record(rig, 6, 10, 1)
    assert record(rig, 6, 10)  # 6 and 7 went while they were archived
    release(rig, 10)
    assert rig.ready("s") == [10]
    assert rig.dropped("s") == {"archived": 2, "retention": 7}


def test_a_pin_holds_what_is_let_go_of() -> None:
    rig = filled(6)
    queue = stream(rig)
    pin = streams.pin(queue, 1, 5)
    record(rig, 1, 7)
    release(rig, 7)
    assert rig.ready("s") == []
    assert between(rig, queue, 1, 5, pin) == [1, 2, 3, 4]
    rig.turn()
    rig.turn()
    assert sum(size for _, size in rig.released) == 2 * SIZE
    streams.unpin(queue, pin, rig.broker.store)
    for _ in range(3):
        rig.turn()
    assert sum(size for _, size in rig.released) == 6 * SIZE


def test_a_deep_range_goes_some_at_a_time() -> None:
    rig = manual()
    rig.declare("s", STREAM)
    for number in range(1, 2502):
        rig.send("s", number)
    rig.settle_down()
    record(rig, 1, 2502)
    steps = 1
    while not rig.broker.archives.release(stream(rig), 2502):
        assert len(rig.ready("s")) == 2501 - 1000 * steps
        steps += 1
    assert steps == 3


def test_a_queue_is_no_stream() -> None:
    rig = manual()
    queue = rig.declare("q")
    with pytest.raises(PreconditionFailed, match="is no stream"):
        rig.broker.archives.record(queue, archived(1, 2))
    with pytest.raises(PreconditionFailed, match="is no stream"):
        rig.broker.archives.release(queue, 1)


def test_a_row_that_a_newer_version_wrote_is_not_guessed_at() -> None:
    row = archived(1, 3).to_record(filled(2).vhost.queues["s"].id)
    assert (row.kind, row.first, row.count, row.other) == (records.ARCHIVED, 1, 2, 2)
    row.blob = b'{"archive":"a","checksum":"c","place":"p","more":1}'
    with pytest.raises(ValueError, match="expected archive, checksum and place"):
        Archived.from_record(row)


@dataclass
class Naive:
    """A stream and its archive, as lists."""

    numbers: list[int] = field(default_factory=list)
    begin: int = 0
    archived: int = 0
    """How many, from the first on."""


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 4)),
        st.tuples(st.just("archive"), st.integers(1, 6)),
        st.tuples(st.just("release"), st.integers(0, 6)),
        st.tuples(st.just("retain"), st.integers(1, 12)),
        st.tuples(st.just("restart"), st.integers(0, 2)),
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.booleans())
def test_any_history_is_that_of_a_list(steps: list[tuple[str, int]], packs: bool) -> None:
    """And wherever its log ends, what is not in the stream is archived, or retention took it."""
    rig, naive = filled(0), Naive()
    for step, n in steps:
        if packs:
            rig.broker.backlogs.packing = Packing(after=2, group=3, fresh=1)
        if step == "publish":
            first = len(naive.numbers) + 1
            naive.numbers += range(first, first + n)
            rig.send("s", *range(first, first + n))
        elif step == "archive":
            low = max(naive.archived, naive.begin)
            high = min(low + n, len(naive.numbers))
            if low < high:
                assert record(rig, low + 1, high + 1)
                naive.archived = high
        elif step == "release":
            high = naive.begin + n
            if high <= naive.archived:
                release(rig, high + 1)
                naive.begin = max(naive.begin, high)
            elif high > naive.archived:
                with pytest.raises(PreconditionFailed):
                    release(rig, high + 1)
        elif step == "retain":
            kept = {"max-length-bytes": n * SIZE, "stream-max-segment-size-bytes": SIZE}
            rig.set_policy("s", kept)
            rig.settle_down()
            rig.set_policy("s", {})
            naive.begin = max(naive.begin, len(naive.numbers) - n)
        else:
            if n == 2:
                rig.checkpoint()
            rig = rig.restart(clean=n == 1)
        rig.settle_down(budget=0 if packs else 1 << 40)
        rig.broker.check()
        known = stream(rig).retention.archive
        assert (0 if known is None else known.high - 1) == naive.archived
        assert rig.ready("s") == naive.numbers[naive.begin :]
    for blocks in range(len(rig.log.blocks) + 1):
        after = rig.reopened(rig.log.upto(blocks))
        after.settle_down()
        if "s" not in after.vhost.queues:
            continue
        queue = stream(after)
        upto = 1 if queue.retention.archive is None else queue.retention.archive.high
        let_go = queue.account.dropped.get(records.DROPPED_ARCHIVED, 0)
        assert queue.ready + sum(queue.account.dropped.values()) == queue.entered
        if let_go and records.DROPPED_RETENTION not in queue.account.dropped:
            assert let_go + 1 == queue.retention.kept_from <= upto
