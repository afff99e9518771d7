"""Parcels: messages on their way between brokers, and the annotation that says where one came from.

A parcel is a message as sections of AMQP 1.0; what came over another protocol is converted by the
rules of brokers [docs/conversion.md], and back. Its annotation `x-shovelled` is a list of maps, the
newest first, as RabbitMQ's header of that name: readers of AMQP 0-9-1 see it as a header.

    shovelled-by    who moved it: a node, or a command
    shovel-name
    src             queue that it was taken from
    exchange, routing-key   of its first publish, where they are known
    redelivered     true: it had been handed out before, and may have been moved before
    user-id, cc     properties that were taken off: brokers refuse another user's name, and would
                    route by the further keys again
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from tallymark.client import Message
from tallymark.wire.amqp10.types import Symbol
from tallymark.wire.conversion.names import EXCHANGE, ROUTING_KEY, X_CC

SHOVELLED: Final = "x-shovelled"
DELIVERY_COUNTS: Final = ("x-delivery-count", "x-acquired-count")
"""Annotations of the source's broker about its own deliveries."""


@final
@dataclass(frozen=True, slots=True)
class Parcel:
    message: Message
    redelivered: bool
    """True if the source had handed it out before."""

    @property
    def exchange(self) -> str:
        """Exchange that it was published to; empty: the default one, or not known."""
        return _text(self.message, EXCHANGE)

    @property
    def key(self) -> str:
        """Routing key that it was published with; empty: not known."""
        return _text(self.message, ROUTING_KEY)


STRETCH: Final = 20
"""Messages that are stamped at a time: the loop is somebody else's, too."""


@final
@dataclass(frozen=True, slots=True)
class Stamp:
    """The words of a shovel about itself in each message that it moves."""

    by: str
    name: str
    source: str

    async def put_on_all(self, parcels: Sequence[Parcel]) -> list[Message]:
        """Return the messages as they are sent on. Raises BadMessage: one is none."""
        found: list[Message] = []
        for at in range(0, len(parcels), STRETCH):
            found += [self.put_on(parcel) for parcel in parcels[at : at + STRETCH]]
            await asyncio.sleep(0)
        return found

    def put_on(self, parcel: Parcel) -> Message:
        """Return the message as it is sent on. Raises BadMessage: it is none."""
        message = parcel.message
        said: dict[object, object] = {
            "shovelled-by": self.by,
            "shovel-name": self.name,
            "src": self.source,
            "redelivered": parcel.redelivered,
        }
        if parcel.exchange:
            said["exchange"] = parcel.exchange
        if parcel.key:
            said["routing-key"] = parcel.key
        annotations = dict(message.annotations)
        further = annotations.pop(X_CC, None)
        if further is not None:
            said["cc"] = further
        if message.user_id is not None:
            said["user-id"] = message.user_id
        before = annotations.pop(SHOVELLED, None)
        for name in (EXCHANGE, ROUTING_KEY, *DELIVERY_COUNTS):
            annotations.pop(name, None)
        annotations[Symbol(SHOVELLED)] = [said, *(before if isinstance(before, list) else [])]
        return message.replace(annotations=annotations, user_id=None, delivery_annotations=None)


def _text(message: Message, name: str) -> str:
    found = message.annotations.get(name)
    return str(found) if isinstance(found, str) else ""
