"""Place of a receiver in a stream: where it goes on after a reconnect, and where the next consumer
of AMQP 0-9-1 goes on for it. A broker keeps no reader's place and takes nothing back, so that what
was not settled only comes again to who asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import final

from tallymark.client.arguments import ReceiverOptions
from tallymark.client.filters import stream_offset
from tallymark.client.message import BadMessage
from tallymark.client.received import ReceivedMessage


@final
class Place:
    """Place of one receiver."""

    __slots__ = ("_is_queue", "next")

    def __init__(self) -> None:
        self.next: int | None = None
        """Offset of the first message that was not sent, or that is to come again; None: nothing
        was sent yet, or it is no stream."""
        self._is_queue = False

    def arrived(self, messages: Sequence[ReceivedMessage]) -> None:
        """Note deliveries, in the order of their offsets."""
        if self._is_queue:
            return
        with suppress(BadMessage):  # the next one says where we are
            offset = messages[-1].stream_offset
            if offset is None:
                self._is_queue = True
            else:
                self.next = int(offset) + 1

    def lost(
        self, options: ReceiverOptions, unfinished: Iterable[ReceivedMessage]
    ) -> ReceiverOptions:
        """Return the options with which to attach again: they begin with the first of these
        messages, which are not settled, or behind what was sent."""
        if self.next is None:
            return options
        for message in unfinished:
            with suppress(BadMessage):
                offset = message.stream_offset
                if offset is not None:
                    self.next = min(self.next, int(offset))
        return replace(options, filter={**(options.filter or {}), **stream_offset(self.next)})
