"""Windowed quantiles against exact ones, and what leaves the window."""

from __future__ import annotations

import random
from math import ceil

import pytest

from tallymark.server.quantiles import EXACT, Window, bucket_of, merged, quantiles, value_of


def exact(values: list[int], quantile: float) -> int:
    return sorted(values)[max(0, ceil(quantile * len(values)) - 1)]


def test_small_values_are_exact_and_buckets_follow_one_another() -> None:
    assert [bucket_of(value) for value in range(EXACT)] == list(range(EXACT))
    assert [value_of(bucket) for bucket in range(EXACT)] == list(range(EXACT))
    before = -1
    for value in range(20_000):
        bucket = bucket_of(value)
        assert bucket - before in (0, 1), value
        before = bucket


@pytest.mark.parametrize("value", [EXACT, 129, 1000, 65_535, 65_536, 3_600_000, 1 << 40])
def test_a_bucket_stands_for_its_values_within_one_percent(value: int) -> None:
    assert abs(value_of(bucket_of(value)) - value) <= value * 0.008


def test_a_time_before_the_publish_counts_as_none() -> None:
    assert bucket_of(-5) == 0


@pytest.mark.parametrize("seed", range(5))
def test_quantiles_are_within_one_percent_of_the_exact_ones(seed: int) -> None:
    choose = random.Random(seed)
    values = [int(choose.lognormvariate(5, 2)) for _ in range(3000)]
    window = Window(60_000, 0)
    for value in values:
        window.add(value, 10)
    wanted = (1.0, 0.99, 0.95, 0.5, 0.01)
    for quantile, found in zip(wanted, quantiles(window.counts(10), wanted), strict=True):
        expected = exact(values, quantile)
        assert abs(found - expected) <= max(0.008 * expected, 0), (quantile, found, expected)


def test_several_events_at_once_count_as_so_many() -> None:
    one, many = Window(1000, 0), Window(1000, 0)
    many.add(7, 5, 9)
    many.add(100, 5)
    for _ in range(9):
        one.add(7, 5)
    one.add(100, 5)
    assert one.counts(5) == many.counts(5)
    assert quantiles(many.counts(5), (0.9, 0.91)) == [7.0, 100.0]


def test_half_of_the_window_is_dropped_at_a_time() -> None:
    window = Window(1000, 0)
    window.add(1, 499)
    window.add(2, 500)
    assert window.counts(999) == {1: 1, 2: 1}
    assert window.counts(1000) == {2: 1}
    window.add(3, 1400)
    assert window.counts(1499) == {2: 1, 3: 1}
    assert window.counts(1500) == {3: 1}
    assert window.counts(2000) == {}


def test_after_a_long_rest_nothing_of_before_is_left() -> None:
    window = Window(1000, 0)
    window.add(1, 0)
    window.add(2, 1_000_000)
    assert window.counts(1_000_001) == {2: 1}
    assert window.is_empty(2_000_000)


def test_windows_add_up_and_no_events_have_quantiles_of_nothing() -> None:
    assert merged(({1: 2, 5: 1}, {5: 3}, {})) == {1: 2, 5: 4}
    assert quantiles({}, (0.5, 1.0)) == [0.0, 0.0]


def test_a_rank_is_not_missed_by_the_last_bit() -> None:
    counts = dict.fromkeys(range(1, 101), 1)
    assert quantiles(counts, (0.07, 0.29, 0.57, 1.0)) == [7.0, 29.0, 57.0, 100.0]
