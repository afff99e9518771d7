"""For every test: which of them are part of a run, and which worker has them.

Hypothesis does not time its examples: how long one takes is the machine's. It makes the same ones
in each brief run, and others in the long ones.
"""

from __future__ import annotations

import gc

import pytest
from hypothesis import settings

from tests.support.long import is_wanted, sized

settings.register_profile("brief", deadline=None, max_examples=30)
settings.register_profile("ci", deadline=None, max_examples=100)
settings.register_profile("all", deadline=None, max_examples=1000)
settings.load_profile(sized("brief", "ci", "all"))

FIRST = ("tests/spark/", "tests/faults/", "tests/interop/", "tests/server/", "tests/client/")
"""Folders with the longest tests: begun at the end one of them would keep a worker alone."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what another run has; keep a file on one worker, and with it what its tests share;
    all that needs Spark on one too, as a session of it is the dearest of all."""
    wanted = [item for item in items if is_wanted(item)]
    config.hook.pytest_deselected(items=[item for item in items if not is_wanted(item)])
    for item in wanted:
        path = item.nodeid.partition("::")[0]
        has_session = "spark" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("spark" if has_session else path))
    wanted.sort(key=_rank)
    items[:] = wanted


def _rank(item: pytest.Item) -> tuple[bool, int]:
    group = item.get_closest_marker("xdist_group")
    assert group is not None
    place = next((n for n, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST))
    return (group.args[0] != "spark", place)


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: whoever collects garbage, as every test
    under a virtual clock does, need not look through it each time."""
    gc.collect()
    gc.freeze()
