"""Where messages die and where their letters must end up: what a crash must leave as it is.

Every kind of message has a number of its own as producer (crash_history.number_of), one queue it is
published to and one path from there. Nothing on these paths may lose a message, double one, or
change a history.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import BasicProperties

from bench.lean import PERSISTENT
from tests.support.crash_history import duplicates

Death = tuple[str, str, int, str, tuple[str, ...], str]
"""(queue, reason, count, exchange, routing keys, original expiration): an entry of x-death but for
its time."""
LIMIT = 2
"""Failed deliveries that a message of `failing` survives [DL-5]."""
ROUNDS = 2
"""How often the consumer of `retried` says no before it is content."""
CAPACITY = 100
PRIORITIES = 5
OWN_TTL = "15"


class Letter(NamedTuple):
    """A message as a consumer got it."""

    number: int
    section: bytes
    """Its properties as they were sent."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a property section says."""

    deaths: tuple[Death, ...]
    times: tuple[float, ...]
    first: tuple[str, ...]
    last: tuple[str, ...]
    priority: int | None
    expiration: str | None
    failed: int


@dataclass(frozen=True, slots=True)
class Kind:
    """Messages that die the same way."""

    name: str
    deaths: tuple[Death, ...]
    """Newest first, as the reader of the last queue sees them."""
    ends: tuple[str, ...]
    """Each of these queues gets every message once."""
    arguments: dict[str, object]
    """Of the queue they are published to, whose name is the kind's."""
    deaths_each: int = 1
    """How many deaths one message makes."""
    is_ordered: bool = True
    """Whether they arrive as they were published [DL-7]."""


def death(queue: str, reason: str, exchange: str = "", key: str = "", ttl: str = "") -> Death:
    return (queue, reason, 1, exchange, (key or queue,), ttl)


def letters_to(key: str) -> dict[str, object]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": key}


def _expiring(ttl_ms: int, exchange: str, key: str | None = None) -> dict[str, object]:
    arguments: dict[str, object] = {"x-message-ttl": ttl_ms, "x-dead-letter-exchange": exchange}
    if key is not None:
        arguments["x-dead-letter-routing-key"] = key
    return arguments


FANOUT, LATE = "dead.fanout", "dead.late"
"""Exchanges that letters go to; the second may be missing, and has no binding at first."""
RETRIED, WAITING = "dead.retried", "dead.retried.waiting"
CHAIN = ("dead.chain", "dead.chain.2", "dead.chain.3")
REJECTED, FAILING, FULL, PRIORITY = "dead.rejected", "dead.failing", "dead.full", "dead.priority"
PENDING = "dead.pending"

KINDS = [
    Kind(
        REJECTED, (death(REJECTED, "rejected"),), ("dead.rejected.end",),
        letters_to("dead.rejected.end"),
    ),
    Kind(
        "dead.expired", (death("dead.expired", "expired"),), ("dead.expired.end",),
        _expiring(20, "", "dead.expired.end"),
    ),
    Kind(
        "dead.own", (death("dead.own", "expired", ttl=OWN_TTL),), ("dead.own.end",),
        letters_to("dead.own.end"),
    ),
    Kind(
        FULL, (death(FULL, "maxlen"),), ("dead.full.end",),
        {"x-max-length": CAPACITY, **letters_to("dead.full.end")},
    ),
    Kind(
        FAILING, (death(FAILING, "delivery_limit"),), ("dead.failing.end",),
        {"x-delivery-limit": LIMIT, **letters_to("dead.failing.end")}, is_ordered=False,
    ),
    Kind(
        PRIORITY, (death(PRIORITY, "expired"),), ("dead.priority.end",),
        {"x-max-priority": PRIORITIES, **_expiring(10, "", "dead.priority.end")}, is_ordered=False,
    ),
    Kind(
        CHAIN[0], tuple(death(queue, "expired") for queue in reversed(CHAIN)), ("dead.chain.end",),
        _expiring(5, "", CHAIN[1]), deaths_each=3,
    ),
    Kind(
        "dead.shared", (death("dead.shared", "expired"),), ("dead.shared.1", "dead.shared.2"),
        _expiring(10, FANOUT),
    ),
    Kind(
        PENDING, (death(PENDING, "expired"),), ("dead.pending.end",),
        {
            "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
            **_expiring(10, LATE),
        },
        is_ordered=False,
    ),
    Kind(RETRIED, (), (), letters_to(WAITING), deaths_each=2 * ROUNDS, is_ordered=False),
]  # fmt: skip
SOURCES = [kind.name for kind in KINDS] + [WAITING, *CHAIN[1:]]
"""Queues that are empty when everything has died that can: all but FULL."""


