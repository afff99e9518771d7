"""Plans: a shovel as the configuration or the command line describes it, checked.

[[shovels]]
name = "orders-from-rabbit"
from = "amqp://user:secret@rabbit:5672/%2F"
queue = "orders"
to = "http://user:secret@127.0.0.1:15672"
to-queue = "orders"                       # the same name, when all three are left out
to-exchange = "orders"                    # in place of to-queue
to-key = "new"                            # each message's own routing key, when left out
batch = 200                               # messages taken at a time
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from itertools import cycle, product
from typing import Final, Self, final
from urllib.parse import unquote, urlsplit

from tallymark.shovels.shovel import BATCH
from tallymark.wire.nsq.names import is_name

AMQP: Final = {
    "amqp": "amqp091", "amqps": "amqps091", "amqp091": "amqp091", "amqps091": "amqps091",
    "amqp10": "amqp", "amqps10": "amqps",
}  # fmt: skip
"""Schemes of addresses, and what the client calls them: `amqp` is 0-9-1, as RabbitMQ has it."""
HTTP: Final = ("http", "https")
NSQ: Final = "nsq"
SCHEMES: Final = (*AMQP, *HTTP, NSQ)
PORTS: Final = {
    "amqp": 5672, "amqps": 5671, "amqp091": 5672, "amqps091": 5671, "amqp10": 5672,
    "amqps10": 5671, "http": 15672, "https": 15671, NSQ: 4150,
}  # fmt: skip
"""Ports of addresses that name none."""
THIS_MACHINE: Final = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::")
"""Hosts by which a broker of this machine is reached where it listens as it does by default.
Another one may listen at 127.0.0.2."""
NAME_MAX: Final = 100
BATCH_MAX: Final = 10_000
FIELDS: Final = ("name", "from", "queue", "to", "to-queue", "to-exchange", "to-key", "batch")


class PlanRefused(ValueError):
    """A plan cannot be carried out; the text says which field, its value and what was expected."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One shovel, from a queue of one broker to a queue or an exchange of another."""

    name: str
    source: str = field(repr=False)
    """Address of the broker that has the queue, or of several of which one leads."""
    queue: str
    target: str = field(repr=False)
    to_queue: str | None = None
    to_exchange: str | None = None
    to_key: str | None = None
    """Routing key of all messages; None: each keeps its own. Only with an exchange."""
    batch: int = BATCH

    @classmethod
    def from_table(cls, table: Mapping[str, object]) -> Self:
        """Return the plan that a table of the configuration is. Raises PlanRefused."""
        for key in table:
            if key not in FIELDS:
                raise PlanRefused(f"unknown field '{key}', expected {', '.join(FIELDS)}")
        name = _text(table, "name")
        if not 0 < len(name) <= NAME_MAX:
            raise PlanRefused(f"name is {name!r}, expected 1 to {NAME_MAX} letters")
        batch = table.get("batch", BATCH)
        if not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= BATCH_MAX:
            raise PlanRefused(f"batch is {batch!r}, expected 1 to {BATCH_MAX}")
        found = cls(
            name=name,
            source=_address(table, "from"),
            queue=_text(table, "queue"),
            target=_address(table, "to"),
            to_queue=_optional(table, "to-queue"),
            to_exchange=_optional(table, "to-exchange"),
            to_key=_optional(table, "to-key"),
            batch=batch,
        )
        found._check()
        return found

    def _check(self) -> None:
        if not self.queue:
            raise PlanRefused("queue is '', expected a name")
        if self.to_queue is not None and self.to_exchange is not None:
            raise PlanRefused(
                f"to-queue is '{self.to_queue}' and to-exchange '{self.to_exchange}', expected one "
                "of them"
            )
        if self.to_key is not None and self.to_exchange is None:
            raise PlanRefused(f"to-key is '{self.to_key}' without to-exchange")
        if scheme_of(self.source) == NSQ:
            topic, _, channel = self.queue.partition("/")
            if not (is_name(topic) and is_name(channel)):
                raise PlanRefused(f"queue is '{self.queue}', expected topic/channel of an nsqd")
            if self.to_queue is None and self.to_exchange is None:
                raise PlanRefused("to-queue is missing, expected one for messages of an nsqd")
        if scheme_of(self.target) == NSQ:
            if self.to_exchange is not None:
                raise PlanRefused(f"to-exchange is '{self.to_exchange}', an nsqd has none")
            if not is_name(self.to_queue or self.queue):
                raise PlanRefused(f"to-queue is '{self.to_queue or self.queue}', expected a topic")
        queue = self.queue.partition("/")[0] if scheme_of(self.source) == NSQ else self.queue
        is_same_name = self.to_exchange is None and (self.to_queue or self.queue) == queue
        if is_same_name and not _places(self.source).isdisjoint(_places(self.target)):
            raise PlanRefused(
                f"queue '{self.queue}' of {shown(self.source)} is its own target, expected another "
                "queue or another broker"
            )

    def turns(self) -> Iterator[Self]:
        """Return, for ever, one plan for each attempt: with one broker on each side, and all pairs
        of them in turn."""
        for source, target in cycle(product(brokers_in(self.source), brokers_in(self.target))):
            yield replace(self, source=source, target=target)

    def value(self) -> dict[str, object]:
        """Return the plan as the configuration spells it, without passwords."""
        found: dict[str, object] = {
            "name": self.name,
            "from": shown(self.source),
            "queue": self.queue,
            "to": shown(self.target),
        }
        if self.to_exchange is not None:
            found["to-exchange"] = self.to_exchange
            if self.to_key is not None:
                found["to-key"] = self.to_key
        else:
            found["to-queue"] = self.to_queue or self.queue
        return found


