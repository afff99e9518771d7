"""Declaring: the topology of a world, from the definitions of the ledger."""

from __future__ import annotations

from tallymark.engine import definitions
from tallymark.engine.arguments import check_queue_arguments, named
from tallymark.engine.broker import Broker
from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.policies import Policy
from tallymark.engine.queue import Queue
from tallymark.engine.session import Connection
from tallymark.engine.vhost import VirtualHost
from tallymark.whatif.changes import Change, ChangeRefused
from tallymark.whatif.fates import Fates, QueueName


class Declaring:
    """Applies definitions to a broker, and knows its queues by name."""

    def __init__(self, broker: Broker, fates: dict[QueueName, Fates], change: Change) -> None:
        self._broker = broker
        self._change = change
        self._fates = fates
        self._names: dict[int, QueueName] = {}
        self._ids: dict[QueueName, int] = {}
        self._declared: dict[tuple[str, str], int] = {}
        self._operator = Connection(0, "", "", "")

    def fates_of(self, queue: int) -> Fates:
        return self._fates[self._names[queue]]

    def name_of(self, queue: int) -> QueueName:
        return self._names[queue]

    def queue_of(self, name: QueueName) -> Queue | None:
        """Return the queue of that name, if it is there."""
        return self._broker.queues.get(self._ids.get(name, 0))

    def define(self, blob: bytes) -> None:
        """Apply one definition, as it was made on a running broker."""
        broker = self._broker
        said = definitions.decode(blob)
        op, name = said["op"], definitions.text_of(said, "vhost")
        vhost = broker.registry.add_vhost(name)
        self._operator.vhost = name
        if op == definitions.DELETE_VHOST:
            broker.registry.delete_vhost(name)
        elif op == definitions.QUEUE:
            self._declare(said, blob)
        elif op == definitions.DELETE_QUEUE:
            if definitions.text_of(said, "name") in vhost.queues:
                broker.registry.delete_queue(
                    self._operator, definitions.text_of(said, "name"), False, False
                )
        elif op == definitions.DELETE_EXCHANGE:
            vhost.delete_exchange(definitions.text_of(said, "name"), False)
        elif op in (definitions.POLICY, definitions.OPERATOR_POLICY):
            broker.registry.set_policy(name, policy_of(said), op == definitions.OPERATOR_POLICY)
        elif op in (definitions.DELETE_POLICY, definitions.DELETE_OPERATOR_POLICY):
            operator = op == definitions.DELETE_OPERATOR_POLICY
            if definitions.text_of(said, "name") in vhost.policy_table.table(operator):
                broker.registry.delete_policy(name, definitions.text_of(said, "name"), operator)
        elif op == definitions.PAUSE_QUEUE:
            queue = vhost.queues.get(definitions.text_of(said, "name"))
            if queue is not None:
                broker.registry.pause(queue, said["paused"] is True)
        elif op != definitions.VHOST:
            vhost.topology.apply(blob)

    def _declare(self, said: dict[str, object], blob: bytes) -> None:
        """Make a queue under the id that it had. It is declared again where it is there."""
        broker = self._broker
        vhost = broker.vhosts[definitions.text_of(said, "vhost")]
        id = definitions.id_of(said)
        name_said = definitions.text_of(said, "name")
        if id in broker.queues or self._change.is_removed(vhost.name, name_said):
            return
        vhost.topology.apply(blob)
        queue = vhost.queues[name_said]
        self._change_arguments(vhost, queue)
        queue = vhost.queues[name_said]
        broker.queues[id] = queue
        broker.state.queue_ids.at_least(id)
        broker.registry.revive(queue)
        place = vhost.name, queue.name
        again = self._declared.get(place, -1) + 1
        self._declared[place] = again
        name = self._names[id] = (vhost.name, queue.name, again)
        self._ids[name] = id
        self._fates[name] = Fates(name)

    def _change_arguments(self, vhost: VirtualHost, queue: Queue) -> None:
        """Give a queue that was just declared the arguments that it has in this world. Raises
        ChangeRefused."""
        changed = self._change.arguments_of(vhost.name, queue.name)
        if not changed:
            return
        kept = {**queue.arguments, **changed}
        arguments = {name: value for name, value in kept.items() if value is not None}
        try:
            check_queue_arguments(named("queue", queue.name, vhost.name), arguments)
        except PreconditionFailed as error:
            raise ChangeRefused(f"[[queue]] {queue.name}: {error}") from None
        made = Queue(
            queue.id, queue.name, vhost.name, queue.durable, 0, queue.auto_delete, arguments
        )
        vhost.topology.remove_queue(queue)
        vhost.topology.add_queue(made)


def policy_of(said: dict[str, object]) -> Policy:
    """Return the policy of a definition."""
    return Policy(
        definitions.text_of(said, "name"),
        definitions.text_of(said, "pattern"),
        definitions.table_of(said, "definition"),
        definitions.number_of(said, "priority"),
        definitions.text_of(said, "apply_to"),
        was_stored=True,
    )
