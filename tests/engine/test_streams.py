"""Streams: what is kept, for how long, and what readers see."""

from __future__ import annotations

import random

import pytest

from tallymark.engine.clock import NEVER
from tallymark.engine.errors import NotAllowed, PreconditionFailed, Unsupported
from tallymark.engine.outcomes import ACCEPTED, REJECTED
from tallymark.engine.packing import Packing
from tallymark.engine.session import Consumer, Session
from tallymark.engine.sinks import StagedPart
from tallymark.engine.streams import AGO, FIRST, LAST, NEXT, OFFSET, TIME, Start, start_of
from tallymark.stored.annotations import Annotations
from tests.support.engine_rig import SIZE, START_MS, Rig
from tests.support.engine_steps import manual

STREAM = {"queue-type": "stream"}
HOUR_MS = 3_600_000


def reader(
    rig: Rig,
    name: str,
    start: Start,
    session: Session | None = None,
    *,
    tag: str = "r",
    prefetch: int = 0,
    no_ack: bool = False,
) -> Consumer:
    session = session or rig.session()
    rig.broker.consuming.set_prefetch(session, prefetch, False)
    return rig.broker.consuming.read(session, rig.vhost.queues[name], tag, start, no_ack)


def seen(rig: Rig) -> list[int]:
    found = [delivery.number for delivery in rig.settle_down()]
    rig.broker.check()
    return found


@pytest.mark.parametrize("persistent", [True, False])
def test_a_stream_keeps_what_it_is_given_and_readers_do_not_touch_each_other(
    persistent: bool,
) -> None:
    rig = manual()
    queue = rig.declare("s", STREAM)
    rig.send("s", 1, 2, 3, persistent=persistent)
    for _ in range(3):
        reader(rig, "s", Start(FIRST))
        assert seen(rig) == [1, 2, 3]
    assert (queue.ready, queue.acquired, queue.account.settled) == (3, 0, 0)
    again = rig.restart()
    assert again.ready("s") == [1, 2, 3]
    reader(again, "s", Start(FIRST))
    assert seen(again) == [1, 2, 3]
    assert not any(m.acquired for m in again.holds("s"))


def test_dl_17_settling_gives_credit_back_and_nothing_else() -> None:
    rig = manual()
    queue = rig.declare("s", STREAM)
    rig.send("s", 1, 2, 3, 4, 5)
    who = reader(rig, "s", Start(FIRST), prefetch=2)
    assert seen(rig) == [1, 2]
    rig.broker.settlement.settle(who.session, 1, 1, REJECTED)
    assert seen(rig) == [3]
    rig.broker.settlement.settle(who.session, 2, 3, ACCEPTED)
    assert seen(rig) == [4, 5]
    assert (
        queue.ready,
        queue.account.settled,
        queue.account.dead_lettered,
        queue.account.dropped,
    ) == (5, 0, 0, {})
    with pytest.raises(PreconditionFailed, match="unknown delivery tag 2"):
        rig.broker.settlement.settle(who.session, 2, 2, ACCEPTED)
    rig.broker.clients.close_session(who.session, lost=True)
    assert seen(rig) == []
    assert rig.ready("s") == [1, 2, 3, 4, 5]


def test_a_link_that_is_detached_leaves_nothing_of_its_stream_with_the_session() -> None:
    rig = Rig()
    rig.declare("s", STREAM)
    session = rig.session()
    one, other = (reader(rig, "s", Start(FIRST), session, tag=tag) for tag in ("one", "other"))
    rig.send("s", 1, 2, 3)
    assert sorted(seen(rig)) == [1, 1, 2, 2, 3, 3]
    assert (one.unacked, other.unacked, session.unacked) == (3, 3, 6)
    rig.broker.consuming.detach(one)
    rig.broker.check()
    assert {entry.consumer for entry in session.inflight} == {other}
    assert session.unacked == 3
    rig.broker.consuming.detach(other)
    rig.broker.check()
    assert (list(session.inflight), session.unacked) == ([], 0)


