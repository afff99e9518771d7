"""Apache Qpid Proton's example broker (C++), built from Debian's packages where that is possible.

    broker = ProtonBroker(folder)      # raises CannotBeHad, which says why
    with broker:
        connect(f"amqp://127.0.0.1:{broker.port}")

Nothing is installed: the packages are fetched with `apt-get download` and unpacked in the folder.
PROTON_BROKER names one that is built already.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType

from tests.support.patience import PATIENCE_S, until
from tests.support.ports import reserved
from tests.support.rabbitmq import listens

PACKAGES = (
    "libqpid-proton11",
    "libqpid-proton-cpp12",
    "libqpid-proton-cpp12-dev",
    "libqpid-proton11-dev",
    "libqpid-proton11-dev-examples",
)
LIBRARIES = (
    "libqpid-proton-cpp.so.12",
    "libqpid-proton-proactor.so.1",
    "libqpid-proton-core.so.10",
)
STEP_S = PATIENCE_S


class CannotBeHad(Exception):
    """There is no such broker here; the text says what is missing."""


class ProtonBroker:
    """The example broker as a process on a free port. Queues come to be when they are named."""

    def __init__(self, folder: Path) -> None:
        given = os.environ.get("PROTON_BROKER")
        self.binary = Path(given) if given else build(folder)
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ProtonBroker:
        self.port = reserved()
        self._process = subprocess.Popen(
            [self.binary, "-a", f"127.0.0.1:{self.port}"], stdout=subprocess.DEVNULL
        )
        process = self._process
        until(lambda: listens(self.port) or process.poll() is not None, what=self.binary)
        if not listens(self.port):
            self._end()
            raise CannotBeHad("the example broker does not start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def build(folder: Path) -> Path:
    """The broker's binary, made in the folder. Raises CannotBeHad."""
    for tool in ("apt-get", "dpkg", "g++"):
        if shutil.which(tool) is None:
            raise CannotBeHad(f"{tool} is not here")
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    _step("packages", folder, "apt-get", "download", "-q", *PACKAGES)
    root = folder / "root"
    for package in folder.glob("*.deb"):
        _step(package.name, folder, "dpkg", "-x", package, root)
    usr = root / "usr"
    libraries = usr / "lib" / f"{platform.machine()}-linux-gnu"
    source = usr / "share/proton/examples/cpp/broker.cpp"
    if not source.exists():
        raise CannotBeHad(f"{source.name} is not in the packages")
    binary = folder / "broker"
    _step(
        "build", folder, "g++", "-std=c++11", f"-I{usr}/include", source, "-o", binary,
        *[libraries / name for name in LIBRARIES], "-lpthread",
        f"-Wl,-rpath,{libraries},--disable-new-dtags",
    )  # fmt: skip
    print(f"built Proton's example broker in {time.monotonic() - began:.1f} s")
    return binary


def _step(what: str, folder: Path, *command: str | Path) -> None:
    try:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=STEP_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CannotBeHad(f"{what}: {command[0]} takes more than {STEP_S} s") from None
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or [""]
        raise CannotBeHad(f"{what}: {command[0]} failed: {last[0]}")
