"""Metrics of the whole broker under the names that RabbitMQ's Prometheus plugin has for them, where
they mean the same. Names and help texts are the plugin's. Those of queues are in queues.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tallymark.bridge.identity import VERSION
from tallymark.server.machine import files_allowed, files_open
from tallymark.server.node import node_name
from tallymark.server.places import place_of

if TYPE_CHECKING:
    from tallymark.server.node import Node


def of_node(node: Node) -> Iterator[Metric]:
    """Yield all of them."""
    yield from _identity()
    broker, alarms = node.broker, node.alarms.active
    opened = sum(place_of(client) is not None for client in node.clients)
    sessions = sum(len(connection.sessions) for connection in broker.connections.values())
    for name, text, value in (
        ("connections", "Connections currently open", opened),
        ("channels", "Channels currently open", sessions),
        (
            "consumers",
            "Consumers currently connected",
            sum(len(queue.consumers) for queue in broker.queues.values()),
        ),
        ("queues", "Queues available", len(broker.queues)),
        ("process_open_tcp_sockets", "Open TCP sockets", len(node.clients)),
        ("process_max_tcp_sockets", "Open TCP sockets limit", node.doors.limit),
        ("process_open_fds", "Open file descriptors", files_open()),
        ("process_max_fds", "Open file descriptors limit", files_allowed()),
        ("process_resident_memory_bytes", "Memory used in bytes", _resident_bytes()),
        ("disk_space_available_bytes", "Disk space available in bytes", node.journal.free_bytes()),
        (
            "disk_space_available_limit_bytes",
            "Free disk space low watermark in bytes",
            node.config.disk_free_limit,
        ),
        (
            "alarms_memory_used_watermark",
            "is 1 if VM memory watermark alarm is in effect",
            int("memory" in alarms),
        ),
        (
            "alarms_free_disk_space_watermark",
            "is 1 if free disk space watermark alarm is in effect",
            int("disk" in alarms),
        ),
        (
            "alarms_file_descriptor_limit",
            "is 1 if file descriptor limit alarm is in effect",
            int("files" in alarms),
        ),
        ("erlang_uptime_seconds", "Node uptime", node.uptime_ms() / 1000),
    ):
        yield GaugeMetricFamily(f"rabbitmq_{name}", text, value=value)
    traffic = broker.traffic
    for name, text, value in (
        (
            "global_messages_received",
            "Total number of messages received from publishers",
            broker.publishing.published,
        ),
        (
            "global_messages_received_confirm",
            "Total number of messages received from publishers expecting confirmations",
            traffic.to_confirm,
        ),
        (
            "global_messages_routed",
            "Total number of messages routed to queues or streams",
            traffic.routed,
        ),
        (
            "global_messages_unroutable_dropped",
            "Total number of messages published as non-mandatory into an exchange and dropped as "
            "unroutable",
            traffic.discarded,
        ),
        (
            "global_messages_unroutable_returned",
            "Total number of messages published as mandatory into an exchange and returned to the "
            "publisher as unroutable",
            traffic.returned,
        ),
        (
            "global_messages_confirmed",
            "Total number of messages confirmed to publishers",
            sum(node.confirm_times.counts),
        ),
        ("connections_opened", "Total number of connections opened", traffic.connections_opened),
        (
            "connections_closed",
            "Total number of connections closed or terminated",
            traffic.connections_closed,
        ),
        ("channels_opened", "Total number of channels opened", traffic.sessions_opened),
        ("channels_closed", "Total number of channels closed", traffic.sessions_closed),
        ("queues_declared", "Total number of queues declared", traffic.queues_declared),
        ("queues_created", "Total number of queues created", traffic.queues_created),
        ("queues_deleted", "Total number of queues deleted", traffic.queues_deleted),
    ):
        yield CounterMetricFamily(f"rabbitmq_{name}", text, value=value)


def _identity() -> Iterator[Metric]:
    """Yield the metrics that RabbitMQ's dashboards join the others with."""
    build = GaugeMetricFamily(
        "rabbitmq_build_info", "RabbitMQ & Erlang/OTP version info", labels=["rabbitmq_version"]
    )
    build.add_metric([VERSION], 1)
    yield build
    identity = GaugeMetricFamily(
        "rabbitmq_identity_info",
        "RabbitMQ node & cluster identity info",
        labels=["rabbitmq_node", "rabbitmq_cluster"],
    )
    identity.add_metric([node_name(), node_name()], 1)
    yield identity


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as pages:
        return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
