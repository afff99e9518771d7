"""Figures of the broker's process and of its data folder, each second, life by life.

From /proc of its pid: resident memory (VmRSS), open descriptors and threads. Of the folder: bytes
that its files take on the disk (blocks, not lengths: segments are allocated ahead).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TextIO

EVERY_S = 1.0
BLOCK = 512
"""Bytes of st_blocks."""
AROUND_S = 5.0
"""Of samples at an age, those that lie no farther from it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look."""

    age_s: float
    """Since the broker was ready."""
    memory: int
    descriptors: int
    threads: int
    disk: int


@dataclass(slots=True)
class Life:
    """A broker from its ready line to its kill."""

    number: int
    seconds_to_ready: float
    samples: list[Sample] = field(default_factory=list)

    def memory_at(self, age_s: float) -> float:
        """The median around that age, of all samples where none is near."""
        near = [one.memory for one in self.samples if abs(one.age_s - age_s) <= AROUND_S]
        return median(near or [one.memory for one in self.samples])

    def usual(self, name: str) -> float:
        """The median of its samples."""
        return float(median(getattr(one, name) for one in self.samples))

    def most(self, name: str) -> float:
        return float(max(getattr(one, name) for one in self.samples))


def look(pid: int, folder: Path, age_s: float) -> Sample:
    """Raises OSError when the process is gone."""
    found: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "Threads"):
            found[name] = int(value.split()[0])
    if "VmRSS" not in found:  # it has ended, and nobody has asked for its exit code
        raise ProcessLookupError(f"no process {pid}")
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    return Sample(age_s, found["VmRSS"] << 10, descriptors, found["Threads"], _on_disk(folder))


def _on_disk(folder: Path) -> int:
    return sum(_sizes(folder))


def _sizes(folder: Path) -> Iterator[int]:
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # the broker removes what it needs no more
                if entry.is_dir(follow_symlinks=False):
                    yield from _sizes(Path(entry.path))
                else:
                    yield entry.stat(follow_symlinks=False).st_blocks * BLOCK


class Sampler(threading.Thread):
    """Looks each second at whatever lives; what it saw also goes to a file."""

    def __init__(self, folder: Path, log: Path) -> None:
        super().__init__(name="sampler", daemon=True)
        self.lives: list[Life] = []
        self._folder = folder
        self._log = log
        self._lock = threading.Lock()
        self._pid = 0
        self._ready_at = 0.0
        self._ended = threading.Event()

    def begin(self, pid: int, seconds_to_ready: float) -> None:
        """A broker is ready."""
        with self._lock:
            self.lives.append(Life(len(self.lives) + 1, seconds_to_ready))
            self._pid, self._ready_at = pid, time.monotonic()

    def end(self) -> None:
        """It is about to be killed: nothing is seen of it after this."""
        with self._lock:
            self._pid = 0

    def close(self) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        with self._log.open("w") as log:
            print("life\tage_s\tmemory\tdescriptors\tthreads\tdisk", file=log)
            while not self._ended.wait(EVERY_S):
                self._look(log)

    def _look(self, log: TextIO) -> None:
        with self._lock:
            if self._pid:
                age_s = time.monotonic() - self._ready_at
                seen = look(self._pid, self._folder, age_s)
                life = self.lives[-1]
                life.samples.append(seen)
                print(
                    life.number, f"{age_s:.1f}", seen.memory, seen.descriptors, seen.threads,
                    seen.disk, sep="\t", file=log, flush=True,
                )  # fmt: skip
