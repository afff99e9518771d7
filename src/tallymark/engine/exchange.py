"""Exchanges: selection of a message's destinations, by kind of exchange
[amqp-0.9.1 exchange types].

An exchange selects those of its bindings that a message matches. The virtual host follows bindings
to further exchanges, and the alternate exchange.

    direct              binding key equals a routing key
    fanout              every binding
    topic               binding key is a pattern, see matching.py
    headers             binding arguments are a pattern, see matching.py
    x-consistent-hash   one binding, by a hash; the binding key is its weight, see matching.py
    x-local-random      one binding, in turn: the next message takes the next queue
    x-delayed-message   as the kind its argument `x-delayed-type` names, see DelayedExchange
    "" (default)        every queue under its own name, without stored bindings

x-consistent-hash hashes the first routing key. With argument `hash-header` it hashes that header,
with `hash-property` one of message_id, correlation_id, timestamp: the caller of route() puts the
message's properties into the headers mapping under `property_key(name)`. Messages without the
header or property all go to the same binding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from tallymark.engine.arguments import check_exchange_name
from tallymark.engine.equivalence import check_same_arguments, check_same_flag, inequivalent
from tallymark.engine.errors import InvalidCommand, PreconditionFailed
from tallymark.engine.matching import HashRing, HeaderTable, TopicTrie, check_match
from tallymark.engine.names import named
from tallymark.engine.table_json import canonical
from tallymark.engine.table_values import shown, type_name, wire_bytes

if TYPE_CHECKING:
    from tallymark.engine.queue import Queue

DIRECT: Final = "direct"
FANOUT: Final = "fanout"
TOPIC: Final = "topic"
HEADERS: Final = "headers"
CONSISTENT_HASH: Final = "x-consistent-hash"
LOCAL_RANDOM: Final = "x-local-random"
DELAYED: Final = "x-delayed-message"
TYPES: Final = (DIRECT, FANOUT, TOPIC, HEADERS, CONSISTENT_HASH, LOCAL_RANDOM, DELAYED)
"""Names of all kinds of exchange."""
ALTERNATE: Final = "alternate-exchange"
DELAYED_TYPE: Final = "x-delayed-type"
HASH_HEADER: Final = "hash-header"
HASH_PROPERTY: Final = "hash-property"
HASH_PROPERTIES: Final = ("message_id", "correlation_id", "timestamp")


def property_key(name: str) -> str:
    """Return the key under which the headers mapping given to route() contains a message property,
    for `hash-property`."""
    return "\0" + name


@final
class Binding:
    """A binding from a source exchange to a queue or another exchange.

    Its identity is (source, destination, key, arguments): binding the same again changes nothing.
    """

    def __init__(
        self,
        source: Exchange,
        queue: Queue | None,
        exchange: Exchange | None,
        key: str,
        arguments: dict[str, object],
    ) -> None:
        self.source = source
        self.queue = queue
        """Destination queue; None if the destination is an exchange."""
        self.exchange = exchange
        self.key = key
        self.arguments = arguments
        self.identity = identity_of(self.kind(), self.destination(), key, arguments)
        self.durable = source.durable and (
            queue.durable if queue is not None else exchange is not None and exchange.durable
        )
        """True if the binding survives a restart: both its ends do."""

    def kind(self) -> str:
        return "queue" if self.queue is not None else "exchange"

    def destination(self) -> str:
        """Name of the destination queue or exchange."""
        if self.queue is not None:
            return self.queue.name
        return self.exchange.name if self.exchange is not None else ""


def identity_of(
    kind: str, destination: str, key: str, arguments: dict[str, object]
) -> tuple[str, str, str, str]:
    """Return the identity of a binding among those of its source exchange."""
    return kind, destination, key, canonical(arguments) if arguments else ""


@final
class Matches:
    """Destinations found so far for one message, each once."""

    def __init__(self) -> None:
        self.queues: dict[int, Queue] = {}
        """Matching queues by queue id."""
        self.exchanges: list[Exchange] = []
        self.count = 0
        """Count of the bindings that matched, duplicates included."""

    def add(self, binding: Binding) -> None:
        self.count += 1
        queue = binding.queue
        if queue is not None:
            self.queues[queue.id] = queue
        elif binding.exchange is not None:
            self.exchanges.append(binding.exchange)


class Exchange:
    """Base of all kinds of exchange. Made by make_exchange, bound through the VirtualHost."""

    def __init__(
        self,
        name: str,
        type: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, object],
    ) -> None:
        self.name = name
        self.type = type
        self.durable = durable
        self.auto_delete = auto_delete
        """True if the exchange is deleted together with the last of its bindings as a source."""
        self.internal = internal
        """True if clients cannot publish to the exchange: it is reached through bindings only."""
        self.arguments = arguments
        alternate = arguments.get(ALTERNATE)
        self.alternate: str | None = alternate if isinstance(alternate, str) else None
        """Name of the exchange that receives messages matching none of the bindings."""
        self.reads_headers = type == HEADERS
        """True if routing needs a message's headers (and properties)."""
        self.routes_singly = False
        """True if each message must be routed by itself, though others may be equal."""
        self.bindings: dict[tuple[str, str, str, str], Binding] = {}
        """Bindings by identity, with this exchange as their source."""
        self.onward: dict[Binding, None] = {}
        """Bindings among these that lead to an exchange."""
        self.inbound: dict[Binding, None] = {}
        """Bindings with this exchange as their destination."""

    @property
    def routes_as(self) -> str:
        """Type of exchange whose behaviour it has."""
        return self.type

    def check_binding(self, key: str, arguments: dict[str, object], to_queue: bool) -> None:
        """Check that a binding with these properties suits this kind. Raises PreconditionFailed."""

    def add(self, binding: Binding) -> None:
        self.bindings[binding.identity] = binding
        if binding.exchange is not None:
            self.onward[binding] = None
        self.index(binding)

    def remove(self, binding: Binding) -> None:
        del self.bindings[binding.identity]
        self.onward.pop(binding, None)
        self.unindex(binding)

    def index(self, binding: Binding) -> None:
        raise NotImplementedError(self.type)

    def unindex(self, binding: Binding) -> None:
        raise NotImplementedError(self.type)

    def collect(self, keys: list[str], headers: dict[str, object] | None, into: Matches) -> None:
        """Add the bindings that match a message with these routing keys (at least one)."""
        raise NotImplementedError(self.type)


