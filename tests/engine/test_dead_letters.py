"""Why messages die and what becomes of them: DL-1 to DL-15 and DL-D1 to DL-D7, seen through the
engine under a manual clock."""

from __future__ import annotations

import json

import pytest

from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.outcomes import DISCARDED, FAILED, REJECTED, RETURNED
from tallymark.engine.settings import Settings
from tallymark.stored import records
from tallymark.stored.annotations import Annotations
from tests.support.engine_rig import START_MS, Rig, Said
from tests.support.engine_steps import REASONS, die, drain, finish, manual, reject

DEAD = {"dead-letter-exchange": "", "dead-letter-routing-key": "dead"}


def pair(**arguments: object) -> Rig:
    """Queue q, whose letters go to queue dead."""
    rig = manual()
    rig.declare("q", DEAD | {key.replace("_", "-"): value for key, value in arguments.items()})
    rig.declare("dead")
    return rig


# -- DL-1 to DL-3: triggers and topology


@pytest.mark.parametrize("reason", REASONS)
def test_dl_1_four_reasons_by_these_names(reason: str) -> None:
    rig = manual()
    rig.declare("q")
    rig.declare("dead")
    rig.send("q", 1)
    die(rig, "q", reason, "dead")
    assert [h.deaths for h in rig.holds("dead")] == [[("q", reason, 1)]]
    assert rig.vhost.queues["q"].account.dead_lettered == 1


@pytest.mark.parametrize(
    ("outcome", "dies"), [(REJECTED, True), (DISCARDED, True), (RETURNED, False), (FAILED, False)]
)
def test_dl_1_rejected_is_what_a_client_refuses_for_good(outcome: int, dies: bool) -> None:
    rig = pair()
    rig.send("q", 1)
    reject(rig, "q", outcome=outcome)
    assert (rig.ready("q"), rig.ready("dead")) == (([], [1]) if dies else ([1], []))


@pytest.mark.parametrize(
    ("arguments", "policy", "field", "expected"),
    [
        ({"x-dead-letter-exchange": "a"}, {"dead-letter-exchange": "p"}, "exchange", "a"),
        ({"x-dead-letter-exchange": ""}, {"dead-letter-exchange": "p"}, "exchange", ""),
        ({}, {"dead-letter-exchange": "p"}, "exchange", "p"),
        ({}, {}, "exchange", None),
        ({"x-dead-letter-routing-key": "a"}, {"dead-letter-routing-key": "p"}, "key", "a"),
        ({"x-message-ttl": 5}, {"message-ttl": 3}, "ttl_ms", 3),
        ({"x-message-ttl": 3}, {"message-ttl": 5}, "ttl_ms", 3),
        ({"x-message-ttl": 0}, {"message-ttl": 5}, "ttl_ms", 0),
        ({"x-max-length": 5}, {"max-length": 0}, "max_length", 0),
        ({"x-max-length-bytes": 5}, {"max-length-bytes": 6}, "max_bytes", 5),
        ({"x-delivery-limit": 5}, {"delivery-limit": -1}, "delivery_limit", 5),
        ({"x-delivery-limit": -1}, {"delivery-limit": 5}, "delivery_limit", 5),
        ({"x-delivery-limit": -2}, {"delivery-limit": -3}, "delivery_limit", -1),
        ({"x-overflow": "reject-publish"}, {"overflow": "drop-head"}, "overflow", "reject-publish"),
        (
            {"x-overflow": "reject-publish", "x-queue-type": "quorum"},
            {"overflow": "drop-head"},
            "overflow",
            "drop-head",
        ),
        (
            {"x-dead-letter-strategy": "at-most-once", "x-dead-letter-exchange": "a"},
            {"dead-letter-strategy": "at-least-once"},
            "at_least_once",
            False,
        ),
    ],
)
def test_dl_2_where_argument_and_policy_both_speak(
    arguments: dict[str, object], policy: dict[str, object], field: str, expected: object
) -> None:
    settings = Settings(arguments, policy)
    found = {
        "exchange": settings.dead_letter_exchange,
        "key": settings.dead_letter_key,
        "ttl_ms": settings.ttl_ms,
        "max_length": settings.max_length,
        "max_bytes": settings.max_bytes,
        "delivery_limit": settings.delivery_limit,
        "overflow": settings.overflow,
        "at_least_once": settings.at_least_once,
    }
    assert found[field] == expected


