"""The lease of a journal: who leads it, until when, and who may take it over. Rules without I/O.

A lease says who is expected to lead; it guards nothing. What guards the journal is the epoch, which
every claim raises: each commit of a leader compares it in the database, so that a leader whose
lease ran out while it was stopped, cut off or wrong about the time can write nothing any more. A
lease that ends too early costs a change of leader, and no message.

All times are the database's: a broker's own clock is never asked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

HANDOVER: Final = "handover"
"""Request to the leader: stop in good order and release the lease."""
TAKEOVER: Final = "takeover"
"""Request to a standby: claim the lease although it has not run out."""
REQUESTS: Final = (HANDOVER, TAKEOVER)
RENEWALS: Final = 3
"""Renewals within the time of a lease, so that two of them may fail."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease as it stands in the database."""

    epoch: int
    """Number of the leader's reign; 0: nobody has led yet."""
    holder: str
    """Name of the leader, empty where nobody leads."""
    expires_ms: int
    """Time at which it runs out, of the database's clock."""
    request: str = ""
    """HANDOVER, TAKEOVER, or empty."""

    def is_free(self, now_ms: int) -> bool:
        """Return whether somebody may claim it."""
        return not self.holder or self.expires_ms <= now_ms or self.request == TAKEOVER

    def claimed(self, name: str, now_ms: int, lasting_ms: int) -> Lease | None:
        """Return the lease as `name` claims it, with the next epoch; None: it is not free."""
        if not self.is_free(now_ms):
            return None
        return Lease(self.epoch + 1, name, now_ms + lasting_ms)

    def renewed(self, name: str, now_ms: int, lasting_ms: int) -> Lease | None:
        """Return the lease as its holder renews it; None: another one leads, or nobody.

        A lease that ran out and that nobody claimed is renewed like any other. A name is as good as
        an epoch: no two brokers have the same, and each leads once at most."""
        if self.holder != name:
            return None
        return replace(self, expires_ms=now_ms + lasting_ms)

    def released(self, epoch: int, now_ms: int) -> Lease | None:
        """Return the lease as the leader of an epoch gives it back; None: another one leads."""
        if self.epoch != epoch:
            return None
        return Lease(epoch, "", now_ms)

    def requested(self, request: str) -> Lease:
        """Return the lease with a request for its leader or its standbys.

        Raises:
            ValueError: there is no such request.
        """
        if request not in REQUESTS:
            raise ValueError(f"request {request!r}, expected one of {', '.join(REQUESTS)}")
        return replace(self, request=request)


@dataclass(frozen=True, slots=True)
class Follower:
    """A broker that follows the journal."""

    name: str
    position: int
    """Position that it has read up to."""
    seen_ms: int
    """Milliseconds since it said so."""


def furthest_behind(followers: list[Follower], end: int) -> Follower | None:
    """Return the broker that has read furthest behind this end of the tables; None: none has.

    Each notes its position with a commit that comes after the blocks it read. So tables that have
    the note and not the blocks have lost them since.
    """
    furthest = max(followers, key=lambda one: one.position, default=None)
    return furthest if furthest is not None and furthest.position > end else None
