"""Where a run of the tests spends its time: CPU and wall, file by file.

    TALLYMARK_TIMINGS=/tmp/t.jsonl python -m pytest -p tests.support.timings tests
    python -m tests.support.timings /tmp/t.jsonl    # what is dearest
    python -m tests.support.timings /tmp/t.jsonl 0.7  # tests of which a case takes so many seconds

Counted is the CPU of the test's process and of all processes below it, living and ended: a broker
or a Spark session is charged to the test that makes it work. Each phase of each test is a line of
JSON. Of those that take longest tests/dear.txt has a list, which `make test` leaves to CI.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """User and system time of this process and of all below it."""
    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    return total + sum(map(_of_tree, _children(os.getpid())))


def _of_tree(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it has ended: its parent has it in its own figures
    own = sum(map(int, fields[11:15])) / TICKS
    return own + sum(map(_of_tree, _children(pid)))


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        texts = [Path(f"/proc/{pid}/task/{one}/children").read_text() for one in tasks]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for text in texts for child in text.split()]


class Recorder:
    """Writes a line for each phase of each test."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.began = (cpu_seconds(), time.monotonic())

    def write(self, name: str, phase: str) -> None:
        """Charge what was used since the line before to `name`."""
        cpu, wall = self.began
        self.began = (cpu_seconds(), time.monotonic())
        row = [name, phase, round(self.began[0] - cpu, 3), round(self.began[1] - wall, 3)]
        with self.path.open("a") as file:  # a line at a time: several workers write to it
            file.write(json.dumps(row) + "\n")

    def pytest_collection_finish(self) -> None:
        self.write("(collection)", "collect")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        self.write("(between)", "between")
        yield
        self.write(item.nodeid, "setup")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        yield
        self.write(item.nodeid, "call")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        yield
        self.write(item.nodeid, "teardown")


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ.get("TALLYMARK_TIMINGS")
    is_controller = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if path and not is_controller:
        config.pluginmanager.register(Recorder(path))


def main(path: str) -> None:
    """Print files by CPU, then single tests."""
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    for title, key in (("file", lambda row: row[0].split("::")[0]), ("test", lambda row: row[0])):
        cpu: Counter[str] = Counter()
        wall: Counter[str] = Counter()
        for row in rows:
            cpu[key(row)] += row[2]
            wall[key(row)] += row[3]
        print(f"{'cpu s':>8} {'wall s':>8}  {title} (all: {cpu.total():.0f} s of CPU)")
        for name, seconds in cpu.most_common(80):
            print(f"{seconds:8.2f} {wall[name]:8.2f}  {name}")
        print()


def dear(path: str, least_s: float) -> None:
    """Print the tests of which one case takes so much CPU, without what is set up for it, and how
    much all of its cases take."""
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    dearest: Counter[str] = Counter()
    cpu: Counter[str] = Counter()
    for nodeid, phase, seconds, _ in rows:
        if phase == "call":
            name = nodeid.partition("[")[0]
            dearest[name] = max(dearest[name], seconds)
            cpu[name] += seconds
    for name in sorted(name for name in dearest if dearest[name] >= least_s):
        print(f"{name}  # {cpu[name]:.1f}")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        dear(sys.argv[1], float(sys.argv[2]))
    else:
        main(sys.argv[1])
