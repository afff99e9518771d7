#!/usr/bin/env python3
"""Build what is installed elsewhere: the source, the broker's wheels and the connector's.

    wheels.py DIST [sdist | compiled | pure | spark ...]

sdist       the source; what pip builds of it is compiled where there is a C compiler
compiled    tallymark for this platform and Python
pure        tallymark for every platform, interpreted
spark       tallymark-spark: what a Spark job imports, and nothing of the broker; and the same as a
            zip, since spark-submit takes no file that is called .whl

Without a word, all of them. setuptools must be installed, for a compiled wheel mypy too.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SPARK = ROOT / "deploy" / "spark"


def backend(folder: Path, call: str, dist: Path, **variables: str) -> Path:
    """Have setuptools build the project in a folder; `call`: its function of PEP 517. Return the
    file. Raises CalledProcessError."""
    dist.mkdir(parents=True, exist_ok=True)
    program = f"from setuptools import build_meta; print('made', build_meta.{call}({str(dist)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dist / re.findall(r"^made (\S+)$", done.stdout, re.M)[-1]


def clear() -> None:
    """Remove what a wheel before has left to be put into the next one. Objects stay."""
    for left in (*(ROOT / "build").glob("lib*"), *(ROOT / "build").glob("bdist*")):
        shutil.rmtree(left)


def sdist(dist: Path) -> Path:
    return backend(ROOT, "build_sdist", dist)


def compiled(dist: Path) -> Path:
    """Raises ValueError: there is no compiler, or a module has an error; what was said tells."""
    clear()
    made = backend(ROOT, "build_wheel", dist)
    with zipfile.ZipFile(made) as wheel:
        if not any(name.endswith(".so") for name in wheel.namelist()):
            raise ValueError(f"{made.name} has no compiled modules; the build says above why")
    return made


def pure(dist: Path) -> Path:
    clear()
    return backend(ROOT, "build_wheel", dist, TALLYMARK_PURE="1")


def spark(dist: Path) -> Path:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        lay_out_spark(folder)
        wheel = backend(folder, "build_wheel", dist)
    name, version = wheel.name.split("-")[:2]
    shutil.copyfile(wheel, dist / f"{name}-{version}.zip")
    return wheel


# The connector


def file_of(module: str) -> Path | None:
    """The source of a module of ours; None: there is none of that name."""
    base = ROOT / "src" / module.replace(".", "/")
    places = (base / "__init__.py", base.with_suffix(".py"))
    return next((place for place in places if place.exists()), None)


def imported_by(tree: ast.AST) -> Iterator[str]:
    """Names of modules, and of what may be modules in them; not those for types alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from imported_by(node)


def needed_by(roots: list[str]) -> dict[str, Path]:
    """The modules of ours that these import, in turn, and themselves, by name."""
    found: dict[str, Path] = {}
    left = list(roots)
    while left:
        module = left.pop()
        file = file_of(module)
        if file is None or module in found:
            continue
        found[module] = file
        left += imported_by(ast.parse(file.read_text()))
        if "." in module:
            left.append(module.rpartition(".")[0])
    return found


def lay_out_spark(folder: Path) -> None:
    """Write the connector's project: its modules, and stand-ins for packages in C."""
    project = (SPARK / "pyproject.toml").read_text()
    ours = tomllib.loads(project)["tool"]["tallymark"]
    in_c = re.compile(
        rf"^from ({'|'.join(map(re.escape, ours['standins']['modules']))}) import", re.M
    )
    for file in needed_by(ours["roots"]).values():
        target = folder / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(in_c.sub("from tallymark.standins import", file.read_text()))
    shutil.copy(SPARK / "standins.py", folder / "src/tallymark/standins.py")
    shutil.copy(ROOT / "src/tallymark/py.typed", folder / "src/tallymark/py.typed")
    shutil.copy(ROOT / "LICENSE", folder / "LICENSE")
    shutil.copy(SPARK / "README.md", folder / "README.md")
    (folder / "pyproject.toml").write_text(project)


KINDS: dict[str, Callable[[Path], Path]] = {
    "sdist": sdist,
    "compiled": compiled,
    "pure": pure,
    "spark": spark,
}


def main(dist: str, *words: str) -> None:
    unknown = set(words) - set(KINDS)
    if unknown:
        sys.exit(f"{sorted(unknown)}, expected some of {list(KINDS)}")
    for word in words or KINDS:
        made = KINDS[word](Path(dist).resolve())
        print(f"{word}: {made.name}, {made.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
