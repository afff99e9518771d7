"""Samples of the counts that lists show: what rates are made from.

Time is cut into slots of SLOT_MS, numbered from 1970 in engine time. The ring of a queue, virtual
host or connection holds its counts at the end of each slot in which they changed, the oldest of
them given up first. A thing at rest costs nothing, one that is always busy a bounded number of
bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

from tallymark.engine.clock import Clock
from tallymark.engine.queue import Queue
from tallymark.engine.queue_parts import HandedOut
from tallymark.engine.traffic import Traffic

Key = TypeVar("Key", int, str)
Counts: TypeAlias = tuple[int, ...]
At: TypeAlias = Callable[[int], Sequence[int]]
"""Counts at the end of a slot."""

SLOT_MS: Final = 5_000
MOVED: Final = ("publish", "ack", "deliver_get", "redeliver")
"""Counts of a queue that only grow. A virtual host's have those of deleted queues in them."""
PRESENT: Final = ("messages", "messages_ready", "messages_unacknowledged")
MESSAGES: Final = (*MOVED, *PRESENT)
"""Counts of a queue, and of all queues of a virtual host."""
BYTES: Final = ("recv_oct", "send_oct")
"""Counts of a connection."""
OF_THINGS: Final = 61
"""Slots with changes that are kept of a queue or connection: five minutes of a busy one."""
OF_VHOSTS: Final = 721
"""Slots with changes that are kept of a virtual host: an hour of a busy one."""
LONG: Final = 60
"""Slots in a long one: five minutes."""
OF_A_DAY: Final = 289
"""Long slots with changes that are kept of a virtual host and of the broker: a day of a busy
one."""
BROKER: Final = "broker"
CHURN: Final = (
    "connection_created", "connection_closed", "channel_created", "channel_closed",
    "queue_declared", "queue_created", "queue_deleted",
)  # fmt: skip
"""Counts of what came and went."""
UNROUTABLE: Final = ("drop_unroutable", "return_unroutable")
"""Counts of messages that no queue took."""
OF_BROKER: Final = ("confirm", "memory", "disk_free", "syncs", "sync_us", *UNROUTABLE, *CHURN)
"""Counts of the broker as a whole: publishes confirmed, bytes of bodies in memory, bytes free on
the journal's disk, syncs, microseconds that these took, and UNROUTABLE and CHURN."""


def end_ms(slot: int, clock: Clock) -> int:
    """Return the wall time at which a slot ends, ms. clock: the engine's."""
    return (slot + 1) * SLOT_MS + clock.ahead_ms


def counts_of(queue: Queue) -> Counts:
    """Return the counts of a queue that are called MESSAGES."""
    account = queue.account
    return (
        *moved(account.entered, account.settled, queue.handed_out),
        account.present(), account.ready, account.acquired + account.staged,
    )  # fmt: skip


def moved(entered: int, settled: int, handed_out: HandedOut) -> Counts:
    """Return the counts that are called MOVED, of a queue or of several together."""
    return entered, settled, handed_out.total(), handed_out.again


def unroutable(traffic: Traffic) -> Counts:
    """Return the counts that are called UNROUTABLE."""
    return traffic.discarded, traffic.returned


def churn(traffic: Traffic) -> Counts:
    """Return the counts that are called CHURN."""
    return (
        traffic.connections_opened, traffic.connections_closed, traffic.sessions_opened,
        traffic.sessions_closed, traffic.queues_declared, traffic.queues_created,
        traffic.queues_deleted,
    )  # fmt: skip


class Ring:
    """The counts of one thing in the slots in which they changed."""

    __slots__ = ("_most", "_slots", "_values", "last")

    def __init__(self, most: int) -> None:
        self._most = most
        self._slots = array("q")
        self._values = array("q")
        """Counts of the slots, one slot's behind the other's."""
        self.last: Counts = ()

    def put(self, slot: int, counts: Counts) -> None:
        """Note the counts as of now. slot: the newest, or one behind it."""
        if counts == self.last:
            return
        slots, width = self._slots, len(counts)
        if slots and slots[-1] == slot:
            del self._values[-width:]
        else:
            slots.append(slot)
        self.last = counts
        self._values.extend(counts)
        if len(slots) > self._most:
            del slots[0]
            del self._values[:width]

    def at(self, slot: int) -> Sequence[int]:
        """Return the counts at the end of a slot: for one that is older than all that is kept, the
        oldest counts."""
        place, width = max(bisect_right(self._slots, slot) - 1, 0), len(self.last)
        return self._values[place * width : (place + 1) * width]

    def first(self) -> int:
        """Return the oldest slot that is kept."""
        return self._slots[0]

    def changed(self) -> int:
        """Return the slot in which the counts changed last."""
        return self._slots[-1]

    def stood(self, wanted: Callable[[Sequence[int]], bool]) -> int | None:
        """Return the first slot since which the counts are as wanted without a break, as far back
        as they are kept; None: the newest are not."""
        slots, width = self._slots, len(self.last)
        first = None
        for place in range(len(slots) - 1, -1, -1):
            if not wanted(self._values[place * width : (place + 1) * width]):
                break
            first = slots[place]
        return first


