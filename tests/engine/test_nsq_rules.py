"""Rules of NSQ's broker that the engine keeps: pause, transfer, counters, restart [NQ-9, NQ-21]."""

from __future__ import annotations

import pytest

from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.packing import Packing
from tallymark.engine.queue import Queue
from tallymark.engine.timeouts import MERGE_MS
from tallymark.stored.annotations import Annotations
from tests.support.engine_rig import Delivery, Rig, Said
from tests.support.engine_steps import finish, manual
from tests.support.nsq_client import Client

SECOND = 1000


def topic(rig: Rig, *channels: str) -> list[Queue]:
    """Queues bound to one fanout exchange, as a topic's channels are."""
    queues = [rig.declare(name) for name in channels]
    rig.exchange("t", "fanout", *[(name, "") for name in channels])
    return queues


# -- pause


def test_nq_9_a_paused_queue_delivers_nothing_and_goes_on_where_it_was() -> None:
    rig = manual()
    queue = rig.declare("q")
    client = Client(rig, "q", rdy=2)
    rig.send("q", 1, 2, 3)
    finish(rig)
    rig.broker.registry.pause(queue, True)
    client.fin(1)
    rig.send("q", 4)
    client.req(2)
    assert finish(rig) == []
    assert rig.ready("q") == [3, 4, 2]
    rig.broker.registry.pause(queue, False)
    assert [n for _, n in client.mine(finish(rig))] == [3, 4]
    rig.broker.registry.pause(queue, False)
    finish(rig)


def test_nq_9_deadlines_and_deferrals_go_on_while_paused() -> None:
    rig = manual()
    queue = rig.declare("q")
    client = Client(rig, "q", rdy=2, timeout_ms=SECOND)
    rig.send("q", 1, 2)
    finish(rig)
    client.req(2, 500)
    rig.broker.registry.pause(queue, True)
    assert rig.advance(SECOND + MERGE_MS) == []
    assert (queue.ready, queue.acquired, queue.deferred, queue.timed_out) == (2, 0, 0, 1)


@pytest.mark.parametrize("way", ["crash", "checkpoint", "clean"])
def test_nq_9_a_pause_survives_a_restart(way: str) -> None:
    rig = manual()
    for name in ("a", "b", "c"):
        rig.declare(name)
    for name, paused in (("a", True), ("b", True), ("b", False)):
        rig.broker.registry.pause(rig.vhost.queues[name], paused)
    finish(rig)
    if way == "checkpoint":
        rig.checkpoint()
    rig = rig.restart(way == "clean")
    assert [rig.vhost.queues[name].paused for name in ("a", "b", "c")] == [True, False, False]
    client = Client(rig, "a", rdy=1)
    rig.send("a", 1)
    assert finish(rig) == []
    rig.broker.registry.pause(rig.vhost.queues["a"], False)
    assert client.mine(finish(rig)) == [(1, 1)]


def test_nq_9_what_is_too_old_or_too_much_still_goes_while_paused() -> None:
    rig = manual()
    queue = rig.declare("q", {"message-ttl": 100, "max-length": 2})
    Client(rig, "q", rdy=10)
    rig.broker.registry.pause(queue, True)
    rig.send("q", 1, 2, 3)
    finish(rig)
    assert rig.ready("q") == [2, 3]
    rig.advance(100)
    assert rig.ready("q") == []
    assert rig.dropped("q") == {"expired": 2, "maxlen": 1}


# -- topics


def test_nq_9_each_channel_gets_every_message_with_the_same_id_and_attempts_of_its_own() -> None:
    rig = manual()
    topic(rig, "a", "b")
    clients = [Client(rig, name, name, rdy=1) for name in ("a", "b")]
    rig.send("", 1, exchange="t")
    finish(rig)
    clients[0].req(1)
    clients[1].fin(1)
    finish(rig)
    payloads = {id(entry.slice.payload) for entry in clients[0].session.inflight}
    assert len(payloads) == 1
    assert clients[0].session.inflight[0].slice.acquired == 1
    assert not clients[1].session.inflight
    assert rig.vhost.queues["a"].requeued == 1
    assert rig.vhost.queues["b"].requeued == 0


