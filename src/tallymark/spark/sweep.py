"""Every sequence of every queue looked at, in one sweep over the borders of all ranges.

It must have entered once, and then either have ended once or still be there. What was settled by a
reader must have been taken. A dead letter is followed from its source to its targets and back: what
was dead-lettered must have entered some queue as a letter that names it, and what a letter names
must have died.

Functions on arrays: ranges become stretches in which nothing changes, stretches are judged and
summed up. All ranges of a queue are needed at once, and no other queue's: in Spark each queue is a
task's, without it some queues are done at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tallymark.spark.ranges import (
    DROPPED,
    ENTERED,
    LETTER,
    RANGE,
    TRANSFERRED,
    WHATS,
    Ranges,
)

if TYPE_CHECKING:
    from tallymark.spark.gather import Ints

AT_ONCE: Final = 1_000_000
"""Ranges of whole queues that are swept together, about."""
BEFORE: Final = -1
FAULTS: Final = (
    "named by a letter, but never entered",
    "ended or is there, but never entered",
    "ended before the account that this one goes on from, and again",
    "entered more than once",
    "settled more than once",
    "dropped more than once",
    "dead-lettered more than once",
    "settled and dropped",
    "settled and dead-lettered",
    "dropped and dead-lettered",
    "settled and dropped and dead-lettered",
    "ended, and yet still there",
    "there more than once",
    "neither ended nor there: lost",
    "settled, though nobody had taken it",
    "dead-lettered, but no queue has a letter of it",
    "named by a letter, but it never died",
)
"""Faults of a stretch by number, from 1; the first that holds counts."""

STRETCH: Final = np.dtype(
    [("queue", "i8"), ("low", "i8"), ("high", "i8"), ("hour", "i4"), ("reason", "u1"),
     *((name, "i4") for name in WHATS)]
)  # fmt: skip
"""Sequences low to high - 1 of a queue, to all of which the same happened, and how often. hour: in
which they entered, -1 unless that was once. reason: why they were dropped, 0 unless it was once."""
BALANCE: Final = np.dtype(
    [("queue", "i8"), ("hour", "i8"), ("reason", "i8"), ("open", "i8"), ("entered", "i8"),
     ("live", "i8"), ("settled", "i8"), ("dead_lettered", "i8"), ("dropped", "i8"),
     ("faults", "i8")]
)  # fmt: skip
"""Sums of what became of the messages that entered a queue in an hour, and how many are at fault.
open: 1 where they are still there, so that more may come."""
SUMMED: Final = ("entered", "live", "settled", "dead_lettered", "dropped")
QUEUE: Final = np.dtype(
    [("queue", "i8"), ("begin", "i8"), ("end", "i8"), ("top", "i8"), ("live_before", "i8")]
)
"""A queue as far as the ledger goes: the first sequence that entered in it (-1: none), the ends of
all that is spoken of and of what entered; and how many are there of those that entered before."""
FAULT: Final = np.dtype(
    [("queue", "i8"), ("low", "i8"), ("high", "i8"), ("fault", "i8"), ("open", "i8")]
)
OWN: Final = tuple(name for name in WHATS if name not in ("letter", "taken", "read"))
ARRAYS: Final = ("balances", "queues", "faults", "open")
MOST_FAULTS: Final = 100
"""Faults that are named; how many messages are at fault is in the balances."""
Pairs = dict[tuple[int, int], int]
Array = NDArray[Any]


def none_of(dtype: np.dtype[Any]) -> Array:
    return np.empty(0, dtype)


@dataclass(slots=True)
class Judged:
    """The account of some queues, in numbers."""

    balances: Array = field(default_factory=lambda: none_of(BALANCE))
    queues: Array = field(default_factory=lambda: none_of(QUEUE))
    faults: Array = field(default_factory=lambda: none_of(FAULT))
    """Faults in order, MOST_FAULTS of them at most."""
    open: Array = field(default_factory=lambda: none_of(STRETCH))
    """Stretches of what is still there."""
    dropped: Pairs = field(default_factory=dict)
    """Messages by queue and reason."""
    letters: Pairs = field(default_factory=dict)
    """Messages by source and target."""

    @classmethod
    def together(cls, parts: Sequence[Judged]) -> Judged:
        """Return the account of the queues of all parts; no queue is in two of them."""
        if not parts:
            return cls()
        out = cls()
        for name in ARRAYS:
            setattr(out, name, np.concatenate([getattr(part, name) for part in parts]))
        for part in parts:
            out.dropped.update(part.dropped)
            out.letters.update(part.letters)
        out.faults = out.faults[np.lexsort((out.faults["low"], out.faults["queue"]))][:MOST_FAULTS]
        return out


@dataclass(frozen=True, slots=True)
class Before:
    """Knowledge of a queue from an earlier account, and from its definition."""

    begin: int = -1
    end: int = 0
    top: int = 0
    is_sparse: bool = False
    """The ledger may lack deliveries of this queue: its policy says so."""


NOTHING: Final = Before()


def judge(ranges: Ranges, before: Mapping[int, Before] | None = None) -> Judged:
    """Sweep over all ranges, judge each stretch, and sum up. before: by queue."""
    known = before or {}
    return Judged.together([_judge(some, known) for some in _of_whole_queues(ranges)])


def _of_whole_queues(ranges: Ranges) -> Iterator[Ranges]:
    if not (ranges["queue"][1:] >= ranges["queue"][:-1]).all():
        ranges = ranges[np.argsort(ranges["queue"], kind="stable")]
    at = 0
    while at < len(ranges):
        last = ranges["queue"][min(at + AT_ONCE, len(ranges)) - 1]
        end = int(np.searchsorted(ranges["queue"], last, "right"))
        yield ranges[at:end]
        at = end


def _judge(ranges: Ranges, known: Mapping[int, Before]) -> Judged:
    stretches = sweep(ranges)
    if not len(stretches):
        return Judged()
    owner, queues = _queues(stretches, known)
    begin = queues["begin"][owner]
    is_before = (begin < 0) | (stretches["high"] <= begin)
    fault = _faults(stretches, is_before, owner, queues, known)
    length = stretches["high"] - stretches["low"]
    is_own = _is_own(stretches)
    np.add.at(queues["live_before"], owner, np.where(is_before, stretches["live"] * length, 0))
    wrong = np.flatnonzero(fault)[:MOST_FAULTS]
    faults = np.zeros(len(wrong), FAULT)
    for name in ("queue", "low", "high"):
        faults[name] = stretches[name][wrong]
    faults["fault"] = fault[wrong]
    faults["open"] = stretches["live"][wrong] > 0
    counted = is_own & ~is_before
    with_own = np.zeros(len(queues), bool)
    with_own[owner[is_own]] = True
    return Judged(
        _balances(stretches[counted], length[counted], fault[counted]),
        queues[with_own],
        faults,
        stretches[stretches["live"] > 0],
        drops(ranges, queues),
        moves(ranges),
    )


def sweep(ranges: Ranges) -> Array:
    """Return the stretches of some queues' ranges (STRETCH), in order, without those of nothing."""
    count = len(ranges)
    if not count:
        return none_of(STRETCH)
    queue = np.concatenate([ranges["queue"], ranges["queue"]])
    at = np.concatenate([ranges["low"], ranges["high"]])
    order = np.lexsort((at, queue))
    queue, at = queue[order], at[order]
    is_new = np.concatenate([[True], (at[1:] != at[:-1]) | (queue[1:] != queue[:-1])])
    place = np.empty(2 * count, np.int64)
    place[order] = np.cumsum(is_new) - 1
    queue, at = queue[is_new], at[is_new]
    borders = len(at)
    low, high = place[:count], place[count:]

    def running(which: Any, weights: Any = None) -> Ints:
        begins = np.bincount(low[which], None if weights is None else weights[which], borders)
        ends = np.bincount(high[which], None if weights is None else weights[which], borders)
        return np.cumsum(begins - ends).astype(np.int64)

    counts = [running(ranges["what"] == what) for what in range(len(WHATS))]
    is_something = np.zeros(borders, bool)
    for column in counts:
        is_something |= column > 0
    out = np.zeros(int(is_something.sum()), STRETCH)
    out["queue"], out["low"] = queue[is_something], at[is_something]
    # Behind the last border of a queue there is nothing, so that a next one is of the same queue.
    out["high"] = at[np.flatnonzero(is_something) + 1]
    for name, column in zip(WHATS, counts, strict=True):
        out[name] = column[is_something]
    hours = running(ranges["what"] == ENTERED, ranges["hour"].astype(np.float64))
    reasons = running(ranges["what"] == DROPPED, ranges["reason"].astype(np.float64))
    out["hour"] = np.where(out["entered"] == 1, hours[is_something], -1)
    out["reason"] = np.where(out["dropped"] == 1, reasons[is_something], 0)
    return out


