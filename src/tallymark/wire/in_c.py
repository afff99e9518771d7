"""The functions of native.c, where they were built.

Those that frame messages copy every byte once. Their twins in Python, which stand where they are
called, copy it four times: out of the payload, into a buffer, with the buffer as it grows, and out
of it.
"""

from __future__ import annotations

from typing import Any, Final


def _found() -> Any:
    try:
        from tallymark.wire import native
    except ImportError:
        return None
    return native


NATIVE: Final[Any] = _found()
"""The module, or None."""