def test_tags_settled_out_of_order() -> None:
    rig = manual()
    rig.declare("s", STREAM)
    rig.send("s", *range(1, 9))
    who = reader(rig, "s", Start(FIRST), prefetch=4)
    assert seen(rig) == [1, 2, 3, 4]
    for tag in (3, 1):
        rig.broker.settlement.settle(who.session, tag, tag, ACCEPTED)
    assert seen(rig) == [5, 6]
    rig.broker.settlement.settle_up_to(who.session, 6, ACCEPTED)
    assert seen(rig) == [7, 8]
    assert who.unacked == who.session.unacked == 2


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (Start(FIRST), [1, 2, 3, 4, 5]),
        (Start(LAST), [4, 5]),
        (Start(NEXT), []),
        (Start(OFFSET, 0), [1, 2, 3, 4, 5]),
        (Start(OFFSET, 3), [4, 5]),
        (Start(OFFSET, 5), []),
        (Start(TIME, START_MS), [1, 2, 3, 4, 5]),
        (Start(TIME, START_MS + 1), [3, 4, 5]),
        (Start(TIME, START_MS + 100), [3, 4, 5]),
        (Start(TIME, START_MS + 200), [4, 5]),
        (Start(TIME, START_MS + 201), []),
        (Start(AGO, 0), [4, 5]),
        (Start(AGO, 150), [3, 4, 5]),
        (Start(AGO, 10_000_000), [1, 2, 3, 4, 5]),
    ],
)
def test_where_a_reader_begins(start: Start, expected: list[int]) -> None:
    rig = manual()
    rig.declare("s", STREAM)
    rig.send("s", 1, 2)
    rig.advance(100)
    rig.send("s", 3)
    rig.advance(100)
    rig.send("s", 4, 5)
    rig.settle_down()
    reader(rig, "s", start)
    assert seen(rig) == expected
    rig.send("s", 6)
    if start.kind != OFFSET or start.value < 6:
        assert seen(rig) == [6]


@pytest.mark.parametrize("start", [Start(FIRST), Start(LAST), Start(NEXT), Start(AGO, 5)])
def test_a_reader_of_an_empty_stream_waits(start: Start) -> None:
    rig = manual()
    rig.declare("s", STREAM)
    reader(rig, "s", start)
    assert seen(rig) == []
    rig.send("s", 1)
    assert seen(rig) == [1]


@pytest.mark.parametrize(
    ("value", "kind", "number"),
    [
        (None, NEXT, 0), ("first", FIRST, 0), ("last", LAST, 0), ("next", NEXT, 0), (7, OFFSET, 7),
        (-1, OFFSET, 0), (b"last", LAST, 0),
        ("5m", AGO, 300_000), ("1D", AGO, 86_400_000), ("2h", AGO, 7_200_000),
    ],
)  # fmt: skip
def test_what_an_offset_says(value: object, kind: str, number: int) -> None:
    start = start_of(value, "queue 's'")
    assert (start.kind, start.value) == (kind, number)


@pytest.mark.parametrize(
    "value", ["", "soon", "5", "-1m", "0s", "5x", "9" * 400 + "s", True, 1.5, b"\xff", []]
)
def test_what_an_offset_may_not_say(value: object) -> None:
    with pytest.raises(PreconditionFailed, match="invalid arg 'x-stream-offset' for queue 's'"):
        start_of(value, "queue 's'")


def test_readers_see_only_what_is_on_disk() -> None:
    """Else an offset that somebody has read could be another message's after a crash."""
    rig = manual()
    rig.declare("s", STREAM)
    rig.send("s", 1, 2)
    assert seen(rig) == []
    reader(rig, "s", Start(FIRST))
    assert seen(rig) == [1, 2]
    rig.hold_disk = True
    rig.send("s", 3, 4)
    assert seen(rig) == []
    late = reader(rig, "s", Start(OFFSET, 1), tag="late")
    assert seen(rig) == [2]
    assert rig.broker.consuming.grant(late, 5, drain=True) is None
    assert seen(rig) == []
    assert rig.drained == ["late"]
    crashed = rig.reopened(rig.log.upto(len(rig.log.blocks) - 1))
    assert crashed.ready("s") == [1, 2]
    crashed.send("s", 5)
    reader(crashed, "s", Start(OFFSET, 2))
    assert seen(crashed) == [5]
    rig.hold_disk = False
    assert [(d.consumer, d.number) for d in rig.settle_down()] == [("r", 3), ("r", 4)]