def _is_own(stretches: Array) -> Array:
    """Return whether more is known of each stretch than that somebody else speaks of it."""
    found: Array = np.logical_or.reduce([stretches[name] > 0 for name in OWN])
    return found


def _queues(stretches: Array, known: Mapping[int, Before]) -> tuple[Ints, Array]:
    """Return the number of each stretch's queue, and the queues."""
    is_new = np.concatenate([[True], stretches["queue"][1:] != stretches["queue"][:-1]])
    starts = np.flatnonzero(is_new)
    owner = np.cumsum(is_new) - 1
    queues = np.zeros(len(starts), QUEUE)
    queues["queue"] = stretches["queue"][starts]
    most = np.iinfo(np.int64).max
    entered = stretches["entered"] > 0
    begin = np.minimum.reduceat(np.where(entered, stretches["low"], most), starts)
    queues["begin"] = np.where(begin == most, -1, begin)
    queues["top"] = np.maximum.reduceat(np.where(entered, stretches["high"], 0), starts)
    queues["end"] = np.maximum.reduceat(np.where(_is_own(stretches), stretches["high"], 0), starts)
    for i, id in enumerate(queues["queue"].tolist()):
        earlier = known.get(id, NOTHING)
        if earlier.begin >= 0:
            queues["begin"][i] = earlier.begin
        queues["top"][i] = max(queues["top"][i], earlier.top)
        queues["end"][i] = max(queues["end"][i], earlier.end)
    return owner, queues


