"""The option --watch: a command's output again and again, in place of the one before."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import sleep
from typing import Final

CLEAR: Final = "\x1b[H\x1b[2J\x1b[3J"
"""Sequence that empties a terminal."""
LEAST_S: Final = 0.1
MOST_S: Final = 86_400
"""Seconds between two outputs, at most."""


def again(
    seconds: float, show: Callable[[], object], wait: Callable[[float], None] = sleep
) -> None:
    """Call `show` every so many seconds, until Ctrl-C. A terminal is emptied before each but the
    first; elsewhere, one output follows the other."""
    try:
        show()
        while True:
            sys.stdout.flush()
            wait(seconds)
            if sys.stdout.isatty():
                print(CLEAR, end="")
            show()
    except KeyboardInterrupt:
        return
