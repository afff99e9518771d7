"""The report of a broken promise, which ends the run of a world."""

from __future__ import annotations


class Violated(Exception):
    """Report of a broken promise: which, and by what."""
