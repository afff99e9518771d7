"""Queues, exchanges, bindings, connections, channels and consumers as RabbitMQ's interface shows
them.

Nothing is invented: what this broker does not count is left out.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from base64 import urlsafe_b64encode
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote_plus

from tallymark.bridge.amqp091.channel import Channel
from tallymark.bridge.amqp10.client import Session
from tallymark.engine.exchange import Binding, Exchange
from tallymark.engine.policies import merged
from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import active_of, consumers_of
from tallymark.engine.session import Consumer
from tallymark.engine.streams import offset_of
from tallymark.engine.table_json import canonical
from tallymark.engine.timeouts import timeout_of
from tallymark.engine.vhost import VirtualHost
from tallymark.server.amqp import AmqpClient
from tallymark.server.client import Client
from tallymark.server.http.state import plain, stream_row
from tallymark.server.management.rates import DATA_RATES, LENGTHS, MSG_RATES, Rates
from tallymark.server.node import Node, node_name
from tallymark.server.nsq.client import NsqClient
from tallymark.server.samples import MESSAGES, MOVED, PRESENT, counts_of
from tallymark.units import UNLIMITED
from tallymark.wire.nsq.states import State

MILLIS: Final = "milliseconds"
NSQ_PROTOCOL: Final = "NSQ V2"
NSQ_CHANNEL: Final = 0
"""Number of the only channel in the consumers' rows."""

NO_ARGUMENTS: Final = "~"
"""The properties key of a binding that has neither key nor arguments."""
PEER: Final = re.compile(r"\[?(.*?)\]?:(\d+) -> \[?(.*?)\]?:(\d+)")
"""Name of an AMQP connection: the addresses of both ends."""
NSQ_PEER: Final = re.compile(r"(?!unix:)\[?(.*?)\]?:(\d+)")
"""Name of an NSQ connection: the client's address, unless it came through a file's socket."""


# -- queues


def queue_counts(queue: Queue) -> dict[str, int]:
    """Messages: all, with those that are deferred, cannot be read, and dead letters that wait for a
    way out; ready; handed out (settled in a transaction or not)."""
    found = dict(zip(MESSAGES, counts_of(queue), strict=True))
    return {name: found[name] for name in PRESENT}


def brief_row(queue: Queue, has_totals: bool) -> dict[str, Any]:
    """Return what a queue is, and if `has_totals` how many messages it has, without any other
    figure [rabbitmq disable_stats]."""
    row: dict[str, Any] = {
        "name": queue.name,
        "vhost": queue.vhost,
        "type": queue.settings.type,
        "node": node_name(),
        "state": "running",
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.exclusive_owner != 0,
        "arguments": plain(queue.arguments),
    }
    return {**row, **queue_counts(queue)} if has_totals else row


