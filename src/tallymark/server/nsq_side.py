"""What nsqd is beside its TCP listener: HTTP, statistics, auth servers, nsqlookupd.

side = NsqSide(node, topics, limits)
... the listener's settings get side.latencies.on_finish and side.authorities ...
await side.start(tcp_port, http, https, tls)
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tallymark.bridge.nsq_topics import Topics
from tallymark.server.lookupd import Announced, Lookupd
from tallymark.server.node import Node
from tallymark.server.nsq_auth import Authorities
from tallymark.server.nsq_clients import client_rows
from tallymark.server.nsq_stats import Latencies, Stats
from tallymark.wire.nsq.limits import Limits

if TYPE_CHECKING:
    from tallymark.server.nsq_http import NsqHttp


class NsqSide:
    """See the module's text."""

    def __init__(self, node: Node, topics: Topics, limits: Limits) -> None:
        config = node.config
        self._node = node
        self._topics = topics
        self._limits = limits
        self.latencies = Latencies(
            config.e2e_processing_latency_percentile, config.e2e_processing_latency_window_time
        )
        self.authorities: Authorities | None = None
        """None: every client may do everything."""
        if config.auth_http_address:
            self.authorities = Authorities(
                config.auth_http_address,
                config.nsq_auth_connect_timeout,
                config.nsq_auth_request_timeout,
            )
        self._stats = Stats(topics, self.latencies)
        self._lookupd: Lookupd | None = None
        self._http: NsqHttp | None = None

    async def start(
        self,
        tcp_port: int,
        http: Sequence[socket.socket],
        https: Sequence[socket.socket] = (),
        tls: ssl.SSLContext | None = None,
        tls_required: bool = False,
    ) -> list[tuple[str, int]]:
        """Listen on sockets that are bound, and register with nsqlookupd. Returns the addresses
        of HTTP. tcp_port: of the NSQ protocol; tls_required: HTTP outside of TLS is refused."""
        from tallymark.server.nsq_http import NsqHttp  # and aiohttp, not before it is needed

        node, config = self._node, self._node.config
        hostname = socket.gethostname()
        http_port = http[0].getsockname()[1] if http else 0
        self._lookupd = Lookupd(
            self._topics,
            Announced(
                version=self._limits.version,
                tcp_port=config.nsq_broadcast_tcp_port or tcp_port,
                http_port=config.nsq_broadcast_http_port or http_port,
                hostname=hostname,
                broadcast_address=config.nsq_broadcast_address or hostname,
                topology_region=self._limits.topology_region,
                topology_zone=self._limits.topology_zone,
            ),
            node.loop,
        )
        self._http = NsqHttp(
            node, self._topics, self._limits, self._stats, self._lookupd,
            lambda: client_rows(node, self._topics),
        )  # fmt: skip
        self._http.tcp_port = tcp_port
        self._http.tls_required = tls_required
        await self._http.start(http, https, tls)
        self._lookupd.set_addresses(config.lookupd)
        return self._http.addresses

    async def stop(self) -> None:
        """Close everything that `start` opened; who is being answered is answered."""
        if self._lookupd is not None:
            self._lookupd.close()
        if self._http is not None:
            await self._http.stop()
        if self.authorities is not None:
            await self.authorities.close()
