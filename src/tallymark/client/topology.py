"""Requests that declare and delete queues, exchanges and bindings, and the memory of what was
declared, from which it is declared again after a reconnect.

A request is plain data. The adapters say it in their protocol: AMQP 0-9-1 on a channel of its own,
AMQP 1.0 as a message to the node `/management`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias, final

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

    def __str__(self) -> str:
        return f"delete queue {self.name!r}"


@final
@dataclass(frozen=True, slots=True)
class DeleteExchange:
    name: str
    if_unused: bool = False

    def __post_init__(self) -> None:
        _check_name("name of an exchange", self.name)

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
        """Note a request that the broker has granted. `restore` false: what it declares is not to
        be declared again, also where it was to be."""
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
        """The broker refuses it now."""
        self._declared.pop(_key(declaration), None)

    def _forget_all_of(self, kind: str, name: str) -> None:
        """A queue or an exchange, and the bindings that went with it."""
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
    if len(key.encode()) > LONGEST_NAME:
        raise ValueError(f"binding key {key!r:.60}, expected at most {LONGEST_NAME} bytes")


def _check_name(what: str, name: str) -> None:
    if not isinstance(name, str) or not 1 <= len(name.encode()) <= LONGEST_NAME:
        raise ValueError(f"{what} {name!r:.60}, expected text of 1 to {LONGEST_NAME} bytes")
