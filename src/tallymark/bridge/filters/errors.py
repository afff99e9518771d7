"""Errors in filters that consumers request."""

from __future__ import annotations

from typing import final

from tallymark.wire.amqp10.errors import INVALID_FIELD


@final
class FilterError(Exception):
    """A filter of a kind that is offered is malformed: the link is refused.

    The text says where it is wrong, what stands there and what was expected.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.condition = INVALID_FIELD
        self.text = text


def shown(value: object) -> str:
    """Return a value for a text, cut to one line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
