"""What a connection may ask of us, and what we ask of the peer [amqp-1.0 §2.7.1, §2.7.2]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from tallymark.wire.share import ALL

FRAME_MIN: Final = 512
"""Bytes of a frame that everybody takes, before open and ever after [amqp-1.0 §2.8.19]."""
INITIAL_FRAME_MAX: Final = 8192
"""Bytes of a frame that we take before open: more than the standard's 512, for clients that put
much into it."""


@final
@dataclass(frozen=True)
class Limits:
    """Of one connection."""

    max_frame_size: int = 131_072
    """Bytes of the largest frame we take; at least 512."""
    channel_max: int = 255
    """Highest channel number, 0..65535: sessions on a connection, less one."""
    handle_max: int = 255
    """Highest handle, 0..2^32-1: links on a session, less one."""
    idle_time_out_ms: int = 60_000
    """The peer shall not be silent for longer; it is given twice that. 0: for ever."""
    incoming_window: int = 400
    """Transfer frames that the peer may send on a session before we open the window again."""
    outgoing_window: int = 0xFFFF_FFFF
    """Transfer frames we hold ready to send, as far as the peer is told."""
    max_message_size: int = 134_217_728
    """Bytes of the largest message; a larger one costs its sender the link. 0: no limit."""
    handshake_timeout_ms: int = 10_000
    """From the first tick or byte to open, in both directions."""
    max_unfinished_bytes: int = 0
    """Deliveries that have begun, all links together; more costs the sender its connection. 0: two
    messages of the largest size, and then some."""
    steps: int = ALL
    """Looked at in one go: behind them `is_spent` says that there is more [wire.share]."""

    def __post_init__(self) -> None:
        _check("max_frame_size", self.max_frame_size, FRAME_MIN, 0xFFFF_FFFF)
        _check("channel_max", self.channel_max, 0, 65535)
        _check("handle_max", self.handle_max, 0, 0xFFFF_FFFF)
        _check("idle_time_out_ms", self.idle_time_out_ms, 0, 0xFFFF_FFFF)
        _check("incoming_window", self.incoming_window, 1, 0x7FFF_FFFF)
        _check("outgoing_window", self.outgoing_window, 0, 0xFFFF_FFFF)
        _check("max_message_size", self.max_message_size, 0, (1 << 63) - 1)

    def unfinished_bytes(self) -> int:
        """What max_unfinished_bytes amounts to; 0: no limit."""
        if self.max_unfinished_bytes or not self.max_message_size:
            return self.max_unfinished_bytes
        return 2 * self.max_message_size + 1_048_576


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} {value}, expected {least} to {most}")
