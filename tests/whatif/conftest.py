"""A generated day of mixed traffic, made once for the tests that play it in different ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.day_of_traffic import Day, Plan
from tallymark.whatif.reading import read_recording
from tallymark.whatif.recording import Recording
from tests.support.long import sized

TRANSITIONS = sized(1, 1, 60_000)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The day's data folder; not to be changed."""
    folder = tmp_path_factory.mktemp("day")
    Day(folder, Plan(TRANSITIONS, segment_bytes=1 << 20, is_awake=True)).run()
    return folder


@pytest.fixture(scope="session")
def recording(data: Path) -> Recording:
    """What the day's ledger tells; worlds do not change it."""
    return read_recording(data)
