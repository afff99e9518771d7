"""Start and stop the brokers that the benchmarks measure, and read what they cost.

Every broker gets a data folder and ports of its own, and is stopped by its own pid. CPU time is
user plus system time of the process and all its descendants, from /proc.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
READY_TIMEOUT_S = 180
STOP_TIMEOUT_S = 30
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
SOURCES = Path(__file__).resolve().parents[1] / "src"
API = "/api/tallymark"
"""Where Tallymark's own HTTP API begins."""


class BrokerFailed(Exception):
    """A broker did not come up, or ended with an error; the text holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Running:
    """A broker that accepts connections."""

    name: str
    pid: int
    port: int
    http_port: int | None
    start_s: float
    """From exec to the ready line (Tallymark) or to the first AMQP answer (RabbitMQ)."""
    note: str
    nsq_port: int | None = None


def free_port() -> int:
    """A TCP port nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def tallymark(
    folder: Path,
    *flags: str,
    crash: bool = False,
    interpreted: bool = False,
    patience_s: float = READY_TIMEOUT_S,
) -> Iterator[Running]:
    """`tallymark serve` on `folder` with free ports; stopped with SIGTERM at the end, with
    SIGKILL when a `crash` is wanted. interpreted: from the sources here, not as installed.
    patience_s: for its start.

    Raises:
        BrokerFailed: it did not get ready, or did not end with exit code 0.
    """
    log = folder.parent / f"{folder.name}.log"
    command = [sys.executable, "-m", "tallymark", "serve", "--data-dir", str(folder)]
    command += ["--amqp-port", "0", "--http-port", "0", "--nsq-port", "0", "--nsq-http-port", "0"]
    command += ["--log-level", "warning", *flags]
    paths = os.environ | ({"PYTHONPATH": str(SOURCES)} if interpreted else {})
    began = time.perf_counter()
    with log.open("ab") as stderr:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, env=paths, start_new_session=True
        )
    try:
        ready = _ready_line(process, log, patience_s)
        yield Running(
            name="tallymark",
            pid=process.pid,
            port=ready["amqp"][1],
            http_port=ready["http"][1],
            start_s=time.perf_counter() - began,
            note="compiled" if ready["compiled"] else "interpreted",
            nsq_port=ready["nsq"][1],
        )
        if process.poll() is not None:
            raise BrokerFailed(f"tallymark ended early, {process.returncode}: {_tail(log)}")
    finally:
        if crash:
            process.kill()
        code = _stop(process)
    if code != (-signal.SIGKILL if crash else 0):
        raise BrokerFailed(f"tallymark ended with {code}, expected 0: {_tail(log)}")


def _ready_line(
    process: subprocess.Popen[bytes], log: Path, patience_s: float
) -> dict[str, list[object]]:
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], patience_s)[0]:
        raise BrokerFailed(f"tallymark not ready within {patience_s} s: {_tail(log)}")
    line = process.stdout.readline()
    if not line:
        raise BrokerFailed(f"tallymark ended with {process.wait()}: {_tail(log)}")
    ready: dict[str, list[object]] = json.loads(line)
    return ready


def rabbitmq_installed() -> bool:
    """Whether Debian's rabbitmq-server package is there."""
    return RABBITMQ.exists() and shutil.which("epmd") is not None


