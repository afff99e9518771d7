"""Equivalence of declarations: whether a second one says the same of what is there [rabbitmq
inequivalent arg]."""

from __future__ import annotations

from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.table_values import equal_values, shown, type_name


def same_argument(a: object, b: object) -> bool:
    """Return whether two arguments of declarations are equal: as equal_values, but 1 is not 1.0."""
    return isinstance(a, float) == isinstance(b, float) and equal_values(a, b)


def inequivalent(name: str, what: str, received: str, current: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"inequivalent arg '{name}' for {what}: received {received} but current is {current}"
    )


def check_same_flag(name: str, what: str, received: bool, current: bool) -> None:
    """Raise PreconditionFailed if a re-declaration changes a property such as `durable`."""
    if received != current:
        raise inequivalent(name, what, shown(received), shown(current))


def check_same_arguments(
    names: list[str], what: str, received: dict[str, object], current: dict[str, object]
) -> None:
    """Refuse a re-declaration that changes one of the named arguments.

    A queue type of "classic" is the same as none. Raises: PreconditionFailed.
    """
    for name in names:
        if name not in received and name not in current:
            continue
        if name in received and name in current:
            new, old = received[name], current[name]
            if not same_argument(new, old):
                raise inequivalent(name, what, shown(new), shown(old))
        elif name != "x-queue-type" or (received.get(name) or current.get(name)) != "classic":
            raise inequivalent(name, what, _described(name, received), _described(name, current))


def _described(name: str, arguments: dict[str, object]) -> str:
    if name not in arguments:
        return "none"
    return f"the value {shown(arguments[name])} of type '{type_name(arguments[name])}'"
