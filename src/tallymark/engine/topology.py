"""Topology: the exchanges, queues and bindings of one virtual host, the settings that policies give
them, and the routes over them.

A change here is only made: whether it is allowed, and the record of it, are the virtual host's
(vhost.py). So the definitions in a journal are applied here as they are. Whatever changes a policy,
or enters a queue or exchange, asks for the settings to be put together again; nothing else ever
replaces `queue.settings` or `exchange.alternate`.

A message visits every exchange once, so circles of bindings end; every queue gets a message once,
however many ways lead to it. An alternate exchange is taken where an exchange has no matching
binding at all, as RabbitMQ does: a match that leads to another exchange counts, even if nothing is
bound there.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.engine import definitions
from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.exchange import (
    ALTERNATE,
    DIRECT,
    FANOUT,
    HEADERS,
    TOPIC,
    Binding,
    Exchange,
    Matches,
    identity_of,
    make_exchange,
)
from tallymark.engine.policies import (
    ALTERNATE_EXCHANGE,
    AUTO_CREATE,
    CLASSIC_QUEUES,
    DEFAULT_TYPE,
    EXCHANGES,
    QUEUES,
    QUORUM_QUEUES,
    STREAMS,
    Policy,
    in_effect,
    merged,
)
from tallymark.engine.queue import Queue
from tallymark.engine.settings import Settings
from tallymark.engine.table_json import canonical

MAX_TARGETS: Final = 16_384
"""Maximum number of queue sets remembered per generation."""
BY_HEADERS: Final = 1
SINGLY: Final = 2
PREDECLARED: Final = (
    ("", DIRECT, False),
    ("amq.direct", DIRECT, False),
    ("amq.fanout", FANOUT, False),
    ("amq.headers", HEADERS, False),
    ("amq.match", HEADERS, False),
    ("amq.rabbitmq.trace", TOPIC, True),
    ("amq.topic", TOPIC, False),
)
"""Name, type, internal: exchanges that every virtual host has from the start; durable, never
deleted."""


def kind_of(queue: Queue) -> str:
    """Return what kind of thing a queue is to policies."""
    if queue.settings.is_stream:
        return STREAMS
    return QUORUM_QUEUES if queue.settings.is_quorum else CLASSIC_QUEUES


@final
class PolicyTable:
    """Applies policies to the queues and exchanges of a virtual host, which owns their tables."""

    def __init__(self, exchanges: dict[str, Exchange], queues: dict[str, Queue]) -> None:
        self._exchanges = exchanges
        self._queues = queues
        self.user: dict[str, Policy] = {}
        """Policies by name."""
        self.operator: dict[str, Policy] = {}
        """Operator policies by name."""

    def table(self, operator: bool) -> dict[str, Policy]:
        return self.operator if operator else self.user

    def put(self, policy: Policy, operator: bool) -> list[Policy]:
        """Set a policy under its name; return what changed by it: the policy, and the one that it
        replaces. Nothing does if that is equal."""
        table = self.table(operator)
        current = table.get(policy.name)
        if current is not None and canonical(current.value()) == canonical(policy.value()):
            return []
        table[policy.name] = policy
        return [policy] if current is None else [current, policy]

    def of_queue(self, queue: Queue, operator: bool) -> Policy | None:
        """Return the policy in effect for a queue."""
        return in_effect(self.table(operator), kind_of(queue), queue.name)

    def of_exchange(self, exchange: Exchange) -> Policy | None:
        """Return the policy in effect for an exchange. Operator policies do not apply to
        exchanges."""
        return in_effect(self.user, EXCHANGES, exchange.name)

    def default_type(self, name: str) -> str:
        """Return the type that policies set for a future queue whose declaration names none; "":
        none."""
        policy = in_effect(self.user, QUEUES, name)
        found = None if policy is None else policy.definition.get(DEFAULT_TYPE)
        return found if isinstance(found, str) else ""

    def creates(self, name: str) -> bool:
        """Return whether a policy creates a queue of that name when a client wants to use it."""
        policy = in_effect(self.user, CLASSIC_QUEUES, name)
        return policy is not None and policy.definition.get(AUTO_CREATE) is True

    def update_queue(self, queue: Queue) -> bool:
        """Recompute a queue's settings and apply them; False if they do not change."""
        given = merged(self.of_queue(queue, False), self.of_queue(queue, True))
        if not given and not queue.settings.is_of_policy:
            return False
        settings = Settings(queue.arguments, given)
        if settings.same(queue.settings):
            return False
        queue.follow(settings)
        return True

    def update_exchange(self, exchange: Exchange) -> None:
        """Recompute the alternate exchange, for messages without a route. The argument overrides
        policies."""
        alternate = exchange.arguments.get(ALTERNATE)
        if alternate is None:
            policy = self.of_exchange(exchange)
            if policy is not None:
                alternate = policy.definition.get(ALTERNATE_EXCHANGE)
        exchange.alternate = alternate if isinstance(alternate, str) else None

    def update(self, changed: list[Policy]) -> list[Queue]:
        """Recompute the settings of what one of these policies fits, which came, went, or replaced
        each other: nothing else can have changed. Returns the queues whose settings changed.

        O(queues + queues that one fits x policies): definitions bring hundreds of policies.
        """
        for exchange in self._exchanges.values():
            if any(policy.fits(EXCHANGES, exchange.name) for policy in changed):
                self.update_exchange(exchange)
        found = []
        for queue in self._queues.values():
            kind = kind_of(queue)
            fits = any(policy.fits(kind, queue.name) for policy in changed)
            if fits and self.update_queue(queue):
                found.append(queue)
        return found

    def problems(self) -> list[tuple[str, str]]:
        """Return names and error texts of policies that fit nothing because their patterns are
        refused."""
        return [
            (policy.name, policy.problem)
            for operator in (False, True)
            for policy in self.table(operator).values()
            if policy.problem
        ]

    def definitions(self, vhost: str) -> list[bytes]:
        """Return all policies as definitions."""
        found = []
        for operator in (False, True):
            for policy in self.table(operator).values():
                found.append(definitions.encode(definitions.of_policy(vhost, policy, operator)))
        return found

    def apply(self, definition: dict[str, object]) -> None:
        """Apply a recorded change of a policy. Raises ValueError if it cannot be decoded."""
        op = definitions.text_of(definition, "op")
        name = definitions.text_of(definition, "name")
        if op in (definitions.DELETE_POLICY, definitions.DELETE_OPERATOR_POLICY):
            gone = self.table(op == definitions.DELETE_OPERATOR_POLICY).pop(name, None)
            changed = [] if gone is None else [gone]
        else:
            try:
                policy = Policy(
                    name,
                    definitions.text_of(definition, "pattern"),
                    definitions.table_of(definition, "definition"),
                    definitions.number_of(definition, "priority"),
                    definitions.text_of(definition, "apply_to"),
                    was_stored=True,
                )
            except PreconditionFailed as error:
                raise ValueError(
                    f"policy {name!r}: {error}: written by a newer version?"
                ) from error
            changed = self.put(policy, op == definitions.OPERATOR_POLICY)
        self.update(changed)