def set_up(channel: BlockingChannel) -> None:
    """Every queue but the one that `pending` waits for."""
    for kind in KINDS:
        channel.queue_declare(kind.name, durable=True, arguments=kind.arguments)
        for end in kind.ends:
            arguments = {"x-max-priority": PRIORITIES} if kind.name == PRIORITY else None
            if kind.name != PENDING:
                channel.queue_declare(end, durable=True, arguments=arguments)
    channel.queue_declare(WAITING, durable=True, arguments=_expiring(10, "", RETRIED))
    for queue, following in zip(CHAIN[1:], (CHAIN[2], "dead.chain.end"), strict=True):
        channel.queue_declare(queue, durable=True, arguments=_expiring(5, "", following))
    channel.exchange_declare(FANOUT, "fanout", durable=True)
    for queue in ("dead.shared.1", "dead.shared.2"):
        channel.queue_bind(queue, FANOUT)


def open_late(channel: BlockingChannel) -> None:
    """Letters of `pending` find their way from now on."""
    channel.exchange_declare(LATE, "fanout", durable=True)
    channel.queue_declare("dead.pending.end", durable=True)
    channel.queue_bind("dead.pending.end", LATE)


def close_late(channel: BlockingChannel, *, exchange_too: bool) -> None:
    """They have none any more; the queue is empty."""
    channel.queue_delete("dead.pending.end")
    if exchange_too:
        channel.exchange_delete(LATE)


def properties_of(kind: Kind, sequence: int) -> bytes:
    """The property section that message is published with."""
    if kind.name == PRIORITY:
        return b"\x18\x00\x02" + bytes([sequence % (PRIORITIES + 1)])
    if kind.name == "dead.own":
        return b"\x11\x00\x02" + bytes([len(OWN_TTL)]) + OWN_TTL.encode()
    return PERSISTENT


def read_section(section: bytes) -> Seen:
    """Decoded by pika, which knows nothing of ours."""
    properties = BasicProperties().decode(section)
    headers = properties.headers or {}
    entries = headers.get("x-death", [])
    return Seen(
        deaths=tuple(
            (
                entry["queue"], entry["reason"], entry["count"], entry["exchange"],
                tuple(entry["routing-keys"]), entry.get("original-expiration", ""),
            )
            for entry in entries
        ),
        times=tuple(entry["time"].timestamp() for entry in entries),
        first=_place(headers, "first"),
        last=_place(headers, "last"),
        priority=properties.priority,
        expiration=properties.expiration,
        failed=headers.get("x-delivery-count", 0),
    )  # fmt: skip


def _place(headers: dict[str, str], which: str) -> tuple[str, ...]:
    names = [f"x-{which}-death-{part}" for part in ("queue", "reason", "exchange")]
    return tuple(headers[name] for name in names if name in headers)


class Sections:
    """Decodes sections; most messages in a row have the same."""

    def __init__(self) -> None:
        self._seen: dict[bytes, Seen] = {}

    def __call__(self, section: bytes) -> Seen:
        seen = self._seen.get(section)
        if seen is None:
            if len(self._seen) > 10_000:
                self._seen.clear()
            seen = self._seen[section] = read_section(section)
        return seen


