"""The machine under a benchmark: how fast it is now, and how much of it others take.

Figures of two machines, or of two hours of one, can be compared only through these. A calibration
is taken before each row; what others took is counted during every run.
"""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

ROUNDS = 5
HASHED = bytes(4 << 20)
TRIPS = 2000
SYNCS = 20
_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ, _STEAL = 0, 1, 2, 5, 6, 7
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Calibration:
    """loop_ns: one turn of a fixed loop of Python, CPU; hash_us: SHA-256 of a MiB, CPU; trip_us: a
    byte to and fro over loopback TCP, one process, time; sync_ms: 4 KiB and fdatasync, time; load:
    the load average of the last minute."""

    loop_ns: float
    hash_us: float
    trip_us: float
    sync_ms: float
    load: float


def calibrate(folder: Path) -> Calibration:
    """Measure the machine, about 0.4 s; the best of some rounds where that is not the noise's."""
    return Calibration(
        loop_ns=round(min(_loop() for _ in range(ROUNDS)), 2),
        hash_us=round(min(_hash() for _ in range(ROUNDS)), 1),
        trip_us=round(_trip(), 1),
        sync_ms=round(_sync(folder), 3),
        load=os.getloadavg()[0],
    )


def _loop() -> float:
    began, total = time.thread_time(), 0
    for number in range(200_000):
        total += number & 7
    return (time.thread_time() - began) / 200_000 * 1e9


def _hash() -> float:
    began = time.thread_time()
    hashlib.sha256(HASHED).digest()
    return (time.thread_time() - began) / (len(HASHED) >> 20) * 1e6


def _trip() -> float:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        with socket.create_connection(listener.getsockname()) as one, listener.accept()[0] as two:
            for end in (one, two):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            taken = []
            for _ in range(TRIPS):
                began = time.perf_counter()
                one.send(b"x")
                two.recv(1)
                two.send(b"x")
                one.recv(1)
                taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e6


def _sync(folder: Path) -> float:
    target = folder / "calibration"
    taken = []
    with target.open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    target.unlink()
    return statistics.median(taken) * 1e3


def busy_s() -> tuple[float, float]:
    """CPU seconds that all processes together have used since the start, and those that the
    machine's own host took away (steal)."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    used = sum(fields[kind] for kind in (_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ))
    return used / _TICKS_PER_S, fields[_STEAL] / _TICKS_PER_S


def description() -> dict[str, str]:
    """The machine and its system, for the head of a page."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "processor": model,
        "cores": str(os.cpu_count()),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
