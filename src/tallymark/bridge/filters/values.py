"""Values of filter expressions, and the results of operators on them [filtex §6, JMS 2.0 §3.8.1].

A value is a bool, int, float, str, bytes, UUID, None (unknown: not there, or null), or OPAQUE:
something is there, but of a type that no operator takes. Truth has three values: True, False and
None.

Like is compared with like: numbers with numbers by value whatever their width, text with text,
where binary is text too and compares by its bytes (so does a UUID), booleans with booleans for
equality only.
Unlike values are unequal, and neither is the smaller one. Where one is unknown, so is the answer.
"""

from __future__ import annotations

from typing import Final, TypeGuard, final
from uuid import UUID

from tallymark.wire.amqp10.types import Decimal
from tallymark.wire.conversion.values import decimal_of

EQUAL: Final = 0
UNEQUAL: Final = 1
LESS: Final = 2
LESS_OR_EQUAL: Final = 3
GREATER: Final = 4
GREATER_OR_EQUAL: Final = 5

ADD: Final = 0
SUBTRACT: Final = 1
MULTIPLY: Final = 2
DIVIDE: Final = 3
MODULO: Final = 4


@final
class Opaque:
    """A value of a type that no operator accepts (see the module's docstring). There is one
    instance."""

    __slots__ = ()


OPAQUE: Final = Opaque()


def plain(value: object) -> object:
    """Return a decoded value without wire-specific details: integer widths, symbol or string."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, UUID):
        return value
    if isinstance(value, Decimal):
        return float(decimal_of(value))
    return OPAQUE  # in annotations: lists, maps, described values


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def bytes_of(value: object) -> bytes | None:
    """Return text, binary or UUID as bytes; None for anything else."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return value
    return value.bytes if isinstance(value, UUID) else None


def text_of(value: object) -> str | None:
    """Return text, also if it is encoded as binary; None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return None


def same(a: object, b: object) -> bool:
    """Return whether two known values are equal."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, str) and isinstance(b, str):
        return a == b
    if isinstance(a, (int, float)):
        return isinstance(b, (int, float)) and a == b
    raw = bytes_of(a)
    return raw is not None and raw == bytes_of(b)


def compare(op: int, a: object, b: object) -> bool | None:
    """Return the result of a comparison, one of EQUAL to GREATER_OR_EQUAL; None: unknown."""
    if a is None or b is None:
        return None
    if op == EQUAL:
        return same(a, b)
    if op == UNEQUAL:
        return not same(a, b)
    if isinstance(a, bool) or isinstance(b, bool):
        return False
    if isinstance(a, (int, float)):
        return isinstance(b, (int, float)) and _ordered_numbers(op, a, b)
    left = bytes_of(a)
    right = bytes_of(b)
    if left is None or right is None:
        return False
    # UTF-8 has the order of the characters it stands for.
    if op == LESS:
        return left < right
    if op == LESS_OR_EQUAL:
        return left <= right
    return left > right if op == GREATER else left >= right


def _ordered_numbers(op: int, a: int | float, b: int | float) -> bool:
    if op == LESS:
        return a < b
    if op == LESS_OR_EQUAL:
        return a <= b
    return a > b if op == GREATER else a >= b


def arithmetic(op: int, a: object, b: object, whole: bool) -> object:
    """Return the result of an operation, one of ADD to MODULO. None where an operand is no number,
    and where there is no result: division by zero, or a result beyond the largest double.

    whole: integers divide to an integer, towards zero; otherwise to a double.
    """
    if not is_number(a) or not is_number(b):
        return None
    try:
        return _calculated(op, a, b, whole)
    except (OverflowError, ZeroDivisionError):
        return None


def _of_integers(op: int, a: int, b: int) -> int:
    """Return the result of an operation whose result is an integer, too."""
    if op == ADD:
        return a + b
    if op == SUBTRACT:
        return a - b
    if op == MULTIPLY:
        return a * b
    quotient = abs(a) // abs(b)
    if (a < 0) != (b < 0):
        quotient = -quotient
    return quotient if op == DIVIDE else a - quotient * b


def _calculated(op: int, a: int | float, b: int | float, whole: bool) -> object:
    if isinstance(a, int) and isinstance(b, int) and (op != DIVIDE or whole):
        return _of_integers(op, a, b)
    if op == MODULO:
        return None
    left, right = float(a), float(b)
    if op == ADD:
        result = left + right
    elif op == SUBTRACT:
        result = left - right
    elif op == MULTIPLY:
        result = left * right
    else:
        result = a / b
    return None if result - result != 0.0 else result  # neither infinite nor not a number


def negated(value: object) -> object:
    """Return -value; None for a value that is no number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return -value
    return -value if isinstance(value, float) else None
