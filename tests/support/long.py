"""How long a run may take: `make test` is brief, `make test-long` is not, CI is in between.

    ROUNDS = sized(3, 10, 100)      # in `make test`, in CI, in `make test-long`

    @longer                         # part of all three, in these sizes
    def test_...

    @long                           # too long for `make test`: why, and what finds it there, is
    def test_...                    # said beside it

`long` and `longer` take ci=False for what does not fit CI's frame of twenty minutes either.
"""

from __future__ import annotations

import os
import random
from typing import Final, TypeVar

import pytest

T = TypeVar("T")

BRIEF: Final = ""
CI: Final = "ci"
ALL: Final = "all"
MODES: Final = (BRIEF, CI, ALL)

MODE: Final = os.environ.get("TALLYMARK_LONG", BRIEF)
assert MODE in MODES, f"TALLYMARK_LONG is {MODE!r}, expected one of {MODES}"

long = pytest.mark.long
longer = pytest.mark.longer


def sized(brief: T, ci: T, all: T) -> T:
    """What goes with this run."""
    return {BRIEF: brief, CI: ci, ALL: all}[MODE]


def seeded(number: int) -> int:
    """A seed: this one in `make test` and in CI, another in each run of `make test-long`. What
    fails in front of a change was done by the change."""
    return sized(number, number, random.randrange(1 << 30))


def is_wanted(item: pytest.Item) -> bool:
    """Whether a test is part of this run. A long run has only what `make test` has not, or has
    less of: with Hypothesis there are more examples."""
    if MODE == BRIEF:
        return item.get_closest_marker("long") is None
    marks = [*item.iter_markers("long"), *item.iter_markers("longer")]
    is_more = bool(marks) or getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return is_more and (MODE == ALL or all(mark.kwargs.get("ci", True) for mark in marks))
