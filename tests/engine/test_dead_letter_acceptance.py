"""The acceptance cases of dead lettering, DL-A1 to DL-A18, as far as the engine decides them. What
AMQP 1.0 and streams add is said where it is missing."""

from __future__ import annotations

from itertools import permutations

import pytest

from tallymark.engine.outcomes import DISCARDED, FAILED, REJECTED, RETURNED
from tests.support.engine_rig import START_MS, Rig, Said
from tests.support.engine_steps import drain, finish, manual, reject


def to(key: str, **more: object) -> dict[str, object]:
    """Arguments of a queue whose letters go to another by the default exchange."""
    settings = {name.replace("_", "-"): value for name, value in more.items()}
    return {"dead-letter-exchange": "", "dead-letter-routing-key": key} | settings


@pytest.mark.parametrize("names", list(permutations("abc")))
def test_dl_a1_two_expiries_between_rejects_whatever_the_names(names: tuple[str, ...]) -> None:
    b, a2, a3 = names
    rig = manual()
    rig.declare(b, to(a2))
    rig.declare(a2, to(a3, message_ttl=5))
    rig.declare(a3, to(b, message_ttl=5))
    rig.send(b, 1)
    for count in (1, 2):
        reject(rig, b)
        rig.advance(10)
        assert [h.deaths for h in rig.holds(b)] == [
            [(a3, "expired", count), (a2, "expired", count), (b, "rejected", count)]
        ]


def test_dl_a2_a_queue_that_is_its_own_dead_letter_queue_does_not_loop() -> None:
    rig = manual()
    rig.declare("q", {"message-ttl": 1, "dead-letter-exchange": ""})
    rig.send("q", 1, 2)
    rig.advance(1)
    assert rig.ready("q") == []
    assert rig.dropped("q") == {"dead_letter_cycle": 2}
    assert rig.broker.dead_letters.counts == {("at_most_once", "expired"): 2}


def test_dl_a2_the_same_by_length() -> None:
    rig = manual()
    rig.declare("q", {"max-length": 1, "dead-letter-exchange": ""})
    rig.send("q", 1)
    rig.send("q", 2)
    finish(rig)
    assert rig.ready("q") == [2]
    assert rig.dropped("q") == {"dead_letter_cycle": 1}
    assert rig.broker.dead_letters.counts == {("at_most_once", "maxlen"): 1}


def test_dl_a3_a_client_s_own_loop_is_never_cut() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": ""})
    rig.send("q", 1)
    for count in (1, 2):
        reject(rig, "q", outcome=DISCARDED)
        assert [h.deaths for h in rig.holds("q")] == [[("q", "rejected", count)]]


def test_dl_a3_a_delivery_limit_is_no_client_s_decision() -> None:
    rig = manual()
    rig.declare("q1", to("q2", delivery_limit=0))
    rig.declare("q2", to("q1", message_ttl=5))
    rig.send("q1", 1)
    reject(rig, "q1", outcome=FAILED)
    rig.advance(5)
    assert (rig.ready("q1"), rig.ready("q2")) == ([], [])
    assert rig.dropped("q2") == {"dead_letter_cycle": 1}


def test_dl_a3_a_reject_in_the_loop_lets_it_go_on_for_ever() -> None:
    rig = manual()
    rig.declare("q1", to("q2"))
    rig.declare("q2", to("q1", message_ttl=5))
    rig.send("q1", 1)
    for _ in range(50):
        reject(rig, "q1")
        rig.advance(5)
    assert [h.deaths for h in rig.holds("q1")] == [[("q2", "expired", 50), ("q1", "rejected", 50)]]


def three_queues() -> Rig:
    """Of DL-A4: Q1 -expired-> Q2 -refused-> Q3 -expired-> Q1."""
    rig = manual()
    rig.declare("Q1", to("Q2", message_ttl=20, queue_type="quorum"))
    rig.declare("Q2", to("Q3", queue_type="quorum"))
    rig.declare("Q3", to("Q1", message_ttl=20, queue_type="quorum"))
    return rig


def test_dl_a4_the_third_receipt() -> None:
    """What AMQP 1.0 adds is x-opt-thekey, which a modified outcome sets."""
    rig = three_queues()
    rig.send("Q1", 1)
    rig.advance(20)
    failed = []
    for _ in range(2):
        failed.append(reject(rig, "Q2", outcome=REJECTED)[0].counts[0])
        rig.advance(40)
    third = rig.holds("Q2")[0]
    assert [*failed, third.counts[0]] == [0, 1, 2]
    assert third.deaths == [("Q1", "expired", 3), ("Q3", "expired", 2), ("Q2", "rejected", 2)]
    assert third.annotations is not None
    assert third.annotations.first_death == ("expired", "Q1", "")
    assert third.annotations.last_death == ("expired", "Q1", "")


