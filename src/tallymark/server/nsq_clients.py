"""The clients that /stats shows: NSQ's own, and AMQP consumers of channels' queues."""

from __future__ import annotations

from typing import Final

from tallymark.bridge.bridge import Bridge
from tallymark.bridge.nsq import Nsq
from tallymark.bridge.nsq_topics import Topics
from tallymark.engine.session import UNLIMITED, Consumer
from tallymark.server.node import Node
from tallymark.server.nsq import NsqClient
from tallymark.server.nsq_stats import STATE_CLOSING, STATE_SUBSCRIBED, ClientRow
from tallymark.wire.nsq.states import State

AMQP_VERSION: Final = "0-9-1"
STATE_INIT: Final = 0
STATES: Final = {State.SUBSCRIBED: STATE_SUBSCRIBED, State.CLOSING: STATE_CLOSING}
"""As nsqd numbers them; any other is STATE_INIT."""


def client_rows(node: Node, topics: Topics) -> list[ClientRow]:
    """Who subscribed or has published, now."""
    rows = [
        _of_nsq(client)
        for client in node.clients.values()
        if isinstance(client, NsqClient) and client.has_entered
    ]
    for topic in topics.topics():
        for queue in topic.channels.values():
            for consumer in queue.consumers:
                if not isinstance(consumer.session.connection.handle, Nsq):
                    rows.append(_of_amqp(node, consumer))
    return rows


def _of_nsq(client: NsqClient) -> ClientRow:
    bridge = client.bridge
    consumer, identify, auth, tls = bridge.consumer, bridge.identify, bridge.auth, client.tls
    row = ClientRow(
        queue=consumer.queue if consumer is not None and consumer.active else None,
        client_id=identify.client_id or client.peer_host,
        hostname=identify.hostname or client.peer_host,
        version="V2",
        remote_address=client.peer,
        state=STATES.get(bridge.wire.state, STATE_INIT),
        message_count=bridge.message_count,
        finish_count=bridge.finish_count,
        requeue_count=bridge.requeue_count,
        connect_ts=client.since_ms // 1000,
        sample_rate=identify.sample_rate,
        deflate=identify.deflate,
        snappy=identify.snappy,
        user_agent=identify.user_agent,
        published=dict(bridge.published),
        topology_region=identify.topology_region,
        topology_zone=identify.topology_zone,
    )
    if consumer is not None:
        row.ready_count = consumer.limit
        row.in_flight_count = consumer.unacked
    if auth is not None:
        row.authed = True
        row.auth_identity = auth.identity
        row.auth_identity_url = auth.identity_url
    if tls is not None:
        row.tls = True
        row.tls_cipher_suite = tls.cipher()
        row.tls_version = tls.version()
    return row


def _of_amqp(node: Node, consumer: Consumer) -> ClientRow:
    connection = consumer.session.connection
    handle = connection.handle
    client = node.clients.get(handle) if isinstance(handle, Bridge) else None
    return ClientRow(
        queue=consumer.queue,
        client_id=consumer.tag,
        hostname=client.peer_host if client is not None else "",
        version=AMQP_VERSION,
        remote_address=connection.name.partition(" -> ")[0],
        ready_count=consumer.limit if consumer.limit < UNLIMITED else 0,
        in_flight_count=consumer.unacked,
        connect_ts=client.since_ms // 1000 if client is not None else 0,
    )
