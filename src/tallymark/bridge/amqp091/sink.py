"""Publishes handed over to a sink: checked like all others, and kept for the sink's commit.

Permissions and properties are checked as on any channel. Routing happens at the commit
(engine/sinks.py). What is routed apart now probably will be then: such messages are handed over
apart, so that the commit, which is one step, costs per set of queues and not per message.
"""

from __future__ import annotations

from typing import Final

from tallymark.bridge.amqp091.channel import Channel, Intake
from tallymark.bridge.amqp091.publish import Stretch, payload_of, plain, routed, sets_apart
from tallymark.engine.errors import PreconditionFailed
from tallymark.wire.amqp091.kernel import PublishReceived

WORTH_APART: Final = 4
"""Average number of pieces of a set of queues from which on the set is handed over apart: each
part has a record of its own."""


def take(channel: Channel, intake: Intake, event: PublishReceived) -> None:
    """Collect a stretch of publishes.

    Raises:
        BrokerError, WireError: one of them must not be published so, or is a direct reply.
    """
    client = channel.client
    known = plain(client, event)
    if known is not None:
        intake.add(payload_of(client, event, known), None, known.mandatory, client.owner.engine_ms)
        return
    stretch, failure = routed(channel, event)
    if failure is not None:
        raise failure
    if stretch.has_replies:
        raise PreconditionFailed("a direct reply cannot wait for a commit")
    publishes = stretch.publishes
    start = 0
    for k in range(1, len(publishes) + 1):
        mandatory = publishes[start].mandatory
        if k < len(publishes) and publishes[k].mandatory == mandatory:
            continue
        for pieces in _apart(stretch, start, k):
            payload = stretch.payload(client, pieces)
            intake.add(payload, stretch.annotations, mandatory, client.owner.engine_ms)
        start = k


def _apart(stretch: Stretch, lo: int, hi: int) -> list[list[int] | None]:
    """Return pieces lo..hi-1, in as few lists as is worth it that are apart from each other; None
    stands for all pieces of the stretch."""
    targets = stretch.targets if hi - lo == len(stretch.targets) else stretch.targets[lo:hi]
    groups = sets_apart(targets)
    if groups is not None and len(groups) > 1 and len(groups) * WORTH_APART <= hi - lo:
        return [[lo + k for k in group] for group in groups.values()]
    return [None if len(targets) == len(stretch.targets) else list(range(lo, hi))]
