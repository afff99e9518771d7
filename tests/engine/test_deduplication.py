"""Deduplication by publisher-given ids: within its window an id is taken once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tallymark.engine.clock import NEVER
from tallymark.engine.outcomes import RETURNED
from tallymark.engine.queue_parts import Deduplication
from tallymark.engine.registry import IDS_IN_A_TURN
from tallymark.engine.restore import snapshot
from tallymark.stored import records
from tallymark.units import EngineMs
from tests.support.engine_rig import Rig, Said
from tests.support.engine_steps import drain, finish, manual, reject
from tests.support.growth import assert_linear

WINDOW = 100


def deduplicating(**arguments: object) -> Rig:
    rig = manual()
    settings = {key.replace("_", "-"): value for key, value in arguments.items()}
    rig.declare("q", {"message-deduplication": WINDOW} | settings)
    return rig


def send(rig: Rig, *ids: str, start: int = 1, **more: object) -> None:
    """A run of messages start.. with these ids, by a confirming publisher."""
    session = rig.session()
    session.confirming = True
    numbers = list(range(start, start + len(ids)))
    for number, id in zip(numbers, ids, strict=True):
        rig.says[number] = Said(id=id)
    rig.send("q", *numbers, session=session, persistent=bool(more.get("persistent", True)))
    finish(rig)
    assert rig.confirmed[session.id] == len(ids), "a duplicate is safe already"


def test_the_second_of_an_id_is_passed_over_and_counted() -> None:
    rig = deduplicating()
    send(rig, "a", "b", "a", "a", "c")
    send(rig, "c", "d", start=6)
    assert rig.ready("q") == [1, 2, 5, 7]
    assert rig.dropped("q") == {"duplicate": 3}
    assert rig.vhost.queues["q"].entered == 7
    assert rig.refused == []


def test_messages_without_an_id_are_all_taken() -> None:
    rig = deduplicating()
    send(rig, "", "", "")
    assert rig.ready("q") == [1, 2, 3]


def test_the_window_is_over_after_exactly_its_milliseconds() -> None:
    rig = deduplicating()
    send(rig, "a")
    rig.advance(WINDOW - 1)
    send(rig, "a", start=2)
    rig.advance(1)
    send(rig, "a", start=3)
    assert rig.ready("q") == [1, 3]
    rig.advance(WINDOW - 1)
    send(rig, "a", start=4)
    assert rig.ready("q") == [1, 3], "a duplicate does not start the window, what is taken does"


def test_an_id_stays_taken_when_its_message_is_gone() -> None:
    rig = deduplicating()
    send(rig, "a")
    drain(rig, "q")
    send(rig, "a", start=2)
    rig.broker.contents.purge(rig.vhost.queues["q"])
    send(rig, "a", start=3)
    assert rig.ready("q") == []


def test_what_a_full_queue_refuses_has_not_taken_its_id() -> None:
    rig = deduplicating(max_length=1, overflow="reject-publish")
    send(rig, "a", "b", "a")
    assert (rig.ready("q"), rig.refused) == ([1], [(2, 2)])
    assert rig.dropped("q") == {"duplicate": 1}, "known before it was found full"
    drain(rig, "q")
    send(rig, "b", start=4)
    assert rig.ready("q") == [4]


def test_a_letter_that_comes_back_is_the_same_message() -> None:
    rig = deduplicating(dead_letter_exchange="")
    send(rig, "a")
    reject(rig, "q")
    reject(rig, "q", outcome=RETURNED)
    assert [h.deaths for h in rig.holds("q")] == [[("q", "rejected", 1)]]


def test_a_letter_is_not_passed_over_for_an_id_that_was_taken() -> None:
    rig = deduplicating()
    rig.declare("s", {"dead-letter-exchange": "", "dead-letter-routing-key": "q"})
    send(rig, "a")
    rig.says[5] = Said(id="a")
    rig.send("s", 5)
    reject(rig, "s")
    assert rig.ready("q") == [1, 5]


def test_each_queue_has_a_window_of_its_own() -> None:
    rig = deduplicating()
    rig.declare("plain")
    rig.exchange("x", "fanout", ("q", ""), ("plain", ""))
    rig.says |= {1: Said(id="a"), 2: Said(id="a")}
    rig.send("", 1, 2, exchange="x")
    finish(rig)
    assert (rig.ready("q"), rig.ready("plain")) == ([1], [1, 2])


def test_a_policy_switches_it_on_and_off() -> None:
    rig = manual()
    rig.declare("q")
    rig.set_policy("q", {"message-deduplication": WINDOW})
    send(rig, "a", "a")
    rig.set_policy("q", {})
    send(rig, "a", start=3)
    assert rig.ready("q") == [1, 3]


@pytest.mark.parametrize("checkpoint", [True, False])
def test_the_window_outlives_a_restart(checkpoint: bool) -> None:
    rig = deduplicating()
    send(rig, "a", "b")
    rig.advance(50)
    send(rig, "c", start=3)
    if checkpoint:
        rig.checkpoint()
    rig = rig.restart()
    rig.advance(49)
    send(rig, "a", "b", "c", start=4)
    assert rig.ready("q") == [1, 2, 3]
    rig.advance(1)
    send(rig, "a", "c", start=7)
    assert rig.ready("q") == [1, 2, 3, 7]
    assert rig.dropped("q") == {"duplicate": 4}


@pytest.mark.parametrize("checkpoint", [True, False])
def test_ids_are_forgotten_in_the_order_they_were_taken_last_also_after_a_restart(
    checkpoint: bool,
) -> None:
    rig = deduplicating()
    send(rig, "a")
    rig.advance(WINDOW - 10)
    send(rig, "b", start=2)
    rig.advance(20)
    send(rig, "a", start=3)  # its first window is over: taken anew, after b
    if checkpoint:
        rig.checkpoint()
    rig = rig.restart()
    assert list(rig.vhost.queues["q"].deduplication.ids) == ["b", "a"]
    rig.advance(WINDOW - 20)
    send(rig, "b", "a", start=4)
    assert rig.ready("q") == [1, 2, 3, 4]


@pytest.mark.parametrize("checkpoint", [True, False])
def test_the_id_of_a_transient_message_goes_with_it_at_a_restart(checkpoint: bool) -> None:
    rig = deduplicating()
    send(rig, "a", persistent=False)
    if checkpoint:
        rig.checkpoint()
    rig = rig.restart()
    finish(rig)
    assert rig.dropped("q") == {"transient_at_restart": 1}
    send(rig, "a", start=2)
    assert rig.ready("q") == [2]


def test_ids_are_let_go_of_where_the_queue_no_longer_looks_at_them() -> None:
    rig = manual()
    queue = rig.declare("q")
    rig.set_policy("q", {"message-deduplication": WINDOW})
    send(rig, "a", "b")
    assert len(queue.deduplication.ids) == 2
    rig.set_policy("q", {})
    assert not queue.deduplication.ids


def test_a_checkpoint_has_no_ids_of_before_the_window() -> None:
    rig = deduplicating()
    queue = rig.vhost.queues["q"]
    send(rig, "a")
    rig.advance(WINDOW // 2)
    send(rig, "b", start=2)
    rig.advance(WINDOW // 2)
    seen = [r.blob for r in snapshot(rig.broker, False) if r.kind == records.SEEN]
    assert seen == [b'["b"]']
    assert list(queue.deduplication.ids) == ["b"]


def test_of_a_very_long_id_a_hash_is_kept() -> None:
    rig = deduplicating()
    for number, end in enumerate("xyx", 1):
        rig.says[number] = Said(headers={"x-deduplication-header": "i" * 100_000 + end})
    rig.send("q", 1, 2, 3)
    assert rig.ready("q") == [1, 2]
    assert [len(id) for id in rig.vhost.queues["q"].deduplication.ids] == [64, 64]


def test_forgetting_ids_costs_no_more_than_their_number() -> None:
    def prepare(size: int) -> Callable[[], object]:
        known = Deduplication()
        for at in range(size):
            known.restore_id(str(at), EngineMs(at))
        return lambda: known.forget_until(EngineMs(size))

    assert_linear(prepare, 2000)  # by a walk over those forgotten before each it is quadratic


def test_forgetting_one_id_at_a_time_costs_no_more_than_their_number() -> None:
    def prepare(size: int) -> Callable[[], object]:
        known = Deduplication()
        for at in range(size):
            known.restore_id(str(at), EngineMs(at))

        def forget() -> None:
            for at in range(size):
                known.forget_until(EngineMs(at))

        return forget

    assert_linear(prepare, 2000)


def test_ids_beyond_the_window_go_where_nobody_publishes_any_more() -> None:
    """A queue that was left alone kept all of its last window: until the next checkpoint, and for
    good where it is transient."""
    for durable in (True, False):
        rig = manual()
        queue = rig.declare("q", {"message-deduplication": WINDOW}, durable)
        send(rig, "a", "b")
        rig.advance(WINDOW // 2)
        send(rig, "c", start=3)
        rig.advance(WINDOW // 2)
        assert list(queue.deduplication.ids) == ["c"]
        if durable:
            rig = rig.restart()
            rig.tick_ms = 0
            queue = rig.vhost.queues["q"]
            assert list(queue.deduplication.ids) == ["c"]
        rig.advance(WINDOW)
        assert not queue.deduplication.ids
        assert rig.broker.next_due() == NEVER


def test_many_ids_beyond_the_window_take_several_turns() -> None:
    rig = manual()
    queue = rig.declare("q", {"message-deduplication": WINDOW})
    count = IDS_IN_A_TURN + 1
    for number in range(count):
        queue.deduplication.restore_id(str(number), rig.broker.clock.now_ms)
    rig.broker.registry.revive(queue)
    rig.now_ms += WINDOW
    rig.turn()
    assert len(queue.deduplication.ids) == 1
    rig.turn()
    assert not queue.deduplication.ids