@contextmanager
def rabbitmq(folder: Path, *plugins: str) -> Iterator[Running]:
    """RabbitMQ as Debian installs it, on free ports, with its files under `folder`.

    Raises:
        BrokerFailed: it did not answer within READY_TIMEOUT_S.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port, name = free_port(), f"bench{os.getpid()}"
    environment = os.environ | {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"{name}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "ERL_EPMD_PORT": str(free_port()),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
    }
    if plugins:
        (folder / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
    log = folder / "stdout.log"
    began = time.perf_counter()
    with log.open("ab") as out:
        mapper = subprocess.Popen(
            ["epmd"], env=environment, stdout=out, stderr=out, start_new_session=True
        )
        process = subprocess.Popen(
            [str(RABBITMQ)], env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        while not _answers(port):
            if process.poll() is not None or time.perf_counter() - began > READY_TIMEOUT_S:
                raise BrokerFailed(f"rabbitmq did not start: {_tail(log)}")
            time.sleep(0.1)
        start_s = time.perf_counter() - began
        yield Running("rabbitmq", process.pid, port, None, start_s, "as packaged")
    finally:
        _stop(process)
        _stop(mapper)


@contextmanager
def nsqd(folder: Path, program: Path) -> Iterator[Running]:
    """nsqd from a path, its files under `folder`. Raises BrokerFailed: it does not answer."""
    port = free_port()
    flags = [f"--tcp-address=127.0.0.1:{port}", f"--http-address=127.0.0.1:{free_port()}"]
    flags += [f"--data-path={folder}", "--max-msg-size=8388608"]
    with _given("nsqd", port, folder, [str(program), *flags]) as broker:
        yield replace(broker, nsq_port=port)


@contextmanager
def lavinmq(folder: Path, program: Path) -> Iterator[Running]:
    """LavinMQ from a path, its files under `folder`. Raises BrokerFailed: it does not answer."""
    port = free_port()
    flags = ["-D", str(folder), "-b", "127.0.0.1", "-p", str(port)]
    flags += [f"--http-port={free_port()}"]
    with _given("lavinmq", port, folder, [str(program), *flags]) as broker:
        yield broker


@contextmanager
def nats(folder: Path, program: Path) -> Iterator[Running]:
    """nats-server from a path, without JetStream. Raises BrokerFailed: it does not answer."""
    port = free_port()
    command = [str(program), "-a", "127.0.0.1", "-p", str(port)]
    with _given("nats", port, folder, command) as broker:
        yield broker


@contextmanager
def _given(name: str, port: int, folder: Path, command: list[str]) -> Iterator[Running]:
    """A broker that is ready as soon as its port accepts connections."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder.parent / f"{folder.name}.log"
    began = time.perf_counter()
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        while not _accepts(port):
            if process.poll() is not None or time.perf_counter() - began > READY_TIMEOUT_S:
                raise BrokerFailed(f"{name} did not start: {_tail(log)}")
            time.sleep(0.1)
        yield Running(name, process.pid, port, None, time.perf_counter() - began, command[0])
    finally:
        _stop(process)


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError:
        return False
    return True


def _answers(port: int) -> bool:
    """Whether an AMQP server greets us there."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as client:
            client.sendall(b"AMQP\x00\x00\x09\x01")
            return client.recv(1) == b"\x01"
    except OSError:
        return False


def _stop(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM, then SIGKILL when that does not end it, for all that it started and left behind;
    returns the exit code. The process leads a session of its own."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
    code = process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return code


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:] if log.exists() else ""


def family(pid: int) -> list[int]:
    """The process and all its descendants that live now."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) is not None:
            parents[int(entry.name)] = int(fields[1])
    found = [pid]
    for member in found:
        found += [child for child, parent in parents.items() if parent == member]
    return found


def cpu_s(pid: int) -> float:
    """CPU seconds used so far by the process, its ended children and its living descendants."""
    ticks = 0
    for member in family(pid):
        if (fields := _stat(member)) is not None:
            ticks += sum(int(value) for value in fields[11:15])
    return ticks / TICKS_PER_S


def memory_mib(pid: int, line: str = "VmHWM") -> float:
    """Memory of the process and its descendants; VmHWM is the peak, VmRSS what it holds now."""
    total_kib = 0
    for member in family(pid):
        try:
            status = Path(f"/proc/{member}/status").read_text()
        except OSError:  # ended since
            continue
        total_kib += sum(
            int(text.split()[1]) for text in status.splitlines() if text.startswith(line + ":")
        )
    return total_kib / 1024


def ask(broker: Running, path: str) -> dict[str, Any]:
    """What Tallymark's HTTP API answers to GET."""
    request = urllib.request.Request(f"http://127.0.0.1:{broker.http_port}{API}{path}")
    request.add_header("Authorization", "Basic " + b64encode(b"guest:guest").decode())
    with urllib.request.urlopen(request, timeout=60) as response:
        found: dict[str, Any] = json.load(response)
    return found


def queue_rows(broker: Running) -> dict[str, dict[str, Any]]:
    """The accounts of Tallymark's queues, by name."""
    return {row["name"]: row for row in ask(broker, "/queues")["queues"]}


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on, or None when the process has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(") ")[2].split()


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for data and logs, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="tallymark-bench-") as folder:
        yield Path(folder)
