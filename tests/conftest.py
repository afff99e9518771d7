"""For every test: which of them are part of a run, and which worker has them.

Hypothesis does not time its examples: how long one takes is the machine's. It makes few of them in
a brief run, and more in the long ones. `make test` and CI try the same examples each time, so that
what fails there was changed by what is tested; `make test-long` looks for new ones.
"""

from __future__ import annotations

import gc

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.support.long import is_wanted, sized

settings.register_profile("brief", deadline=None, max_examples=30, derandomize=True)
settings.register_profile("ci", deadline=None, max_examples=100, derandomize=True)
settings.register_profile("all", deadline=None, max_examples=1000)
settings.load_profile(sized("brief", "ci", "all"))

SPARK = "tests/spark/"
PAGES = "tests/docs/"
FIRST = (SPARK, PAGES, "tests/faults/", "tests/interop/", "tests/server/", "tests/client/")
"""Folders with the longest tests: begun at the end one of them would keep a worker alone."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what another run has, and begin with what takes longest."""
    wanted = [item for item in items if is_wanted(item)]
    config.hook.pytest_deselected(items=[item for item in items if not is_wanted(item)])
    items[:] = sorted(wanted, key=_rank)


def _rank(item: pytest.Item) -> int:
    return next((n for n, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST))


class Files(LoadScopeScheduling):
    """A file keeps to one worker, and with it what its tests share; all that needs Spark keeps to
    one too, as a session of it is the dearest of all. Pages share nothing and take long."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(PAGES):
            return nodeid
        return SPARK if nodeid.startswith(SPARK) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Files:
    config.option.loadscopereorder = False  # they are in order
    return Files(config, log)


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: whoever collects garbage, as every test
    under a virtual clock does, need not look through it each time."""
    gc.collect()
    gc.freeze()