def test_nq_9_a_transfer_moves_everything_to_every_target_in_one_step() -> None:
    rig = manual()
    backlog = rig.declare("backlog")
    targets = topic(rig, "a", "b")
    for n in range(1, 4):
        rig.send("backlog", n)
    due_ms = rig.now_ms + 500
    rig.send("backlog", 4, annotations=Annotations(due_ms=due_ms))
    finish(rig)
    blocks = len(rig.log.blocks)
    rig.broker.contents.transfer(backlog, targets)
    finish(rig)
    assert len(rig.log.blocks) == blocks + 1
    assert (backlog.ready, backlog.deferred, backlog.account.settled) == (0, 0, 4)
    for name in ("a", "b"):
        assert rig.ready(name) == [1, 2, 3]
        assert rig.vhost.queues[name].deferred == 1
    rig.advance(500)
    assert rig.ready("a") == rig.ready("b") == [1, 2, 3, 4]
    rig = rig.restart()
    finish(rig)
    assert rig.ready("backlog") == []
    assert sorted(rig.ready("a")) == sorted(rig.ready("b")) == [1, 2, 3, 4]


def test_nq_9_a_transfer_keeps_the_time_of_what_was_requeued_or_retried() -> None:
    rig = manual()
    backlog = rig.declare("backlog")
    targets = topic(rig, "a")
    client = Client(rig, "backlog", rdy=2)
    rig.send("backlog", 1, 2, ttl=SECOND)
    finish(rig)
    client.req(1, 300)
    client.req(2, 100)
    finish(rig)
    rig.broker.contents.transfer(backlog, targets)
    finish(rig)
    rig = rig.restart()
    finish(rig)
    rig.advance(99)
    assert rig.ready("a") == []
    rig.advance(1)
    assert rig.ready("a") == [2]
    rig.advance(200)
    assert rig.ready("a") == [2, 1]
    assert {h.annotations.ttl_ms for h in rig.holds("a") if h.annotations} == {SECOND}


def test_nq_9_without_a_target_a_transfer_moves_nothing() -> None:
    rig = manual()
    backlog = rig.declare("backlog")
    rig.send("backlog", 1)
    finish(rig)
    rig.broker.contents.transfer(backlog, [])
    finish(rig)
    assert rig.ready("backlog") == [1]


def test_nq_10_a_transfer_drops_what_an_ephemeral_channel_has_no_room_for() -> None:
    rig = manual()
    backlog = rig.declare("backlog")
    full = rig.declare("full", {"max-length": 2, "overflow": "drop-tail"}, durable=False)
    wide = rig.declare("wide")
    rig.send("backlog", 1, 2)
    rig.send("backlog", 3)
    finish(rig)
    rig.broker.contents.transfer(backlog, [full, wide])
    finish(rig)
    assert rig.ready("full") == [1, 2]
    assert rig.ready("wide") == [1, 2, 3]
    assert backlog.account.settled == 3
    for _ in range(2):
        rig.turn()
    rig.broker.contents.purge(full)
    rig.broker.contents.purge(wide)
    for _ in range(3):
        rig.turn()
    assert rig.broker.store.resident_bytes == 0


def test_nq_9_a_transfer_of_a_packed_and_spilled_backlog_keeps_order() -> None:
    rig = manual()
    rig.broker.backlogs.packing = Packing(after=4, group=8, fresh=2)
    backlog = rig.declare("backlog")
    targets = topic(rig, "a", "b")
    for n in range(100):
        rig.send("backlog", n)
        if n % 10 == 0:
            rig.settle_down(budget=0)
    rig.settle_down(budget=0)
    assert any(p.payload.pack is not None for p in backlog.slices())
    rig.broker.contents.transfer(backlog, targets)
    rig.settle_down(budget=0)
    rig.broker.check()
    assert rig.ready("a") == rig.ready("b") == list(range(100))
    rig.broker.contents.purge(targets[0])
    finish(rig)
    rig = rig.restart()
    finish(rig)
    assert rig.ready("a") == []
    assert rig.ready("b") == list(range(100))


