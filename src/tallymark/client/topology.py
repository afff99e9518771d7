"""Requests that declare and delete queues, exchanges and bindings; the memory of what was declared,
from which it is declared again after a reconnect; and the calls of a session that declare. See
docs/client.md, "Declaring".

A request is plain data. The adapters send it in their protocol: AMQP 0-9-1 on a channel of its own,
AMQP 1.0 as a message to the node `/management`.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias, final

from tallymark.client.arguments import check_fields, check_flag, check_text

LONGEST_NAME: Final = 255
"""Bytes of a name or key [amqp-0.9.1 §4.2.5.3]."""


@final
@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as the broker described it in an answer."""

    name: str
    message_count: int = 0
    """Messages that are ready."""
    consumer_count: int = 0

    def __str__(self) -> str:
        return self.name


@final
@dataclass(frozen=True, slots=True)
class DeclareQueue:
    name: str
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_name("name of a queue", self.name)
        _check_declaration(self)
        check_flag("exclusive", self.exclusive)

    def __str__(self) -> str:
        return f"declare queue {self.name!r}"


@final
@dataclass(frozen=True, slots=True)
class DeclareExchange:
    name: str
    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_name("name of an exchange", self.name)
        _check_name("type of an exchange", self.type)
        _check_declaration(self)
        check_flag("internal", self.internal)

    def __str__(self) -> str:
        return f"declare exchange {self.name!r}"


@final
@dataclass(frozen=True, slots=True)
class Bind:
    """Bind a queue, or with `to_exchange` an exchange, to the exchange `source`."""

    source: str
    destination: str
    to_exchange: bool = False
    key: str = ""
    arguments: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_binding(self.source, self.destination, self.key)

    def __str__(self) -> str:
        return f"bind {self.destination!r} to {self.source!r}"


@final
@dataclass(frozen=True, slots=True)
class Unbind:
    source: str
    destination: str
    to_exchange: bool = False
    key: str = ""
    arguments: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_binding(self.source, self.destination, self.key)

    def __str__(self) -> str:
        return f"unbind {self.destination!r} from {self.source!r}"


@final
@dataclass(frozen=True, slots=True)
class AskForQueue:
    name: str

    def __post_init__(self) -> None:
        _check_name("name of a queue", self.name)

    def __str__(self) -> str:
        return f"ask for queue {self.name!r}"


@final
@dataclass(frozen=True, slots=True)
class PurgeQueue:
    name: str

    def __post_init__(self) -> None:
        _check_name("name of a queue", self.name)

    def __str__(self) -> str:
        return f"purge queue {self.name!r}"


@final
@dataclass(frozen=True, slots=True)
class DeleteQueue:
    name: str
    if_unused: bool = False
    if_empty: bool = False

    def __post_init__(self) -> None:
        _check_name("name of a queue", self.name)
        check_flag("if_unused", self.if_unused)
        check_flag("if_empty", self.if_empty)

    def __str__(self) -> str:
        return f"delete queue {self.name!r}"


@final
@dataclass(frozen=True, slots=True)
class DeleteExchange:
    name: str
    if_unused: bool = False

    def __post_init__(self) -> None:
        _check_name("name of an exchange", self.name)
        check_flag("if_unused", self.if_unused)

    def __str__(self) -> str:
        return f"delete exchange {self.name!r}"


Declaration: TypeAlias = DeclareQueue | DeclareExchange | Bind
Request: TypeAlias = Declaration | Unbind | AskForQueue | PurgeQueue | DeleteQueue | DeleteExchange


@final
class Topology:
    """Declarations of one session that were not deleted, in the order of declaring."""

    __slots__ = ("_declared",)

    def __init__(self) -> None:
        self._declared: dict[object, Declaration] = {}

    def __iter__(self) -> Iterator[Declaration]:
        return iter(list(self._declared.values()))

    def record(self, request: Request, restore: bool = True) -> None:
        """Note a request that the broker has granted. restore=False: what it declares is not
        declared again after a reconnect, even where it was to be."""
        if isinstance(request, DeclareQueue | DeclareExchange | Bind):
            if restore:
                self._declared[_key(request)] = request
            else:
                self._declared.pop(_key(request), None)
        elif isinstance(request, Unbind):
            self._declared.pop(_binding_key(request), None)
        elif isinstance(request, DeleteQueue):
            self._forget_all_of("queue", request.name)
        elif isinstance(request, DeleteExchange):
            self._forget_all_of("exchange", request.name)

    def forget(self, declaration: Declaration) -> None:
        """Forget a declaration that the broker refuses now."""
        self._declared.pop(_key(declaration), None)

    def _forget_all_of(self, kind: str, name: str) -> None:
        """Forget a queue or an exchange, and the bindings that went with it."""
        for key, declared in list(self._declared.items()):
            if isinstance(declared, Bind):
                destination = "exchange" if declared.to_exchange else "queue"
                is_end = (kind, name) in (
                    ("exchange", declared.source),
                    (destination, declared.destination),
                )
                if is_end:
                    del self._declared[key]
            elif key == (kind, name):
                del self._declared[key]


def _table(arguments: Arguments | None) -> dict[str, object]:
    check_fields("arguments", arguments)
    return dict(arguments or NO_ARGUMENTS)


def _key(declaration: Declaration) -> object:
    if isinstance(declaration, DeclareQueue):
        return ("queue", declaration.name)
    if isinstance(declaration, DeclareExchange):
        return ("exchange", declaration.name)
    return _binding_key(declaration)


def _binding_key(binding: Bind | Unbind) -> object:
    arguments = repr(sorted(binding.arguments.items(), key=lambda item: item[0]))
    ends = (binding.source, binding.to_exchange, binding.destination)
    return ("binding", *ends, binding.key, arguments)


