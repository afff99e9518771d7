"""The node `/management`: HTTP over AMQP 1.0, as RabbitMQ 4 and its clients speak it.

    request                            response
    properties.message-id    any    -> properties.correlation-id    the same
    properties.subject       GET       properties.subject           200
    properties.to            /queues/q application-properties       http:response = 1.1
    properties.reply-to      $me       amqp-value                   a map, a list, null; of refusals
    amqp-value               a map                                  the reason, a string

    PUT /queues/:queue                     declare: 201 it is new, 200 it was there
    POST /queues                           declare one that the broker names: 201 (not in RabbitMQ)
    GET /queues/:queue                     200
    DELETE /queues/:queue                  200, also where there is none
    DELETE /queues/:queue/messages         purge: 200
    PUT, DELETE /exchanges/:exchange       declare, delete: 204
    POST /bindings                         bind: 204
    GET /bindings?src=&dstq=&key=          200; `dste` for an exchange
    DELETE /bindings/src=;dstq=;key=;args= unbind: 204, also where there is none

What is refused: 400 it makes no sense, or the queue is another connection's; 403 no permission, a
reserved name; 404 something is not there; 405 not with this method; 409 it is there with other
properties, or an argument is out of range. Nothing is changed then. [rabbitmq AMQP 1.0 management,
HTTP over AMQP WD06]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tallymark.bridge.amqp10.management_paths import Refusal, Request, path_of
from tallymark.bridge.amqp10.topology import Outcome, Topology
from tallymark.bridge.conversion.annotated import shown
from tallymark.bridge.permissions import Access
from tallymark.engine.broker import Broker
from tallymark.engine.errors import (
    AccessRefused,
    BrokerError,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ResourceExhausted,
)
from tallymark.engine.session import Connection
from tallymark.wire.amqp10.codec import decode, skip
from tallymark.wire.amqp10.errors import INVALID_FIELD, DecodeError
from tallymark.wire.amqp10.sections import (
    PROPERTIES,
    VALUE,
    MessageId,
    Properties,
    Sections,
    Value,
    encode_message,
    section_code,
)

REPLY_TO: Final = "$me"
"""Address of the other half of the link pair [amqp-1.0 link pair §2.1]."""
LONGEST_TARGET: Final = 4096
"""Maximum number of characters in a request's target."""


@final
class NotAnswerable(Exception):
    """The request is malformed so that it cannot be answered: the link it came on is closed."""

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(text)
        self.condition = condition
        self.text = text


@final
class Answer:
    """A response to a request."""

    __slots__ = ("data", "id", "status", "stored", "token")

    def __init__(
        self, data: bytes, status: int, stored: bool, id: MessageId, token: bytes | None
    ) -> None:
        self.data = data
        """Message of the response: its sections."""
        self.status = status
        self.stored = stored
        """True if the response reports a change that survives a restart, so that it waits for the
        disk."""
        self.id = id
        """The request's."""
        self.token = token
        """A new token: the answer is `answer_to_token`, once that is checked."""


@final
class Management:
    """The management of one connection."""

    __slots__ = ("_topology",)

    def __init__(self, broker: Broker, connection: Connection, access: Access, node: str) -> None:
        """node: name shown as a queue's leader and replica."""
        self._topology = Topology(broker, connection, access, node)

    def answer(self, message: bytes) -> Answer:
        """Carry out a request; `message` is all of it. Raises NotAnswerable."""
        id, request = _request(message)
        outcome = self._outcome(request)
        status = outcome.status
        data = _response(id, status, outcome.body)
        return Answer(data, status, outcome.stored, id, outcome.token)

    def _outcome(self, request: Request) -> Outcome:
        try:
            return self._do(request)
        except Refusal as refusal:
            return Outcome(refusal.status, refusal.text)
        except BrokerError as error:  # what a change does not find may have been removed just now
            is_gone = isinstance(error, NotFound) and request.method != "GET"
            return Outcome(status_of(error), shown(str(error)), is_gone)

    def _do(self, request: Request) -> Outcome:
        """Carry out a request. Raises Refusal, BrokerError."""
        segments, queries = path_of(request.target)
        handlers = _handlers(segments)
        handler = handlers.get(request.method)
        if handler is None:
            if not handlers:
                raise Refusal(404, f"no resource '{request.target}'")
            raise Refusal(
                405,
                f"'{request.method}' of '{request.target}' is not offered, expected "
                f"{' or '.join(handlers)}",
            )
        request.segments = segments
        request.queries = queries
        return handler(self._topology, request)


