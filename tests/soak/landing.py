"""Spark over a soak's queue: `tallymark pipeline land` goes on across the kills, and `reconcile`
says at the end whether the account of every queue is 0. Both are commands of their own, as a user
has them; Java is the machine's or that of the wheel.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.soak.traffic import TABLE
from tests.spark.rig import SUBSCRIPTION, parquet_ids

MASTER = "local[2]"
LIMIT_S = 900
"""Ends what can never end; says nothing of how fast it should be."""


class Landing:
    """The streaming query, from its start to its end."""

    def __init__(self, url: str, folder: Path, every_s: int) -> None:
        self._to = folder / "table"
        self._log = folder / "landing.log"
        self._url = url
        self._scratch = folder / "scratch"
        self._scratch.mkdir()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._command(f"{every_s}s"), stdout=log, stderr=log, env=self._environment()
            )

    def _command(self, trigger: str) -> list[str]:
        return [
            sys.executable, "-m", "tallymark", "pipeline", "land", "--queue", TABLE,
            "--subscription", SUBSCRIPTION, "--to", str(self._to), "--trigger", trigger,
            "--url", self._url, "--master", MASTER, "--json",
        ]  # fmt: skip

    def _environment(self) -> dict[str, str]:
        scratch = str(self._scratch)
        return {
            **os.environ, "SPARK_LOCAL_DIRS": scratch,
            "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={scratch}",
        }  # fmt: skip

    def check(self) -> None:
        """AssertionError when it has ended by itself."""
        code = self._process.poll()
        assert code is None, f"the landing ended with {code}: {self.said()}"

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    @property
    def batches(self) -> int:
        return sum('"sequence"' in line for line in self._log.read_text().splitlines())

    def finish(self) -> list[int]:
        """Stop the query, land what is left, and return the numbers in the table."""
        self.check()
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(LIMIT_S)
        assert code == 0, f"the landing was stopped and ended with {code}: {self.said()}"
        with self._log.open("a") as log:
            subprocess.run(
                self._command("available-now"), stdout=log, stderr=log, check=True,
                timeout=LIMIT_S, env=self._environment(),
            )  # fmt: skip
        return parquet_ids(self._to)

    def kill(self) -> None:
        """SIGTERM, and SIGKILL for what does not heed it; nothing where it has ended."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def reconcile(data_dir: Path) -> dict[str, int]:
    """The difference of every queue of a broker that has stopped: its last checkpoint against the
    whole journal. AssertionError where one is not 0 or a message is at fault.

    Beside a running one, ledgers that are kept for seconds go while Spark starts."""
    command = [
        sys.executable, "-m", "tallymark", "pipeline", "reconcile", "--data-dir", str(data_dir),
        "--master", MASTER, "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, f"reconcile: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    told = json.loads(done.stdout)
    return {account["queue"]: account["difference"] for account in told["accounts"]}