def test_nq_9_a_transfer_chooses_the_targets_lanes() -> None:
    rig = manual()
    rig.says.update({n: Said(priority=n % 2) for n in range(4)})
    backlog = rig.declare("backlog")
    target = rig.declare("a", {"max-priority": 1})
    rig.send("backlog", 0, 1, 2, 3)
    finish(rig)
    rig.broker.contents.transfer(backlog, [target])
    finish(rig)
    assert rig.ready("a") == [1, 3, 0, 2]


def test_nq_9_transient_messages_are_transferred_and_end_at_a_restart() -> None:
    rig = manual()
    backlog = rig.declare("backlog")
    target = rig.declare("a")
    rig.send("backlog", 1, persistent=False)
    rig.send("backlog", 2)
    finish(rig)
    rig.broker.contents.transfer(backlog, [target])
    finish(rig)
    assert rig.ready("a") == [1, 2]
    rig = rig.restart()
    finish(rig)
    assert rig.ready("a") == [2]
    assert rig.dropped("a") == {"transient_at_restart": 1}
    assert rig.vhost.queues["backlog"].account.settled == 2


# -- counters


def test_nq_21_the_counters_of_each_step() -> None:
    rig = manual()
    queue = rig.declare("q")
    client = Client(rig, "q", rdy=0, timeout_ms=SECOND)

    def now() -> tuple[int, ...]:
        finish(rig)
        return (
            queue.ready, queue.acquired, queue.deferred, client.consumer.unacked,
            queue.requeued, queue.timed_out, queue.account.settled,
        )  # fmt: skip

    rig.send("q", 1)
    assert now() == (1, 0, 0, 0, 0, 0, 0)
    rig.send("q", 2, annotations=Annotations(due_ms=rig.now_ms + 100))
    assert now() == (1, 0, 1, 0, 0, 0, 0)
    client.rdy(1)
    assert now() == (0, 1, 1, 1, 0, 0, 0)
    client.touch(1)
    assert now() == (0, 1, 1, 1, 0, 0, 0)
    client.rdy(0)
    rig.advance(100)
    assert now() == (1, 1, 0, 1, 0, 0, 0)
    client.req(1)
    assert now() == (2, 0, 0, 0, 1, 0, 0)
    client.rdy(2)
    assert now() == (0, 2, 0, 2, 1, 0, 0)
    client.rdy(0)
    client.req(2, 200)
    assert now() == (0, 1, 1, 1, 2, 0, 0)
    client.fin(3)
    assert now() == (0, 0, 1, 0, 2, 0, 1)
    rig.advance(200)
    client.rdy(1)
    assert now() == (0, 1, 0, 1, 2, 0, 1)
    client.rdy(0)
    rig.advance(SECOND + MERGE_MS)
    assert now() == (1, 0, 0, 0, 2, 1, 1)
    rig.broker.contents.empty(queue)
    assert now() == (0, 0, 0, 0, 2, 1, 1)


# -- many queues


def test_nq_a12_a_thousand_channels_with_one_due_message_each() -> None:
    rig = manual()
    for n in range(1000):
        rig.declare(f"q{n}")
        rig.send(f"q{n}", n)
        Client(rig, f"q{n}", f"c{n}", rdy=1, timeout_ms=SECOND)
    finish(rig)
    queues = list(rig.vhost.queues.values())
    assert sum(q.acquired for q in queues) == 1000
    for connection in rig.broker.connections.values():
        for session in connection.sessions:
            for consumer in session.consumers.values():
                consumer.limit = 0
    rig.advance(SECOND + MERGE_MS)
    assert sum(q.timed_out for q in queues) == 1000
    assert sum(q.ready for q in queues) == 1000


def test_nq_17_nq_d1_one_channel_of_ten_thousand_is_on_time_and_the_others_cost_nothing() -> None:
    rig = manual()
    for n in range(10_000):
        rig.declare(f"q{n}", durable=False)
    finish(rig)
    client = Client(rig, "q5000", rdy=1, timeout_ms=SECOND)
    rig.send("q5000", 1)
    rig.settle_down()
    start = rig.now_ms
    assert rig.broker.next_due() == start + SECOND + MERGE_MS
    client.rdy(0)
    rig.settle_down()
    rig.advance(SECOND + MERGE_MS)
    assert rig.vhost.queues["q5000"].timed_out == 1
    assert rig.broker.next_due() > start + 10 * SECOND


# -- restart


