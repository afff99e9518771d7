"""Direct replies to an AMQP 1.0 client: our end of the link on which it waits for them.

The client attaches to a dynamic source of the kind `rabbitmq:volatile-queue`, or to the address of
`amq.rabbitmq.reply-to`, and receives an address that cannot be guessed. Messages published there by
any protocol are sent to it settled while it has credit, and are dropped otherwise
[rabbitmq direct reply-to].
"""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.amqp10.client import Session
from tallymark.bridge.amqp10.delivery import reply_to_amqp10
from tallymark.bridge.amqp10.links import LinkEnd
from tallymark.bridge.direct_reply import PREFIX, ReplyConsumer
from tallymark.stored.annotations import Route
from tallymark.wire.amqp10.events import CreditReceived
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.conversion.addresses import queue_address

VOLATILE_QUEUE: Final = "rabbitmq:volatile-queue"
"""Source capability of a link for direct replies."""


@final
class ReplyRecipient(ReplyConsumer):
    """The link that direct replies of one consumer go to."""

    __slots__ = ("end",)

    def __init__(self, token: str) -> None:
        super().__init__(token)
        self.end: ReplyLink | None = None
        """Link end; None after it was detached."""

    @property
    def address(self) -> str:
        return queue_address(PREFIX + self.token)

    def answer(
        self, format: int, message: bytes, route: Route, method_size: int, largest_frame: int
    ) -> None:
        if self.end is not None:
            self.end.send(reply_to_amqp10(format, message, route))


@final
class ReplyLink(LinkEnd):
    """Our end of the link. It and the recipient refer to each other until the link has ended."""

    __slots__ = ("_link", "_recipient", "_session")

    def __init__(self, session: Session, link: SenderLink, recipient: ReplyRecipient) -> None:
        self._session = session
        self._link = link
        self._recipient = recipient
        recipient.end = self
        session.client.settings.replies.add(recipient)

    def send(self, message: bytes) -> None:
        link, session = self._link, self._session
        if link.credit <= 0 or session.wire.is_blocked or session.client.connection.paused:
            return
        if link.max_message_size and len(message) > link.max_message_size:
            return
        session.engine.take_tag()
        link.send(message, settled=True)
        session.client.settings.replies.written.append(session.client.owner)

    def granted(self, event: CreditReceived) -> None:
        if event.drain:
            self._link.drained()

    def gone(self, with_session: bool) -> None:
        self._session.client.settings.replies.remove(self._recipient)
        self._recipient.end = None
