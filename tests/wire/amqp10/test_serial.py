"""Serial numbers modulo 2^32 [amqp-1.0 §2.8.10, RFC 1982; FC-1]."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.amqp10.serial import MASK, MODULUS, add, count, diff, less, walk

numbers = st.integers(0, MASK)
near = st.integers(-(2**31), 2**31 - 1)


@pytest.mark.parametrize(
    ("first", "last", "stretches"),
    [
        (5, 5, [(5, 5)]),
        (5, 9, [(5, 9)]),
        (0, 0, [(0, 0)]),
        (4294967294, 1, [(4294967294, 4294967295), (0, 1)]),
        (4294967295, 4294967295, [(4294967295, 4294967295)]),
        (4294967290, 4294967295, [(4294967290, 4294967295)]),
        (9, 5, []),
        (1, 4294967294, []),
        (0, 2**31 - 1, [(0, 2**31 - 1)]),
        (0, 2**31, []),
    ],
)
def test_fc_a10_a_range_is_walked_over_the_wrap(
    first: int, last: int, stretches: list[tuple[int, int]]
) -> None:
    assert walk(first, last) == stretches
    assert count(first, last) == sum(high - low + 1 for low, high in stretches)


def test_fc_1_order_is_serial() -> None:
    assert add(4294967295, 3) == 2
    assert add(2, -3) == 4294967295
    assert diff(2, 4294967295) == 3
    assert diff(4294967295, 2) == -3
    assert less(4294967295, 0)
    assert not less(0, 4294967295)
    assert not less(7, 7)
    assert diff(2**31, 0) == diff(0, 2**31) == -(2**31)


@given(numbers, near)
def test_a_distance_leads_back(number: int, distance: int) -> None:
    there = add(number, distance)
    assert 0 <= there <= MASK
    assert diff(there, number) == distance
    assert less(number, there) == (distance > 0 or distance == -(2**31))
    assert there == (number + distance) % MODULUS


@given(numbers, st.integers(0, 300))
def test_walking_meets_every_number_once(first: int, more: int) -> None:
    last = add(first, more)
    met = [n for low, high in walk(first, last) for n in range(low, high + 1)]
    assert met == [add(first, i) for i in range(more + 1)]
    assert count(first, last) == more + 1
