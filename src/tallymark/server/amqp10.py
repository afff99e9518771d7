"""AMQP 1.0 of a node: the limits of its connections."""

from __future__ import annotations

import platform
import secrets
from typing import TYPE_CHECKING

from tallymark.bridge.amqp10.settings import Settings
from tallymark.server.access import audit
from tallymark.server.config.settings import Config
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.line import SHARE

if TYPE_CHECKING:
    from tallymark.server.node import Node


def limits_of(config: Config) -> Limits:
    """Return the limits of AMQP 1.0 connections, from the settings that limit 0-9-1 where they mean
    the same."""
    return Limits(
        max_frame_size=config.frame_max,
        channel_max=config.channel_max - 1,
        idle_time_out_ms=config.heartbeat_s * 1000,
        max_message_size=config.max_message_size,
        handshake_timeout_ms=config.handshake_timeout_ms,
        incoming_window=2 * config.link_credit,
        steps=SHARE,
    )


def settings_of(node: Node, node_name: str) -> Settings:
    """node_name: shown to clients."""
    config = node.config
    return Settings(
        limits_of(config),
        lambda: secrets.token_urlsafe(16),
        node.clients.replies,
        node.watch,
        node_name=node_name,
        platform=f"Python {platform.python_version()}",
        link_credit=config.link_credit,
        anonymous_user=config.anonymous_user,
        auto_create=config.auto_create_queues,
        transaction_timeout_ms=config.transaction_timeout,
        mechanisms=node.mechanisms,
        on_denied=audit.access_refused,
    )
