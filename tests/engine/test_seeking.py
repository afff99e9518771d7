"""Consumers that browse, and consumers with a filter."""

from __future__ import annotations

import random
from array import array

import pytest

from tallymark.engine.errors import NotAllowed
from tallymark.engine.message import Filter, Payload
from tallymark.engine.outcomes import ACCEPTED, RETURNED
from tallymark.engine.packing import Packing
from tallymark.engine.seeking import LOOK_BYTES, LOOKS
from tallymark.engine.session import Consumer, Session
from tallymark.stored.annotations import Annotations, Route
from tests.support.engine_rig import SIZE, Rig, Said, number_at
from tests.support.engine_steps import manual


class Multiple(Filter):
    """Wants the messages that divide by a number."""

    def __init__(self, of: int) -> None:
        self.of = of
        self.looked = 0

    def matches(self, payload: Payload, i: int, known: Annotations | None) -> bool:
        self.looked += 1
        return number_at(payload, i) % self.of == 0


def filtered(
    rig: Rig, name: str, of: int, session: Session | None = None, tag: str = "f", credit: int = 1000
) -> Consumer:
    queue = rig.vhost.queues[name]
    session = session or rig.session()
    consumer = rig.broker.consuming.consume(session, queue, tag, False, False, 0, {}, Multiple(of))
    rig.broker.consuming.grant(consumer, credit, False)
    return consumer


def browser(
    rig: Rig, name: str, filter: Filter | None = None, tag: str = "b", credit: int = 1000
) -> Consumer:
    consumer = rig.broker.consuming.browse(rig.session(), rig.vhost.queues[name], tag, filter)
    rig.broker.consuming.grant(consumer, credit, False)
    return consumer


def given(rig: Rig) -> list[int]:
    found = [delivery.number for delivery in rig.settle_down()]
    rig.broker.check()
    return found


def test_a_filter_takes_what_matches_and_leaves_the_rest_in_order() -> None:
    rig = manual()
    rig.declare("q")
    rig.send("q", *range(1, 10))
    rig.send("q", 10, 11, 12)
    consumer = filtered(rig, "q", 3)
    assert given(rig) == [3, 6, 9, 12]
    assert rig.ready("q") == [1, 2, 4, 5, 7, 8, 10, 11]
    rig.send("q", 13, 14, 15)
    assert given(rig) == [15]
    rig.broker.settlement.settle(consumer.session, 1, 5, ACCEPTED)
    plain = rig.session()
    rig.broker.consuming.set_prefetch(plain, 3, False)
    rig.broker.consuming.consume(plain, rig.vhost.queues["q"], "p", False, False, 0, {})
    assert given(rig) == [1, 2, 4]


def test_a_filter_takes_no_more_than_its_credit() -> None:
    rig = manual()
    rig.declare("q")
    rig.send("q", *range(1, 10))
    consumer = filtered(rig, "q", 2, credit=2)
    assert given(rig) == [2, 4]
    rig.broker.consuming.grant(consumer, 1, False)
    assert given(rig) == [6]


def test_tx_9_what_is_given_back_goes_to_its_place_and_is_found_again() -> None:
    rig = manual()
    rig.declare("q")
    rig.send("q", *range(1, 8))
    consumer = filtered(rig, "q", 2)
    assert given(rig) == [2, 4, 6]
    rig.broker.settlement.settle(consumer.session, 2, 2, RETURNED)
    assert given(rig) == [4]
    rig.broker.consuming.detach(consumer)
    assert rig.ready("q") == [1, 2, 3, 4, 5, 6, 7]


def test_fc_5_a_drain_ends_where_nothing_matches() -> None:
    rig = manual()
    rig.declare("q")
    rig.send("q", 1, 3, 4, 5)
    consumer = filtered(rig, "q", 2, credit=0)
    rig.broker.consuming.grant(consumer, 10, True)
    assert given(rig) == [4]
    assert rig.drained == ["f"]
    assert consumer.limit == 0


def test_each_message_is_looked_at_once() -> None:
    rig = manual()
    rig.declare("q")
    rig.send("q", *range(1, 101))
    consumer = filtered(rig, "q", 1000)
    assert given(rig) == []
    assert isinstance(consumer.filter, Multiple)
    assert consumer.filter.looked == 100
    rig.send("q", 101)
    assert given(rig) == []
    assert consumer.filter.looked == 101


def test_one_turn_looks_at_so_many_and_the_next_goes_on() -> None:
    rig = manual()
    rig.declare("q")
    rig.send("q", *range(1, 2 * LOOKS + 2))
    consumer = filtered(rig, "q", 2 * LOOKS + 1)
    assert isinstance(consumer.filter, Multiple)
    rig.turn()
    assert consumer.filter.looked == LOOKS
    assert given(rig) == [2 * LOOKS + 1]


