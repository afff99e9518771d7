"""A plan: what is in a world and what befalls it, drawn from a seed.

Each seed switches features and faults on and off (swarm testing [groce 2012]): a world without time
to live and with much rollback finds other things than one with a little of everything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tallymark.simulation.disk import Faults
from tallymark.simulation.network import Weather

KIB: Final = 1024
PROTOCOLS: Final = ("amqp", "amqp091")
NSQ_QUEUE: Final = "nsq"
"""Name of NSQ's channel among the queues of a history."""

POWER, POWER_IN_SYNC, KILL, STOP, CLOCK, CUT, CUT_ALL, HALF_OPEN = (
    "power cut", "power cut in a sync", "kill", "stop", "clock step", "cut", "cut all", "half open",
)  # fmt: skip
FAULTS: Final = (
    (POWER, 0.4), (POWER_IN_SYNC, 0.4), (KILL, 0.4), (STOP, 0.3), (CLOCK, 0.3), (CUT, 0.4),
    (CUT_ALL, 0.2), (HALF_OPEN, 0.2),
)  # fmt: skip
"""Kinds of faults, and how likely a world has them."""
POWER_IN_FILES: Final = "power cut among files"
"""Power cut in one of the next calls that change a name, or sync the folder."""
POWER_IN_COMMIT: Final = "power cut in a commit"
"""Power cut in the next sync after a client has asked for the commit of a transaction."""
POWER_TWICE: Final = "power cut twice"
FULL: Final = "disk full"
"""The disk has no room for a second."""
ONE_WAY: Final = "one way"
"""An end of a connection hears nothing any more."""
CYCLE_MS: Final = 300
"""Time to live of each queue in a cycle, ms."""
NO_FILES: Final = "no files"
"""The process can open no more files for a second than it has open."""
UNREADABLE: Final = "reads fail"
"""Half of the reads of bodies fail for a second."""
LIES: Final = "syncs lie"
"""From now on syncs do nothing, and say that all is well; a power cut tells."""
ROT: Final = "bits turned"
"""Bits of what is stored turn while the broker is down; the world ends with what comes of it."""
TWICE: Final = 0.3
"""Chance that a power cut is followed by one in the recovery, and that one in a sync is one among
files."""
HANG, LOST, CUT_OFF, SLOW, MID, RESTART, FAILOVER, BEHIND, STANDBY_AWAY, KILL_WAITING = (
    "leader hangs", "leader's machine lost", "cut off from the database", "database slow",
    "cut in mid statement", "database restarts", "database fails over",
    "database fails over, behind", "standby server away", "waiting broker killed",
)  # fmt: skip
"""Faults of a pair of brokers and their database, besides KILL and STOP of the leader."""
DATABASE_FAULTS: Final = (
    HANG, LOST, CUT_OFF, SLOW, MID, RESTART, FAILOVER, BEHIND, STANDBY_AWAY, KILL_WAITING,
)  # fmt: skip
CAUSES: Final = {KILL: "a kill", STOP: "a stop", HANG: "a hang", LOST: "a loss", CUT_OFF: "a cut"}
"""Faults of a leader, as states call them."""
DECLARE, POLICY, PURGE, RIGHTS, RELOAD, CLOSE, LOOK, DEFINITIONS, GET = KINDS = (
    "declare", "policy", "purge", "rights", "reload", "close", "look", "definitions", "get",
)  # fmt: skip
"""Kinds of things that an operator does."""
NEVER_READS, NEVER_SETTLES, BABBLES, STORMS, SILENT = ROGUES = (
    "never reads", "never settles", "babbles", "storms", "is silent",
)  # fmt: skip
"""Kinds of bad clients."""
DELETE, DROP_OLDEST, DEAD_LETTER, FLOW, NOTIFY = SLOW_POLICIES = (
    "delete", "drop-oldest", "dead-letter", "flow", "notify",
)  # fmt: skip
"""Policies for a subscription that is too slow."""
FEATURES: Final = ("ttl", "length", "limit", "priorities", "single", "dead", "tx", "fanout")
"""Names of what a seed switches on or off."""