@dataclass(slots=True)
class Account:
    """What is known of the messages of one kind, from one verification to the next."""

    kind: Kind
    published: set[int] = field(default_factory=set)
    confirmed: set[int] = field(default_factory=set)
    content: set[int] = field(default_factory=set)
    """Of RETRIED: the consumer had them for the last time."""
    rejections: dict[int, int] = field(default_factory=dict)
    """Of RETRIED: how often each message was rejected."""
    uncertain: set[int] = field(default_factory=set)
    """Of RETRIED: what was said of these may be lost, as the broker was killed since."""

    def check_place(self, where: str, found: list[int]) -> None:
        """`found` is all there is in one of the places where each message must be once."""
        none(duplicates(found), where, "are there twice")
        present = set(found)
        none(present - self.published, where, "were never published, or not to here")
        none(self.confirmed - present, where, "were confirmed and are lost")

    def check_order(self, where: str, found: list[int]) -> None:
        assert not self.kind.is_ordered or found == sorted(found), f"{where}: not in order"

    def check_letter(
        self, where: str, letter: Letter, seen: Seen, times: tuple[float, float]
    ) -> None:
        """Its history is the kind's, and its properties are what they were."""
        deaths = self.kind.deaths
        about = f"{where}: {letter.number:x} has {seen}"
        assert seen.deaths == deaths, f"{about}, expected {deaths}"
        assert seen.last == (deaths[0][0], deaths[0][1], deaths[0][3]), about
        assert seen.first == (deaths[-1][0], deaths[-1][1], deaths[-1][3]), about
        low, high = times
        assert all(low - 1 <= time <= high for time in seen.times), f"{about}, expected {times}"
        assert list(seen.times) == sorted(seen.times, reverse=True), about
        assert seen.expiration is None, f"{about}, it expires again [DL-11]"
        priority = None
        if self.kind.name == PRIORITY:
            priority = (letter.number & 0xFFFFFFFF) % (PRIORITIES + 1)
        assert seen.priority == priority, f"{about}, expected priority {priority}"
        if self.kind.name == FAILING:
            assert seen.failed == LIMIT + 1, f"{about}, expected {LIMIT + 1} failed deliveries"

    def tried(self, number: int, seen: Seen) -> bool:
        """A message of RETRIED is delivered; returns whether for the last time. It has died as
        often as it was rejected, the waits in between included."""
        n = seen.deaths[0][2] if seen.deaths else 0
        expected: tuple[Death, ...] = ()
        if n:
            expected = (
                (WAITING, "expired", n, "", (WAITING,), ""),
                (RETRIED, "rejected", n, "", (RETRIED,), ""),
            )
        about = f"{number:x} has {seen}"
        assert number in self.published, f"{about}, and was never published"
        assert seen.deaths == expected, f"{about}, expected {expected}"
        known = self.rejections.get(number, 0)
        if number in self.uncertain:
            assert n <= known, f"{about}, and was rejected {known} times"
            self.uncertain.discard(number)
            self.content.discard(number)
        else:
            assert n == known, f"{about}, and was rejected {known} times"
            assert number not in self.content, f"{about}, and had been acknowledged"
        self.rejections[number] = n
        if n < ROUNDS:
            self.rejections[number] = n + 1
            return False
        self.content.add(number)
        return True

    def killed(self) -> None:
        """The broker was: what was on its way to the disk may be gone."""
        self.uncertain = set(self.rejections)

    def begin_anew(self) -> None:
        """Everything was found where it belongs, and is gone."""
        self.published.clear()
        self.confirmed.clear()
        self.content.clear()
        self.rejections.clear()
        self.uncertain.clear()


def none(numbers: set[int], where: str, what: str) -> None:
    sample = ", ".join(f"{number:x}" for number in sorted(numbers)[:5])
    assert not numbers, f"{where}: {len(numbers)} messages {what}: {sample}"