def test_an_unsettled_delivery_keeps_no_bytes_in_memory() -> None:
    rig = manual()
    rig.declare("s", STREAM)
    rig.broker.backlogs.packing = Packing(after=10, group=16, fresh=2)
    for n in range(1, 101):
        rig.send("s", n)
        rig.settle_down(0)
    who = reader(rig, "s", Start(FIRST), prefetch=1000)
    assert [d.number for d in rig.settle_down(0)] == list(range(1, 101))
    assert who.unacked == 100
    assert all(entry.slice.payload.size == 0 for entry in who.session.inflight)
    assert len(who.session.inflight) == 1
    assert rig.broker.store.resident_bytes == 0
    rig.broker.settlement.settle(who.session, 50, 50, ACCEPTED)
    rig.broker.settlement.settle_up_to(who.session, 0, ACCEPTED)
    assert who.unacked == 0
    rig.broker.check()


def test_retention_by_size_lets_the_oldest_go() -> None:
    rig = manual()
    queue = rig.declare("s", {**STREAM, "max-length-bytes": 3 * SIZE})
    rig.send("s", 1, 2)
    rig.send("s", 3, 4, 5)
    assert seen(rig) == []
    assert rig.ready("s") == [3, 4, 5]
    assert rig.dropped("s") == {"retention": 2}
    reader(rig, "s", Start(OFFSET, 0))
    assert seen(rig) == [3, 4, 5]
    again = rig.restart()
    assert again.ready("s") == [3, 4, 5]
    assert again.dropped("s") == {"retention": 2}
    assert queue.entered == again.vhost.queues["s"].entered == 5


def test_retention_by_size_goes_by_segments() -> None:
    rig = manual()
    limits = {"max-length-bytes": 4 * SIZE, "stream-max-segment-size-bytes": 3 * SIZE}
    rig.declare("s", {**STREAM, **limits})
    for n in range(1, 7):
        rig.send("s", n)
        rig.settle_down()
    assert rig.ready("s") == [1, 2, 3, 4, 5, 6]
    rig.send("s", 7)
    rig.settle_down()
    assert rig.ready("s") == [4, 5, 6, 7]


def test_retention_by_age_happens_by_itself() -> None:
    rig = manual()
    rig.declare("s", {**STREAM, "max-age": "10s"})
    rig.send("s", 1, 2)
    rig.advance(4000)
    rig.send("s", 3)
    rig.advance(5999)
    assert rig.ready("s") == [1, 2, 3]
    rig.advance(1)
    assert rig.ready("s") == [3]
    rig.advance(4000)
    assert rig.ready("s") == []
    assert rig.dropped("s") == {"retention": 3}
    rig.broker.check()


def test_a_policy_shortens_retention_at_once() -> None:
    rig = manual()
    rig.declare("s", {**STREAM, "max-age": "1h"})
    rig.send("s", 1)
    rig.advance(60_000)
    rig.send("s", 2)
    rig.set_policy("s", {"max-age": "30s"})
    rig.settle_down()
    assert rig.ready("s") == [2]
    rig.set_policy("s", {"max-length-bytes": 0})
    rig.settle_down()
    assert rig.ready("s") == []


def test_retention_does_not_stop_a_reader() -> None:
    rig = manual()
    rig.declare("s", {**STREAM, "max-length-bytes": 2 * SIZE})
    rig.send("s", 1, 2)
    who = reader(rig, "s", Start(FIRST), prefetch=1)
    assert seen(rig) == [1]
    rig.send("s", 3, 4, 5)
    rig.settle_down()
    rig.broker.settlement.settle(who.session, 1, 1, ACCEPTED)
    assert seen(rig) == [4]
    rig.broker.settlement.settle(who.session, 2, 2, ACCEPTED)
    assert seen(rig) == [5]


