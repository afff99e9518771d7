"""Route: where a message was published to."""

from __future__ import annotations

from typing import final


@final
class Route:
    """The exchange and routing key a message was published with, as its readers see them."""

    __slots__ = ("exchange", "key")

    def __init__(self, exchange: str, key: str) -> None:
        self.exchange = exchange
        self.key = key
