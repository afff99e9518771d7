"""For every test: which of them are part of a run, and which worker has them.

Hypothesis does not time its examples: how long one takes is the machine's. It makes few of them in
a brief run, and more in the long ones. `make test` and CI try the same examples each time, so that
what fails there was changed by what is tested; `make test-long` looks for new ones.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.support.long import DEAR, is_wanted, long, sized

settings.register_profile("brief", deadline=None, max_examples=30, derandomize=True)
settings.register_profile("ci", deadline=None, max_examples=60, derandomize=True)
settings.register_profile("all", deadline=None, max_examples=1000)
settings.load_profile(sized("brief", "ci", "all"))

ROOT = Path(__file__).parents[1]
SPARK = "tests/spark/"
PAGES = "tests/docs/"
FIRST = (SPARK, PAGES, "tests/faults/", "tests/interop/", "tests/server/", "tests/client/")
"""Folders with the longest tests: begun at the end one of them would keep a worker alone."""
SESSIONS = 2
"""How many workers start a session of Spark: one alone is still at it when the others are done."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what another run has, and begin with what takes longest."""
    for item in items:
        if item.nodeid.partition("[")[0] in DEAR:
            item.add_marker(long)
    wanted = [item for item in items if is_wanted(item)]
    config.hook.pytest_deselected(items=[item for item in items if not is_wanted(item)])
    items[:] = sorted(wanted, key=_rank)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests that passed have to say (record_property "said"): which seeds they drew."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "said":
                terminalreporter.write_line(f"{report.nodeid}: {value}")


def _rank(item: pytest.Item) -> tuple[int, bool]:
    place = next((n for n, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST))
    return place, not needs_session(_file_of(item.nodeid))


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@cache
def needs_session(file: str) -> bool:
    """Return whether tests of a file use the fixture `spark`."""
    return file.startswith(SPARK) and "SparkSession" in (ROOT / file).read_text()


class Files(LoadScopeScheduling):
    """A file keeps to one worker, and with it what its tests share. Those that need a session of
    Spark keep to few workers, as it is the dearest of all to start. Pages share nothing and take
    long."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(PAGES) else _file_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a worker the next file that goes with it. One without a session ends where all that
        is left needs one; one with a session goes on with the others' files."""
        sessions = max(1, min(SESSIONS, self.numnodes // 3))
        working = [one for one in self.nodes if not one.shutting_down]
        has_session = node in working[:sessions]
        fits = (scope for scope in self.workqueue if needs_session(_file_of(scope)) == has_session)
        scope = next(fits, None)
        if scope is not None:
            self.workqueue.move_to_end(scope, last=False)
        elif not has_session:
            node.shutdown()
            return
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Files:
    config.option.loadscopereorder = False  # they are in order
    return Files(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage at the end, once: all that collecting makes is kept."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: whoever collects garbage, as every test
    under a virtual clock does, need not look through it each time."""
    gc.collect()
    gc.freeze()
