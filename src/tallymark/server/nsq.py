"""NSQ at the socket: bytes between a transport, its layers and its bridge; nothing decided here.

A client is not read while the node lets it rest, while it is ahead of our answers, and while it
publishes without reading them. What layers hold of it waits likewise.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from itertools import count
from typing import TYPE_CHECKING, Final, cast

from tallymark.bridge.nsq import Nsq, Settings
from tallymark.server import audit
from tallymark.server.client import Client, address_text
from tallymark.server.clock import now_ms
from tallymark.server.layers import LayerError, Layers, TlsLayer, compression
from tallymark.server.listening import host_of
from tallymark.server.nsq_auth import AuthUnavailable
from tallymark.server.nsq_doors import Doors
from tallymark.wire.nsq.events import UpgradeDue
from tallymark.wire.nsq.limits import Limits
from tallymark.wire.nsq.upgrades import TLS

if TYPE_CHECKING:
    from tallymark.server.node import Node

_numbers: Final = count(1)
"""Of clients that came through the file system: they have no address to be told apart by."""
CLOGGED: Final = 8
"""High water marks of bytes waiting in a subscriber's socket buffer above which it is not read
either."""


class NsqClient(Client):
    """One client connection."""

    bridge: Nsq
    category = "nsq"

    def __init__(
        self,
        node: Node,
        settings: Settings,
        tls: ssl.SSLContext | None,
        doors: Doors,
        limits: Limits | None = None,
    ) -> None:
        """limits: where they are others than those of the settings."""
        super().__init__(node)
        self._settings = settings
        self._limits = limits
        self._context = tls
        self._doors = doors
        self._asking: asyncio.Task[None] | None = None
        self._layers = Layers()
        self._handshake: TlsLayer | None = None
        """TLS that is not ready yet."""
        self.tls: TlsLayer | None = None
        self._is_reading = True
        self._is_over = False
        """Whether everything was said: what still comes is thrown away."""
        self._is_full = False
        """Whether the socket takes no more for now."""
        self._stuck: asyncio.TimerHandle | None = None
        """Runs while it does not."""
        self._written_bytes = 0
        """Handed to the transport, as they leave the layers."""
        self._has_ended = False
        """Whether the client says no more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        transport = self.transport
        raw: socket.socket = transport.get_extra_info("socket")
        if raw.family != socket.AF_UNIX:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.limit_output(transport)
        peer = transport.get_extra_info("peername")
        self.peer_host = host_of(peer)
        self.peer = address_text(peer) if peer else f"unix:{next(_numbers)}"
        self.bridge = Nsq(self._node.broker, self._settings, self.peer, self._limits)
        acting = self._doors.acting()
        if acting is not None:
            self.bridge.act_as(acting)
        self.bridge.tick(now_ms())
        self._node.opened(self)

    @property
    def has_entered(self) -> bool:
        return self.bridge.consumer is not None or bool(self.bridge.published)

    @property
    def vhost(self) -> str:
        """Name of the virtual host that topics and channels are in."""
        return self._settings.topics.vhost

    # -- reading

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        if self._is_over:
            return
        try:
            if not self._layers:
                self._node.received(self, data)
                return
            self._layers.feed(data)
            if self._handshake is not None:
                self._shake_hands(self._handshake)
            self._drain()
        except Exception as error:  # a bug of ours costs this connection, not the others
            self.broken(error)

    def _drain(self) -> None:
        """Bring the bridge what the layers have for it."""
        try:
            while self._is_reading and self._handshake is None and not self._is_over:
                piece = self._layers.read()
                if not piece:
                    break
                self._node.received(self, piece)
        except LayerError as error:
            self._unreadable(error)

    def _drain_later(self) -> None:
        if self.transport.is_closing() or not self._layers:
            return
        try:
            self._drain()
        except Exception as error:  # as in data_received
            self.broken(error)

    def _unreadable(self, error: LayerError) -> None:
        self.bridge.broken(str(error))
        self._node.touch(self)

    def eof_received(self) -> bool:
        """The client says no more, and may be reading still: what it asked for is answered."""
        self._has_ended = True
        if self._is_over:
            return False
        try:
            if self._layers:
                self._drain()
            self.bridge.eof()
        except Exception as error:  # as in data_received
            self.broken(error)
        self._node.touch(self)
        return True

    def _read_or_not(self) -> None:
        wanted = not self.resting and not self.yielding
        wanted = wanted and self.bridge.wants_data and not self._is_clogged()
        wanted = wanted or self._is_over
        if wanted == self._is_reading or self.transport.is_closing():
            return
        self._is_reading = wanted
        if wanted:
            self.transport.resume_reading()
            if self._layers:
                self._node.loop.call_soon(self._drain_later)
        else:
            self.transport.pause_reading()

    def _is_clogged(self) -> bool:
        """Whether what it asks for would pile up here. A subscriber whose socket is full may still
        say what it is done with."""
        if not self._is_full:
            return False
        return (
            self.bridge.consumer is None
            or self.unsent() > CLOGGED * self._node.config.write_high_water
        )

    # -- writing

    def flush(self) -> None:
        """Write what the bridge has to say; add a layer, ask the auth server, or close, where it
        asks for that."""
        bridge = self.bridge
        while True:
            output = bridge.take_output()
            if output:
                self._write(output)
            upgrade = bridge.upgrade
            if upgrade is None or self._handshake is not None or self._is_over:
                break
            self._upgrade(upgrade)
        if bridge.closing:
            self._finish()
        elif bridge.pending_auth is not None and self._asking is None:
            self._asking = self._node.loop.create_task(self._ask(bridge.pending_auth))
        self._read_or_not()

    def _write(self, output: list[bytes]) -> None:
        self.sent_bytes += sum(map(len, output))
        if self.transport.is_closing() or self._is_over or self._handshake is not None:
            return
        if self._layers:
            output = [self._layers.encode(b"".join(output))]
        self._written_bytes += sum(map(len, output))
        self.transport.writelines(output)

    def _finish(self) -> None:
        """Say that this was all, and wait for the peer to go: closing at once, with input unread,
        could take the last words from it."""
        if self._is_over or self.transport.is_closing():
            return
        self._is_over = True
        if self.tls is not None and self._handshake is None:
            self.transport.write(self.tls.close())
        if self._has_ended:
            self.transport.close()
        else:
            self.tell_closed()
            self.transport.write_eof()
        self.abort_soon()

    def pause_writing(self) -> None:
        self._is_full = True
        self._watch_writing()
        super().pause_writing()
        self._read_or_not()

    def resume_writing(self) -> None:
        self._is_full = False
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        super().resume_writing()
        self._read_or_not()

    def _watch_writing(self) -> None:
        """Look again when the client must have taken something [NQ-7]."""
        timeout_ms = self.bridge.write_timeout_ms
        if timeout_ms and self._stuck is None:
            later = self._node.loop.call_later
            self._stuck = later(timeout_ms / 1000, self._look, timeout_ms, self._taken_bytes())

    def _taken_bytes(self) -> int:
        return self._written_bytes - self.transport.get_write_buffer_size()

    def _look(self, timeout_ms: int, taken_before: int) -> None:
        self._stuck = None
        if self._taken_bytes() > taken_before:
            self._watch_writing()
            return
        self.bridge.reason = self.bridge.reason or f"took nothing for {timeout_ms} ms"
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._asking is not None:
            self._asking.cancel()
        if self._stuck is not None:
            self._stuck.cancel()
        super().connection_lost(exc)

    # -- layers

    def _upgrade(self, due: UpgradeDue) -> None:
        """All that was said before is written."""
        bridge = self.bridge
        if due.layer == TLS:
            assert self._context is not None
            layer = TlsLayer(self._context)
            self._layers.add(layer)
            self._handshake = self.tls = layer
            layer.feed(bridge.take_unread())
            self._shake_hands(layer)
            return
        inner = compression(due.layer, due.level)
        self._layers.add(inner)
        inner.feed(bridge.take_unread())
        bridge.upgraded()
        self._node.loop.call_soon(self._drain_later)

    def _shake_hands(self, layer: TlsLayer) -> None:
        try:
            is_done = layer.handshake()
        except LayerError as error:
            self.transport.write(layer.output())  # the alert
            self._unreadable(error)
            return
        output = layer.output()
        if output and not self.transport.is_closing():
            self.transport.write(output)
        if is_done:
            self._handshake = None
            self.bridge.upgraded()
            self._node.touch(self)
            self._node.loop.call_soon(self._drain_later)

    # -- auth

    async def _ask(self, secret: bytes) -> None:
        tls = self.tls
        name = "" if tls is None else tls.common_name()
        try:
            state, user = await self._doors.check(secret, self.peer_host, tls is not None, name)
        except AuthUnavailable as error:
            self.log.error("auth.impossible", peer=self.peer, error=str(error))
            self._asking = None
            self.bridge.auth_failed()
        else:
            self._asking = None
            if not state.permission_count:
                audit.login_refused("NSQ", self.peer, self._doors.name_in(secret), "AUTH")
            self.bridge.auth_succeeded(state, user)
        self._node.touch(self)
