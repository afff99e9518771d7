"""For every test: Hypothesis does not time its examples. How long one takes is the machine's.

With --hypothesis-profile=brief it makes fewer: what runs interpreted runs again as installed."""

from __future__ import annotations

import gc

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.register_profile("brief", deadline=None, max_examples=30)
settings.load_profile("untimed")


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: whoever collects garbage, as every test
    under a virtual clock does, need not look through it each time."""
    gc.collect()
    gc.freeze()
