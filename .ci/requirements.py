#!/usr/bin/env python3
"""Print what pyproject.toml asks for, one requirement a line.

requirements.py demo      what runs, and the extras spark and demo
requirements.py dev       what runs, and every extra but peers
requirements.py peers     the extra peers
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(which: str) -> list[str]:
    """Raises KeyError for a word that is none of the three."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    chosen = {
        "demo": ["spark", "demo"],
        "dev": [name for name in extras if name != "peers"],
        "peers": ["peers"],
    }[which]
    found = [] if which == "peers" else list(project["dependencies"])
    found += [r for name in chosen for r in extras[name] if not r.startswith("tallymark")]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    print(*requirements(sys.argv[1]), sep="\n")
