"""Settings of NSQ: the protocol, nsqd's HTTP interface, nsqlookupd, auth servers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tallymark.server.config import kinds
from tallymark.server.config.kinds import (
    DAY_MS,
    GIB,
    KIB,
    LOCALHOST,
    MIB,
    TLS_VERSIONS,
    choice,
    duration,
    integer,
    setting,
    size,
)


@dataclass(frozen=True, kw_only=True)
class NsqSettings:
    """Settings of NSQ. Sizes in bytes, times in milliseconds."""

    nsq: bool = setting(
        False,
        kinds.FLAG,
        "Whether NSQ clients are served; true as well where one of nsq_port, nsq_http_port and "
        "nsq_https_port is named and this is not. --no-nsq is false.",
    )
    nsq_host: tuple[str, ...] = setting(
        (LOCALHOST,),
        kinds.NAMES,
        "Addresses to listen on for NSQ clients; with a slash, a socket in the file system. While "
        "there are no users they need no password: open them to others only where the network, TLS "
        "or an auth server keeps strangers out.",
    )
    nsq_port: int = setting(4150, integer(0, 65535), "Port for NSQ clients; 0 takes a free one.")
    nsq_vhost: str = setting(
        "/", kinds.TEXT, "Virtual host in which NSQ's topics are exchanges and its channels queues."
    )
    nsq_user: str = setting(
        "",
        kinds.TEXT,
        "User that NSQ clients and requests to nsqd's HTTP interface act as, whose permissions "
        "hold; empty: once there are users, each has to be one (AUTH with NAME:PASSWORD).",
    )
    nsq_adopt_exchanges: bool = setting(
        False,
        kinds.FLAG,
        "Whether a fanout exchange that AMQP clients made becomes a topic when an NSQ client uses "
        "its name.",
    )
    nsq_http_config: bool = setting(
        False,
        kinds.FLAG,
        "Whether PUT /config of nsqd's HTTP interface changes anything; with users, only an "
        "administrator does.",
    )
    nsq_mem_queue_size: int = setting(
        10_000,
        integer(0, 1 << 31),
        "Messages that an ephemeral topic or channel holds; further ones are dropped.",
    )
    nsq_max_msg_size: int = setting(1 * MIB, size(1, 512 * MIB), "Largest body of an NSQ message.")
    nsq_max_body_size: int = setting(
        5 * MIB, size(9, 2 * GIB - 1), "Largest body of an NSQ command, as of MPUB."
    )
    nsq_msg_timeout: int = setting(
        60_000,
        duration(1, DAY_MS),
        "Time for a message in flight before it is queued again, unless the client names another.",
    )
    nsq_max_msg_timeout: int = setting(
        900_000, duration(1, 30 * DAY_MS), "Longest such time, also with TOUCH."
    )
    nsq_max_req_timeout: int = setting(
        3_600_000, duration(0, 365 * DAY_MS), "Longest delay of REQ and DPUB."
    )
    nsq_max_heartbeat_interval: int = setting(
        60_000, duration(1000, DAY_MS), "Longest heartbeat interval a client may ask for."
    )
    nsq_max_rdy_count: int = setting(
        2500, integer(1, 1_000_000_000), "Most messages in flight to one NSQ client."
    )
    nsq_max_output_buffer_size: int = setting(
        64 * KIB, size(64, 1 * GIB), "Largest output buffer a client may ask for."
    )
    nsq_max_output_buffer_timeout: int = setting(
        30_000, duration(1, DAY_MS), "Longest time a client may have its messages gathered."
    )
    nsq_min_output_buffer_timeout: int = setting(
        25, duration(1, DAY_MS), "Shortest time a client may have its messages gathered."
    )
    nsq_output_buffer_timeout: int = setting(
        250,
        duration(1, DAY_MS),
        "Time shown to clients that name none; only for clients that name another are messages "
        "gathered.",
    )
    nsq_max_channel_consumers: int = setting(
        0, integer(0, 1_000_000), "Clients that may subscribe to one channel; 0: any number."
    )
    nsq_snappy: bool = setting(True, kinds.FLAG, "Whether clients may ask for snappy.")
    nsq_deflate: bool = setting(True, kinds.FLAG, "Whether clients may ask for deflate.")
    nsq_max_deflate_level: int = setting(
        6, integer(1, 9), "Highest deflate level a client may ask for."
    )
    nsq_tls_cert: Path | None = setting(
        None, kinds.OPTIONAL_PATH, "Certificate, and with it the offer of TLS to NSQ clients."
    )
    nsq_tls_key: Path | None = setting(
        None, kinds.OPTIONAL_PATH, "Its private key; empty: in the same file."
    )
    nsq_tls_root_ca_file: Path | None = setting(
        None,
        kinds.OPTIONAL_PATH,
        "Certificates of those that may sign a client's; empty: the system's.",
    )
    nsq_tls_client_auth_policy: str = setting(
        "",
        choice("", "require", "require-verify"),
        "Whether clients must show a certificate, and so use TLS; both words mean one that can be "
        "verified.",
    )
    nsq_tls_required: str = setting(
        "false",
        choice("false", "true", "tcp-https"),
        "Whether NSQ clients must use TLS; true: also those of its HTTP interface. With "
        "nsq_tls_client_auth_policy it is true.",
    )
    nsq_tls_min_version: str = setting(
        "tls1.2", choice(*TLS_VERSIONS), "Oldest version of TLS that is spoken."
    )
    nsq_topology_region: str = setting("", kinds.TEXT, "Told to NSQ clients and nsqlookupd.")
    nsq_topology_zone: str = setting("", kinds.TEXT, "Told to NSQ clients and nsqlookupd.")
    nsq_http_host: tuple[str, ...] = setting(
        (LOCALHOST,),
        kinds.NAMES,
        "Addresses to listen on with nsqd's HTTP interface, or a socket in the file system; while "
        "there are no users it needs no log-in.",
    )
    nsq_http_port: int = setting(
        4151, integer(0, 65535), "Port for nsqd's HTTP interface; 0 takes a free one."
    )
    nsq_https_host: tuple[str, ...] = setting(
        (LOCALHOST,), kinds.NAMES, "Addresses to listen on with the same interface inside TLS."
    )
    nsq_https_port: int = setting(
        4152, integer(0, 65535), "Port for it; only listened on where there is a certificate."
    )
    lookupd: tuple[str, ...] = setting(
        (), kinds.ADDRESSES, "TCP addresses of the nsqlookupds that topics are registered with."
    )
    nsq_broadcast_address: str = setting(
        "",
        kinds.TEXT,
        "Address that nsqlookupd gives to consumers; empty: this machine's host name.",
    )
    nsq_broadcast_tcp_port: int = setting(
        0, integer(0, 65535), "Port that nsqlookupd gives to consumers; 0: the one listened on."
    )
    nsq_broadcast_http_port: int = setting(
        0, integer(0, 65535), "HTTP port that nsqlookupd gives out; 0: the one listened on."
    )
    auth_http_address: tuple[str, ...] = setting(
        (),
        kinds.LINKS,
        "Auth servers that decide what an NSQ client may do.",
    )
    nsq_auth_connect_timeout: int = setting(
        2000, duration(1, DAY_MS), "Longest wait for a connection to an auth server."
    )
    nsq_auth_request_timeout: int = setting(
        5000, duration(1, DAY_MS), "Longest wait for an auth server's answer."
    )
    e2e_processing_latency_percentile: tuple[float, ...] = setting(
        (),
        kinds.QUANTILES,
        "Quantiles of the time from publish to FIN that /stats shows for each NSQ channel.",
    )
    e2e_processing_latency_window_time: int = setting(
        600_000, duration(1000, DAY_MS), "Time span of these quantiles."
    )
