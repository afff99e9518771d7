"""Programs of tests/cluster/clients at work: what they were told by the broker, as they tell it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.support.patience import PATIENCE_S

ROOT: Final = Path(__file__).parents[2]
TOLD: Final = re.compile(r"(?:confirmed|received) (\d+)\n")
"""A line of a program's own; the others are its library's."""


class Program:
    """One publisher or consumer, from the block's begin to its end."""

    def __init__(
        self, command: Sequence[str], role: str, ports: Sequence[int], queue: str, log: Path,
        env: dict[str, str],
    ) -> None:  # fmt: skip
        self.told: set[int] = set()
        """Numbers that it said were confirmed, or that it received."""
        self.again = 0
        """Times that it told of a number again."""
        self._log = log
        arguments = [role, ",".join(map(str, ports)), queue]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*command, *arguments], cwd=ROOT, env={**os.environ, **env}, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, name=f"{role} {queue}")

    def __enter__(self) -> Program:
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def has_told(self, count: int) -> bool:
        """Return whether it told of so many numbers. Raises AssertionError where it has ended."""
        assert self._process.poll() is None or len(self.told) >= count, self.log()
        return len(self.told) >= count

    def end(self) -> None:
        """Have a publisher end, which it does when it has told of all that was confirmed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(PATIENCE_S) == 0, self.log()
        self._reader.join()

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if (found := TOLD.fullmatch(line)) is not None:
                number = int(found[1])
                self.again += number in self.told
                self.told.add(number)


def python(name: str) -> list[str]:
    """Return the command of a program in Python."""
    return [sys.executable, "-m", f"tests.cluster.clients.{name}_client"]
