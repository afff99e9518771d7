"""Registration with nsqlookupd: consumers that ask it for a topic's producers find this broker.

One connection to each nsqlookupd. With every connection all topics and channels are registered anew
(nsqlookupd forgets who disconnects), then what is made and deleted, and a PING keeps it alive. One
that cannot be reached is tried again, after a second at first and every 15 s in the end; nobody
else waits for that. At a stop the connections close, which is the unregistration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

from tallymark.bridge.nsq.topics import Topics
from tallymark.engine.queue import Queue
from tallymark.server.logs import log_of
from tallymark.wire.nsq.lookup import (
    ANSWER_TIMEOUT_MS,
    PING_INTERVAL_MS,
    LookupClient,
    LookupdError,
)

CONNECT_S: Final = 1.0
"""nsqd's limit for a connection attempt."""
FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 15.0

log = log_of("nsq")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT` or `[IPV6]:PORT`. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{address!r}, expected HOST:PORT, of an IPv6 address [HOST]:PORT")
    if not colon or not host or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(f"{address!r}, expected HOST:PORT")
    return host, int(port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """Announcement that nsqlookupd passes on to consumers."""

    version: str
    """Version of nsqd that we register as."""
    tcp_port: int
    http_port: int
    hostname: str
    broadcast_address: str
    """Address that clients connect to."""
    topology_region: str = ""
    topology_zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Time limits of a connection to nsqlookupd."""

    ping_s: float = PING_INTERVAL_MS / 1000
    answer_s: float = ANSWER_TIMEOUT_MS / 1000
    first_retry_s: float = FIRST_RETRY_S
    last_retry_s: float = LAST_RETRY_S


class Lookupd:
    """The connections to all nsqlookupds of a broker."""

    def __init__(
        self,
        topics: Topics,
        announced: Announced,
        loop: asyncio.AbstractEventLoop,
        pace: Pace | None = None,
    ) -> None:
        self.topics = topics
        self.announced = announced
        self.loop = loop
        self.pace = pace or Pace()
        self.peers: dict[str, Peer] = {}
        """Connections by address."""
        self._noticed = False
        topics.broker.registry.observers.append(self._notice)

    @property
    def addresses(self) -> list[str]:
        return list(self.peers)

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """Be registered with these and no others. Raises ValueError, nothing is changed then."""
        for address in addresses:
            split_address(address)
        for address in [old for old in self.peers if old not in addresses]:
            log.info("lookupd.removed", address=address)
            self.peers.pop(address).close()
        for address in addresses:
            if address not in self.peers:
                peer = self.peers[address] = Peer(self, address)
                peer.connect()

    def close(self) -> None:
        """Disconnect from all."""
        self.set_addresses([])
        self.topics.broker.registry.observers.remove(self._notice)
        self.topics.keeps_changes = False
        self.topics.changed.clear()

    def _notice(self, queue: Queue, exists: bool) -> None:
        """Note that a topic or channel was created or deleted: it is announced at the end of the
        turn."""
        if not self._noticed:
            self._noticed = True
            self.loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._noticed = False
        changed = self.topics.changed[:]
        self.topics.changed.clear()
        for peer in self.peers.values():
            if changed and peer.link is not None:
                peer.link.tell(changed)


class Peer:
    """One nsqlookupd: connected, connecting, or waiting for the next attempt."""

    def __init__(self, lookupd: Lookupd, address: str) -> None:
        self.lookupd = lookupd
        self.address = address
        self.link: Link | None = None
        """Link to the nsqlookupd; None: not connected."""
        self._host, self._port = split_address(address)
        self._attempt: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._wait_s = lookupd.pace.first_retry_s
        self._closed = False

    def connect(self) -> None:
        self._retry = None
        self._attempt = self.lookupd.loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                await self.lookupd.loop.create_connection(
                    lambda: Link(self), self._host, self._port
                )
        except (OSError, UnicodeError) as error:  # TimeoutError is one; a host that can be none
            found = error.strerror if isinstance(error, OSError) else ""
            self._again(found or str(error) or type(error).__name__)

    def connected(self, link: Link) -> None:
        self.link = link
        if self._closed:
            link.close()

    def answered(self) -> None:
        """Mark the registration as answered: the next loss of the connection is logged anew."""
        self._wait_s = self.lookupd.pace.first_retry_s

    def lost(self, link: Link, reason: str) -> None:
        if self.link is link:
            self.link = None
            if not self._closed:
                self._again(reason)

    def _again(self, reason: str) -> None:
        pace = self.lookupd.pace
        tell = log.warning if self._wait_s == pace.first_retry_s else log.debug
        tell("lookupd.unreachable", address=self.address, reason=reason, retry_s=self._wait_s)
        self._retry = self.lookupd.loop.call_later(self._wait_s, self.connect)
        self._wait_s = min(self._wait_s * 2, pace.last_retry_s)

    def close(self) -> None:
        self._closed = True
        if self._attempt is not None:
            self._attempt.cancel()
        if self._retry is not None:
            self._retry.cancel()
        if self.link is not None:
            self.link.close()


class Link(asyncio.Protocol):
    """One connection to nsqlookupd."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._lookupd = peer.lookupd
        self._reason = "connection closed by nsqlookupd"
        self._transport: asyncio.Transport | None = None
        self._next_ping: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        """Runs while an answer is awaited."""
        about = peer.lookupd.announced
        self._client = LookupClient(
            version=about.version, tcp_port=about.tcp_port, http_port=about.http_port,
            hostname=about.hostname, broadcast_address=about.broadcast_address,
            topology_region=about.topology_region, topology_zone=about.topology_zone,
        )  # fmt: skip

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._peer.connected(self)
        for topic in self._lookupd.topics.topics():
            if not topic.channels:
                self._client.register(topic.name)
            for channel in topic.channels:
                self._client.register(topic.name, channel)
        # Pending changes are sent later all the same: registering twice is harmless, and so is
        # unregistering a name that is not registered.
        self._write()
        self._next_ping = self._lookupd.loop.call_later(self._lookupd.pace.ping_s, self._ping)

    def tell(self, changed: list[tuple[str, str, bool]]) -> None:
        for topic, channel, exists in changed:
            if exists:
                self._client.register(topic, channel)
            else:
                self._client.unregister(topic, channel)
        self._write()

    def data_received(self, data: bytes) -> None:
        client = self._client
        client.receive_data(data)
        try:
            while (answer := client.next_answer()) is not None:
                if answer.error:
                    log.warning("lookupd.refused", address=self._peer.address,
                                command=answer.command, error=answer.error)  # fmt: skip
                    self._drop(f"{answer.command}: {answer.error}")
                    return
                if answer.command == "IDENTIFY":
                    log.info("lookupd.registered", address=self._peer.address,
                             version=str(answer.info.get("version", "?")))  # fmt: skip
                    self._peer.answered()
        except LookupdError as error:
            self._drop(str(error))
            return
        self._await_answer()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._next_ping, self._patience):
            if timer is not None:
                timer.cancel()
        self._peer.lost(self, str(exc) if exc else self._reason)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _write(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.writelines(self._client.out)
        self._client.out.clear()
        if self._patience is None:
            self._await_answer()

    def _await_answer(self) -> None:
        """Each answer has its time; it begins with the answer before it."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._client.unanswered():
            wait_s = self._lookupd.pace.answer_s
            self._patience = self._lookupd.loop.call_later(wait_s, self._silent)

    def _ping(self) -> None:
        # Also while there are registrations to tell: nsqlookupd takes nothing else for a sign of
        # life.
        self._next_ping = self._lookupd.loop.call_later(self._lookupd.pace.ping_s, self._ping)
        self._client.ping()
        self._write()

    def _silent(self) -> None:
        self._drop(f"no answer within {self._lookupd.pace.answer_s:g} s")

    def _drop(self, reason: str) -> None:
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()