def _faults(
    stretches: Array, is_before: Array, owner: Ints, queues: Array, known: Mapping[int, Before]
) -> Ints:
    """Return for each stretch the number of its fault in FAULTS, from 1; 0: none."""
    s = stretches
    ended = s["settled"] + s["dropped"] + s["dead_lettered"]
    there = ended + s["live"] + s["pending"]
    died = s["dead_lettered"] + s["pending"] + s["transferred"]
    ids = queues["queue"].tolist()
    closed = np.array([known.get(id, NOTHING).top for id in ids], np.int64)[owner]
    is_sparse = np.array([known.get(id, NOTHING).is_sparse for id in ids], bool)[owner]
    never = s["entered"] == 0
    settled, dropped, dead = s["settled"] > 0, s["dropped"] > 0, s["dead_lettered"] > 0
    rules = (
        never & (there == 0) & (s["letter"] > 0) & (s["low"] >= closed),
        never & (s["low"] >= closed),
        never,
        s["entered"] > 1,
        s["settled"] > 1,
        s["dropped"] > 1,
        s["dead_lettered"] > 1,
        settled & dropped & ~dead,
        settled & dead & ~dropped,
        dropped & dead & ~settled,
        settled & dropped & dead,
        (ended == 1) & (s["live"] > 0),
        s["live"] > 1,
        (ended == 0) & (s["live"] == 0),
        (s["read"] > 0) & (s["taken"] == 0) & ~is_sparse,
        dead & (s["letter"] == 0),
        (s["letter"] > 0) & (died == 0),
    )
    found = np.select([is_before, *rules], [0, *range(1, len(rules) + 1)], 0)
    # Taken, and nothing else: of a message that ended before the account this one goes on from.
    only_taken = never & (there == 0) & (s["letter"] == 0)
    return np.where(only_taken, 0, found).astype(np.int64)