def test_dl_2_the_empty_name_is_the_default_exchange() -> None:
    rig = pair()
    rig.send("q", 1)
    reject(rig, "q")
    assert rig.holds("dead")[0].place == ("", "dead")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"dead-letter-routing-key": "k"}, "routing_key_but_no_dlx_defined"),
        ({"overflow": "drop-middle"}, "invalid_overflow"),
        ({"dead-letter-exchange": "x", "dead-letter-strategy": "twice"}, "invalid_dlx_strategy"),
        ({"queue-type": "stream", "dead-letter-exchange": "x"}, "x-dead-letter-exchange"),
    ],
)
def test_dl_3_bad_arguments_are_refused(arguments: dict[str, object], text: str) -> None:
    rig = manual()
    with pytest.raises(PreconditionFailed, match=text):
        rig.declare("q", arguments)
    assert "q" not in rig.vhost.queues


def test_dl_3_the_exchange_need_not_exist() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "later"})
    assert "later" not in rig.vhost.exchanges


# -- DL-5: the delivery limit


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_dl_5_a_message_dies_of_one_failure_more_than_the_limit(limit: int) -> None:
    rig = pair(delivery_limit=limit)
    rig.send("q", 1)
    for failed in range(limit):
        taken = reject(rig, "q", outcome=FAILED)[0]
        assert taken.counts == (failed, failed)
        assert rig.ready("q") == [1]
    reject(rig, "q", outcome=FAILED)
    assert rig.ready("q") == []
    letter = rig.holds("dead")[0]
    assert letter.deaths == [("q", "delivery_limit", 1)]
    assert letter.counts == (limit + 1, limit + 1)
    assert (letter.failed, letter.acquired) == (0, 0), "not redelivered in its new queue"


def test_dl_5_what_counts_as_a_failure_and_what_does_not() -> None:
    rig = pair(delivery_limit=0)
    rig.send("q", 1)
    reject(rig, "q", outcome=RETURNED)
    session = rig.session()
    rig.take(session, "q")
    rig.broker.settlement.recover(session)
    rig.take(session, "q")
    rig.broker.clients.close_session(session, lost=False)  # ours: no failure either [FC-19]
    finish(rig)
    assert [(h.number, h.failed, h.acquired) for h in rig.holds("q")] == [(1, 0, 3)]
    session = rig.session()
    rig.take(session, "q")
    rig.broker.clients.close_session(session, lost=True)
    finish(rig)
    assert [h.deaths for h in rig.holds("dead")] == [[("q", "delivery_limit", 1)]]
    assert rig.holds("dead")[0].counts == (1, 4)


def test_dl_5_messages_lost_together_die_each_by_its_own_count() -> None:
    rig = pair(delivery_limit=1)
    rig.send("q", 1, 2, 3, 4)
    reject(rig, "q", 2, FAILED)  # the same message twice: 1 is at its limit, and then dies
    reject(rig, "q", 1, FAILED)
    session = rig.session()
    rig.consume(session, "q", "c")
    finish(rig)
    rig.broker.clients.close_session(session, lost=True)
    finish(rig)
    assert rig.ready("dead") == [1, 2]
    assert [(h.number, h.failed) for h in rig.holds("q")] == [(3, 1), (4, 1)]


def test_dl_5_a_negative_limit_is_none() -> None:
    rig = pair()
    rig.set_policy("q", {"delivery-limit": -1})
    rig.send("q", 1)
    reject(rig, "q", 50, FAILED)
    assert [(h.number, h.failed) for h in rig.holds("q")] == [(1, 50)]


@pytest.mark.parametrize("outcome", [REJECTED, DISCARDED])
def test_dl_5_counts_go_with_the_letter_once_a_queue_shows_them(outcome: int) -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "", "dead-letter-routing-key": "q2"})
    rig.declare("q2", DEAD | {"delivery-limit": 9})
    rig.declare("dead", {"dead-letter-exchange": "", "dead-letter-routing-key": "q2"})
    rig.send("q", 1)
    reject(rig, "q", outcome=outcome)
    assert rig.holds("q2")[0].counts == (0, 0), "q counts nothing"
    reject(rig, "q2", 1, FAILED)
    reject(rig, "q2", outcome=outcome)
    expected = (2 if outcome == REJECTED else 1, 2)
    assert rig.holds("dead")[0].counts == expected
    reject(rig, "dead", outcome=RETURNED)
    reject(rig, "dead", outcome=DISCARDED)
    assert rig.holds("q2")[0].counts == (expected[0], 4), "what has counts goes on counting"


# -- DL-7, DL-8: order and counters


