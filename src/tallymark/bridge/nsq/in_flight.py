"""In-flight messages of NSQ: FIN, REQ and TOUCH, translated from message ids to a session's tags.

No table of ids is kept: what a session holds are ranges of tags, each with the payload its messages
come from, and a payload numbers its messages. Clients mostly answer in the order of delivery, so an
id is found in the first range, and a run of FINs is settled at once. Where an id is found in none,
as after a time-out, the ranges are searched once for all that follow it in the run.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import final

from tallymark.engine.broker import Broker
from tallymark.engine.outcomes import ACCEPTED
from tallymark.engine.queue import Queue
from tallymark.engine.session import Consumer, InFlight, Session
from tallymark.units import EngineMs, Ms, Tag
from tallymark.wire.nsq.errors import NOT_IN_FLIGHT, NOT_OWNER

OnFinish = Callable[[Queue, EngineMs, EngineMs, int], None]
"""Callback for every run of FINs: queue, times of publish and finish, count of messages."""


@final
class InFlightMessages:
    """The in-flight messages of one subscriber."""

    __slots__ = ("_broker", "_on_finish", "_session", "queue", "searched")

    def __init__(self, broker: Broker, consumer: Consumer, on_finish: OnFinish | None) -> None:
        self._broker = broker
        self._session: Session = consumer.session
        self._on_finish = on_finish
        self.queue: Queue = consumer.queue
        self.searched = 0
        """Number of ranges of the channel that were searched for ids that are not in flight."""

    def finish(self, ids: array[int]) -> list[int]:
        """Settle messages; return the indexes in `ids` of those that are not in flight, in order.
        O(runs) if they come in the order of delivery."""
        session = self._session
        settle = self._broker.settlement.settle
        failed: list[int] = []
        held: set[int] | None = None
        n = len(ids)
        at = 0
        while at < n:
            id: int = ids[at]
            entry = None if held is not None and id not in held else _holding(session, id)
            if entry is None:
                failed.append(at)
                at += 1
                if held is None and at < n:
                    held = _held(session, ids[at:])
                continue
            tag = entry.first + id - _first_id(entry)
            count = _consecutive(ids, at, min(n - at, entry.last - tag + 1))
            if entry.done is not None:
                low, high = entry.pieces(Tag(tag), Tag(tag + count - 1))[0]
                assert low == tag, (low, tag)
                count = high - low + 1
            payload = entry.slice.payload
            settle(session, Tag(tag), Tag(tag + count - 1), ACCEPTED)
            if self._on_finish is not None:
                now_ms = self._broker.clock.now_ms
                self._on_finish(self.queue, payload.arrived_ms, now_ms, count)
            at += count
        return failed

    def requeue(self, ids: array[int], delay_ms: int) -> list[int]:
        """Requeue messages, now or later [NQ-12]; return the ids that are not in flight."""
        failed: list[int] = []
        held: set[int] | None = None
        for id in ids:
            tag = self._tag_of(id) if held is None or id in held else 0
            if tag:
                self._broker.settlement.requeue(self._session, Tag(tag), Ms(delay_ms))
                continue
            if held is None:
                held = _held(self._session, ids)
            failed.append(id)
        return failed

    def touch(self, ids: array[int], most_ms: int) -> list[int]:
        """Restart the messages' time-out [NQ-13]; return the ids that are not in flight."""
        failed: list[int] = []
        held: set[int] | None = None
        for id in ids:
            tag = self._tag_of(id) if held is None or id in held else 0
            if tag:
                self._broker.timeouts.touch(self._session, Tag(tag), Ms(most_ms))
                continue
            if held is None:
                held = _held(self._session, ids)
            failed.append(id)
        return failed

    def reasons(self, ids: list[int]) -> list[str]:
        """Return for each message why it is not the subscriber's to settle [NQ-A6]. O(in flight in
        the channel), however many there are."""
        others: set[int] = set()
        if ids:
            wanted = array("Q", ids)
            for session in self._broker.state.holders.of(self.queue):
                if session is not self._session:
                    others |= _held(session, wanted, self.queue)
                self.searched += len(session.inflight)
        return [NOT_OWNER if id in others else NOT_IN_FLIGHT for id in ids]

    def _tag_of(self, id: int) -> int:
        """Return the tag of a message id; 0: none. There is none in a channel that was deleted,
        which the client hears of with the turn."""
        entry = _holding(self._session, id)
        if entry is None or entry.queue.deleted:
            return 0
        return entry.first + id - _first_id(entry)


def _first_id(entry: InFlight) -> int:
    """Return the id of the message of tag entry.first."""
    return entry.slice.payload.first_id + entry.slice.lo


def _holding(session: Session, id: int) -> InFlight | None:
    """Return the in-flight range with the unsettled message; None: there is none."""
    for entry in session.inflight:
        at = id - entry.slice.payload.first_id - entry.slice.lo
        if 0 <= at <= entry.last - entry.first and not entry.void:
            done = entry.done
            if done is None or not done[at]:
                return entry
    return None


def _held(session: Session, ids: array[int], queue: Queue | None = None) -> set[int]:
    """Return those of the ids that the session holds unsettled, of this queue or (None) of any.
    O(ranges)."""
    wanted = sorted(set(ids))
    n = len(wanted)
    found: set[int] = set()
    for entry in session.inflight:
        if entry.void or (queue is not None and entry.queue is not queue):
            continue
        first = _first_id(entry)
        last = first + entry.last - entry.first
        done = entry.done
        at = bisect_left(wanted, first)
        while at < n and wanted[at] <= last:
            if done is None or not done[wanted[at] - first]:
                found.add(wanted[at])
            at += 1
    return found


def _consecutive(ids: array[int], at: int, most: int) -> int:
    """Return how many ids from `at` on are consecutive, at most `most`."""
    first: int = ids[at]
    if most == 1 or ids[at + 1] != first + 1:
        return 1
    last = first + most - 1
    if ids[at + most - 1] == last and ids[at : at + most] == array("Q", range(first, last + 1)):
        return most
    count = 2
    while count < most and ids[at + count] == first + count:
        count += 1
    return count
