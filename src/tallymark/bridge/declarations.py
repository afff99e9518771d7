"""Permissions that the arguments of a new queue require, the same for all ways of declaring queues.

An argument that connects a queue with an exchange requires the permissions of connecting them by
commands. Dead letters are published to their exchange. A channel of an NSQ topic gets copies of the
topic's messages, as if bound. And declaring the topic's own queue makes a topic of its exchange,
which NSQ clients may then publish to and read.
"""

from __future__ import annotations

from typing import Final

from tallymark.bridge.permissions import CONFIGURE, EXCHANGE, QUEUE, READ, WRITE, Access
from tallymark.engine.vhost import VirtualHost

DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
TOPIC: Final = "x-nsq-topic"
"""Argument of an exchange that is a topic, and of the queues that belong to it: the topic's
name."""
CHANNEL: Final = "x-nsq-channel"


def check_new_queue(
    access: Access, vhost: VirtualHost, name: str, arguments: dict[str, object]
) -> None:
    """Check the permissions that the arguments require. Raises AccessRefused. name: the queue name
    that patterns are matched against."""
    letters = arguments.get(DEAD_LETTER_EXCHANGE)
    if isinstance(letters, str):
        access.check(QUEUE, name, READ)
        access.check(EXCHANGE, letters, WRITE)
    topic = arguments.get(TOPIC)
    if isinstance(topic, str):
        access.check(QUEUE, name, WRITE)
        access.check(EXCHANGE, topic, READ)
        if CHANNEL not in arguments or topic not in vhost.exchanges:
            access.check(EXCHANGE, topic, CONFIGURE)
            access.check(EXCHANGE, topic, WRITE)
