"""Choosing: seeds that CI plays each time, cheap ones that reach every state."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from tallymark.simulation.states import STATES

COUNT: Final = 200
"""Seeds of a list, and those that are played beside it."""
EACH: Final = 3
"""Seeds for each state, if so many reach it."""


def chosen(
    played: Mapping[int, tuple[int, Set[str]]], known: Set[int], count: int = COUNT
) -> list[int]:
    """Return the seeds with which those that are known become so many: the cheapest ones, after
    those that each state needs. played: steps and states of each; known: seeds that are played
    anyway, which count for the states and are left out."""
    cheapest = sorted(played, key=lambda seed: (played[seed][0], seed))
    kept: set[int] = set()
    for state in STATES:
        reach = [seed for seed in cheapest if state in played[seed][1]]
        lacking = EACH - sum(seed in known or seed in kept for seed in reach)
        others = [seed for seed in reach if seed not in known and seed not in kept]
        kept.update(others[: max(0, lacking)])
    others = [seed for seed in cheapest if seed not in known and seed not in kept]
    kept.update(others[: max(0, count - len(known) - len(kept))])
    return sorted(kept)