def test_dl_a5_the_history_on_the_way_to_a_stream() -> None:
    rig = manual()
    rig.declare("Q1", to("Q2"))
    rig.declare("Q2", to("s", message_ttl=2500))
    rig.declare("s")
    cc, bcc = ("cc 1", "cc 2"), ("bcc 1", "bcc 2")
    rig.send("Q1", 1, ttl=0, cc=cc, bcc=bcc)
    finish(rig)
    rig.advance(2499)
    assert rig.ready("s") == []
    rig.advance(1)
    letter = rig.holds("s")[0].annotations
    assert letter is not None
    assert [(d.queue, d.keys, d.ttl_ms) for d in letter.deaths] == [
        ("Q2", ("Q2",), -1), ("Q1", ("Q1", *cc), 0),
    ]  # fmt: skip
    assert letter.first_death == ("expired", "Q1", "")
    assert letter.last_death == ("expired", "Q2", "")


def test_dl_a5_dl_17_into_a_stream_itself() -> None:
    rig = manual()
    rig.declare("q", to("s", message_ttl=5))
    rig.declare("s", {"queue-type": "stream"})
    rig.send("q", 1)
    rig.advance(5)
    assert [h.deaths for h in rig.holds("s")] == [[("q", "expired", 1)]]


def test_dl_a6_a_bcc_key_that_is_the_target() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "amq.direct"})
    rig.declare("t")
    rig.bind("t", "amq.direct", "hidden")
    rig.send("q", 1, bcc=("hidden",))
    reject(rig, "q")
    letter = rig.holds("t")[0]
    assert letter.place == ("amq.direct", "q")
    assert letter.annotations is not None
    assert letter.annotations.deaths[0].keys == ("q",)


def test_dl_a7_an_expiration_of_0_does_not_expire_twice() -> None:
    rig = manual()
    rig.declare("q", to("dlq"))
    rig.declare("dlq", to("q"))
    rig.send("q", 1, ttl=0)
    finish(rig)
    rig.advance(1 << 40)
    letter = rig.holds("dlq")[0].annotations
    assert letter is not None
    assert letter.ttl_ms == -1
    assert [(d.reason, d.ttl_ms) for d in letter.deaths] == [("expired", 0)]


def test_dl_a7_a_queue_s_ttl_is_no_original_expiration() -> None:
    rig = manual()
    rig.declare("q", to("dlq", message_ttl=0))
    rig.declare("dlq")
    rig.send("q", 1)
    finish(rig)
    letter = rig.holds("dlq")[0].annotations
    assert letter is not None
    assert letter.deaths[0].ttl_ms == -1


def test_dl_a8_returned_and_then_refused() -> None:
    rig = manual()
    rig.declare("q", to("dlq"))
    rig.declare("dlq")
    rig.send("q", 1, 2, 3)
    session = rig.session()
    for _ in range(3):
        rig.take(session, "q")
    rig.broker.settlement.settle_up_to(session, 2, RETURNED)
    again = [rig.take(session, "q") for _ in range(2)]
    assert [(got[0].number, got[1]) for got in again if got] == [(1, 4), (2, 5)]
    rig.broker.settlement.settle_up_to(session, 5, DISCARDED)
    finish(rig)
    assert rig.ready("dlq") == [3, 1, 2]


def test_dl_a8_100_rejects_and_a_drop_of_1000_keep_order() -> None:
    rig = manual()
    rig.declare("q", to("dlq"))
    rig.declare("dlq")
    for start in range(0, 1100, 50):
        rig.send("q", *range(start, start + 50))
    reject(rig, "q", 100)
    rig.set_policy("q", {"max-length": 0})
    finish(rig)
    assert rig.ready("dlq") == list(range(1100))
    assert [h.deaths[0][1] for h in rig.holds("dlq")] == ["rejected"] * 100 + ["maxlen"] * 1000


def test_dl_a9_given_back_and_then_refused_dies_once() -> None:
    rig = manual()
    rig.declare("q", to("dlq"))
    rig.declare("dlq")
    rig.send("q", 1)
    reject(rig, "q", outcome=FAILED)
    reject(rig, "q", outcome=REJECTED)
    assert [h.deaths for h in rig.holds("dlq")] == [[("q", "rejected", 1)]]


@pytest.mark.parametrize(
    "claimed",
    [
        [{"queue": "q", "reason": "expired", "count": 1}],
        [{"queue": "dlq", "reason": "expired", "count": 1}],
        "text",
        [],
    ],
)
def test_dl_a10_a_letter_that_a_client_publishes_again_starts_anew(claimed: object) -> None:
    rig = manual()
    rig.declare("q", to("dlq", message_ttl=1))
    rig.declare("dlq")
    rig.send("q", 1)
    rig.advance(1)
    drain(rig, "dlq")
    rig.says[2] = Said(headers={"x-death": claimed})
    rig.send("q", 2)
    rig.advance(1)
    assert [h.deaths for h in rig.holds("dlq")] == [[("q", "expired", 1)]]