@pytest.mark.parametrize("count", [2, 10, 100])
def test_many_filters_of_a_queue_share_a_turn(count: int) -> None:
    """A turn is no longer for as many consumers as somebody likes to attach; each has its part, and
    in the end sees all."""
    rig = manual()
    rig.declare("q")
    rig.send("q", *range(1, 2 * LOOKS + 2))
    wanted = [Multiple(2 * LOOKS + 2) for _ in range(count)]
    for number, one in enumerate(wanted):
        browser(rig, "q", one, f"b{number}")
    browser(rig, "q", Multiple(1), "without credit", 0)
    rig.turn()
    looked = [one.looked for one in wanted]
    assert LOOKS - count < sum(looked) <= LOOKS
    assert min(looked) == max(looked)
    for _ in range(3 * count):
        rig.turn()
    assert {one.looked for one in wanted} == {2 * LOOKS + 1}


def test_one_turn_looks_at_fewer_messages_where_they_are_large() -> None:
    rig = manual()
    rig.declare("q")
    session = rig.session()
    size = 16 * LOOK_BYTES
    per_turn = -(-LOOKS // 17)  # each counts as itself and sixteen more
    for n in range(1, 2 * per_turn + 2):
        cell = n.to_bytes(SIZE, "big") + bytes(size - SIZE)
        payload = Payload(
            0, cell, array("I", (0, size)), Route("", "q"), None, rig.broker.new_message_ids(1),
            rig.now_ms, True, size,
        )  # fmt: skip
        targets = rig.vhost.route("", ["q"], None)
        rig.broker.publishing.publish(session, targets, payload)
    consumer = filtered(rig, "q", 2 * per_turn + 1)
    assert isinstance(consumer.filter, Multiple)
    rig.turn()
    assert consumer.filter.looked == per_turn
    rig.turn()
    assert consumer.filter.looked == 2 * per_turn
    assert given(rig) == [2 * per_turn + 1]


def test_a_filter_is_refused_where_only_one_consumer_is_active() -> None:
    rig = manual()
    rig.declare("q", {"single-active-consumer": True})
    with pytest.raises(NotAllowed, match="filter on queue 'q' in vhost '/', which has a single"):
        filtered(rig, "q", 2)
    assert rig.vhost.queues["q"].consumers == []


def test_a_consumer_whose_filter_wants_nothing_holds_up_neither_expiry_nor_limits() -> None:
    rig = manual()
    rig.declare("q", {"message-ttl": 100, "max-length": 2})
    filtered(rig, "q", 1000)
    rig.send("q", 1, 2, 3)
    assert given(rig) == []
    assert rig.ready("q") == [2, 3]
    rig.advance(100)
    assert rig.ready("q") == []


def test_a_browser_sees_each_ready_message_once_and_takes_none() -> None:
    rig = manual()
    queue = rig.declare("q")
    rig.send("q", 1, 2, 3)
    looker = browser(rig, "q", credit=2)
    assert given(rig) == [1, 2]
    rig.broker.consuming.grant(looker, 5, False)
    assert given(rig) == [3]
    rig.send("q", 4)
    assert given(rig) == [4]
    assert rig.ready("q") == [1, 2, 3, 4]
    assert (queue.acquired, looker.session.unacked) == (0, 0)
    assert [m.acquired for m in rig.holds("q")] == [0, 0, 0, 0]


def test_a_browser_with_a_filter_sees_what_matches() -> None:
    rig = manual()
    rig.declare("q")
    rig.send("q", *range(1, 8))
    browser(rig, "q", Multiple(3))
    assert given(rig) == [3, 6]
    assert rig.ready("q") == [1, 2, 3, 4, 5, 6, 7]


def test_fc_5_a_browser_drains_at_the_end_of_what_is_ready() -> None:
    rig = manual()
    rig.declare("q")
    rig.send("q", 1, 2)
    looker = browser(rig, "q", credit=0)
    rig.broker.consuming.grant(looker, 10, True)
    assert given(rig) == [1, 2]
    assert rig.drained == ["b"]


def test_a_browser_of_a_queue_with_priorities_sees_all_of_it() -> None:
    rig = manual()
    rig.declare("q", {"max-priority": 3})
    rig.says.update({n: Said(priority=n % 4) for n in range(1, 9)})
    for n in range(1, 9):
        rig.send("q", n)
    browser(rig, "q")
    assert given(rig) == [3, 7, 2, 6, 1, 5, 4, 8]
    rig.send("q", 5)
    assert given(rig) == [5]


def test_an_auto_delete_queue_that_was_only_browsed_stays() -> None:
    rig = Rig()
    queue = rig.queue("q", auto_delete=True)
    rig.publish(rig.session(), "q", [1])
    browser = rig.broker.consuming.browse(rig.session(), queue, "b", None)
    rig.turn()
    rig.broker.consuming.detach(browser)
    assert rig.ready("q") == [1]
    browser = rig.broker.consuming.browse(rig.session(), queue, "b", None)
    rig.broker.consuming.cancel(rig.consume(rig.session(), "q", "c"))
    assert "q" in rig.vhost.queues, "while somebody looks at it"
    rig.broker.consuming.detach(browser)
    assert "q" not in rig.vhost.queues


def test_browsing_and_consuming_at_once() -> None:
    rig = manual()
    rig.declare("q")
    rig.send("q", 1, 2, 3, 4)
    browser(rig, "q", credit=1)
    session = rig.session()
    rig.broker.consuming.set_prefetch(session, 2, False)
    rig.broker.consuming.consume(session, rig.vhost.queues["q"], "p", False, False, 0, {})
    deliveries = rig.settle_down()
    assert [(d.consumer, d.number) for d in deliveries] == [("b", 1), ("p", 1), ("p", 2)]
    rig.broker.check()


def test_a_closed_seeker_is_forgotten() -> None:
    rig = manual()
    queue = rig.declare("q")
    looker, picker = browser(rig, "q"), filtered(rig, "q", 2)
    rig.broker.clients.close_session(looker.session, False)
    rig.broker.clients.close_session(picker.session, False)
    assert (queue.seekers, queue.consumers, queue.active) == ([], [], None)
    rig.send("q", 2)
    assert given(rig) == []


def test_a_deep_backlog_on_disk_is_browsed() -> None:
    rig = manual()
    queue = rig.declare("q")
    rig.broker.backlogs.packing = Packing(after=10, group=16, fresh=2)
    for n in range(1, 301):
        rig.send("q", n)
        rig.turn(0)
    rig.settle_down(0)
    assert any(piece.payload.pack is not None for piece in queue.slices())
    browser(rig, "q")
    assert given(rig) == list(range(1, 301))
    assert rig.ready("q") == list(range(1, 301))


@pytest.mark.parametrize("seed", range(60))
def test_any_mix_of_consumers_gets_what_a_list_of_messages_says(seed: int) -> None:
    """A naive model: a sorted list of numbers; filters take their multiples, others the head."""
    choose = random.Random(seed)
    rig = manual()
    queue = rig.declare("q")
    ready: list[int] = []
    held: dict[int, tuple[Session, int]] = {}
    seen: list[int] = []
    entered = 0
    looker = browser(rig, "q")
    pickers = {of: filtered(rig, "q", of, tag=f"f{of}", credit=0) for of in (2, 3)}
    plain = rig.broker.consuming.consume(rig.session(), queue, "p", False, False, 0, {})
    rig.broker.consuming.grant(plain, 0, False)
    by_tag = {c.tag: c for c in (looker, plain, *pickers.values())}
    for _ in range(60):
        act = choose.randrange(5)
        who: Consumer | None = None
        if act == 0:
            more = list(range(entered + 1, entered + 1 + choose.randrange(1, 6)))
            entered += len(more)
            ready += more
            rig.send("q", *more)
        elif act in (1, 2):
            who = choose.choice([plain, *pickers.values()])
            rig.broker.consuming.grant(who, choose.randrange(1, 4), choose.random() < 0.5)
        elif held:
            number = choose.choice(sorted(held))
            session, tag = held.pop(number)
            back = choose.random() < 0.7
            rig.broker.settlement.settle(session, tag, tag, RETURNED if back else ACCEPTED)
            if back:
                ready = sorted([*ready, number])
        credit = {c.tag: c.limit for c in by_tag.values()}
        for delivery in rig.settle_down():
            consumer = by_tag[delivery.consumer]
            if consumer is looker:
                seen.append(delivery.number)
                continue
            wanted = [n for n in ready if consumer is plain or _wants(consumer, n)]
            assert delivery.number == wanted[0], (seed, delivery, ready)
            ready.remove(delivery.number)
            held[delivery.number] = (consumer.session, delivery.tag)
            credit[consumer.tag] -= 1
        for consumer in pickers.values():
            assert credit[consumer.tag] >= 0
            assert not (consumer.limit and [n for n in ready if _wants(consumer, n)]), seed
        assert not (plain.limit and ready), seed
        assert rig.ready("q") == ready
        rig.broker.check()
    assert seen == sorted(set(seen)), seed


def _wants(consumer: Consumer, number: int) -> bool:
    assert isinstance(consumer.filter, Multiple)
    return number % consumer.filter.of == 0
