"""Random interleavings of everything that may happen to a message in flight [NQ-A7, NQ-A8, LC-2].

FIN, REQ now and later, TOUCH, time-out, disconnect, empty, pause and restart, over a few clients
and messages, against race_model.py: every message ends in exactly one place, counters return to
zero, TOUCH either fails or wins. A failure tells its seed and its history: Race(seed).play(STEPS).
"""

from __future__ import annotations

import pytest

from tests.engine.race_model import Race
from tests.support.long import longer, sized

INTERLEAVINGS = sized(2_000, 10_000, 1_000_000)
PARTS = 10
STEPS = 14


@longer
@pytest.mark.parametrize("part", range(PARTS))
def test_nq_a7_a8_every_message_ends_in_exactly_one_place(part: int) -> None:
    many = INTERLEAVINGS // PARTS
    for seed in range(part * many, (part + 1) * many):
        race = Race(seed)
        try:
            race.play(STEPS)
        except AssertionError as error:
            told = "\n".join(race.history)
            raise AssertionError(f"seed {seed}: {error}\n{told}") from error


@longer
@pytest.mark.parametrize("seed", range(20))
def test_nq_a7_a8_long_plays(seed: int) -> None:
    race = Race(INTERLEAVINGS + seed)
    race.play(300)
    assert len(race.history) > 100
