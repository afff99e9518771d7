"""The history of dead letters: what a death adds, which cycles it forbids, how it is stored."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.engine.deaths import after_death, is_cycle
from tallymark.stored.annotations import (
    NEWEST_FORM,
    REASONS,
    Annotations,
    Death,
    Route,
    death_headers,
    keys_of,
)

FORMS = (1, 2, 3)
START_MS = 1_700_000_000_000


def died(
    old: Annotations | None,
    queue: str,
    reason: str,
    now_ms: int = START_MS,
    *,
    exchange: str = "",
    key: str | None = None,
    published: Route | None = None,
    failed: int = 0,
    acquired: int = 0,
    form: int = NEWEST_FORM,
    compact: bool = True,
    hops: int = -1,
) -> Annotations:
    """One death, the route made as the engine makes it."""
    published = published or Route("", "Q1")
    shown = published.key if old is None or old.route is None else old.route.key
    route = Route(exchange, shown if key is None else key)
    return after_death(
        old, published, queue, reason, exchange, key, now_ms, failed, acquired, form, compact,
        hops, route,
    )  # fmt: skip


def entries(annotations: Annotations) -> list[tuple[object, ...]]:
    """The history as an x-death header tells it [DL-12]."""
    return [
        (
            death.ttl_ms, death.count, death.reason, death.queue, death.first_ms // 1000,
            death.exchange, death.keys,
        )
        for death in annotations.deaths
    ]  # fmt: skip


def counts(annotations: Annotations) -> list[tuple[str, str, int]]:
    return [(death.queue, death.reason, death.count) for death in annotations.deaths]


def facts(annotations: Annotations) -> tuple[object, ...]:
    """Everything in them, comparable."""
    route = annotations.route
    return (
        annotations.ttl_ms, annotations.more_keys, annotations.bcc, annotations.hops,
        None if route is None else (route.exchange, route.key), annotations.since_ms,
        [
            (d.queue, d.reason, d.count, d.exchange, d.keys, d.first_ms, d.last_ms, d.ttl_ms)
            for d in annotations.deaths
        ],
        annotations.first_death, annotations.last_death, annotations.failed,
        annotations.acquired, annotations.form,
    )  # fmt: skip


# -- one death


def test_dl_9_the_death_is_recorded_before_the_message_is_sent_on() -> None:
    """TTL, exchange and keys in the entry are those it had; what it has then are the letter's."""
    published = Annotations(ttl_ms=500, more_keys=("cc",))
    letter = died(published, "q", "rejected", exchange="dlx", key="k", published=Route("ex", "rk"))
    (entry,) = letter.deaths
    assert (entry.exchange, entry.keys, entry.ttl_ms) == ("ex", ("rk", "cc"), 500)
    assert letter.route is not None
    assert (letter.route.exchange, letter.route.key) == ("dlx", "k")
    assert (letter.ttl_ms, letter.more_keys) == (-1, ())


def test_dl_10_without_a_key_of_the_queue_all_keys_stay() -> None:
    published = Annotations(more_keys=("c1", "c2", "b1"), bcc=("b1",))
    letter = died(published, "q", "expired", exchange="dlx", published=Route("ex", "rk"))
    assert keys_of(letter, Route("ex", "rk")) == ["rk", "c1", "c2", "b1"]
    assert letter.bcc == ("b1",)


def test_dl_10_the_key_of_the_queue_is_the_only_one_then() -> None:
    published = Annotations(more_keys=("c1", "b1"), bcc=("b1",))
    letter = died(published, "q", "expired", exchange="dlx", key="k")
    assert keys_of(letter, Route("", "Q1")) == ["k"]
    again = died(letter, "q2", "expired", exchange="dlx2")
    assert keys_of(again, Route("", "Q1")) == ["k"]
    assert again.deaths[0].keys == ("k",)


def test_keys_of_a_message_that_never_died() -> None:
    assert keys_of(None, Route("ex", "rk")) == ["rk"]
    assert keys_of(Annotations(more_keys=("c", "c")), Route("ex", "rk")) == ["rk", "c", "c"]


