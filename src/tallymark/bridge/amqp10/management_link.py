"""Links to the node `/management`: requests in, answers out, each on one half of a pair of links
that have the same name [amqp-1.0 link pair §2.1].

Answers go out in the order of the requests, settled, as the client gives credit; one that tells of
a change which outlives a restart waits for the disk, and those behind it wait with it. Requests get
credit as long as few answers wait.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from tallymark.bridge.amqp import Renewal
from tallymark.bridge.amqp10.client import Delayed, Session
from tallymark.bridge.amqp10.links import LinkEnd
from tallymark.bridge.amqp10.management import Management, NotAnswerable, answer_to_token
from tallymark.wire.amqp10.errors import MESSAGE_SIZE_EXCEEDED
from tallymark.wire.amqp10.events import CreditReceived, TransfersReceived
from tallymark.wire.amqp10.outcomes import Accepted, Error
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sections import MessageId
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.serial import add

CREDIT: Final = 8
"""Credit for requests [rabbitmq]."""
ACCEPTED: Final = Accepted()


@final
class Response(Delayed):
    """A response that is to be sent."""

    __slots__ = ("data", "is_ready", "pair")

    def __init__(self, pair: LinkPair, data: bytes, is_ready: bool) -> None:
        super().__init__(pair.session.client)
        self.pair = pair
        self.data = data
        self.is_ready = is_ready

    def say(self) -> None:
        self.is_ready = True
        self.pair.flush()
        self.pair.session.client.answered()


@final
class TokenRenewal(Renewal):
    """A request that brought a new token, and its response."""

    __slots__ = ("_id", "_response")

    def __init__(self, secret: bytes, id: MessageId, response: Response) -> None:
        super().__init__(secret)
        self._id = id
        self._response = response

    def done(self, is_accepted: bool) -> None:
        self._response.data = answer_to_token(self._id, is_accepted)
        self._response.say()


@final
class LinkPair:
    """A pair of links. One half may not be attached yet, or no more."""

    __slots__ = ("incoming", "management", "name", "outgoing", "responses", "session")

    def __init__(self, session: Session, name: str) -> None:
        client = session.client
        self.session = session
        self.name = name
        self.management = Management(
            client.broker, client.connection, client.access, client.settings.node_name
        )
        self.incoming: ReceiverLink | None = None
        self.outgoing: SenderLink | None = None
        self.responses: deque[Response] = deque()

    def request(self, message: bytes) -> None:
        """Handle a request. Raises NotAnswerable."""
        client = self.session.client
        client.answering += 1
        try:
            answer = self.management.answer(message)
        except NotAnswerable:
            client.answered()
            raise
        is_ready = not answer.stored and answer.token is None
        response = Response(self, answer.data, is_ready)
        self.responses.append(response)
        if answer.stored:
            client.broker.await_durable(response)
        if answer.token is not None:
            client.owner.renew(TokenRenewal(answer.token, answer.id, response))
        self._send()
        if is_ready:
            client.answered()

    def flush(self) -> None:
        """Send the responses that may be sent, and grant credit for more requests."""
        self._send()
        self.grant()

    def _send(self) -> None:
        """Send the responses that may be sent. One that is larger than the client takes is dropped,
        and ends its link [amqp-1.0 §2.7.3 max-message-size]."""
        link, responses, session = self.outgoing, self.responses, self.session
        if link is not None and not session.engine.closed:
            while responses and responses[0].is_ready and link.credit > 0:
                data = responses.popleft().data
                if 0 < link.max_message_size < len(data):
                    text = (
                        f"response of {len(data)} bytes, max-message-size {link.max_message_size}"
                    )
                    link.detach(Error(MESSAGE_SIZE_EXCEEDED, text))
                    session.leave(link)
                    return
                session.engine.take_tag()
                link.send(data, settled=True)

    def grant(self) -> None:
        link = self.incoming
        wanted = CREDIT - len(self.responses)
        if link is None or self.session.engine.closed or wanted <= 0:
            return
        if link.credit <= wanted // 2:
            link.flow(wanted)


@final
class RequestLink(LinkEnd):
    """Our end of the link for requests."""

    __slots__ = ("_link", "pair")

    def __init__(self, pair: LinkPair, link: ReceiverLink) -> None:
        self.pair = pair
        self._link = link
        pair.incoming = link

    def received(self, event: TransfersReceived) -> None:
        session, link = self.pair.session, self._link
        if event.is_second:
            link.settle(event.first, add(event.first, len(event) - 1), ACCEPTED)
        elif not event.settled:
            session.wire.settle_received(event.first, add(event.first, len(event) - 1), ACCEPTED)
        for i in range(len(event)):
            try:
                self.pair.request(event.data[event.cuts[i] : event.cuts[i + 1]])
            except NotAnswerable as error:
                link.detach(Error(error.condition, error.text))
                session.leave(link)
                return
        self.pair.grant()

    def gone(self, with_session: bool) -> None:
        self.pair.incoming = None


@final
class ResponseLink(LinkEnd):
    """Our end of the link for responses."""

    __slots__ = ("_link", "pair")

    def __init__(self, pair: LinkPair, link: SenderLink) -> None:
        self.pair = pair
        self._link = link
        pair.outgoing = link

    def granted(self, event: CreditReceived) -> None:
        self.pair.flush()
        if event.drain and self.pair.outgoing is self._link:
            self._link.drained()

    def gone(self, with_session: bool) -> None:
        self.pair.outgoing = None
