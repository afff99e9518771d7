"""Settlements of one turn of the event loop, as ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, final

from tallymark.client.outcomes import Outcome

if TYPE_CHECKING:
    from tallymark.client.consumer import Consumer
    from tallymark.client.work import Work


class Run(NamedTuple):
    """Consecutive tags that were settled alike."""

    first: int
    last: int
    outcome: Outcome
    second: Consumer | None
    """Consumer whose link settles them in two steps; None: one step."""
    work: Work | None
    """The transaction that they are settled in."""

    @property
    def tags(self) -> range:
        return range(self.first, self.last + 1)


@final
class Settlements:
    """Joined into ranges: order does not matter to a broker, which puts back what is released in
    its old place."""

    __slots__ = ("_first", "_last", "_outcome", "_runs", "_second", "_work")

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._first = 0
        self._last = -1
        self._outcome: Outcome | None = None
        self._second: Consumer | None = None
        self._work: Work | None = None

    def add(self, tag: int, outcome: Outcome, second: Consumer | None, work: Work | None) -> bool:
        """Returns whether it is the first."""
        if (
            tag == self._last + 1
            and outcome is self._outcome
            and second is self._second
            and work is self._work
        ):
            self._last = tag
            return False
        was_empty = self._outcome is None
        if self._outcome is not None:
            self._runs.append(Run(self._first, self._last, self._outcome, self._second, self._work))
        self._first = self._last = tag
        self._outcome = outcome
        self._second = second
        self._work = work
        return was_empty

    def take(self) -> list[Run]:
        """Return the settlements since the last call as runs of contiguous tags, ascending, and
        forget them."""
        if self._outcome is None:
            return []
        runs = self._runs
        runs.append(Run(self._first, self._last, self._outcome, self._second, self._work))
        self._runs = []
        self._outcome = self._second = self._work = None
        self._last = -1
        if len(runs) == 1:
            return runs
        runs.sort(key=_first_of)
        joined = [runs[0]]
        for run in runs[1:]:
            before = joined[-1]
            if run.first == before.last + 1 and run[2:] == before[2:]:
                joined[-1] = before._replace(last=run.last)
            else:
                joined.append(run)
        return joined


def _first_of(run: Run) -> int:
    return run.first


def ranges_of(tags: list[int]) -> list[tuple[int, int]]:
    """Ranges of consecutive tags, ascending."""
    ranges: list[tuple[int, int]] = []
    for tag in sorted(tags):
        if ranges and ranges[-1][1] == tag - 1:
            ranges[-1] = (ranges[-1][0], tag)
        else:
            ranges.append((tag, tag))
    return ranges
