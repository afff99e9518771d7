"""Checks of what the application passes in, at the call that it is passed to.

Each raises TypeError for a value of the wrong type, ValueError for one out of range, with the
argument's name, the value and what was expected.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Real
from typing import TypeVar

T = TypeVar("T")


def _shown(name: str, value: object) -> str:
    return f"{name}={value!r:.80}"


def check_type(name: str, value: object, kinds: type | tuple[type, ...], expected: str) -> None:
    """Check that the value is of one of these types; a bool is no number."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is int):
        raise TypeError(f"{_shown(name, value)}, expected {expected}")


def check_flag(name: str, value: object) -> None:
    check_type(name, value, bool, "True or False")


def check_text(name: str, value: object, *, optional: bool = False) -> None:
    """Check that the value is text that has a form in UTF-8."""
    if value is None and optional:
        return
    check_type(name, value, str, "text or None" if optional else "text")
    assert isinstance(value, str)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{_shown(name, value)}, expected text that has UTF-8: {error}") from error


def check_int(name: str, value: object, least: int, most: int | None = None) -> None:
    """Check that the value is a whole number from `least` to `most`."""
    expected = f"{least} or more" if most is None else f"{least} to {most}"
    check_type(name, value, int, f"a whole number, {expected}")
    assert isinstance(value, int)
    if value < least or (most is not None and value > most):
        raise ValueError(f"{_shown(name, value)}, expected {expected}")


def check_number(name: str, value: object, least: float, most: float = math.inf) -> None:
    """Check that the value is a number from `least` to `most`, of any real type, as numpy's."""
    expected = f"{least:g} or more" if most == math.inf else f"{least:g} to {most:g}"
    if isinstance(value, bool) or not isinstance(value, (int, float, Real)):
        raise TypeError(f"{_shown(name, value)}, expected a number, {expected}")
    if value < least or not value <= most:  # not a number is neither
        raise ValueError(f"{_shown(name, value)}, expected {expected}")


def check_timeout(name: str, value: float | None) -> None:
    """Check that the value is a number of seconds, or None for no limit. A time-out below 0 has
    passed, and is allowed: callers compute what remains of one."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float, Real)):
        raise TypeError(f"{_shown(name, value)}, expected seconds or None")
    if value != value:  # not a number
        raise ValueError(f"{_shown(name, value)}, expected seconds or None")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Check that the value is one of these. Text may be of a subclass of str, as that of an enum;
    True is not 1."""
    if not any(value == choice and isinstance(value, type(choice)) for choice in choices):
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{_shown(name, value)}, expected one of {listed}")


def check_call(name: str, value: object, *, optional: bool = False) -> None:
    """Check that the value can be called."""
    if not callable(value) and not (optional and value is None):
        raise TypeError(f"{_shown(name, value)}, expected a function{' or None' * optional}")


def check_fields(name: str, value: object, *, optional: bool = True) -> None:
    """Check that the value is a mapping whose keys are text."""
    if value is None and optional:
        return
    check_type(name, value, Mapping, f"a mapping{' or None' * optional}")
    assert isinstance(value, Mapping)
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"{name} with the key {key!r:.80}, expected text")


def check_texts(name: str, value: object) -> None:
    """Check that the value is a collection of texts, which can be read again and again."""
    is_one = isinstance(value, (str, bytes, bytearray))
    if is_one or not isinstance(value, Collection) or not all(isinstance(i, str) for i in value):
        raise TypeError(f"{_shown(name, value)}, expected a tuple of texts")


def listed(name: str, value: Iterable[T], expected: str) -> list[T]:
    """Return the items; text and bytes, which have items too, are one value."""
    if isinstance(value, (str, bytes, bytearray)) or not isinstance(value, Iterable):
        raise TypeError(f"{_shown(name, value)}, expected {expected}")
    return list(value)