@final
class DirectExchange(Exchange):
    """Direct exchange: equal keys match. The default exchange is one too; the VirtualHost finds its
    queues."""

    def __init__(
        self,
        name: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, object],
    ) -> None:
        super().__init__(name, DIRECT, durable, auto_delete, internal, arguments)
        self.by_key: dict[str, dict[Binding, None]] = {}

    def index(self, binding: Binding) -> None:
        self.by_key.setdefault(binding.key, {})[binding] = None

    def unindex(self, binding: Binding) -> None:
        bound = self.by_key[binding.key]
        del bound[binding]
        if not bound:
            del self.by_key[binding.key]

    def collect(self, keys: list[str], headers: dict[str, object] | None, into: Matches) -> None:
        for key in keys:
            bound = self.by_key.get(key)
            if bound is not None:
                for binding in bound:
                    into.add(binding)


@final
class FanoutExchange(Exchange):
    """Fanout exchange: every binding matches."""

    def __init__(
        self,
        name: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, object],
    ) -> None:
        super().__init__(name, FANOUT, durable, auto_delete, internal, arguments)

    def index(self, binding: Binding) -> None:
        """Do nothing: `bindings` is the only table needed."""

    def unindex(self, binding: Binding) -> None:
        """Do nothing: `bindings` is the only table needed."""

    def collect(self, keys: list[str], headers: dict[str, object] | None, into: Matches) -> None:
        for binding in self.bindings.values():
            into.add(binding)


@final
class TopicExchange(Exchange):
    """Topic exchange: binding keys are patterns."""

    def __init__(
        self,
        name: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, object],
    ) -> None:
        super().__init__(name, TOPIC, durable, auto_delete, internal, arguments)
        self.trie: TopicTrie[Binding] = TopicTrie()

    def index(self, binding: Binding) -> None:
        self.trie.add(binding.key, binding)

    def unindex(self, binding: Binding) -> None:
        self.trie.remove(binding.key, binding)

    def collect(self, keys: list[str], headers: dict[str, object] | None, into: Matches) -> None:
        for key in keys:
            for binding in self.trie.match(key):
                into.add(binding)


