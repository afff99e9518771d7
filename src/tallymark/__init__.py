"""Tallymark: a message broker that accounts for every message."""

from __future__ import annotations

__version__ = "0.1.0"


def is_compiled() -> bool:
    """Return whether the hot layers run as compiled extensions (mypyc) or as plain Python."""
    from tallymark.stored import records

    return not (records.__file__ or "").endswith(".py")
