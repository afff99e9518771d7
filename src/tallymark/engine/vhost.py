"""A virtual host: its exchanges, queues, bindings and policies, their rules, and routing over them.

Every command checks everything before it changes anything. Changes of objects that survive a
restart (policies, durable exchanges, durable queues that are not exclusive, bindings between these)
leave one DEFINITION record each, see definitions.py. Replaying these records, or a snapshot,
rebuilds the virtual host's topology (topology.py).

Texts and rules are those of RabbitMQ 3.10 where the specification leaves a choice: unbinding what
is not bound and deleting an exchange that is not there succeed; exclusive queues are never durable;
line breaks are taken out of declared names. Names are otherwise not restricted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tallymark.engine import definitions
from tallymark.engine.arguments import (
    QUEUE_ARGUMENTS,
    check_lasting,
    check_queue_arguments,
    check_server_named,
    may_take_default_type,
)
from tallymark.engine.clock import Clock
from tallymark.engine.equivalence import check_same_arguments, check_same_flag
from tallymark.engine.errors import (
    AccessRefused,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)
from tallymark.engine.exchange import (
    Binding,
    Exchange,
    check_exchange_arguments,
    check_same_exchange,
    check_type,
    make_exchange,
)
from tallymark.engine.ledger import Ledger, definition_record
from tallymark.engine.names import check_new_name, cleaned, free_name, named
from tallymark.engine.policies import Policy, check_definition
from tallymark.engine.queue import Queue
from tallymark.engine.topology import Targets, Topology

LARGEST_DESCRIPTION: Final = 4096
"""Maximum number of bytes in a description."""
MOST_TAGS: Final = 64
LONGEST_TAG: Final = 255
"""Maximum number of bytes in a tag."""


def check_description(description: str, tags: tuple[str, ...]) -> None:
    """Check that a virtual host's description and tags are of a size to be kept. Raises:
    PreconditionFailed."""
    size = len(description.encode("utf-8", "surrogatepass"))
    if size > LARGEST_DESCRIPTION:
        raise PreconditionFailed(
            f"description of {size} bytes, expected {LARGEST_DESCRIPTION} at most"
        )
    if len(tags) > MOST_TAGS:
        raise PreconditionFailed(f"{len(tags)} tags, expected {MOST_TAGS} at most")
    for tag in tags:
        size = len(tag.encode("utf-8", "surrogatepass"))
        if size > LONGEST_TAG:
            raise PreconditionFailed(f"tag of {size} bytes, expected {LONGEST_TAG} at most")


@final
class VirtualHost:
    """A virtual host (see the module's docstring). Not for use by two threads."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        ledger: Ledger,
        next_queue_id: Callable[[], int],
    ) -> None:
        self.name = name
        self.ledger = ledger
        """Ledger to which definitions are emitted."""
        self.next_queue_id = next_queue_id
        self.clock = clock
        self.name_seed = b""
        """Random bytes, set by the owner at start, that make server-given names unguessable."""
        self.topology = Topology(name)
        self.exchanges = self.topology.exchanges
        self.queues = self.topology.queues
        self.policy_table = self.topology.policies
        self.policies = self.policy_table.user
        """Policies by name; changed by set_policy and delete_policy only."""
        self.operator_policies = self.policy_table.operator
        self.updated_queues: list[Queue] = []
        """Queues whose settings were changed by a policy. Registry attends to them and clears the
        list."""
        self.followers: list[Callable[[Queue], None]] = []
        """Callbacks called at once with each queue that was bound, unbound, paused or resumed by a
        command of its own. The list is Registry's, the same for all virtual hosts."""
        self.exchange_followers: list[Callable[[str, Exchange], None]] = []
        """Callbacks called at once with each exchange that is declared, and its virtual host's
        name. The list is Registry's."""

    @property
    def generation(self) -> int:
        """Number that grows with every change of declarations, bindings and policies. Cached routes
        are valid for one generation."""
        return self.topology.generation

    # -- routing

    def route(self, exchange: str, keys: list[str], headers: dict[str, object] | None) -> Targets:
        """Return the queues that a message published to an exchange reaches.

        keys: the routing key first, then what CC and BCC add. headers: needed only when
        needs_headers(exchange); with the properties of exchange.property_key.
        Raises: NotFound, AccessRefused (internal exchange).
        """
        return self.route_from(self.published_to(exchange), keys, headers)

    def published_to(self, name: str) -> Exchange:
        """Return an exchange that a client publishes to. Raises: NotFound, AccessRefused (an
        internal exchange)."""
        found = self.exchange(name)
        if found.internal:
            raise AccessRefused(f"cannot publish to internal {self._exchange_text(name)}")
        return found

    def route_from(
        self, source: Exchange, keys: list[str], headers: dict[str, object] | None
    ) -> Targets:
        """Route as `route` does, from an exchange that may be internal. Dead letters may go to
        such."""
        return self.topology.router.route(source, keys, headers)

    def needs_headers(self, exchange: str) -> bool:
        """Return whether routing from this exchange may look at headers or properties.

        Raises: NotFound.
        """
        return self.topology.router.needs_headers(self.exchange(exchange))

    def routes_singly(self, exchange: str) -> bool:
        """Return whether each message published to this exchange must be routed by itself, though
        others may be equal. needs_headers is true then, too.

        Raises: NotFound.
        """
        return self.topology.router.routes_singly(self.exchange(exchange))

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
        self.topology.add_exchange(exchange)
        if durable:
            self._record(definitions.of_exchange(self.name, exchange))
        for follower in self.exchange_followers:
            follower(self.name, exchange)
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

    def _delete_exchanges(self, doomed: list[Exchange]) -> None:
        """Delete exchanges, and then those auto-delete exchanges that lose their last binding by
        it."""
        while doomed:
            exchange = doomed.pop()
            if self.exchanges.get(exchange.name) is not exchange:
                continue
            sources = self.topology.remove_exchange(exchange)
            if exchange.durable:
                self._record(definitions.of_exchange_deletion(self.name, exchange))
            doomed.extend([source for source in sources if _is_orphan(source)])

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
        check_server_named(name, arguments)
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
        self.topology.add_queue(queue)
        if lasting:
            self.ledger.emit(definition_record(definitions.of_queue(self.name, queue)))
        return queue

    def with_type(
        self,
        name: str,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: dict[str, object],
        default: str = "",
    ) -> dict[str, object]:
        """Return the arguments of a declaration, with the queue type added that a policy or the
        virtual host sets as the default [rabbitmq default_queue_type]. default: the virtual host's,
        if that is to be another one.

        While there is such a default, a queue that is there fits whatever its type is.
        """
        if not may_take_default_type(name, durable, exclusive, auto_delete, arguments):
            return arguments
        type: object = self.policy_table.default_type(name) or (
            default or self.topology.default_queue_type
        )
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
        account = queue.account
        held = account.ready + account.deferred + account.pending + account.quarantined
        if if_empty and held > 0:
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
            self._record(definitions.of_pause(self.name, queue))
        self._tell(queue)

    def expire_queue(self, queue: Queue) -> None:
        """Delete a queue that was unused for the time of x-expires, and record it."""
        self._delete_queue(queue)

    def queues_of(self, owner: int) -> list[Queue]:
        """Return the exclusive queues of a connection, to be deleted when it ends. O(queues)."""
        return [queue for queue in self.queues.values() if queue.exclusive_owner == owner]

    def _delete_queue(self, queue: Queue) -> None:
        sources = self.topology.remove_queue(queue)
        if queue.durable:
            self._record(definitions.of_queue_deletion(self.name, queue))
        self._delete_exchanges([source for source in sources if _is_orphan(source)])

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
        binding = self.topology.find_binding(exchange, "queue", queue, key, arguments)
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
        binding = self.topology.find_binding(source, "exchange", destination, key, arguments)
        if binding is not None:
            self._unbind(binding)

    def _bind(self, binding: Binding) -> None:
        if self.topology.add_binding(binding) and binding.durable:
            self._record(definitions.of_binding(definitions.BINDING, self.name, binding))
        self._tell(binding.queue)

    def _unbind(self, binding: Binding) -> None:
        self.topology.remove_binding(binding)
        if binding.durable:
            self._record(definitions.of_binding(definitions.UNBIND, self.name, binding))
        self._tell(binding.queue)
        if _is_orphan(binding.source):
            self._delete_exchanges([binding.source])

    def _tell(self, queue: Queue | None) -> None:
        if queue is not None:
            for follower in self.followers:
                follower(queue)

    # -- policies

    def set_policy(self, policy: Policy, operator: bool) -> None:
        """Set the policy of this name, effective at once; see `updated_queues`. An equal policy
        changes nothing and leaves no record.

        Raises: PreconditionFailed (its definition); then what was there stays.
        """
        check_definition(policy.definition, operator)
        definition = definitions.of_policy(self.name, policy, operator)
        changed = self.policy_table.put(policy, operator)
        if changed:
            self._record(definition)
            self._policies_changed(changed)

    def delete_policy(self, name: str, operator: bool) -> None:
        """Delete a policy, effective at once. Raises NotFound."""
        table = self.policy_table.table(operator)
        if name not in table:
            raise NotFound(
                f"no {named('operator policy' if operator else 'policy', name, self.name)}"
            )
        gone = table.pop(name)
        self._record(definitions.of_policy_deletion(self.name, name, operator))
        self._policies_changed([gone])

    def _policies_changed(self, changed: list[Policy]) -> None:
        self.updated_queues.extend(self.policy_table.update(changed))
        self.topology.changed()

    # -- rules

    def check_deletable(self) -> None:
        """Raises PreconditionFailed: the virtual host is protected from deletion."""
        if self.topology.is_protected:
            raise PreconditionFailed(
                f"refusing to delete vhost '{self.name}': it is protected from deletion"
            )

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

    def _record(self, definition: dict[str, object]) -> None:
        self.ledger.emit(definition_record(definitions.encode(definition)))


def _is_orphan(exchange: Exchange) -> bool:
    """Return whether an auto-delete exchange is no longer the source of any binding."""
    return exchange.auto_delete and not exchange.bindings
