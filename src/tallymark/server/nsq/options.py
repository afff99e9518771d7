"""nsqd's options by their names, as GET /config/:option shows them. Times are nanoseconds there."""

from __future__ import annotations

import hashlib
import socket
import zlib
from typing import Any, Final

from tallymark.server import logs
from tallymark.server.config.settings import Config
from tallymark.server.nsq.lookupd import Lookupd
from tallymark.wire.nsq.limits import Limits

NS_PER_MS: Final = 1_000_000
LOG_LEVELS: Final = {
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "error": "error",
    "fatal": "off",
}
"""Log levels of ours by nsqd's names."""
_TLS_REQUIRED: Final = {"false": 0, "tcp-https": 1, "true": 2}
_TLS_VERSIONS: Final = {"tls1.0": 0x301, "tls1.1": 0x302, "tls1.2": 0x303, "tls1.3": 0x304}
"""Numbers of TLS versions in nsqd's options."""
WITHOUT_EFFECT: Final[dict[str, Any]] = {
    "log_prefix": "[nsqd] ",
    "auth_http_request_method": "get",
    "max_bytes_per_file": 100 * 1024 * 1024,
    "sync_every": 2500,
    "sync_timeout": 2000 * NS_PER_MS,
    "queue_scan_interval": 100 * NS_PER_MS,
    "queue_scan_refresh_interval": 5000 * NS_PER_MS,
    "queue_scan_selection_count": 20,
    "queue_scan_worker_pool_max": 4,
    "queue_scan_dirty_percent": 0.25,
    "statsd_address": "",
    "statsd_prefix": "nsq.%s",
    "statsd_interval": 60_000 * NS_PER_MS,
    "statsd_mem_stats": True,
    "statsd_udp_packet_size": 508,
    "statsd_exclude_ephemeral": False,
    "enable_experiment": [],
}
"""Options of nsqd that mean nothing here, with its defaults: tools that ask for them go on."""
_NUMBERS: Final = {"debug": 1, "info": 2, "warning": 3, "error": 4, "off": 5}


def shown_level(level: str) -> int:
    """The number that nsqd shows for one of our levels."""
    return _NUMBERS[level]


def _node_id() -> int:
    """The default of -node-id, which nothing depends on here."""
    return zlib.crc32(hashlib.md5(socket.gethostname().encode()).digest()) % 1024


def options(config: Config, limits: Limits, lookupd: Lookupd, tls_required: str) -> dict[str, Any]:
    """Return the options in effect now, without the addresses listened on. tls_required: as it is
    in effect."""
    about = lookupd.announced
    return {
        **WITHOUT_EFFECT,
        "id": _node_id(),
        "tls_required": _TLS_REQUIRED[tls_required],
        "tls_min_version": _TLS_VERSIONS[config.nsq_tls_min_version],
        "nsqlookupd_tcp_addresses": lookupd.addresses,
        "log_level": shown_level(logs.levels()["nsq"]),
        "broadcast_address": about.broadcast_address,
        "broadcast_tcp_port": about.tcp_port,
        "broadcast_http_port": about.http_port,
        "auth_http_addresses": list(config.auth_http_address),
        "http_client_connect_timeout": config.nsq_auth_connect_timeout * NS_PER_MS,
        "http_client_request_timeout": config.nsq_auth_request_timeout * NS_PER_MS,
        "data_path": str(config.data_dir),
        "mem_queue_size": config.nsq_mem_queue_size,
        "max_channel_consumers": config.nsq_max_channel_consumers,
        "msg_timeout": limits.msg_timeout_ms * NS_PER_MS,
        "max_msg_timeout": limits.max_msg_timeout_ms * NS_PER_MS,
        "max_msg_size": limits.max_msg_size,
        "max_body_size": limits.max_body_size,
        "max_req_timeout": limits.max_req_timeout_ms * NS_PER_MS,
        "max_heartbeat_interval": limits.max_heartbeat_interval_ms * NS_PER_MS,
        "max_rdy_count": limits.max_rdy_count,
        "max_output_buffer_size": limits.max_output_buffer_size,
        "max_output_buffer_timeout": limits.max_output_buffer_timeout_ms * NS_PER_MS,
        "min_output_buffer_timeout": limits.min_output_buffer_timeout_ms * NS_PER_MS,
        "output_buffer_timeout": limits.output_buffer_timeout_ms * NS_PER_MS,
        "e2e_processing_latency_window_time": (
            config.e2e_processing_latency_window_time * NS_PER_MS
        ),
        "e2e_processing_latency_percentiles": list(config.e2e_processing_latency_percentile),
        "deflate": limits.deflate_enabled,
        "max_deflate_level": limits.max_deflate_level,
        "snappy": limits.snappy_enabled,
        "tls_cert": str(config.nsq_tls_cert or ""),
        "tls_key": str(config.nsq_tls_key or ""),
        "tls_root_ca_file": str(config.nsq_tls_root_ca_file or ""),
        "tls_client_auth_policy": config.nsq_tls_client_auth_policy,
        "topology_region": limits.topology_region,
        "topology_zone": limits.topology_zone,
    }