def test_dl_11_the_ttl_is_gone_after_the_first_death_whatever_its_reason() -> None:
    for reason in REASONS:
        letter = died(Annotations(ttl_ms=9), "q", reason)
        assert letter.ttl_ms == -1
        assert letter.deaths[0].ttl_ms == 9
        other = died(letter, "q2", "expired")
        assert [death.ttl_ms for death in other.deaths] == [-1, 9]


def test_dl_12_an_entry_tells_of_the_first_death_of_its_queue_and_reason() -> None:
    published = Annotations(ttl_ms=7, more_keys=("c1", "b1"), bcc=("b1",))
    letter = died(
        published, "q", "expired", START_MS + 999, exchange="dlx", published=Route("ex", "rk")
    )
    assert entries(letter) == [(7, 1, "expired", "q", START_MS // 1000, "ex", ("rk", "c1"))]
    assert (letter.deaths[0].first_ms, letter.deaths[0].last_ms) == (
        START_MS + 999,
        START_MS + 999,
    )


def test_dl_13_the_same_queue_and_reason_again_moves_its_entry_to_the_front() -> None:
    one = died(Annotations(ttl_ms=7), "q", "expired", START_MS, exchange="dlx", key="k2")
    two = died(one, "q2", "rejected", START_MS + 1000, exchange="", key="k3")
    three = died(two, "q", "expired", START_MS + 2000, exchange="dlx", key="k2")
    assert counts(three) == [("q", "expired", 2), ("q2", "rejected", 1)]
    again = three.deaths[0]
    assert (again.exchange, again.keys, again.ttl_ms) == ("", ("Q1",), 7)
    assert (again.first_ms, again.last_ms) == (START_MS, START_MS + 2000)


def test_dl_13_another_reason_of_the_same_queue_is_another_entry() -> None:
    letter: Annotations | None = None
    for reason in REASONS:
        letter = died(letter, "q", reason)
    assert letter is not None
    assert counts(letter) == [("q", reason, 1) for reason in reversed(REASONS)]


def test_dl_14_the_first_death_stays_and_the_last_is_the_last() -> None:
    one = died(None, "q", "expired", exchange="dlx", published=Route("ex", "rk"))
    assert one.first_death == one.last_death == ("expired", "q", "ex")
    two = died(one, "q2", "maxlen", exchange="", key="q3")
    assert two.first_death == ("expired", "q", "ex")
    assert two.last_death == ("maxlen", "q2", "dlx")
    three = died(two, "q", "expired")
    assert three.first_death == ("expired", "q", "ex")
    assert three.last_death == ("expired", "q", ""), "where it was before this death"
    assert death_headers(three) == {
        "x-first-death-reason": "expired",
        "x-first-death-queue": "q",
        "x-first-death-exchange": "ex",
        "x-last-death-reason": "expired",
        "x-last-death-queue": "q",
        "x-last-death-exchange": "",
    }
    assert death_headers(Annotations(ttl_ms=1)) == {}


def test_dl_5_counts_add_up_from_death_to_death() -> None:
    one = died(None, "q", "delivery_limit", failed=3, acquired=4)
    two = died(one, "q2", "rejected", failed=1, acquired=2)
    assert (one.failed, one.acquired) == (3, 4)
    assert (two.failed, two.acquired) == (4, 6)


def test_what_was_known_is_not_altered_by_a_death() -> None:
    published = Annotations(ttl_ms=1, more_keys=("c",))
    one = died(published, "q", "expired")
    before, stored = facts(one), one.to_bytes()
    died(one, "q", "expired", START_MS + 5000, key="k")
    assert facts(one) == before
    assert one.to_bytes() is stored
    assert facts(published) == facts(Annotations(ttl_ms=1, more_keys=("c",)))


def test_a_letter_is_in_its_queue_since_it_died() -> None:
    assert died(None, "q", "expired", START_MS + 3).since_ms == START_MS + 3


# -- cycles


def history(text: str) -> tuple[Death, ...]:
    """ "q2:e (2), q1:r": newest first."""
    reasons = {"e": "expired", "r": "rejected", "d": "delivery_limit", "m": "maxlen"}
    deaths = []
    for part in text.split(", "):
        entry, _, count = part.partition(" ")
        queue, reason = entry.split(":")
        n = int(count.strip("()")) if count else 1
        deaths.append(Death(queue, reasons[reason], n, "", (queue,), 0, 0))
    return tuple(deaths)


@pytest.mark.parametrize(
    ("past", "target", "forbidden"),
    [
        ("q:e", "q", True),
        ("q2:e, q1:r", "q1", False),
        ("q1:e, q2:e, q1:r", "q2", True),
        ("q2:e, q1:d", "q1", True),
        ("q2:e (2), q1:r (2)", "q1", False),
        ("q3:e, q2:e, q1:r", "q4", False),
        ("q3:e, q2:e, q1:r", "q2", True),
        ("q1:r", "q1", False),
        ("q1:r, q2:e, q1:e", "q2", False),
        # not in the table, but what the rule says
        ("q1:m", "q1", True),
        ("q3:e, q1:e, q1:r", "q1", True),
        ("q3:e, q1:r, q1:e", "q1", False),
    ],
)
def test_dl_15_worked(past: str, target: str, forbidden: bool) -> None:
    assert is_cycle(history(past), target) is forbidden


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(REASONS)), min_size=1, max_size=9),
    st.sampled_from("abcd"),
)
def test_dl_15_the_rule_word_by_word(past: list[tuple[str, str]], target: str) -> None:
    deaths = tuple([Death(queue, reason, 1, "", (), 0, 0) for queue, reason in past])
    queues = [queue for queue, _ in past]
    expected = False
    if target in queues:
        walked = past[: queues.index(target) + 1]
        expected = all(reason != "rejected" for _, reason in walked)
    assert is_cycle(deaths, target) is expected


