"""Time: the broker's clock, its deadlines, and the conversion of what is stored to wall time.

The engine never asks the operating system: the clock holds the time that it was given last. There
are two. *Engine time* is for deadlines and ages, and is what everything in memory is noted in: it
goes with the monotonic clock, so that no step of the wall clock stops or triggers anything [NQ-D8].
*Wall time* is for what is stored and shown. At a start the two are the same. From then on a small
difference is slewed away; a jump of the wall clock becomes `ahead_ms`, which is added to whatever
leaves (`in_wall_time`) and taken off the times that clients name. A restart reads stored times as
they are: engine time begins there, with wall time.

There is one structure of deadlines for the whole broker [NQ-D1], a heap of (due, number). A thing's
deadline mostly moves later or ends early, so nothing is removed from the middle of the heap: a
thing that comes up is asked for its real deadline, and armed again. An idle thing costs nothing, a
busy one a comparison. What is gone leaves a number that names nothing. The owner sleeps until
`next_due`."""

from __future__ import annotations

import heapq
import json
from array import array
from typing import Final, final

from tallymark.engine.message import Pack, Payload, closed, opened
from tallymark.engine.record import Record
from tallymark.stored import records
from tallymark.stored.records import decoded, number_in
from tallymark.units import UNLIMITED, EngineMs, Ms, WallMs

JUMP_MS: Final = 2000
"""Step of the wall clock, in ms, above which it is a jump that engine time does not follow."""
SLEW: Final = 20
"""Slew rate: engine time is corrected by at most one in this many milliseconds."""
NEVER: Final = EngineMs(UNLIMITED)
SWEEP: Final = 1024
"""Number of stale entries that are tolerated however few other entries there are."""
_ANNOTATED = (
    records.ENTERED,
    records.LIVE,
    records.LEASED,
    records.RETURNED,
    records.DEFERRED,
)
"""Kinds of record whose blob is annotations."""


