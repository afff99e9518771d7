"""The HTTP listeners of a broker: bound at the start, while their code is loaded by the first
connection.

Importing aiohttp and the routes costs about as much as the rest of the broker, and many brokers
never get an HTTP request. So the sockets listen at once, and the first connection waits in the
kernel's queue while a thread imports; the loop serves other clients meanwhile.

Code that cannot be loaded, as after an upgrade of the package below a running broker, ends no
broker: who waits is refused with 503, and a later connection has it tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from importlib import import_module
from typing import TYPE_CHECKING, Final

from tallymark.server.listening import Address, address_of
from tallymark.server.loading import failed_to_load, reason_of

if TYPE_CHECKING:
    from tallymark.server.access.tls import Tls
    from tallymark.server.http.server import HttpServer
    from tallymark.server.node import Node
    from tallymark.server.nsq.service import NsqService

BACKLOG: Final = 128
MODULES: Final = (
    "http.server", "http.archives", "http.behind", "http.browse", "http.consumers",
    "http.deliveries", "http.features", "http.journeys", "http.openapi", "http.page",
    "http.quarantine", "http.redrive", "http.sinks", "http.state", "http.streams",
    "http.subscriptions", "management.routes", "nsq.http",
)  # fmt: skip
"""Modules that are imported in a thread, so that they are loaded when the loop makes the
servers."""
RETRY_S: Final = 1.0
"""Seconds after a failure for which new connections wait: each would have everything loaded again.
"""
REQUEST_MAX: Final = 65536
"""Bytes read of a request that is refused: the kernel resets a connection that is closed with
bytes unread, and the answer would be lost."""
CODE: Final = "the HTTP interface"
BODY: Final = json.dumps(
    {"error": "not_loaded", "message": "NOT_LOADED", "reason": reason_of(CODE)}
)
REFUSAL: Final = (
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(BODY)}\r\nConnection: close\r\n\r\n{BODY}"
).encode("ascii")


Sockets = tuple[list[socket.socket], list[socket.socket], "Tls | None"]
"""Bound, of an HTTP interface: plain, inside TLS, and the TLS."""


class Web:
    """Both HTTP interfaces: management, and nsqd's where NSQ is served."""

    def __init__(
        self,
        node: Node,
        sockets: Sockets,
        service: NsqService | None,
        nsq: Sockets,
    ) -> None:
        """nsq: of nsqd's interface."""
        self._node = node
        self._sockets = sockets
        self._service = service
        self._nsq = nsq
        self._server: HttpServer | None = None
        self._opening: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self.amqp: list[Address] = []
        """Addresses of the AMQP listeners, for lists."""
        self.amqps: list[Address] = []
        """Addresses of the AMQP listeners inside TLS, for lists."""
        self.failed: asyncio.Future[None] = node.loop.create_future()
        """Future that gets the exception with which the servers could not be made."""

    @property
    def addresses(self) -> list[Address]:
        return [address_of(one) for one in self._sockets[0]]

    @property
    def tls_addresses(self) -> list[Address]:
        return [address_of(one) for one in self._sockets[1]]

    def listen(self) -> None:
        """Accept connections from now on."""
        for one in self._all():
            one.setblocking(False)
            one.listen(BACKLOG)
        self._watch()

    async def stop(self) -> None:
        """Let requests under way finish, and close."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._server is not None:
            await self._server.stop()
            return
        if self._retry is not None:
            self._retry.cancel()
        for one in self._all():
            self._node.loop.remove_reader(one)

    def _watch(self) -> None:
        for one in self._all():
            self._node.loop.add_reader(one, self._somebody_came)

    def _all(self) -> list[socket.socket]:
        return [*self._sockets[0], *self._sockets[1], *self._nsq[0], *self._nsq[1]]

    def _somebody_came(self) -> None:
        for one in self._all():
            self._node.loop.remove_reader(one)
        self._opening = self._node.loop.create_task(self._open())
        self._opening.add_done_callback(self._opened)

    def _opened(self, opening: asyncio.Task[None]) -> None:
        if not opening.cancelled() and opening.exception() is not None and not self.failed.done():
            self.failed.set_exception(opening.exception() or RuntimeError())

    async def _open(self) -> None:
        try:
            await asyncio.to_thread(_load)
            self._server = self._made()
        except Exception as error:  # whatever code raises that is not of this broker's version
            failed_to_load(CODE, "http", error)
            self._refuse_all()
            self._retry = self._node.loop.call_later(RETRY_S, self._watch)
            return
        if self._service is not None:
            await self._service.start_http(*self._nsq)
        await self._server.start(*self._sockets)

    def _made(self) -> HttpServer:
        """Return the server of management. Nothing listens, and another attempt may follow."""
        from tallymark.server.http.server import HttpServer

        server = HttpServer(self._node)
        server.context.amqp, server.context.amqps = self.amqp, self.amqps
        if self._service is not None:
            self._service.make_http()  # only to see that its code can be loaded
            server.context.nsq = self._service.listening()
            server.context.topics = self._service.topics
        return server

    def _refuse_all(self) -> None:
        """Answer who waits, and close; inside TLS there is nobody yet to be answered."""
        for one in self._all():
            is_plain = one in self._sockets[0] or one in self._nsq[0]
            with contextlib.suppress(OSError):  # nobody waits any more
                while True:
                    with one.accept()[0] as client:
                        _refuse(client, REFUSAL if is_plain else b"")


def _refuse(client: socket.socket, answer: bytes) -> None:
    client.setblocking(False)
    with contextlib.suppress(OSError):  # the request has not come yet, or the client is gone
        client.recv(REQUEST_MAX)
    with contextlib.suppress(OSError):
        client.sendall(answer)


def _load() -> None:
    for name in MODULES:
        import_module(f"tallymark.server.{name}")
