"""Modules and what they import. The arrows between layers and rooms are in pyproject.toml, where
import-linter reads them."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from tools.figures import ROOT, circles, modules


@pytest.mark.parametrize("for_types", [False, True])
def test_no_modules_import_each_other(for_types: bool) -> None:
    """Neither at run time, nor with what they import for annotations only."""
    assert circles(modules(), for_types) == []


def contracts() -> list[dict[str, Any]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return list(project["tool"]["importlinter"]["contracts"])


def test_no_contract_has_an_exception() -> None:
    assert [one["name"] for one in contracts() if "ignore_imports" in one] == []


def test_every_module_of_the_engine_has_its_layer() -> None:
    [layers] = [one["layers"] for one in contracts() if "of the engine" in one["name"]]
    listed = [module for layer in layers for module in layer.split(" : ")]
    packages = ["tallymark.engine", "tallymark.engine.slow"]
    found = [name for name in modules() if name.startswith("tallymark.engine")]
    assert sorted(listed) == sorted(set(found) - set(packages))
