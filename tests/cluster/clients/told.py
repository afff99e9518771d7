"""Words between a program and the test that runs it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator


def hosts() -> list[str]:
    """Return the brokers, `host:port` each."""
    return [f"127.0.0.1:{port}" for port in sys.argv[2].split(",")]


def queue() -> str:
    return sys.argv[3]


def is_publisher() -> bool:
    return sys.argv[1] == "publish"


def is_enough() -> bool:
    """Return whether our stdin was closed: no more is to be published."""
    return _enough.is_set()


def numbers() -> Iterator[int]:
    """Return numbers to publish, beginning with the one that is not confirmed, until it is
    enough."""
    while not is_enough():
        yield _next


def confirmed(number: int) -> None:
    global _next
    _next = number + 1
    print(f"confirmed {number}", flush=True)


def received(number: int) -> None:
    print(f"received {number}", flush=True)


def _watch() -> None:
    sys.stdin.read()
    _enough.set()


_next = 0
_enough = threading.Event()
threading.Thread(target=_watch, daemon=True).start()
