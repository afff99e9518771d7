"""A haproxy in front of brokers, with the lines of docs/cluster.md."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.cluster.brokers import Broker
from tests.support.patience import PATIENCE_S, until
from tests.support.ports import reserved
from tests.support.rabbitmq import listens

MISSING: Final = "haproxy is not installed: apt-get install haproxy"
PAGE: Final = Path(__file__).parents[2] / "docs" / "cluster.md"


def find_haproxy() -> str | None:
    return shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")


def lines_of_the_page() -> str:
    """Return the configuration that docs/cluster.md shows."""
    found = re.search(r"(?m)^    listen amqp\n(?:    .*\n)+", PAGE.read_text())
    assert found is not None, "docs/cluster.md shows no haproxy"
    return re.sub(r"(?m)^    ", "", found[0])


class Haproxy:
    """It runs from the block's begin to its end."""

    def __init__(self, program: str, folder: Path, brokers: list[Broker]) -> None:
        self.port = reserved()
        lines = lines_of_the_page().replace("*:5672", f"127.0.0.1:{self.port}")
        for number, broker in enumerate(brokers, 1):
            amqp, http = broker.flags["amqp_port"], broker.flags["http_port"]
            lines = lines.replace(f"10.0.0.{number}:5672", f"127.0.0.1:{amqp} port {http}")
        self.config = folder / "haproxy.cfg"
        self.config.write_text(lines)
        self._command = [program, "-db", "-f", str(self.config)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Haproxy:
        with (self.config.parent / "haproxy.log").open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        process = self._process
        until(lambda: listens(self.port) or process.poll() is not None)
        assert process.poll() is None, (self.config.parent / "haproxy.log").read_text()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_S)