@dataclass(frozen=True)
class QueuePlan:
    """One queue. Its dead letters go to a queue of its own."""

    name: str
    type: str = "classic"
    ttl_ms: int | None = None
    max_length: int | None = None
    rejects_publish: bool = False
    delivery_limit: int | None = None
    priorities: int | None = None
    single_active: bool = False
    dead_letters: bool = False
    dead_length: int | None = None
    """Length of the queue for its dead letters: those that find it full wait in this one."""
    is_managed: bool = False
    """True if an operator purges it and changes its policies."""
    is_cycle: bool = False
    """True if its dead letters come back to it, unless the broker cuts the cycle."""
    dedup_ms: int | None = None
    """Time for which it takes a publisher's id once."""

    @property
    def dead(self) -> str:
        """Name of the queue for its dead letters."""
        return f"{self.name}.dead"

    @property
    def arguments(self) -> dict[str, object]:
        found: dict[str, object] = {}
        if self.ttl_ms is not None:
            found["x-message-ttl"] = self.ttl_ms
        if self.max_length is not None:
            found["x-max-length"] = self.max_length
            if self.rejects_publish:
                found["x-overflow"] = "reject-publish"
        if self.delivery_limit is not None:
            found["x-delivery-limit"] = self.delivery_limit
        if self.priorities is not None:
            found["x-max-priority"] = self.priorities
        if self.dedup_ms is not None:
            found["x-message-deduplication"] = self.dedup_ms
        if self.single_active:
            found["x-single-active-consumer"] = True
        if self.dead_letters:
            found["x-dead-letter-exchange"] = ""
            found["x-dead-letter-routing-key"] = self.dead
            if self.dead_length is not None:
                found["x-dead-letter-strategy"] = "at-least-once"
        return found

    @property
    def dead_arguments(self) -> dict[str, object]:
        """Arguments of the queue for its dead letters."""
        if self.is_cycle:
            return {
                "x-message-ttl": CYCLE_MS,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": self.name,
            }
        if self.dead_length is None:
            return {}
        return {"x-max-length": self.dead_length, "x-overflow": "reject-publish"}

    @property
    def may_drop(self) -> bool:
        """Return whether a message may end here without a consumer, and leave no letter."""
        if self.is_managed or self.is_cycle:
            return True
        is_cut_short = self.max_length is not None and not self.rejects_publish
        if self.dead_letters:  # letters that wait count toward the length: the oldest is dropped
            return self.dead_length is not None and is_cut_short
        return self.ttl_ms is not None or is_cut_short or self.delivery_limit is not None


@dataclass(frozen=True)
class PublisherPlan:
    """A client that publishes."""

    name: str
    protocol: str
    target: str
    """Name of a queue; "*": the fanout exchange, to which all queues are bound."""
    batch: int = 1
    pause_s: float = 0.05
    size: int = 100
    transactional: bool = False
    second: str = ""
    """Name of another queue, to which each other message of a transaction goes; empty: none."""
    is_worker: bool = False
    """True if it works under the name of the user whose rights change."""
    key: str = ""
    """Routing key by which the exchange of topics leads to its target; empty: it publishes to the
    queue."""
    repeats: float = 0.0
    """Chance that it publishes the last batch again, to a queue that takes each message once."""
    ttl_ms: int | None = None
    """Time to live of each other message of its own; None: they have none."""
    is_numbered: bool = False
    """True if it numbers what it publishes, to a stream that takes each number once; after a lost
    connection it begins with its last batch."""


@dataclass(frozen=True)
class ConsumerPlan:
    """A client that consumes."""

    name: str
    protocol: str
    queue: str
    credit: int = 10
    hold_s: float = 0.02
    reject: float = 0.0
    release: float = 0.0
    fail: float = 0.0
    vanish: float = 0.0
    """Chance, for each message, that the connection is cut with what is held."""
    transactional: bool = False
    is_worker: bool = False
    timeout_ms: int | None = None
    """Time after which NSQ gives a message to somebody else that it holds; None: a minute."""


