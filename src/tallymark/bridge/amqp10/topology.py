"""Topology requests of AMQP 1.0 management: maps become operations, and their results maps.

Names that RabbitMQ's AMQP 1.0 refuses are refused here: with line breaks, with a reserved prefix,
and that of the default exchange.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.amqp10.management_paths import (
    BindingPath,
    Refusal,
    Request,
    arguments_hash,
    binding_location,
)
from tallymark.bridge.conversion.annotated import shown
from tallymark.bridge.operations import RESERVED, Operations, refuse_breaks, refuse_default
from tallymark.bridge.permissions import EXCHANGE, QUEUE, Access
from tallymark.engine.broker import Broker
from tallymark.engine.exchange import DIRECT, Binding
from tallymark.engine.names import named
from tallymark.engine.queue import Queue
from tallymark.engine.session import Connection
from tallymark.engine.vhost import VirtualHost
from tallymark.wire.amqp10.types import Array, Boolean, UInt, ULong
from tallymark.wire.conversion.values import field_name, to_amqp10, to_field

STRINGS: Final = 0xA1
"""Format code of short strings."""


@final
class Outcome:
    """The result of a request."""

    __slots__ = ("body", "status", "stored", "token")

    def __init__(
        self, status: int, body: object = None, stored: bool = False, token: bytes | None = None
    ) -> None:
        self.status = status
        self.body = body
        self.stored = stored
        """True if the answer waits for the disk."""
        self.token = token
        """A new token, which the answer waits for the check of."""


@final
class Topology:
    """Handlers of topology requests. Each raises Refusal or BrokerError, and then nothing was
    changed."""

    __slots__ = ("_access", "_connection", "_node", "_operations")

    def __init__(self, broker: Broker, connection: Connection, access: Access, node: str) -> None:
        self._access = access
        self._connection = connection
        self._node = node
        self._operations = Operations(broker, connection, access)

    @property
    def _vhost(self) -> VirtualHost:
        return self._operations.vhost

    # -- queues

    def show_queue(self, request: Request) -> Outcome:
        return Outcome(200, self._shown(self._operations.find_queue(request.name())))

    def declare_queue(self, request: Request) -> Outcome:
        fields = _Fields("queue", request.body)
        name = request.name()
        if not name:
            raise Refusal(
                400, "a queue with an empty name cannot be declared, expected POST /queues"
            )
        refuse_breaks(name)
        self._refuse_reserved(QUEUE, name)
        return self._declare_queue(name, fields)

    def name_queue(self, request: Request) -> Outcome:
        return self._declare_queue("", _Fields("queue", request.body))

    def _declare_queue(self, name: str, fields: _Fields) -> Outcome:
        durable = fields.flag("durable", True)
        exclusive = fields.flag("exclusive", False)
        auto_delete = fields.flag("auto_delete", False)
        arguments = fields.arguments()
        fields.end()
        made = self._operations.declare_queue(name, durable, exclusive, auto_delete, arguments)
        return Outcome(201 if made.is_new else 200, self._shown(made.queue), made.queue.stored)

    def delete_queue(self, request: Request) -> Outcome:
        name = request.name()
        refuse_breaks(name)
        done = self._operations.delete_queue(name)
        return Outcome(200, _count(done.count), done.lasts)

    def purge_queue(self, request: Request) -> Outcome:
        return Outcome(200, _count(self._operations.purge_queue(request.name())))

    def _shown(self, queue: Queue) -> dict[object, object]:
        """Return the description of a queue in RabbitMQ's form. Its message count is that of the
        ready messages."""
        return {
            "leader": self._node,
            "replicas": Array([self._node], STRINGS),
            "message_count": ULong(queue.ready),
            "consumer_count": UInt(len(queue.consumers)),
            "name": shown(queue.name),
            "vhost": shown(queue.vhost),
            "durable": Boolean(queue.durable),
            "auto_delete": Boolean(queue.auto_delete),
            "exclusive": Boolean(queue.exclusive_owner != 0),
            "type": queue.settings.type,
            "arguments": _shown_arguments(queue.arguments),
        }

    # -- exchanges

    def declare_exchange(self, request: Request) -> Outcome:
        name = request.name()
        fields = _Fields("exchange", request.body)
        type = fields.text("type", DIRECT)
        durable = fields.flag("durable", True)
        auto_delete = fields.flag("auto_delete", False)
        internal = fields.flag("internal", False)
        arguments = fields.arguments()
        fields.end()
        refuse_default(name)
        if name not in self._vhost.exchanges:
            refuse_breaks(name)
            self._refuse_reserved(EXCHANGE, name)
        done = self._operations.declare_exchange(
            name, type, durable, auto_delete, internal, arguments
        )
        return Outcome(204, None, done.lasts)

    def delete_exchange(self, request: Request) -> Outcome:
        name = request.name()
        refuse_breaks(name)
        refuse_default(name)
        self._refuse_reserved(EXCHANGE, name)
        return Outcome(204, None, self._operations.delete_exchange(name).lasts)

    # -- bindings

    def bind(self, request: Request) -> Outcome:
        fields = _Fields("binding", request.body)
        source = fields.text("source")
        kind = EXCHANGE if "destination_exchange" in fields else QUEUE
        destination = fields.text(f"destination_{kind}")
        key = fields.text("binding_key")
        arguments = fields.arguments()
        fields.end()
        _check_ends(source, kind, destination)
        done = self._operations.bind(source, kind, destination, key, arguments)
        return Outcome(204, None, done.lasts)

    def unbind(self, request: Request) -> Outcome:
        path = BindingPath(request.segments[1])
        kind = QUEUE if path.is_queue else EXCHANGE
        _check_ends(path.source, kind, path.destination)
        self._operations.check_binding(path.source, kind, path.destination, path.key)
        for binding in self._bindings(path.source, path.is_queue, path.destination, path.key):
            if arguments_hash(binding.arguments) == path.arguments:
                done = self._operations.unbind(
                    path.source, kind, path.destination, path.key, binding.arguments
                )
                return Outcome(204, None, done.lasts)
        return Outcome(204, None, True)  # as Done.lasts of what is not there

    def list_bindings(self, request: Request) -> Outcome:
        found: list[Binding] = []
        for query in request.queries:
            is_queue = "dste" not in query
            wanted = ("src", "dstq" if is_queue else "dste", "key")
            for name in wanted:
                if name not in query:
                    raise Refusal(
                        400,
                        f"'{name}' is missing in '{request.target}', expected src, key and dstq "
                        "or dste",
                    )
            source, destination, key = [query[name] for name in wanted]
            found = self._bindings(source, is_queue, destination, key)
            if found:
                break
        return Outcome(200, [_shown_binding(binding) for binding in found])

    def _bindings(self, source: str, is_queue: bool, destination: str, key: str) -> list[Binding]:
        """Return the bindings between the two with this key; an empty list if one of them does not
        exist."""
        exchange = self._vhost.exchanges.get(source)
        if exchange is None:
            return []
        kind = QUEUE if is_queue else EXCHANGE
        return [
            binding
            for binding in exchange.bindings.values()
            if binding.key == key
            and binding.kind() == kind
            and binding.destination() == destination
        ]

    # -- others

    def renew_token(self, request: Request) -> Outcome:
        """The token is the body, as bytes [rabbitmq]."""
        if not self._access.is_renewable:
            raise Refusal(
                400,
                f"user '{self._connection.user}' logged in by another way than a token, there is "
                "nothing to renew",
            )
        token = request.body
        if not isinstance(token, bytes):
            raise Refusal(400, f"the body is {type(token).__name__}, expected a token as binary")
        return Outcome(204, token=token)

    def _refuse_reserved(self, kind: str, name: str) -> None:
        if name.startswith(RESERVED):
            what = named(kind, name, self._connection.vhost)
            raise Refusal(403, f"{what} starts with reserved prefix '{RESERVED}'")


@final
class _Fields:
    """Takes the members of a request's map one by one. Raises Refusal 400 for an unexpected
    value."""

    __slots__ = ("_left", "_what")

    def __init__(self, what: str, body: object) -> None:
        if not isinstance(body, dict):
            raise Refusal(
                400, f"the body is {body!r:.60}, expected a map that describes the {what}"
            )
        self._what = what
        self._left: dict[object, object] = dict(body)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def flag(self, name: str, default: bool) -> bool:
        value = self._left.pop(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "a boolean")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Take a text. Without a default the member is required."""
        value = self._left.pop(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return str(value)

    def arguments(self) -> dict[str, object]:
        """Take arguments in the engine's form; an empty dict if they are missing or null."""
        value = self._left.pop("arguments", None)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._wrong("arguments", value, "a map")
        found: dict[str, object] = {}
        for key, argument in value.items():
            name = field_name(key) if isinstance(key, str) else None
            if name is None:
                raise Refusal(
                    400, f"argument {key!r:.60} of the {self._what}, expected a name of at most "
                    "255 bytes"
                )  # fmt: skip
            found[name] = to_field(argument, 1)
        return found

    def end(self) -> None:
        """Raise Refusal if any member is left."""
        if self._left:
            name = next(iter(self._left))
            raise Refusal(400, f"the {self._what} has no property {name!r:.60}")

    def _wrong(self, name: str, value: object, expected: str) -> Refusal:
        return Refusal(400, f"'{name}' of the {self._what} is {value!r:.60}, expected {expected}")


def _check_ends(source: str, kind: str, destination: str) -> None:
    """Raise AccessRefused or InvalidCommand for ends that no binding may have."""
    refuse_default(source)
    if kind == EXCHANGE:
        refuse_default(destination)
    refuse_breaks(source)
    refuse_breaks(destination)


def _count(messages: int) -> dict[object, object]:
    return {"message_count": ULong(messages)}


def _shown_arguments(arguments: dict[str, object]) -> dict[object, object]:
    return {shown(key): _long_form(to_amqp10(argument)) for key, argument in arguments.items()}


def _long_form(value: object) -> object:
    """Return the value with booleans in two bytes, as in RabbitMQ's answers: its clients accept no
    others."""
    if isinstance(value, bool):
        return Boolean(value)
    if isinstance(value, dict):
        return {key: _long_form(one) for key, one in value.items()}
    if type(value) is list:
        return [_long_form(one) for one in value]
    return value


def _shown_binding(binding: Binding) -> dict[object, object]:
    is_queue = binding.queue is not None
    destination = binding.destination()
    return {
        "source": shown(binding.source.name),
        "destination_queue" if is_queue else "destination_exchange": shown(destination),
        "binding_key": shown(binding.key),
        "arguments": _shown_arguments(binding.arguments),
        "location": binding_location(
            binding.source.name, is_queue, destination, binding.key, binding.arguments
        ),
    }
