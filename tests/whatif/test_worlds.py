"""A recorded stretch of time, played again by the engine: as it was, and with other settings."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache

import pytest

from tallymark.engine.outcomes import ACCEPTED, FAILED, REJECTED
from tallymark.engine.session import RELEASES
from tallymark.whatif.changes import Change, ChangeRefused, changes_of
from tallymark.whatif.comparison import differences, faithfulness_text, verdict
from tallymark.whatif.fates import Fates
from tallymark.whatif.figures import compare_fates, figures_of
from tallymark.whatif.page import html
from tallymark.whatif.players import Learned, Player
from tallymark.whatif.reading import Reader
from tallymark.whatif.recording import (
    ACCEPTS,
    BARRED,
    COME,
    CRASH,
    Answers,
    Recording,
)
from tallymark.whatif.rows import FromFile
from tallymark.whatif.sweep import run_world
from tallymark.whatif.world import World
from tests.support.engine_rig import Delivery, Rig
from tests.support.recorded import BlockLog

ORDERS = ("/", "orders", 0)
PARKED = ("/", "parked", 0)


@dataclass
class Worker:
    """A consumer that takes a while for each message, and refuses some."""

    tag: str = "worker"
    prefetch: int = 1
    takes_ms: int = 250
    refuses: int = 7
    """Every so many are refused."""
    repeats: int = 5
    """Every so many are given back at their first delivery."""
    busy_until: int = 0
    due: list[tuple[int, int, int]] = field(default_factory=list)
    """Time, tag, and what it says."""

    def take(self, given: Delivery, now: int) -> None:
        self.busy_until = max(self.busy_until, now) + self.takes_ms
        says = ACCEPTED
        if self.refuses and given.number % self.refuses == 0:
            says = REJECTED
        elif self.repeats and given.number % self.repeats == 0 and not given.redelivered:
            says = FAILED
        self.due.append((self.busy_until, given.tag, says))


def recorded(log: BlockLog) -> Recording:
    reader = Reader()
    for block in log.read():
        reader.read(FromFile(block))
    return reader.finish()


def lived(
    arguments: dict[str, object] | None = None, worker: Worker | None = None, messages: int = 100
) -> Recording:
    """A stretch of time in which a message came every 100 ms to a queue with one consumer."""
    worker = worker or Worker()
    log = BlockLog()
    rig = Rig(log)
    rig.tick_ms = 0
    rig.declare("parked")
    rig.declare("orders", {"dead-letter-exchange": "", "dead-letter-routing-key": "parked",
                           **(arguments or {})})  # fmt: skip
    rig.settle_down()
    publisher, session = rig.session(), rig.session()
    rig.consume(session, "orders", worker.tag, worker.prefetch)
    begin = rig.now_ms
    last = begin + 100 * messages + 200
    for now in range(begin, last, 50):
        given = rig.advance(now - rig.now_ms)
        if (now - begin) % 100 == 0 and now < last - 200:
            number = (now - begin) // 100 + 1
            rig.publish(publisher, "orders", [number])
        while worker.due and worker.due[0][0] <= now:
            _, tag, says = worker.due.pop(0)
            rig.broker.settlement.settle(session, tag, tag, says)
        given += rig.settle_down()
        for one in given:
            worker.take(one, rig.now_ms)
    rig.broker.clients.close_session(session, False)
    rig.settle_down()
    return recorded(log)


def alike() -> Worker:
    """A consumer that treats all messages alike: what it does with others is known as well."""
    return Worker(refuses=0, repeats=0)


@cache
def plain() -> Recording:
    """A stretch of time without limits and with such a consumer. Worlds do not change it."""
    return lived(worker=alike())


def accounts(recording: Recording) -> dict[str, dict[str, int]]:
    return {name[1]: fates.account() for name, fates in recording.fates.items()}


def played(recording: Recording, **said: object) -> dict[str, dict[str, int]]:
    """The accounts of the world with a change."""
    [change] = changes_of("change", said)
    return {name[1]: one.account() for name, one in World(recording, change).run().fates.items()}


def test_the_world_as_it_was_gives_the_ledger_back_message_by_message() -> None:
    recording = lived()
    assert accounts(recording)["orders"]["dead-lettered (rejected)"] > 3, "there is something to it"
    outcome = World(recording, Change()).run()
    for name in (ORDERS, PARKED):
        was, again = recording.fates[name], outcome.fates[name]
        assert again.account() == was.account()
        assert again.ids == was.ids
        assert again.fate == was.fate
        assert again.entered_ms == was.entered_ms
        assert again.ended_ms == was.ended_ms
        assert again.again_ms == was.again_ms
        assert again.size == was.size
    assert outcome.drawn == {}, "nothing rests on drawn times"


def test_what_was_delivered_shows_what_the_disk_had() -> None:
    """How far ahead a mark is set depends on how deliveries fall into turns: a world whose own mark
    is behind gives what was given, when it was."""
    recording = lived(worker=alike())
    recording.turn_synced = array("q", [0]) * len(recording.turn_synced)
    recording.late_ms = 1 << 40
    outcome = World(recording).run()
    assert outcome.fates[ORDERS].ended_ms == recording.fates[ORDERS].ended_ms


def settled_on_send() -> Recording:
    """A stretch of time in which a message came every 100 ms to a receiver of AMQP 1.0 that takes
    messages settled, and asks for one more each time."""
    log = BlockLog()
    rig = Rig(log)
    rig.tick_ms = 0
    rig.declare("orders")
    rig.settle_down()
    publisher, session = rig.session(), rig.session()
    consumer = rig.consume(session, "orders", "link", no_ack=True)
    consumer.on_timeout = RELEASES
    grant = rig.broker.consuming.grant
    grant(consumer, 2, False)
    for number in range(1, 21):
        rig.publish(publisher, "orders", [number])
        rig.settle_down()
        rig.advance(50)
        grant(consumer, 2, False)
        rig.settle_down()
        rig.advance(50)
    rig.broker.clients.close_session(session, False)
    rig.settle_down()
    return recorded(log)


def test_a_receiver_of_settled_messages_is_given_what_it_was_given() -> None:
    recording = settled_on_send()
    assert accounts(recording)["orders"] == {"entered": 20, "settled": 20}
    again, was = World(recording).run().fates[ORDERS], recording.fates[ORDERS]
    assert again.account() == was.account()
    assert again.ended_ms == was.ended_ms


def test_a_receiver_of_settled_messages_goes_on_asking_in_another_world() -> None:
    account = played(settled_on_send(), queue=[{"name": "orders", "max-length": 1000}])["orders"]
    assert account == {"entered": 20, "settled": 20}


@pytest.mark.parametrize("given_ms", [0, 5000], ids=["when it was", "later"])
def test_a_serial_consumer_takes_its_time_once_however_messages_are_given(given_ms: int) -> None:
    recording = Recording(serial={6})
    answers = recording.answers[ORDERS, 0] = Answers()
    answers.add(1, 18, 6, 0, 4, 0, ACCEPTS, 0, 4)
    learned, player = Learned(recording, 1), Player(6, True)
    ends = [
        reply.ended_ms
        for id in range(1, 19)
        for reply in learned.replies(player, ORDERS, 0, id, 1, given_ms)
    ]
    assert ends == sorted(ends)
    assert ends[-1] == given_ms + 4


def test_a_limit_that_was_not_there_drops_what_it_drops_when_it_is_there() -> None:
    recording = plain()
    limited = {"max-length": 5}
    expected = accounts(lived(limited, alike()))
    assert expected["orders"]["dead-lettered (maxlen)"] > 20
    assert played(recording, queue=[{"name": "orders", **limited}]) == expected


def test_a_time_to_live_is_as_it_would_have_been() -> None:
    recording = lived({"message-ttl": 60_000}, alike())
    expected = accounts(lived({"message-ttl": 1000}, alike()))
    assert expected["orders"]["dead-lettered (expired)"] > 20
    assert played(recording, queue=[{"name": "orders", "message-ttl": 1000}]) == expected


def test_a_faster_consumer_settles_what_a_faster_one_settles() -> None:
    recording = plain()
    fast = alike()
    fast.takes_ms //= 5
    expected = accounts(lived(worker=fast))
    assert expected["orders"]["settled"] > 2 * accounts(recording)["orders"]["settled"]
    assert played(recording, consumers=[{"queue": "orders", "speed": 5}]) == expected


def test_what_many_times_the_messages_come_to_is_counted() -> None:
    recording = plain()
    orders = played(recording, publishers=[{"key": "orders", "rate": 1.5}])["orders"]
    was = accounts(recording)["orders"]
    assert orders["entered"] == was["entered"] * 3 // 2
    assert orders["settled"] == was["settled"], "the consumer was busy all the time"


def test_more_consumers_share_the_work_and_one_who_is_away_does_none() -> None:
    recording = plain()
    was = accounts(recording)["orders"]["settled"]
    twice = played(recording, consumers=[{"queue": "orders", "times": 2}])["orders"]["settled"]
    assert 2 * was - 2 <= twice <= 2 * was + 2
    at = datetime.fromtimestamp((recording.begin_ms + 2_000) / 1000, UTC)
    away = {"queue": "orders", "away": {"from": at, "for": "5s"}}
    less = played(recording, consumers=[away])["orders"]["settled"]
    assert was - less in (20, 21), "five seconds of four messages each"


@pytest.mark.parametrize(
    ("said", "settled"),
    [({"speed": 5}, 100), ({"times": 2}, 60), ({"times": 0}, 19), ({"prefetch": 10}, 40)],
    ids=str,
)
def test_consumers_are_as_they_were_until_a_change_takes_effect(
    said: dict[str, object], settled: int
) -> None:
    recording = plain()
    middle = recording.begin_ms + 5_000
    at = datetime.fromtimestamp(middle / 1000, UTC)
    [change] = changes_of("x", {"from": at, "consumers": [{"queue": "orders", **said}]})
    orders = World(recording, change).run().fates[ORDERS]
    before, was = (
        [at_ms for at_ms in ended if 0 <= at_ms < middle]
        for ended in (orders.ended_ms, recording.fates[ORDERS].ended_ms)
    )
    assert before == was
    assert orders.account()["settled"] == settled


def test_what_a_consumer_may_hold_is_other_from_a_time_on() -> None:
    recording = plain()
    at = datetime.fromtimestamp((recording.begin_ms + 5_000) / 1000, UTC)
    given = []
    for prefetch in (1, 20, 0):
        consumers = [{"queue": "orders", "prefetch": prefetch}]
        [change] = changes_of("x", {"from": at, "consumers": consumers})
        given.append(World(recording, change).run().delivered[ORDERS])
    assert given == [41, 60, 100]


def test_a_queue_is_there_until_a_change_takes_it_away() -> None:
    recording = plain()
    at = datetime.fromtimestamp((recording.begin_ms + 5_000) / 1000, UTC)
    found = played(recording, **{"from": at, "remove-queue": [{"name": "orders"}]})
    assert found["orders"] == {"entered": 50, "settled": 19, "dropped (queue_deleted)": 31}


def test_a_queue_that_is_bound_gets_a_copy_and_one_that_is_gone_gets_nothing() -> None:
    recording = plain()
    found = played(
        recording,
        **{
            "new-queue": [{"name": "copy", "max-length": 3}],
            "remove-queue": [{"name": "parked"}],
            "queue": [{"name": "orders", "dead-letter-routing-key": "copy", "message-ttl": 1000}],
        },
    )
    assert "parked" not in found
    dead = found["orders"]["dead-lettered (expired)"]
    assert found["copy"] == {"entered": dead, "there": 3, "dropped (maxlen)": dead - 3}


@pytest.mark.parametrize("type", ["classic", "stream"])
def test_a_queue_that_becomes_a_stream_or_is_none_any_more_is_refused(type: str) -> None:
    """Messages of a stream are neither got one by one, nor purged or leased: whoever did that in
    the recording would end the world."""
    log = BlockLog()
    rig = Rig(log)
    rig.tick_ms = 0
    queue = rig.declare("orders", {"queue-type": type})
    session = rig.session()
    rig.publish(session, "orders", [1, 2])
    rig.settle_down()
    if type == "classic":
        got = rig.broker.consuming.get(session, queue, False)
        assert got is not None
        rig.settle_down()
        rig.broker.settlement.settle(session, got[1], got[1], ACCEPTED)
        rig.settle_down()
        rig.broker.contents.purge(queue)
    rig.settle_down()
    recording = recorded(log)
    assert World(recording).run().fates[ORDERS].account() == recording.fates[ORDERS].account()
    assert played(recording, queue=[{"name": "orders", "queue-type": type}])
    other = "stream" if type == "classic" else "classic"
    with pytest.raises(ChangeRefused, match="orders: queue-type cannot change to or from stream"):
        played(recording, queue=[{"name": "orders", "queue-type": other}])


def test_a_restart_gives_back_what_was_held_and_loses_nothing() -> None:
    recording = plain()
    at = datetime.fromtimestamp((recording.begin_ms + 5_000) / 1000, UTC)
    [change] = changes_of("restart", {"restart": [{"at": at, "outage": "2s"}]})
    outcome = World(recording, change).run()
    orders = outcome.fates[ORDERS]
    assert orders.account()["entered"] == 100
    down = range(recording.begin_ms + 5_000, recording.begin_ms + 7_000)
    assert not [at for at in orders.ended_ms if at in down], "nobody was there"
    assert not [at for at in orders.entered_ms if at in down]
    assert len(orders.again_ms) == len(recording.fates[ORDERS].again_ms) + 1


def test_a_single_active_consumer_takes_all_of_it() -> None:
    recording = plain()
    was = accounts(recording)["orders"]["settled"]
    single = {"name": "orders", "single-active-consumer": True}
    both = played(recording, consumers=[{"queue": "orders", "times": 2}], queue=[single])
    assert both["orders"]["settled"] == was, "the second one waits"


def test_what_a_consumer_may_hold_counts_towards_no_limit() -> None:
    recording = plain()
    deepest = []
    for prefetch in (1, 10):
        [change] = changes_of("x", {
            "queue": [{"name": "orders", "max-length": 5}],
            "consumers": [{"queue": "orders", "prefetch": prefetch}],
        })  # fmt: skip
        fates = World(recording, change).run().fates
        found = figures_of(fates, recording.begin_ms, recording.end_ms)
        deepest.append(found["orders"]["deepest"])
    assert deepest[1] == deepest[0] + 9


def test_priorities_and_limits_on_slow_consumers_are_taken() -> None:
    recording = plain()
    was = accounts(recording)
    assert played(recording, queue=[{"name": "orders", "max-priority": 5}]) == was
    definition = {"slow-consumer-count": 5, "slow-consumer-policy": "drop-oldest"}
    assert played(recording, policy=[{"name": "slow", "definition": definition}]) == was, (
        "nobody subscribes to a topic alone"
    )


def test_publishers_that_would_be_refused_are_a_reason_to_say_no() -> None:
    """The queue drops nothing and nothing of it dies: those who publish have to do something."""
    recording = plain()
    [change] = changes_of("x", {
        "queue": [{"name": "orders", "max-length": 3, "overflow": "reject-publish"}]
    })  # fmt: skip
    fates = World(recording, change).run().fates
    entered, refused = fates[ORDERS].account()["entered"], fates[ORDERS].refused_ms
    assert entered + len(refused) == 100
    assert len(refused) > 30
    assert list(refused) == sorted(set(refused) - set(fates[ORDERS].entered_ms))
    middle = refused[20]
    assert len(fates[ORDERS].since(middle).refused_ms) == len(refused) - 20
    was = World(recording).run().fates
    base, told = (figures_of(one, recording.begin_ms, recording.end_ms) for one in (was, fates))
    said = verdict(base, told, compare_fates(recording.fates, was))
    assert said["text"] == "No, not with this traffic."
    assert said["why"][0] == (
        f"orders: {len(refused)} messages more would be refused, and their publishers told so"
    )
    assert f"orders: 0 refused messages would have been {len(refused)}" in differences(base, told)


def test_a_purge_takes_what_is_beyond_a_limit_with_it() -> None:
    """A purge brings its queue up to date first. Its letters come before those of the turn, and the
    turn is one: nobody was served in between."""
    log = BlockLog()
    rig = Rig(log)
    rig.tick_ms = 0
    letters = {"dead-letter-exchange": "", "dead-letter-routing-key": "parked"}
    rig.declare("parked")
    rig.declare("mail", {"message-ttl": 1000, **letters})
    ring = rig.declare("ring", {"max-length": 3, **letters})
    session = rig.session()
    rig.publish(session, "mail", [1, 2])
    rig.settle_down()
    rig.advance(999)
    rig.now_ms += 1
    rig.tell_time()
    rig.publish(session, "mail", [3])
    rig.publish(session, "ring", [4, 5, 6, 7])
    rig.broker.contents.purge(ring)
    rig.settle_down()
    recording = recorded(log)
    parked = World(recording).run().fates[PARKED]
    assert recording.fates[PARKED].ids[0] > recording.fates[PARKED].ids[1], "of ring, then of mail"
    assert parked.ids == recording.fates[PARKED].ids


def test_after_a_crash_the_mark_is_the_one_that_was_written() -> None:
    """Who is supposed to have been delivered rests on it, and with that which delivery of a message
    is its first."""
    log = BlockLog()
    rig = Rig(log)
    rig.tick_ms = 0
    rig.declare("orders")
    publisher, session = rig.session(), rig.session()
    rig.consume(session, "orders", "worker", 2)
    rig.publish(publisher, "orders", range(1, 41))
    given = rig.settle_down()
    for _ in range(3):
        rig.broker.settlement.settle(session, given[0].tag, given[-1].tag, ACCEPTED)
        given = rig.advance(100)
    rig = rig.restart()
    rig.tick_ms = 0
    session = rig.session()
    rig.consume(session, "orders", "worker", 40)
    given = rig.advance(100)
    supposed = sum(one.redelivered for one in given)
    for one in given:
        rig.advance(10)
        rig.broker.settlement.settle(session, one.tag, one.tag, ACCEPTED)
    rig.settle_down()
    rig.broker.clients.close_session(session, False)
    rig.settle_down()
    recording = recorded(log)
    assert 2 < supposed < len(given), "the mark was ahead of what was delivered"
    outcome = World(recording).run()
    assert outcome.fates[ORDERS].ended_ms == recording.fates[ORDERS].ended_ms
    assert outcome.drawn == {}
    [at] = [i for i, one in enumerate(recording.inputs) if one[2] == CRASH]
    *when, marks = recording.inputs[at]
    first = given[supposed].number
    assert marks == {ORDERS: (first, first - given[2].number)}, "the first that nobody can have had"
    [change] = changes_of("x", {"queue": [{"name": "orders", "max-length": 100}]})
    again_ms = World(recording, change).run().fates[ORDERS].again_ms
    assert len(again_ms) == supposed, "with a change it is as far ahead"
    recording.inputs[at] = (*when, {ORDERS: (given[-1].number + 1, 0)})
    assert len(World(recording).run().fates[ORDERS].again_ms) == len(given), "all are supposed"
    assert len(World(recording, change).run().fates[ORDERS].again_ms) == 2, "those that were held"


def test_a_consumer_that_was_too_slow_is_given_nothing_more_before_it_goes() -> None:
    """A world is told so: another one may hold there what this one kept for too long, as some do in
    a day of traffic (test_day.py)."""
    log = BlockLog()
    rig = Rig(log)
    rig.tick_ms = 0
    rig.declare("orders", {"consumer-timeout": 60_000})
    publisher, slow, other = rig.session(), rig.session(), rig.session()
    rig.consume(slow, "orders", "slow", 2)
    rig.publish(publisher, "orders", [1, 2])
    rig.settle_down()
    rig.advance(1000)
    rig.consume(other, "orders", "other", 3)
    rig.publish(publisher, "orders", [3])
    given = rig.settle_down()
    rig.broker.settlement.settle(other, given[0].tag, given[-1].tag, ACCEPTED)
    given = rig.advance(60_000)
    assert [one.number for one in given] == [1, 2], "the other one has them"
    rig.broker.settlement.settle(other, given[0].tag, given[-1].tag, ACCEPTED)
    rig.broker.clients.close_session(slow, False)
    rig.settle_down()
    recording = recorded(log)
    [barred] = [said for _, _, kind, said in recording.inputs if kind == BARRED]
    owners = [one.consumer for _, _, kind, one in recording.inputs if kind == COME]
    assert barred == (owners[0],)
    outcome = World(recording).run()
    assert outcome.delivered[ORDERS] == 5, "none was given to the slow one once more"
    assert outcome.fates[ORDERS].ended_ms == recording.fates[ORDERS].ended_ms


def test_a_stretch_of_time_counts_what_was_there_at_its_beginning() -> None:
    recording = plain()
    fates = recording.fates[ORDERS]
    middle = recording.begin_ms + 5_000
    told = fates.since(middle).account()
    before = [i for i, at in enumerate(fates.ended_ms) if 0 <= at < middle]
    assert told["entered"] == len(fates.ids) - len(before)
    assert told["settled"] == fates.account()["settled"] - len(before)
    assert fates.since(0) is fates


def test_the_answer_says_what_differs_and_whether_it_may_be() -> None:
    recording = plain()
    fates = World(recording).run().fates
    exactly = compare_fates(recording.fates, fates)
    base = figures_of(fates, recording.begin_ms, recording.end_ms)
    [small, large] = [
        figures_of(World(recording, one).run().fates, recording.begin_ms, recording.end_ms)
        for one in changes_of("limit", {"queue": [{"name": "orders", "max-length": [5, 100]}]})
    ]
    assert verdict(base, large, exactly)["good"]
    assert differences(base, large) == []
    found = verdict(base, small, exactly)
    assert not found["good"]
    died = small["orders"]["account"]["dead-lettered (maxlen)"]
    assert found["why"] == [
        f"orders: {died} messages more would be dead-lettered (maxlen)",
        f"parked: {died} messages more would still be there at the end",
    ]
    assert f"orders would have seen {died} messages dead-lettered (maxlen) more" in " ".join(
        differences(base, small)
    )


def test_an_answer_is_not_known_where_what_happened_is_not_reproduced() -> None:
    recording = plain()
    fates = dict(World(recording).run().fates)
    fates[ORDERS] = Fates(ORDERS)
    base = figures_of(fates, recording.begin_ms, recording.end_ms)
    exactly = compare_fates(recording.fates, fates)
    assert faithfulness_text(exactly).endswith("the account differs in orders.")
    found = verdict(base, base, exactly)
    assert not found["good"]
    assert found["why"] == [
        "orders: played without a change, 0.00 % of its messages meet the fate that they did"
    ]


def test_the_page_says_yes_or_no_and_how_far_to_trust_it() -> None:
    recording = plain()
    [change] = changes_of("<b>5", {"queue": [{"name": "orders", "max-length": 5}]})
    base, other = (run_world(recording, one, 1) for one in (Change(), change))
    other["verdict"] = verdict(base["queues"], other["queues"], base["faithfulness"])
    other["differences"] = differences(base["queues"], other["queues"])
    text = html([base, other])
    assert "No, not with this traffic." in text
    assert other["verdict"]["why"][0] in text
    assert "&lt;b&gt;5" in text
    assert "Would have been" in text
    assert base["faithfulness"]["is_exact"]
    assert text.index("the account of every queue is exactly what the ledger says") < text.index(
        "No, not with this traffic."
    )
    asked = html([base, other], "orders.max-length=5", {"headers": 1234})
    assert "<h1>What if orders.max-length=5?</h1>" in asked
    assert "<li>headers: 1,234</li>" in asked
    assert "as before</summary>" not in asked, "both queues differ"
    assert "1 queue as before" in html([base, {**base, "verdict": other["verdict"],
                                                "differences": []}])  # fmt: skip