def status_of(error: BrokerError) -> int:
    """Return the HTTP status for an error of the engine."""
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, PreconditionFailed):
        return 409
    if isinstance(error, (AccessRefused, NotAllowed, ResourceExhausted)):
        return 403
    return 400


def answer_to_token(id: MessageId, is_accepted: bool) -> bytes:
    """The response to a request that brought a new token."""
    if is_accepted:
        return _response(id, 204, None)
    return _response(id, 400, "the new token was refused")


Handler = Callable[[Topology, Request], Outcome]

_QUEUES: Final[dict[str, Handler]] = {"POST": Topology.name_queue}
_QUEUE: Final[dict[str, Handler]] = {
    "GET": Topology.show_queue,
    "PUT": Topology.declare_queue,
    "DELETE": Topology.delete_queue,
}
_MESSAGES: Final[dict[str, Handler]] = {"DELETE": Topology.purge_queue}
_EXCHANGE: Final[dict[str, Handler]] = {
    "PUT": Topology.declare_exchange,
    "DELETE": Topology.delete_exchange,
}
_BINDINGS: Final[dict[str, Handler]] = {
    "GET": Topology.list_bindings,
    "POST": Topology.bind,
}
_BINDING: Final[dict[str, Handler]] = {"DELETE": Topology.unbind}
_TOKENS: Final[dict[str, Handler]] = {"PUT": Topology.renew_token}
_NOTHING: Final[dict[str, Handler]] = {}


def _handlers(segments: list[str]) -> dict[str, Handler]:
    """Return the handlers of a path, by method."""
    first = segments[0]
    count = len(segments)
    if first == "queues":
        if count == 1:
            return _QUEUES
        if count == 2:
            return _QUEUE
        return _MESSAGES if count == 3 and segments[2] == "messages" else _NOTHING
    if first == "exchanges" and count == 2:
        return _EXCHANGE
    if first == "bindings" and count <= 2:
        return _BINDINGS if count == 1 else _BINDING
    return _TOKENS if segments == ["auth", "tokens"] else _NOTHING


# -- messages


def _request(message: bytes) -> tuple[MessageId, Request]:
    """Decode a request: its id and content. Raises NotAnswerable."""
    try:
        properties, body = _parts(message)
    except DecodeError as error:
        raise NotAnswerable(error.condition, f"the request cannot be read: {error.text}") from None
    if properties is None:
        raise NotAnswerable(INVALID_FIELD, "a request without properties")
    if properties.message_id is None:
        raise NotAnswerable(INVALID_FIELD, "a request without message-id")
    if properties.reply_to != REPLY_TO:
        raise NotAnswerable(
            INVALID_FIELD, f"reply-to is {properties.reply_to!r}, expected '{REPLY_TO}'"
        )
    method, target = properties.subject, properties.to
    if method is None or target is None:
        missing = "subject" if method is None else "to"
        raise NotAnswerable(INVALID_FIELD, f"a request without {missing}")
    if len(target) > LONGEST_TARGET:
        raise NotAnswerable(
            INVALID_FIELD, f"'to' has {len(target)} characters, at most {LONGEST_TARGET} are taken"
        )
    return properties.message_id, Request(method, target, body)


def _parts(message: bytes) -> tuple[Properties | None, object]:
    """Return properties and body, whatever the order of sections: RabbitMQ's Python client writes
    an empty body first. A body that is no value counts as none."""
    properties: Properties | None = None
    body: object = None
    pos = 0
    end = len(message)
    while pos < end:
        code, at = section_code(message, pos, end)
        after = skip(message, at, end)
        if code == PROPERTIES:
            properties = Sections(message, pos, after).properties
        elif code == VALUE:
            body, _ = decode(message, at, after)
        pos = after
    return properties, body


def _response(id: MessageId, status: int, body: object) -> bytes:
    return encode_message(
        properties=Properties(subject=str(status), correlation_id=id),
        application_properties={"http:response": "1.1"},
        body=Value(body),
    )
