"""The supervisor: the program that started the broker and asked to be told how it is, as systemd
does for units of Type=notify.

It names a socket in NOTIFY_SOCKET, to which lines `NAME=value` are sent in one datagram
[sd_notify(3)]. Without one nothing is sent.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Final

from tallymark.server.logs import log_of

SOCKET: Final = "NOTIFY_SOCKET"

log = log_of("server")


def tell_ready(status: str) -> None:
    """Say that it serves: at the start, and after each reload. status: one line for people."""
    _tell("READY=1", f"STATUS={status}")


def tell_reloading() -> None:
    """Say that the configuration is read again; `tell_ready` is to follow."""
    _tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


def tell_stopping() -> None:
    _tell("STOPPING=1", "STATUS=stopping")


def _tell(*lines: str) -> None:
    """Send the lines. A supervisor that does not take them is logged, and no reason to stop."""
    address = os.environ.get(SOCKET, "")
    if not address:
        return
    if address.startswith("@"):  # a name in no file system
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            out.setblocking(False)
            out.sendto("\n".join(lines).encode(), address)
    except OSError as error:
        log.warning("supervisor.not_told", address=address, lines=lines, reason=str(error))
