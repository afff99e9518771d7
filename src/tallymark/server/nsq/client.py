"""NSQ at the socket: bytes between a transport, its layers and its bridge; nothing decided here.

What layers hold of a client is decoded a share at a time, in the line of postponed input: what
little compressed input stands for counts like input that came as it is. Meanwhile the client is not
read.
"""

from __future__ import annotations

import asyncio
import select
from itertools import count
from typing import TYPE_CHECKING, Final

from tallymark.bridge.bridge import Bridge
from tallymark.bridge.nsq.connection import Nsq
from tallymark.bridge.nsq.lifecycle import Settings
from tallymark.server.access import audit
from tallymark.server.access.tls import Tls
from tallymark.server.access.user import permissions_of
from tallymark.server.client import LAST_WORDS_S, Client
from tallymark.server.cutting import cut
from tallymark.server.listening import address_text, host_of
from tallymark.server.nsq.auth import AuthUnavailable
from tallymark.server.nsq.doors import NsqDoors
from tallymark.server.nsq.layers import LayerError, Layers, TlsLayer, compression
from tallymark.wire.nsq.events import UpgradeDue
from tallymark.wire.nsq.frames import HEARTBEAT_FRAME
from tallymark.wire.nsq.limits import Limits
from tallymark.wire.nsq.upgrades import TLS

if TYPE_CHECKING:
    from tallymark.server.node import Node

_numbers: Final = count(1)
"""Numbers that tell apart clients without an address: those that came through the file system."""
CALL_BYTES: Final = 4 << 20
"""Bytes of decoded input after which a client is called whose input waits in the layers."""