def test_dl_a11_a_policy_after_the_declaration_and_an_argument_against_one() -> None:
    rig = manual()
    rig.declare("plain")
    rig.declare("told", to("a"))
    rig.declare("a")
    rig.declare("p")
    policy: dict[str, object] = {"dead-letter-exchange": "", "dead-letter-routing-key": "p"}
    rig.send("plain", 1)
    reject(rig, "plain")
    for name in ("plain", "told"):
        rig.set_policy(name, policy)
    rig.send("plain", 2)
    rig.send("told", 3)
    reject(rig, "plain")
    reject(rig, "told")
    assert (rig.ready("p"), rig.ready("a")) == ([2], [3])
    assert rig.dropped("plain") == {"rejected": 1}


def test_dl_a11_a_missing_exchange_that_comes_later() -> None:
    rig = manual()
    rig.declare("q", {"dead-letter-exchange": "later"})
    rig.declare("t")
    rig.send("q", 1, 2)
    reject(rig, "q")
    assert rig.broker.dead_letters.counts == {("disabled", "rejected"): 1}
    rig.exchange("later", "fanout", ("t", ""))
    reject(rig, "q")
    assert rig.ready("t") == [2]


def test_dl_a12_a_headers_exchange_that_asks_for_the_first_death() -> None:
    rig = manual()
    for name in ("Q1", "Q2"):
        rig.declare(name, {"dead-letter-exchange": "h"})
    rig.declare("t")
    rig.exchange("h", "headers")
    where: dict[str, object] = {
        "x-match": "all-with-x", "x-first-death-reason": "expired", "x-first-death-queue": "Q1",
    }  # fmt: skip
    rig.vhost.bind_queue("t", "h", "", where, rig.connection.id)
    rig.send("Q1", 1, ttl=5)
    rig.send("Q2", 2, ttl=5)
    rig.advance(5)
    rig.send("Q1", 3)
    reject(rig, "Q1")
    assert rig.ready("t") == [1]
    assert rig.dropped("Q1") == rig.dropped("Q2") == {"dead_letter_unroutable": 1}


def test_dl_a15_histories_of_all_three_forms_go_on_alike() -> None:
    rig = manual()
    rig.declare("Q1", to("Q2", message_ttl=20))
    rig.declare("Q2", to("Q1"))
    for form in (1, 2, 3):
        rig.broker.dead_letters.death_form = form
        rig.send("Q1", form)
        rig.advance(20)
    for _ in range(2):
        rig = rig.restart()  # so that each was read back from its form
        reject(rig, "Q2", 3)
        rig.advance(20)
    rig = rig.restart()
    letters = rig.holds("Q2")
    assert [h.number for h in letters] == [1, 2, 3]
    assert [h.deaths for h in letters] == [[("Q1", "expired", 3), ("Q2", "rejected", 2)]] * 3
    known = [h.annotations for h in letters if h.annotations is not None]
    assert [a.form for a in known] == [1, 2, 3]
    assert [a.last_death for a in known] == [("expired", "Q1", "")] * 3
    assert [a.first_death for a in known] == [("expired", "Q1", "")] * 3


def test_dl_a16_dl_19_a_history_without_a_last_death_gets_one_with_the_next() -> None:
    rig = manual()
    rig.declare("a", to("b"))
    rig.declare("b", to("a"))
    rig.broker.dead_letters.death_form = 1
    rig.send("a", 1)
    reject(rig, "a")
    rig = rig.restart()
    rig.broker.dead_letters.death_form = 3
    first = rig.holds("b")[0].annotations
    assert first is not None
    assert first.last_death is None
    reject(rig, "b")
    rig = rig.restart()
    second = rig.holds("a")[0].annotations
    assert second is not None
    assert (second.form, second.last_death) == (1, ("rejected", "b", ""))
    assert second.first_death == ("rejected", "a", "")


def test_dl_a17_dl_16_a_ttl_of_10_in_the_death_and_both_its_times() -> None:
    rig = manual()
    rig.declare("q", to("s"))
    rig.declare("s")
    rig.send("q", 1, ttl=10)
    rig.advance(10)
    letter = rig.holds("s")[0].annotations
    assert letter is not None
    [death] = letter.deaths
    assert death.ttl_ms == 10
    assert death.first_ms == death.last_ms == START_MS + 10


def test_dl_a18_annotations_that_a_modified_outcome_sets() -> None:
    rig = manual()
    rig.declare("a", to("b"))
    rig.declare("b", to("c"))
    rig.declare("c")
    rig.send("a", 1)
    session = rig.session()
    for name, notes in (
        ("a", (("x-opt-list", b"\x45"), ("x-opt-thekey", b"\x41"))),
        ("b", (("x-opt-map", b"\xc1\x01\x00"), ("x-opt-thekey", b"\x42"))),
    ):
        taken = rig.take(session, name)
        assert taken is not None
        rig.broker.settlement.settle(session, taken[1], taken[1], REJECTED, notes)
        rig.settle_down()
    for now in (rig, rig.restart()):
        [letter] = now.holds("c")
        assert letter.annotations is not None
        assert letter.annotations.notes == (
            ("x-opt-list", b"\x45"), ("x-opt-map", b"\xc1\x01\x00"), ("x-opt-thekey", b"\x42"),
        )  # fmt: skip