class Series(Generic[Key]):
    """The rings of all things of one kind, by id or name."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.rings: dict[Key, Ring] = {}

    def put(self, key: Key, slot: int, counts: Counts, began: bool) -> None:
        """Note the counts of one thing. began: a thing not seen before had counted nothing; else
        it had counted all of it, before this process began."""
        ring = self.rings.get(key)
        if ring is None:
            ring = self.rings[key] = Ring(self._most)
            if began:
                ring.put(slot - 1, (0,) * len(counts))
        ring.put(slot, counts)

    def keep(self, keys: Container[Key]) -> list[tuple[Key, Ring]]:
        """Forget the things without one of these keys, and return them."""
        gone = [(key, ring) for key, ring in self.rings.items() if key not in keys]
        for key, _ in gone:
            del self.rings[key]
        return gone

    def at(self, key: Key) -> At | None:
        """Return the function from slots to counts; None: nothing is known of it yet."""
        ring = self.rings.get(key)
        return None if ring is None else ring.at


class Capacity:
    """Part of the time in which consumers of a queue could take messages, the newest time counted
    most [rabbitmq consumer capacity].

    The sampler looks at each queue at the end of a slot in which the broker did something. What it
    finds counts as much as all that it found before.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[int, float]] = {}
        """Slot of the last look and the share of the time, by id of the queue."""

    def look(self, queue: Queue, slot: int) -> None:
        """Note whether a consumer can take a message now."""
        self._found[queue.id] = (slot, self._share(queue, slot))

    def forget(self, id: int) -> None:
        self._found.pop(id, None)

    def of(self, queue: Queue, slot: int) -> float | None:
        """Return the share, from 0 to 1; 0 without consumers, None where filters decide. slot: the
        newest. Since the last look nothing has changed until then."""
        if queue.seekers:
            return None
        return self._share(queue, slot) if queue.consumers else 0.0

    def _share(self, queue: Queue, slot: int) -> float:
        now = float(queue.is_wanted())
        last, share = self._found.get(queue.id, (slot, now))
        weight = 0.5 ** max(slot - last, 0)
        return share * weight + now * (1.0 - weight)


class Samples:
    """All samples of one node."""

    def __init__(self) -> None:
        self.slot = 0
        """Slot of the newest samples; 0: none yet."""
        self.first = 0
        """Slot of the first samples of this process."""
        self.queues: Series[int] = Series(OF_THINGS)
        """Samples of MESSAGES, by id."""
        self.capacity = Capacity()
        self.vhosts: Series[str] = Series(OF_VHOSTS)
        """Samples of MESSAGES, by name."""
        self.vhosts_by_day: Series[str] = Series(OF_A_DAY)
        """Samples of MESSAGES, by name, in long slots."""
        self.broker: Series[str] = Series(OF_VHOSTS)
        """Samples of OF_BROKER."""
        self.broker_by_day: Series[str] = Series(OF_A_DAY)
        """Samples of OF_BROKER, in long slots."""
        self.connections: Series[int] = Series(OF_THINGS)
        """Samples of BYTES, by id."""

    def newest(self, now_ms: int) -> int:
        """Return the slot of the newest samples; before the first ones, that of the engine time
        `now_ms`."""
        return self.slot or now_ms // SLOT_MS


def total(parts: Iterable[At | None]) -> At | None:
    """Return the function that adds up the counts of several things; None: of none of them
    anything is known."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    return lambda slot: [
        sum(column) for column in zip(*[part(slot) for part in known], strict=True)
    ]
