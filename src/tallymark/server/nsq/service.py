"""Everything NSQ of a node: topics, the listener, nsqd's HTTP interface, nsqlookupd, auth servers.

Made when the node is recovered, before the first client of any protocol.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tallymark.bridge.amqp10.connection import Amqp10
from tallymark.bridge.bridge import Bridge
from tallymark.bridge.nsq.lifecycle import Settings
from tallymark.bridge.nsq.topics import Topics
from tallymark.engine.queue_consumers import consumers_of
from tallymark.server.access import audit
from tallymark.server.access.tls import Tls, tls_required
from tallymark.server.config.settings import Config
from tallymark.server.listening import address_of, listen
from tallymark.server.node import Node
from tallymark.server.nsq.auth import Authorities
from tallymark.server.nsq.backlogs import BacklogRelease
from tallymark.server.nsq.client import NsqClient
from tallymark.server.nsq.doors import NsqDoors
from tallymark.server.nsq.lookupd import Announced, Lookupd
from tallymark.server.nsq.stats import (
    STATE_CLOSING,
    STATE_CONNECTED,
    STATE_SUBSCRIBED,
    ClientRow,
    Latencies,
    Stats,
)
from tallymark.wire.line import SHARE
from tallymark.wire.nsq.limits import Limits
from tallymark.wire.nsq.states import State

if TYPE_CHECKING:
    from tallymark.server.nsq.http import NsqHttp

STATES: Final = {State.SUBSCRIBED: STATE_SUBSCRIBED, State.CLOSING: STATE_CLOSING}


class NsqService:
    """NSQ's listeners and what serves them; the sockets are bound already when it starts."""

    def __init__(self, node: Node, tls: Tls | None) -> None:
        config = node.config
        self._node = node
        self._tls = tls
        self._listeners: list[asyncio.Server] = []
        self.limits = limits_of(config, tls is not None)
        self._limits_with_auth = replace(self.limits, auth_required=True)
        self.topics = Topics(
            node.broker, config.nsq_vhost, config.nsq_mem_queue_size, config.nsq_adopt_exchanges
        )
        self.latencies = Latencies(
            config.e2e_processing_latency_percentile, config.e2e_processing_latency_window_time
        )
        self.stats = Stats(self.topics, self.latencies)
        self.authorities: Authorities | None = None
        if config.auth_http_address:
            self.authorities = Authorities(
                config.auth_http_address,
                config.nsq_auth_connect_timeout,
                config.nsq_auth_request_timeout,
            )
        self.doors = NsqDoors(node, self.authorities)
        node.users.observers.append(self._users_changed)
        self._settings = Settings(
            self.limits,
            self.topics,
            _draw,
            self.latencies.on_finish if self.latencies.percentiles else None,
            config.nsq_max_channel_consumers,
            audit.access_refused,
        )
        self._lookupd: Lookupd | None = None
        self._http: NsqHttp | None = None
        self.addresses: list[tuple[str, int]] = []
        self.http_addresses: list[tuple[str, int]] = []
        self.https_addresses: list[tuple[str, int]] = []

    async def start(
        self,
        tcp: Sequence[socket.socket],
        http: Sequence[socket.socket],
        https: Sequence[socket.socket],
    ) -> None:
        """Listen for NSQ clients, and announce where the HTTP interface is (start_http)."""
        node = self._node
        self.addresses = [address_of(one) for one in tcp]
        self.http_addresses = [address_of(one) for one in http]
        self.https_addresses = [address_of(one) for one in https]
        http_port = self.http_addresses[0][1] if http else 0
        self._lookupd = Lookupd(self.topics, self._announced(http_port), node.loop)
        self._lookupd.set_addresses(node.config.lookupd)
        node.tasks.add("nsq-backlogs", BacklogRelease(node, self.topics))
        for bound in tcp:
            self._listeners.append(await listen(node.loop, self.client, bound))

    async def start_http(
        self,
        http: Sequence[socket.socket],
        https: Sequence[socket.socket],
        tls: Tls | None,
    ) -> None:
        """Answer at nsqd's HTTP interface; the NSQ listeners have been started."""
        self._http = self.make_http()
        await self._http.start(http, https, tls)

    def make_http(self) -> NsqHttp:
        """Return nsqd's HTTP interface; it does not listen yet."""
        from tallymark.server.nsq.http import NsqHttp

        lookupd = self._lookupd
        assert lookupd is not None
        made = NsqHttp(
            self._node, self.topics, self.limits, self.stats, lookupd, self.client_rows, self.doors
        )
        made.context.tcp_addresses = self.addresses
        return made

    def listening(self) -> dict[str, list[tuple[str, int]]]:
        """Addresses by protocol, as the ready line and lists name it."""
        found = {"nsq": self.addresses, "nsq_http": self.http_addresses}
        if self.https_addresses:
            found["nsq_https"] = self.https_addresses
        return found

    def close_listeners(self) -> None:
        """No new clients."""
        for listener in self._listeners:
            listener.close()

    async def stop(self) -> None:
        """Everything but the clients, whose the node is."""
        self.close_listeners()
        if self._lookupd is not None:
            self._lookupd.close()
        if self._http is not None:
            await self._http.stop()
        if self.authorities is not None:
            await self.authorities.close()

    def client(self) -> NsqClient:
        """Make the protocol of a new connection."""
        limits = self._limits_with_auth if self.doors.needs_auth else self.limits
        return NsqClient(self._node, self._settings, self._tls, self.doors, limits)

    def _users_changed(self) -> None:
        """Close the connections of clients that came while there were no users and have not logged
        in."""
        if self.authorities is not None or not self.doors.needs_login:
            return
        for client in list(self._node.clients):
            if isinstance(client, NsqClient) and not client.bridge.wire.limits.auth_required:
                client.bridge.shutdown("users are configured: AUTH is needed")
                client.touch()

    def _announced(self, http_port: int) -> Announced:
        config = self._node.config
        hostname = socket.gethostname()
        return Announced(
            version=self.limits.version,
            tcp_port=config.nsq_broadcast_tcp_port or self.addresses[0][1],
            http_port=config.nsq_broadcast_http_port or http_port,
            hostname=hostname,
            broadcast_address=config.nsq_broadcast_address or hostname,
            topology_region=config.nsq_topology_region,
            topology_zone=config.nsq_topology_zone,
        )

    # -- what statistics show

    def client_rows(self) -> list[ClientRow]:
        """Every NSQ client, and AMQP consumers of channels."""
        rows = [
            _client_row(client) for client in self._node.clients if isinstance(client, NsqClient)
        ]
        for topic in self.topics.topics():
            for queue in topic.channels.values():
                for consumer in consumers_of(queue):
                    connection = consumer.session.connection
                    bridge = connection.handle
                    assert isinstance(bridge, Bridge), bridge
                    client = self._node.clients.of(bridge)
                    if isinstance(client, NsqClient):
                        continue
                    peer = connection.name.partition(" ")[0]
                    rows.append(
                        ClientRow(
                            queue=queue,
                            client_id=consumer.tag,
                            hostname=peer.rpartition(":")[0],
                            version="1.0" if isinstance(bridge, Amqp10) else "0-9-1",
                            remote_address=peer,
                            ready_count=min(consumer.limit, self.limits.max_rdy_count),
                            in_flight_count=consumer.unacked,
                            connect_ts=0 if client is None else client.since_ms // 1000,
                        )
                    )
        return rows


