"""Half an hour a night of the worlds' clients against a real broker."""

from __future__ import annotations

import pytest

from tests.real.__main__ import rounds
from tests.support.long import seeded

MINUTES = 30


@pytest.mark.long(ci=False)
@pytest.mark.timeout(60 * MINUTES + 1800)
def test_half_an_hour_of_rounds() -> None:
    assert rounds(seeded(1), MINUTES) == 0
