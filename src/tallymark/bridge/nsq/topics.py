"""NSQ's topics and channels as exchanges and queues of one virtual host.

    topic T      fanout exchange T, and the queue "T:", its backlog: bound while the topic has no
                 channel or is paused; what it holds moves to the channels afterwards [NQ-9].
                 While the topic has channels, it does not expire, and is made anew when deleted
    channel C    queue "T:C", bound to T unless the topic is paused

An exchange that is a topic is marked by its argument x-nsq-topic. One that NSQ did not make is no
topic, unless it takes the place of a topic's that was deleted, whose queues stayed, or the
configuration lets it become one (`adopts`). Topics and channels are durable unless ephemeral. An
ephemeral channel is an auto-delete queue that drops messages when full; an ephemeral topic is
deleted with its last channel [NQ-10]. AMQP clients publish to exchange T and consume from queue
"T:C"; other queues that they bind to T get copies even while the topic is paused.

The topics and channels are found by the queues' arguments x-nsq-topic and x-nsq-channel, and kept
up to date by observing (Registry.observers), whoever declares and deletes queues: nothing
is stored twice. Whether a topic's own queues are bound to its exchange is the topic's business:
what others bind, unbind or pause there is followed (Registry.followers) and put right.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TypeVar, final

from tallymark.bridge.nsq.topic import Topic, place_of
from tallymark.bridge.operations import NSQ_CHANNEL, NSQ_TOPIC
from tallymark.bridge.permissions import CONFIGURE, EXCHANGE, QUEUE, READ, WRITE, Access
from tallymark.engine.arguments import DROP_TAIL, REJECT_PUBLISH
from tallymark.engine.broker import Broker
from tallymark.engine.errors import (
    AccessRefused,
    BrokerError,
    NotFound,
    PreconditionFailed,
    ResourceExhausted,
)
from tallymark.engine.exchange import FANOUT, Exchange
from tallymark.engine.message import Payload
from tallymark.engine.names import named
from tallymark.engine.publishing import Part
from tallymark.engine.queue import Queue
from tallymark.engine.session import NOBODY, Connection, Session
from tallymark.engine.topology import Targets
from tallymark.engine.vhost import VirtualHost
from tallymark.stored.annotations import Annotations
from tallymark.stored.formats import NSQ
from tallymark.units import EngineMs
from tallymark.wire.nsq.names import is_ephemeral

Made = TypeVar("Made")


@final
class Topics:
    """All topics of a broker. Raises BrokerError where objects of AMQP clients are in the way."""

    __slots__ = (
        "_channels",
        "_is_wiring",
        "_nobody",
        "_session",
        "_topics",
        "adopts",
        "broker",
        "changed",
        "keeps_changes",
        "mem_queue_size",
        "vhost",
    )

    def __init__(
        self, broker: Broker, vhost: str, mem_queue_size: int, adopts: bool = False
    ) -> None:
        self.broker = broker
        self.adopts = adopts
        """True if a fanout exchange made by an AMQP client becomes a topic when it is used as
        one."""
        self.vhost = vhost
        """Name of the virtual host."""
        self.mem_queue_size = mem_queue_size
        """Maximum number of messages in an ephemeral channel or topic."""
        self.changed: list[tuple[str, str, bool]] = []
        """Changes as (topic, channel or "", whether it exists now), in order. The component that
        registers topics elsewhere takes them and clears the list."""
        self.keeps_changes = True
        """True if there is such a component."""
        self._nobody = Connection(NOBODY, vhost, "", "nsq")
        self._session = Session(broker.owner_ids(), self._nobody)
        self._topics: dict[str, Topic] = {}
        self._channels: dict[str, dict[str, Queue]] = {}
        """Channel queues by topic and channel."""
        self._is_wiring = False
        """True during a change of our own."""
        self._find_all()
        broker.registry.observers.append(self._observe)
        broker.registry.followers.append(self._follow)
        broker.registry.exchange_followers.append(self._follow_exchange)

    # -- topics and channels

    def find(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def topics(self) -> list[Topic]:
        """Return the topics in the order they were made."""
        return list(self._topics.values())

    def topic(self, name: str) -> Topic:
        """Return the topic, made if it does not exist.

        Raises:
            BrokerError: the name is reserved, or its exchange or queue is something else.
        """
        found = self._topics.get(name)
        vhost = self.broker.vhost(self.vhost)
        if found is not None and vhost.exchanges.get(name) is found.exchange:
            return found
        return self._made(name, vhost, found, self.adopts or found is not None)

    def _made(self, name: str, vhost: VirtualHost, found: Topic | None, adopts: bool) -> Topic:
        """Return the topic with its exchange, made if it does not exist; `found`: the topic as
        known before. If this raises, nothing was made."""
        is_new = name not in vhost.exchanges
        exchange = self._exchange(vhost, name, adopts)
        try:
            return self._with_backlog(name, vhost, found, exchange)
        except BrokerError:
            if is_new:
                vhost.delete_exchange(name, False)
            raise

    def _with_backlog(
        self, name: str, vhost: VirtualHost, found: Topic | None, exchange: Exchange
    ) -> Topic:
        """Return the topic of this exchange, with its bindings set."""
        if found is None:
            backlog = self._wiring(lambda: self._queue(name, "", is_ephemeral(name), False))
            channels = self._channels.setdefault(name, {})
            found = Topic(name, vhost, exchange, backlog, channels)
            self._topics[name] = found
            self._note(name, "", True)
            for channel in channels:
                self._note(name, channel, True)
        found.exchange = exchange
        self._wire(found)
        return found

    def channel(self, topic: str, channel: str) -> Queue:
        """Return the channel's queue, made with its topic if it does not exist. Raises as
        `topic`."""
        made = self.topic(topic)
        found = made.channels.get(channel)
        if found is not None:
            return found
        ephemeral = is_ephemeral(channel)
        return self._queue(topic, channel, ephemeral or made.ephemeral, ephemeral)

    # -- permissions

    def check_publish(self, access: Access, name: str) -> None:
        """Check the permission to publish: to write to the exchange, and to configure it if it does
        not exist. Raises AccessRefused."""
        if name not in self._topics:
            access.check(EXCHANGE, name, CONFIGURE)
        access.check(EXCHANGE, name, WRITE)

    def check_make(self, access: Access, topic: str, channel: str) -> None:
        """Check the permission to make a topic, which is its exchange, and a channel (empty: none),
        which is its queue and a binding. Raises AccessRefused."""
        known = self._topics.get(topic)
        if known is None:
            access.check(EXCHANGE, topic, CONFIGURE)
        if channel and (known is None or channel not in known.channels):
            name = f"{topic}:{channel}"
            access.check(QUEUE, name, CONFIGURE)
            access.check(QUEUE, name, WRITE)
            access.check(EXCHANGE, topic, READ)

    def check_subscribe(self, access: Access, topic: str, channel: str) -> None:
        """Check the permission to subscribe: to read the queue, and to make it if it does not
        exist. Raises AccessRefused."""
        self.check_make(access, topic, channel)
        access.check(QUEUE, f"{topic}:{channel}", READ)

    def check_manage(self, access: Access, topic: str, channel: str, empties: bool) -> None:
        """Check the permission to manage: to empty is to read, to delete or pause is to configure,
        for a topic (channel empty) all that belongs to it. Raises AccessRefused."""
        operation = READ if empties else CONFIGURE
        if channel:
            access.check(QUEUE, f"{topic}:{channel}", operation)
            return
        if not empties:
            access.check(EXCHANGE, topic, CONFIGURE)
            known = self._topics.get(topic)
            for name in [] if known is None else known.channels:
                access.check(QUEUE, f"{topic}:{name}", CONFIGURE)
        access.check(QUEUE, f"{topic}:", operation)

    # -- publishing

    def publish(
        self, name: str, raw: bytes, cuts: array[int], head: int, engine_ms: EngineMs, delay_ms: int
    ) -> Targets:
        """Publish messages to all of the topic's channels; return the queues that they went to. If
        this raises, no channel has any.

        raw, cuts: cells (wire.nsq.kernel), `head` bytes of each in front of its body.
        engine_ms: their arrival. delay_ms: ready only then [NQ-16]. On disk once
        `Broker.await_durable` says so.
        Raises: BrokerError, as `topic`; ResourceExhausted: a channel refuses some of them.
        """
        broker = self.broker
        topic = self._topics.get(name)
        vhost = broker.vhosts.get(self.vhost)
        targets: Targets | None = None
        if topic is not None and topic.vhost is vhost and topic.generation == vhost.generation:
            targets = topic.targets
        if topic is None or targets is None:
            topic = self.topic(name)
            targets = self._targets(topic)
        count = len(cuts) - 1
        payload = Payload(
            NSQ, raw, cuts, topic.route, None, broker.new_message_ids(count), engine_ms, True, 0
        )
        annotations = Annotations(due_ms=EngineMs(engine_ms + delay_ms)) if delay_ms > 0 else None
        for queue in topic.refusing:
            if broker.admission.refuses(queue, payload, annotations):
                what = named("queue", queue.name, queue.vhost)
                raise ResourceExhausted(f"{what} has no room for {count} messages more")
        if topic.routes_singly:
            targets = self._publish_singly(topic, payload, annotations)
        else:
            broker.publishing.publish(self._session, targets, payload, annotations)
        topic.message_count += count
        topic.message_bytes += payload.size - count * head
        return targets

    def _publish_singly(
        self, topic: Topic, payload: Payload, annotations: Annotations | None
    ) -> Targets:
        """Publish messages that are routed one by one; return the queues of all of them."""
        route_from = topic.vhost.route_from
        parts = [
            Part(route_from(topic.exchange, [topic.name], {}), i, i + 1)
            for i in range(payload.count)
        ]
        self.broker.publishing.publish_parts(self._session, payload, parts, annotations)
        queues = {queue.id: queue for part in parts for queue in part.targets.queues}
        return Targets(list(queues.values()))

    def _targets(self, topic: Topic) -> Targets:
        vhost = self.broker.vhost(self.vhost)
        topic.routes_singly = vhost.routes_singly(topic.name)
        targets = vhost.route_from(topic.exchange, [topic.name], {})
        topic.vhost = vhost
        topic.targets = targets
        topic.refusing = [
            queue
            for queue in (targets.queues if targets.guarded else ())
            if queue.settings.overflow == REJECT_PUBLISH and place_of(queue)[0] == topic.name
        ]
        topic.generation = vhost.generation
        return targets

    # -- operators' commands. Each raises NotFound.

    def delete_topic(self, name: str) -> None:
        """Delete the topic with its channels and all their messages."""
        topic = self._existing(name)
        del self._topics[name]
        channels = list(topic.channels.values())
        for queue in [*channels, topic.backlog]:
            self.broker.registry.delete_queue(self._nobody, queue.name, False, False)
        self._channels.pop(name, None)
        vhost = self.broker.vhost(self.vhost)
        if vhost.exchanges.get(name) is topic.exchange:
            vhost.delete_exchange(name, False)
        self._note(name, "", False)

    def delete_channel(self, topic: str, channel: str) -> None:
        """Delete the channel with all its messages."""
        queue = self._existing_channel(topic, channel)
        self.broker.registry.delete_queue(self._nobody, queue.name, False, False)

    def empty_topic(self, name: str) -> None:
        """Drop the messages of the topic's backlog."""
        self.broker.contents.empty(self._existing(name).backlog)

    def empty_channel(self, topic: str, channel: str) -> None:
        """Drop all ready, deferred and in-flight messages of the channel [NQ-15]."""
        self.broker.contents.empty(self._existing_channel(topic, channel))

    def pause_topic(self, name: str, paused: bool) -> None:
        """Stop copying to the channels, or resume with the messages published meanwhile [NQ-9]."""
        self._existing(name)
        topic = self.topic(name)  # with its exchange, if an AMQP client deleted that
        self.broker.registry.pause(topic.backlog, paused)

    def pause_channel(self, topic: str, channel: str, paused: bool) -> None:
        """Stop or resume deliveries from the channel [NQ-9]."""
        self.broker.registry.pause(self._existing_channel(topic, channel), paused)

    def _existing(self, name: str) -> Topic:
        found = self._topics.get(name)
        if found is None:
            raise NotFound(f"no topic '{name}'")
        return found

    def _existing_channel(self, topic: str, channel: str) -> Queue:
        found = self._existing(topic).channels.get(channel)
        if found is None:
            raise NotFound(f"no channel '{channel}' of topic '{topic}'")
        return found

    # -- making them

    def _exchange(self, vhost: VirtualHost, name: str, adopts: bool) -> Exchange:
        """Return the topic's exchange, made if it does not exist. adopts: accept a fanout exchange
        that is not marked as a topic."""
        if name.startswith("amq."):
            raise AccessRefused(f"topic '{name}': the prefix 'amq.' is reserved")
        found = vhost.exchanges.get(name)
        if found is None:
            durable = not is_ephemeral(name)
            mark: dict[str, object] = {NSQ_TOPIC: name}
            return self._wiring(
                lambda: vhost.declare_exchange(name, FANOUT, durable, False, False, mark, False)
            )
        if found.type != FANOUT or found.internal:
            kind = "internal" if found.internal else f"of type '{found.type}'"
            what = named("exchange", name, vhost.name)
            raise PreconditionFailed(f"topic '{name}': {what} is {kind}, expected a fanout one")
        if not adopts and found.arguments.get(NSQ_TOPIC) != name:
            what = named("exchange", name, vhost.name)
            raise PreconditionFailed(
                f"topic '{name}': {what} was not made by NSQ, expected its argument {NSQ_TOPIC}, "
                "or the setting nsq_adopt_exchanges"
            )
        return found

    def _queue(self, topic: str, channel: str, transient: bool, auto_delete: bool) -> Queue:
        """Return the queue of a channel, or, with an empty channel, of the backlog, made if it does
        not exist."""
        name = f"{topic}:{channel}"
        arguments: dict[str, object] = {NSQ_TOPIC: topic}
        if channel:
            arguments[NSQ_CHANNEL] = channel
        if auto_delete or (transient and not channel):
            arguments["x-max-length"] = self.mem_queue_size
            arguments["x-overflow"] = DROP_TAIL
        current = self.broker.vhost(self.vhost).queues.get(name)
        if current is not None:
            if place_of(current) != (topic, channel):
                what = named("queue", name, self.vhost)
                raise PreconditionFailed(f"{what} is not a queue of topic '{topic}'")
            return current
        return self.broker.registry.declare_queue(
            self._nobody, name, not transient, False, auto_delete, arguments, False
        )

    def _wire(self, topic: Topic) -> None:
        """Bind the queues that the topic's messages go to now, unbind the others, and move the
        backlog. O(channels)."""
        channels = list(topic.channels.values())
        self.broker.registry.keep(topic.backlog, bool(channels))
        if topic.paused or not channels:
            self._bind(topic, topic.backlog)
            for queue in channels:
                self._unbind(topic, queue)
            return
        for queue in channels:
            self._bind(topic, queue)
        self._release(topic, channels)

    def _release(self, topic: Topic, channels: list[Queue]) -> None:
        """Unbind and empty the backlog after channels were bound."""
        backlog = topic.backlog
        self._unbind(topic, backlog)
        if backlog.ready or backlog.deferred:
            self.broker.contents.transfer(backlog, channels)

    def release_late(self) -> bool:
        """Move what reached a backlog while its topic had channels and was not paused; return
        whether there was any. O(topics).

        A transaction publishes to the queues that were bound when its messages came; a consumer of
        the backlog gives messages back; what could not be read is read again.
        """
        has_moved = False
        for topic in self._topics.values():
            backlog = topic.backlog
            has_any = backlog.ready > 0 or backlog.deferred > 0
            if has_any and topic.channels and not topic.paused:
                self.broker.contents.transfer(backlog, list(topic.channels.values()))
                has_moved = True
        return has_moved

    def _bind(self, topic: Topic, queue: Queue) -> None:
        vhost = self.broker.vhost(self.vhost)
        self._wiring(lambda: vhost.bind_queue(queue.name, topic.name, "", {}, NOBODY))

    def _unbind(self, topic: Topic, queue: Queue) -> None:
        """Unbind a queue of the topic, also where AMQP clients bound it, with keys of theirs."""
        vhost = self.broker.vhost(self.vhost)

        def unbind() -> None:
            for one in vhost.topology.bindings_to(queue):
                if one.source.name == topic.name:
                    vhost.unbind_queue(queue.name, topic.name, one.key, one.arguments, NOBODY)

        self._wiring(unbind)

    def _wiring(self, change: Callable[[], Made]) -> Made:
        """Make a change of our own, which nobody needs to follow; return what it returns. Raises as
        `change`."""
        before, self._is_wiring = self._is_wiring, True
        try:
            return change()
        finally:
            self._is_wiring = before

    # -- following changes of queues

    def _find_all(self) -> None:
        """Find topics and channels after a restart, and bind what is missing now that transient
        queues are gone."""
        vhost = self.broker.vhosts.get(self.vhost)
        if vhost is None:
            return
        names: dict[str, None] = {}
        for queue in vhost.queues.values():
            topic, channel = place_of(queue)
            if topic:
                names[topic] = None
                if channel:
                    self._channels.setdefault(topic, {})[channel] = queue
        for name in names:
            # Topics of before exchanges were marked have a backlog that is. It takes the same
            # permissions to declare one as to mark the exchange [operations.py].
            self._take_in(name, f"{name}:" in vhost.queues)
        self.changed.clear()

    def _take_in(self, name: str, adopts: bool) -> None:
        """Add the topic that a queue's arguments name, unless that is impossible."""
        try:
            vhost = self.broker.vhost(self.vhost)
            self._made(name, vhost, self._topics.get(name), adopts or self.adopts)
        except BrokerError:
            return  # the exchange of that name is none of ours: NSQ clients get E_BAD_TOPIC

    def _observe(self, queue: Queue, exists: bool) -> None:
        name, channel = place_of(queue)
        if not name or queue.vhost != self.vhost:
            return
        topic = self._topics.get(name)
        if not channel:
            if exists and topic is None and not self._is_wiring:
                self._take_in(name, False)
            is_gone = not exists and topic is not None and topic.backlog is queue
            if is_gone and topic is not None and not self._renew(topic):
                del self._topics[name]  # the next use makes it anew
                if not topic.channels:
                    self._channels.pop(name, None)
                self._note(name, "", False)
        elif exists:
            self._channels.setdefault(name, {})[channel] = queue
            if topic is None:
                self._take_in(name, False)
            else:
                self._note(name, channel, True)
                self._enter(topic, queue)
        elif queue is self._channels.get(name, {}).get(channel):
            channels = self._channels[name]
            del channels[channel]
            self._note(name, channel, False)
            if topic is not None and not channels:
                self._left_alone(topic)
            elif topic is None and not channels:
                del self._channels[name]

    def _follow(self, queue: Queue) -> None:
        """Put the bindings right of a topic's queue that somebody bound, unbound, paused or
        resumed. To pause its backlog is to pause the topic."""
        if self._is_wiring or queue.vhost != self.vhost:
            return
        name, channel = place_of(queue)
        topic = self._topics.get(name)
        if topic is None:
            return
        if self.broker.vhost(self.vhost).exchanges.get(name) is not topic.exchange:
            return
        if queue is topic.backlog:
            self._wire(topic)
        elif topic.channels.get(channel) is queue:
            if topic.paused:
                self._unbind(topic, queue)
            else:
                self._bind(topic, queue)

    def _follow_exchange(self, vhost: str, exchange: Exchange) -> None:
        """Wire the topic whose exchange an AMQP client declared anew."""
        name = exchange.name
        if self._is_wiring or vhost != self.vhost:
            return
        is_marked = exchange.arguments.get(NSQ_TOPIC) == name
        if name in self._topics or (is_marked and self._channels.get(name)):
            self._take_in(name, name in self._topics)

    def _renew(self, topic: Topic) -> bool:
        """Make a deleted backlog anew, paused as before, since the topic has channels. False: the
        topic has none, or its exchange is gone, too, or there may be no more queues."""
        vhost = self.broker.vhosts.get(self.vhost)
        if vhost is None or vhost.exchanges.get(topic.name) is not topic.exchange:
            return False
        if not topic.channels:
            return False
        paused = topic.paused
        try:
            topic.backlog = self._queue(topic.name, "", topic.ephemeral, False)
        except BrokerError:
            return False
        self.broker.registry.pause(topic.backlog, paused)
        self._wire(topic)
        return True

    def _enter(self, topic: Topic, queue: Queue) -> None:
        """Add a channel to a topic."""
        self.broker.registry.keep(topic.backlog, True)
        vhost = self.broker.vhost(self.vhost)
        if topic.paused or vhost.exchanges.get(topic.name) is not topic.exchange:
            return
        self._bind(topic, queue)
        if len(topic.channels) == 1:
            self._release(topic, [queue])

    def _left_alone(self, topic: Topic) -> None:
        """Handle the deletion of a topic's last channel [NQ-9, NQ-10]."""
        vhost = self.broker.vhosts.get(self.vhost)
        if vhost is None or vhost.queues.get(topic.backlog.name) is not topic.backlog:
            return
        self.broker.registry.keep(topic.backlog, False)
        if topic.ephemeral:
            self.delete_topic(topic.name)
        elif vhost.exchanges.get(topic.name) is topic.exchange:
            self._bind(topic, topic.backlog)

    def _note(self, topic: str, channel: str, exists: bool) -> None:
        if self.keeps_changes:
            self.changed.append((topic, channel, exists))