def test_what_a_stream_does_not_do() -> None:
    rig = manual()
    queue = rig.declare("s", STREAM)
    plain = rig.declare("q")
    rig.send("s", 1)
    session = rig.session()
    with pytest.raises(
        Unsupported, match=r"basic\.get not supported by stream queues queue 's' in"
    ):
        rig.broker.consuming.get(session, queue, False)
    with pytest.raises(Unsupported, match=r"queue\.purge not supported by stream queues queue"):
        rig.broker.contents.purge(queue)
    with pytest.raises(NotAllowed, match="queue 's' in vhost '/' is a stream"):
        rig.broker.consuming.consume(session, queue, "c", False, False, 0, {})
    with pytest.raises(NotAllowed, match="queue 'q' in vhost '/' is no stream"):
        rig.broker.consuming.read(session, plain, "c", Start(FIRST), False)
    with pytest.raises(PreconditionFailed, match="queue 's' in vhost '/' is a stream"):
        rig.broker.leases.attach(queue, "spark")
    for name, value in (("message-ttl", 1), ("max-length", 1), ("max-priority", 1)):
        with pytest.raises(PreconditionFailed, match=f"invalid arg 'x-{name}' for queue 't'"):
            rig.declare("t", {**STREAM, name: value})
    with pytest.raises(PreconditionFailed, match="invalid property 'non-durable'"):
        rig.declare("t", STREAM, durable=False)
    with pytest.raises(PreconditionFailed, match="invalid_max_age"):
        rig.declare("t", {**STREAM, "max-age": "7"})
    assert rig.ready("s") == [1]


def test_dl_17_dead_letters_enter_a_stream_with_their_history() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "", "dead-letter-routing-key": "s"})
    rig.declare("s", STREAM)
    rig.send("q", 1, ttl=10)
    rig.advance(10)
    for now in (rig, rig.restart()):
        [letter] = now.holds("s")
        assert letter.deaths == [("q", "expired", 1)]


def test_a_deep_stream_of_single_messages_is_packed_read_and_let_go() -> None:
    rig = manual()
    queue = rig.declare("s", STREAM)
    rig.broker.backlogs.packing = Packing(after=10, group=16, fresh=2)
    follower = reader(rig, "s", Start(FIRST), no_ack=True)
    found = []
    for n in range(1, 301):
        rig.send("s", n)
        rig.now_ms += 10
        found += [delivery.number for delivery in rig.turn(0)]
    found += seen(rig)
    assert found == list(range(1, 301))
    assert any(piece.payload.pack is not None for piece in queue.slices())
    assert len(queue.slices()) < 60
    late = reader(rig, "s", Start(OFFSET, 100), tag="late")
    assert seen(rig) == list(range(101, 301))
    by_time = reader(rig, "s", Start(TIME, rig.now_ms - 45), tag="time")
    assert seen(rig) == [297, 298, 299, 300]
    for who in (follower, late, by_time):
        rig.broker.clients.close_session(who.session, False)
    rig.set_policy("s", {"max-length-bytes": 10 * SIZE})
    rig.settle_down()
    assert rig.ready("s") == list(range(291, 301))
    rig.set_policy("s", {"max-length-bytes": 0})
    rig.settle_down()
    rig.turn()
    assert rig.ready("s") == []
    assert sum(size for _, size in rig.released) == 300 * SIZE


