"""Limits of a connection, and the negotiation of those that both sides share
[amqp-0.9.1 connection.tune]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from tallymark.wire.amqp091.errors import NOT_ALLOWED, WireError
from tallymark.wire.amqp091.frames import FRAME_MIN
from tallymark.wire.amqp091.methods import ConnectionTuneOk
from tallymark.wire.line import ALL

INITIAL_FRAME_MAX: Final = 8192
"""Maximum frame size in bytes before a frame-max is negotiated [rabbitmq initial_frame_max]."""


@final
@dataclass(frozen=True)
class Limits:
    """Limits of one connection. For channel_max and frame_max 0 means no limit."""

    channel_max: int = 2047
    """Highest channel number, 0..65535."""
    frame_max: int = 131_072
    """Largest frame in bytes; 0 or at least 4096."""
    heartbeat_s: int = 60
    """Proposed heartbeat in seconds; the client decides. 0: none."""
    max_message_bytes: int = 134_217_728
    """Largest body in bytes; a larger one closes the publisher's channel."""
    handshake_timeout_ms: int = 10_000
    """Time-out from the first tick or byte to connection.open-ok."""
    max_unfinished_bytes: int = 0
    """Maximum bytes of incomplete contents of all channels; more closes the publisher's connection.
    0: two messages of the largest size, and 1 MiB."""
    steps: int = ALL
    """Number of steps of work at a time; beyond it `Line.is_share_done` is true [wire.line]."""

    def __post_init__(self) -> None:
        if self.frame_max and self.frame_max < FRAME_MIN:
            raise ValueError(f"frame_max {self.frame_max}, expected 0 or at least {FRAME_MIN}")
        if not 0 <= self.channel_max <= 65535:
            raise ValueError(f"channel_max {self.channel_max}, expected 0 to 65535")
        if not 0 <= self.heartbeat_s <= 65535:
            raise ValueError(f"heartbeat_s {self.heartbeat_s}, expected 0 to 65535")

    def unfinished_bytes(self) -> int:
        """Return the value of max_unfinished_bytes in effect."""
        return self.max_unfinished_bytes or 2 * self.max_message_bytes + 1_048_576


def check_tune(limits: Limits, tuned: ConnectionTuneOk) -> None:
    """Check that the client stays within the proposed limits, WireError 530 otherwise
    [rabbitmq connection.tune-ok].

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
