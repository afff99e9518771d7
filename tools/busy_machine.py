#!/usr/bin/env python3
"""Run a command on a machine that is as bad as one gets: `make test-busy` does so with the tests.

    busy_machine.py COMMAND ...

Nearly all ports of 127.0.0.1 that the system gives away are taken, and what somebody gives back is
taken by another at once: a test that expects a port to be free because it was a moment ago fails.
Each core stands still once in a second or two, for a tenth of a second usually and for a whole one
now and then: a test that expects an answer within some time fails. Exit code: the command's.

Ports are listened on, by as many processes as the limit of open files needs. A core stands still
while a process of real-time priority works on it, which only root may start: for others there are
no pauses, and a line on stderr says so.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

HERE = "127.0.0.1"
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
FREE = 2000
"""Ports that are left to the command."""
SPARE_FILES = 100
GIVEN_BACK = 100
EVERY_S = 0.01
BETWEEN_PAUSES_S = 1.0
PAUSE_S = 0.12
LONGEST_PAUSE_S = 1.5


def take_ports(count: int) -> None:
    """Hold so many ports, the newest ones, for ever."""
    held: deque[socket.socket] = deque()
    while True:
        while len(held) < count:
            try:
                held.append(socket.create_server((HERE, 0)))
            except OSError:  # none is free: the command has them
                break
        for _ in range(min(GIVEN_BACK, len(held))):
            held.popleft().close()
        time.sleep(EVERY_S)


def stop_core(core: int) -> None:
    """Keep everybody else from a core for moments, for ever."""
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    chance = random.Random()
    while True:
        time.sleep(chance.expovariate(1 / BETWEEN_PAUSES_S))
        end = time.monotonic() + min(chance.expovariate(1 / PAUSE_S), LONGEST_PAUSE_S)
        while time.monotonic() < end:
            pass


def is_real_time_allowed() -> bool:
    was = os.sched_getscheduler(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, was, os.sched_param(0))
    return True


def nuisances() -> list[multiprocessing.Process]:
    """Return the processes that make the machine a bad one, not started yet."""
    first, last = map(int, RANGE.read_text().split())
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    ports = max(1, last - first + 1 - FREE)
    holders = -(-ports // (files - SPARE_FILES))
    work: Callable[[int], None] = take_ports
    found = [(work, ports // holders)] * holders
    if is_real_time_allowed():
        found += [(stop_core, core) for core in sorted(os.sched_getaffinity(0))]
    else:
        print("busy_machine: no right to real-time priority: no core stops", file=sys.stderr)
    return [multiprocessing.Process(target=what, args=(how,), daemon=True) for what, how in found]


def main() -> int:
    command = sys.argv[1:]
    if not command:
        print("busy_machine: no command. Usage: busy_machine.py COMMAND ...", file=sys.stderr)
        return 2
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    working = nuisances()
    for one in working:
        one.start()
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        for one in working:
            one.kill()


if __name__ == "__main__":
    raise SystemExit(main())
