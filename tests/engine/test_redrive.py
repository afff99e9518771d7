"""Redrive: what moves, where to, what stays and why; and that a message is never in two places."""

from __future__ import annotations

import pytest

from tallymark.bridge.redriven import COUNT, FROM, RUN, TIME, Stamp
from tallymark.engine import redrive
from tallymark.engine.errors import Unsupported
from tallymark.engine.message import Payload
from tallymark.engine.outcomes import FAILED, REJECTED
from tallymark.engine.redrive import (
    FULL,
    GONE,
    MOVED,
    NO_LETTER,
    NOT_READY,
    REPEATED,
    UNREADABLE,
    UNROUTABLE,
)
from tallymark.stored import records
from tallymark.wire.amqp10.codec import decode
from tests.support.engine_rig import Rig, Said
from tests.support.engine_steps import die, drain, finish, manual, reject


def names(rig: Rig, name: str) -> list[tuple[int, int]]:
    """(sequence, message id) of all that is ready, as a browse shows it."""
    out = []
    rig.vhost.queues[name].unpack()
    for piece in rig.vhost.queues[name].slices():
        for i in range(len(piece)):
            out.append((piece.first + i, piece.payload.first_id + piece.lo + i))
    return out


def move(
    rig: Rig,
    name: str,
    wanted: list[tuple[int, int]] | None = None,
    exchange: str | None = None,
    key: str | None = None,
    run: str = "run",
) -> list[str]:
    """Move what is named, or everything ready; what became of each."""
    queue = rig.vhost.queues[name]
    stamp = Stamp(name, run, rig.now_ms)
    rig.tell_time()
    rig.broker.dispatcher.use(queue)
    wanted = names(rig, name) if wanted is None else wanted
    found = rig.broker.redrives.look(queue, wanted, exchange, key, stamp.is_on)
    rig.broker.redrives.move(queue, found, stamp.put_on)
    rig.broker.check()
    finish(rig)
    return [one.status for one in found]


def parked() -> Rig:
    """work --rejected--> parked"""
    rig = manual()
    rig.declare("work", {"dead-letter-exchange": "", "dead-letter-routing-key": "parked"})
    rig.declare("parked")
    return rig


def test_letters_go_back_to_where_they_were_published_in_order() -> None:
    rig = parked()
    rig.exchange("orders", "topic", ("work", "eu.#"))
    for number in range(1, 6):
        rig.send("eu.new", number, exchange="orders")
    reject(rig, "work", 5)
    assert move(rig, "parked") == [MOVED] * 5
    assert rig.ready("work") == [1, 2, 3, 4, 5]
    assert rig.ready("parked") == []
    for held in rig.holds("work"):
        assert held.place is None  # shown as it was published
        assert (held.deaths, held.counts) == ([], (0, 0))
    counters = rig.vhost.queues["parked"].counters()
    assert (counters["entered"], counters["settled"]) == (5, 5)


def test_first_published_is_not_where_the_oldest_entry_of_the_history_says() -> None:
    """A loop moves entries about: the first death is the one that counts [DL-12]."""
    rig = manual()
    for name in ("a", "b", "parked"):
        rig.declare(name)
    rig.exchange("home", "direct", ("a", "one"))
    rig.send("one", 1, exchange="home")
    die(rig, "a", "rejected", "b")
    die(rig, "b", "rejected", "a")
    die(rig, "a", "rejected", "parked")
    (held,) = rig.holds("parked")
    assert [queue for queue, _, _ in held.deaths] == ["a", "b"]
    assert move(rig, "parked") == [MOVED]
    assert rig.ready("a") == [1]


def test_keys_of_cc_are_used_again_those_of_bcc_are_not_known() -> None:
    rig = parked()
    rig.declare("copy")
    rig.declare("secret")
    rig.send("work", 1, cc=("copy",), bcc=("secret",))
    drain(rig, "copy")
    drain(rig, "secret")
    reject(rig, "work")
    assert move(rig, "parked") == [MOVED]
    assert (rig.ready("work"), rig.ready("copy"), rig.ready("secret")) == ([1], [1], [])


def test_a_second_time_there_is_nothing_to_move() -> None:
    rig = parked()
    rig.send("work", 1, 2, 3)
    reject(rig, "work", 3)
    wanted = names(rig, "parked")
    assert move(rig, "parked", wanted) == [MOVED] * 3
    assert move(rig, "parked", wanted) == [GONE] * 3
    assert rig.ready("work") == [1, 2, 3]