def _check_binding(source: str, destination: str, key: str) -> None:
    _check_name("name of an exchange", source)
    _check_name("name of a queue or exchange", destination)
    check_text("key", key)
    if len(key.encode()) > LONGEST_NAME:
        raise ValueError(f"binding key {key!r:.60}, expected at most {LONGEST_NAME} bytes")


def _check_declaration(declared: DeclareQueue | DeclareExchange) -> None:
    check_flag("durable", declared.durable)
    check_flag("auto_delete", declared.auto_delete)


def _check_name(what: str, name: str) -> None:
    check_text(what, name)
    if not 1 <= len(name.encode()) <= LONGEST_NAME:
        raise ValueError(f"{what} {name!r:.60}, expected text of 1 to {LONGEST_NAME} bytes")


Arguments = Mapping[str, object]
NO_ARGUMENTS: Final[Arguments] = {}
QUEUE_TYPE: Final = "x-queue-type"
EXCLUSIVE_NAME: Final = "client.gen-"
"""Prefix of generated names. The client generates them, so that they are the same after a
reconnect."""


class Declaring(ABC):
    """The part of a session that declares. What it has declared and not deleted is declared again
    when its connection comes back (unless `restore=False`), before its senders and receivers are
    attached; what the broker refuses then is reported to `on_error` and forgotten. A session that
    is closed leaves all of it as it is.

    Every call raises RequestRefused where the broker does not want it (and nothing was changed),
    NotPossible where it cannot be asked for that, TypeError or ValueError for names that are none
    and arguments that no broker can be told, TimedOut, `in_doubt`, and Closed, `in_doubt` where the
    connection went before the answer.
    """

    @abstractmethod
    async def _ask(self, request: Request, restore: bool = True) -> QueueState | None:
        """Have a request carried out, and record it. Return the queue that the answer describes, if
        it does."""

    async def declare_queue(
        self,
        name: str | None = None,
        *,
        type: str | None = None,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
        restore: bool = True,
    ) -> QueueState:
        """Make a queue, or see that it is there as described. Returns its name and counts.

        name: None: the client makes one up.
        type: "classic", "quorum" or "stream" (`x-queue-type`); None: as the broker likes.
        exclusive: for this connection alone, and deleted with it.
        auto_delete: deleted when its last consumer goes.
        arguments: `x-message-ttl`, `x-max-length`, `x-dead-letter-exchange`, ...
        """
        described = _table(arguments)
        if type is not None:
            check_text("type", type)
            described[QUEUE_TYPE] = type
        request = DeclareQueue(
            f"{EXCLUSIVE_NAME}{uuid.uuid4().hex}" if name is None else name,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=described,
        )
        return await self._ask_for_state(request, restore)

    async def declare_exchange(
        self,
        name: str,
        type: str = "direct",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Arguments | None = None,
        restore: bool = True,
    ) -> None:
        """Make an exchange, or see that it is there as described.

        type: "direct", "fanout", "topic", "headers", or another one that the broker has.
        auto_delete: deleted when the last thing that is bound to it goes.
        internal: only other exchanges publish to it.
        """
        request = DeclareExchange(
            name,
            type,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=_table(arguments),
        )
        await self._ask(request, restore)

    async def bind_queue(
        self,
        queue: str,
        exchange: str,
        key: str = "",
        *,
        arguments: Arguments | None = None,
        restore: bool = True,
    ) -> None:
        """Bind the queue to the exchange with `key`. Does nothing where that is so already."""
        table = _table(arguments)
        await self._ask(Bind(exchange, queue, False, key, table), restore)

    async def unbind_queue(
        self, queue: str, exchange: str, key: str = "", *, arguments: Arguments | None = None
    ) -> None:
        """Undo `bind_queue`. Does nothing where there is no such binding."""
        await self._ask(Unbind(exchange, queue, False, key, _table(arguments)))

    async def bind_exchange(
        self,
        destination: str,
        source: str,
        key: str = "",
        *,
        arguments: Arguments | None = None,
        restore: bool = True,
    ) -> None:
        """Bind an exchange to the exchange `source` with `key`."""
        table = _table(arguments)
        await self._ask(Bind(source, destination, True, key, table), restore)

    async def unbind_exchange(
        self, destination: str, source: str, key: str = "", *, arguments: Arguments | None = None
    ) -> None:
        """Undo `bind_exchange`."""
        await self._ask(Unbind(source, destination, True, key, _table(arguments)))

    async def queue_state(self, name: str) -> QueueState:
        """Return the number of ready messages and of consumers of a queue, which is not declared.
        Raises RequestRefused, 404, if it does not exist."""
        return await self._ask_for_state(AskForQueue(name))

    async def purge_queue(self, name: str) -> int:
        """Drop all messages of a queue that nobody holds. Returns how many they were."""
        return (await self._ask_for_state(PurgeQueue(name))).message_count

    async def delete_queue(
        self, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete a queue, its messages and its bindings. Returns how many messages nobody held.
        Does nothing where there is none.

        if_unused, if_empty: only without consumers, without messages; over AMQP 0-9-1 alone, else
            NotPossible.
        """
        request = DeleteQueue(name, if_unused=if_unused, if_empty=if_empty)
        return (await self._ask_for_state(request)).message_count

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange and its bindings. Does nothing where there is none.

        if_unused: only without bindings; over AMQP 0-9-1 alone, else NotPossible.
        """
        await self._ask(DeleteExchange(name, if_unused=if_unused))

    async def _ask_for_state(self, request: Request, restore: bool = True) -> QueueState:
        answer = await self._ask(request, restore)
        assert answer is not None, request
        return answer