def queue_row(node: Node, vhost: VirtualHost, queue: Queue, rates: Rates) -> dict[str, Any]:
    policy, operator = (
        vhost.policy_table.of_queue(queue, False),
        vhost.policy_table.of_queue(queue, True),
    )
    exclusive = [consumer.tag for consumer in consumers_of(queue) if consumer.exclusive]
    active = active_of(queue) if queue.settings.single_active else None
    of_queue, at_rest = rates.of_queue(queue), rates.at_rest_since(queue)
    held_bytes = queue.account.acquired_bytes + queue.account.staged_bytes
    row: dict[str, Any] = {
        **brief_row(queue, False),
        "policy": None if policy is None else policy.name,
        "operator_policy": None if operator is None else operator.name,
        "effective_policy_definition": plain(merged(policy, operator)),
        "consumers": len(queue.consumers),
        "exclusive_consumer_tag": exclusive[0] if exclusive else None,
        "single_active_consumer_tag": None if active is None else active.tag,
        **of_queue.counted(queue_counts(queue), LENGTHS),
        "messages_delayed": queue.deferred,
        "message_bytes": queue.account.ready_bytes + held_bytes + queue.account.deferred_bytes,
        "message_bytes_ready": queue.account.ready_bytes,
        "message_bytes_unacknowledged": held_bytes,
    }
    capacity = rates.capacity_of(queue)
    if capacity is not None:
        row |= {"consumer_capacity": capacity, "consumer_utilisation": capacity}
    if queue.deferrals:
        row["next_delayed_at"] = node.broker.clock.to_wall(queue.deferrals.next_due())
    if queue.settings.is_quorum or queue.settings.is_stream:
        row |= {"leader": node_name(), "members": [node_name()], "online": [node_name()]}
    if queue.settings.is_stream:
        row |= {"readers": {node_name(): len(queue.consumers)}, **stream_row(queue)}
        if queue.end() > 1:
            row["committed_offset"] = queue.end() - 2
    if queue.entered:
        counts = dict(zip(MESSAGES, counts_of(queue), strict=True))
        moved, handed_out = {name: counts[name] for name in MOVED}, queue.handed_out
        row["message_stats"] = {
            **of_queue.counted(moved, MSG_RATES),
            "deliver": handed_out.to_settle,
            "deliver_no_ack": handed_out.for_good,
            "get": handed_out.got_to_settle,
            "get_no_ack": handed_out.got_for_good,
            "get_empty": handed_out.got_nothing,
        }
    if at_rest is not None:
        row["idle_since"] = datetime.fromtimestamp(at_rest / 1000, UTC).isoformat("T", MILLIS)
    owner = node.broker.connections.get(queue.exclusive_owner)
    if owner is not None:
        row["owner_pid_details"] = peer_details(owner.name)
    return row


def queue_details(node: Node, vhost: VirtualHost, queue: Queue, rates: Rates) -> dict[str, Any]:
    """Return the row of one queue asked for by name, with figures for which every deferred message
    is looked at; without its consumers."""
    row = queue_row(node, vhost, queue, rates)
    if queue.deferrals:
        row["last_delayed_at"] = node.broker.clock.to_wall(queue.deferrals.last_due())
    return row


def consumer_row(consumer: Consumer) -> dict[str, Any]:
    session = consumer.session
    connection = session.connection
    handle = session.handle
    number = handle.number if isinstance(handle, Channel | Session) else 0
    queue = consumer.queue
    is_single, is_active = queue.settings.single_active, queue.active is consumer
    status = ("single_active" if is_active else "waiting") if is_single else "up"
    return {
        "consumer_tag": consumer.tag,
        "queue": {"name": queue.name, "vhost": queue.vhost},
        "ack_required": not consumer.no_ack,
        "exclusive": consumer.exclusive,
        "prefetch_count": 0 if consumer.limit == UNLIMITED else consumer.limit,
        "active": is_active or not is_single,
        "activity_status": status,
        "consumer_timeout": timeout_of(consumer, queue),
        "arguments": plain(consumer.arguments),
        **({"offset": offset_of(consumer)} if queue.settings.is_stream else {}),
        "channel_details": {
            "name": channel_name(connection.name, number),
            "number": number,
            "connection_name": connection.name,
            "user": connection.user,
            "node": node_name(),
            **{k: v for k, v in peer_details(connection.name).items() if k != "name"},
        },
    }


# -- exchanges and bindings


def exchange_row(vhost: VirtualHost, exchange: Exchange) -> dict[str, Any]:
    """Return an exchange's row as RabbitMQ shows it: `policy` only where there is one."""
    policy = vhost.policy_table.of_exchange(exchange)
    row: dict[str, Any] = {
        "name": exchange.name,
        "vhost": vhost.name,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": plain(exchange.arguments),
    }
    if policy is not None:
        row["policy"] = policy.name
    return row


def binding_row(vhost: str, binding: Binding) -> dict[str, Any]:
    return {
        "source": binding.source.name,
        "vhost": vhost,
        "destination": binding.destination(),
        "destination_type": binding.kind(),
        "routing_key": binding.key,
        "arguments": plain(binding.arguments),
        "properties_key": properties_key(binding.key, binding.arguments),
    }