def test_dl_7_letters_leave_in_the_order_of_their_deaths() -> None:
    rig = pair()
    rig.send("q", *range(100))
    session = rig.session()
    for _ in range(100):
        rig.take(session, "q")
    order = [7, 3, 99, 0, 50]
    for number in order:
        rig.broker.settlement.settle(session, number + 1, number + 1, REJECTED)
    rig.broker.settlement.settle(session, 11, 21, REJECTED)
    finish(rig)
    assert rig.ready("dead") == [*order, *range(10, 21)]


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("strategy", ["at_most_once", "at_least_once", "disabled"])
def test_dl_8_deaths_are_counted_by_strategy_and_reason(reason: str, strategy: str) -> None:
    rig = manual()
    rig.declare("dead")
    arguments: dict[str, object] = {}
    if strategy == "at_least_once":
        arguments = {"dead-letter-exchange": "amq.fanout", "dead-letter-strategy": "at-least-once"}
    rig.declare("q", arguments)
    rig.send("q", 1, 2)
    if strategy == "disabled":
        rig.exchange("to dead", "fanout")
        rig.declare("only", {"dead-letter-exchange": "missing"})
        rig.send("only", 1)
        reject(rig, "only")
        assert rig.broker.dead_letters.counts == {("disabled", "rejected"): 1}
        return
    rig.bind("dead", "amq.fanout", "")
    die(rig, "q", reason, "dead")
    counts = {(strategy, reason): 2}
    if strategy == "at_least_once":
        counts[(strategy, "confirmed")] = 2
    assert rig.broker.dead_letters.counts == counts


def test_dl_8_without_a_dead_letter_exchange_the_end_has_the_reason_s_name() -> None:
    rig = manual()
    rig.declare("q", {"delivery-limit": 0})
    rig.send("q", 1)
    rig.send("q", 2)
    rig.send("q", 3, ttl=0)
    reject(rig, "q")
    reject(rig, "q", outcome=FAILED)
    rig.send("q", 4, 5)
    rig.set_policy("q", {"max-length": 1})
    finish(rig)
    assert rig.dropped("q") == {"rejected": 1, "expired": 1, "maxlen": 1, "delivery_limit": 1}
    assert rig.ready("q") == [5]


# -- DL-9 to DL-14: what happens to the message


def test_dl_9_the_death_comes_before_routing_and_the_ttl_is_gone_in_the_target() -> None:
    rig = pair()
    rig.set_policy("dead", {"message-ttl": 100})
    rig.send("q", 1, ttl=10)
    rig.advance(10)
    assert rig.ready("dead") == [1]
    rig.advance(99)
    assert rig.ready("dead") == [1], "only the target's own TTL counts there, from its entry on"
    rig.advance(1)
    assert rig.ready("dead") == []


def test_dl_10_without_an_override_all_keys_of_the_message_lead_it() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "x"})
    for name in ("a", "b", "c"):
        rig.declare(name)
    rig.exchange("x", "direct", ("a", "q"), ("b", "cc"), ("c", "bcc"))
    rig.send("q", 1, cc=("cc",), bcc=("bcc",))
    reject(rig, "q")
    assert [rig.ready(name) for name in ("a", "b", "c")] == [[1], [1], [1]]
    assert rig.holds("c")[0].place == ("x", "q"), "a BCC key leads and is not shown"
    letter = rig.holds("a")[0].annotations
    assert letter is not None
    assert letter.deaths[0].keys == ("q", "cc")
    assert (letter.more_keys, letter.bcc) == (("cc", "bcc"), ("bcc",))


def test_dl_10_an_override_replaces_them_all() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "x", "dead-letter-routing-key": "new"})
    for name in ("a", "b"):
        rig.declare(name)
    rig.exchange("x", "direct", ("a", "new"), ("b", "cc"), ("b", "q"), ("b", "bcc"))
    rig.send("q", 1, cc=("cc",), bcc=("bcc",))
    reject(rig, "q")
    assert (rig.ready("a"), rig.ready("b")) == ([1], [])
    letter = rig.holds("a")[0]
    assert letter.place == ("x", "new")
    assert letter.annotations is not None
    assert letter.annotations.more_keys == ()
    assert letter.annotations.deaths[0].keys == ("q", "cc")


def test_dl_10_an_empty_override_is_one_too() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "x", "dead-letter-routing-key": ""})
    rig.declare("a")
    rig.exchange("x", "direct", ("a", ""))
    rig.send("q", 1)
    reject(rig, "q")
    assert rig.holds("a")[0].place == ("x", "")