def _balances(stretches: Array, length: Ints, fault: Ints) -> Array:
    is_open = (stretches["live"] > 0).astype(np.int64)
    order = np.lexsort((is_open, stretches["reason"], stretches["hour"], stretches["queue"]))
    stretches, is_open = stretches[order], is_open[order]
    length, fault = length[order], fault[order]
    if not len(stretches):
        return none_of(BALANCE)
    names = ("queue", "hour", "reason")
    keys: dict[str, Any] = {**{name: stretches[name] for name in names}, "open": is_open}
    is_new = np.zeros(len(stretches), bool)
    is_new[0] = True
    for column in keys.values():
        is_new[1:] |= column[1:] != column[:-1]
    starts = np.flatnonzero(is_new)
    out = np.zeros(len(starts), BALANCE)
    for name, column in keys.items():
        out[name] = column[starts]
    for name in SUMMED:
        out[name] = np.add.reduceat(stretches[name].astype(np.int64) * length, starts)
    out["faults"] = np.add.reduceat(np.where(fault > 0, length, 0), starts)
    return out


def ranges_of(stretches: Array) -> Ranges:
    """Return ranges that `sweep` makes these stretches of. They are marked as known before: their
    target is BEFORE."""
    parts = []
    for what, name in enumerate(WHATS):
        repeated = np.repeat(stretches, stretches[name])
        part = np.zeros(len(repeated), RANGE)
        for column in ("queue", "low", "high"):
            part[column] = repeated[column]
        part["what"], part["target"] = what, BEFORE
        if what == ENTERED:
            part["hour"] = repeated["hour"]
        elif what == DROPPED:
            part["reason"] = repeated["reason"]
        parts.append(part)
    return np.concatenate(parts)


# -- sums that need no sweep


def drops(ranges: Ranges, queues: Array) -> Pairs:
    """Return the number of messages dropped by queue and reason, without those that entered before
    the ledger."""
    begins = {int(row["queue"]): int(row["begin"]) for row in queues if row["begin"] >= 0}
    sums: Pairs = {}
    dropped = ranges[(ranges["what"] == DROPPED) & (ranges["target"] != BEFORE)]
    ids = dropped["queue"].tolist()
    begin = np.array([begins.get(id, np.iinfo(np.int64).max) for id in ids], np.int64)
    length = dropped["high"] - np.maximum(dropped["low"], begin)
    for id, reason, count in zip(ids, dropped["reason"].tolist(), length.tolist(), strict=True):
        if count > 0:
            sums[id, reason] = sums.get((id, reason), 0) + count
    return sums


def moves(ranges: Ranges) -> Pairs:
    """Return the number of dead letters by source and target. Messages that were handed on as they
    were are none, though their targets name the source."""
    letters = ranges[(ranges["what"] == LETTER) & (ranges["target"] > 0)]
    handed = ranges[(ranges["what"] == TRANSFERRED) & (ranges["target"] != BEFORE)]
    sums: Pairs = {}
    for source in np.unique(letters["queue"]).tolist():
        mine = letters[letters["queue"] == source]
        other = handed[handed["queue"] == source]
        other = other[np.argsort(other["low"])]
        count = (mine["high"] - mine["low"]) - _overlap(mine, other)
        for target in np.unique(mine["target"]).tolist():
            total = int(count[mine["target"] == target].sum())
            if total:
                sums[source, target] = total
    return sums


def _overlap(ranges: Ranges, others: Ranges) -> Ints:
    """Return how many sequences of each range are in the others, which are in order and apart."""
    if not len(others):
        return np.zeros(len(ranges), np.int64)
    lengths = np.concatenate([[0], np.cumsum(others["high"] - others["low"])])

    def below(at: Ints) -> Ints:
        number = np.searchsorted(others["low"], at, "right")
        last = others[number - 1]
        inside = np.minimum(at, last["high"]) - last["low"]
        return np.where(number > 0, lengths[number - 1] + inside, 0)

    return below(ranges["high"]) - below(ranges["low"])
