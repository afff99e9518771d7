"""A virtual host: its exchanges, queues, bindings and policies, their rules, and routing over them.

Every command checks everything before it changes anything. Changes of objects that survive a
restart (policies, durable exchanges, durable queues that are not exclusive, bindings between these)
leave one DEFINITION record each, see definitions.py. Replaying these records, or a snapshot,
rebuilds the virtual host.

Texts and rules are those of RabbitMQ 3.10 where the specification leaves a choice: unbinding what
is not bound and deleting an exchange that is not there succeed; exclusive queues are never durable;
line breaks are taken out of declared names. Names are otherwise not restricted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tallymark.engine import definitions, rebuild
from tallymark.engine.arguments import (
    QUEUE_ARGUMENTS,
    check_lasting,
    check_named,
    check_new_name,
    check_queue_arguments,
    check_same_arguments,
    check_same_flag,
    cleaned,
    free_name,
    named,
)
from tallymark.engine.clock import Clock
from tallymark.engine.errors import (
    AccessRefused,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)
from tallymark.engine.exchange import (
    DIRECT,
    FANOUT,
    HEADERS,
    TOPIC,
    Binding,
    Exchange,
    check_exchange_arguments,
    check_same_exchange,
    check_type,
    identity_of,
    make_exchange,
)
from tallymark.engine.ledger import Ledger, definition_record
from tallymark.engine.policies import Policy, check_definition
from tallymark.engine.policy_table import PolicyTable
from tallymark.engine.queue import Queue
from tallymark.engine.rebuild import binding_from, durable_definitions, exchange_from, queue_from
from tallymark.engine.routing import Router, Targets

__all__ = ["PREDECLARED", "Targets", "VirtualHost"]

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
class VirtualHost:
    """A virtual host (see the module's docstring). Not for use by two threads."""

    __slots__ = (
        "_policies",
        "_router",
        "clock",
        "default_queue_type",
        "exchanges",
        "generation",
        "inbound",
        "name",
        "name_seed",
        "next_queue_id",
        "operator_policies",
        "policies",
        "queues",
        "ledger",
        "resettled",
    )

    def __init__(
        self,
        name: str,
        clock: Clock,
        ledger: Ledger,
        next_queue_id: Callable[[], int],
    ) -> None:
        self.name = name
        self.ledger = ledger
        """List to which definitions are appended. The reader must clear this list or set another
        one."""
        self.next_queue_id = next_queue_id
        self.clock = clock
        self.name_seed = b""
        """Random bytes, set by the owner at start, that make server-given names unguessable."""
        self.default_queue_type = ""
        """Type of queues whose declaration names none; "": classic. Changed by the Broker only."""
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.inbound: dict[int, dict[Binding, None]] = {}
        """Bindings by the id of their destination queue."""
        self.generation = 1
        """Number that grows with every change of declarations, bindings and policies. Cached routes
        are valid for one generation."""
        self._router = Router(self.exchanges, self.queues)
        self._policies = PolicyTable(self.exchanges, self.queues)
        self.policies = self._policies.user
        """Policies by name; changed by set_policy and delete_policy only."""
        self.operator_policies = self._policies.operator
        self.resettled: list[Queue] = []
        """Queues whose settings were changed by a policy. The Broker attends to them and clears the
        list."""
        for predeclared, type, internal in PREDECLARED:
            exchange = make_exchange(predeclared, type, True, False, internal, {})
            self.exchanges[predeclared] = exchange

    # -- routing

    def route(self, exchange: str, keys: list[str], headers: dict[str, object] | None) -> Targets:
        """Return the queues that a message published to an exchange reaches.

        keys: the routing key first, then what CC and BCC add. headers: needed only when
        needs_headers(exchange); with the properties of exchange.property_key.
        Raises: NotFound, AccessRefused (internal exchange).
        """
        source = self.exchange(exchange)
        if source.internal:
            raise AccessRefused(f"cannot publish to internal {self._exchange_text(exchange)}")
        return self.route_from(source, keys, headers)

    def route_from(
        self, source: Exchange, keys: list[str], headers: dict[str, object] | None
    ) -> Targets:
        """Route as `route` does, from an exchange that may be internal. Dead letters may go to
        such."""
        return self._router.route(source, keys, headers)

    def needs_headers(self, exchange: str) -> bool:
        """Return whether routing from this exchange may look at headers or properties.

        Raises: NotFound.
        """
        return self._router.needs_headers(self.exchange(exchange))

    def routes_singly(self, exchange: str) -> bool:
        """Return whether each message published to this exchange must be routed by itself, though
        others may be equal. needs_headers is true then, too.

        Raises: NotFound.
        """
        return self._router.routes_singly(self.exchange(exchange))

    def routes_changed(self) -> None:
        """Invalidate cached routes after a change of queue state that they contain."""
        self._changed()

    def _changed(self) -> None:
        self.generation += 1
        self._router.changed()

    # -- exchanges

    def exchange(self, name: str) -> Exchange:
        """Return the exchange. Raises NotFound."""
        found = self.exchanges.get(name)
        if found is None:
            raise NotFound(f"no {self._exchange_text(name)}")
        return found

    def declare_exchange(
        self,
        name: str,
        type: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, object],
        passive: bool,
    ) -> Exchange:
        """Declare an exchange, or find it with the same properties; passive only checks that it
        exists.

        Raises: InvalidCommand (unknown type, bad name), AccessRefused (default exchange, reserved
        name), NotFound (passive), PreconditionFailed (other properties, bad arguments).
        """
        if not passive:
            check_type(type)
        name = cleaned(name)
        self._refuse_default(name)
        if passive:
            return self.exchange(name)
        current = self.exchanges.get(name)
        if current is not None:
            check_same_exchange(self.name, current, type, durable, auto_delete, internal, arguments)
            return current
        check_new_name("exchange", name)
        check_exchange_arguments(self._exchange_text(name), type, arguments)
        exchange = make_exchange(name, type, durable, auto_delete, internal, arguments)
        self._enter_exchange(exchange)
        if durable:
            self._record(rebuild.of_exchange(self.name, exchange))
        return exchange

    def delete_exchange(self, name: str, if_unused: bool) -> None:
        """Delete an exchange and its bindings; does nothing if it does not exist.

        Raises: AccessRefused (default or predeclared), PreconditionFailed (if_unused and it is the
        source of a binding).
        """
        name = cleaned(name)
        self._refuse_default(name)
        if name.startswith("amq."):
            raise AccessRefused(f"deletion of system {self._exchange_text(name)} not allowed")
        exchange = self.exchanges.get(name)
        if exchange is None:
            return
        if if_unused and exchange.bindings:
            raise PreconditionFailed(f"{self._exchange_text(name)} in use")
        self._delete_exchanges([exchange])

    def _enter_exchange(self, exchange: Exchange) -> None:
        self.exchanges[exchange.name] = exchange
        self._policies.settle_exchange(exchange)
        self._changed()

    def _delete_exchanges(self, doomed: list[Exchange]) -> None:
        """Delete exchanges, and then those auto-delete exchanges that lose their last binding by
        it."""
        while doomed:
            exchange = doomed.pop()
            if self.exchanges.get(exchange.name) is not exchange:
                continue
            sources = self._forget_exchange(exchange)
            if exchange.durable:
                self._record(rebuild.of_exchange_deletion(self.name, exchange))
            doomed.extend([source for source in sources if _is_orphan(source)])

    def _forget_exchange(self, exchange: Exchange) -> list[Exchange]:
        """Remove an exchange and its bindings; return the exchanges that were bound to it."""
        for binding in list(exchange.bindings.values()):
            self._detach(binding)
        inbound = list(exchange.inbound)
        for binding in inbound:
            self._detach(binding)
        del self.exchanges[exchange.name]
        self._changed()
        return [binding.source for binding in inbound]

    # -- queues

    def queue(self, name: str, owner: int) -> Queue:
        """Return the queue, for use by the connection `owner`. Raises: NotFound, ResourceLocked."""
        found = self.queues.get(name)
        if found is None:
            raise NotFound(f"no {self._queue_text(name)}")
        self._check_owner(found, owner)
        return found

    def declare_queue(
        self,
        name: str,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: dict[str, object],
        owner: int,
        passive: bool,
    ) -> Queue:
        """Declare a queue, or find it with the same properties; passive only checks that it exists.

        owner: id of the declaring connection (above 0), which owns the queue if it is exclusive. An
        exclusive queue is never durable. An empty name asks for a free one.
        Raises: AccessRefused (reserved name), InvalidCommand (bad name), NotFound (passive),
        ResourceLocked (another connection's, or declared with another `exclusive`),
        PreconditionFailed (other properties, bad arguments).
        """
        name = cleaned(name)
        if passive:
            return self.queue(name, owner)
        lasting = durable and not exclusive
        current = self.queues.get(name)
        if current is not None:
            if current.exclusive_owner != (owner if exclusive else 0):
                raise self._locked(name)
            what = self._queue_text(name)
            check_same_flag("durable", what, lasting, current.durable)
            check_same_flag("auto_delete", what, auto_delete, current.auto_delete)
            check_same_arguments(QUEUE_ARGUMENTS, what, arguments, current.arguments)
            return current
        check_new_name("queue", name)
        what = self._queue_text(name)
        check_queue_arguments(what, arguments)
        check_named(name, arguments)
        check_lasting(what, arguments, durable, exclusive, auto_delete)
        id = self.next_queue_id()
        queue = Queue(
            id,
            name or free_name(id, self.name_seed, self.queues),
            self.name,
            lasting,
            owner if exclusive else 0,
            auto_delete,
            arguments,
        )
        self._enter_queue(queue)
        if lasting:
            self._record(rebuild.of_queue(self.name, queue))
        return queue

    def with_type(
        self,
        name: str,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: dict[str, object],
    ) -> dict[str, object]:
        """Return the arguments of a client's declaration, with the queue type added that a policy
        or the virtual host sets as the default [rabbitmq default_queue_type]. Queues that are not
        lasting, and queues named by the broker, are always classic.

        While there is such a default, a queue that is there fits whatever its type is.
        """
        if "x-queue-type" in arguments or not name or not durable or exclusive or auto_delete:
            return arguments
        type: object = self._policies.default_type(name) or self.default_queue_type
        current = self.queues.get(cleaned(name))
        if type and current is not None:
            type = current.arguments.get("x-queue-type")
        return {**arguments, "x-queue-type": type} if type else arguments

    def delete_queue(self, name: str, if_unused: bool, if_empty: bool, owner: int) -> Queue:
        """Delete a queue and its bindings and return it.

        What is in it, and its consumers, are the caller's to deal with.
        Raises: NotFound, ResourceLocked, PreconditionFailed (if_empty, if_unused do not hold).
        """
        name = cleaned(name)
        queue = self.queue(name, owner)
        if if_empty and queue.ready + queue.deferred + queue.pending > 0:
            raise PreconditionFailed(f"{self._queue_text(name)} not empty")
        if if_unused and (queue.consumers or queue.subscriptions):
            raise PreconditionFailed(f"{self._queue_text(name)} in use")
        self._delete_queue(queue)
        return queue

    def queue_unused(self, queue: Queue) -> bool:
        """Delete an auto-delete queue whose last consumer has gone. Returns whether it was
        deleted."""
        if not queue.auto_delete or self.queues.get(queue.name) is not queue:
            return False
        self._delete_queue(queue)
        return True

    def pause_queue(self, queue: Queue, paused: bool) -> None:
        """Stop or resume deliveries from the queue [NQ-9]."""
        queue.paused = paused
        if queue.durable:
            self._record(rebuild.of_pause(self.name, queue))

    def expire_queue(self, queue: Queue) -> None:
        """Delete a queue that was unused for the time of x-expires, and record it."""
        self._delete_queue(queue)

    def queues_of(self, owner: int) -> list[Queue]:
        """Return the exclusive queues of a connection, to be deleted when it ends. O(queues)."""
        return [queue for queue in self.queues.values() if queue.exclusive_owner == owner]

    def _enter_queue(self, queue: Queue) -> None:
        self.queues[queue.name] = queue
        self._policies.settle_queue(queue)
        self._changed()

    def _delete_queue(self, queue: Queue) -> None:
        sources = self._forget_queue(queue)
        if queue.durable:
            self._record(rebuild.of_queue_deletion(self.name, queue))
        self._delete_exchanges([source for source in sources if _is_orphan(source)])

    def _forget_queue(self, queue: Queue) -> list[Exchange]:
        """Remove a queue and its bindings; return the exchanges that were bound to it."""
        inbound = list(self.inbound.get(queue.id, ()))
        for binding in inbound:
            self._detach(binding)
        del self.queues[queue.name]
        self._changed()
        return [binding.source for binding in inbound]

    # -- bindings

    def bind_queue(
        self, queue: str, exchange: str, key: str, arguments: dict[str, object], owner: int
    ) -> None:
        """Bind a queue to an exchange. A second equal binding changes nothing.

        Raises: AccessRefused (default exchange), NotFound, PreconditionFailed (key or arguments do
        not suit the exchange), ResourceLocked (another connection's queue).
        """
        self._refuse_default(exchange)
        source = self.exchange(exchange)
        found = self.queues.get(queue)
        if found is None:
            raise NotFound(f"no {self._queue_text(queue)}")
        source.check_binding(key, arguments, True)
        self._check_owner(found, owner)
        self._bind(Binding(source, found, None, key, arguments))

    def unbind_queue(
        self, queue: str, exchange: str, key: str, arguments: dict[str, object], owner: int
    ) -> None:
        """Remove a binding of a queue; does nothing if the binding, the queue or the exchange does
        not exist.

        Raises: AccessRefused (default exchange), ResourceLocked (another connection's queue).
        """
        self._refuse_default(exchange)
        binding = self._find_binding(exchange, "queue", queue, key, arguments)
        if binding is not None:
            if binding.queue is not None:
                self._check_owner(binding.queue, owner)
            self._unbind(binding)

    def bind_exchange(
        self, destination: str, source: str, key: str, arguments: dict[str, object]
    ) -> None:
        """Bind an exchange to another one, or harmlessly to itself. A second equal binding changes
        nothing.

        Raises: AccessRefused (default exchange), NotFound, PreconditionFailed.
        """
        self._refuse_default(destination)
        self._refuse_default(source)
        origin = self.exchange(source)
        target = self.exchange(destination)
        origin.check_binding(key, arguments, False)
        self._bind(Binding(origin, None, target, key, arguments))

    def unbind_exchange(
        self, destination: str, source: str, key: str, arguments: dict[str, object]
    ) -> None:
        """Remove a binding of an exchange; does nothing if the binding or an exchange does not
        exist.

        Raises: AccessRefused (default exchange).
        """
        self._refuse_default(destination)
        self._refuse_default(source)
        binding = self._find_binding(source, "exchange", destination, key, arguments)
        if binding is not None:
            self._unbind(binding)

    def bindings(self) -> list[Binding]:
        """Return all bindings, without the implied ones of the default exchange."""
        found: list[Binding] = []
        for exchange in self.exchanges.values():
            found.extend(exchange.bindings.values())
        return found

    def _find_binding(
        self, source: str, kind: str, destination: str, key: str, arguments: dict[str, object]
    ) -> Binding | None:
        exchange = self.exchanges.get(source)
        if exchange is None:
            return None
        return exchange.bindings.get(identity_of(kind, destination, key, arguments))

    def _bind(self, binding: Binding) -> None:
        if binding.identity in binding.source.bindings:
            return
        self._attach(binding)
        if binding.durable:
            self._record(rebuild.of_binding(definitions.BINDING, self.name, binding))

    def _unbind(self, binding: Binding) -> None:
        self._detach(binding)
        if binding.durable:
            self._record(rebuild.of_binding(definitions.UNBIND, self.name, binding))
        self._changed()
        if _is_orphan(binding.source):
            self._delete_exchanges([binding.source])

    def _attach(self, binding: Binding) -> None:
        binding.source.add(binding)
        if binding.queue is not None:
            self.inbound.setdefault(binding.queue.id, {})[binding] = None
        elif binding.exchange is not None:
            binding.exchange.inbound[binding] = None
        self._changed()

    def _detach(self, binding: Binding) -> None:
        """Remove a binding from both its ends. The caller calls _changed."""
        binding.source.remove(binding)
        if binding.queue is not None:
            bound = self.inbound[binding.queue.id]
            del bound[binding]
            if not bound:
                del self.inbound[binding.queue.id]
        elif binding.exchange is not None:
            del binding.exchange.inbound[binding]

    # -- policies

    def set_policy(self, policy: Policy, operator: bool) -> None:
        """Set the policy of this name, effective at once; see `resettled`. An equal policy changes
        nothing and leaves no record.

        Raises: PreconditionFailed (its definition); then what was there stays.
        """
        check_definition(policy.definition, operator)
        definition = rebuild.of_policy(self.name, policy, operator)
        if self._policies.put(policy, operator):
            self._record(definition)
            self._policies_changed()

    def delete_policy(self, name: str, operator: bool) -> None:
        """Delete a policy, effective at once. Raises NotFound."""
        table = self._policies.table(operator)
        if name not in table:
            raise NotFound(
                f"no {named('operator policy' if operator else 'policy', name, self.name)}"
            )
        del table[name]
        self._record(rebuild.of_policy_deletion(self.name, name, operator))
        self._policies_changed()

    def policy_of(self, queue: Queue) -> Policy | None:
        """Return the policy in effect for a queue. O(policies)."""
        return self._policies.of_queue(queue, False)

    def operator_policy_of(self, queue: Queue) -> Policy | None:
        """Return the operator policy in effect for a queue. O(policies)."""
        return self._policies.of_queue(queue, True)

    def policy_of_exchange(self, exchange: Exchange) -> Policy | None:
        """Return the policy in effect for an exchange. O(policies)."""
        return self._policies.of_exchange(exchange)

    def creates_queue(self, name: str) -> bool:
        """Return whether a policy creates a queue of that name when an AMQP 1.0 client attaches to
        it. O(policies)."""
        return self._policies.creates(name)

    def policy_problems(self) -> list[tuple[str, str]]:
        """Return names and error texts of stored policies that fit nothing because their patterns
        are refused."""
        return self._policies.problems()

    def _policies_changed(self) -> None:
        self.resettled.extend(self._policies.settle_all())
        self._changed()

    # -- rules

    def _refuse_default(self, exchange: str) -> None:
        if exchange == "":
            raise AccessRefused("operation not permitted on the default exchange")

    def _check_owner(self, queue: Queue, owner: int) -> None:
        if queue.exclusive_owner not in (0, owner):
            raise self._locked(queue.name)

    def _locked(self, queue: str) -> ResourceLocked:
        return ResourceLocked(
            f"cannot obtain exclusive access to locked {self._queue_text(queue)}. It could be "
            "originally declared on another connection or the exclusive property value does not "
            "match that of the original declaration."
        )

    def _exchange_text(self, name: str) -> str:
        return named("exchange", name, self.name)

    def _queue_text(self, name: str) -> str:
        return named("queue", name, self.name)

    # -- definitions

    def definitions(self) -> list[bytes]:
        """Return everything that survives a restart, as definitions that rebuild it if applied in
        order to a new virtual host. The first one is the virtual host's own."""
        predeclared = [name for name, _, _ in PREDECLARED]
        made = [one for one in self.exchanges.values() if one.name not in predeclared]
        return [
            definitions.vhost_definition(self.name, self.default_queue_type),
            *self._policies.definitions(self.name),
            *durable_definitions(self.name, made, self.queues.values(), self.bindings()),
        ]

    def apply_definition(self, blob: bytes) -> None:
        """Apply a recorded change without recording it again.

        A change has no consequences of its own here: these have records of their own. A change is
        ignored if its object exists already, or depends on one that does not exist, which happens
        only after damage to the journal was accepted.
        Raises: ValueError, InvalidCommand (exchange type) when it cannot be decoded.
        """
        definition = definitions.decode(blob)
        op = definitions.text_of(definition, "op")
        if op == definitions.EXCHANGE:
            self._apply_exchange(definition)
        elif op == definitions.QUEUE:
            self._apply_queue(definition)
        elif op == definitions.BINDING:
            self._apply_binding(definition)
        elif op == definitions.UNBIND:
            bound = self._described_binding(definition)
            if bound is not None:
                self._detach(bound)
                self._changed()
        elif op == definitions.DELETE_EXCHANGE:
            exchange = self.exchanges.get(definitions.text_of(definition, "name"))
            if exchange is not None:
                self._forget_exchange(exchange)
        elif op == definitions.PAUSE_QUEUE:
            paused = self.queues.get(definitions.text_of(definition, "name"))
            if paused is not None and paused.id == definitions.id_of(definition):
                paused.paused = definitions.flag_of(definition, "paused")
        elif op == definitions.DELETE_QUEUE:
            queue = self.queues.get(definitions.text_of(definition, "name"))
            if queue is not None and queue.id == definitions.id_of(definition):
                self._forget_queue(queue)
        elif op in definitions.POLICY_OPS:
            self._policies.apply(definition)
            self._changed()
        elif op == definitions.VHOST:
            self.default_queue_type = definitions.words_of(definition, "default_queue_type")
        elif op != definitions.DELETE_VHOST:
            raise ValueError(f"definition op {op!r}: written by a newer version?")

    def _apply_exchange(self, definition: dict[str, object]) -> None:
        exchange = exchange_from(definition)
        if exchange.name not in self.exchanges:
            self._enter_exchange(exchange)

    def _apply_queue(self, definition: dict[str, object]) -> None:
        if definitions.text_of(definition, "name") not in self.queues:
            self._enter_queue(queue_from(definition))

    def _apply_binding(self, definition: dict[str, object]) -> None:
        binding = binding_from(definition, self.exchanges, self.queues)
        if binding is not None and binding.identity not in binding.source.bindings:
            self._attach(binding)

    def _described_binding(self, definition: dict[str, object]) -> Binding | None:
        return self._find_binding(
            definitions.text_of(definition, "source"),
            definitions.text_of(definition, "kind"),
            definitions.text_of(definition, "destination"),
            definitions.text_of(definition, "key"),
            definitions.arguments_of(definition),
        )

    def _record(self, definition: dict[str, object]) -> None:
        self.ledger.emit(definition_record(definitions.encode(definition)))


def _is_orphan(exchange: Exchange) -> bool:
    """Return whether an auto-delete exchange is no longer the source of any binding."""
    return exchange.auto_delete and not exchange.bindings