def test_the_age_of_a_packed_letter_counts_from_when_it_entered_the_stream() -> None:
    """Some lay in their queue for longer than the stream keeps a message."""
    rig = manual()
    rig.broker.backlogs.packing = Packing(after=10, group=16, fresh=2)
    rig.declare("q", {"dead-letter-exchange": "", "dead-letter-routing-key": "s"})
    queue = rig.declare("s", {**STREAM, "max-age": "1h"})
    for n in range(60):
        rig.send("q", n, ttl=2 * HOUR_MS)
        rig.advance(1000)
    rig.advance(2 * HOUR_MS)
    rig.settle_down(0)
    assert any(piece.payload.pack is not None for piece in queue.slices())
    entered = rig.now_ms
    rig.send("s", 60)
    rig.settle_down(0)
    assert queue.ready == 61
    assert Start(TIME, entered).place(queue, rig.broker.clock) == 61
    reader(rig, "s", Start(AGO, HOUR_MS))
    assert seen(rig) == list(range(61))
    rig.advance(HOUR_MS // 2)
    assert queue.ready == 61
    assert rig.broker.next_due() > rig.now_ms
    rig.advance(HOUR_MS)
    rig.settle_down(0)
    assert rig.ready("s") == []
    assert rig.dropped("s") == {"retention": 61}


def test_dl_17_a_time_to_live_means_nothing_in_a_stream_also_after_a_restart() -> None:
    rig = manual()
    rig.declare("s", STREAM)
    rig.send("s", 1, ttl=100)
    rig.settle_down()
    for _ in range(2):
        assert rig.broker.next_due() == NEVER
        rig.advance(1000)
        assert rig.ready("s") == [1]
        rig = rig.restart()
        rig.settle_down()


@pytest.mark.parametrize("how", ["alone", "transaction", "sink"])
def test_a_stream_takes_a_deferred_message_at_once_and_for_good(how: str) -> None:
    rig = manual()
    rig.declare("s", STREAM)
    later = Annotations(due_ms=rig.now_ms + HOUR_MS)
    rig.advance(10)
    if how == "alone":
        rig.send("s", 0, annotations=later)
    elif how == "transaction":
        transaction = rig.broker.transactions.begin(rig.session())
        rig.stage(transaction, "s", 0, annotations=later)
        rig.broker.transactions.commit(transaction)
    else:
        part = StagedPart(rig.payload("s", [0], True), later, True, rig.now_ms)
        staging = rig.broker.sinks.stage("/", "sink", [part], HOUR_MS)
        rig.advance(10)
        rig.broker.publishing.commit_sink("/", "sink", "me", 0, [staging.id])
    rig.settle_down()
    rig.advance(10)
    rig.send("s", 1)
    rig.settle_down()
    for pause_ms in (0, 2 * HOUR_MS):
        again = rig.restart()
        again.advance(pause_ms)
        assert again.ready("s") == [0, 1]
        late = Start(TIME, rig.now_ms)
        assert late.place(again.vhost.queues["s"], again.broker.clock) == 2


@pytest.mark.parametrize("seed", range(40))
def test_any_number_of_readers_sees_what_a_list_says(seed: int) -> None:
    choose = random.Random(seed)
    rig = manual()
    rig.broker.backlogs.packing = Packing(after=6, group=8, fresh=2)
    queue = rig.declare("s", {**STREAM, "max-length-bytes": 60 * SIZE})
    sent = 0
    readers: dict[str, tuple[Consumer, list[int]]] = {}
    for step in range(80):
        act = choose.randrange(4)
        if act <= 1:
            more = list(range(sent + 1, sent + 1 + choose.choice([1, 1, 1, 2, 5])))
            sent += len(more)
            rig.send("s", *more)
        elif act == 2 and len(readers) < 4:
            start = choose.choice([Start(FIRST), Start(NEXT), Start(OFFSET, choose.randrange(50))])
            tag = f"r{step}"
            readers[tag] = (reader(rig, "s", start, tag=tag, prefetch=choose.randrange(4)), [])
        elif readers:
            who, _ = readers[choose.choice(sorted(readers))]
            if who.unacked:
                rig.broker.settlement.settle_up_to(who.session, 0, ACCEPTED)
        for delivery in rig.settle_down(choose.choice([0, 1 << 40])):
            readers[delivery.consumer][1].append(delivery.number)
        rig.broker.check()
    kept = rig.ready("s")
    assert kept == list(range(sent - len(kept) + 1, sent + 1))
    assert len(kept) == min(sent, 60)
    for who, numbers in readers.values():
        assert numbers == sorted(set(numbers)), seed
        if not who.unacked or who.limit > who.unacked:
            assert not numbers or numbers[-1] == sent, seed
    assert rig.reopened(rig.log).ready("s") == kept
    assert queue.entered == sent
