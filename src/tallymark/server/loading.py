"""Loading of code at its first use, while the broker serves.

Such code may not be there any more, or not of this version: a package was removed or upgraded
below the running broker. That costs what the code is for (a request, a log-in, a reload), and
neither a connection nor the broker. The log says what could not be loaded, and why.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tallymark.server.clock import now_ms
from tallymark.server.logs import log_of

RETRY_MS: Final = 1000
"""Milliseconds after a failure for which nothing is loaded again: what strangers ask for at will
would have the disk searched each time."""

_failures: Final[dict[str, tuple[int, str]]] = {}
"""Last failures by what the code is of: when, and the text."""


class NotLoaded(Exception):
    """Code cannot be loaded; the text says of what, and what is to be done."""


def reason_of(what: str) -> str:
    """Return the text about code that cannot be loaded. what: the code is of it."""
    return (
        f"the code of {what} cannot be loaded, see the log; after an upgrade of the package the "
        "broker has to be restarted"
    )


def failed_to_load(what: str, category: str, error: Exception) -> NotLoaded:
    """Tell the log of a category that code cannot be loaded; return the error for who needs it."""
    reason = reason_of(what)
    trace = "".join(traceback.format_exception(error))
    log_of(category).error(f"{category}.not_loaded", error=repr(error), reason=reason, trace=trace)
    return NotLoaded(reason)


@contextmanager
def loading(what: str, category: str) -> Iterator[None]:
    """Import inside of this block, and make what the code is for, but do nothing else. Raises
    NotLoaded; within RETRY_MS of the last failure without a try."""
    at_ms, reason = _failures.get(what, (0, ""))
    if reason and now_ms() - at_ms < RETRY_MS:
        raise NotLoaded(reason)
    try:
        yield
    except Exception as error:  # whatever code raises that is not of this broker's version
        failure = failed_to_load(what, category, error)
        _failures[what] = (now_ms(), str(failure))
        raise failure from error
    _failures.pop(what, None)
