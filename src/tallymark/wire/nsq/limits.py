"""Limits and features of a server, with nsqd's defaults [NQ-8]. Times are milliseconds, sizes
bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from tallymark.wire.line import ALL

LINE_MAX: Final = 16_384
"""Maximum bytes of a command line, newline included: the size of nsqd's read buffer."""
CELL_SIZE_MAX: Final = 0x43FF_FFFF
"""Highest allowed max_msg_size. The first byte of a size is then never the first of a verb; see
kernel.py."""
MESSAGE_MIN: Final = 5
"""Bytes of the smallest message in an MPUB: its size and one byte."""


@final
@dataclass(frozen=True)
class Limits:
    """Limits of one connection, and the server's answer to IDENTIFY."""

    max_msg_size: int = 1_048_576
    """Maximum size of a message's body."""
    max_body_size: int = 5_242_880
    """Maximum size of the body of IDENTIFY, AUTH, MPUB."""
    max_rdy_count: int = 2500
    msg_timeout_ms: int = 60_000
    """Message time-out of clients that request none."""
    max_msg_timeout_ms: int = 900_000
    max_req_timeout_ms: int = 3_600_000
    """Maximum delay of DPUB and REQ: more is an error for DPUB and is clamped for REQ [NQ-12]."""
    client_timeout_ms: int = 60_000
    """Two heartbeat intervals of clients that request none; also the time-out for the first 4
    bytes."""
    max_heartbeat_interval_ms: int = 60_000
    output_buffer_size: int = 16_384
    max_output_buffer_size: int = 65_536
    output_buffer_timeout_ms: int = 250
    min_output_buffer_timeout_ms: int = 25
    max_output_buffer_timeout_ms: int = 30_000
    snappy_enabled: bool = True
    deflate_enabled: bool = True
    max_deflate_level: int = 6
    tls_available: bool = False
    """True if there is a certificate."""
    tls_required: bool = False
    auth_required: bool = False
    version: str = "1.3.0"
    """Version of the server announced to clients that negotiate features."""
    topology_region: str = ""
    topology_zone: str = ""
    steps: int = ALL
    """Number of steps of work at a time; beyond it `Line.is_share_done` is true [wire.line]."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_msg_size <= CELL_SIZE_MAX:
            raise ValueError(
                f"max_msg_size {self.max_msg_size}, expected 1 to {CELL_SIZE_MAX} bytes"
            )
        if not MESSAGE_MIN + 4 <= self.max_body_size <= 0x7FFF_FFFF:
            raise ValueError(
                f"max_body_size {self.max_body_size}, expected {MESSAGE_MIN + 4} to {0x7FFF_FFFF}"
            )
        if self.client_timeout_ms < 2:
            raise ValueError(f"client_timeout_ms {self.client_timeout_ms}, expected at least 2")
        if not 1 <= self.max_deflate_level <= 9:
            raise ValueError(f"max_deflate_level {self.max_deflate_level}, expected 1 to 9")
        if self.tls_required and not self.tls_available:
            raise ValueError("tls_required without tls_available: no client could send any command")

    def max_messages(self) -> int:
        """Maximum number of messages in an MPUB [NQ-8]."""
        return (self.max_body_size - 4) // MESSAGE_MIN
