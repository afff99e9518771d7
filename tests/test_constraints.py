"""constraints.txt: what each target installs is there, pinned, with hashes, and all it needs."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

HERE = Path(__file__).resolve().parents[1]


@pytest.fixture
def requirements(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.chdir(HERE)
    place = HERE / ".ci" / "requirements.py"
    spec = importlib.util.spec_from_file_location("requirements", place)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "requirements", found)
    spec.loader.exec_module(found)
    return found


def test_every_package_is_pinned_with_hashes_and_no_place_to_get_it(
    requirements: ModuleType,
) -> None:
    lock = requirements.read_lock()
    for one in lock.values():
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", one.pin), one
        assert one.hashes, one
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", value) for value in one.hashes), one
    text = (HERE / "constraints.txt").read_text()
    assert "://" not in text
    assert "index-url" not in text


@pytest.mark.parametrize(
    "which", ["build", "wheels", "run", "demo", "dev", "peers", "site", "long", "fuzz"]
)
def test_what_a_target_installs_is_what_pyproject_asks_for(
    requirements: ModuleType, which: str
) -> None:
    lock = requirements.read_lock()
    wanted = requirements.requirements(which)
    found = requirements.with_all_they_need(wanted, lock)
    for text in wanted:
        asked = Requirement(text)
        one = lock[requirements.name_of(asked.name)]
        assert asked.specifier.contains(one.pin.partition("==")[2]), (text, one.pin)
    needed_by = {requirements.name_of(parent) for name in found for parent in lock[name].wanted_by}
    assert needed_by & set(found) or which in ("build", "peers", "fuzz"), (
        "what they need is there, too"
    )


def test_what_is_missing_is_named(requirements: ModuleType) -> None:
    with pytest.raises(ValueError, match="has no 'nonsense': make constraints KEEP=1"):
        requirements.with_all_they_need(["nonsense>=1"], requirements.read_lock())


def test_all_extras_are_in_a_target(requirements: ModuleType) -> None:
    extras = tomllib.loads((HERE / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    asked = {r for found in extras.values() for r in found if not r.startswith("tallymark")}
    assert asked <= set(requirements.every_requirement())


def test_every_extra_of_users_is_in_the_readme() -> None:
    extras = tomllib.loads((HERE / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    ours = {"dev", "peers", "site", "long", "fuzz"}
    """What only this repository's own targets install."""
    named = set(re.findall(r"^\| `'\.\[(\w+)\]'` \|", (HERE / "README.md").read_text(), re.M))
    assert named == set(extras) - ours
