"""Publishes handed over to a sink: checked like all others, and kept for the sink's commit.

Permissions and properties are checked as on any channel. Routing happens at the commit
(engine/sinks.py).
"""

from __future__ import annotations

from tallymark.bridge.amqp091.channel import Channel, Intake
from tallymark.bridge.amqp091.publish import payload_of, plain, routed
from tallymark.engine.errors import PreconditionFailed
from tallymark.wire.amqp091.kernel import PublishReceived


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
        pieces = None if k - start == len(publishes) else list(range(start, k))
        intake.add(
            stretch.payload(client, pieces), stretch.annotations, mandatory, client.owner.engine_ms
        )
        start = k
