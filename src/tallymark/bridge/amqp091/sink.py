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
    mandatory = False
    for publish in stretch.publishes:
        mandatory = mandatory or publish.mandatory
    intake.add(
        stretch.payload(client, None), stretch.annotations, mandatory, client.owner.engine_ms
    )