def test_dl_11_only_the_expiration_goes_the_bytes_stay() -> None:
    rig = pair()
    rig.send("q", 1, ttl=60_000)
    before = rig.vhost.queues["q"].slices()[0].payload
    reject(rig, "q")
    after = rig.vhost.queues["dead"].slices()[0]
    assert after.payload is before, "a letter is the same bytes"
    assert after.annotations is not None
    assert after.annotations.ttl_ms == -1
    assert after.annotations.deaths[0].ttl_ms == 60_000


def test_dl_12_an_entry_has_what_held_at_its_first_death() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "", "dead-letter-routing-key": "q"})
    rig.send("q", 1, exchange="amq.direct")
    rig.bind("q", "amq.direct", "k")
    rig.send("k", 2, exchange="amq.direct", cc=("c",), bcc=("b",), ttl=9_000)
    rig.advance(5)
    reject(rig, "q")
    rig.advance(7)
    reject(rig, "q")
    letter = rig.holds("q")[0].annotations
    assert letter is not None
    death = letter.deaths[0]
    assert (death.queue, death.reason, death.count) == ("q", "rejected", 2)
    assert (death.exchange, death.keys, death.ttl_ms) == ("amq.direct", ("k", "c"), 9_000)
    assert (death.first_ms, death.last_ms) == (START_MS + 5, START_MS + 12)


def test_dl_13_the_same_key_again_moves_to_the_front_and_another_reason_is_another_entry() -> None:
    rig = manual()
    rig.declare("a")
    rig.declare("b")
    rig.send("a", 1)
    for queue, reason, target in [
        ("a", "rejected", "b"), ("b", "rejected", "a"), ("a", "maxlen", "b"),
        ("b", "rejected", "a"), ("a", "rejected", "b"),
    ]:  # fmt: skip
        die(rig, queue, reason, target)
    assert rig.holds("b")[0].deaths == [
        ("a", "rejected", 2), ("b", "rejected", 2), ("a", "maxlen", 1),
    ]  # fmt: skip


def test_dl_14_the_first_death_stays_and_the_last_follows() -> None:
    rig = manual()
    for name in ("a", "b", "c"):
        rig.declare(name)
    rig.bind("a", "amq.topic", "#")
    rig.send("some.key", 1, exchange="amq.topic")
    die(rig, "a", "expired", "b")
    first = rig.holds("b")[0].annotations
    die(rig, "b", "rejected", "c")
    second = rig.holds("c")[0].annotations
    assert first is not None
    assert second is not None
    assert first.first_death == first.last_death == ("expired", "a", "amq.topic")
    assert second.first_death == ("expired", "a", "amq.topic")
    assert second.last_death == ("rejected", "b", "to b")


@pytest.mark.parametrize("match", ["all-with-x", "any-with-x", "all"])
def test_dl_14_deaths_can_be_matched_and_override_what_a_client_claimed(match: str) -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "amq.headers"})
    rig.declare("right")
    rig.declare("wrong")
    bind = rig.vhost.bind_queue
    owner = rig.connection.id
    where = {"x-match": match, "x-first-death-queue": "q", "x-last-death-reason": "rejected"}
    bind("right", "amq.headers", "", where, owner)
    bind("wrong", "amq.headers", "", {"x-match": match, "x-first-death-queue": "fake"}, owner)
    rig.says[1] = Said(headers={"x-first-death-queue": "fake"})
    rig.send("q", 1)
    reject(rig, "q")
    with_x = match != "all"  # `all` looks at no x- header: nothing is left to ask for
    assert rig.ready("right") == [1]
    assert rig.ready("wrong") == ([] if with_x else [1])


# -- DL-18, DL-20


def test_dl_18_a_history_from_a_client_plays_no_part() -> None:
    rig = pair(message_ttl=5)
    forged = {"count": 9, "queue": "dead", "reason": "expired"}
    rig.says[1] = Said(headers={"x-death": [forged]})
    rig.says[2] = Said(headers={"x-death": "text"})
    rig.send("q", 1, 2)
    rig.advance(5)
    assert [(h.number, h.deaths) for h in rig.holds("dead")] == [
        (1, [("q", "expired", 1)]), (2, [("q", "expired", 1)]),
    ]  # fmt: skip