@pytest.mark.parametrize("way", ["crash", "checkpoint", "clean"])
def test_nq_a10_all_that_was_not_finished_is_there_after_a_restart_and_once(way: str) -> None:
    rig = manual()
    rig.declare("q")
    a = Client(rig, "q", "a", rdy=8, timeout_ms=SECOND)
    b = Client(rig, "q", "b", rdy=8, timeout_ms=5 * SECOND)
    seen: list[Delivery] = []
    for n in range(0, 40, 4):
        rig.send("q", n, n + 1, n + 2, n + 3)
    seen += finish(rig)
    done: set[int] = set()
    for client in (a, b):
        tags = client.mine(seen)
        client.fin(tags[0][0], tags[3][0])
        done |= {tags[0][1], tags[3][1]}
        client.req(tags[1][0])
        client.req(tags[2][0], 10_000)
        client.touch(tags[4][0])
        client.rdy(0)
    rig.advance(SECOND + MERGE_MS)
    if way == "checkpoint":
        rig.checkpoint()
    if way == "clean":
        a.leave(lost=False)
        b.leave(lost=False)
    rig = rig.restart(way == "clean")
    finish(rig)
    queue = rig.vhost.queues["q"]
    assert queue.deferred == 2
    assert queue.account.settled == len(done) == 4
    rig.advance(20_000)
    assert sorted(rig.ready("q")) == sorted(set(range(40)) - done)
    rig = rig.restart()
    finish(rig)
    assert sorted(rig.ready("q")) == sorted(set(range(40)) - done)


@pytest.mark.parametrize("way", ["crash", "checkpoint", "clean"])
def test_nq_19_attempts_are_kept_across_a_restart(way: str) -> None:
    rig = manual()
    rig.declare("q")
    client = Client(rig, "q", rdy=1)
    rig.send("q", 1)
    finish(rig)
    for tag in (1, 2, 3):
        client.req(tag)
        finish(rig)
    if way == "checkpoint":
        rig.checkpoint()
    if way == "clean":
        client.leave(lost=False)
    rig = rig.restart(way == "clean")
    finish(rig)
    assert [(h.number, h.acquired) for h in rig.holds("q")] == [(1, 4)]


def test_a_crash_at_every_block_loses_nothing_and_doubles_nothing() -> None:
    """The log cut after each block: what entered and was not finished by then is in one place."""
    rig = manual()
    rig.declare("backlog")
    rig.declare("q")
    client = Client(rig, "q", rdy=3, timeout_ms=SECOND)
    account: list[tuple[int, int]] = []

    def note() -> None:
        finish(rig)
        queues = rig.vhost.queues
        gone = queues["q"].account.settled + sum(queues["q"].account.dropped.values())
        account.append((len(rig.log.blocks), gone))

    rig.send("backlog", 1, 2, 3)
    note()
    rig.broker.contents.transfer(rig.vhost.queues["backlog"], [rig.vhost.queues["q"]])
    note()
    client.req(1, 300)
    client.req(2)
    note()
    rig.advance(300)
    note()
    client.touch(3)
    client.fin(3)
    note()
    rig.advance(3 * SECOND)
    note()
    client.rdy(0)
    rig.broker.contents.empty(rig.vhost.queues["q"])
    note()
    for blocks in range(1, len(rig.log.blocks) + 1):
        after = rig.reopened(rig.log.upto(blocks))
        finish(after)
        at_least = max([gone for upto, gone in account if upto <= blocks], default=0)
        q, backlog = after.vhost.queues.get("q"), after.vhost.queues.get("backlog")
        here = [*after.ready("q")] if q else []
        here += after.ready("backlog") if backlog else []
        assert len(here) == len(set(here))
        if blocks >= account[0][0] and q:
            gone = q.account.settled + sum(q.account.dropped.values())
            assert gone >= at_least
            assert len(here) + q.deferred + gone == 3, blocks


# -- one step, one owner


