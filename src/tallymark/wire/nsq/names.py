"""Names of topics and channels [NQ-3], and numbers in command lines."""

from __future__ import annotations

import re
from typing import Final

NAME_MAX: Final = 64
"""Maximum bytes of a name, suffix included."""
EPHEMERAL: Final = "#ephemeral"

HUGE: Final = 1 << 62
"""Value of every number of more than 18 digits; it is above all limits."""

_name: Final = re.compile(rb"[.a-zA-Z0-9_-]+(?:#ephemeral)?").fullmatch


def is_valid_name(name: bytes) -> bool:
    return 1 <= len(name) <= NAME_MAX and _name(name) is not None


def is_name(text: str) -> bool:
    """Return whether a text is a valid name."""
    return text.isascii() and is_valid_name(text.encode())


def is_ephemeral(name: str) -> bool:
    return name.endswith(EPHEMERAL)


def parse_number(digits: bytes) -> int:
    """Return the value of decimal digits, 0 if there are none; -1 for any other character.

    nsqd lets a number wrap at 64 bits (RDY 18446744073709551617 is 1 there). Ours is HUGE then,
    and refused or clamped like any other number that is too big.
    """
    if not digits:
        return 0
    if not digits.isdigit():
        return -1
    digits = digits.lstrip(b"0")
    return HUGE if len(digits) > 18 else int(digits or b"0")


def show_number(digits: bytes) -> str:
    """Return digits for an error text, without leading zeros."""
    return (digits.lstrip(b"0") or b"0").decode("ascii")