@pytest.mark.parametrize("change", [{"v": 99}, {"form": 9}, {"surprise": 1}])
def test_dl_20_what_a_newer_version_wrote_is_refused_not_guessed(change: dict[str, int]) -> None:
    rig = pair()
    rig.send("q", 1)
    reject(rig, "q")
    entered = [r for b in rig.log.blocks for r in b if r.kind == records.ENTERED and r.blob]
    assert len(entered) == 1
    entered[0].blob = json.dumps(json.loads(entered[0].blob) | change).encode()
    with pytest.raises(ValueError):
        rig.restart()


# -- DL-D: better than upstream


def test_dl_d4_an_override_that_equals_a_bcc_key_is_kept_in_the_history() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "", "dead-letter-routing-key": "r"})
    rig.declare("r", {"dead-letter-exchange": "", "dead-letter-routing-key": "dead"})
    rig.declare("dead")
    rig.send("q", 1, bcc=("r",))
    drain(rig, "r")  # the BCC copy
    reject(rig, "q")
    reject(rig, "r")
    letter = rig.holds("dead")[0].annotations
    assert letter is not None
    assert [d.keys for d in letter.deaths] == [("r",), ("q",)]


@pytest.mark.parametrize("limit", [0, 2])
def test_dl_d6_a_limit_on_deliveries_of_any_kind(limit: int) -> None:
    rig = pair(acquired_limit=limit)
    rig.send("q", 1)
    reject(rig, "q", limit, RETURNED)
    assert rig.ready("q") == [1]
    reject(rig, "q", outcome=RETURNED)
    letter = rig.holds("dead")[0]
    assert letter.deaths == [("q", "delivery_limit", 1)]
    assert letter.counts == (0, limit + 1)


def test_dl_d7_order_is_the_list_s_where_all_times_are_equal() -> None:
    rig = manual()
    for name in ("a", "b", "c"):
        rig.declare(name)
    rig.send("a", 1)
    die(rig, "a", "rejected", "b")
    die(rig, "b", "expired", "c")
    die(rig, "c", "maxlen", "a")
    die(rig, "a", "expired", "b")
    assert rig.holds("b") == [], "b has it before, and a's rejection is further back than that"
    assert rig.dropped("a") == {"dead_letter_cycle": 1}


def test_a_letter_shares_its_annotations_with_those_that_died_alike() -> None:
    rig = pair()
    rig.send("q", *range(10))
    session = rig.session()
    rig.consume(session, "q", "c")
    finish(rig)
    rig.broker.settlement.settle_up_to(session, 0, REJECTED)
    finish(rig)
    assert len({id(h.annotations) for h in rig.holds("dead")}) == 1
    assert len(rig.vhost.queues["dead"].slices()) == 1, "a run stays a run"


def test_known_annotations_without_a_death_do_not_change_where_a_message_goes() -> None:
    rig = pair()
    rig.send("q", 1, annotations=Annotations(ttl_ms=5))
    rig.send("q", 2)
    reject(rig, "q", 2)
    assert [(h.number, h.place) for h in rig.holds("dead")] == [
        (1, ("", "dead")), (2, ("", "dead")),
    ]  # fmt: skip


def test_bytes_that_cannot_be_read_do_not_stop_later_letters() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "x"})
    rig.declare("t")
    rig.exchange("x", "headers")
    rig.vhost.bind_queue("t", "x", "", {"x-match": "any-with-x", "x-first-death-queue": "q"}, 0)
    rig.says.update({1: Said(priority=1), 2: Said(priority=1)})
    rig.send("q", 1, 2)
    session = rig.session()
    rig.settle_down()
    first, second = rig.take(session, "q"), rig.take(session, "q")
    assert first is not None
    assert second is not None
    payload = session.inflight[0].slice.payload
    raw, payload.raw, position = payload.raw, None, payload.position
    payload.position = 1 << 40
    with pytest.raises(AssertionError):  # what a read error is to the engine
        rig.broker.settlement.settle(session, first[1], first[1], REJECTED)
    payload.raw, payload.position = raw, position
    rig.broker.settlement.settle(session, second[1], second[1], REJECTED)
    assert rig.ready("t") == [2]


def test_dl_8_an_exchange_that_was_declared_anew_in_the_same_millisecond_routes_letters() -> None:
    rig = manual()
    rig.declare("dead")
    rig.exchange("dlx", "fanout", ("dead", ""))
    rig.declare("q", {"dead-letter-exchange": "dlx"})
    rig.send("q", 1, 2)
    reject(rig, "q")
    rig.vhost.delete_exchange("dlx", False)
    rig.exchange("dlx", "fanout", ("dead", ""))
    reject(rig, "q")
    assert [one.number for one in rig.holds("dead")] == [1, 2]