def implied_row(queue: Queue) -> dict[str, Any]:
    """The binding to the default exchange that every queue has."""
    return {
        "source": "",
        "vhost": queue.vhost,
        "destination": queue.name,
        "destination_type": "queue",
        "routing_key": queue.name,
        "arguments": {},
        "properties_key": properties_key(queue.name, {}),
    }


def bindings_of(vhost: VirtualHost) -> list[tuple[str, Queue | Binding]]:
    """Return all bindings of a virtual host with its name, first a queue for each implied one."""
    every: list[Queue | Binding] = [*vhost.queues.values(), *vhost.topology.bindings()]
    return [(vhost.name, one) for one in every]


def any_binding_row(vhost: str, one: Queue | Binding) -> dict[str, Any]:
    """Return the row of a binding; of a queue, the row of the binding that is implied."""
    return implied_row(one) if isinstance(one, Queue) else binding_row(vhost, one)


def properties_key(key: str, arguments: dict[str, object]) -> str:
    """Return the key that tells a binding from others between the same two: as RabbitMQ's, the
    quoted routing key, and behind a tilde six letters for the arguments (another hash than
    RabbitMQ's)."""
    quoted = quote_plus(key, safe="", errors="surrogateescape").replace("~", "%7E")
    if not arguments:
        return quoted or NO_ARGUMENTS
    digest = hashlib.blake2b(canonical(arguments).encode(), digest_size=4).digest()
    return f"{quoted}~{urlsafe_b64encode(digest).decode().rstrip('=')}"


# -- connections


def peer_details(name: str) -> dict[str, Any]:
    """Return the peer's host and port as the connection's name has them."""
    found = PEER.fullmatch(name) or NSQ_PEER.fullmatch(name)
    if found is None:
        return {"name": name}
    return {"name": name, "peer_host": found[1], "peer_port": int(found[2])}


def channel_name(connection: str, number: int) -> str:
    return f"{connection} ({number})"


def connection_row(client: AmqpClient, rates: Rates) -> dict[str, Any]:
    about = client.bridge.describe()
    properties = about["client_properties"]
    channels = about["channels"]
    assert isinstance(properties, dict)
    assert isinstance(channels, list)
    found = PEER.fullmatch(client.peer)
    row = {
        **peer_details(client.peer),
        "node": node_name(),
        "type": "network",
        "protocol": about["protocol"],
        "state": _state(client, about["state"]),
        "user": about["user"],
        "vhost": about["vhost"],
        "channels": len(channels),
        "channel_max": about["channel_max"],
        "frame_max": about["frame_max"],
        "client_properties": plain(properties),
        "connected_at": client.since_ms,
        "ssl": client.is_encrypted,
        **_traffic(client, rates),
    }
    if found is not None:
        row |= {"host": found[3], "port": int(found[4])}
    row |= {key: about[key] for key in ("auth_mechanism", "timeout") if about.get(key, "") != ""}
    tls: ssl.SSLObject | None = client.transport.get_extra_info("ssl_object")
    cipher = None if tls is None else tls.cipher()
    if tls is not None and cipher is not None:
        row |= {"ssl_protocol": tls.version(), "ssl_cipher": cipher[0]}
    container = about.get("container_id")
    if container is not None:
        row |= {"container_id": container, "user_provided_name": container}
    if isinstance(properties.get("connection_name"), str):
        row["user_provided_name"] = properties["connection_name"]
    return row


def _traffic(client: Client, rates: Rates) -> dict[str, Any]:
    counts = {"recv_oct": client.received_bytes, "send_oct": client.sent_bytes}
    found = rates.of_connection(client).counted(counts, DATA_RATES)
    return {**found, "send_pend": client.unsent()}


