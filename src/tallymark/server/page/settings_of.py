"""Settings of a queue as the page shows them: the value in effect, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tallymark.engine.queue import Queue
from tallymark.engine.vhost import VirtualHost
from tallymark.server.http.state import plain

ATTRIBUTES: Final = {
    "message-ttl": "ttl_ms", "expires": "expires_ms", "max-length": "max_length",
    "max-length-bytes": "max_bytes", "overflow": "overflow",
    "dead-letter-exchange": "dead_letter_exchange", "dead-letter-routing-key": "dead_letter_key",
    "delivery-limit": "delivery_limit", "acquired-limit": "acquired_limit",
    "max-priority": "max_priority", "single-active-consumer": "single_active",
    "consumer-timeout": "consumer_timeout_ms", "delayed-retry-type": "delayed_retry",
    "delayed-retry-min": "delayed_retry_min_ms", "delayed-retry-max": "delayed_retry_max_ms",
    "message-deduplication": "dedup_ms", "queue-type": "type",
}  # fmt: skip
"""Attributes of `engine/settings.py` by the name of the setting."""
ARGUMENT: Final = "x-"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. source: where the value in effect comes from. others: what others say, which
    has no effect."""

    name: str
    value: Any
    source: str
    others: str


def settings_of(vhost: VirtualHost, queue: Queue) -> list[Setting]:
    """Return the settings that the declaration or a policy of the queue gives."""
    policies = vhost.policy_table
    said: dict[str, dict[str, object]] = {}
    declared = {
        name.removeprefix(ARGUMENT): value
        for name, value in queue.arguments.items()
        if name.startswith(ARGUMENT)
    }
    for kind, policy in (
        ("policy", policies.of_queue(queue, False)),
        ("operator policy", policies.of_queue(queue, True)),
    ):
        if policy is not None:
            said[f"{kind} {policy.name}"] = policy.definition
    said = {"declaration": declared, **said}
    names = sorted({name for values in said.values() for name in values})
    return [_setting(queue, name, said) for name in names]


def _setting(queue: Queue, name: str, said: dict[str, dict[str, object]]) -> Setting:
    values = {source: plain(given[name]) for source, given in said.items() if name in given}
    first = next(iter(values.values()))
    effect = plain(getattr(queue.settings, ATTRIBUTES[name])) if name in ATTRIBUTES else first
    sources = [source for source, value in values.items() if value == effect]
    others = [
        f"{source}: {value}" for source, value in values.items() if value != effect and sources
    ]
    return Setting(name, effect, " and ".join(sources or values), "; ".join(others))
