"""A real broker as a process of its own, on free ports, as a user would start it.

    with BrokerProcess(folder) as broker:
        connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))

The broker runs with the interpreter and the module path of the test: interpreted from src with
PYTHONPATH=src, otherwise as installed. Its imports were done once for all brokers, see forked.py.
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support import forked
from tests.support.patience import PATIENCE_S, until
from tests.support.ports import reserved

START_S = PATIENCE_S
STOP_S = PATIENCE_S
PATIENT = {"heartbeat_s": "0", "handshake_timeout_ms": str(int(PATIENCE_S * 1000))}
"""A client that takes long to log in, or has nothing to say, is slow and not gone: the machine may
have ten programs to a core."""

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, but not of those below it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def ended_cpu_seconds(pid: int) -> float:
    """User and system time of those below a process that have ended, and that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / TICKS


class BrokerDied(Exception):
    """The broker ended instead of becoming ready, or within a call; shows its stderr."""


class BrokerProcess:
    """`tallymark serve` on a data folder. Options are flags: max_memory="64MiB".

    is_forked: see forked.py; otherwise the interpreter is started for it.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        env: dict[str, str] | None = None,
        is_forked: bool = True,
        has_nsq: bool = True,
        keeps_ports: bool = False,
        **flags: str,
    ) -> None:
        """has_nsq: ask for NSQ's listeners; otherwise nothing is said of them. keeps_ports: after a
        restart AMQP and HTTP are where they were, and nobody else got there in between."""
        if keeps_ports:
            flags = {"amqp_port": str(reserved()), "http_port": str(reserved()), **flags}
        self.is_forked = is_forked
        self._has_nsq = has_nsq
        self.data_dir = data_dir
        self.flags = flags
        self.log_file = data_dir.parent / f"{data_dir.name}.log"
        self.ready: dict[str, Any] = {}
        self.seconds_to_ready = 0.0
        self._env = {**os.environ, **(env or {})}
        self._process: forked.Process | None = None

    # -- life

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tallymark", *self.arguments()]

    def arguments(self) -> list[str]:
        """Of `tallymark`."""
        arguments = ["serve", "--data-dir", str(self.data_dir)]
        free = ["amqp_port", "http_port"]
        if self._has_nsq:
            free += ["nsq_port", "nsq_http_port", "nsq_https_port"]
        flags = {**dict.fromkeys(free, "0"), **PATIENT, **self.flags}
        for name, value in flags.items():
            arguments += [f"--{name.replace('_', '-')}", value]
        return arguments

    def start(self) -> BrokerProcess:
        """Returns when the ready line is there. Raises BrokerDied."""
        began = time.monotonic()
        with self.log_file.open("ab") as log:
            begin = forked.popen if self.is_forked else forked.popen_fresh
            self._process = begin(self.command(), self._env, log)
        line = self._first_line()
        if not line:
            code = self._process.wait(STOP_S)
            raise BrokerDied(f"exit code {code}: {self.log()[-2000:]}")
        self.ready = json.loads(line)
        self.seconds_to_ready = time.monotonic() - began
        return self

    def stop(self) -> int:
        """SIGTERM; returns the exit code, 0 when it stopped cleanly."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: what a crash of the machine's power leaves out is all that is kept."""
        self._end(signal.SIGKILL)

    def kill_while_starting(self, after_cpu_s: float) -> None:
        """Start it and kill it when it has worked so long, in seconds of CPU, or is ready.

        BrokerDied: it ended by itself.
        """
        with self.log_file.open("ab") as log:
            starting = forked.popen(self.command(), self._env, log)
        assert starting.stdout is not None
        said = [starting.stdout]
        until(
            lambda: select.select(said, [], [], 0)[0] or cpu_seconds(starting.pid) >= after_cpu_s,
            os.sched_yield,
        )
        try:
            if select.select(said, [], [], 0)[0] and not starting.stdout.readline():
                code = starting.wait(STOP_S)
                raise BrokerDied(f"ended with {code} while starting: {self.log()[-2000:]}")
        finally:
            starting.kill()
            starting.wait()
            starting.stdout.close()

    def restart(self) -> BrokerProcess:
        """Start again on the same folder; ports may be others (but see `keeps_ports`)."""
        return self.start()

    def wait(self, seconds: float = STOP_S) -> int:
        """Wait for it to end by itself; returns the exit code."""
        assert self._process is not None
        code = self._process.wait(seconds)
        self._close()
        return code

    def __enter__(self) -> BrokerProcess:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._end(signal.SIGTERM if error is None else signal.SIGKILL)
        for spare in self.data_dir.glob("spare-*.segment"):  # 64 MiB each, of a hundred brokers
            spare.unlink()

    def _first_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], START_S)
        if not readable:
            self._end(signal.SIGKILL)
            raise BrokerDied(f"not ready after {START_S} s: {self.log()[-2000:]}")
        return self._process.stdout.readline()

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._close()
        return code

    def _close(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    # -- where it is

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def amqp_port(self) -> int:
        return int(self.ready["amqp"][1])

    @property
    def http_port(self) -> int:
        return int(self.ready["http"][1])

    @property
    def nsq_port(self) -> int:
        return int(self.ready["nsq"][1])

    @property
    def nsq_http_port(self) -> int:
        return int(self.ready["nsq_http"][1])

    @property
    def nsq_http_url(self) -> str:
        return f"http://127.0.0.1:{self.nsq_http_port}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def amqp_url(self, user: str = "guest:guest") -> str:
        return f"amqp://{user}@127.0.0.1:{self.amqp_port}/"

    def log(self) -> str:
        """Everything it wrote to stderr so far."""
        return self.log_file.read_text(errors="replace")

    def cpu_seconds(self) -> float:
        """User and system time used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # -- HTTP

    def http(
        self, method: str, path: str, body: object = None, user: str | None = "guest:guest"
    ) -> tuple[int, Any]:
        """Status and decoded JSON (text where the answer is none)."""
        status, data = self.http_bytes(method, path, body, user)
        try:
            return status, json.loads(data or b"{}")
        except ValueError:
            return status, data.decode("utf-8", "replace")

    def http_bytes(
        self, method: str, path: str, body: object = None, user: str | None = "guest:guest"
    ) -> tuple[int, bytes]:
        request = urllib.request.Request(f"{self.url}{path}", method=method)
        if user is not None:
            pair = base64.b64encode(user.encode()).decode()
            request.add_header("Authorization", f"Basic {pair}")
        if body is not None:
            is_raw = isinstance(body, bytes)
            request.data = body if is_raw else json.dumps(body).encode()
            kind = "application/octet-stream" if is_raw else "application/json"
            request.add_header("Content-Type", kind)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def queues(self) -> dict[str, dict[str, Any]]:
        """Rows of /api/tallymark/queues by name."""
        _, answer = self.http("GET", "/api/tallymark/queues")
        return {row["name"]: row for row in answer["queues"]}
