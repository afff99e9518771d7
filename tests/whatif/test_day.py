"""A day of mixed traffic, played again as it was: every queue's account comes out exactly, and what
became of each message at the time at which it did."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.day_of_traffic import Day, Plan
from tallymark.whatif.comparison import faithfulness_lines
from tallymark.whatif.figures import compare_fates
from tallymark.whatif.reading import read_recording
from tallymark.whatif.world import World
from tests.support.long import sized

TRANSITIONS = sized(1, 1, 400_000)
"""Fewer than there are in 240 steps, the least, are as many as in these."""


@pytest.mark.longer(ci=False)
def test_a_day_of_mixed_traffic_is_what_it_was(tmp_path: Path) -> None:
    Day(tmp_path, Plan(TRANSITIONS, segment_bytes=1 << 20, is_awake=True)).run()
    recording = read_recording(tmp_path)
    outcome = World(recording).run()
    found = compare_fates(recording.fates, outcome.fates)
    said = "\n".join(faithfulness_lines(found))
    assert found["is_exact"], said
    for queue in found["queues"]:
        assert queue["near"] >= 0.99 * queue["messages"], said
    kept = {name[1] for name, fates in recording.fates.items() if fates.ids}
    assert kept >= {
        "bill", "work", "retry", "orders", "mail", "ring", "retried", "urgent", "once", "table",
        "full", "parked", "log", "events:", "events:billing", "events:archive",
    }  # fmt: skip