def test_what_cannot_be_read_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its priority says where it goes in the queue of its first publish."""
    rig = manual()
    rig.declare(
        "work",
        {"max-priority": 3, "dead-letter-exchange": "", "dead-letter-routing-key": "parked"},
    )
    rig.declare("parked")
    for number in (1, 2, 3):
        rig.send("work", number)
    reject(rig, "work", 3)
    wanted = names(rig, "parked")
    queue = rig.vhost.queues["parked"]
    rig.settle_down(0)
    unreadable = [piece.payload for piece in queue.slices()][1]
    fetch = rig.log.fetch

    def failing(payload: Payload) -> bytes:
        if payload is unreadable:
            raise OSError("unreadable")
        return fetch(payload)

    monkeypatch.setattr(rig.broker.store, "_fetch", failing)
    assert move(rig, "parked", wanted) == [MOVED, UNREADABLE, MOVED]
    monkeypatch.undo()
    finish(rig)
    assert (rig.ready("work"), rig.ready("parked")) == ([1, 3], [2])
    assert move(rig, "parked", wanted) == [GONE, MOVED, GONE]
    assert rig.restart().ready("work") == [1, 3, 2]


def test_named_twice_in_one_request_it_moves_once() -> None:
    rig = parked()
    rig.send("work", 1, 2)
    reject(rig, "work", 2)
    one, two = names(rig, "parked")
    assert move(rig, "parked", [one, two, one, two, two]) == [MOVED, MOVED, GONE, GONE, GONE]
    assert rig.ready("work") == [1, 2]


def test_another_message_under_that_number_is_left_alone() -> None:
    """The queue was deleted and made again."""
    rig = parked()
    rig.send("work", 1)
    reject(rig, "work")
    wanted = names(rig, "parked")
    rig.delete("parked")
    rig.declare("parked")
    rig.send("work", 2)
    reject(rig, "work")
    assert names(rig, "parked")[0][0] == wanted[0][0]
    assert move(rig, "parked", wanted) == [GONE]
    assert rig.ready("parked") == [2]


def test_what_somebody_has_is_not_ready_and_stays() -> None:
    rig = parked()
    rig.send("work", *range(1, 7))
    reject(rig, "work", 6)
    wanted = names(rig, "parked")
    session = rig.session()
    rig.take(session, "parked")
    staged = rig.take(session, "parked")
    deferred = rig.take(session, "parked")
    assert staged is not None
    assert deferred is not None
    broker = rig.broker
    transaction = broker.transactions.begin(session)
    broker.transactions.settle(transaction, session, staged[1], staged[1], REJECTED)
    broker.settlement.requeue(session, deferred[1], 50)
    subscription = broker.leases.attach(rig.vhost.queues["parked"], "spark", 0, 0)
    broker.leases.lease(subscription, 0, 1, 0)
    assert move(rig, "parked", wanted) == [NOT_READY] * 4 + [MOVED] * 2
    assert rig.ready("work") == [5, 6]
    assert rig.vhost.queues["parked"].acquired == 2


def test_what_was_put_to_the_tail_is_found_by_its_number() -> None:
    rig = parked()
    rig.send("work", 1, 2, 3)
    reject(rig, "work", 3)
    wanted = names(rig, "parked")
    session = rig.session()
    got = rig.take(session, "parked")
    assert got is not None
    rig.broker.settlement.requeue(session, got[1], 0)
    finish(rig)
    assert rig.ready("parked") == [2, 3, 1]
    rig.send("parked", 4)
    assert move(rig, "parked", wanted[:2]) == [MOVED, MOVED]
    assert rig.ready("work") == [1, 2]
    assert rig.ready("parked") == [3, 4]


def test_without_a_way_it_stays_where_it_is() -> None:
    rig = parked()
    rig.exchange("orders", "direct", ("work", "k"))
    rig.send("k", 1, exchange="orders")
    rig.send("work", 2)
    rig.send("parked", 3)
    reject(rig, "work", 2)
    rig.vhost.delete_exchange("orders", False)
    assert rig.ready("parked") == [3, 1, 2]
    assert move(rig, "parked") == [NO_LETTER, UNROUTABLE, MOVED]
    assert rig.ready("parked") == [3, 1]
    assert move(rig, "parked", exchange="", key="nowhere") == [UNROUTABLE] * 2
    assert move(rig, "parked", exchange="", key="work") == [MOVED] * 2
    assert rig.ready("work") == [2, 3, 1]


def test_the_queue_it_leaves_is_no_target() -> None:
    rig = parked()
    rig.exchange("all", "fanout", ("work", ""), ("parked", ""))
    rig.send("", 1, exchange="all")
    reject(rig, "work")
    assert rig.ready("parked") == [1, 1]
    wanted = names(rig, "parked")
    assert move(rig, "parked", wanted) == [NO_LETTER, MOVED]
    assert (rig.ready("work"), rig.ready("parked")) == ([1], [1])
    assert move(rig, "parked", exchange="", key="parked") == [UNROUTABLE]


def test_dl_6_what_a_target_refuses_stays_whole_in_its_queue() -> None:
    rig = parked()
    rig.declare("small", {"max-length": 2, "overflow": "reject-publish"})
    rig.declare("large")
    rig.exchange("both", "fanout", ("small", ""), ("large", ""))
    rig.send("work", *range(1, 6))
    reject(rig, "work", 5)
    assert move(rig, "parked", exchange="both") == [MOVED, MOVED, FULL, FULL, FULL]
    assert (rig.ready("small"), rig.ready("large")) == ([1, 2], [1, 2])
    assert rig.ready("parked") == [3, 4, 5]


def test_dl_6_bytes_count_where_they_are_limited() -> None:
    rig = parked()
    for number in range(1, 4):
        rig.says[number] = Said(body=10)
    rig.declare("small", {"max-length-bytes": 25, "overflow": "reject-publish"})
    rig.send("work", 1, 2, 3)
    reject(rig, "work", 3)
    assert move(rig, "parked", exchange="", key="small") == [MOVED, MOVED, FULL]


def test_priorities_lanes_and_headers_are_looked_at() -> None:
    rig = manual()
    rig.declare("work", {"dead-letter-exchange": "", "dead-letter-routing-key": "parked"})
    rig.declare("parked", {"max-priority": 5})
    rig.vhost.declare_exchange("h", "headers", True, False, False, {}, False)
    rig.vhost.bind_queue("work", "h", "", {"kind": "a", "x-match": "all"}, rig.connection.id)
    for number, priority in ((1, 0), (2, 5), (3, 2)):
        rig.says[number] = Said(priority=priority, headers={"kind": "a" if number < 3 else "b"})
    rig.send("", 1, exchange="h")
    rig.send("", 2, exchange="h")
    rig.send("parked", 3)
    reject(rig, "work", 2)
    assert rig.ready("parked") == [2, 3, 1]
    assert move(rig, "parked", exchange="h", key="") == [MOVED, UNROUTABLE, MOVED]
    assert rig.ready("parked") == [3]
    assert sorted(rig.ready("work")) == [1, 2]


def test_dl_11_its_own_expiration_holds_again_from_now_on() -> None:
    rig = parked()
    rig.send("work", 1, ttl=100)
    rig.advance(100)
    assert rig.ready("parked") == [1]
    rig.advance(1000)
    assert move(rig, "parked") == [MOVED]
    rig.advance(99)
    assert rig.ready("work") == [1]
    rig.advance(1)
    assert (rig.ready("work"), rig.ready("parked")) == ([], [1])


def test_dl_15_a_cycle_begins_anew() -> None:
    """a --expired--> b --expired--> parked: moved to a, it may take the same way once more."""
    rig = manual()
    to_b: dict[str, object] = {"dead-letter-exchange": "", "dead-letter-routing-key": "b"}
    rig.declare("a", {"message-ttl": 10, **to_b})
    rig.declare(
        "b",
        {"message-ttl": 10, "dead-letter-exchange": "", "dead-letter-routing-key": "parked"},
    )
    rig.declare("parked")
    rig.send("a", 1)
    for run in ("1", "2", "3"):
        rig.advance(20)
        assert rig.ready("parked") == [1]
        assert [queue for queue, _, _ in rig.holds("parked")[0].deaths] == ["b", "a"]
        assert move(rig, "parked", run=run) == [MOVED]
    assert rig.dropped("a") == {}


def test_counts_and_hops_begin_anew() -> None:
    rig = manual()
    rig.declare(
        "work",
        {
            "dead-letter-exchange": "", "dead-letter-routing-key": "parked",
            "dead-letter-hop-limit": 1, "delivery-limit": 0,
        },
    )  # fmt: skip
    rig.declare("parked")
    rig.send("work", 1)
    for run in ("1", "2", "3"):
        reject(rig, "work", 1, FAILED)
        assert move(rig, "parked", run=run) == [MOVED]
    assert rig.ready("work") == [1]
    assert rig.holds("work")[0].counts == (0, 0)


def test_the_stamp_says_where_it_came_from_and_survives_a_restart() -> None:
    rig = parked()
    rig.send("work", 1)
    for run in ("first", "second"):
        reject(rig, "work")
        rig.advance(7)
        moved_at = rig.now_ms
        move(rig, "parked", run=run)
    rig.advance(5)
    for now in (rig, rig.restart(), rig.restart(clean=True)):
        (held,) = now.holds("work")
        assert held.annotations is not None
        said = {key: decode(value, 0, len(value))[0] for key, value in held.annotations.notes}
        assert said == {COUNT: 2, FROM: "parked", TIME: moved_at, RUN: "second"}


def test_what_comes_back_is_not_moved_again_by_the_same_run() -> None:
    rig = parked()
    rig.send("work", 1)
    reject(rig, "work")
    assert move(rig, "parked", run="a") == [MOVED]
    reject(rig, "work")
    assert move(rig, "parked", run="a") == [REPEATED]
    assert move(rig, "parked", run="b") == [MOVED]


def test_a_look_changes_nothing() -> None:
    rig = parked()
    rig.send("work", 1, 2)
    reject(rig, "work", 2)
    queue = rig.vhost.queues["parked"]
    before = queue.counters()
    found = rig.broker.redrives.look(queue, names(rig, "parked"))
    assert [one.status for one in found] == [MOVED, MOVED]
    assert [[q.name for q in one.queues] for one in found] == [["work"], ["work"]]
    assert queue.counters() == before
    assert rig.broker.take_records() == []


def test_a_stream_is_no_source_and_may_be_a_target() -> None:
    rig = parked()
    stream = rig.declare("log", {"queue-type": "stream"})
    rig.send("work", 1)
    reject(rig, "work")
    assert move(rig, "parked", exchange="", key="log") == [MOVED]
    assert rig.ready("log") == [1]
    with pytest.raises(Unsupported, match="redrive not supported by stream queues queue 'log'"):
        rig.broker.redrives.look(stream, [(1, 1)])


def test_a_run_of_letters_moves_as_one_row() -> None:
    rig = parked()
    rig.send("work", *range(1, 101))
    die(rig, "work", "rejected", "parked")
    before = len(rig.log.blocks)
    assert move(rig, "parked") == [MOVED] * 100
    rows = [r for block in rig.log.blocks[before:] for r in block]
    settled = [r for r in rows if r.kind == records.SETTLED]
    assert [(r.count, r.reason) for r in settled] == [(100, records.SETTLED_BY_REDRIVE)]
    entered = [r for r in rows if r.kind == records.ENTERED]
    parked_queue = rig.vhost.queues["parked"]
    assert [(r.count, r.owner, r.other) for r in entered] == [(100, parked_queue.id, 1)]


def test_transient_messages_and_queues_move_too() -> None:
    rig = manual()
    rig.declare("work", durable=False)
    rig.declare("parked", durable=False)
    rig.send("work", 1, persistent=False)
    rig.send("work", 2)
    die(rig, "work", "rejected", "parked")
    assert move(rig, "parked") == [MOVED, MOVED]
    assert rig.ready("work") == [1, 2]


def test_a_deep_queue_in_the_journal_only_moves_packed_or_not() -> None:
    rig = parked()
    rig.broker.backlogs.packing.look_after = 4
    for number in range(1, 41):
        rig.send("work", number)
    die(rig, "work", "rejected", "parked")
    for number in range(41, 61):
        rig.send("parked", number)
    rig.settle_down(budget=0)
    rig = rig.restart()
    rig.tick_ms = 0
    wanted = names(rig, "parked")
    rig.settle_down(budget=0)
    assert move(rig, "parked", wanted[5:15] + wanted[30:45]) == [MOVED] * 20 + [NO_LETTER] * 5
    assert rig.ready("work") == [*range(6, 16), *range(31, 41)]


def test_wherever_the_log_ends_a_message_is_in_one_place() -> None:
    rig = parked()
    rig.declare("small", {"max-length": 3, "overflow": "reject-publish"})
    rig.exchange("both", "fanout", ("small", ""), ("work", ""))
    rig.send("work", *range(1, 9))
    reject(rig, "work", 8)
    wanted, begin = names(rig, "parked"), len(rig.log.blocks)
    move(rig, "parked", wanted[:2])
    move(rig, "parked", wanted[2:7], "both")
    move(rig, "parked", wanted)
    assert rig.ready("small") == [3, 4, 5]
    assert rig.ready("work") == [1, 2, 3, 4, 5, 6, 7, 8]
    seen = set()
    for blocks in range(begin, len(rig.log.blocks) + 1):
        after = rig.reopened(rig.log.upto(blocks))
        after.settle_down()
        after.broker.check()
        work, small = after.ready("work"), after.ready("small")
        assert sorted(after.ready("parked") + work) == [1, 2, 3, 4, 5, 6, 7, 8], blocks
        assert small == [number for number in work if number in (3, 4, 5)], blocks
        seen.add(len(work))
    assert seen == {0, 2, 5, 8}


def test_every_status_has_a_name_of_its_own() -> None:
    found = [redrive.MOVED, GONE, NOT_READY, UNROUTABLE, FULL, NO_LETTER, REPEATED]
    assert len({*found, redrive.FORBIDDEN}) == len(found) + 1