def channel_rows(client: AmqpClient) -> list[dict[str, Any]]:
    """Every open channel of a connection."""
    about = client.bridge.describe()
    channels = about["channels"]
    assert isinstance(channels, list)
    return [
        {
            "name": channel_name(client.peer, one["number"]),
            "number": one["number"],
            "connection_details": peer_details(client.peer),
            "node": node_name(),
            "user": about["user"],
            "vhost": about["vhost"],
            "state": "running" if one["flow"] else "flow",
            "consumer_count": one["consumers"],
            "prefetch_count": one["prefetch"],
            "global_prefetch_count": one["prefetch_shared"],
            "messages_unacknowledged": one["unacked"] - one["acks_uncommitted"],
            "messages_unconfirmed": one["unconfirmed"],
            "messages_uncommitted": one["uncommitted"],
            "acks_uncommitted": one["acks_uncommitted"],
            "confirm": one["confirms"],
            "transactional": one["transactional"],
        }
        for one in channels
    ]


def _state(client: Client, state: object) -> object:
    """Return a connection's state: that of its protocol, unless its publishes are held back."""
    if client.blocked_reason is not None:
        return "blocked"
    return "flow" if client.is_paced else state


# -- NSQ's connections

# A subscriber is a connection with one channel, which holds one consumer, whose RDY is the prefetch
# count; a producer has none. Where no user stands behind a client, what an auth server calls it is
# among its properties, and only who sees everything sees it.


def _nsq_state(client: NsqClient) -> str:
    if client.blocked_reason is not None:
        return "blocked"
    if client.bridge.wire.state is State.CLOSING:
        return "closing"
    return "flow" if client.is_paced else "running"


def nsq_connection_row(client: NsqClient, rates: Rates) -> dict[str, Any]:
    bridge, tls = client.bridge, client.tls
    identify, auth = bridge.identify, bridge.auth
    properties = {
        "client_id": identify.client_id,
        "hostname": identify.hostname,
        "user_agent": identify.user_agent,
        "auth_identity": "" if auth is None else auth.identity,
    }
    row: dict[str, Any] = {
        **_nsq_ends(client),
        "node": node_name(),
        "type": "network",
        "protocol": NSQ_PROTOCOL,
        "state": _nsq_state(client),
        "user": bridge.user,
        "vhost": client.vhost,
        "channels": 0 if bridge.connection is None else len(bridge.connection.sessions),
        "client_properties": {name: value for name, value in properties.items() if value},
        "connected_at": client.since_ms,
        "ssl": tls is not None,
        **_traffic(client, rates),
    }
    if tls is not None:
        row |= {"ssl_protocol": tls.version(), "ssl_cipher": tls.cipher()}
    if identify.client_id:
        row["user_provided_name"] = identify.client_id
    return row


def nsq_channel_rows(client: NsqClient) -> list[dict[str, Any]]:
    """The channel of a subscriber."""
    consumer = client.bridge.consumer
    if consumer is None or consumer.session.closed:
        return []
    return [
        {
            "name": channel_name(client.peer, NSQ_CHANNEL),
            "number": NSQ_CHANNEL,
            "connection_details": _nsq_ends(client),
            "node": node_name(),
            "user": client.bridge.user,
            "vhost": client.vhost,
            "state": "running",
            "consumer_count": int(consumer.active),
            "prefetch_count": consumer.limit,
            "global_prefetch_count": 0,
            "messages_unacknowledged": consumer.unacked,
            "messages_unconfirmed": 0,
            "messages_uncommitted": 0,
            "acks_uncommitted": 0,
            "confirm": True,
            "transactional": False,
        }
    ]


def _nsq_ends(client: NsqClient) -> dict[str, Any]:
    """Name and addresses; the name is the client's address, as consumers' rows have it."""
    row: dict[str, Any] = {"name": client.peer}
    for prefix, end in (("peer_", "peername"), ("", "sockname")):
        match client.transport.get_extra_info(end):
            case (str() as host, int() as port, *_):
                row |= {f"{prefix}host": host, f"{prefix}port": port}
    return row
