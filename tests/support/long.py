"""How long a run may take: `make test` is brief, `make test-long` is not, CI is in between.

    ROUNDS = sized(3, 10, 100)      # in `make test`, in CI, in `make test-long`

    @longer                         # part of all three, in these sizes
    def test_...

    @long                           # too long for `make test`: why, and what finds it there, is
    def test_...                    # said beside it

    tests/dear.txt                  # the names of others that are long, since they take most CPU

`long` and `longer` take ci=False for what does not fit CI's frame of twenty minutes either. CI runs
`make test LONG=rest`, which leaves out what the run after it has with more rounds or examples:
those of `make test` are among them. `longer` takes others=True where they are not.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Final, TypeVar

import pytest

T = TypeVar("T")

BRIEF: Final = ""
REST: Final = "rest"
CI: Final = "ci"
ALL: Final = "all"
MODES: Final = (BRIEF, REST, CI, ALL)

DEAR: Final = frozenset(
    line
    for line in Path(__file__).parents[1].joinpath("dear.txt").read_text().splitlines()
    if line and not line.startswith("#")
)
"""Names of tests, without their parameters, that `make test` leaves to CI."""

MODE: Final = os.environ.get("TALLYMARK_LONG", BRIEF)
assert MODE in MODES, f"TALLYMARK_LONG is {MODE!r}, expected one of {MODES}"

long = pytest.mark.long
longer = pytest.mark.longer


def sized(brief: T, ci: T, all: T) -> T:
    """What goes with this run."""
    return {BRIEF: brief, REST: brief, CI: ci, ALL: all}[MODE]


def seeded(number: int) -> int:
    """A seed: this one in `make test` and in CI, another in each run of `make test-long`. What
    fails in front of a change was done by the change."""
    return sized(number, number, random.randrange(1 << 30))


def is_wanted(item: pytest.Item, mode: str = MODE) -> bool:
    """Whether a test is part of this run. A long run has only what `make test` has not, or has
    less of: with Hypothesis there are more examples. CI's first run has the rest of `make test`."""
    if mode == BRIEF:
        return item.get_closest_marker("long") is None
    if mode == REST:
        has_others = any(mark.kwargs.get("others") for mark in item.iter_markers("longer"))
        return is_wanted(item, BRIEF) and (has_others or not is_wanted(item, CI))
    marks = [*item.iter_markers("long"), *item.iter_markers("longer")]
    is_more = bool(marks) or getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return is_more and (mode == ALL or all(mark.kwargs.get("ci", True) for mark in marks))