def test_nq_a7_touch_wins_before_the_turn_that_times_out_and_fails_after_it() -> None:
    rig = manual()
    queue = rig.declare("q")
    client = Client(rig, "q", rdy=2, timeout_ms=SECOND)
    rig.send("q", 1, 2)
    finish(rig)
    client.rdy(0)
    rig.now_ms += SECOND + MERGE_MS
    rig.tell_time()  # overdue, but nobody has looked yet
    client.touch(1)
    rig.settle_down()
    assert (client.holds(1), client.holds(2)) == (True, False)
    with pytest.raises(PreconditionFailed):
        client.touch(2)
    client.fin(1)
    finish(rig)
    assert (queue.account.settled, queue.timed_out, queue.ready) == (1, 1, 1)


def test_nq_d3_one_that_is_gone_already_does_not_end_the_look() -> None:
    rig = manual()
    queue = rig.declare("q")
    clients = [Client(rig, "q", f"c{n}", rdy=2, timeout_ms=SECOND) for n in range(5)]
    for n in range(10):
        rig.send("q", n)
    finish(rig)
    for client in clients:
        client.rdy(0)
    rig.now_ms += SECOND + MERGE_MS
    rig.tell_time()
    clients[0].fin(1, 2)
    clients[1].req(1)
    clients[2].leave()
    clients[3].fin(2)
    rig.settle_down()
    assert (queue.acquired, queue.account.settled, queue.requeued) == (0, 3, 1)
    assert queue.timed_out == 4
    assert queue.ready == 7
    finish(rig)


def test_nq_a8_counters_return_to_zero_where_fin_and_time_out_meet() -> None:
    rig = manual()
    queue = rig.declare("q", durable=False)
    client = Client(rig, "q", rdy=1, timeout_ms=SECOND)
    finished = 0
    rig.send("q", *range(200))
    for early_ms in range(-100, 100):
        if not queue.acquired:
            rig.settle_down()
        tag = client.session.next_tag - 1
        rig.advance(SECOND + MERGE_MS + early_ms // 4)
        try:
            client.fin(tag)
            finished += 1
        except PreconditionFailed:
            assert early_ms // 4 >= 0
        rig.broker.check()
    rig.settle_down()
    assert queue.account.settled == finished
    assert queue.ready + queue.acquired + finished == 200
    assert client.consumer.unacked == queue.acquired <= 1


# -- ephemeral channels, attempts


def test_nq_10_an_ephemeral_channel_goes_with_its_last_client_and_all_it_holds() -> None:
    rig = manual()
    queue = rig.queue("q#ephemeral", durable=False, auto_delete=True)
    a, b = (Client(rig, "q#ephemeral", name, rdy=1) for name in "ab")
    rig.send("q#ephemeral", 1, 2, 3)
    rig.send("q#ephemeral", 4, annotations=Annotations(due_ms=rig.now_ms + SECOND))
    finish(rig)
    a.leave()
    finish(rig)
    assert not queue.deleted
    b.leave()
    finish(rig)
    assert queue.deleted
    assert (queue.ready, queue.acquired, queue.deferred) == (0, 0, 0)
    assert queue.account.dropped == {3: 4}
    rig.advance(2 * SECOND)
    rig.turn()
    assert rig.broker.store.resident_bytes == 0


def test_nq_d7_attempts_do_not_wrap_and_are_kept_however_many() -> None:
    rig = manual()
    queue = rig.declare("q")
    client = Client(rig, "q", rdy=1)
    rig.send("q", 1)
    rig.broker.registry.pause(queue, True)
    finish(rig)
    queue.slices()[0].acquired = 65_535
    rig.broker.registry.pause(queue, False)
    finish(rig)
    assert rig.given[-1].acquired == 65_535
    client.req(1, SECOND)
    finish(rig)
    rig.checkpoint()
    rig = rig.restart()
    rig.advance(SECOND)
    assert [h.acquired for h in rig.holds("q")] == [65_536]


@pytest.mark.parametrize("sync", [True, False])
def test_nq_a11_after_a_crash_a_deferred_publish_is_there_if_the_disk_had_it(sync: bool) -> None:
    rig = manual()
    rig.declare("q")
    finish(rig)
    rig.send("q", 1, annotations=Annotations(due_ms=rig.now_ms + 3600 * SECOND))
    if sync:
        finish(rig)
    rig = rig.restart()
    finish(rig)
    queue = rig.vhost.queues["q"]
    assert queue.deferred == (1 if sync else 0)
    assert queue.ready == 0