@final
class HeadersExchange(Exchange):
    """Headers exchange: binding arguments are patterns, keys are ignored."""

    def __init__(
        self,
        name: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, object],
    ) -> None:
        super().__init__(name, HEADERS, durable, auto_delete, internal, arguments)
        self.table: HeaderTable[Binding] = HeaderTable()

    def check_binding(self, key: str, arguments: dict[str, object], to_queue: bool) -> None:
        check_match(arguments)

    def index(self, binding: Binding) -> None:
        self.table.add(binding, binding.arguments)

    def unindex(self, binding: Binding) -> None:
        self.table.remove(binding)

    def collect(self, keys: list[str], headers: dict[str, object] | None, into: Matches) -> None:
        for binding in self.table.match(headers if headers is not None else {}):
            into.add(binding)


@final
class HashExchange(Exchange):
    """Consistent-hash exchange: a hash selects one of the bindings, the same one for equal keys."""

    def __init__(
        self,
        name: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, object],
    ) -> None:
        super().__init__(name, CONSISTENT_HASH, durable, auto_delete, internal, arguments)
        self.hashed = ""
        """Name in the headers mapping whose value is hashed; "" for the routing key."""
        header = arguments.get(HASH_HEADER)
        prop = arguments.get(HASH_PROPERTY)
        if isinstance(header, str):
            self.hashed = header
        elif isinstance(prop, str):
            self.hashed = property_key(prop)
        self.reads_headers = self.hashed != ""
        self.ring: HashRing[Binding] = HashRing()

    def check_binding(self, key: str, arguments: dict[str, object], to_queue: bool) -> None:
        weight_of(key)

    def index(self, binding: Binding) -> None:
        self.ring.add(_ring_name(binding), weight_of(binding.key), binding)

    def unindex(self, binding: Binding) -> None:
        self.ring.remove(_ring_name(binding), weight_of(binding.key), binding)

    def collect(self, keys: list[str], headers: dict[str, object] | None, into: Matches) -> None:
        value: object = keys[0]
        if self.hashed:
            value = headers.get(self.hashed) if headers is not None else None
        binding = self.ring.find(
            wire_bytes(value) if isinstance(value, str) else canonical(value).encode("ascii")
        )
        if binding is not None:
            into.add(binding)


@final
class LocalRandomExchange(Exchange):
    """Local-random exchange: each message goes to the next one of the bound queues. RabbitMQ draws
    a random queue among those on the publisher's node; here all queues are on it, and turns are as
    even as can be. Keys are ignored."""

    def __init__(
        self,
        name: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, object],
    ) -> None:
        super().__init__(name, LOCAL_RANDOM, durable, auto_delete, internal, arguments)
        self.routes_singly = True
        self._ring: list[Binding] = []
        self._places: dict[Binding, int] = {}
        """Index of each binding in the ring."""
        self._next = 0

    def check_binding(self, key: str, arguments: dict[str, object], to_queue: bool) -> None:
        if key:
            raise PreconditionFailed(f"Non empty binding '{key}' key not permitted")
        if not to_queue:
            raise PreconditionFailed(
                f"an exchange of type '{LOCAL_RANDOM}' is bound to queues, expected a queue"
            )

    def index(self, binding: Binding) -> None:
        self._places[binding] = len(self._ring)
        self._ring.append(binding)

    def unindex(self, binding: Binding) -> None:
        """Remove a binding. The last of the ring takes its place."""
        place = self._places.pop(binding)
        last = self._ring.pop()
        if last is not binding:
            self._ring[place] = last
            self._places[last] = place

    def collect(self, keys: list[str], headers: dict[str, object] | None, into: Matches) -> None:
        ring = self._ring
        if ring:
            self._next = (self._next + 1) % len(ring)
            into.add(ring[self._next])


@final
class DelayedExchange(Exchange):
    """Delayed-message exchange: another kind under the name that programs for RabbitMQ's
    rabbitmq_delayed_message_exchange use. A message with a header `x-delay` waits in its target
    queues, whatever kind of exchange it came through, so this exchange only routes."""

    def __init__(
        self,
        name: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, object],
    ) -> None:
        super().__init__(name, DELAYED, durable, auto_delete, internal, arguments)
        self.kind = make_exchange(
            name, delayed_type(arguments), durable, auto_delete, internal, arguments
        )
        """Exchange whose behaviour it has; they share their bindings."""
        self.kind.bindings = self.bindings
        self.reads_headers = self.kind.reads_headers
        self.routes_singly = self.kind.routes_singly

    @property
    def routes_as(self) -> str:
        return self.kind.type

    def check_binding(self, key: str, arguments: dict[str, object], to_queue: bool) -> None:
        self.kind.check_binding(key, arguments, to_queue)

    def index(self, binding: Binding) -> None:
        self.kind.index(binding)

    def unindex(self, binding: Binding) -> None:
        self.kind.unindex(binding)

    def collect(self, keys: list[str], headers: dict[str, object] | None, into: Matches) -> None:
        self.kind.collect(keys, headers, into)


