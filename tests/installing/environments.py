"""Environments in which nothing is installed but what a wheel asks for.

A wheel is installed by pip into a new virtual environment. What its metadata names is not fetched:
it is linked from where the tests run, each package with those that it names in turn. What the
metadata does not name cannot be imported there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / ".ci" / "wheels.py"


def build(dist: Path, kind: str) -> Path:
    """Run .ci/wheels.py. Return the file that it made."""
    before = set(dist.glob("*"))
    subprocess.run(
        [sys.executable, str(WHEELS), str(dist), kind], check=True, timeout=4 * PATIENCE_S
    )
    (made,) = (made for made in set(dist.glob("*")) - before if made.suffix != ".zip")
    return made


class Environment:
    """A virtual environment without pip, in which nothing is installed yet."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False)
        self.python = folder / "bin" / "python"
        self.packages = next((folder / "lib").glob("python*/site-packages"))

    def install(self, file: Path, *extras: str) -> None:
        """Install a wheel or an sdist, and link what it needs, with these extras.

        Of an sdist is built what a machine without a C compiler gets; the tools for it are linked.
        """
        if file.suffix != ".whl":
            for tool in ("setuptools", "wheel"):
                self.link(tool)
        self.run(
            sys.executable, "-m", "pip", "--disable-pip-version-check", "--python",
            str(self.python), "install", "--quiet", "--no-index", "--no-deps",
            "--no-build-isolation", str(file),
            TALLYMARK_PURE="1",
        )  # fmt: skip
        (info,) = self.packages.glob("tallymark*.dist-info")
        self._link_all(Distribution.at(info), extras)

    def link(self, name: str, extras: Iterable[str] = ()) -> None:
        """Make an installed package importable, and those that it names."""
        found = distribution(name)
        tops = {file.parts[0] for file in found.files or () if file.parts[0] != ".."}
        is_new = False
        for top in tops - {"__pycache__"}:
            if not (self.packages / top).exists():
                (self.packages / top).symlink_to(Path(str(found.locate_file(top))))
                is_new = True
        if is_new:
            self._link_all(found, extras)

    def _link_all(self, found: Distribution, extras: Iterable[str]) -> None:
        ours = found.metadata["Name"]
        for text in found.requires or ():
            asked = Requirement(text)
            wanted = [{"extra": extra} for extra in ("", *extras)]
            if asked.marker is not None and not any(map(asked.marker.evaluate, wanted)):
                continue
            if asked.name == ours:
                self._link_all(found, asked.extras)
            else:
                self.link(asked.name, asked.extras)

    def run(self, *command: str, **variables: str) -> str:
        """Run a program, without the test's own modules. Return what it says."""
        done = subprocess.run(
            command,
            cwd=self.packages.parents[2],
            env=self.variables | variables,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-8000:]}"
        return done.stdout

    def fails(self, *words: str) -> str:
        """Run the environment's Python, which must fail. Return what it says on stderr."""
        done = subprocess.run(
            [self.python, *words],
            cwd=self.packages.parents[2],
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode, done.stdout
        return done.stderr

    @property
    def variables(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
