"""Translation of AMQP 1.0's events and errors into those of the client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from tallymark.client.errors import Closed
from tallymark.client.outcomes import Accepted, Modified, Outcome, Rejected, Released
from tallymark.wire.amqp10.outcomes import Error, TransactionalState

OUTCOMES: Final = (
    "amqp:accepted:list",
    "amqp:rejected:list",
    "amqp:released:list",
    "amqp:modified:list",
)
"""Outcomes that the client supports, of either role."""

E = TypeVar("E", bound=Closed)


def fields_of(values: Mapping[str, object] | None) -> dict[object, object] | None:
    fields: dict[object, object] = {}
    for key, value in (values or {}).items():
        fields[key] = value
    return fields or None


def outcome_of(state: object) -> Outcome | None:
    """An outcome, also where it is only a transaction's."""
    if isinstance(state, TransactionalState):
        state = state.outcome
    return state if isinstance(state, (Accepted, Rejected, Released, Modified)) else None


def error_of(kind: type[E], error: Error | None, text: str) -> E:
    """Return an error of this kind with the condition and description that the peer gave."""
    if error is None:
        return kind(text, is_remote=True)
    return kind(
        error.description or text,
        condition=error.condition,
        info=dict(error.info or {}),
        is_remote=True,
    )
