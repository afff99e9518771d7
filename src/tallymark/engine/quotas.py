"""Quotas: maximum numbers of connections, sessions and queues, per virtual host and per user
[rabbitmq limits], and rates, limited and measured. A lowered limit closes nothing that is open.

Connections and sessions of a user are counted. The broker's own connections have no user, nor do
NSQ's without authentication.

A limited rate is a bucket of one second's messages, filled by time and emptied by publishes. A read
of a client's socket is counted whole, so the bucket may go below empty; its publishers rest until
it is not. So nothing is refused, nothing is looked at per message, and over any time no more is
published than the rate and the burst of one second allow, but for the last read. Amounts in a
bucket are in thousandths of a message: a rate of n a second is n of them per millisecond.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.engine.arguments import LARGEST
from tallymark.engine.errors import NotAllowed, PreconditionFailed
from tallymark.units import EngineMs, Ms

WINDOW_MS: Final = 10_000
"""Window of a rate, ms."""
HALF_MS: Final = WINDOW_MS // 2
SHORTEST_MS: Final = 1_000
"""Shortest time that a rate is computed over, ms: activity in less time is spread over this
long."""
SCALE: Final = 1000
MAX_CONNECTIONS: Final = "max-connections"
MAX_QUEUES: Final = "max-queues"
MAX_CHANNELS: Final = "max-channels"
MAX_PUBLISH_RATE: Final = "max-publish-rate"
"""Messages a second; ours, beside RabbitMQ's names."""
OF_VHOSTS: Final = (MAX_CONNECTIONS, MAX_QUEUES, MAX_PUBLISH_RATE)
OF_USERS: Final = (MAX_CONNECTIONS, MAX_CHANNELS, MAX_PUBLISH_RATE)
NEVER_MS: Final = Ms(3_600_000)
"""Rest of a publisher whose rate is 0; the limit is looked at again when it changes, or after
that."""
Limits = dict[str, dict[str, int]]
"""Limits by virtual host or user, then by name; a negative number means no limit."""