@dataclass(frozen=True)
class SubscriptionPlan:
    """A durable subscription of a queue, and its readers over HTTP."""

    name: str
    queue: str
    rows: int = 10
    """Messages of a batch."""
    pause_s: float = 0.02
    """Mean time between two steps of a reader."""
    hangs: float = 0.0
    """Chance that a reader hangs between two steps."""
    ends: float = 0.0
    """Chance that it ends there."""
    rival: bool = False
    """True if another reader takes the subscription over now and then."""
    reject: float = 0.0
    release: float = 0.0
    fail: float = 0.0


@dataclass(frozen=True)
class SinkPlan:
    """A sink, and its writer over HTTP."""

    name: str
    target: str
    rows: int = 3
    """Messages of a task."""
    pause_s: float = 0.1
    size: int = 100
    gives_up: float = 0.1
    """Chance that a batch is given up, and that it is left behind."""


@dataclass(frozen=True)
class StreamPlan:
    """A stream, and its readers over HTTP."""

    name: str
    max_bytes: int | None = None
    segment_bytes: int = 2000
    readers: int = 1
    rows: int = 20
    pause_s: float = 0.02
    is_archived: bool = False
    """True if somebody records what of it is archived."""

    @property
    def arguments(self) -> dict[str, object]:
        found: dict[str, object] = {"x-stream-max-segment-size-bytes": self.segment_bytes}
        if self.max_bytes is not None:
            found["x-max-length-bytes"] = self.max_bytes
        return found


@dataclass(frozen=True)
class ManagementPlan:
    """An operator over HTTP."""

    name: str
    kinds: tuple[str, ...] = KINDS
    pause_s: float = 0.2


@dataclass(frozen=True)
class RoguePlan:
    """A bad client."""

    name: str
    kind: str
    queue: str
    """Queue from which it consumes, if it does."""


@dataclass(frozen=True)
class ShovelPlan:
    """A shovel from a queue to another one of its own."""

    name: str
    queue: str
    batch: int = 5
    ends: float = 0.0
    """Chance, for each tenth of a second, that its process ends and another one begins, or that one
    of its connections breaks."""

    @property
    def target(self) -> str:
        """Name of the queue to which it moves messages."""
        return f"{self.queue}.{self.name}"


@dataclass(frozen=True)
class SharedPlan:
    """Consumers of several queues of their own that share a limit, on one connection."""

    name: str
    protocol: str
    count: int = 3
    """Number of its queues, each of which has a consumer and a publisher."""
    limit: int = 5
    """Messages that they may hold together (AMQP 0-9-1: basic.qos, global), or transfer frames that
    may be under way to their session (AMQP 1.0)."""
    own: int = 20
    """Messages that each of them may hold."""
    changes: float = 0.0
    """Chance, with each answer, that another shared limit is set: AMQP 0-9-1 alone."""
    hold_s: float = 0.005
    release: float = 0.0
    fail: float = 0.0
    vanish: float = 0.0
    batch: int = 5
    pause_s: float = 0.05
    """Mean time between two batches to each queue."""
    size: int = 100

    @property
    def queues(self) -> tuple[str, ...]:
        """Names of its queues."""
        return tuple(f"{self.name}.q{number}" for number in range(self.count))

    @property
    def publishers(self) -> tuple[PublisherPlan, ...]:
        return tuple(
            PublisherPlan(
                f"{queue}.p", PROTOCOLS[number % 2], queue, self.batch, self.pause_s, self.size
            )
            for number, queue in enumerate(self.queues)
        )

    @property
    def consumers(self) -> tuple[ConsumerPlan, ...]:
        return tuple(
            ConsumerPlan(
                self.name, self.protocol, queue, self.own, self.hold_s, 0.0, self.release,
                self.fail, self.vanish,
            )
            for queue in self.queues
        )  # fmt: skip


