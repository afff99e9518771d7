"""Ports for processes that cannot choose one themselves and say which: a port that must be known
before they start, or that a broker must have again after a restart.

The system gives a port that was free a moment ago to whoever asks next: to a listener on port 0 or
to the near end of any connection. So these are below what it gives away, and a test's process keeps
each of them for itself, until it ends, by the name of a socket that only one process can have.
"""

from __future__ import annotations

import os
import random
import socket
from typing import Final

FIRST: Final = 20_000
LAST: Final = 32_000
"""Below Linux's usual net.ipv4.ip_local_port_range, which begins with 32768."""

_kept: Final[list[socket.socket]] = []


def reserved() -> int:
    """A port of 127.0.0.1 that nobody listens on, and that no other caller gets. OSError: none."""
    ports = list(range(FIRST, LAST))
    random.Random(os.getpid()).shuffle(ports)
    for port in ports:
        name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            name.bind(f"\0test-port-{port}")
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            name.close()
            continue
        _kept.append(name)
        return port
    raise OSError(f"no port from {FIRST} to {LAST} is free")
