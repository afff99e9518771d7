"""One topic of NSQ, and which queues are parts of one: topics.py says what a topic is."""

from __future__ import annotations

from typing import final

from tallymark.bridge.operations import NSQ_CHANNEL, NSQ_TOPIC
from tallymark.engine.exchange import Exchange
from tallymark.engine.queue import Queue
from tallymark.engine.topology import Targets
from tallymark.engine.vhost import VirtualHost
from tallymark.stored.annotations import Route
from tallymark.wire.nsq.names import is_ephemeral, is_name


@final
class Topic:
    """One topic. Changed by Topics only."""

    __slots__ = (
        "backlog",
        "channels",
        "ephemeral",
        "exchange",
        "generation",
        "message_bytes",
        "message_count",
        "name",
        "refusing",
        "route",
        "routes_singly",
        "targets",
        "vhost",
    )

    def __init__(
        self,
        name: str,
        vhost: VirtualHost,
        exchange: Exchange,
        backlog: Queue,
        channels: dict[str, Queue],
    ) -> None:
        self.name = name
        self.vhost = vhost
        self.exchange = exchange
        self.backlog = backlog
        """Queue of messages that were published while the topic had no channel, or was paused. Its
        depth is `ready`."""
        self.channels = channels
        """Channels by name."""
        self.ephemeral = is_ephemeral(name)
        self.message_count = 0
        """Count of messages published by NSQ clients and over HTTP since the broker started."""
        self.message_bytes = 0
        """Bytes of the bodies of these messages."""
        self.route = Route(name, name)
        self.targets: Targets | None = None
        self.refusing: list[Queue] = []
        """Queues of the topic itself that refuse messages when full."""
        self.routes_singly = False
        """True if its exchange leads to one that routes each message by itself."""
        self.generation = 0
        """Generation of the virtual host when `targets`, `refusing` and `routes_singly` were
        computed."""

    @property
    def paused(self) -> bool:
        """True while messages are not copied to the channels and wait in the backlog [NQ-9]."""
        return self.backlog.paused


def place_of(queue: Queue) -> tuple[str, str]:
    """Return topic and channel that a queue belongs to; ("", "") if it belongs to none. A stream
    does not: nobody takes messages out of it. Nor does a queue whose arguments are no names of
    NSQ's: no client could name it, and nsqlookupd would end the connection that it is told on."""
    topic = queue.arguments.get(NSQ_TOPIC)
    channel = queue.arguments.get(NSQ_CHANNEL, "")
    if queue.exclusive_owner or queue.settings.is_stream:
        return "", ""
    if not isinstance(topic, str) or not isinstance(channel, str):
        return "", ""
    if queue.name != f"{topic}:{channel}" or not is_name(topic):
        return "", ""
    return (topic, channel) if not channel or is_name(channel) else ("", "")
