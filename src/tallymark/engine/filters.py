"""What a consumer wants of a queue, where it does not want all of it."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from tallymark.engine.annotations import Annotations
from tallymark.engine.message import Payload


@mypyc_attr(allow_interpreted_subclasses=True)
class Filter:
    """Wants every message. Those that want less are made by the bridges, which can read messages.

    A filter is pure: the same message gets the same answer every time.
    """

    __slots__ = ()

    def matches(self, payload: Payload, i: int, known: Annotations | None) -> bool:
        """Whether message i is wanted; its bytes are in memory. Raises nothing, whatever a
        publisher wrote: what cannot be read does not match."""
        return True
