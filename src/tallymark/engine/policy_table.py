"""The policies of one virtual host, and the settings of its queues and exchanges that follow from
them.

Whatever changes a policy, or enters a queue or exchange, asks for the settings to be put together
again; nothing else ever replaces `queue.settings` or `exchange.alternate`.
"""

from __future__ import annotations

from typing import final

from tallymark.engine import definitions
from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.exchange import ALTERNATE, Exchange
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


@final
class PolicyTable:
    """Applies policies to the queues and exchanges of a virtual host, which owns their tables."""

    __slots__ = ("_exchanges", "_queues", "operator", "user")

    def __init__(self, exchanges: dict[str, Exchange], queues: dict[str, Queue]) -> None:
        self._exchanges = exchanges
        self._queues = queues
        self.user: dict[str, Policy] = {}
        """Policies by name."""
        self.operator: dict[str, Policy] = {}
        """Operator policies by name."""

    def table(self, operator: bool) -> dict[str, Policy]:
        return self.operator if operator else self.user

    def put(self, policy: Policy, operator: bool) -> bool:
        """Set a policy under its name; False if it equals the existing one."""
        table = self.table(operator)
        current = table.get(policy.name)
        if current is not None and canonical(current.value()) == canonical(policy.value()):
            return False
        table[policy.name] = policy
        return True

    def of_queue(self, queue: Queue, operator: bool) -> Policy | None:
        """Return the policy in effect for a queue."""
        settings = queue.settings
        kind = STREAMS if settings.is_stream else CLASSIC_QUEUES
        if settings.is_quorum:
            kind = QUORUM_QUEUES
        return in_effect(self.table(operator), kind, queue.name)

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

    def update_all(self) -> list[Queue]:
        """Recompute all settings after a change of policies; return the queues whose settings
        changed. O(queues x policies)."""
        for exchange in self._exchanges.values():
            self.update_exchange(exchange)
        return [queue for queue in self._queues.values() if self.update_queue(queue)]

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
            self.table(op == definitions.DELETE_OPERATOR_POLICY).pop(name, None)
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
            self.table(op == definitions.OPERATOR_POLICY)[name] = policy
        self.update_all()
