"""Declaring: the topology of a world, from the definitions of the ledger and the change."""

from __future__ import annotations

from typing import Final

from tallymark.engine import definitions
from tallymark.engine.arguments import STREAM, check_queue_arguments
from tallymark.engine.broker import Broker
from tallymark.engine.errors import BrokerError
from tallymark.engine.names import named
from tallymark.engine.policies import Policy
from tallymark.engine.queue import Queue
from tallymark.engine.session import NOBODY, Connection
from tallymark.engine.vhost import VirtualHost
from tallymark.whatif.changes import Change, ChangeRefused
from tallymark.whatif.fates import Fates, QueueName

TYPE: Final = "x-queue-type"
FIRST_NEW: Final = 1 << 24
"""Id below that of the first queue which only the change declares."""


class Declaring:
    """Applies definitions to a broker, and knows its queues by name."""

    def __init__(self, broker: Broker, fates: dict[QueueName, Fates], change: Change) -> None:
        self._broker = broker
        self._change = change
        self._fates = fates
        self._names: dict[int, QueueName] = {}
        self._ids: dict[QueueName, int] = {}
        self._declared: dict[tuple[str, str], int] = {}
        self._operator = Connection(NOBODY, "", "", "")
        broker.state.queue_ids.at_least(FIRST_NEW)
        broker.registry.observers.append(self._observe)

    def fates_of(self, queue: int) -> Fates:
        return self._fates[self._names[queue]]

    def name_of(self, queue: int) -> QueueName:
        return self._names[queue]

    def queue_of(self, name: QueueName) -> Queue | None:
        """Return the queue of that name, if it is there."""
        return self._broker.queues.get(self._ids.get(name, 0))

    def define(self, blob: bytes, now: int) -> None:
        """Apply one definition, as it was made on a running broker, and then the change again."""
        broker = self._broker
        said = definitions.decode(blob)
        op, name = said["op"], definitions.text_of(said, "vhost")
        vhost = broker.registry.add_vhost(name)
        self._operator.vhost = name
        if op == definitions.DELETE_VHOST:
            broker.registry.delete_vhost(name)
            return
        if op == definitions.QUEUE:
            self._declare(said, blob, now)
        elif op == definitions.DELETE_QUEUE:
            if definitions.text_of(said, "name") in vhost.queues:
                self._delete(vhost, definitions.text_of(said, "name"))
        elif op == definitions.DELETE_EXCHANGE:
            vhost.delete_exchange(definitions.text_of(said, "name"), False)
        elif op in definitions.POLICY_OPS:
            self._policy(said, vhost)
        elif op == definitions.PAUSE_QUEUE:
            queue = vhost.queues.get(definitions.text_of(said, "name"))
            if queue is not None:
                broker.registry.pause(queue, said["paused"] is True)
        elif op != definitions.VHOST:
            vhost.topology.apply(blob)
        self.follow(now)

    def _policy(self, said: dict[str, object], vhost: VirtualHost) -> None:
        registry = self._broker.registry
        op, name = said["op"], definitions.text_of(said, "name")
        operator = op in (definitions.OPERATOR_POLICY, definitions.DELETE_OPERATOR_POLICY)
        if op in (definitions.POLICY, definitions.OPERATOR_POLICY):
            policy = Policy(
                name, definitions.text_of(said, "pattern"),
                definitions.table_of(said, "definition"),
                definitions.number_of(said, "priority"), definitions.text_of(said, "apply_to"),
                was_stored=True,
            )  # fmt: skip
            registry.set_policy(vhost.name, policy, operator)
        elif name in vhost.policy_table.table(operator):
            registry.delete_policy(vhost.name, name, operator)

    def _declare(self, said: dict[str, object], blob: bytes, now: int) -> None:
        """Make a queue under the id that it had, unless it is there."""
        broker = self._broker
        vhost = broker.vhosts[definitions.text_of(said, "vhost")]
        id, name = definitions.id_of(said), definitions.text_of(said, "name")
        is_gone = now >= self._change.since_ms and self._change.is_removed(vhost.name, name)
        if id in broker.queues or is_gone:
            return
        vhost.topology.apply(blob)
        if not self._change.since_ms:
            self._replace(vhost, vhost.queues[name])
        queue = vhost.queues[name]
        if queue.id != id:
            return  # the change has declared one of that name
        broker.queues[id] = queue
        broker.registry.revive(queue)
        self._observe(queue, True)

    def _observe(self, queue: Queue, is_new: bool) -> None:
        """Give a new queue its name."""
        if not is_new:
            return
        place = queue.vhost, queue.name
        again = self._declared.get(place, -1) + 1
        self._declared[place] = again
        name = self._names[queue.id] = (queue.vhost, queue.name, again)
        self._ids[name] = queue.id
        self._fates[name] = Fates(name)

    def _delete(self, vhost: VirtualHost, name: str) -> None:
        self._operator.vhost = vhost.name
        self._broker.registry.delete_queue(self._operator, name, False, False)

    # -- the change

    def follow(self, now: int) -> None:
        """Apply what the change says of topology, as far as it is not so yet. Raises
        ChangeRefused."""
        change = self._change
        if now < change.since_ms:
            return
        try:
            self._follow()
        except BrokerError as error:
            raise ChangeRefused(f"{change.name}: {error}") from None

    def _follow(self) -> None:
        broker, change = self._broker, self._change
        for policy in change.policies:
            vhost = broker.vhosts.get(policy.vhost)
            if vhost is None:
                continue
            if policy.definition:
                made = Policy(policy.name, policy.pattern, policy.definition, policy.priority,
                              policy.apply_to)  # fmt: skip
                broker.registry.set_policy(policy.vhost, made)
            elif policy.name in vhost.policies:
                broker.registry.delete_policy(policy.vhost, policy.name)
        for new in change.new_queues:
            vhost = broker.vhosts.get(new.vhost)
            if vhost is not None and new.name not in vhost.queues:
                self._operator.vhost = new.vhost
                broker.registry.declare_queue(
                    self._operator, new.name, True, False, False, new.arguments, False
                )
        for gone in change.removed:
            vhost = broker.vhosts.get(gone.vhost)
            if vhost is not None and gone.name in vhost.queues:
                self._delete(vhost, gone.name)
        for one in change.queues:
            vhost = broker.vhosts.get(one.vhost)
            if vhost is not None and one.name in vhost.queues:
                self._settle_arguments(vhost, vhost.queues[one.name])
        self._bind()

    def _bind(self) -> None:
        for one in self._change.bindings:
            vhost = self._broker.vhosts.get(one.vhost)
            if (
                vhost is None
                or one.queue not in vhost.queues
                or one.exchange not in vhost.exchanges
            ):
                continue
            if one.adds:
                vhost.bind_queue(one.queue, one.exchange, one.key, one.arguments, 0)
            else:
                vhost.unbind_queue(one.queue, one.exchange, one.key, one.arguments, 0)

    def _arguments(self, queue: Queue) -> dict[str, object]:
        """Return the arguments of a queue in this world. Raises ChangeRefused."""
        kept = {**queue.arguments, **self._change.arguments_of(queue.vhost, queue.name)}
        arguments = {name: value for name, value in kept.items() if value is not None}
        try:
            check_queue_arguments(named("queue", queue.name, queue.vhost), arguments)
        except BrokerError as error:
            raise ChangeRefused(f"[[queue]] {queue.name}: {error}") from None
        if (arguments.get(TYPE) == STREAM) != queue.settings.is_stream:
            raise ChangeRefused(
                f"[[queue]] {queue.name}: queue-type cannot change to or from {STREAM}: what was "
                "done with the messages of one cannot be done with those of the other"
            )
        return arguments

    def _replace(self, vhost: VirtualHost, queue: Queue) -> None:
        """Declare a queue that nobody has seen with the arguments of this world."""
        arguments = self._arguments(queue)
        if arguments != queue.arguments:
            made = Queue(
                queue.id, queue.name, vhost.name, queue.durable, 0, queue.auto_delete, arguments
            )
            vhost.topology.remove_queue(queue)
            vhost.topology.add_queue(made)

    def _settle_arguments(self, vhost: VirtualHost, queue: Queue) -> None:
        """Give a queue that is in use the arguments of this world."""
        arguments = self._arguments(queue)
        if arguments == queue.arguments:
            return
        name = "x-max-priority"
        if arguments.get(name) != queue.arguments.get(name):
            raise ChangeRefused(
                f"[[queue]] {queue.name}: max-priority cannot change while the queue is in use; "
                "leave out `from`"
            )
        queue.arguments = arguments
        if vhost.policy_table.update_queue(queue):
            vhost.topology.changed()
            self._broker.registry.resettle(queue)
