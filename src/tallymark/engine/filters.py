"""Filters: selection of the messages of a queue that a consumer wants."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from tallymark.engine.annotations import Annotations
from tallymark.engine.message import Payload


@mypyc_attr(allow_interpreted_subclasses=True)
class Filter:
    """A filter that every message matches. Other filters are made by the bridges, which can decode
    messages.

    A filter is pure: the same message gets the same answer every time.
    """

    __slots__ = ()

    def matches(self, payload: Payload, i: int, known: Annotations | None) -> bool:
        """Return whether message i matches; its bytes are in memory. Raises nothing, whatever a
        publisher wrote: a message that cannot be decoded does not match."""
        return True
