"""Proton: `urls` of `Container.connect` is the list; it is gone through again after each break."""

from __future__ import annotations

from proton import Event, Message
from proton.handlers import MessagingHandler
from proton.reactor import Backoff, Container

from tests.cluster.clients import told


class Client(MessagingHandler):  # type: ignore[misc]  # proton has no types
    def __init__(self) -> None:
        super().__init__()
        self.numbers = told.numbers()
        self.sent = -1
        self.is_under_way = False

    def on_start(self, event: Event) -> None:
        connection = event.container.connect(
            urls=[f"amqp://guest:guest@{host}" for host in told.hosts()],
            allowed_mechs="PLAIN",
            reconnect=Backoff(initial=0.1, max_delay=0.2),
        )
        container = event.container
        make = container.create_sender if told.is_publisher() else container.create_receiver
        make(connection, f"/queues/{told.queue()}")

    def on_connection_opened(self, event: Event) -> None:
        """Of a new connection, too: what was under way on the old one is not confirmed."""
        self.is_under_way = False

    def on_transport_error(self, event: Event) -> None:
        """Do nothing: Proton connects again and makes the link again."""

    def on_sendable(self, event: Event) -> None:
        if self.is_under_way:
            return
        number = next(self.numbers, None)
        if number is None:
            event.connection.close()
            event.container.stop()
            return
        self.sent, self.is_under_way = number, True
        event.link.send(Message(body=number, durable=True))

    def on_accepted(self, event: Event) -> None:
        told.confirmed(self.sent)
        self.is_under_way = False
        self.on_sendable(event)

    def on_message(self, event: Event) -> None:
        told.received(event.message.body)  # and is accepted when this returns


Container(Client()).run()
