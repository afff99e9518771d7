"""Topology: the exchanges, queues and bindings of one virtual host, the settings that policies give
them, and the routes over them.

A change here is only made: whether it is allowed, and the record of it, are the virtual host's
(vhost.py). So the definitions in a journal are applied here as they are.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.engine import definitions
from tallymark.engine.exchange import (
    DIRECT,
    FANOUT,
    HEADERS,
    TOPIC,
    Binding,
    Exchange,
    identity_of,
    make_exchange,
)
from tallymark.engine.policy_table import PolicyTable
from tallymark.engine.queue import Queue
from tallymark.engine.routing import Router

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


@final
class Topology:
    """The topology of one virtual host (see the module's docstring)."""

    def __init__(self, name: str) -> None:
        self.name = name
        """Name of the virtual host."""
        self.default_queue_type = ""
        """Type of queues whose declaration names none; "": classic. Changed by Registry only."""
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

    def definitions(self) -> list[bytes]:
        """Return everything that survives a restart, as definitions that rebuild it if applied in
        order to a new topology. The first one is the virtual host's own."""
        predeclared = [name for name, _, _ in PREDECLARED]
        found = [
            definitions.of_exchange(self.name, one)
            for one in self.exchanges.values()
            if one.durable and one.name not in predeclared
        ]
        for queue in self.queues.values():
            if queue.durable:
                found.append(definitions.of_queue(self.name, queue))
                if queue.paused:
                    found.append(definitions.of_pause(self.name, queue))
        found += [
            definitions.of_binding(definitions.BINDING, self.name, one)
            for one in self.bindings()
            if one.durable
        ]
        return [
            definitions.vhost_definition(self.name, self.default_queue_type),
            *self.policies.definitions(self.name),
            *[definitions.encode(one) for one in found],
        ]

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
