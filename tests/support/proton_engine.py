"""Proton's protocol engine without I/O, as the other end of one of our connections."""

from __future__ import annotations

from typing import Any

import proton

from tests.support.amqp10_pair import End


class Engine:
    """One end: proton's connection, and what it has told."""

    def __init__(self, is_server: bool, max_frame_size: int = 0) -> None:
        self.transport = proton.Transport(
            proton.Transport.SERVER if is_server else proton.Transport.CLIENT
        )
        if max_frame_size:
            self.transport.max_frame_size = max_frame_size
        self.connection = proton.Connection()
        self.connection.container = "proton"
        self.events: list[tuple[str, Any]] = []
        self._collector = proton.Collector()
        self.connection.collect(self._collector)

    def bind(self) -> None:
        self.transport.bind(self.connection)

    def take(self) -> bytes:
        """What it has to write."""
        out = b""
        while (size := self.transport.pending()) > 0:
            data = self.transport.peek(size)
            out += data
            self.transport.pop(len(data))
        return out

    def give(self, data: bytes) -> None:
        pos = 0
        while pos < len(data):
            room = self.transport.capacity()
            assert room > 0, f"proton takes no more: {self.error}"
            self.transport.push(data[pos : pos + room])
            pos += room
        self.read()

    def read(self) -> None:
        while (event := self._collector.peek()) is not None:
            self.events.append((event.type.name, event.context))
            self._collector.pop()

    @property
    def error(self) -> Any:
        """What it holds against its peer: None, we hope."""
        return self.transport.condition

    def of(self, name: str) -> list[Any]:
        """The objects of its events of that name, each once."""
        found: list[Any] = []
        for kind, context in self.events:
            if kind == name and context not in found:
                found.append(context)
        return found


def pump(ours: End, theirs: Engine) -> None:
    """Pass on what there is until nothing is left to say."""
    while True:
        theirs.read()
        to_us = theirs.take()
        if to_us:
            ours.give(to_us, 0)
        to_them = ours.take(0)
        if to_them:
            theirs.give(to_them)
        if not to_us and not to_them:
            return


def receive(link: Any) -> list[tuple[bytes, bytes, Any]]:
    """Tag, bytes and delivery of all complete deliveries at the head of a receiver."""
    found = []
    while (delivery := link.current) is not None and not delivery.partial:
        data = link.recv(delivery.pending) or b""
        found.append((delivery.tag.encode("latin-1"), bytes(data), delivery))
        link.advance()
    return found


def send(link: Any, tag: str, data: bytes) -> Any:
    delivery = link.delivery(tag)
    link.send(data)
    link.advance()
    return delivery