class Traveller:
    """A message that goes from queue to queue over the default exchange."""

    def __init__(self, at: str, form: int = NEWEST_FORM) -> None:
        self.at = at
        self.form = form
        self.known: Annotations | None = None
        self.now_ms = START_MS

    def dies(self, reason: str, target: str) -> bool:
        """Whether it gets to the target; if not, it is gone [DL-15]."""
        self.now_ms += 1000
        self.known = died(
            self.known, self.at, reason, self.now_ms, key=target,
            published=Route("", self.at), form=self.form,
        )  # fmt: skip
        self.at = target
        return not is_cycle(self.known.deaths, target)


@pytest.mark.parametrize("names", list(permutations(("a", "b", "c"))))
def test_dl_a1_reject_expire_expire_goes_round_whatever_the_queue_names(
    names: tuple[str, str, str],
) -> None:
    start, second, third = names
    message = Traveller(start)
    for round in (1, 2):
        assert message.dies("rejected", second)
        assert message.dies("expired", third)
        assert message.dies("expired", start), f"lost in round {round}"
    assert message.known is not None
    assert counts(message.known) == [
        (third, "expired", 2), (second, "expired", 2), (start, "rejected", 2)
    ]  # fmt: skip


def test_dl_a3_rejected_into_the_same_queue_counts_one_entry() -> None:
    message = Traveller("q")
    for n in (1, 2):
        assert message.dies("rejected", "q")
        assert message.known is not None
        assert counts(message.known) == [("q", "rejected", n)]


def test_dl_a3_a_loop_of_delivery_limit_and_expiry_ends() -> None:
    message = Traveller("q1")
    assert message.dies("delivery_limit", "q2")
    assert not message.dies("expired", "q1")


def test_dl_a3_a_loop_with_a_reject_goes_on_for_ever() -> None:
    message = Traveller("q1")
    for n in range(1, 200):
        assert message.dies("rejected", "q2")
        assert message.dies("expired", "q1")
        assert message.known is not None
        assert counts(message.known) == [("q2", "expired", n), ("q1", "rejected", n)]


def test_dl_a4_the_deaths_of_a_round_trip_through_three_queues() -> None:
    """As in the acceptance case, with the deaths its outcomes cause: Q1 expires, Q2 is refused,
    Q3 expires, twice, and Q1 expires once more."""
    message = Traveller("Q1")
    for _ in range(2):
        assert message.dies("expired", "Q2")
        assert message.dies("rejected", "Q3")
        assert message.dies("expired", "Q1")
    assert message.dies("expired", "Q2")
    known = message.known
    assert known is not None
    assert counts(known) == [("Q1", "expired", 3), ("Q3", "expired", 2), ("Q2", "rejected", 2)]
    assert known.first_death == known.last_death == ("expired", "Q1", "")


