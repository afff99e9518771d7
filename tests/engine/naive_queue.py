"""A message, a consumer and a queue in their plainest form, for dead_letter_model.py."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

INFINITE = 1 << 60
NUMBERS = ("message-ttl", "max-length", "max-length-bytes", "delivery-limit", "acquired-limit",
           "message-deduplication")  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One entry of a history."""

    queue: str
    reason: str
    count: int
    exchange: str
    keys: tuple[str, ...]
    first_ms: int
    last_ms: int
    ttl: int


@dataclass
class Message:
    """One message in one queue."""

    number: int
    exchange: str
    key: str
    cc: tuple[str, ...] = ()
    bcc: tuple[str, ...] = ()
    ttl: int = -1
    persistent: bool = True
    priority: int = 0
    body: int = 8
    id: str = ""
    own_hops: int = -1
    hops: int = -1
    history: tuple[Entry, ...] = ()
    first: tuple[str, str, str] | None = None
    last: tuple[str, str, str] | None = None
    failed_before: int = 0
    acquired_before: int = 0
    home: tuple[str, tuple[str, ...], int] | None = None
    """Of a letter: exchange, keys (without BCC) and own TTL of its first publish."""
    # in its queue
    position: int = 0
    entered_ms: int = 0
    failed: int = 0
    acquired: int = 0
    # while it is pending
    reason: str = ""
    died_ms: int = 0
    have: list[str] = field(default_factory=list)

    def in_target(self) -> Message:
        return replace(
            self, position=0, failed=0, acquired=0, reason="", died_ms=0, have=[], entered_ms=0
        )


@dataclass
class Consumer:
    prefetch: int
    no_ack: bool
    next_tag: int = 1
    unacked: dict[int, tuple[Queue, Message]] = field(default_factory=dict)
    queue: Queue | None = None
    """None: it was cancelled, or only asks."""

    def wants(self) -> int:
        if self.queue is None:
            return 0
        if self.no_ack or not self.prefetch:
            return INFINITE
        return max(0, self.prefetch - len(self.unacked))


@dataclass(eq=False)
class Queue:
    name: str
    durable: bool
    arguments: dict[str, object]
    policy: dict[str, object] = field(default_factory=dict)
    ready: list[Message] = field(default_factory=list)
    pending: list[Message] = field(default_factory=list)
    is_tried: bool = False
    """Whether the pending ones are to be tried the next time it is looked after."""
    consumer: Consumer | None = None
    deleted: bool = False
    entered: int = 0
    acquired: int = 0
    settled: int = 0
    dead_lettered: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    """Ids of the deduplication window: when each was taken."""
    looked_at: int = 0
    """Positions up to here were there when the queue was looked after last."""
    has_ttls: bool = False
    """Messages with a TTL of their own may be in it."""

    def says(self, key: str) -> object:
        """What is in effect of argument and policy [DL-2]."""
        both = [x[key] for x in (self.arguments, self.policy) if key in x]
        if key in NUMBERS and both:
            return min(int(str(value)) for value in both)
        if key == "overflow" and self.is_quorum and "overflow" in self.policy:
            both = [self.policy[key]]
        return both[0] if both else None

    def number(self, key: str) -> int:
        value = self.says(key)
        return -1 if value is None else int(str(value))

    @property
    def is_quorum(self) -> bool:
        return self.arguments.get("queue-type") == "quorum"

    @property
    def overflow(self) -> str:
        value = str(self.says("overflow") or "drop-head")
        return "drop-head" if value == "reject-publish-dlx" and self.is_quorum else value

    @property
    def hop_limit(self) -> int:
        value = self.says("dead-letter-hop-limit")
        if value is True:
            return 32
        return -1 if value is None or value is False else int(str(value))

    @property
    def keeps(self) -> bool:
        """At-least-once."""
        return (
            self.says("dead-letter-strategy") == "at-least-once"
            and self.says("dead-letter-exchange") is not None
        )

    @property
    def shows_counts(self) -> bool:
        limits = self.number("delivery-limit") >= 0 or self.number("acquired-limit") >= 0
        return self.is_quorum or limits

    def level(self, message: Message) -> int:
        highest = int(str(self.arguments.get("max-priority", 0)))
        return min(message.priority, highest)

    def line(self) -> list[Message]:
        """Ready messages in the order they would leave."""
        return sorted(self.ready, key=lambda m: (-self.level(m), m.position))

    def heads(self) -> list[Message]:
        """The first of each priority, lowest priority first."""
        found: dict[int, Message] = {}
        for message in self.line():
            found.setdefault(self.level(message), message)
        return [found[level] for level in sorted(found)]

    def expiry(self, message: Message) -> int:
        ttls = [t for t in (self.number("message-ttl"), message.ttl) if t >= 0]
        return message.entered_ms + min(ttls) if ttls else INFINITE

    def drop(self, reason: str, n: int = 1) -> None:
        if n:
            self.dropped[reason] = self.dropped.get(reason, 0) + n

    def length(self) -> int:
        return len(self.ready) + len(self.pending)

    def bytes(self) -> int:
        return sum(m.body for m in [*self.ready, *self.pending])

    def is_over(self) -> bool:
        length, size = self.number("max-length"), self.number("max-length-bytes")
        return 0 <= length < self.length() or 0 <= size < self.bytes()

    def is_looked_after(self) -> bool:
        limits = ("message-ttl", "max-length", "max-length-bytes")
        limited = any(self.number(key) >= 0 for key in limits)
        return limited or self.has_ttls or bool(self.pending)

    def wants(self) -> int:
        return 0 if self.consumer is None else self.consumer.wants()

    def has_room(self, message: Message) -> bool:
        """For one more, where publishes are refused. What the consumer will be sent of what is
        here, and of what comes, takes none."""
        stays = self.line()[self.wants() :]
        if self.wants() > len(self.ready):
            return self.number("max-length") < 0 or self.number("max-length") + self.wants() > (
                self.length()
            )
        length = len(stays) + len(self.pending)
        size = sum(m.body for m in [*stays, *self.pending])
        if 0 <= self.number("max-length") < length + 1:
            return False
        return not 0 <= self.number("max-length-bytes") < size + message.body


def is_cycle(history: tuple[Entry, ...], target: str) -> bool:
    """DL-15: from the newest entry to the first of the target, inclusive."""
    for n, entry in enumerate(history):
        if entry.queue == target:
            return all(e.reason != "rejected" for e in history[: n + 1])
    return False
