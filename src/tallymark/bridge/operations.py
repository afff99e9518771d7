"""Operations on queues, exchanges and bindings, once for all faces: AMQP 0-9-1, AMQP 1.0, HTTP.

Each takes what a user asks for, checks the user's permissions and changes the engine; one that
raises BrokerError has changed nothing. Where several refusals are possible, the order of checks is
that of RabbitMQ's AMQP 0-9-1. A face reads its own requests, adds checks that its protocol alone
has, and answers: at once, or, where the result `lasts`, when the disk has what the broker did so
far. That holds also where only something was found that lasts: its record may be on its way.

An argument of a queue that connects it with an exchange requires the permissions of connecting them
by commands. What is connected with a topic exchange brings messages with any routing key there.
Dead letters are published to their exchange. A channel of an NSQ topic gets copies of the topic's
messages, as if bound. And declaring the topic's own queue makes a topic of its exchange, which NSQ
clients may then publish to and read.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.permissions import (
    CONFIGURE,
    EXCHANGE,
    QUEUE,
    READ,
    WRITE,
    Access,
    check_forwarding,
    check_keys,
)
from tallymark.engine.broker import Broker
from tallymark.engine.errors import AccessRefused, InvalidCommand, NotFound
from tallymark.engine.exchange import ALTERNATE, check_type
from tallymark.engine.names import check_new_name, cleaned, is_routing_key, named
from tallymark.engine.queue import Queue
from tallymark.engine.session import Connection
from tallymark.engine.vhost import VirtualHost
from tallymark.wire.amqp091.errors import WireError
from tallymark.wire.amqp091.fields import decode_table, encode_table

DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
DEAD_LETTER_KEY: Final = "x-dead-letter-routing-key"
NSQ_TOPIC: Final = "x-nsq-topic"
"""Argument of an exchange that is a topic, and of the queues that belong to it: the topic's
name."""
NSQ_CHANNEL: Final = "x-nsq-channel"
RESERVED: Final = "amq."
NAMED_BY_BROKER: Final = "amq.gen-AAAAAAAAAAAAAAAAAAAAAA"
"""Stand-in for a name that the broker will choose, in checks of permissions: patterns treat all
such names alike."""


@final
class Done:
    """The result of an operation that changes something."""

    __slots__ = ("count", "is_new", "lasts")

    def __init__(self, lasts: bool, is_new: bool = False, count: int = 0) -> None:
        self.lasts = lasts
        """True if what it is about survives a restart, or is not there: who removed it may have
        done so just now, and the disk may not know."""
        self.is_new = is_new
        """True if there was no such thing before."""
        self.count = count
        """Number of messages that left a queue."""


@final
class Declared:
    """The result of declaring a queue."""

    __slots__ = ("is_new", "queue")

    def __init__(self, queue: Queue, is_new: bool) -> None:
        self.queue = queue
        self.is_new = is_new


@final
class Operations:
    """Operations of one user in one virtual host."""

    __slots__ = ("_access", "_broker", "_connection")

    def __init__(self, broker: Broker, connection: Connection, access: Access) -> None:
        """connection: it becomes the owner of exclusive queues, and is the one that may use
        them."""
        self._broker = broker
        self._connection = connection
        self._access = access

    @property
    def vhost(self) -> VirtualHost:
        return self._broker.vhost(self._connection.vhost)

    # -- queues

    def find_queue(self, name: str) -> Queue:
        """Return the queue. Raises NotFound."""
        return queue_of(self.vhost, name)

    def use_queue(self, name: str) -> Queue:
        """Return the queue, whose expiry starts anew [amqp-0.9.1 queue.declare passive]. Raises
        NotFound, ResourceLocked."""
        return self._broker.registry.declare_queue(
            self._connection, name, False, False, False, {}, True
        )

    def queue_to_read(self, name: str) -> Queue:
        """Return a queue whose messages the user may take. Raises AccessRefused, NotFound,
        ResourceLocked."""
        self._access.check(QUEUE, name, READ)
        return self.vhost.queue(name, self._connection.id)

    def declare_queue(
        self,
        name: str,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: dict[str, object],
    ) -> Declared:
        """Make a queue, or find it with the same properties. Without a name the broker chooses one.
        Without a type it gets the default one of its policy or virtual host.

        Raises: AccessRefused; as Registry.declare_queue.
        """
        name = cleaned(name)
        vhost = self.vhost
        is_new = not name or name not in vhost.queues
        if is_new and name.startswith(RESERVED):
            check_new_name(QUEUE, name)
        asked = name or NAMED_BY_BROKER
        self._access.check(QUEUE, asked, CONFIGURE)
        if is_new:
            self._check_arguments(vhost, asked, arguments)
        typed = vhost.with_type(name, durable, exclusive, auto_delete, arguments)
        queue = self._broker.registry.declare_queue(
            self._connection, name, durable, exclusive, auto_delete, typed, False
        )
        return Declared(queue, is_new)

    def _check_arguments(self, vhost: VirtualHost, name: str, arguments: dict[str, object]) -> None:
        """Check the permissions that the arguments of a new queue require. Raises AccessRefused."""
        access = self._access
        letters = arguments.get(DEAD_LETTER_EXCHANGE)
        if isinstance(letters, str):
            access.check(QUEUE, name, READ)
            access.check(EXCHANGE, letters, WRITE)
            key = arguments.get(DEAD_LETTER_KEY)
            own_key = key if isinstance(key, str) else None
            check_forwarding(access, letters, vhost.exchanges.get(letters), own_key)
        topic = arguments.get(NSQ_TOPIC)
        if isinstance(topic, str):
            access.check(QUEUE, name, WRITE)
            access.check(EXCHANGE, topic, READ)
            if NSQ_CHANNEL not in arguments or topic not in vhost.exchanges:
                access.check(EXCHANGE, topic, CONFIGURE)
                access.check(EXCHANGE, topic, WRITE)

    def delete_queue(self, name: str, if_unused: bool = False, if_empty: bool = False) -> Done:
        """Delete a queue with all it holds; nothing if there is none.

        Raises: AccessRefused, ResourceLocked, PreconditionFailed (in use, not empty).
        """
        name = cleaned(name)
        self._access.check(QUEUE, name, CONFIGURE)
        queue = self.vhost.queues.get(name)
        if queue is None:
            return Done(True)
        lasts = queue.stored
        count = self._broker.registry.delete_queue(self._connection, name, if_unused, if_empty)
        return Done(lasts, count=count)

    def purge_queue(self, name: str) -> int:
        """Drop the messages of a queue that nobody holds; return their number. As with
        acknowledgements, nobody has to wait for the disk.

        Raises: AccessRefused, NotFound, ResourceLocked, Unsupported (a stream).
        """
        return self._broker.contents.purge(self.queue_to_read(name))

    def pause_queue(self, name: str, paused: bool) -> Done:
        """Stop the deliveries of a queue to all its consumers, or resume them [NQ-9].

        Raises: AccessRefused, NotFound, ResourceLocked.
        """
        self._access.check(QUEUE, name, CONFIGURE)
        queue = self.vhost.queue(name, self._connection.id)
        self._broker.registry.pause(queue, paused)
        return Done(queue.stored)

    # -- exchanges

    def use_exchange(self, name: str) -> None:
        """Check that there is such an exchange [amqp-0.9.1 exchange.declare passive]. Raises
        NotFound, AccessRefused (the default exchange)."""
        self.vhost.declare_exchange(name, "", False, False, False, {}, True)

    def declare_exchange(
        self,
        name: str,
        type: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, object],
    ) -> Done:
        """Make an exchange, or find it with the same properties.

        Raises: AccessRefused; as VirtualHost.declare_exchange.
        """
        check_type(type)
        name = cleaned(name)
        refuse_default(name)
        access, vhost = self._access, self.vhost
        access.check(EXCHANGE, name, CONFIGURE)
        is_new = name not in vhost.exchanges
        alternate = arguments.get(ALTERNATE)
        if is_new and isinstance(alternate, str):
            access.check(EXCHANGE, name, READ)
            access.check(EXCHANGE, alternate, WRITE)
            check_forwarding(access, alternate, vhost.exchanges.get(alternate))
        exchange = vhost.declare_exchange(
            name, type, durable, auto_delete, internal, arguments, False
        )
        return Done(exchange.durable, is_new)

    def delete_exchange(self, name: str, if_unused: bool = False) -> Done:
        """Delete an exchange and its bindings; nothing if there is none.

        Raises: AccessRefused (also for predeclared ones), PreconditionFailed (in use).
        """
        name = cleaned(name)
        if name and not name.startswith(RESERVED):
            self._access.check(EXCHANGE, name, CONFIGURE)
        vhost = self.vhost
        exchange = vhost.exchanges.get(name)
        vhost.delete_exchange(name, if_unused)
        return Done(exchange is None or exchange.durable)

    # -- bindings

    def bind(
        self, source: str, kind: str, destination: str, key: str, arguments: dict[str, object]
    ) -> Done:
        """Bind a queue or an exchange (kind) to an exchange.

        Raises: AccessRefused, NotFound, ResourceLocked, InvalidCommand (key too long),
        PreconditionFailed (key or arguments do not suit the source).
        """
        source, destination = cleaned(source), cleaned(destination)
        self.check_binding(source, kind, destination, key)
        if not is_routing_key(key):
            raise InvalidCommand(f"binding key {key!r:.60}, expected at most 255 bytes")
        vhost = self.vhost
        if kind == QUEUE:
            vhost.bind_queue(destination, source, key, arguments, self._connection.id)
        else:
            check_forwarding(self._access, destination, vhost.exchanges.get(destination))
            vhost.bind_exchange(destination, source, key, arguments)
        return Done(_binding_lasts(vhost, source, kind, destination))

    def unbind(
        self, source: str, kind: str, destination: str, key: str, arguments: dict[str, object]
    ) -> Done:
        """Remove a binding; nothing if there is none. Raises AccessRefused, ResourceLocked."""
        source, destination = cleaned(source), cleaned(destination)
        self.check_binding(source, kind, destination, key)
        vhost = self.vhost
        lasts = _binding_lasts(vhost, source, kind, destination)
        if kind == QUEUE:
            vhost.unbind_queue(destination, source, key, arguments, self._connection.id)
        else:
            vhost.unbind_exchange(destination, source, key, arguments)
        return Done(lasts)

    def check_binding(self, source: str, kind: str, destination: str, key: str) -> None:
        """Check that the user may bind and unbind the two with this key. Raises AccessRefused."""
        access = self._access
        access.check(kind, destination, WRITE)
        if kind == EXCHANGE:
            refuse_default(destination)
        refuse_default(source)
        access.check(EXCHANGE, source, READ)
        check_keys(access, self.vhost.exchanges.get(source), (key,), READ)


def queue_of(vhost: VirtualHost, name: str) -> Queue:
    """Return the queue of a virtual host. Raises NotFound."""
    queue = vhost.queues.get(name)
    if queue is None:
        raise NotFound(f"no {named(QUEUE, name, vhost.name)}")
    return queue


def refuse_default(exchange: str) -> None:
    """Raise AccessRefused for the default exchange."""
    if not exchange:
        raise AccessRefused("operation not permitted on the default exchange")


def refuse_breaks(name: str) -> None:
    """Raise InvalidCommand for a name with a line break, which AMQP 1.0 refuses, where AMQP 0-9-1
    takes it out [rabbitmq]."""
    if cleaned(name) != name:
        raise InvalidCommand(f"bad name {name!r}: line feed and carriage return are not allowed")


def arguments_of(table: dict[str, object]) -> dict[str, object]:
    """Return arguments that did not come over AMQP 0-9-1 as if they had. Raises InvalidCommand:
    no table of AMQP has room or a type for them."""
    try:
        return decode_table(encode_table(table))
    except (ValueError, TypeError, RecursionError, WireError) as error:
        raise InvalidCommand(f"arguments that no AMQP table holds: {error}") from error


def _binding_lasts(vhost: VirtualHost, source: str, kind: str, destination: str) -> bool:
    """Return whether a binding between the two survives a restart, or one of them is not there."""
    origin = vhost.exchanges.get(source)
    if origin is None:
        return True
    if kind == QUEUE:
        queue = vhost.queues.get(destination)
        return queue is None or (origin.durable and queue.stored)
    exchange = vhost.exchanges.get(destination)
    return exchange is None or (origin.durable and exchange.durable)
