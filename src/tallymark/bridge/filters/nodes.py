"""Expression nodes, made by the parsers and ready to be evaluated.

`evaluate` gives a value as values.py describes them. Nodes are immutable and know nothing of each
other's kind; fields are known by the place where their values are put (fields.py).
"""

from __future__ import annotations

from typing import Final, final
from uuid import UUID

from tallymark.bridge.filters.like import Pattern
from tallymark.bridge.filters.values import arithmetic, bytes_of, compare, negated, same, text_of
from tallymark.units import EngineMs

DURABLE: Final = "PERSISTENT"
NOT_DURABLE: Final = "NON_PERSISTENT"


@final
class Facts:
    """Values of one message: those of the fields in use, and the time."""

    __slots__ = ("now_ms", "values")

    def __init__(self, values: list[object], now_ms: EngineMs) -> None:
        self.values = values
        """Values by slot."""
        self.now_ms = now_ms


class Node:
    __slots__ = ()

    def evaluate(self, facts: Facts) -> object:
        raise NotImplementedError


@final
class Constant(Node):
    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def evaluate(self, facts: Facts) -> object:
        return self.value


@final
class FieldValue(Node):
    __slots__ = ("slot",)

    def __init__(self, slot: int) -> None:
        self.slot = slot

    def evaluate(self, facts: Facts) -> object:
        return facts.values[self.slot]


@final
class Now(Node):
    """UTC(): milliseconds since 1970."""

    __slots__ = ()

    def evaluate(self, facts: Facts) -> object:
        return facts.now_ms


@final
class And(Node):
    """Logical and: False if one is false, else unknown if one is. Values that are not truth values
    are unknown."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Node]) -> None:
        self.parts = parts

    def evaluate(self, facts: Facts) -> object:
        answer: object = True
        for part in self.parts:
            value = part.evaluate(facts)
            if value is False:
                return False
            if value is not True:
                answer = None
        return answer


@final
class Or(Node):
    """Logical or: True if one is true, else unknown if one is."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Node]) -> None:
        self.parts = parts

    def evaluate(self, facts: Facts) -> object:
        answer: object = False
        for part in self.parts:
            value = part.evaluate(facts)
            if value is True:
                return True
            if value is not False:
                answer = None
        return answer


@final
class Not(Node):
    __slots__ = ("part",)

    def __init__(self, part: Node) -> None:
        self.part = part

    def evaluate(self, facts: Facts) -> object:
        value = self.part.evaluate(facts)
        if value is True:
            return False
        return True if value is False else None


@final
class Comparison(Node):
    __slots__ = ("left", "op", "right")

    def __init__(self, op: int, left: Node, right: Node) -> None:
        self.op = op
        self.left = left
        self.right = right

    def evaluate(self, facts: Facts) -> object:
        return compare(self.op, self.left.evaluate(facts), self.right.evaluate(facts))


@final
class Arithmetic(Node):
    __slots__ = ("left", "op", "right", "whole")

    def __init__(self, op: int, left: Node, right: Node, whole: bool) -> None:
        self.op = op
        self.left = left
        self.right = right
        self.whole = whole

    def evaluate(self, facts: Facts) -> object:
        left = self.left.evaluate(facts)
        return arithmetic(self.op, left, self.right.evaluate(facts), self.whole)


@final
class Signed(Node):
    """A sign, + or -; unknown for a value that is no number."""

    __slots__ = ("minus", "part")

    def __init__(self, part: Node, minus: bool) -> None:
        self.part = part
        self.minus = minus

    def evaluate(self, facts: Facts) -> object:
        value = negated(self.part.evaluate(facts))
        return value if self.minus else negated(value)


@final
class In(Node):
    """A test whether one of the items equals the value. Unknown items equal nothing."""

    __slots__ = ("items", "part")

    def __init__(self, part: Node, items: list[Node]) -> None:
        self.part = part
        self.items = items

    def evaluate(self, facts: Facts) -> object:
        value = self.part.evaluate(facts)
        if value is None:
            return None
        for item in self.items:
            other = item.evaluate(facts)
            if other is not None and same(value, other):
                return True
        return False


@final
class IsNull(Node):
    __slots__ = ("part",)

    def __init__(self, part: Node) -> None:
        self.part = part

    def evaluate(self, facts: Facts) -> object:
        return self.part.evaluate(facts) is None


@final
class Like(Node):
    """LIKE; unknown for a value that is no text."""

    __slots__ = ("part", "pattern")

    def __init__(self, part: Node, pattern: Pattern) -> None:
        self.part = part
        self.pattern = pattern

    def evaluate(self, facts: Facts) -> object:
        text = text_of(self.part.evaluate(facts))
        return None if text is None else self.pattern.matches(text)


# -- selectors: fields as JMS shows them


@final
class DeliveryMode(Node):
    """JMSDeliveryMode of `durable` [amqp-bindmap-jms §3.2.1]."""

    __slots__ = ("durable",)

    def __init__(self, durable: Node) -> None:
        self.durable = durable

    def evaluate(self, facts: Facts) -> object:
        return DURABLE if self.durable.evaluate(facts) is True else NOT_DURABLE


@final
class JmsId(Node):
    """JMSMessageID and JMSCorrelationID: a text as it is, an id of another type in a text form
    [amqp-bindmap-jms §3.2.1.1]."""

    __slots__ = ("id",)

    def __init__(self, id: Node) -> None:
        self.id = id

    def evaluate(self, facts: Facts) -> object:
        value = self.id.evaluate(facts)
        if isinstance(value, UUID):
            return f"ID:AMQP_UUID:{value}"
        if isinstance(value, bytes):
            return f"ID:AMQP_BINARY:{value.hex().upper()}"
        if isinstance(value, int) and not isinstance(value, bool):
            return f"ID:AMQP_ULONG:{value}"
        return value


# -- property filters


@final
class Equals(Node):
    """A test whether the value is there and equals the given one."""

    __slots__ = ("slot", "value")

    def __init__(self, slot: int, value: object) -> None:
        self.slot = slot
        self.value = value

    def evaluate(self, facts: Facts) -> object:
        value = facts.values[self.slot]
        return value is not None and same(value, self.value)


@final
class Begins(Node):
    """A test whether the value is text, or binary, with the given beginning."""

    __slots__ = ("prefix", "slot")

    def __init__(self, slot: int, prefix: bytes) -> None:
        self.slot = slot
        self.prefix = prefix

    def evaluate(self, facts: Facts) -> object:
        raw = bytes_of(facts.values[self.slot])
        return raw is not None and raw.startswith(self.prefix)


@final
class Ends(Node):
    """A test whether the value is text, or binary, with the given end."""

    __slots__ = ("slot", "suffix")

    def __init__(self, slot: int, suffix: bytes) -> None:
        self.slot = slot
        self.suffix = suffix

    def evaluate(self, facts: Facts) -> object:
        raw = bytes_of(facts.values[self.slot])
        return raw is not None and raw.endswith(self.suffix)