def test_dl_16_a_death_keeps_what_amqp_1_0_tells_of_it() -> None:
    """Times in milliseconds, both of them, and the ttl as a number."""
    one = died(Annotations(ttl_ms=10), "q", "expired", START_MS + 1)
    two = died(one, "q", "expired", START_MS + 2)
    for known in (two, Annotations.from_bytes(two.to_bytes())):
        (death,) = known.deaths
        assert (death.ttl_ms, death.first_ms, death.last_ms) == (10, START_MS + 1, START_MS + 2)


def test_dl_a5_keys_of_each_death_on_the_way() -> None:
    published = Annotations(
        ttl_ms=0, more_keys=("cc 1", "cc 2", "bcc 1", "bcc 2"), bcc=("bcc 1", "bcc 2")
    )
    one = died(published, "Q1", "expired", key="Q2")
    two = died(one, "Q2", "expired", key="stream")
    assert [(d.queue, d.keys, d.ttl_ms) for d in two.deaths] == [
        ("Q2", ("Q2",), -1),
        ("Q1", ("Q1", "cc 1", "cc 2"), 0),
    ]


def test_dl_a6_a_bcc_key_routes_the_letter_and_is_never_told() -> None:
    published = Annotations(more_keys=("hidden",), bcc=("hidden",))
    letter = died(published, "Q1", "rejected", exchange="dlx")
    assert keys_of(letter, Route("", "Q1")) == ["Q1", "hidden"]
    again = died(letter, "Q2", "rejected", exchange="dlx")
    assert [death.keys for death in again.deaths] == [("Q1",), ("Q1",)]


def test_dl_d4_a_queue_key_equal_to_a_bcc_key_is_told_all_the_same() -> None:
    published = Annotations(more_keys=("b",), bcc=("b",))
    letter = died(published, "Q1", "rejected", key="b")
    again = died(letter, "b", "rejected", key="c")
    assert again.deaths[0].keys == ("b",)


def test_a_bcc_key_that_cc_names_too_is_told_once() -> None:
    published = Annotations(more_keys=("k", "k"), bcc=("k",))
    assert died(published, "Q1", "rejected").deaths[0].keys == ("Q1", "k")


def test_dl_d7_order_is_that_of_the_list_when_the_clock_goes_back() -> None:
    for form in FORMS:
        one = died(None, "q1", "rejected", START_MS + 9000, form=form, key="q2")
        two = died(one, "q2", "expired", START_MS, key="q3")
        three = died(two, "q3", "expired", START_MS - 5000, key="q1")
        for known in (three, Annotations.from_bytes(three.to_bytes())):
            assert [death.queue for death in known.deaths] == ["q3", "q2", "q1"], form
            assert is_cycle(known.deaths, "q2")
            assert not is_cycle(known.deaths, "q1")


# -- hop-limited queues


def test_dl_d1_every_death_is_an_entry_of_its_own() -> None:
    for form in FORMS:
        known: Annotations | None = None
        for n in range(32):
            known = died(
                known, "q", "expired", START_MS + 1000 * n, form=form, compact=False, hops=31 - n
            )
        assert known is not None
        for one in (known, Annotations.from_bytes(known.to_bytes())):
            assert counts(one) == [("q", "expired", 1)] * 32
            times = [death.first_ms for death in one.deaths]
            assert times == [START_MS + 1000 * n for n in reversed(range(32))]
            assert one.hops == 0


def test_a_compacting_queue_counts_on_the_newest_of_several_entries() -> None:
    one = died(None, "q", "expired", START_MS, compact=False)
    two = died(one, "q", "expired", START_MS + 1000, compact=False)
    three = died(two, "q", "expired", START_MS + 2000)
    assert counts(three) == [("q", "expired", 2), ("q", "expired", 1)]
    assert [death.first_ms for death in three.deaths] == [START_MS + 1000, START_MS]
