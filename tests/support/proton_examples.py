"""Apache Qpid Proton's example programs (C++ and C), compiled from the sources Debian ships.

    examples = ProtonExamples(folder)            # raises CannotBeHad, which says what is missing
    examples.run("simple_send", "-a", f"127.0.0.1:{port}/q", "-m", "10")

Needed are a compiler and three packages, which nothing here installs:

    apt-get install --no-install-recommends g++ libqpid-proton-cpp12-dev \\
        libqpid-proton11-dev libqpid-proton11-dev-examples
"""

from __future__ import annotations

import glob
import shutil
import subprocess
from pathlib import Path
from types import TracebackType

from tests.support.patience import PATIENCE_S
from tests.support.proton_broker import CannotBeHad

SOURCES = Path("/usr/share/proton/examples")
HEADER = Path("/usr/include/proton/container.hpp")
LIBRARIES = (
    "libqpid-proton-cpp.so.12",
    "libqpid-proton-proactor.so.1",
    "libqpid-proton-core.so.10",
)


class ProtonExamples:
    """The programs, each compiled when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for tool in ("g++", "gcc"):
            if shutil.which(tool) is None:
                raise CannotBeHad(f"{tool} is not here")
        for path in (SOURCES / "cpp", SOURCES / "c", HEADER):
            if not path.exists():
                raise CannotBeHad(f"{path} is not here")
        self._libraries = [_library(name) for name in LIBRARIES]

    def binary(self, name: str) -> Path:
        """The program: `simple_send` of the examples in C++, `c/send` of those in C."""
        made = self._folder / name.replace("/", "-")
        if not made.exists():
            if name.startswith("c/"):
                command = ["gcc", str(SOURCES / f"{name}.c")]
            else:
                command = ["g++", "-std=c++11", str(SOURCES / "cpp" / f"{name}.cpp")]
            done = subprocess.run(
                [*command, "-o", str(made), *self._libraries, "-lpthread"],
                capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            )  # fmt: skip
            if done.returncode:
                raise CannotBeHad(f"{name} does not compile: {done.stderr[-500:]}")
        return made

    def run(self, name: str, *arguments: str) -> list[str]:
        """Its output's lines. It must end by itself, and well."""
        done = subprocess.run(
            [self.binary(name), *arguments],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{name} {arguments}: {done.returncode}: {done.stderr}"
        return done.stdout.splitlines()

    def fails(self, name: str, *arguments: str) -> str:
        """What it says on stderr when it ends badly."""
        done = subprocess.run(
            [self.binary(name), *arguments],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 1, f"{name} {arguments}: {done.returncode}: {done.stdout}"
        return done.stderr

    def start(self, name: str, *arguments: str) -> Running:
        """One that goes on until it is stopped."""
        return Running(self.binary(name), arguments)


class Running:
    """A program that runs within a `with` block."""

    def __init__(self, binary: Path, arguments: tuple[str, ...]) -> None:
        # stdbuf: lines as they are written; the programs write to a pipe in blocks.
        self._process = subprocess.Popen(
            ["stdbuf", "-oL", str(binary), *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def lines(self, count: int) -> list[str]:
        """The next lines of its output, as soon as they are there; fewer: it ended."""
        assert self._process.stdout is not None
        read = [self._process.stdout.readline().rstrip("\n") for _ in range(count)]
        return [line for line in read if line]

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()


def _library(name: str) -> str:
    for folder in ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib"):
        found = glob.glob(f"{folder}/{name}")
        if found:
            return found[0]
    raise CannotBeHad(f"{name} is not here")
