"""Numbers and delivery-ids, and deliveries in flight: against models that keep every one apart."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.wire.amqp10.connection import Connection
from tallymark.wire.amqp10.in_flight import InFlight
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.numbers import REACH, STRETCHES_MAX, Numbers
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.session import Session

WRAP = 2**32

STARTS = st.sampled_from([0, 1, 2**31 - 3, 2**31, WRAP - 20, WRAP - 1])
STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "skip", "leave", "drop"]), st.integers(1, 6)), max_size=40
)


@given(STARTS, STEPS, st.data())
@settings(max_examples=300)
def test_numbers_behave_like_a_list_of_each(
    start: int, steps: list[tuple[str, int]], data: st.DataObject
) -> None:
    numbers = Numbers()
    numbers.start(start)
    waiting: list[int] = []  # plain, unwrapped
    left: list[int] = []
    position = start
    for step, count in steps:
        if step == "take" or step == "skip":
            assert numbers.take(count) == position % WRAP
            if step == "take":
                waiting += range(position, position + count)
            else:
                numbers.withdraw(position % WRAP, count)
            position += count
        elif step == "leave":
            left += waiting[:count]
            del waiting[:count]
        elif waiting:
            at = data.draw(st.integers(0, len(waiting) - 1))
            end = at + 1
            while end < min(at + count, len(waiting)) and waiting[end] == waiting[end - 1] + 1:
                end += 1
            numbers.withdraw(waiting[at] % WRAP, end - at)
            del waiting[at:end]
        assert numbers.next == position % WRAP
        assert numbers.next_id() == (start + len(left) + len(waiting)) % WRAP
    everything = left + waiting
    for i, number in enumerate(everything):
        assert numbers.id_of(number % WRAP) == (start + i) % WRAP
    if everything:
        low = data.draw(st.integers(0, len(everything) - 1))
        high = data.draw(st.integers(low, len(everything) - 1))
        named = [
            (first + i) % WRAP
            for first, last in numbers.ranges_of((start + low) % WRAP, (start + high) % WRAP)
            for i in range((last - first) % WRAP + 1)
        ]
        assert named == [number % WRAP for number in everything[low : high + 1]]
    if position > start:
        first = data.draw(st.integers(start, position - 1))
        last = data.draw(st.integers(first, position - 1))
        inside = [i for i, number in enumerate(everything) if first <= number <= last]
        expected = ((start + inside[0]) % WRAP, (start + inside[-1]) % WRAP) if inside else None
        assert numbers.ids_of(first % WRAP, last % WRAP) == expected


def test_numbers_go_round_many_times() -> None:
    numbers = Numbers()
    number = 0
    for _ in range(40):
        assert numbers.take(0x3000_0000) == number % WRAP
        number += 0x3000_0000
        numbers.take(5)
        numbers.withdraw(number % WRAP, 5)
        number += 5
    assert numbers.next == number % WRAP
    assert numbers.next_id() == (number - 200) % WRAP
    assert numbers.id_of((number - 6) % WRAP) == (number - 201) % WRAP
    behind = (numbers.next_id() - numbers.floor_id()) % WRAP
    assert 0 < behind <= REACH


def test_only_so_many_stretches_are_remembered() -> None:
    numbers = Numbers()
    for _ in range(3 * STRETCHES_MAX):
        numbers.take(2)
        numbers.withdraw((numbers.next - 2) % WRAP, 1)
    total = 3 * STRETCHES_MAX
    assert numbers.next_id() == total
    assert numbers.id_of(2 * total - 1) == total - 1
    assert 0 < total - numbers.floor_id() <= STRETCHES_MAX + 1
    ranges = numbers.ranges_of(numbers.floor_id(), total - 1)
    assert len(ranges) == total - numbers.floor_id()
    assert ranges[-1] == (2 * total - 1, 2 * total - 1)


@given(
    STARTS,
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5), st.integers(0, 2)), max_size=12),
    st.lists(st.tuples(st.integers(0, 45), st.integers(0, 12)), max_size=12),
)
@settings(max_examples=300)
def test_what_is_in_flight_is_answered_once(
    start: int, added: list[tuple[int, int, int]], answers: list[tuple[int, int]]
) -> None:
    session = Session(Connection(Limits(), is_server=True), 0)
    links = [ReceiverLink(session, session.in_flight, f"link {i}") for i in range(3)]
    in_flight = InFlight()
    model: dict[int, Any] = {}
    for first, count, which in added:
        fresh = [i for i in range(first, first + count + 1) if i not in model]
        if fresh != list(range(first, first + count + 1)):
            continue
        in_flight.add((start + first) % WRAP, (start + first + count) % WRAP, links[which])
        model.update(dict.fromkeys(fresh, links[which]))
    for first, count in answers:
        pieces = in_flight.take((start + first) % WRAP, (start + first + count) % WRAP)
        found = [
            ((piece.first + i) % WRAP, piece.link)
            for piece in pieces
            for i in range((piece.last - piece.first) % WRAP + 1)
        ]
        assert found == [
            ((start + i) % WRAP, model.pop(i, None)) for i in range(first, first + count + 1)
        ]
    for link in links:
        held = sorted((start + i) % WRAP for i, owner in model.items() if owner is link)
        ranges = in_flight.of(link)
        named = [
            (first + i) % WRAP for first, last in ranges for i in range((last - first) % WRAP + 1)
        ]
        assert sorted(named) == held
    in_flight.remove(links[0])
    assert in_flight.of(links[0]) == []
