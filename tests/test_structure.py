"""Modules and what they import. The arrows between layers and rooms are in pyproject.toml, where
import-linter reads them."""

from __future__ import annotations

from tools.figures import circles, modules


def test_no_modules_import_each_other_at_run_time() -> None:
    assert circles(modules(), for_types=False) == []


def test_what_is_left_of_circles_by_types_grows_no_more() -> None:
    """Each of these modules names the other's classes in its annotations."""
    found = circles(modules(), for_types=True)
    assert [len(one) for one in found] == LEFT, found


LEFT = [4, 2]
"""Sizes of the circles, largest first: a change makes them smaller, and this list shorter."""