def scheme_of(address: str) -> str:
    return address.partition("://")[0].lower()


def is_091(address: str) -> bool:
    """Return whether an address is one of AMQP 0-9-1."""
    return AMQP.get(scheme_of(address), "").endswith("091")


def shown(address: str) -> str:
    """
    >>> shown("amqp://me:secret@rabbit:5672/%2F")
    'amqp://rabbit:5672/%2F'
    """
    scheme, slashes, rest = address.partition("://")
    if not scheme.isalnum():  # it is none, but part of who logs in
        scheme, slashes, rest = "", "", address
    return scheme + slashes + rest.rpartition("@")[2]


def _text(table: Mapping[str, object], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str):
        raise PlanRefused(f"{key} is {value!r}, expected text")
    return value


def _optional(table: Mapping[str, object], key: str) -> str | None:
    return None if key not in table else _text(table, key)


def brokers_in(address: str) -> list[str]:
    """Return the addresses of the brokers that an address names, as a leader and its standbys.

    >>> brokers_in("amqp://me:secret@a:5672,b/%2F")
    ['amqp://me:secret@a:5672/%2F', 'amqp://me:secret@b/%2F']
    """
    scheme, slashes, rest = address.partition("://")
    login, at, place = rest.rpartition("@")
    hosts, slash, path = place.partition("/")
    return [f"{scheme}{slashes}{login}{at}{host}{slash}{path}" for host in hosts.split(",")]


def _places(address: str) -> set[tuple[str, str, int, str]]:
    """Return the virtual hosts that an address names, of each of its brokers, whoever logs in:
    protocol, of whatever version, host, port and name."""
    found = set()
    for broker in brokers_in(address):
        parts = urlsplit(broker)
        vhost = unquote(parts.path.removeprefix("/")) or "/"
        port = PORTS[parts.scheme] if parts.port is None else parts.port
        protocol = "amqp" if parts.scheme in AMQP else "http" if parts.scheme in HTTP else NSQ
        found.add((protocol, _machine(parts.hostname or ""), port, vhost))
    return found


def _machine(host: str) -> str:
    """Return one text for all ways to write a host that need no name service: those of this machine
    are "localhost".

    >>> _machine("127.0.0.1"), _machine("::1"), _machine("127.0.0.2"), _machine("2001:DB8::0:1")
    ('localhost', 'localhost', '127.0.0.2', '2001:db8::1')
    """
    host = host.rstrip(".").lower()
    if host in THIS_MACHINE:
        return "localhost"
    try:
        shown = str(ip_address(host))
    except ValueError:
        return host
    return "localhost" if shown in THIS_MACHINE else shown


def _address(table: Mapping[str, object], key: str) -> str:
    """Raises PlanRefused, which never shows a password."""
    text = table.get(key)
    if not isinstance(text, str):
        raise PlanRefused(
            f"{key} is {type(text).__name__}, expected text: one address, of several brokers with "
            "commas between the hosts"
        )
    for broker in brokers_in(text):
        try:
            parts = urlsplit(broker)
            is_host = scheme_of(broker) in SCHEMES and bool(parts.hostname)
        except ValueError:  # its text has the user and the password
            is_host = False
        if not is_host:
            raise PlanRefused(
                f"{key} is {shown(text)!r}, expected an address that begins with one of "
                f"{', '.join(f'{scheme}://' for scheme in SCHEMES)}"
            )
        try:
            _ = parts.port
        except ValueError:
            raise PlanRefused(f"{key} is {shown(text)!r}, expected a port up to 65535") from None
    return text
