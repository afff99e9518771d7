"""Tallymark: a message broker that accounts for every message."""

from __future__ import annotations

from os.path import exists

__version__ = "0.1.0"


def is_compiled() -> bool:
    """Return whether the hot layers run as compiled extensions (mypyc) or as plain Python."""
    from tallymark.stored import records

    return not (records.__file__ or "").endswith(".py")


def _check_wheels() -> None:
    """Raise ImportError where tallymark and tallymark-spark were installed over each other: they
    have modules of the same names, and removing either breaks the other."""
    folder = __path__[0]
    if exists(f"{folder}/standins.py") and exists(f"{folder}/server"):
        raise ImportError(
            f"both tallymark and tallymark-spark are installed in {folder}, and have modules of "
            "the same names: `pip uninstall tallymark tallymark-spark`, then install one of them "
            "(tallymark[spark] has all of tallymark-spark)"
        )


_check_wheels()
