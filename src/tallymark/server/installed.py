"""Entry points of installed packages, found without opening every package.

importlib.metadata reads what every package in the environment offers, and is slow to import itself.
A start asks about two groups that hardly any package has, so the files are searched for the group's
name first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

FOLDERS = (".dist-info", ".egg-info")


def installed(group: str) -> Iterable[EntryPoint]:
    """The entry points of a group."""
    if not any(_names(file, group) for file in _files()):
        return ()
    from importlib.metadata import entry_points

    return entry_points(group=group)


def _files() -> Iterator[Path]:
    """entry_points.txt of every package; what is no folder on the path is given as it is."""
    for place in sys.path:
        try:
            found = list(os.scandir(place or "."))
        except NotADirectoryError:
            yield Path(place)
            continue
        except OSError:
            continue
        for entry in found:
            if entry.name.endswith(FOLDERS):
                yield Path(entry.path, "entry_points.txt")


def _names(file: Path, group: str) -> bool:
    """Return whether the file may say something of the group; an archive may."""
    try:
        return file.name != "entry_points.txt" or group in file.read_text(errors="replace")
    except OSError:
        return False
