"""Stories told by python-qpid-proton's reactive API: handlers, run until they say they are done."""

from __future__ import annotations

from collections.abc import Callable

import proton
from proton import Delivery, Endpoint, Event, Link, Message
from proton.handlers import MessagingHandler
from proton.reactor import Container, LinkOption

from tests.support.patience import PATIENCE_S

TIMEOUT_S = PATIENCE_S


class Story(MessagingHandler):
    """Connects, calls `begin`, and goes on by events until `end`.

    `run` raises what an event handler raised, and fails when the broker closes anything with an
    error that the story does not expect (by defining a handler of its own) or after TIMEOUT_S.
    """

    def __init__(self, url: str, **options: object) -> None:
        super().__init__(**options)
        self.url = url
        self.connections: list[proton.Connection] = []
        self.bodies: list[object] = []
        self.failure = ""
        self._ends = False

    # -- to be defined

    def begin(self, container: Container, connection: proton.Connection) -> None:
        """Open the links."""
        raise AssertionError("a story begins somewhere")

    # -- run

    def run(self) -> None:
        Container(self).run()
        assert not self.failure, self.failure

    def on_start(self, event: Event) -> None:
        self._timer = event.container.schedule(TIMEOUT_S, self)
        self.begin(event.container, self.connect(event.container))

    def connect(self, container: Container, **more: object) -> proton.Connection:
        opened = container.connect(
            self.url, reconnect=False, allowed_mechs="PLAIN", handler=more.pop("handler", None),
            **more,
        )  # fmt: skip
        self.connections.append(opened)
        return opened

    def end(self) -> None:
        if not self._ends:
            self._ends = True
            self._timer.cancel()
            for one in self.connections:
                if not one.state & Endpoint.LOCAL_CLOSED:
                    one.close()

    def on_timer_task(self, event: Event) -> None:
        self._failed(f"not done after {TIMEOUT_S} s; the last: {self.bodies[-20:]!r}")

    def _failed(self, text: str) -> None:
        if not self._ends:
            self.failure = text
            self.end()

    def on_transport_error(self, event: Event) -> None:
        self._failed(f"transport: {event.transport.condition}")

    def on_connection_error(self, event: Event) -> None:
        self._failed(f"connection: {event.connection.remote_condition}")

    def on_session_error(self, event: Event) -> None:
        self._failed(f"session: {event.session.remote_condition}")

    def on_link_error(self, event: Event) -> None:
        self._failed(f"link {event.link.name}: {event.link.remote_condition}")


def body_of(message: Message) -> object:
    """Binary as bytes: proton's is a view that ends with the message."""
    return bytes(message.body) if isinstance(message.body, memoryview) else message.body


class Settle(LinkOption):
    """Settle modes."""

    def __init__(self, snd: int, rcv: int) -> None:
        self.snd = snd
        self.rcv = rcv

    def apply(self, link: Link) -> None:
        link.snd_settle_mode = self.snd
        link.rcv_settle_mode = self.rcv


class Filler(Story):
    """Sends messages as credit allows, and ends when all of them have an outcome."""

    def __init__(
        self, url: str, target: str | None, messages: list[Message], *options: LinkOption
    ) -> None:
        super().__init__(url)
        self.target = target
        self.messages = messages
        self.options = list(options)
        self.outcomes: list[object] = []
        self._sent = 0

    def begin(self, container: Container, connection: proton.Connection) -> None:
        container.create_sender(connection, self.target, options=self.options)

    def on_sendable(self, event: Event) -> None:
        while event.sender.credit and self._sent < len(self.messages):
            event.sender.send(self.messages[self._sent])
            self._sent += 1

    def on_settled(self, event: Event) -> None:
        self.outcomes.append(event.delivery.remote_state)
        if len(self.outcomes) == len(self.messages):
            self.end()


def fill(url: str, target: str | None, messages: list[Message], *options: LinkOption) -> None:
    """All of them are accepted."""
    filler = Filler(url, target, messages, *options)
    filler.run()
    assert filler.outcomes == [Delivery.ACCEPTED] * len(messages)


class Reader(Story):
    """Reads `count` messages with `settle(event)` for each."""

    def __init__(
        self,
        url: str,
        source: str,
        count: int,
        *options: LinkOption,
        settle: Callable[[Event], None] | None = None,
    ) -> None:
        super().__init__(url, auto_accept=settle is None)
        self.source = source
        self.count = count
        self.options = list(options)
        self._settle = settle
        self.messages: list[Message] = []

    def begin(self, container: Container, connection: proton.Connection) -> None:
        container.create_receiver(connection, self.source, options=self.options)

    def on_message(self, event: Event) -> None:
        self.messages.append(event.message)
        self.bodies.append(body_of(event.message))
        if self._settle is not None:
            self._settle(event)
        if len(self.bodies) == self.count:
            event.receiver.close()  # with what is buffered

    def on_link_closed(self, event: Event) -> None:
        self.end()


def read(url: str, source: str, count: int, *options: LinkOption) -> list[object]:
    """The bodies of the first `count` messages, all accepted."""
    reader = Reader(url, source, count, *options)
    reader.run()
    return reader.bodies
