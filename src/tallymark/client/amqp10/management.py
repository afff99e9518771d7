"""Declaring and deleting over AMQP 1.0: HTTP in messages, to and from the node `/management`
[rabbitmq AMQP 1.0 management, HTTP over AMQP WD06]; docs/management-amqp.md has the table.

A session of its own with a pair of links: requests go on one, answers come on the other, settled.
One request is under way at a time, so that each sees what the one before it did.
"""

from __future__ import annotations

import uuid
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, cast, final
from urllib.parse import quote

from tallymark.client.adapter import ManagementPort
from tallymark.client.amqp10.session import OUTCOMES
from tallymark.client.errors import ClientError, NotPossible, RequestRefused
from tallymark.client.message import BadMessage, Message
from tallymark.client.topology import (
    AskForQueue,
    Bind,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    PurgeQueue,
    QueueState,
    Request,
    Unbind,
)
from tallymark.wire.amqp10.connection import Connection
from tallymark.wire.amqp10.errors import (
    DECODE_ERROR,
    INTERNAL_ERROR,
    INVALID_FIELD,
    NOT_ALLOWED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    UNAUTHORIZED_ACCESS,
)
from tallymark.wire.amqp10.events import TransfersReceived
from tallymark.wire.amqp10.performatives import Attach, Source, Target
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.session import Session
from tallymark.wire.amqp10.types import Symbol

NODE: Final = "/management"
REPLY_TO: Final = "$me"
"""The other half of the pair of links."""
PAIRED: Final[dict[object, object]] = {Symbol("paired"): True}
CREDIT: Final = 10
"""Answers that may come."""
SETTLED: Final = 1
BOTH: Final = 2
REFUSED: Final = 400
"""The lowest status of a request that was not done."""
CONDITIONS: Final[Mapping[int, str]] = {
    400: INVALID_FIELD,
    403: UNAUTHORIZED_ACCESS,
    404: NOT_FOUND,
    405: NOT_ALLOWED,
    409: PRECONDITION_FAILED,
}
LOCKED: Final = "exclusive access"
"""Text in a 400 that shows, as the only sign, that the queue is another connection's [rabbitmq]."""


@final
@dataclass(frozen=True, slots=True)
class Ask:
    """One HTTP request."""

    method: str
    path: str
    body: object = None


@final
@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: object


Conversation: TypeAlias = Generator[Ask, Reply, QueueState | None]
"""Requests that one call of the client needs, one after the other; returns the call's result.
Replies that refuse are not sent into it."""


@final
class Amqp10Management(ManagementPort):
    """Declarations and deletions of one connection, through the node `/management`."""

    def __init__(self, wire: Connection) -> None:
        """Raises NotPossible where the peer takes no more sessions."""
        super().__init__()
        self._wire = wire
        self._session: Session | None = None
        self._sender: SenderLink | None = None
        self._receiver: ReceiverLink | None = None
        self._attached = 0
        """Links of the pair that are."""
        self._conversation: Conversation | None = None
        self._unsent: bytes | None = None
        self._id = ""
        """Message id of the request whose answer is awaited."""

    # What the client asks for

    def _go_on(self) -> None:
        if self._waiting and self._session is None:
            self._begin()
        while self._conversation is None and self._waiting and self._attached == BOTH:
            self._conversation = conversation(self._first)
            self._step(None)

    def _begin(self) -> None:
        try:
            self._session = self._wire.begin()
        except ValueError as error:
            self._fail_all(NotPossible(f"no session for {NODE}: {error}"))
        else:
            self._session.context = self

    def _step(self, reply: Reply | None) -> None:
        """Ask the next thing of the request under way, or answer it."""
        going = self._conversation
        assert going is not None
        try:
            ask = next(going) if reply is None else going.send(reply)
        except StopIteration as end:
            self._answer(end.value)
        except NotPossible as error:
            self._answer(error)
        else:
            self._id = uuid.uuid4().hex
            try:
                self._unsent = Message(
                    ask.body,
                    message_id=self._id,
                    subject=ask.method,
                    to=ask.path,
                    reply_to=REPLY_TO,
                    durable=False,
                ).encode()
            except (TypeError, ValueError) as error:
                self._cannot_send(error)
            else:
                self.may_send()

    def _answer(self, result: object) -> None:
        self._conversation = None
        self._unsent = None
        self._id = ""
        super()._answer(result)

    def _fail_all(self, error: ClientError) -> None:
        while self._waiting:
            self._answer(error.copied())

    # Called by the adapter

    def begun(self) -> None:
        session = self._session
        if session is None:
            return
        name = f"management-{uuid.uuid4().hex[:12]}"
        source = Source(address=NODE, outcomes=OUTCOMES)
        out = Attach(name=name, source=source, target=Target(address=NODE), properties=PAIRED)
        back = Attach(name=name, source=source, target=Target(address=NODE), properties=PAIRED)
        try:
            self._sender = session.attach_sender(out, SETTLED)
            self._sender.context = self
            self._receiver = session.attach_receiver(back, SETTLED)
            self._receiver.context = self
        except ValueError as error:
            self.gone(NotPossible(f"no links to {NODE}: {error}"))

    def attached(self) -> None:
        """Note that one link of the pair is attached."""
        self._attached += 1
        if self._receiver is not None and self._attached == BOTH:
            self._receiver.flow(CREDIT)
            self._go_on()

    def may_send(self) -> None:
        sender = self._sender
        if self._unsent is not None and sender is not None and sender.credit:
            message = self._unsent
            self._unsent = None
            sender.send(message, settled=True)

    def received(self, event: TransfersReceived) -> None:
        for i in range(len(event)):
            self._received(event.data[event.cuts[i] : event.cuts[i + 1]])
        if self._receiver is not None:
            self._receiver.flow(CREDIT)
        self._go_on()

    def _received(self, data: bytes) -> None:
        try:
            message = Message.parse(data)
            id, status = message.correlation_id, int(message.subject or "")
            reply = Reply(status, message.body)
        except (BadMessage, ValueError) as error:
            if self._conversation is not None:
                text = f"an answer that is none: {error}"
                self._answer(RequestRefused(text, condition=DECODE_ERROR))
            return
        if self._conversation is None or id != self._id:
            return  # of a request whose caller has stopped waiting
        if reply.status >= REFUSED:
            self._answer(refusal(self._first, reply))
        else:
            self._step(reply)

    def gone(self, error: ClientError) -> None:
        """A link is gone, or the session: the next request begins anew. That is how some brokers
        refuse one, RabbitMQ where a permission is missing."""
        session = self._session
        if session is None:
            return
        self._session = self._sender = self._receiver = None
        was_attached = self._attached == BOTH
        self._attached = 0
        session.context = None  # its end is not the next one's
        session.end()
        if was_attached and self._conversation is not None:
            refused = RequestRefused(
                error.text, condition=error.condition, info=error.info, is_remote=error.is_remote
            )
            self._answer(refused)
        elif not was_attached:
            self._fail_all(NotPossible(f"the broker does not offer {NODE}: {error}"))
        self._go_on()


