"""Messages in flight: what a session holds unsettled, as ranges of tags.

`Session.inflight` has the ranges, ascending. Each is of one slice and one consumer, so that what
was delivered together costs one range. Settling in order shortens the first range. Settling out of
order finds its range by bisection and marks the tag in a byte map, which is made when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.message import Slice
from tallymark.engine.queue import Queue
from tallymark.engine.session import Consumer, InFlight, Session
from tallymark.units import Tag

NEAR: Final = 64
"""Number of in-flight ranges that are looked up one by one; more are reached by a walk from the
first, which is dearer for one and cheaper for many."""
FEW: Final = 8
"""Largest number of ranges that are put back one by one; more are sorted in together."""


def add_held(session: Session, queue: Queue, into: list[Slice]) -> int:
    """Append the messages of a queue that this session holds unsettled to `into`; return their
    count."""
    count = 0
    for entry in session.inflight:
        if entry.queue is queue and not entry.void:
            count += entry.left
            for low, high in entry.pieces(entry.first, entry.last):
                into.append(entry.part(low, high))
    return count


def ranges_of(session: Session, queue: Queue) -> Iterator[InFlight]:
    """Yield in-flight ranges, among which are all of a queue: those from its first message on."""
    first = session.sources.get(queue.id)
    if first is not None:
        yield from ranges_from(session, first)


def ranges_from(session: Session, tag: Tag) -> Iterator[InFlight]:
    """Yield the in-flight ranges that end at the tag or behind it."""
    inflight = session.inflight
    at = place_of(session, tag)
    near = min(at + NEAR, len(inflight))
    for i in range(at, near):
        yield inflight[i]
    yield from islice(inflight, near, None)


def place_of(session: Session, tag: Tag) -> int:
    """Return the index of the first in-flight range that ends at the tag or behind it."""
    inflight = session.inflight
    low = 0
    high = len(inflight)
    while low < high:
        middle = (low + high) >> 1
        if inflight[middle].last < tag:
            low = middle + 1
        else:
            high = middle
    return low


def index_of(session: Session, tag: Tag) -> int:
    """Return the index of the in-flight range that contains the tag.

    Raises:
        PreconditionFailed: the tag was never given out or is settled already.
    """
    inflight = session.inflight
    low = place_of(session, tag)
    if low < len(inflight):
        entry = inflight[low]
        if entry.first <= tag and (entry.done is None or not entry.done[tag - entry.first]):
            return low
    raise PreconditionFailed(f"unknown delivery tag {tag}")


def remove_tags(session: Session, at: int, low: Tag, high: Tag) -> None:
    """Remove tags low..high, none of which was settled before, from the range at index `at`."""
    inflight = session.inflight
    entry = inflight[at]
    entry.left -= high - low + 1
    if entry.left == 0:
        del inflight[at]
        return
    if low == entry.first:
        entry.shorten(high + 1 - entry.first)
        return
    if entry.done is None:
        if high == entry.last:
            entry.last = Tag(low - 1)
            return
        entry.done = bytearray(entry.last - entry.first + 1)
    start = low - entry.first
    size = high - low + 1
    if size == 1:
        entry.done[start] = 1
    else:
        entry.done[start : start + size] = b"\x01" * size


def isolate(session: Session, at: int, tag: Tag) -> InFlight:
    """Split the range at index `at` so that one unsettled tag has a range of its own; return
    that."""
    entry = session.inflight[at]
    if entry.first == entry.last:
        return entry
    parts = [
        part
        for part in (
            entry.cut(entry.first, Tag(tag - 1)),
            entry.cut(tag, tag),
            entry.cut(Tag(tag + 1), entry.last),
        )
        if part is not None
    ]
    del session.inflight[at]
    found = entry
    for part in reversed(parts):
        session.inflight.insert(at, part)
        if part.first == tag:
            found = part
    return found


def take_out(session: Session, at: int, low: Tag, high: Tag) -> InFlight:
    """Take tags low..high, as far as they are unsettled, out of the range at index `at`; return
    them as a range of their own. The rest of the range stays in place, with its slice cut to its
    tags. At an end of the range O(1) but for what is taken, else O(tags behind)."""
    inflight = session.inflight
    entry = inflight[at]
    if low == entry.first and high == entry.last and len(entry.slice) == high + 1 - low:
        del inflight[at]
        return entry
    found = entry.cut(low, high)
    assert found is not None, (low, high)
    if found.left == entry.left:
        del inflight[at]
        return found
    after = entry.cut_away(found)
    if after is not None:
        inflight.insert(at + 1, after)
    return found


def _first(entry: InFlight) -> int:
    return entry.first


def put_back(session: Session, entries: list[InFlight]) -> None:
    """Make ranges that were taken out of the session unsettled there again, in the order of their
    tags."""
    inflight = session.inflight
    if len(entries) <= FEW:
        for entry in entries:
            _insert(session, entry)
        return
    together = [*inflight, *entries]
    together.sort(key=_first)
    inflight.clear()
    last: InFlight | None = None
    for entry in together:
        if last is not None and last.followed_by(entry):
            last.extend(entry)
        else:
            inflight.append(entry)
            last = entry


def _insert(session: Session, entry: InFlight) -> None:
    """Insert a range at its place, merged with its neighbours where that is possible."""
    inflight = session.inflight
    at = place_of(session, entry.first)
    if at > 0 and inflight[at - 1].followed_by(entry):
        at -= 1
        inflight[at].extend(entry)
    else:
        inflight.insert(at, entry)
    if at + 1 < len(inflight) and inflight[at].followed_by(inflight[at + 1]):
        inflight[at].extend(inflight[at + 1])
        del inflight[at + 1]


def take_all_of(session: Session, consumer: Consumer) -> list[InFlight]:
    """Take all ranges of one consumer out of the session; return them, ascending. O(ranges between
    the first of them and the last)."""
    inflight = session.inflight
    end = place_of(session, Tag(consumer.held_to + 1))
    inflight.rotate(-end)  # its last range is the rightmost now
    found: list[InFlight] = []
    passed: list[InFlight] = []
    left = consumer.unacked
    while end > 0 and left > 0:  # those staged under a transaction count and are not there
        entry = inflight[-1]
        if entry.last < consumer.held_from:
            break
        inflight.pop()
        end -= 1
        if entry.consumer is consumer:
            left -= entry.left
            found.append(entry)
        else:
            passed.append(entry)
    inflight.extend(reversed(passed))
    inflight.rotate(end + len(passed))
    found.reverse()
    return found
