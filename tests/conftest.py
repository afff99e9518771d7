"""For every test: Hypothesis does not time its examples. How long one takes is the machine's."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
