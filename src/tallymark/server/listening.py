"""Listening: from configured addresses to bound sockets, of the internet or of the file system."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
import sys
from collections.abc import Callable
from typing import Any, Final, cast

from tallymark.journal.files import FolderInUse, FolderLock
from tallymark.server.access.tls import Certificates
from tallymark.server.config.kinds import LOCALHOST, is_loopback
from tallymark.server.config.settings import Config

ABSENT: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors of binding an address of a family that this machine has not got, as a name such as
localhost may have."""
LOOPBACKS: Final = ((socket.AF_INET, ("127.0.0.1",)), (socket.AF_INET6, ("::1",)))
"""Loopback addresses of the name localhost, whatever a resolver says of it: clients that try one
family after the other are to find the same broker."""

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
    client: Callable[[], object],
    bound: socket.socket,
) -> asyncio.Server:
    """Accept clients at a socket that is bound. Inside TLS: see handshakes.py. client: makes one,
    which is a Protocol by its methods."""
    made = cast(Callable[[], asyncio.BaseProtocol], client)
    if bound.family == socket.AF_UNIX:
        return await loop.create_unix_server(made, sock=bound, backlog=BACKLOG)
    return await loop.create_server(made, sock=bound, backlog=BACKLOG)


def leave_unpaced(bound: socket.socket) -> None:
    """Have connections to a loopback address begin without pacing, whatever the machine's other
    connections do: there is no network to be shared, and pacing (of bbr, for one) costs up to half
    of what large answers cost. A connection that was begun with it keeps the kernel's pacing timer
    under any other congestion control. reno is in every kernel."""
    if sys.platform == "linux" and is_loopback(address_of(bound)[0]):
        with contextlib.suppress(OSError):
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def address_text(address: object) -> str:
    match address:
        case (str() as host, int() as port, *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case _:
            return "?"


class CannotServe(Exception):
    """The machine does not provide what a start needs: a port, the folder. The text names it."""


class Bound:
    """The ports, taken but not listened on yet. Raises as _bind."""

    def __init__(self, config: Config, tls: Certificates, held: contextlib.ExitStack) -> None:
        self.amqp = _bind(config, config.host, config.amqp_port, "--amqp-port", held)
        self.amqps: list[socket.socket] = []
        if tls.amqp is not None:
            self.amqps = _bind(config, config.host, config.amqps_port, "--amqps-port", held)
        self.http = _bind(config, config.host, config.http_port, "--http-port", held)
        for one in self.http:
            leave_unpaced(one)
        self.https: list[socket.socket] = []
        if tls.http is not None:
            self.https = _bind(config, config.host, config.https_port, "--https-port", held)
        self.nsq: list[socket.socket] = []
        self.nsq_http: list[socket.socket] = []
        self.nsq_https: list[socket.socket] = []
        if config.nsq:
            self.nsq = _bind(config, config.nsq_host, config.nsq_port, "--nsq-port", held, True)
            port = config.nsq_http_port
            self.nsq_http = _bind(config, config.nsq_http_host, port, "--nsq-http-port", held, True)
            if tls.nsq is not None:
                port = config.nsq_https_port
                self.nsq_https = _bind(
                    config, config.nsq_https_host, port, "--nsq-https-port", held
                )


def _bind(
    config: Config,
    hosts: tuple[str, ...],
    port: int,
    flag: str,
    held: contextlib.ExitStack,
    paths: bool = False,
) -> list[socket.socket]:
    """Take a port on every one of the addresses, without listening yet. paths: an address may be a
    socket in the file system.

    Raises:
        CannotServe: one cannot be had.
        FolderInUse: it is taken, and by a broker on this data folder, so that is what to say.
    """
    bound: dict[Any, socket.socket] = {}
    for host in hosts:
        if paths and is_path(host):
            try:
                bound[host] = bind_path(host, held)
            except OSError as error:
                raise CannotServe(f"socket {host}: {error.strerror or error}") from error
            continue
        found = addresses_of(host, port)
        absent: OSError | None = None
        for family, address in found:
            try:
                if address not in bound:
                    bound[address] = _bound(family, address, held, _port_of(bound))
            except OSError as error:
                if error.errno not in ABSENT:
                    raise _no_port(config, port, address[0], flag, error) from error
                absent = error
        if absent is not None and not any(address in bound for _, address in found):
            raise _no_port(config, port, host, flag, absent)
    return list(bound.values())


def _no_port(config: Config, port: int, host: str, flag: str, error: OSError) -> Exception:
    if error.errno != errno.EADDRINUSE:
        return CannotServe(f"port {port} on {host} ({flag}): {error.strerror or error}")
    try:
        if (config.data_dir / "lock").exists():
            FolderLock(config.data_dir).release()
    except FolderInUse as used:
        return used
    except OSError:
        pass  # the error is about the port
    return CannotServe(f"port {port} on {host} is in use: choose another with {flag}")


def addresses_of(host: str, port: int) -> list[tuple[int, Any]]:
    """Address families and addresses of a listening address. Raises CannotServe."""
    if host == LOCALHOST:
        return [(family, (*address, port)) for family, address in LOOPBACKS]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CannotServe(f"host {host!r}: {error.strerror or error}") from error
    except UnicodeError as error:
        raise CannotServe(f"host {host!r}: no name of a host") from error
    return [(family, address) for family, _, _, _, address in found]


def _port_of(bound: dict[Any, socket.socket]) -> int:
    """Return the first bound address's port; 0: none is bound yet."""
    return address_of(next(iter(bound.values())))[1] if bound else 0


def _bound(family: int, address: Any, held: contextlib.ExitStack, wish: int = 0) -> socket.socket:
    """Raises OSError. wish: the port to take where any free one will do, if it can be had."""
    if address[1] == 0 and wish:
        with contextlib.suppress(OSError):
            return _bound(family, (address[0], wish, *address[2:]), held)
    made = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    made.bind(address)
    return made
