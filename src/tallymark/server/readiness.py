"""Reasons against sending clients to a broker: what its probes over HTTP answer with."""

from __future__ import annotations

from typing import Final

from tallymark.server.node import Node

LAPSED: Final = "the lease was not renewed in time: another broker may lead"


def out_of_service(node: Node) -> list[str]:
    """Return why clients that come in would not be served; empty: they would. An alarm is no
    reason, as consumers are what ends it; but that of a database that is away, which they do not
    end."""
    reasons = []
    if node.failed.done():
        reasons.append("the journal failed")
    if not node.is_leading():
        reasons.append(LAPSED)
    if "database" in node.alarms.active:
        trouble = node.journal.trouble or "it does not answer"
        reasons.append(f"nothing is confirmed until the database is back: {trouble}")
    return reasons


def not_ready(node: Node) -> list[str]:
    """Return why a new client would not be let in, or not be served; empty: neither."""
    reasons = out_of_service(node)
    if not node.doors.has_room():
        reasons.append(f"all {node.doors.limit} connections are taken")
    return reasons
