"""Limits of a connection, ours and those asked of the peer [amqp-1.0 §2.7.1, §2.7.2]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from tallymark.wire.line import ALL

FRAME_MIN: Final = 512
"""Frame size in bytes that every peer accepts, before and after open [amqp-1.0 §2.8.19]."""
INITIAL_FRAME_MAX: Final = 8192
"""Maximum frame size in bytes that we accept before open: more than the standard's 512, for clients
with a large open."""


@final
@dataclass(frozen=True)
class Limits:
    """Limits of one connection."""

    max_frame_size: int = 131_072
    """Largest frame in bytes that we accept; at least 512."""
    channel_max: int = 255
    """Highest channel number, 0..65535: sessions on a connection, less one."""
    handle_max: int = 255
    """Highest handle, 0..2^32-1: links on a session, less one."""
    idle_time_out_ms: int = 60_000
    """Idle time-out announced to the peer, ms; it is dead after twice that. 0: none."""
    incoming_window: int = 400
    """Transfer frames that the peer may send on a session before we open the window again."""
    outgoing_window: int = 0xFFFF_FFFF
    """Outgoing window announced to the peer, in transfer frames."""
    max_message_size: int = 134_217_728
    """Largest message in bytes; a larger one closes its sender's link. 0: no limit."""
    handshake_timeout_ms: int = 10_000
    """Time-out from the first tick or byte to open, in both directions."""
    max_unfinished_bytes: int = 0
    """Maximum bytes of incomplete deliveries of all links; more closes the sender's connection. 0:
    two messages of the largest size, and 1 MiB."""
    steps: int = ALL
    """Number of steps of work at a time; beyond it `Line.is_share_done` is true [wire.line]."""

    def __post_init__(self) -> None:
        _check("max_frame_size", self.max_frame_size, FRAME_MIN, 0xFFFF_FFFF)
        _check("channel_max", self.channel_max, 0, 65535)
        _check("handle_max", self.handle_max, 0, 0xFFFF_FFFF)
        _check("idle_time_out_ms", self.idle_time_out_ms, 0, 0xFFFF_FFFF)
        _check("incoming_window", self.incoming_window, 1, 0x7FFF_FFFF)
        _check("outgoing_window", self.outgoing_window, 0, 0xFFFF_FFFF)
        _check("max_message_size", self.max_message_size, 0, (1 << 63) - 1)

    def unfinished_bytes(self) -> int:
        """Return the value of max_unfinished_bytes in effect; 0: no limit."""
        if self.max_unfinished_bytes or not self.max_message_size:
            return self.max_unfinished_bytes
        return 2 * self.max_message_size + 1_048_576


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} {value}, expected {least} to {most}")
