"""Listeners inside TLS: a socket counts from its acceptance, and its handshake has an end.

The event loop's own listeners tell nothing of a socket before its handshake is through, and would
keep any number of silent ones. So these accept by themselves: a socket is counted (doors.py), then
TLS begins on it, with the context of now (access/tls.py). One whose handshake is under way goes
when somebody else needs its place.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, Union, cast

from tallymark.server.access.tls import Tls
from tallymark.server.doors import Doors, Line
from tallymark.server.listening import BACKLOG, address_text, listen
from tallymark.server.logs import log_of

Listener = Union[asyncio.Server, "TlsListener"]
AT_ONCE: Final = 64
"""Sockets accepted in one round of the loop."""
AGAIN_S: Final = 1.0
"""Pause after the system had no descriptor or memory for another one."""
EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = log_of("server")


class Guest(Line, Protocol):
    """The asyncio protocol of an accepted socket."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin on a transport, inside TLS where there is one."""


async def listen_for(
    loop: asyncio.AbstractEventLoop,
    doors: Doors,
    client: Callable[[], Guest],
    bound: socket.socket,
    tls: Tls | None,
    limit_s: float,
    is_http: bool = False,
) -> Listener:
    """Accept clients at a socket that is bound, inside TLS where there is one, whose handshake may
    take limit_s."""
    if tls is None:
        return await listen(loop, client, bound)
    return TlsListener(loop, doors, client, bound, tls, limit_s, is_http)


class TlsListener:
    """The TLS listener of one socket; open at once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        doors: Doors,
        client: Callable[[], Guest],
        bound: socket.socket,
        tls: Tls,
        limit_s: float,
        is_http: bool,
    ) -> None:
        self._loop = loop
        self._doors = doors
        self._client = client
        self._bound = bound
        self._tls = tls
        self._limit_s = limit_s
        self._is_http = is_http
        self._later: asyncio.TimerHandle | None = None
        self._under_way: set[Handshake] = set()
        bound.setblocking(False)
        bound.listen(BACKLOG)
        self._resume()

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        return (self._bound,)

    def close(self) -> None:
        """Accept no more connections, and end the handshakes under way."""
        self._loop.remove_reader(self._bound)
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._bound.close()
        for handshake in list(self._under_way):
            handshake.drop()

    def _resume(self) -> None:
        self._later = None
        self._loop.add_reader(self._bound, self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                raw, peer = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                log.warning("accept.impossible", error=str(error), again_in_s=AGAIN_S)
                self._loop.remove_reader(self._bound)
                self._later = self._loop.call_later(AGAIN_S, self._resume)
                return
            raw.setblocking(False)
            handshake = Handshake(self._doors, self._client, address_text(peer) if peer else "unix")
            if not self._doors.enter(handshake, self._is_http):
                raw.close()
                continue
            self._doors.may_go(handshake)
            self._under_way.add(handshake)
            handshake.task = self._loop.create_task(self._shake_hands(handshake, raw))
            handshake.task.add_done_callback(partial(self._over, handshake, raw))

    async def _shake_hands(self, handshake: Handshake, raw: socket.socket) -> None:
        handshake.has_begun = True
        try:
            await self._loop.connect_accepted_socket(
                lambda: handshake, raw, ssl=self._tls.context, ssl_handshake_timeout=self._limit_s
            )
        except OSError as error:  # of the socket, of TLS, or its time is over
            log.info("tls.refused", peer=handshake.peer, error=str(error) or type(error).__name__)

    def _over(self, handshake: Handshake, raw: socket.socket, _: asyncio.Task[None]) -> None:
        """Let go of a handshake, also of one that was dropped before its task began."""
        handshake.task = None
        self._under_way.discard(handshake)
        if not handshake.is_through:
            self._doors.leave(handshake)
        if not handshake.has_begun:
            raw.close()


class Handshake(asyncio.Protocol):
    """A socket whose handshake is under way. Then its client has its place at the door, and all
    that comes."""

    def __init__(self, doors: Doors, client: Callable[[], Guest], peer: str) -> None:
        self._doors = doors
        self._client = client
        self.peer = peer
        self.task: asyncio.Task[None] | None = None
        self.has_begun = False
        """True once its socket has a transport, which closes it."""
        self.is_through = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TLS is up."""
        client = self._client()
        self.is_through = True
        self._doors.pass_on(self, client)
        inside = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        inside.set_protocol(cast(asyncio.BaseProtocol, client))
        client.connection_made(inside)

    def drop(self) -> None:
        if self.task is not None:
            self.task.cancel()
