"""A span, as it is made by the loop and sent by a thread; and the trace context of a message [W3C
Trace Context]."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

HEADER: Final = "traceparent"
_CONTEXT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(-.*)?"
)
_SAMPLED: Final = 1


class Context(NamedTuple):
    """The trace that a message belongs to, and the span in it that published it."""

    trace_id: int
    span_id: int


class Span(NamedTuple):
    """Event in the life of one message. Times are wall time, in nanoseconds since 1970."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    start_ns: int
    end_ns: int
    attributes: dict[str, str | int]
    link_id: int = 0
    """Id of another span of the trace that led to this one; 0: none."""


def context_of(value: object) -> Context | None:
    """Return the context in a header; None: it is none, or its publisher does not have the trace
    recorded."""
    if isinstance(value, bytes | bytearray):
        value = bytes(value).decode("ascii", "replace")
    if not isinstance(value, str):
        return None
    found = _CONTEXT.fullmatch(value)
    if found is None or not int(found["flags"], 16) & _SAMPLED:
        return None
    context = Context(int(found["trace"], 16), int(found["parent"], 16))
    return context if context.trace_id and context.span_id else None
