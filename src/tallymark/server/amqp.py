"""AMQP at the socket: bytes between a transport and its bridge, and nothing decided here but which
of the two versions a client speaks: its first bytes say that.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl

from tallymark.bridge.amqp import AMQP_10, UNDECIDED, AmqpBridge, protocol_of
from tallymark.bridge.amqp091 import lifecycle as amqp091
from tallymark.bridge.amqp091.connection import Amqp091
from tallymark.bridge.amqp10.connection import Amqp10
from tallymark.bridge.amqp10.settings import Settings as Settings10
from tallymark.bridge.bridge import Bridge
from tallymark.server.access import audit
from tallymark.server.access.scram import SCRAM, ScramError, ScramKeys, ScramServer
from tallymark.server.access.tls import common_name
from tallymark.server.access.user import User, UsersError, permissions_of
from tallymark.server.client import Client
from tallymark.server.clock import now_ms
from tallymark.server.listening import address_text
from tallymark.server.logs import log_of
from tallymark.server.node import Node

log = log_of("amqp")


class Settings:
    """Settings that all AMQP connections share."""

    def __init__(self, amqp091: amqp091.Settings, amqp10: Settings10) -> None:
        self.amqp091 = amqp091
        self.amqp10 = amqp10


class AmqpClient(Client):
    """A client connection of AMQP."""

    bridge: AmqpBridge

    def __init__(self, node: Node, settings: Settings) -> None:
        super().__init__(node.clients, "amqp")
        self._node = node
        self._settings = settings
        self._scram: ScramServer | None = None
        self._keys: ScramKeys | None = None
        self._start: bytes | None = b""
        """Bytes read before the client's protocol was known; None: it is known."""
        self._common_name = ""
        self.is_encrypted = False

    def meet(self, transport: asyncio.Transport) -> Bridge:
        peer, here = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self.peer_host = peer[0] if peer else ""
        self.peer = f"{address_text(peer)} -> {address_text(here)}"
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if tls is not None:
            self.is_encrypted = True
            self._common_name = common_name(tls.getpeercert())
        return Amqp091(self._node.broker, self._settings.amqp091, self.peer, self._common_name)

    def take(self, data: bytes) -> None:
        assert self._start is not None
        self._clients.received(self, self._decide(self._start + data))

    def _decide(self, start: bytes) -> bytes:
        """Detect the client's protocol; return the input that remains for the bridge."""
        protocol = protocol_of(start)
        if protocol == UNDECIDED:
            self._start = start
            return b""
        self._start = None
        self.is_plain = True
        if protocol == AMQP_10:
            bridge = Amqp10(self._node.broker, self._settings.amqp10, self.peer, self._common_name)
            bridge.tick(now_ms())
            self._clients.speaks_otherwise(self, bridge)
        return start

    def attend(self) -> None:
        """Close the connection, or begin a log-in."""
        bridge = self.bridge
        if bridge.closing:
            self.finish()
            return
        if bridge.pending_login is not None and not self.is_asking:
            self.begin(self._check_login)
        if bridge.pending_sasl is not None and not self.is_asking:
            self.begin(self._check_step)
        if bridge.pending_secret is not None and not self.is_asking:
            self.begin(self._check_secret)

    @property
    def protocol(self) -> str:
        return "AMQP 1.0" if isinstance(self.bridge, Amqp10) else "AMQP 0-9-1"

    async def _check_step(self) -> None:
        """Answer a step of SCRAM."""
        response = self.bridge.pending_sasl
        if response is None:  # as in _check_login
            return
        try:
            if self._scram is None:
                self._begin_scram(response)
            else:
                await self._end_scram(self._scram, response)
        except (ScramError, UsersError) as error:
            self._refuse_scram(str(error))

    def _begin_scram(self, response: bytes) -> None:
        """Raises ScramError, UsersError."""
        scram = self._scram = ScramServer(secrets.token_urlsafe(18))
        scram.first(response)
        self._keys = self._node.users.scram_of(scram.name, self.peer_host)
        self.bridge.sasl_challenge(scram.challenge(self._keys))

    async def _end_scram(self, scram: ScramServer, response: bytes) -> None:
        """Raises ScramError, UsersError."""
        keys = self._keys
        assert keys is not None
        last_words = scram.final(response, keys)
        users = self._node.users
        user = await users.check_proof(
            scram.name, self.peer_host, keys, lambda: last_words is not None
        )
        if user is None or last_words is None:
            self._refuse_scram("wrong password, or no keys for it")
        else:
            self._node.rights.came_in(self, user)
            self.bridge.login_succeeded(permissions_of(user), last_words)

    def _refuse_scram(self, reason: str) -> None:
        name = "" if self._scram is None else self._scram.name
        audit.login_refused(self.protocol, self.peer, name, SCRAM, reason)
        self.bridge.login_failed()

    async def _check_login(self) -> None:
        if self.bridge.pending_login is None:  # the connection ended before this task began
            return
        mechanism, name, password = self.bridge.pending_login
        user: User | None = None
        try:
            if mechanism in ("EXTERNAL", "ANONYMOUS"):
                user = self._node.users.named(name)
            else:
                user = await self._node.users.check(name, password, self.peer_host)
                if user is not None:  # it took a while: who is it now?
                    user = self._node.users.as_now(user)
        except UsersError as error:
            log.error("login.impossible", error=str(error))
        if user is None:
            audit.login_refused(self.protocol, self.peer, name, mechanism)
            self.bridge.login_failed()
        else:
            self._node.rights.came_in(self, user)
            self.bridge.login_succeeded(permissions_of(user))

    async def _check_secret(self) -> None:
        """Check a secret that takes the place of an earlier one."""
        secret = self.bridge.pending_secret
        assert secret is not None
        text = secret.decode("utf-8", "replace")
        user: User | None = None
        try:
            user = await self._node.users.renew(self.subject, text, self.peer_host)
        except UsersError as error:
            log.error("login.impossible", error=str(error))
        if user is None:
            self.bridge.secret_refused()
        else:
            self._node.rights.came_in(self, user)
            self.bridge.secret_accepted(permissions_of(user))
