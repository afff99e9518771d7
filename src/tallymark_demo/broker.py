"""A broker in a process of its own, on free ports, for the demo."""

from __future__ import annotations

import json
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pika

from tallymark.spark.client import Endpoint

START_S: Final = 20.0
STOP_S: Final = 20.0
LOOKS: Final = '{"delay": 250, "timeunit": "milliseconds"}'
"""Four looks a second for slow consumers; the limits are policies of the scene."""


class BrokerDidNotStart(RuntimeError):
    """The broker ended, or said nothing, before it was ready."""


class BrokerProcess:
    """`tallymark serve` with its ready line read; stopped with SIGTERM, by its own pid."""

    def __init__(self, data_dir: Path, log: Path) -> None:
        self.data_dir = data_dir
        self.log = log
        self.amqp_port = 0
        self.http_port = 0
        self.nsq_port = 0
        self.nsq_http_port = 0
        self.exit_code: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(port=self.http_port)

    @property
    def url(self) -> str:
        return str(self.endpoint)

    def parameters(self) -> pika.ConnectionParameters:
        """Connection parameters for pika, as guest."""
        return pika.ConnectionParameters("127.0.0.1", self.amqp_port)

    @property
    def amqp_url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.amqp_port}/"

    def start(self) -> None:
        """Returns when all listeners are open. Raises BrokerDidNotStart."""
        command = [
            sys.executable, "-m", "tallymark", "serve", "--data-dir", str(self.data_dir),
            "--host", "127.0.0.1", "--amqp-port", "0", "--http-port", "0",
            "--nsq-port", "0", "--nsq-http-port", "0", "--slow-consumers", LOOKS,
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        ready = _first_line(self._process, START_S)
        if not ready.get("ready"):
            self.stop()
            last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
            raise BrokerDidNotStart(f"exit code {self.exit_code}: {last}, see {self.log}")
        self.amqp_port = int(ready["amqp"][1])
        self.http_port = int(ready["http"][1])
        self.nsq_port = int(ready["nsq"][1])
        self.nsq_http_port = int(ready["nsq_http"][1])

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that has no effect in time. Repeating is no error."""
        process = self._process
        if process is None or self.exit_code is not None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            self.exit_code = process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            self.exit_code = process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _first_line(process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(seconds):
            return {}
    line = process.stdout.readline()
    return dict(json.loads(line)) if line.strip() else {}
