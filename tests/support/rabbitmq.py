"""A private RabbitMQ to compare with, where one is installed.

    if (script := find_rabbitmq()) is None:
        pytest.skip("RabbitMQ is not installed")
    with RabbitProcess(script, folder) as rabbit:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", rabbit.port))

It has nothing in common with a RabbitMQ that the machine runs: a node name, ports on 127.0.0.1, an
epmd, a cookie and folders of its own; no plugins and settings but those asked for. The Erlang
machine is our child itself, not a child of the start script, so that it ends by its own pid.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import IO

from tests.support.patience import PATIENCE_S, until
from tests.support.ports import reserved

START_S = PATIENCE_S
STOP_S = PATIENCE_S
SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Debian's package: what is on the PATH there is a wrapper that changes user and folder."""
READY = b"completed with"
"""RabbitMQ's last words on stdout when all is started: `completed with 0 plugins.`"""


def find_rabbitmq() -> Path | None:
    """The start script of an installed RabbitMQ, or None: it, Erlang or epmd is not here."""
    if shutil.which("erl") is None or _epmd() is None:
        return None
    if SCRIPT.exists():
        return SCRIPT
    found = shutil.which("rabbitmq-server")
    return Path(found) if found else None


def _epmd() -> str | None:
    """Erlang's name server; some installations keep it beside the Erlang machine only."""
    if found := shutil.which("epmd"):
        return found
    beside = sorted(Path("/usr/lib/erlang").glob("erts-*/bin/epmd"))
    return str(beside[-1]) if beside else None


class RabbitDied(Exception):
    """RabbitMQ ended instead of becoming ready, or was too slow; shows what it printed."""


class RabbitProcess:
    """One RabbitMQ node on `folder`, which it fills; gone when the block ends."""

    def __init__(
        self,
        script: Path,
        folder: Path,
        plugins: tuple[str, ...] = (),
        settings: tuple[str, ...] = (),
        is_measured: bool = False,
    ) -> None:
        """settings: lines of rabbitmq.conf. is_measured: Erlang's schedulers spin before they
        sleep, as they do where nothing is said; it is quicker by that and costs CPU."""
        self.script = script
        self.settings = settings
        self.is_measured = is_measured
        self.folder = folder
        self.plugins = plugins
        self.port = 0
        """Where it speaks AMQP, on 127.0.0.1."""
        self.version = ""
        """As its banner has it: "3.10.8"."""
        self.seconds_to_ready = 0.0
        self._output = b""
        self._environ: dict[str, str] = {}
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> RabbitProcess:
        began = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port, distribution, names = reserved(), reserved(), reserved()
        self._environ = self._environment(distribution, names)
        try:
            self._start([str(_epmd()), "-port", str(names), "-address", "127.0.0.1"])
            wait_for_listener(names, self._running[0])
            self.restart()
        except BaseException:
            self._stop()
            raise
        found = re.search(rb"RabbitMQ (\d+\.\d+\.\d+)", self._output)
        self.version = found[1].decode() if found else "unknown"
        self.seconds_to_ready = time.monotonic() - began
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def kill(self) -> None:
        """SIGKILL to the Erlang machine."""
        machine = self._running.pop()
        machine.kill()
        machine.communicate()

    def restart(self) -> None:
        """Start on its folder and ports. Raises RabbitDied."""
        self._output = b""
        self._start([str(self.script)])
        self._wait_until_ready()

    @property
    def pid(self) -> int:
        """Of the Erlang machine."""
        return self._running[-1].pid

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The Erlang machine."""
        return self._running[-1]

    @property
    def is_running(self) -> bool:
        return self._running[-1].poll() is None

    def _start(self, command: list[str]) -> None:
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._running.append(process)

    def _environment(self, distribution: int, names: int) -> dict[str, str]:
        plugins = self.folder / "enabled_plugins"
        plugins.write_text(f"[{','.join(self.plugins)}].\n")
        config = self.folder / "rabbitmq.conf"
        lines = (f"listeners.tcp.1 = 127.0.0.1:{self.port}", *self.settings)
        config.write_text("".join(f"{line}\n" for line in lines))
        kept = {name: value for name, value in os.environ.items() if "RABBITMQ" not in name}
        return kept | {
            "HOME": str(self.folder),  # where the cookie is made
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"compared-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}"
                + ("" if self.is_measured else " +sbwt none +sbwtdcpu none +sbwtdio none")
            ),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none.conf"),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "none.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RUNNING_UNDER_SYSTEMD": "1",  # the script becomes the Erlang machine
        }

    def _wait_until_ready(self) -> None:
        server = self._running[-1]
        assert server.stdout is not None
        deadline = time.monotonic() + START_S
        while READY not in self._output:
            chunk = read_some(server.stdout, deadline - time.monotonic())
            if not chunk:
                raise RabbitDied(f"not ready: {self._output.decode(errors='replace')[-3000:]}")
            self._output += chunk

    def _stop(self) -> None:
        """The server first, then epmd, each by its own pid."""
        while self._running:
            process = self._running.pop()
            process.terminate()
            try:
                process.communicate(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                raise


def wait_for_listener(port: int, process: subprocess.Popen[bytes]) -> None:
    """Until somebody answers on `port`. Raises RabbitDied when `process` ended first."""
    until(lambda: listens(port) or process.poll() is not None, what=process.args)
    if not listens(port):
        raise RabbitDied(f"{process.args!r} does not listen on {port}")


def listens(port: int) -> bool:
    """Whether somebody does, on 127.0.0.1."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def read_some(stream: IO[bytes], seconds: float) -> bytes:
    """What is there, waiting for it; b"" at the end of the stream or of the time."""
    readable, _, _ = select.select([stream], [], [], max(0.0, seconds))
    return os.read(stream.fileno(), 65_536) if readable else b""