@dataclass(frozen=True)
class SlowPlan:
    """Subscription to a topic that may be too slow, and what is done about it then."""

    name: str
    """Name of its queue."""
    protocol: str
    policy: str = DELETE
    is_durable: bool = False
    deletes_persistent: bool = False
    is_link_alone: bool = False
    """True if its link is ended, where there are links, and not its session."""
    count: int | None = None
    depth: int | None = None
    age_ms: int | None = None
    rate: float | None = None
    delay_ms: int = 200
    """Time between two looks."""
    credit: int = 5
    hold_s: float = 0.2
    """Mean time that its client takes for a message while others publish."""
    publishes_over: str = "amqp"
    batch: int = 5
    pause_s: float = 0.1
    size: int = 100

    @property
    def dead(self) -> str:
        """Name of the queue for its dead letters."""
        return f"{self.name}.dead"

    @property
    def has_letters(self) -> bool:
        return self.policy == DEAD_LETTER

    @property
    def arguments(self) -> dict[str, object]:
        if not self.has_letters:
            return {}
        return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self.dead}

    @property
    def may_be_closed(self) -> bool:
        """Return whether its client may be told that it is too slow."""
        return self.policy == DELETE and (not self.is_durable or self.deletes_persistent)

    @property
    def section(self) -> dict[str, object]:
        """Its part of the configuration."""
        limits = {
            "message_count": self.count, "depth": self.depth, "rate": self.rate,
            "message_age": None if self.age_ms is None else f"{self.age_ms}ms",
        }  # fmt: skip
        found: dict[str, object] = {name: one for name, one in limits.items() if one is not None}
        if self.policy == DELETE:
            found["options"] = {
                "delete-persistent": self.deletes_persistent,
                "scope": "link" if self.is_link_alone else "session",
            }
        return {"name": self.name, "policy": self.policy, **found}

    @property
    def publisher(self) -> PublisherPlan:
        return PublisherPlan(
            f"{self.name}.p", self.publishes_over, self.name, self.batch, self.pause_s, self.size,
            key=f"slow.{self.name}",
        )  # fmt: skip

    @property
    def consumer(self) -> ConsumerPlan:
        return ConsumerPlan(f"{self.name}.c", self.protocol, self.name, self.credit, self.hold_s)


@dataclass(frozen=True)
class FaultPlan:
    """A fault and its time."""

    at_s: float
    kind: str
    name: str = ""


@dataclass(frozen=True)
class PairPlan:
    """Two brokers of one journal on PostgreSQL."""

    lease_ms: int = 1000
    latency_s: float = 0.000_5
    """Mean seconds between a broker and the database."""
    copy_s: float = 0.001
    """Mean seconds until the synchronous standby server has a commit."""
    restart_s: float = 0.5
    """Mean seconds until a broker that ended is started again."""


@dataclass(frozen=True)
class Plan:
    """A world before it begins."""

    seed: int
    duration_s: float
    sync: str = "commit"
    deliver_after: str = "written"
    unreadable: str = "skip"
    """Treatment of messages that cannot be read: skip, pause."""
    segment_size: int = 32 * KIB
    checkpoint_every: int = 64 * KIB
    max_memory: int = 128 * KIB * KIB
    queues: tuple[QueuePlan, ...] = ()
    publishers: tuple[PublisherPlan, ...] = ()
    consumers: tuple[ConsumerPlan, ...] = ()
    subscriptions: tuple[SubscriptionPlan, ...] = ()
    sinks: tuple[SinkPlan, ...] = ()
    streams: tuple[StreamPlan, ...] = ()
    operators: tuple[ManagementPlan, ...] = ()
    rogues: tuple[RoguePlan, ...] = ()
    shovels: tuple[ShovelPlan, ...] = ()
    shared: tuple[SharedPlan, ...] = ()
    slow: tuple[SlowPlan, ...] = ()
    has_old_forms: bool = False
    """True if the folder has its feature flags off, as one of an older version: the journal's
    blocks have one checksum each."""
    has_ledger: bool = False
    """True if the ledger is balanced after each end of the broker."""
    faults: tuple[FaultPlan, ...] = ()
    pair: PairPlan | None = None
    """Two brokers in the place of one."""
    disk: Faults = field(default_factory=Faults)
    weather: Weather = field(default_factory=Weather)
