"""Sockets that are bound, of the internet or of the file system: their addresses, and listening."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
from collections.abc import Callable
from typing import Final

from tallymark.server.config.kinds import LOCALHOST

BACKLOG: Final = 1024
Address = tuple[str, int]
"""Host and port, or a path and 0."""


def is_path(host: str) -> bool:
    """Return whether a listening address is a socket in the file system: no name has a slash."""
    return "/" in host


def bind_path(path: str, held: contextlib.ExitStack) -> socket.socket:
    """Return a socket bound to a path, closed with `held`. A socket file that a dead process left
    there is replaced. Raises OSError: the path is listened on, is another file, or cannot be
    created."""
    made = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        made.bind(path)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not _is_left_over(path):
            raise
        os.unlink(path)
        made.bind(path)
    held.callback(_remove, path)
    return made


def _is_left_over(path: str) -> bool:
    """Return whether the file is a socket that nobody listens on."""
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == errno.ECONNREFUSED


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def address_of(bound: socket.socket) -> Address:
    name = bound.getsockname()
    return (name, 0) if bound.family == socket.AF_UNIX else (name[0], name[1])


def shown(address: Address) -> str:
    """HOST:PORT, or the path."""
    host, port = address
    return host if is_path(host) else f"{host}:{port}"


def host_of(peername: object) -> str:
    """Return a client's address, or localhost for one that came through the file system."""
    match peername:
        case (str() as host, *_):
            return host
        case _:
            return LOCALHOST


async def listen(
    loop: asyncio.AbstractEventLoop,
    client: Callable[[], asyncio.BaseProtocol],
    bound: socket.socket,
) -> asyncio.Server:
    """Accept clients at a socket that is bound. Inside TLS: see handshakes.py."""
    if bound.family == socket.AF_UNIX:
        return await loop.create_unix_server(client, sock=bound, backlog=BACKLOG)
    return await loop.create_server(client, sock=bound, backlog=BACKLOG)


def address_text(address: object) -> str:
    match address:
        case (str() as host, int() as port, *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case _:
            return "?"