@final
class Targets:
    """The result of routing: a set of queues, in order of their ids.

    Shared: while the virtual host's generation holds, routing to the same set of queues gives this
    same object (unless more than MAX_TARGETS sets are in use, when it may be another, equal one).
    """

    def __init__(self, queues: list[Queue]) -> None:
        self.queues = queues
        self.durable = False
        """True if any of the queues is durable."""
        self.guarded = False
        """True if one of the queues may refuse or drop a message. Publishes must then go in order,
        so that the right publisher is told."""
        self.holding = False
        """True if publishers to one of the queues are to be held back [SC-D7]."""
        self.plain = True
        """True if messages only have to be appended to each queue."""
        for queue in queues:
            settings = queue.settings
            if queue.durable:
                self.durable = True
            if settings.guarded:
                self.guarded = True
            if queue.holds_publishers:
                self.holding = True
                self.plain = False
            if settings.is_stream:
                self.durable = True
                self.plain = False
            if settings.guarded or settings.max_priority > 0 or settings.max_bytes >= 0:
                self.plain = False


@final
class Router:
    """Routes over the tables of a virtual host, which it only reads.

    `changed` must be called after every change of those tables.
    """

    def __init__(self, exchanges: dict[str, Exchange], queues: dict[str, Queue]) -> None:
        self._exchanges = exchanges
        self._queues = queues
        self._nowhere = Targets([])
        self._by_id: dict[int, Targets] = {}
        self._by_set: dict[frozenset[int], Targets] = {}
        self._needs: dict[str, int] = {}
        """Needs of routing from an exchange, by its name: BY_HEADERS, SINGLY."""

    def changed(self) -> None:
        """Forget all cached routes."""
        self._by_id.clear()
        self._by_set.clear()
        self._needs.clear()

    def route(
        self, source: Exchange, keys: list[str], headers: dict[str, object] | None
    ) -> Targets:
        """Return the queues that a message reaches from an exchange."""
        matches = Matches()
        self._collect(source, keys, headers, matches)
        if matches.exchanges:
            seen = {source.name}
            while matches.exchanges:
                reached = matches.exchanges.pop()
                if reached.name not in seen:
                    seen.add(reached.name)
                    self._collect(reached, keys, headers, matches)
        return self._targets(matches.queues)

    def needs_headers(self, source: Exchange) -> bool:
        """Return whether routing from this exchange may reach one that looks at headers, or that
        routes each message by itself."""
        return self._needed(source) != 0

    def routes_singly(self, source: Exchange) -> bool:
        """Return whether routing from this exchange may reach one that routes each message by
        itself."""
        return self._needed(source) & SINGLY != 0

    def _needed(self, source: Exchange) -> int:
        known = self._needs.get(source.name)
        if known is None:
            known = self._reached(source)
            self._needs[source.name] = known
        return known

    def _collect(
        self, source: Exchange, keys: list[str], headers: dict[str, object] | None, into: Matches
    ) -> None:
        """Collect one exchange's own matches, or those of its alternate exchange if it has none."""
        if source.name == "":
            for key in keys:
                queue = self._queues.get(key)
                if queue is not None:
                    into.queues[queue.id] = queue
            return
        before = into.count
        source.collect(keys, headers, into)
        if into.count == before and source.alternate is not None:
            alternate = self._exchanges.get(source.alternate)
            if alternate is not None:
                into.exchanges.append(alternate)

    def _targets(self, queues: dict[int, Queue]) -> Targets:
        if not queues:
            return self._nowhere
        if len(queues) == 1:
            return self._only(next(iter(queues.values())))
        ids = frozenset(queues)
        targets = self._by_set.get(ids)
        if targets is None:
            if len(self._by_set) >= MAX_TARGETS:
                self._by_set.clear()
            targets = Targets([queues[id] for id in sorted(ids)])
            self._by_set[ids] = targets
        return targets

    def _only(self, queue: Queue) -> Targets:
        """Return the set of a single queue, the common case. There are no more of these than
        queues."""
        targets = self._by_id.get(queue.id)
        if targets is None:
            targets = Targets([queue])
            self._by_id[queue.id] = targets
        return targets

    def _reached(self, source: Exchange) -> int:
        """Return the needs of all exchanges that messages may reach from this one."""
        needed = 0
        seen = {source.name}
        waiting = [source]
        while waiting:
            exchange = waiting.pop()
            if exchange.reads_headers:
                needed |= BY_HEADERS
            if exchange.routes_singly:
                needed |= SINGLY
            following = [binding.exchange for binding in exchange.onward]
            if exchange.alternate is not None:
                following.append(self._exchanges.get(exchange.alternate))
            for reached in following:
                if reached is not None and reached.name not in seen:
                    seen.add(reached.name)
                    waiting.append(reached)
        return needed


