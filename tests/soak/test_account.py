"""The account of a soak notices each way in which a message can go wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.account import Notes, breaches, dies
from tests.support.crash_history import Arrival, number_of
from tests.support.pace import Pace

SENT = [number_of(1, sequence, persistent=True) for sequence in range(1, 7)]
CONFIRMED = SENT[:4]


def was_sent(number: int) -> bool:
    return number in SENT


def got(*marks: str) -> list[Arrival]:
    """Messages by their place in SENT; r says redelivered."""
    return [Arrival(SENT[int(mark[0])], mark.endswith("r")) for mark in marks]


@pytest.mark.parametrize(
    "arrivals",
    [
        got("0", "1", "2", "3"),
        got("3", "1r", "0", "2"),  # any order, and flagged the first time
        got("0", "1", "1r", "2", "3", "0r", "0r"),
        got("0", "1", "2", "3", "4", "5"),  # sent, and the confirm was lost
    ],
)
def test_nothing_is_wrong_with_what_a_crash_may_do(arrivals: list[Arrival]) -> None:
    assert breaches("q", CONFIRMED, arrivals, was_sent) == []


def test_a_lost_message_is_named() -> None:
    (said,) = breaches("q", CONFIRMED, got("0", "2", "3"), was_sent)
    assert said == "q: 1 messages were confirmed and never arrived: 1000000000002"


def test_a_message_from_nowhere_is_named() -> None:
    (said,) = breaches("q", CONFIRMED, [*got("0", "1", "2", "3"), Arrival(99, False)], was_sent)
    assert said == "q: 1 messages arrived and were never sent: 63"


def test_a_second_arrival_without_the_flag_is_named() -> None:
    (said,) = breaches("q", CONFIRMED, got("0", "1", "2", "3", "0"), was_sent)
    assert said == "q: 1 messages arrived again without the flag: 1000000000001"


def test_in_a_table_nothing_is_twice() -> None:
    there = got("0", "1", "2", "3", "2")
    (said,) = breaches("table", CONFIRMED, there, was_sent, is_once=True)
    assert said == "table: 1 messages are there twice: 1000000000003"


def test_all_that_is_wrong_is_said_at_once() -> None:
    assert len(breaches("q", CONFIRMED, [*got("0", "0"), Arrival(99, False)], was_sent)) == 3


def test_every_twentieth_message_dies() -> None:
    numbers = [number_of(3, sequence, persistent=True) for sequence in range(1, 101)]
    assert [number & 0xFF for number in numbers if dies(number)] == [20, 40, 60, 80, 100]


def test_notes_are_read_back_while_they_are_written(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "got.txt")
    for arrival in got("0", "1r", "0r"):
        notes.add(*arrival)
    assert notes.read() == got("0", "1r", "0r")
    notes.add(SENT[2])
    assert notes.numbers() == [SENT[0], SENT[1], SENT[0], SENT[2]]
    assert (tmp_path / "got.txt").read_text().splitlines()[1] == f"{SENT[1]} r"
    notes.close()


def test_a_pace_is_kept_whatever_the_turns_take() -> None:
    now = 0.0
    pace = Pace(10, lambda: now)
    taken = 0
    for pause in (0.05, 0.3, 0.01, 0.64):  # a second
        now += pause
        while pace.take():
            taken += 1
    assert taken == 10
    now += 60  # a long pause is not made up for
    assert sum(pace.take() for _ in range(100)) == 10
