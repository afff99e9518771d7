"""Batches are published whole and once per (sink, batch), whatever is repeated, late or crashes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.engine.broker import Broker
from tallymark.engine.errors import (
    Fenced,
    NotFound,
    PreconditionFailed,
    ResourceExhausted,
    Unreadable,
)
from tallymark.engine.sinks import StagedPart, Staging
from tallymark.engine.streams import TIME, Start
from tallymark.stored import records
from tallymark.stored.annotations import Annotations
from tallymark.units import EngineMs
from tests.support.engine_rig import Rig, Said

HOUR_MS = 3_600_000


def part(rig: Rig, key: str, *messages: int, exchange: str = "", **more: object) -> StagedPart:
    ttl = more.get("ttl", -1)
    assert isinstance(ttl, int)
    known = Annotations(ttl_ms=ttl) if ttl >= 0 else None
    payload = rig.payload(key, list(messages), bool(more.get("persistent", True)), exchange)
    mandatory = bool(more.get("mandatory", True))
    return StagedPart(payload, known, mandatory, rig.broker.clock.now_ms)


def stage(rig: Rig, *parts: StagedPart, sink: str = "s") -> Staging:
    return rig.broker.sinks.stage("/", sink, list(parts), HOUR_MS)


def commit(rig: Rig, batch: int, *stagings: Staging, who: str = "me", sink: str = "s") -> bool:
    """Whether it was a repetition."""
    ids = [one.id for one in stagings]
    return rig.broker.publishing.commit_sink("/", sink, who, batch, ids).repeated


def made() -> Rig:
    rig = Rig()
    rig.queue("q")
    rig.queue("p")
    rig.turn()
    return rig


def test_a_batch_is_published_at_its_commit_and_not_before() -> None:
    rig = made()
    first, second = (
        stage(rig, part(rig, "q", 0, 1), part(rig, "p", 2)),
        stage(rig, part(rig, "q", 3)),
    )
    rig.turn()
    assert (rig.ready("q"), rig.ready("p"), rig.broker.sinks.staged) == ([], [], 4)
    rig.broker.check()
    before = rig.broker.publishing.published
    assert not commit(rig, 0, first, second)
    rig.turn()
    assert (rig.ready("q"), rig.ready("p"), rig.broker.sinks.staged) == ([0, 1, 3], [2], 0)
    assert rig.broker.publishing.published == before + 4
    rig.broker.check()


def test_a_batch_and_its_key_are_in_one_block() -> None:
    rig = made()
    staging = stage(rig, part(rig, "q", 0), part(rig, "p", 1))
    rig.turn()
    commit(rig, 0, staging)
    rig.turn()
    kinds = [record.kind for record in rig.log.blocks[-1]]
    assert kinds.count(records.ENTERED) == 2
    assert kinds.count(records.SINK_ENDED) == 1
    assert kinds.count(records.DEFINITION) == 1
    assert records.PAYLOAD not in kinds, "the bytes are on disk since the staging"


def test_the_same_batch_again_does_nothing_and_drops_what_was_staged_for_it() -> None:
    rig = made()
    commit(rig, 7, stage(rig, part(rig, "q", 0)))
    again, later = stage(rig, part(rig, "q", 1)), stage(rig, part(rig, "q", 2))
    assert commit(rig, 7, again)
    assert commit(rig, 7, again), "also without its stagings, which are gone"
    rig.turn()
    assert rig.ready("q") == [0]
    assert list(rig.broker.sinks.stagings) == [later.id], "of a driver that is further on"
    assert not commit(rig, 8, later)


@pytest.mark.parametrize(("who", "batch"), [("me", 4), ("other", 5), ("other", 6)])
def test_a_lower_batch_or_another_writer_is_refused(who: str, batch: int) -> None:
    rig = made()
    commit(rig, 5, stage(rig, part(rig, "q", 0)))
    staging = stage(rig, part(rig, "q", 1))
    with pytest.raises(Fenced, match=r"expected that or a later|has batches of 'me'"):
        commit(rig, batch, staging, who=who)
    rig.turn()
    assert (rig.ready("q"), rig.broker.sinks.staged) == ([0], 1)
    assert rig.broker.sinks.abort("/", "s", [staging.id, staging.id, 4711]) == 1
    rig.broker.check()


def test_a_staging_is_committed_by_its_own_sink_and_once() -> None:
    rig = made()
    staging = stage(rig, part(rig, "q", 0))
    with pytest.raises(NotFound, match="no staging"):
        commit(rig, 0, staging, sink="t")
    with pytest.raises(PreconditionFailed, match="twice"):
        commit(rig, 0, staging, staging)
    assert rig.broker.sinks.abort("/", "t", [staging.id]) == 0, "nor is it aborted by another"
    commit(rig, 0, staging)
    with pytest.raises(NotFound, match="no staging"):
        commit(rig, 1, staging)
    rig.turn()
    assert rig.ready("q") == [0]


def test_a_commit_ends_what_killed_tasks_left_behind() -> None:
    rig = made()
    orphan, other = stage(rig, part(rig, "q", 0)), stage(rig, part(rig, "q", 1), sink="t")
    commit(rig, 0, stage(rig, part(rig, "q", 2)))
    rig.turn()
    assert rig.ready("q") == [2]
    assert list(rig.broker.sinks.stagings) == [other.id], "those of another sink stay"
    ended = [r for block in rig.log.blocks for r in block if r.kind == records.SINK_ENDED]
    assert (ended[-1].owner, ended[-1].reason) == (orphan.id, records.SINK_SUPERSEDED)
    rig.turn()
    assert rig.released, "its bytes are needed by nobody"


def test_what_cannot_be_published_whole_is_not_published_at_all() -> None:
    rig = made()
    rig.declare("small", {"max-length": 2, "overflow": "reject-publish"})
    staging = stage(rig, part(rig, "q", 0), part(rig, "small", 1, 2, 3))
    with pytest.raises(ResourceExhausted, match="no room"):
        commit(rig, 0, staging)
    lost = stage(rig, part(rig, "nowhere", 4))
    with pytest.raises(PreconditionFailed, match=r"'nowhere'.* reaches no queue"):
        commit(rig, 0, staging, lost)
    gone = stage(rig, part(rig, "k", 5, exchange="gone"))
    with pytest.raises(NotFound, match="gone"):
        commit(rig, 0, gone)
    rig.turn()
    assert rig.ready("q") == rig.ready("small") == []
    assert ("/", "s") not in rig.broker.sinks.sinks, "the batch is still to come"
    rig.declare("small", {"max-length": 2, "overflow": "reject-publish"})
    rig.delete("small")
    rig.queue("small")
    assert not commit(rig, 0, staging), "it can be tried again: routes are those of the commit"
    rig.turn()
    assert (rig.ready("q"), rig.ready("small")) == ([0], [1, 2, 3])


def test_delayed_messages_take_no_room_from_each_other() -> None:
    rig = made()
    rig.declare("small", {"max-length": 1, "overflow": "reject-publish"})
    late = part(rig, "small", 0, 1, 2)
    late.annotations = Annotations(due_ms=EngineMs(late.staged_ms + 1000))
    commit(rig, 0, stage(rig, late, part(rig, "small", 3)))
    rig.turn()
    rig.broker.check()
    small = rig.vhost.queues["small"]
    assert (rig.ready("small"), small.deferred) == ([3], 3)


def test_messages_that_need_no_queue_are_counted() -> None:
    rig = made()
    staging = stage(rig, part(rig, "nowhere", 0, 1, mandatory=False), part(rig, "q", 2))
    done = rig.broker.publishing.commit_sink("/", "s", "me", 0, [staging.id])
    assert (done.published, done.unroutable) == (3, 2)
    rig.turn()
    rig.broker.check()
    assert rig.ready("q") == [2]


def test_messages_arrive_with_the_commit() -> None:
    rig = made()
    rig.tick_ms = 0
    rig.declare("timed", {"message-ttl": 1000})
    staging = stage(rig, part(rig, "timed", 0), part(rig, "q", 1, ttl=2000))
    rig.turn()
    rig.advance(60_000)
    commit(rig, 0, staging)
    rig.turn()
    rig.advance(900)
    assert (rig.ready("timed"), rig.ready("q")) == ([0], [1])
    rig.advance(200)
    assert (rig.ready("timed"), rig.ready("q")) == ([], [1])
    rig.advance(1000)
    assert rig.ready("q") == []


def test_a_stream_is_in_the_order_of_its_times_also_behind_a_commit() -> None:
    rig = made()
    rig.tick_ms = 0
    queue = rig.declare("t", {"queue-type": "stream"})
    staging = stage(rig, part(rig, "t", 1))
    rig.advance(1000)
    rig.send("t", 0)
    rig.advance(1000)
    commit(rig, 0, staging)
    committed_ms = rig.broker.clock.now_ms
    rig.settle_down()
    assert rig.ready("t") == [0, 1]
    assert Start(TIME, committed_ms).place(queue, rig.broker.clock) == 2
    assert Start(TIME, committed_ms + 1).place(queue, rig.broker.clock) == 3


def test_a_staging_that_nobody_commits_ends_when_its_time_is_up_also_after_a_restart() -> None:
    rig = made()
    rig.tick_ms = 0
    early = stage(rig, part(rig, "q", 0))
    rig.turn()
    rig.advance(HOUR_MS // 2)
    late = stage(rig, part(rig, "q", 1))
    rig.turn()
    rig = rig.restart()
    rig.advance(HOUR_MS // 2 - 1)
    assert sorted(rig.broker.sinks.stagings) == [early.id, late.id]
    rig.advance(1)
    assert list(rig.broker.sinks.stagings) == [late.id]
    rig = rig.restart()
    rig.advance(HOUR_MS)
    assert rig.broker.sinks.stagings == {}
    rig.broker.check()
    reasons = [r.reason for b in rig.log.blocks for r in b if r.kind == records.SINK_ENDED]
    assert reasons == [records.SINK_EXPIRED] * 2


def test_a_writer_that_comes_once_is_forgotten_in_time() -> None:
    rig = made()
    rig.tick_ms = 0
    staging = stage(rig, part(rig, "q", 0))
    rig.broker.publishing.commit_sink("/", "s", "once", 0, [staging.id], HOUR_MS)
    rig.turn()
    rig = rig.restart()
    rig.advance(HOUR_MS - 1)
    assert commit(rig, 0, who="once"), "a repeated commit is known for so long"
    rig.advance(1)
    assert rig.broker.sinks.sinks == {}
    assert rig.restart().broker.sinks.sinks == {}


def test_a_commit_that_follows_on_another_batch_than_the_last_changes_nothing() -> None:
    rig = made()
    first = stage(rig, part(rig, "q", 0))

    def follow(batch: int, after: int, staging: Staging) -> bool:
        return rig.broker.publishing.commit_sink(
            "/", "s", "me", batch, [staging.id], after=after
        ).repeated

    with pytest.raises(Fenced, match=r"batch 7 for sink 's' .* follows on batch 5, .* has batch 0"):
        follow(7, 5, first)
    assert not follow(7, 0, first)
    second = stage(rig, part(rig, "q", 1))
    with pytest.raises(Fenced, match="follows on batch 0, but the sink has batch 7"):
        follow(8, 0, second)
    assert follow(7, 0, second), "the same batch again is a repetition"
    assert not follow(9, 7, stage(rig, part(rig, "q", 2)))
    rig.turn()
    assert rig.ready("q") == [0, 2]
    rig.broker.check()


def test_a_batch_with_another_target_is_no_repetition() -> None:
    """Both have one number, of one query: nothing of the second is passed over in silence."""
    rig = made()

    def write(batch: int, target: str, key: str, message: int) -> bool:
        ids = [stage(rig, part(rig, key, message)).id]
        done = rig.broker.publishing.commit_sink("/", "s", "me", batch, ids, target=target)
        rig.turn()
        return done.repeated

    assert not write(0, "queue 'q'", "q", 0)
    rig = rig.restart()
    with pytest.raises(Fenced, match=r"was written to queue 'q', and is not written to queue 'p'"):
        write(0, "queue 'p'", "p", 1)
    assert write(0, "queue 'q'", "q", 2)
    assert write(0, "", "q", 3), "who says nothing is believed"
    assert not write(1, "queue 'p'", "p", 4), "a later batch may go elsewhere"
    assert (rig.ready("q"), rig.ready("p")) == ([0], [4])
    rig.broker.check()


def test_an_operator_lets_another_checkpoint_begin() -> None:
    rig = made()
    commit(rig, 5, stage(rig, part(rig, "q", 0)))
    stage(rig, part(rig, "q", 1))
    assert rig.broker.sinks.forget("/", "s") == 1
    rig.turn()
    rig = rig.restart()
    with pytest.raises(NotFound):
        rig.broker.sinks.forget("/", "s")
    assert not commit(rig, 0, stage(rig, part(rig, "q", 2)), who="other")


def test_priorities_headers_and_ids_are_heeded_as_in_any_publish() -> None:
    rig = made()
    rig.declare("lanes", {"max-priority": 5})
    rig.declare("once", {"message-deduplication": 60_000})
    rig.exchange("h", "headers")
    rig.vhost.bind_queue("p", "h", "", {"kind": "a"}, rig.connection.id)
    rig.vhost.bind_queue("q", "h", "", {"kind": "b"}, rig.connection.id)
    rig.says.update({
        1: Said(priority=1), 2: Said(priority=4), 3: Said(headers={"kind": "a"}),
        4: Said(headers={"kind": "b"}), 5: Said(id="x"), 6: Said(id="x"),
    })  # fmt: skip
    staging = stage(
        rig, part(rig, "lanes", 1, 2), part(rig, "", 3, 4, exchange="h"), part(rig, "once", 5, 6)
    )
    rig.turn()
    rig = rig.restart()
    commit(rig, 0, staging)
    rig.turn()
    assert rig.ready("lanes") == [2, 1]
    assert (rig.ready("p"), rig.ready("q")) == ([3], [4])
    assert rig.ready("once") == [5]
    rig.broker.check()


def test_memory_may_let_go_of_what_is_staged() -> None:
    rig = made()
    staging = stage(rig, part(rig, "q", *range(100)))
    rig.turn(budget=0)
    assert staging.parts[0].payload.raw is None
    commit(rig, 0, staging)
    rig.turn(budget=0)
    assert rig.ready("q") == list(range(100))


def test_what_a_commit_needs_is_read_before_anything_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = made()
    staging = stage(rig, part(rig, "q", 0))

    def fail(broker: object, *_: object) -> None:
        raise OSError("unreadable")

    monkeypatch.setattr(rig.broker.store, "_fetch", fail)
    rig.turn(budget=0)
    rig.declare("lanes", {"max-priority": 5})
    other = stage(rig, part(rig, "lanes", 1))
    rig.turn(budget=0)
    with pytest.raises(Unreadable, match="unreadable"):
        commit(rig, 0, staging, other)
    assert not rig.broker.sinks.is_half_done, "what is needed is read before anything is changed"
    assert rig.ready("q") == []


STEP = st.one_of(
    st.tuples(st.just("stage"), st.integers(0, 3)),
    st.tuples(st.just("commit"), st.integers(0, 3)),
    st.tuples(st.just("repeat"), st.integers(0, 3)),
    st.tuples(st.just("abort"), st.just(0)),
    st.tuples(st.just("crash"), st.integers(0, 3)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=30))
def test_each_batch_is_there_whole_and_once_whatever_happens(
    history: list[tuple[str, int]],
) -> None:
    """Crashes cut the log at any block; the writer then does what a Spark query does: it begins
    its last batch again, and repeats commits whose answer it has not seen."""
    rig = made()
    number = batch = 0
    waiting: list[Staging] = []
    mine: list[list[int]] = []
    expected: list[int] = []
    for what, n in history:
        if what == "stage":
            messages = list(range(number, number + n + 1))
            number += n + 1
            keys = "q" if n < 2 else "p"
            waiting.append(stage(rig, part(rig, keys, *messages)))
            mine.append(messages)
        elif what == "commit":
            assert not commit(rig, batch, *waiting)
            expected += [message for messages in mine for message in messages]
            waiting, mine = [], []
            batch += 1
        elif what == "repeat" and batch:
            named = waiting[:n]  # an attempt at a batch that was committed; the rest is the next's
            assert commit(rig, batch - 1, *named)
            del waiting[:n], mine[:n]
        elif what == "abort":
            rig.broker.sinks.abort("/", "s", [one.id for one in waiting])
            waiting, mine = [], []
        rig.turn()
        if what == "crash":
            if n == 3:
                rig.checkpoint()
            rig = rig.restart(clean=n == 2)
            rig.turn()
            if n == 1:
                waiting, mine = [], []
        rig.broker.check()
        assert sorted(rig.ready("q") + rig.ready("p")) == sorted(expected)
        known = rig.broker.sinks.sinks.get(("/", "s"))
        assert (known.batch if known else -1) == batch - 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.data())
def test_wherever_the_log_ends_a_batch_is_there_with_its_key_or_neither(
    sizes: list[int], data: st.DataObject
) -> None:
    rig = made()
    number = 0
    for batch, size in enumerate(sizes):
        staged = []
        for key in ("q", "p"):
            staged.append(stage(rig, part(rig, key, *range(number, number + size))))
            number += size
            rig.turn()
        commit(rig, batch, *staged)
        rig.turn()
    cut = data.draw(st.integers(1, len(rig.log.blocks)))
    after = rig.reopened(rig.log.upto(cut))
    after.turn()
    after.broker.check()
    sink = after.broker.sinks.sinks.get(("/", "s"))
    upto = sink.batch + 1 if sink is not None else 0
    present = sorted(after.ready("q") + after.ready("p"))
    assert present == list(range(2 * sum(sizes[:upto])))
    assert all(one.sink == "s" for one in after.broker.sinks.stagings.values())


def test_a_virtual_host_takes_its_sinks_with_it() -> None:
    rig = made()
    commit(rig, 0, stage(rig, part(rig, "q", 0)))
    stage(rig, part(rig, "q", 1))
    rig.broker.sinks.forget_vhost("/")
    rig.turn()
    broker: Broker = rig.restart().broker
    assert (broker.sinks.sinks, broker.sinks.stagings) == ({}, {})