@final
class Topology:
    """The topology of one virtual host (see the module's docstring)."""

    def __init__(self, name: str) -> None:
        self.name = name
        """Name of the virtual host."""
        self.default_queue_type = ""
        """Type of queues whose declaration names none; "": classic. Changed by Registry only."""
        self.description = ""
        self.tags: tuple[str, ...] = ()
        """Words for people; as the description, without effect. Changed by Registry only."""
        self.is_protected = False
        """True if the virtual host may not be deleted. Changed by Registry only."""
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.inbound: dict[int, dict[Binding, None]] = {}
        """Bindings by the id of their destination queue."""
        self.generation = 1
        """Number that grows with every change of declarations, bindings and policies. Cached routes
        are valid for one generation."""
        self.router = Router(self.exchanges, self.queues)
        self.policies = PolicyTable(self.exchanges, self.queues)
        for predeclared, type, internal in PREDECLARED:
            exchange = make_exchange(predeclared, type, True, False, internal, {})
            self.exchanges[predeclared] = exchange

    def changed(self) -> None:
        """Invalidate cached routes, after a change made here or of a queue's state that they
        contain."""
        self.generation += 1
        self.router.changed()

    # -- exchanges and queues

    def add_exchange(self, exchange: Exchange) -> None:
        self.exchanges[exchange.name] = exchange
        self.policies.update_exchange(exchange)
        self.changed()

    def remove_exchange(self, exchange: Exchange) -> list[Exchange]:
        """Remove an exchange and its bindings; return the exchanges that were bound to it."""
        for binding in list(exchange.bindings.values()):
            self._detach(binding)
        inbound = list(exchange.inbound)
        for binding in inbound:
            self._detach(binding)
        del self.exchanges[exchange.name]
        self.changed()
        return [binding.source for binding in inbound]

    def add_queue(self, queue: Queue) -> None:
        self.queues[queue.name] = queue
        self.policies.update_queue(queue)
        self.changed()

    def remove_queue(self, queue: Queue) -> list[Exchange]:
        """Remove a queue and its bindings; return the exchanges that were bound to it."""
        inbound = list(self.inbound.get(queue.id, ()))
        for binding in inbound:
            self._detach(binding)
        del self.queues[queue.name]
        self.changed()
        return [binding.source for binding in inbound]

    # -- bindings

    def bindings(self) -> list[Binding]:
        """Return all bindings, without the implied ones of the default exchange."""
        found: list[Binding] = []
        for exchange in self.exchanges.values():
            found.extend(exchange.bindings.values())
        return found

    def bindings_to(self, queue: Queue) -> list[Binding]:
        """Return the bindings of a queue, without the implied one."""
        return list(self.inbound.get(queue.id, {}))

    def find_binding(
        self, source: str, kind: str, destination: str, key: str, arguments: dict[str, object]
    ) -> Binding | None:
        """Return the binding with these properties. kind: of the destination, queue or exchange."""
        exchange = self.exchanges.get(source)
        if exchange is None:
            return None
        return exchange.bindings.get(identity_of(kind, destination, key, arguments))

    def add_binding(self, binding: Binding) -> bool:
        """Add a binding; False: there is an equal one."""
        if binding.identity in binding.source.bindings:
            return False
        binding.source.add(binding)
        if binding.queue is not None:
            self.inbound.setdefault(binding.queue.id, {})[binding] = None
        elif binding.exchange is not None:
            binding.exchange.inbound[binding] = None
        self.changed()
        return True

    def remove_binding(self, binding: Binding) -> None:
        self._detach(binding)
        self.changed()

    def _detach(self, binding: Binding) -> None:
        """Remove a binding from both its ends. The caller calls `changed`."""
        binding.source.remove(binding)
        if binding.queue is not None:
            bound = self.inbound[binding.queue.id]
            del bound[binding]
            if not bound:
                del self.inbound[binding.queue.id]
        elif binding.exchange is not None:
            del binding.exchange.inbound[binding]

    # -- definitions

    def own_definition(self) -> bytes:
        """Return the virtual host's own definition."""
        return definitions.vhost_definition(
            self.name, self.default_queue_type, self.description, self.tags, self.is_protected
        )

    def definitions(self) -> list[bytes]:
        """Return everything that survives a restart, as definitions that rebuild it if applied in
        order to a new topology. The first one is the virtual host's own."""
        predeclared = [name for name, _, _ in PREDECLARED]
        encode = definitions.encode
        found = [
            encode(definitions.of_exchange(self.name, one))
            for one in self.exchanges.values()
            if one.durable and one.name not in predeclared
        ]
        for queue in self.queues.values():
            if queue.durable:
                found.append(definitions.of_queue(self.name, queue))
                if queue.paused:
                    found.append(encode(definitions.of_pause(self.name, queue)))
        found += [
            encode(definitions.of_binding(definitions.BINDING, self.name, one))
            for one in self.bindings()
            if one.durable
        ]
        return [self.own_definition(), *self.policies.definitions(self.name), *found]

    def apply(self, blob: bytes) -> None:
        """Apply a recorded change.

        A change has no consequences of its own here: these have records of their own. A change is
        ignored if its object exists already, or depends on one that does not exist, which happens
        only after damage to the journal was accepted.
        Raises: ValueError, InvalidCommand (exchange type) when it cannot be decoded.
        """
        definition = definitions.decode(blob)
        op = definitions.text_of(definition, "op")
        if op == definitions.EXCHANGE:
            exchange = definitions.exchange_from(definition)
            if exchange.name not in self.exchanges:
                self.add_exchange(exchange)
        elif op == definitions.QUEUE:
            if definitions.text_of(definition, "name") not in self.queues:
                self.add_queue(definitions.queue_from(definition))
        elif op == definitions.BINDING:
            binding = definitions.binding_from(definition, self.exchanges, self.queues)
            if binding is not None:
                self.add_binding(binding)
        elif op == definitions.UNBIND:
            bound = self._described_binding(definition)
            if bound is not None:
                self.remove_binding(bound)
        elif op == definitions.DELETE_EXCHANGE:
            gone = self.exchanges.get(definitions.text_of(definition, "name"))
            if gone is not None:
                self.remove_exchange(gone)
        elif op in (definitions.PAUSE_QUEUE, definitions.DELETE_QUEUE):
            queue = self.queues.get(definitions.text_of(definition, "name"))
            if queue is None or queue.id != definitions.id_of(definition):
                return
            if op == definitions.PAUSE_QUEUE:
                queue.paused = definitions.flag_of(definition, "paused")
            else:
                self.remove_queue(queue)
        elif op in definitions.POLICY_OPS:
            self.policies.apply(definition)
            self.changed()
        elif op == definitions.VHOST:
            self.default_queue_type = definitions.optional_text_of(definition, "default_queue_type")
            self.description = definitions.optional_text_of(definition, "description")
            self.tags = definitions.texts_of(definition, "tags")
            self.is_protected = definitions.flag_of(definition, "protected")
        elif op != definitions.DELETE_VHOST:
            raise ValueError(f"definition op {op!r}: written by a newer version?")

    def _described_binding(self, definition: dict[str, object]) -> Binding | None:
        return self.find_binding(
            definitions.text_of(definition, "source"),
            definitions.text_of(definition, "kind"),
            definitions.text_of(definition, "destination"),
            definitions.text_of(definition, "key"),
            definitions.arguments_of(definition),
        )