@final
class Bucket:
    """The state of one limit. Times are engine time, milliseconds."""

    def __init__(self, rate: int, now_ms: EngineMs) -> None:
        self._level = rate * SCALE
        self._at_ms = now_ms

    def spend(self, rate: int, count: int, now_ms: EngineMs) -> None:
        """Count messages that were published."""
        self._fill(rate, now_ms)
        self._level -= count * SCALE

    def due(self, rate: int, now_ms: EngineMs) -> EngineMs:
        """Return when publishers may go on: now, or later."""
        self._fill(rate, now_ms)
        return EngineMs(now_ms if self._level >= 0 else now_ms - self._level // rate)

    def _fill(self, rate: int, now_ms: EngineMs) -> None:
        passed = max(0, now_ms - self._at_ms)
        self._at_ms = now_ms
        self._level = min(rate * SCALE, self._level + passed * rate)


@final
class Pace:
    """Counter that remembers two earlier readings, half a window or more apart. A rate is measured
    from one of them, between half a window and a whole one ago. Nothing happens by time alone."""

    def __init__(self, now_ms: EngineMs) -> None:
        self.done = 0
        self.last_ms = EngineMs(0)
        """Time of the last activity, ms; 0: none yet."""
        self._at_ms = self._before_ms = now_ms
        self._at_done = self._before_done = 0

    def add(self, n: int, now_ms: EngineMs) -> None:
        """Count n more."""
        if now_ms - self._at_ms >= HALF_MS:
            self._before_ms, self._before_done = self._at_ms, self._at_done
            if now_ms - self.last_ms >= WINDOW_MS:
                self._before_ms, self._before_done = EngineMs(now_ms - WINDOW_MS), self.done
            self._at_ms, self._at_done = now_ms, self.done
        self.done += n
        self.last_ms = now_ms

    def rate(self, now_ms: EngineMs) -> float:
        """Return messages per second; 0 if nothing was counted for a whole window."""
        if not self.done or now_ms - self.last_ms >= WINDOW_MS:
            return 0.0
        since, done = self._before_ms, self._before_done
        if now_ms - since > WINDOW_MS and now_ms - self._at_ms >= HALF_MS:
            since, done = self._at_ms, self._at_done
        if now_ms - since > WINDOW_MS:
            since = EngineMs(now_ms - WINDOW_MS)
        return (self.done - done) * 1000 / max(now_ms - since, SHORTEST_MS)


@final
class Quotas:
    """The quotas of one broker."""

    def __init__(self) -> None:
        self.vhosts: Limits = {}
        self.users: Limits = {}
        self.has_rates = False
        """True while any user or virtual host has a publish rate: publishes are to be counted."""
        self._buckets_of_vhosts: dict[str, Bucket] = {}
        self._buckets_of_users: dict[str, Bucket] = {}
        self._of_vhost: dict[str, int] = {}
        self._of_user: dict[str, int] = {}
        self._sessions: dict[str, int] = {}

    def limit(self, vhosts: Limits, users: Limits) -> None:
        """Replace all limits."""
        self.vhosts = vhosts
        self.users = users
        for limits, buckets in (
            (vhosts, self._buckets_of_vhosts), (users, self._buckets_of_users),
        ):  # fmt: skip
            for name in list(buckets):
                if _limit(limits, name, MAX_PUBLISH_RATE) < 0:
                    del buckets[name]
        self.has_rates = any(
            found.get(MAX_PUBLISH_RATE, -1) >= 0
            for limits in (vhosts, users)
            for found in limits.values()
        )

    def spend(self, vhost: str, user: str, count: int, now_ms: EngineMs) -> EngineMs:
        """Count messages that a user published in a virtual host. Return the engine time from which
        the publisher may go on: now, or later."""
        return max(
            _spend(self.vhosts, self._buckets_of_vhosts, vhost, count, now_ms),
            _spend(self.users, self._buckets_of_users, user, count, now_ms),
        )

    def enter(self, vhost: str, user: str) -> None:
        """Count a connection. Raises NotAllowed above a limit."""
        if not user:
            return
        limit = _limit(self.vhosts, vhost, MAX_CONNECTIONS)
        if 0 <= limit <= self._of_vhost.get(vhost, 0):
            raise NotAllowed(
                f"access to vhost '{vhost}' refused for user '{user}': connection limit ({limit}) "
                "is reached"
            )
        limit = _limit(self.users, user, MAX_CONNECTIONS)
        if 0 <= limit <= self._of_user.get(user, 0):
            raise NotAllowed(
                f"connection refused for user '{user}': user connection limit ({limit}) is reached"
            )
        self._of_vhost[vhost] = self._of_vhost.get(vhost, 0) + 1
        self._of_user[user] = self._of_user.get(user, 0) + 1

    def leave(self, vhost: str, user: str) -> None:
        """Subtract a counted connection."""
        if user:
            _less(self._of_vhost, vhost)
            _less(self._of_user, user)

    def begin(self, user: str) -> None:
        """Count a session. Raises NotAllowed above a limit."""
        if not user:
            return
        limit = _limit(self.users, user, MAX_CHANNELS)
        if 0 <= limit <= self._sessions.get(user, 0):
            raise NotAllowed(
                f"number of channels opened for user '{user}' has reached the maximum allowed user "
                f"limit of ({limit})"
            )
        self._sessions[user] = self._sessions.get(user, 0) + 1

    def end(self, user: str) -> None:
        """Subtract a counted session."""
        if user:
            _less(self._sessions, user)

    def check_queue(self, vhost: str, name: str, count: int) -> None:
        """Check the limit on queues before one is added to `count` others. Raises
        PreconditionFailed."""
        limit = _limit(self.vhosts, vhost, MAX_QUEUES)
        if 0 <= limit <= count:
            raise PreconditionFailed(
                f"cannot declare queue '{name}': queue limit in vhost '{vhost}' ({limit}) is "
                "reached"
            )

    def counts(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        """Return connections by virtual host and by user, and sessions by user; without zeros."""
        return self._of_vhost, self._of_user, self._sessions


def check_limit(name: str, value: int) -> None:
    """Check the value of a limit. Raises PreconditionFailed."""
    if not -LARGEST <= value <= LARGEST:
        raise PreconditionFailed(
            f"limit {name} is {value}, expected 0 to {LARGEST}, or a negative number for none"
        )


def _limit(limits: Limits, of: str, name: str) -> int:
    found = limits.get(of)
    return -1 if found is None else found.get(name, -1)


def _spend(
    limits: Limits, buckets: dict[str, Bucket], of: str, count: int, now_ms: EngineMs
) -> EngineMs:
    rate = _limit(limits, of, MAX_PUBLISH_RATE)
    if rate < 0:
        return now_ms
    bucket = buckets.get(of)
    if bucket is None:
        bucket = buckets[of] = Bucket(rate, now_ms)
    if not rate:
        return EngineMs(now_ms + NEVER_MS)
    bucket.spend(rate, count, now_ms)
    return bucket.due(rate, now_ms)


def _less(counts: dict[str, int], of: str) -> None:
    left = counts[of] - 1
    if left:
        counts[of] = left
    else:
        del counts[of]