def _draw() -> int:
    return random.randrange(100)


def _client_row(client: NsqClient) -> ClientRow:
    bridge, tls, auth = client.bridge, client.tls, client.bridge.auth
    identify, consumer, layers = bridge.identify, bridge.consumer, bridge.wire.layers
    remote_host = client.peer.rpartition(":")[0]
    return ClientRow(
        queue=consumer.queue if consumer is not None and consumer.active else None,
        client_id=identify.client_id or remote_host,
        hostname=identify.hostname or remote_host,
        version="V2",
        remote_address=client.peer,
        state=STATES.get(bridge.wire.state, STATE_CONNECTED),
        ready_count=0 if consumer is None else consumer.limit,
        in_flight_count=0 if consumer is None else consumer.unacked,
        message_count=bridge.message_count,
        finish_count=bridge.finish_count,
        requeue_count=bridge.requeue_count,
        connect_ts=client.since_ms // 1000,
        sample_rate=identify.sample_rate,
        deflate="deflate" in layers,
        snappy="snappy" in layers,
        user_agent=identify.user_agent,
        authed=auth is not None,
        auth_identity="" if auth is None else auth.identity,
        auth_identity_url="" if auth is None else auth.identity_url,
        published=bridge.published,
        topology_region=identify.topology_region,
        topology_zone=identify.topology_zone,
        tls="tls" in layers,
        tls_cipher_suite="" if tls is None else tls.cipher(),
        tls_version="" if tls is None else go_version(tls.version()),
    )


def go_version(version: str) -> str:
    """A version of TLS as nsqd's /stats shows it: TLS1.3 for TLSv1.3."""
    return {"TLSv1": "TLS1.0"}.get(version, version.replace("TLSv", "TLS"))


def limits_of(config: Config, tls_available: bool) -> Limits:
    """Return the limits of NSQ connections. Raises ValueError where two settings do not go
    together."""
    return Limits(
        max_msg_size=config.nsq_max_msg_size,
        max_body_size=config.nsq_max_body_size,
        max_rdy_count=config.nsq_max_rdy_count,
        msg_timeout_ms=config.nsq_msg_timeout,
        max_msg_timeout_ms=config.nsq_max_msg_timeout,
        max_req_timeout_ms=config.nsq_max_req_timeout,
        max_heartbeat_interval_ms=config.nsq_max_heartbeat_interval,
        max_output_buffer_size=config.nsq_max_output_buffer_size,
        output_buffer_timeout_ms=config.nsq_output_buffer_timeout,
        min_output_buffer_timeout_ms=config.nsq_min_output_buffer_timeout,
        max_output_buffer_timeout_ms=config.nsq_max_output_buffer_timeout,
        snappy_enabled=config.nsq_snappy,
        deflate_enabled=config.nsq_deflate,
        max_deflate_level=config.nsq_max_deflate_level,
        tls_available=tls_available,
        tls_required=tls_required(config) != "false",
        auth_required=bool(config.auth_http_address),
        topology_region=config.nsq_topology_region,
        topology_zone=config.nsq_topology_zone,
        steps=SHARE,
    )