def refusal(request: Request, reply: Reply) -> RequestRefused:
    """Return the error for a refused request."""
    text = reply.body if isinstance(reply.body, str) else f"{request} answered with {reply.status}"
    condition = CONDITIONS.get(reply.status, INTERNAL_ERROR)
    if reply.status == REFUSED and LOCKED in text:
        condition = RESOURCE_LOCKED
    info: dict[object, object] = {"http-status": reply.status}
    return RequestRefused(text, condition=condition, info=info, is_remote=True)


def conversation(request: Request) -> Conversation:
    """Return the conversation that carries out a request. Raises NotPossible for requests that the
    node does not offer."""
    match request:
        case DeclareQueue():
            reply = yield Ask("PUT", _queue(request.name), _described(request))
            return _shown(request.name, reply)
        case DeclareExchange():
            described = {**_described(request), "type": request.type, "internal": request.internal}
            del described["exclusive"]
            yield Ask("PUT", _exchange(request.name), described)
        case Bind():
            kind = "destination_exchange" if request.to_exchange else "destination_queue"
            yield Ask(
                "POST",
                "/bindings",
                {
                    "source": request.source,
                    kind: request.destination,
                    "binding_key": request.key,
                    "arguments": dict(request.arguments),
                },
            )
        case Unbind():
            yield from _unbound(request)
        case AskForQueue():
            return _shown(request.name, (yield Ask("GET", _queue(request.name))))
        case PurgeQueue():
            reply = yield Ask("DELETE", f"{_queue(request.name)}/messages")
            return _shown(request.name, reply)
        case DeleteQueue():
            if request.if_unused or request.if_empty:
                raise NotPossible(f"{request} if unused or empty: {NODE} has no such condition")
            return _shown(request.name, (yield Ask("DELETE", _queue(request.name))))
        case DeleteExchange():
            if request.if_unused:
                raise NotPossible(f"{request} if unused: {NODE} has no such condition")
            yield Ask("DELETE", _exchange(request.name))
    return None


def _unbound(request: Unbind) -> Generator[Ask, Reply, None]:
    """Delete a binding. One with arguments is found in the list of those between the same ends."""
    source, destination, key = map(_quoted, (request.source, request.destination, request.key))
    kind = "e" if request.to_exchange else "q"
    if not request.arguments:
        yield Ask("DELETE", f"/bindings/src={source};dst{kind}={destination};key={key};args=")
        return
    reply = yield Ask("GET", f"/bindings?src={source}&dst{kind}={destination}&key={key}")
    bindings = reply.body if isinstance(reply.body, list) else []
    for found in bindings:
        if isinstance(found, dict) and _are_alike(found.get("arguments"), request.arguments):
            yield Ask("DELETE", str(found.get("location")))
            return


def _are_alike(one: object, other: object) -> bool:
    """Return whether a broker takes two values for the same; Python takes 1, 1.0 and True for
    equal."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_are_alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_are_alike, one, other))
    kinds = [(isinstance(value, bool), isinstance(value, float)) for value in (one, other)]
    return one == other and kinds[0] == kinds[1]


def _described(request: DeclareQueue | DeclareExchange) -> dict[str, object]:
    return {
        "durable": request.durable,
        "exclusive": isinstance(request, DeclareQueue) and request.exclusive,
        "auto_delete": request.auto_delete,
        "arguments": dict(request.arguments),
    }


def _shown(name: str, reply: Reply) -> QueueState:
    found = cast(dict[object, object], reply.body if isinstance(reply.body, dict) else {})

    def count(field: str) -> int:
        value = found.get(field)
        return int(value) if isinstance(value, int) else 0

    return QueueState(name, count("message_count"), count("consumer_count"))


def _queue(name: str) -> str:
    return f"/queues/{_quoted(name)}"


def _exchange(name: str) -> str:
    return f"/exchanges/{_quoted(name)}"


def _quoted(name: str) -> str:
    return quote(name, safe="")
