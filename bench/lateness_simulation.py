#!/usr/bin/env python3
"""How late deadlines are met with 10,000 channels: nsqd's scan loop beside one heap, simulated.

lateness_simulation.py [--channels 10000] [--seconds 900] [--seed 1]

nsqd's queueScanLoop, as its source has it [NQ-17]: every 100 ms 20 channels are picked at random;
each is relieved of all that is due; if more than a quarter of those picked had anything due, the
next 20 are picked at once. Ours is the engine's own `Deadlines`: a heap of what is due next, and a
sleep until then, in whole milliseconds; a message in flight may wait MERGE_MS longer, because
messages handed out together share an entry.

Looking at a channel costs no time here, for either: what is compared is waiting, not speed.
Measured are the deadlines of the middle third of a run; the load goes on behind them.
"""

from __future__ import annotations

import argparse
import heapq
from random import Random
from typing import Final

from tallymark.engine.clock import Deadlines, Timed
from tallymark.engine.timeouts import MERGE_MS

SCAN_MS: Final = 100
PICKED: Final = 20
DIRTY: Final = 0.25
LOADS: Final = (0.1, 1.0, 10.0, 100.0, 1_000.0, 10_000.0)
"""Deadlines that come due a second, over all channels."""
FEWEST: Final = 600
MOST: Final = 1_200_000
"""Deadlines in one run: a low load is played for longer, a high one for less long."""
COLUMNS: Final = ("due a second", "structure", "p50 late", "p99 late", "latest", "looks a second")

Load = list[tuple[float, int]]
"""(when due, milliseconds; in which channel)."""


class Channels:
    """What is due in each channel, earliest first, and how late the measured ones were."""

    def __init__(self, load: Load, count: int, end: float) -> None:
        self.due: list[list[float]] = [[] for _ in range(count)]
        self.from_ms, self.to_ms = end / 3, end * 2 / 3
        self.left = 0
        """Measured deadlines that were not met yet."""
        self.late: list[float] = []
        for due, at in load:  # ascending, so each list is a heap
            self.due[at].append(due)
            self.left += self.from_ms <= due < self.to_ms

    def relieve(self, at: int, now: float) -> bool:
        """Meet what is due in one channel; False: nothing was."""
        due = self.due[at]
        if not due or due[0] > now:
            return False
        while due and due[0] <= now:
            when = heapq.heappop(due)
            if self.from_ms <= when < self.to_ms:
                self.left -= 1
                self.late.append(now - when)
        return True

    def lateness(self, share: float) -> str:
        late = sorted(self.late)
        ms = late[min(len(late) - 1, int(share * len(late)))]
        return f"{ms / 1000:,.1f} s" if ms >= 1000 else f"{ms:.1f} ms"


def deadlines(random: Random, rate: float, channels: int, end: float) -> Load:
    """They come at random, anywhere, until `end` (milliseconds)."""
    found, now = [], 0.0
    while (now := now + random.expovariate(rate) * 1000) < end:
        found.append((now, random.randrange(channels)))
    return found


def scan_loop(channels: Channels, random: Random) -> float:
    """nsqd's way; returns how many channels were looked at a second."""
    count = len(channels.due)
    now, looks = 0.0, 0
    while channels.left:
        now += SCAN_MS
        while True:
            picked = random.sample(range(count), min(PICKED, count))
            looks += len(picked)
            dirty = sum([channels.relieve(at, now) for at in picked])
            if dirty / len(picked) <= DIRTY:
                break
    return looks / now * 1000


def one_heap(channels: Channels, extra_ms: int) -> float:
    """Our way: each channel is armed for its earliest deadline, and nobody looks at the others.
    Returns how many channels were looked at a second."""
    heap = Deadlines()
    things = [Timed() for _ in channels.due]
    numbers = {id(thing): at for at, thing in enumerate(things)}

    def arm(at: int) -> None:
        if channels.due[at]:
            heap.arm(things[at], int(channels.due[at][0]) + 1 + extra_ms)

    for at in range(len(things)):
        arm(at)
    now, looks = 0, 0
    while channels.left:
        now = heap.next_due()
        for thing in heap.take_due(now):
            looks += 1
            channels.relieve(numbers[id(thing)], now)
            arm(numbers[id(thing)])
    return looks / now * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--channels", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    print(f"{wanted.channels:,} channels, seed {wanted.seed}\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for rate in LOADS:
        random = Random(wanted.seed)
        end = 1000 * max(FEWEST / rate, min(wanted.seconds, MOST / rate))
        load = deadlines(random, rate, wanted.channels, end)
        for name, extra_ms in (
            ("scan loop", -1),
            ("heap, deferred", 0),
            ("heap, in flight", MERGE_MS),
        ):
            channels = Channels(load, wanted.channels, end)
            if extra_ms < 0:
                looks = scan_loop(channels, random)
            else:
                looks = one_heap(channels, extra_ms)
            late = " | ".join([channels.lateness(share) for share in (0.5, 0.99, 1.0)])
            print(f"| {rate:g} | {name} | {late} | {looks:,.1f} |", flush=True)


if __name__ == "__main__":
    main()