def delayed_type(arguments: dict[str, object]) -> str:
    """Return the type that the argument `x-delayed-type` names.

    Raises: PreconditionFailed (it is missing, no text, or would lead to itself), InvalidCommand
    (there is no such kind).
    """
    kind = arguments.get(DELAYED_TYPE)
    if kind == DELAYED:
        raise PreconditionFailed(
            f"Invalid argument, '{DELAYED}' can't be used for '{DELAYED_TYPE}'"
        )
    if not isinstance(kind, str):
        raise PreconditionFailed(
            f"Invalid argument, '{DELAYED_TYPE}' must be an existing exchange type"
        )
    check_type(kind)
    return kind


def _ring_name(binding: Binding) -> str:
    return f"{binding.kind()}:{binding.destination()}"


def weight_of(key: str) -> int:
    """Return the weight that a binding key of x-consistent-hash names. Raises
    PreconditionFailed."""
    digits = key[1:] if key[:1] in ("+", "-") else key
    if not (digits.isascii() and digits.isdigit()):
        raise PreconditionFailed(f'The binding key must be an integer: <<"{key}">>')
    weight = int(key)
    if weight < 1:
        raise PreconditionFailed("The binding key must be greater than 0")
    return weight


def check_type(type: str) -> None:
    """Check that the kind of exchange exists. Raises InvalidCommand."""
    if type not in TYPES:
        raise InvalidCommand(f"unknown exchange type '{type}'")


def check_exchange_arguments(what: str, type: str, arguments: dict[str, object]) -> None:
    """Check types and values of the known arguments of a new exchange.

    Raises: PreconditionFailed, InvalidCommand (see delayed_type).
    """
    check_exchange_name(ALTERNATE, what, arguments)
    if type == DELAYED:
        type = delayed_type(arguments)
    if type != CONSISTENT_HASH:
        return
    for name in (HASH_HEADER, HASH_PROPERTY):
        if name in arguments and not isinstance(arguments[name], str):
            raise PreconditionFailed(
                f"invalid type '{type_name(arguments[name])}' for arg '{name}' in {what}"
            )
    if HASH_HEADER in arguments and HASH_PROPERTY in arguments:
        raise PreconditionFailed("hash-header and hash-property are mutually exclusive")
    prop = arguments.get(HASH_PROPERTY)
    if prop is not None and prop not in HASH_PROPERTIES:
        raise PreconditionFailed(f"Unsupported property: {prop}")


def check_same_exchange(
    vhost: str,
    current: Exchange,
    type: str,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: dict[str, object],
) -> None:
    """Check that a re-declaration describes the existing exchange. Raises PreconditionFailed."""
    what = named("exchange", current.name, vhost)
    if type != current.type:
        raise inequivalent("type", what, shown(type), shown(current.type))
    check_same_flag("durable", what, durable, current.durable)
    check_same_flag("auto_delete", what, auto_delete, current.auto_delete)
    check_same_flag("internal", what, internal, current.internal)
    names = [ALTERNATE]
    if DELAYED_TYPE in arguments:  # the plugin never compares it: without it any one will do
        names.append(DELAYED_TYPE)
    check_same_arguments(names, what, arguments, current.arguments)


def make_exchange(
    name: str,
    type: str,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: dict[str, object],
) -> Exchange:
    """Make an exchange without bindings.

    Raises: InvalidCommand for an unknown kind, PreconditionFailed (see delayed_type).
    """
    check_type(type)
    if type == DIRECT:
        return DirectExchange(name, durable, auto_delete, internal, arguments)
    if type == FANOUT:
        return FanoutExchange(name, durable, auto_delete, internal, arguments)
    if type == TOPIC:
        return TopicExchange(name, durable, auto_delete, internal, arguments)
    if type == HEADERS:
        return HeadersExchange(name, durable, auto_delete, internal, arguments)
    if type == DELAYED:
        return DelayedExchange(name, durable, auto_delete, internal, arguments)
    if type == LOCAL_RANDOM:
        return LocalRandomExchange(name, durable, auto_delete, internal, arguments)
    return HashExchange(name, durable, auto_delete, internal, arguments)