class NsqClient(Client):
    """A client connection of NSQ."""

    bridge: Nsq

    def __init__(
        self,
        node: Node,
        settings: Settings,
        tls: Tls | None,
        doors: NsqDoors,
        limits: Limits | None = None,
    ) -> None:
        """limits: where they are others than those of the settings."""
        super().__init__(node.clients, "nsq")
        self._node = node
        self.is_plain = True
        self._settings = settings
        self._limits = limits
        self._certificate = tls
        self._doors = doors
        self._layers = Layers()
        self._handshake: TlsLayer | None = None
        """TLS that is not ready yet."""
        self.tls: TlsLayer | None = None
        self._too_long: asyncio.TimerHandle | None = None
        """Ends a handshake that takes too long."""
        self._stuck: asyncio.TimerHandle | None = None
        """Runs while the socket takes no more."""
        self._written_bytes = 0
        """Handed to the transport since the start, as they leave the layers, once there are any."""
        self._uncalled_bytes = 0
        """Bytes decoded since it was last sent a heartbeat to learn whether it is there."""
        self._has_ended = False
        """True once the client sent its end of stream."""

    def meet(self, transport: asyncio.Transport) -> Bridge:
        peer = transport.get_extra_info("peername")
        self.peer_host = host_of(peer)
        self.peer = address_text(peer) if peer else f"unix:{next(_numbers)}"
        bridge = Nsq(self._node.broker, self._settings, self.peer, self._limits)
        acting = self._doors.acting()
        if acting is not None:
            bridge.act_as(acting)
        return bridge

    @property
    def has_entered(self) -> bool:
        return self.bridge.consumer is not None or bool(self.bridge.published)

    @property
    def vhost(self) -> str:
        """Name of the virtual host that topics and channels are in."""
        return self._settings.topics.vhost

    # -- reading

    def take(self, data: bytes) -> None:
        self._layers.feed(data)
        if self._handshake is not None:
            self._shake_hands(self._handshake)
        self._drain()

    def _drain(self) -> None:
        """Pass a share of the layers' decoded input to the bridge, if it can take any. The rest
        waits in the layers, and the socket is not read until they are empty."""
        pieces: list[bytes] = []
        failure: LayerError | None = None
        self.holds_input = self._handshake is None and not self.is_over
        if self.holds_input and self.takes_input() and not self.bridge.is_behind:
            try:
                self.holds_input = self._layers.read_share(pieces)
            except LayerError as error:
                self.holds_input = False
                failure = error
        if pieces:
            share = b"".join(pieces)
            self._uncalled_bytes += len(share)
            self._clients.received(self, share)
        if failure is not None:
            self._unreadable(failure)
        self.encoded_bytes = self._layers.held_bytes()
        if self.holds_input or not self.is_reading:
            self.read_or_not()

    def go_on_decoding(self) -> None:
        self._clients.postponed.add(self)

    def work_on(self) -> None:
        if self.bridge.is_behind or not self.holds_input:
            super().work_on()
        elif not self.transport.is_closing():
            try:
                self._decode_on()
            except Exception as error:  # as in data_received
                self.broken(error)

    def _decode_on(self) -> None:
        if self._is_there():
            self._drain()
        else:
            self.bridge.reason = self.bridge.reason or "peer vanished, with input left"
            self.transport.abort()

    def _is_there(self) -> bool:
        """Return whether the connection still exists. Now and then the client is sent a heartbeat,
        which is answered with a reset where it has gone: its end of stream stands behind input that
        is not read."""
        looking = select.poll()
        looking.register(self.transport.get_extra_info("socket").fileno(), 0)
        if looking.poll(0):
            return False
        if self._uncalled_bytes >= CALL_BYTES and self.bridge.write_timeout_ms:
            self._uncalled_bytes = 0
            self.put([HEARTBEAT_FRAME])
        return True

    def _unreadable(self, error: LayerError) -> None:
        self.bridge.broken(str(error))
        self.touch()

    def eof_received(self) -> bool:
        """Answer the client's commands although it sends no more: it may still be reading."""
        self._has_ended = True
        if self.is_over:
            return False
        try:
            if self._layers:
                self._drain()
            self.bridge.eof()
        except Exception as error:  # as in data_received
            self.broken(error)
        self.touch()
        if self.bridge.pending_auth is not None:
            self._last_words = self._node.loop.call_later(LAST_WORDS_S, self._left)
        return True

    def _left(self) -> None:
        """End the connection of a client who ended its side long ago and is not known yet: it may
        wait for its turn behind many others, and has most likely gone."""
        if self.bridge.pending_auth is not None:
            self.bridge.reason = self.bridge.reason or "peer left while its password was checked"
            self.transport.abort()

    def may_lag(self) -> int:
        """Bytes of unread output up to which the client is read: a subscriber may still send FIN
        and the like; every command of other clients asks for an answer."""
        return 0 if self.bridge.consumer is None else super().may_lag()

    # -- writing

    def attend(self) -> None:
        """Add a layer, ask the auth server, or close the connection."""
        bridge = self.bridge
        while bridge.upgrade is not None and self._handshake is None and not self.is_over:
            self._upgrade(bridge.upgrade)
            output = bridge.take_output()
            if output:
                self.put(output)
        if bridge.closing:
            self.finish()
        elif bridge.pending_auth is not None and not self.is_asking:
            self.begin(self._ask)

    def put(self, output: list[bytes]) -> None:
        if self.writes_plainly:
            super().put(output)
            return
        self.sent_bytes += sum(map(len, output))
        if self.transport.is_closing() or self.is_over or self._handshake is not None:
            return
        if self._layers:
            output = [self._layers.encode(b"".join(output))]
        self._written_bytes += sum(map(len, output))
        self.transport.writelines(output)

    def shut(self) -> None:
        if self.tls is not None and self._handshake is None:
            self.transport.write(self.tls.close())
        if self._has_ended:
            self.transport.close()
        else:
            super().shut()

    def log_closed(self) -> None:
        if not self._has_ended:
            super().log_closed()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        super().resume_writing()

    def _watch_writing(self) -> None:
        """Set the timer after which the client must have read something [NQ-7]."""
        timeout_ms = self.bridge.write_timeout_ms
        if timeout_ms and self._stuck is None:
            later = self._node.loop.call_later
            self._stuck = later(timeout_ms / 1000, self._look, timeout_ms, self._taken_bytes())

    def _taken_bytes(self) -> int:
        written = self.sent_bytes if self.writes_plainly else self._written_bytes
        return written - self.transport.get_write_buffer_size()

    def _look(self, timeout_ms: int, taken_before: int) -> None:
        self._stuck = None
        if self._taken_bytes() > taken_before:
            self._watch_writing()
            return
        self.bridge.reason = self.bridge.reason or f"took nothing for {timeout_ms} ms"
        cut(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        self._time_is_kept()
        super().connection_lost(exc)

    # -- layers

    def _upgrade(self, due: UpgradeDue) -> None:
        """Add a layer, now that all earlier output is written."""
        bridge = self.bridge
        self.is_plain = False
        if self.writes_plainly:
            self.writes_plainly = False
            self._written_bytes = self.sent_bytes
        if due.layer == TLS:
            assert self._certificate is not None
            layer = TlsLayer(self._certificate.context)
            self._layers.add(layer)
            self._handshake = self.tls = layer
            layer.feed(bridge.take_unread())
            wait_s = self._node.config.handshake_timeout_ms / 1000
            self._too_long = self._node.loop.call_later(wait_s, self._give_up)
            self._shake_hands(layer)
            return
        inner = compression(due.layer, due.level)
        self._layers.add(inner)
        inner.feed(bridge.take_unread())
        bridge.upgraded()
        self.holds_input = True
        self.go_on_decoding()

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
            self._time_is_kept()
            self.bridge.upgraded()
            self.touch()
            self.holds_input = True
            self.go_on_decoding()

    def _give_up(self) -> None:
        self._too_long = None
        wait_ms = self._node.config.handshake_timeout_ms
        self.bridge.reason = self.bridge.reason or f"tls: no handshake within {wait_ms} ms"
        self.transport.abort()

    def _time_is_kept(self) -> None:
        if self._too_long is not None:
            self._too_long.cancel()
            self._too_long = None

    # -- auth

    async def _ask(self) -> None:
        secret = self.bridge.pending_auth
        if secret is None:  # the connection came to its end before this task began
            return
        tls = self.tls
        name = "" if tls is None else tls.common_name()
        try:
            state, user = await self._doors.check(
                secret, self.peer_host, tls is not None, name, self.subject
            )
        except AuthUnavailable as error:
            self.log.error("auth.impossible", peer=self.peer, error=str(error))
            self.bridge.auth_failed()
        else:
            if not state.permission_count:
                audit.login_refused("NSQ", self.peer, self._doors.name_in(secret), "AUTH")
            if user is not None:
                self._node.rights.came_in(self, user)
            self.bridge.auth_succeeded(state, None if user is None else permissions_of(user))
