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

from tallymark.client import BadMessage, Message
from tallymark.wire.amqp10.codec import skip
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.sections import MESSAGE_ANNOTATIONS, PROPERTIES, Sections
from tallymark.wire.amqp10.types import Symbol
from tallymark.wire.conversion.names import EXCHANGE, ROUTING_KEY, X_CC

SHOVELLED: Final = "x-shovelled"
DELIVERY_COUNTS: Final = ("x-delivery-count", "x-acquired-count")
"""Annotations of the source's broker about its own deliveries."""
NULL: Final = b"\x40"
EMPTY_LIST: Final = 0x45
FIELDS: Final = {0xC0: (3, 1), 0xD0: (9, 4)}
"""Places by the code of a list: where its fields begin, and the bytes of their count before that
[amqp-1.0 section 1.6.22]."""


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


KNOWN_MAX: Final = 256
"""Fronts that a stamp remembers."""


@final
class Stamp:
    """The words of a shovel about itself in each message that it moves.

    They stand in the annotations. Messages that are alike up to there, as those of one routing key
    mostly are, are decoded and encoded once; of the others the bytes behind are kept as they came.
    """

    def __init__(self, by: str, name: str, source: str) -> None:
        self.by = by
        self.name = name
        self.source = source
        self._known: dict[tuple[bytes, bool], bytes] = {}
        """Header and annotations as they came, and whether redelivered: the same as sent on."""

    async def put_on_all(self, parcels: Sequence[Parcel]) -> list[Message]:
        """Return the messages as they are sent on. Raises BadMessage: one is none."""
        found: list[Message] = []
        for at in range(0, len(parcels), STRETCH):
            found += [self.put_on(parcel) for parcel in parcels[at : at + STRETCH]]
            await asyncio.sleep(0)
        return found

    def put_on(self, parcel: Parcel) -> Message:
        """Return the message as it is sent on. Raises BadMessage: it is none."""
        data = parcel.message.encode()
        try:
            sections = Sections(data, 0, len(data))
            names_a_user = _has_user_id(sections)
        except DecodeError as error:
            raise BadMessage(error.text, condition=error.condition, is_remote=True) from error
        if names_a_user:
            return self._decoded(parcel)
        end = sections.behind(MESSAGE_ANNOTATIONS)
        known = (data[:end], parcel.redelivered)
        front = self._known.get(known)
        if front is None:
            sent = self._decoded(parcel).encode()
            front = sent[: Sections(sent, 0, len(sent)).behind(MESSAGE_ANNOTATIONS)]
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[known] = front
        return Message.parse(front + data[end:])

    def _decoded(self, parcel: Parcel) -> Message:
        """Return the message as it is sent on, made from what it has."""
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


def _has_user_id(sections: Sections) -> bool:
    """Return whether the second field of the properties is set, or may be: the list is looked at,
    not decoded. Raises DecodeError."""
    for code, _, value in sections.bounds:
        if code == PROPERTIES:
            data = sections.data
            kind = data[value]
            if kind not in FIELDS:
                return kind != EMPTY_LIST
            at, width = FIELDS[kind]
            if int.from_bytes(data[value + at - width : value + at], "big") < 2:
                return False
            second = skip(data, value + at, sections.end)
            return data[second : second + 1] != NULL
    return False


def _text(message: Message, name: str) -> str:
    found = message.annotations.get(name)
    return str(found) if isinstance(found, str) else ""
