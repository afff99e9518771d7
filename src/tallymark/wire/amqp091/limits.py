"""What a connection may ask of us, what both sides agree on [amqp-0.9.1 connection.tune]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from tallymark.wire.amqp091.errors import NOT_ALLOWED, WireError
from tallymark.wire.amqp091.frames import FRAME_MIN
from tallymark.wire.amqp091.methods import ConnectionTuneOk
from tallymark.wire.share import ALL

INITIAL_FRAME_MAX: Final = 8192
"""Bytes of a frame before a frame-max is agreed on [rabbitmq initial_frame_max]."""


@final
@dataclass(frozen=True)
class Limits:
    """Of one connection. For channel_max and frame_max 0 is no limit."""

    channel_max: int = 2047
    """Highest channel number, 0..65535."""
    frame_max: int = 131_072
    """Bytes of the largest frame; 0 or at least 4096."""
    heartbeat_s: int = 60
    """Seconds we propose; the client decides. 0: none."""
    max_message_bytes: int = 134_217_728
    """Largest body; a larger one costs the publisher its channel."""
    handshake_timeout_ms: int = 10_000
    """From the first tick or byte to connection.open-ok."""
    max_unfinished_bytes: int = 0
    """Contents under way, all channels together; more costs the publisher its connection. 0: two
    messages of the largest size, and then some."""
    steps: int = ALL
    """Looked at in one go: behind them `is_spent` says that there is more [wire.share]."""

    def __post_init__(self) -> None:
        if self.frame_max and self.frame_max < FRAME_MIN:
            raise ValueError(f"frame_max {self.frame_max}, expected 0 or at least {FRAME_MIN}")
        if not 0 <= self.channel_max <= 65535:
            raise ValueError(f"channel_max {self.channel_max}, expected 0 to 65535")
        if not 0 <= self.heartbeat_s <= 65535:
            raise ValueError(f"heartbeat_s {self.heartbeat_s}, expected 0 to 65535")

    def unfinished_bytes(self) -> int:
        """What max_unfinished_bytes amounts to."""
        return self.max_unfinished_bytes or 2 * self.max_message_bytes + 1_048_576


def check_tune(limits: Limits, tuned: ConnectionTuneOk) -> None:
    """WireError 530 unless the client stays within what was proposed [rabbitmq connection.tune-ok].

    Its heartbeat is its own affair: whatever it names is used.
    """
    _check("frame_max", FRAME_MIN, limits.frame_max, tuned.frame_max)
    _check("channel_max", 1, limits.channel_max, tuned.channel_max)


def _check(field: str, least: int, most: int, asked: int) -> None:
    if asked and asked < least:
        text = f"negotiated {field} = {asked} is lower than the minimum allowed value ({least})"
    elif most and (asked == 0 or asked > most):
        text = f"negotiated {field} = {asked} is higher than the maximum allowed value ({most})"
    else:
        return
    raise WireError(NOT_ALLOWED, text, 10, 30)
