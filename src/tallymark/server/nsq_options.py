"""nsqd's options by their names, as GET /config/:option shows them. Times are nanoseconds there."""

from __future__ import annotations

from typing import Any, Final

from tallymark.server import logs
from tallymark.server.config import Config
from tallymark.server.lookupd import Lookupd
from tallymark.wire.nsq.limits import Limits

NS_PER_MS: Final = 1_000_000
LOG_LEVELS: Final = {
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "error": "error",
    "fatal": "off",
}
"""Ours by nsqd's."""
_NUMBERS: Final = {"debug": 1, "info": 2, "warning": 3, "error": 4, "off": 5}


def shown_level(level: str) -> int:
    """The number that nsqd shows for one of our levels."""
    return _NUMBERS[level]


def options(config: Config, limits: Limits, lookupd: Lookupd) -> dict[str, Any]:
    """What is in effect now, but for the addresses that are listened on."""
    about = lookupd.announced
    return {
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
