"""Modules and what they import. The arrows between layers and rooms are in pyproject.toml, where
import-linter reads them."""

from __future__ import annotations

import pytest

from tools.figures import circles, modules


@pytest.mark.parametrize("for_types", [False, True])
def test_no_modules_import_each_other(for_types: bool) -> None:
    """Neither at run time, nor with what they import for annotations only."""
    assert circles(modules(), for_types) == []
