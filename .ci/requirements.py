#!/usr/bin/env python3
"""Print which packages of constraints.txt a target installs, with the hashes of their files.

requirements.py build     what builds packages that come as source
requirements.py wheels    what builds a compiled wheel of Tallymark
requirements.py run       what runs
requirements.py demo      what runs, and the extras spark and demo
requirements.py dev       what runs, and every extra but those below
requirements.py peers     the extra peers
requirements.py site      the extra site
requirements.py long      the extras long, site, iceberg, connect and examples

Each with all that it needs in turn, so that pip can check every file it
installs (--require-hashes).
"""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

LOCK = Path("constraints.txt")
BUILD = ["setuptools", "wheel"]
APART = ("peers", "site", "long", "fuzz", "iceberg", "connect", "examples")
"""Extras that are installed by the targets that need them."""


@dataclass
class Locked:
    """One package of constraints.txt."""

    pin: str
    """NAME==VERSION."""
    marker: str
    """Where it is needed; empty: everywhere."""
    hashes: list[str] = field(default_factory=list)
    wanted_by: list[str] = field(default_factory=list)
    """Packages that need it."""


def requirements(which: str) -> list[str]:
    """What pyproject.toml asks for. Raises KeyError for a word that is none of these."""
    whole = tomllib.loads(Path("pyproject.toml").read_text())
    project = whole["project"]
    extras = project["optional-dependencies"]
    chosen = {
        "build": [],
        "wheels": [],
        "run": [],
        "demo": ["spark", "demo"],
        "dev": [name for name in extras if name not in APART],
        "peers": ["peers"],
        "site": ["site"],
        "long": ["long", "site", "iceberg", "connect", "examples"],
        "fuzz": ["fuzz"],
    }[which]
    found = list(project["dependencies"]) if which in ("run", "demo", "dev") else []
    found += BUILD if which in ("build", "wheels") else []
    found += whole["build-system"]["requires"] if which == "wheels" else []
    found += [r for name in chosen for r in extras[name] if not r.startswith("tallymark")]
    return list(dict.fromkeys(found))


def every_requirement() -> list[str]:
    found = [r for which in ("build", "dev", "peers", "long", "fuzz") for r in requirements(which)]
    return list(dict.fromkeys(found))


def name_of(requirement: str) -> str:
    """As packages are compared by name.

    >>> name_of("mypy_extensions>=1.0; sys_platform != 'win32'"), name_of("mypy[mypyc]==2")
    ('mypy-extensions', 'mypy')
    """
    found = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    if found is None:
        raise ValueError(f"{requirement!r}, expected the name of a package first")
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def read_lock(text: str | None = None) -> dict[str, Locked]:
    """Packages by name, of constraints.txt or of what the resolver wrote.

    Raises ValueError: a line is none that belongs there.
    """
    found: dict[str, Locked] = {}
    one: Locked | None = None
    for line in (LOCK.read_text() if text is None else text).splitlines():
        word = line.strip().removesuffix("\\").strip()
        if not line.startswith(" "):
            if word and not word.startswith("#"):
                pin, _, marker = (part.strip() for part in word.partition(";"))
                one = found[name_of(pin)] = Locked(pin, marker)
        elif one is None:
            raise ValueError(f"{line!r}, expected NAME==VERSION before it")
        elif word.startswith("--hash="):
            one.hashes.append(word.removeprefix("--hash="))
        elif word.startswith("#"):
            names = word.lstrip("# ").removeprefix("for ").removeprefix("via").split(",")
            one.wanted_by += [n.strip() for n in names if n.strip() and n.strip()[0] not in "-/"]
        else:
            raise ValueError(f"{line!r}, expected a hash or a comment")
    return found


def with_all_they_need(wanted: list[str], lock: dict[str, Locked]) -> list[str]:
    """Names, sorted. Raises ValueError: constraints.txt has not what pyproject.toml asks for."""
    needs: dict[str, list[str]] = {}
    for name, one in lock.items():
        for parent in one.wanted_by:
            needs.setdefault(name_of(parent), []).append(name)
    found: set[str] = set()
    left = [name_of(requirement) for requirement in wanted]
    while left:
        name = left.pop()
        if name not in lock:
            raise ValueError(f"{LOCK} has no {name!r}: make constraints KEEP=1")
        if name not in found:
            found.add(name)
            left += needs.get(name, [])
    return sorted(found)


def main(which: str) -> None:
    lock = read_lock()
    for name in with_all_they_need(requirements(which), lock):
        one = lock[name]
        head = f"{one.pin} ; {one.marker}" if one.marker else one.pin
        print(" \\\n    ".join([head, *(f"--hash={value}" for value in one.hashes)]))


if __name__ == "__main__":
    main(sys.argv[1])
