"""Publish rates by a clock that the test holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tallymark.engine.quotas import MAX_PUBLISH_RATE, Bucket, Quotas


def limited(vhost: int = -1, user: int = -1) -> Quotas:
    quotas = Quotas()
    quotas.limit({"/": {MAX_PUBLISH_RATE: vhost}}, {"ann": {MAX_PUBLISH_RATE: user}})
    return quotas


def test_a_second_s_worth_at_once_and_then_the_rate() -> None:
    quotas = limited(user=10)
    assert quotas.spend("/", "ann", 10, 1000) == 1000
    assert quotas.spend("/", "ann", 1, 1000) == 1100, "one too many rests for one"
    assert quotas.spend("/", "ann", 5, 1100) == 1600
    assert quotas.spend("/", "ann", 0, 1599) == 1600
    assert quotas.spend("/", "ann", 0, 1600) == 1600
    assert quotas.spend("/", "ann", 10, 60_000) == 60_000, "no more than a second is saved up"
    assert quotas.spend("/", "ann", 1, 60_000) == 60_100


def test_the_stricter_limit_counts_and_each_is_of_all_its_publishers() -> None:
    quotas = limited(vhost=100, user=10)
    assert quotas.spend("/", "ann", 15, 0) == 500
    assert quotas.spend("/", "bob", 85, 0) == 0
    assert quotas.spend("/", "bob", 100, 0) == 1000, "what ann published counts for the host"
    assert quotas.spend("other", "ann", 0, 0) == 500, "and a user's in every host"
    assert quotas.spend("other", "bob", 10_000, 0) == 0


def test_without_a_limit_nothing_is_counted_or_kept() -> None:
    quotas = limited()
    assert not quotas.has_rates
    assert quotas.spend("/", "ann", 1 << 40, 5) == 5
    quotas.limit({}, {"ann": {MAX_PUBLISH_RATE: 1}})
    assert quotas.has_rates
    assert quotas.spend("/", "ann", 11, 0) == 10_000
    quotas.limit({}, {})
    assert quotas.spend("/", "ann", 0, 0) == 0
    quotas.limit({}, {"ann": {MAX_PUBLISH_RATE: 1}})
    assert quotas.spend("/", "ann", 1, 0) == 0, "a new limit begins anew"


def test_a_rate_that_is_changed_holds_for_what_is_owed() -> None:
    quotas = limited(user=1)
    assert quotas.spend("/", "ann", 11, 0) == 10_000
    quotas.limit({}, {"ann": {MAX_PUBLISH_RATE: 100}})
    assert quotas.spend("/", "ann", 0, 0) == 100


def test_a_rate_of_nothing() -> None:
    quotas = limited(user=0)
    assert quotas.has_rates
    assert quotas.spend("/", "ann", 0, 0) > 1_000_000


@given(
    rate=st.integers(1, 10_000),
    steps=st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 3_000)), max_size=50),
)
def test_who_waits_when_told_gets_the_rate_and_no_more(
    rate: int, steps: list[tuple[int, int]]
) -> None:
    """In any time: the burst of a second, the rate, and the last run that was read."""
    bucket, now, sent, last = Bucket(rate, 0), 0, 0, 0
    for wait, count in steps:
        now += wait
        if bucket.due(rate, now) > now:
            continue
        assert sent <= rate + rate * now / 1000 + 1, "who was let in had not more than that"
        bucket.spend(rate, count, now)
        sent, last = sent + count, count
    due = bucket.due(rate, now)
    assert sent <= rate + rate * due / 1000 + 1
    assert bucket.due(rate, due) == due, "who comes when told is let in"
    assert due - now <= last * 1000 // rate + 1, "a run costs its own time"
