"""The policies of one virtual host, and what they come to for its queues and exchanges.

Whatever changes a policy, or enters a queue or exchange, asks for the settings to be put together
again; nothing else ever replaces `queue.settings` or `exchange.alternate`.
"""

from __future__ import annotations

from typing import final

from tallymark.engine import definitions
from tallymark.engine.definitions import canonical
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


@final
class PolicyTable:
    """Reads the tables of queues and exchanges of a virtual host, which owns them."""

    __slots__ = ("_exchanges", "_queues", "operator", "user")

    def __init__(self, exchanges: dict[str, Exchange], queues: dict[str, Queue]) -> None:
        self._exchanges = exchanges
        self._queues = queues
        self.user: dict[str, Policy] = {}
        """By name."""
        self.operator: dict[str, Policy] = {}
        """By name."""

    def table(self, operator: bool) -> dict[str, Policy]:
        return self.operator if operator else self.user

    def put(self, policy: Policy, operator: bool) -> bool:
        """Keep a policy under its name; False when it is the one that is there."""
        table = self.table(operator)
        current = table.get(policy.name)
        if current is not None and canonical(current.value()) == canonical(policy.value()):
            return False
        table[policy.name] = policy
        return True

    def of_queue(self, queue: Queue, operator: bool) -> Policy | None:
        """The policy in effect for a queue."""
        settings = queue.settings
        kind = STREAMS if settings.is_stream else CLASSIC_QUEUES
        if settings.is_quorum:
            kind = QUORUM_QUEUES
        return in_effect(self.table(operator), kind, queue.name)

    def of_exchange(self, exchange: Exchange) -> Policy | None:
        """The policy in effect for an exchange; operator policies say nothing of exchanges."""
        return in_effect(self.user, EXCHANGES, exchange.name)

    def default_type(self, name: str) -> str:
        """The type of a queue that is not there yet and whose declaration says none; "": no policy
        says it."""
        policy = in_effect(self.user, QUEUES, name)
        found = None if policy is None else policy.definition.get(DEFAULT_TYPE)
        return found if isinstance(found, str) else ""

    def creates(self, name: str) -> bool:
        """Whether a queue of that name is to be made when somebody wants to use it."""
        policy = in_effect(self.user, CLASSIC_QUEUES, name)
        return policy is not None and policy.definition.get(AUTO_CREATE) is True

    def settle_queue(self, queue: Queue) -> bool:
        """Put its settings together; False when that changes none."""
        given = merged(self.of_queue(queue, False), self.of_queue(queue, True))
        settings = Settings(queue.arguments, given)
        if settings.same(queue.settings):
            return False
        queue.follow(settings)
        return True

    def settle_exchange(self, exchange: Exchange) -> None:
        """Where its unrouted messages go: the argument wins."""
        alternate = exchange.arguments.get(ALTERNATE)
        if alternate is None:
            policy = self.of_exchange(exchange)
            if policy is not None:
                alternate = policy.definition.get(ALTERNATE_EXCHANGE)
        exchange.alternate = alternate if isinstance(alternate, str) else None

    def settle_all(self) -> list[Queue]:
        """After a policy changed; returns the queues whose settings did. O(queues x policies)."""
        for exchange in self._exchanges.values():
            self.settle_exchange(exchange)
        return [queue for queue in self._queues.values() if self.settle_queue(queue)]

    def problems(self) -> list[tuple[str, str]]:
        """Names of policies that fit nothing since their patterns are refused today, and why."""
        return [
            (policy.name, policy.problem)
            for operator in (False, True)
            for policy in self.table(operator).values()
            if policy.problem
        ]

    def definitions(self, vhost: str) -> list[bytes]:
        """All policies as definitions."""
        found = []
        for operator in (False, True):
            for policy in self.table(operator).values():
                found.append(definitions.encode(definitions.of_policy(vhost, policy, operator)))
        return found

    def apply(self, definition: dict[str, object]) -> None:
        """Repeat a recorded change of a policy. Raises ValueError when it is not understood."""
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
        self.settle_all()