@final
class Clock:
    """The time of one broker, shared by all its parts."""

    def __init__(self) -> None:
        self.now_ms = EngineMs(0)
        """Engine time of the present turn: milliseconds since 1970, as the wall clock would show
        without its jumps since the start. Never decreases."""
        self.ahead_ms = Ms(0)
        """Lead of wall time over engine time, ms: the sum of all jumps since the start; may be
        negative."""
        self.jumps = 0
        self.jumped_ms = 0
        """Size of the last jump, ms."""
        self._monotonic_ms = -1
        self._wall_ms = -1
        self._off = 0
        """Deviation of the wall clock from its expected value at the last reading, ms."""
        self._room = 0
        """Time since the deviation began that slewing has not used up yet, ms."""

    @property
    def wall_ms(self) -> WallMs:
        """Wall time of the present turn, milliseconds since 1970. May decrease."""
        return WallMs(self.now_ms + self.ahead_ms)

    def read(self, wall_ms: WallMs, monotonic_ms: int) -> EngineMs:
        """Set the time from the machine's two clocks; return engine time. At the first call engine
        time is wall time, in which all stored times are given."""
        if self._monotonic_ms < 0:
            self._monotonic_ms = monotonic_ms
            self.tell(EngineMs(wall_ms))
            return self.now_ms
        if wall_ms == self._wall_ms and monotonic_ms == self._monotonic_ms:
            return self.now_ms
        self._wall_ms = wall_ms
        passed = monotonic_ms - self._monotonic_ms
        if passed < 0:
            passed = 0
        self._monotonic_ms += passed
        now = self.now_ms + passed
        off = wall_ms - self.ahead_ms - now
        if not -JUMP_MS <= off <= JUMP_MS:
            self.ahead_ms = Ms(self.ahead_ms + off)
            self.jumps += 1
            self.jumped_ms = off
            off = 0
            if -JUMP_MS <= self.ahead_ms <= JUMP_MS:  # undone, or nearly: slew the rest
                off = self.ahead_ms
                self.ahead_ms = Ms(0)
        if off == 0 or self._off == 0:
            self._room = 0
        else:
            self._room += passed
            slewed = min(abs(off), self._room // SLEW)
            self._room -= slewed * SLEW
            step = slewed if off > 0 else -slewed
            now += step
            off -= step
        self._off = off
        self.tell(EngineMs(now))
        return self.now_ms

    def tell(self, now_ms: EngineMs) -> None:
        """Set engine time to now_ms, for a clock that is moved by hand. It never decreases."""
        if now_ms > self.now_ms:
            self.now_ms = now_ms

    def to_wall(self, time_ms: EngineMs) -> WallMs:
        """Return the present wall time of a moment in engine time; not before 1970."""
        return WallMs(max(0, time_ms + self.ahead_ms))

    def from_wall(self, wall_ms: WallMs) -> EngineMs:
        """Return the engine time of a moment that a client gives in wall time."""
        return EngineMs(wall_ms - self.ahead_ms)


class Timed:
    """Something with a deadline: a queue, a session."""

    def __init__(self) -> None:
        self.armed_ms = NEVER
        """Time of its earliest entry in the heap; engine time, ms."""
        self.armed_as = 0
        """Number of that entry."""


@final
class Deadlines:
    """The deadlines of a broker (see the module's docstring)."""

    def __init__(self) -> None:
        self._heap: list[tuple[EngineMs, int]] = []
        """Entries: when they are due, and their numbers. A number without a thing is stale."""
        self._things: dict[int, Timed] = {}
        """Things that wait, by the number of their entry."""
        self._number = 0
        """Number of armings so far. It orders things with equal deadlines."""

    def arm(self, thing: Timed, due_ms: EngineMs) -> None:
        """Make sure that the thing is attended to at `due_ms` or earlier."""
        if due_ms < thing.armed_ms:
            self.forget(thing)
            thing.armed_ms = due_ms
            self._number += 1
            thing.armed_as = self._number
            self._things[self._number] = thing
            heapq.heappush(self._heap, (due_ms, self._number))

    def forget(self, thing: Timed) -> None:
        """Remove the deadlines of a thing that is gone. Sweeps if most entries are stale."""
        if thing.armed_ms == NEVER:
            return
        thing.armed_ms = NEVER
        things = self._things
        del things[thing.armed_as]
        stale = len(self._heap) - len(things)
        if stale > SWEEP and stale > len(things):
            self._heap = [entry for entry in self._heap if entry[1] in things]
            heapq.heapify(self._heap)

    def next_due(self) -> EngineMs:
        """Return the time of the next deadline, engine time, ms; NEVER: there is none."""
        heap = self._heap
        while heap:
            due_ms, number = heap[0]
            if number in self._things:
                return due_ms
            heapq.heappop(heap)
        return NEVER

    def take_due(self, now_ms: EngineMs) -> list[Timed]:
        """Return all things that are due, disarmed, in order of their deadlines."""
        heap = self._heap
        out = []
        while heap and heap[0][0] <= now_ms:
            _, number = heapq.heappop(heap)
            thing = self._things.pop(number, None)
            if thing is not None:
                thing.armed_ms = NEVER
                out.append(thing)
        return out


def in_wall_time(told: list[Record], ahead_ms: Ms) -> list[Record]:
    """Return the records with all times moved by `ahead_ms`. The same list is returned and its
    records are altered, unless ahead_ms is 0. O(records) then."""
    if ahead_ms == 0:
        return told
    blobs: dict[bytes, bytes] = {}
    packed: dict[int, Payload] = {}
    for record in told:
        kind = record.kind
        if record.time_ms:
            record.time_ms = _moved_time(record.time_ms, ahead_ms)
        payload = record.payload
        if payload is not None and payload.pack is not None:
            if id(payload) not in packed:
                packed[id(payload)] = _moved_pack(payload, ahead_ms)
            record.payload = packed[id(payload)]
        if kind in (records.DEFERRED, records.SINK_STAGED):
            record.other = _moved_time(record.other, ahead_ms)
        if record.blob:
            if kind in _ANNOTATED:
                if record.blob not in blobs:
                    blobs[record.blob] = _moved_annotations(record.blob, ahead_ms)
                record.blob = blobs[record.blob]
            elif kind == records.PENDING:
                record.blob = _moved_letter(record.blob, ahead_ms)
            elif kind == records.SINK_STAGED:
                record.blob = _moved_staging(record.blob, ahead_ms)
            elif kind == records.DEFINITION:
                record.blob = _moved_definition(record.blob, ahead_ms)
    return told


def _moved_time(time_ms: int, ahead_ms: Ms) -> int:
    """Return a stored time moved by `ahead_ms`, at least 1: a clock may be set back to a time
    before 1970."""
    return max(1, time_ms + ahead_ms)


def _moved_pack(payload: Payload, ahead_ms: Ms) -> Payload:
    """Return a copy of a packed payload for the records; the times of the original stay in engine
    time."""
    pack = payload.pack
    assert pack is not None
    copy = Payload(
        payload.format, payload.raw, payload.cuts, payload.route, payload.routes,
        payload.first_id, EngineMs(_moved_time(payload.arrived_ms, ahead_ms)), payload.persistent,
        payload.largest_frame,
    )  # fmt: skip
    copy.position = payload.position
    arrivals = array("Q", [_moved_time(time_ms, ahead_ms) for time_ms in pack.arrivals])
    annotations = [
        closed([_moved_annotations(blob, ahead_ms) if blob else b"" for blob in opened(part)])
        for part in pack.annotations
    ]
    copy.pack = Pack(pack.positions, pack.ids, arrivals, annotations)
    copy.pack.sums = pack.sums
    return copy


def _moved_annotations(blob: bytes, ahead_ms: Ms) -> bytes:
    said = decoded(blob)
    return _encoded(_moved(said, ("due", "since"), ahead_ms))


def _moved_letter(blob: bytes, ahead_ms: Ms) -> bytes:
    said = decoded(blob)
    known: object = said["letter"]
    if isinstance(known, dict):
        _moved(known, ("due", "since"), ahead_ms)
    return _encoded(said)


def _moved_staging(blob: bytes, ahead_ms: Ms) -> bytes:
    said = decoded(blob)
    known: object = said.get("known", "")
    if isinstance(known, str) and known:
        said["known"] = _moved_annotations(known.encode(), ahead_ms).decode()
    return _encoded(said)


def _moved_definition(blob: bytes, ahead_ms: Ms) -> bytes:
    """Return a definition with its times moved; only a sink's has any."""
    said = decoded(blob)
    return _encoded(_moved(said, ("forget_ms",), ahead_ms)) if said.get("op") == "sink" else blob


def _moved(said: dict[str, object], keys: tuple[str, ...], ahead_ms: Ms) -> dict[str, object]:
    """Return the object with the times under these keys moved. A missing time, or 0, means none."""
    for key in keys:
        time_ms = number_in(said, key, 0)
        if time_ms:
            said[key] = _moved_time(time_ms, ahead_ms)
    return said


def _encoded(said: dict[str, object]) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode()
