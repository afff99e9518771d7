"""Where the bytes of payloads are: in memory, in the journal, or no longer needed.

Memory is a cache over the journal. Beyond a budget the newest payloads lose their bytes first: the
head of a queue is what is read next. A transient payload has no place in the journal until the
budget is exceeded; then it is given one, and like every transient message it ends at a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from tallymark.engine import records
from tallymark.engine.errors import BytesLost, Unreadable
from tallymark.engine.message import NOWHERE, ON_ITS_WAY, Payload
from tallymark.engine.records import Record

if TYPE_CHECKING:
    from tallymark.engine.queue import Queue

SWEPT: Final = 32_768
"""Messages, packed or payloads of their own, that are let go of in one turn."""
HELD_AT_MOST: Final = 256
"""How many payloads that cannot lose their bytes yet are passed over in one search."""


@final
class Store:
    """Counts who needs a payload's bytes, loads them when they are away, lets them go."""

    __slots__ = (
        "_dead",
        "_dead_packed",
        "_dying",
        "_fetch",
        "_residents",
        "_unused",
        "is_behind",
        "released",
        "resident_bytes",
        "settling",
        "trouble",
    )

    def __init__(self, fetch: Callable[[Payload], bytes]) -> None:
        self._fetch = fetch
        """Reads a payload's bytes back from the journal; may block for a disk read."""
        self.resident_bytes = 0
        """Bytes of payloads in memory."""
        self._residents: deque[Payload] = deque()
        self._unused = 0
        """How many entries of `_residents` no longer have bytes."""
        self._dying: list[Payload] = []
        """Needed by nobody, but records or effects of this turn may still refer to them."""
        self._dead: list[Payload] = []
        self._dead_packed = 0
        """How many of these and of `_dying` are packed."""
        self.is_behind = False
        """Whether a sweep had to leave something for the next turn."""
        self.released: list[tuple[int, int]] = []
        """Journal extents (position, size) that nothing needs any more; the owner takes them."""
        self.settling: list[Queue] = []
        """Queues with settled ranges that are not yet records."""
        self.trouble = ""
        """Why bytes could not be read when that was tried last."""

    def enter(self, payload: Payload, users: int) -> None:
        """A new payload, needed by so many (queue, message) pairs."""
        payload.live += users
        self.resident_bytes += payload.size
        self._residents.append(payload)

    def hold(self, size: int) -> None:
        """So many bytes are in memory that belong to no payload yet; negative: to one now, or no
        more."""
        self.resident_bytes += size

    def use(self, payload: Payload, n: int) -> None:
        """n more (queue, message) pairs need the payload, which is alive."""
        payload.live += n

    def load(self, payload: Payload) -> None:
        """Make sure that payload.raw is there.

        Raises Unreadable: ask before anything is changed, or `tried` where there is another way.
        """
        if not self.tried(payload):
            raise Unreadable(f"{payload.size} bytes of messages cannot be read: {self.trouble}")

    def tried(self, payload: Payload) -> bool:
        """As load; False: the bytes cannot be read, and `trouble` says why."""
        if payload.raw is not None:
            return True
        try:
            payload.raw = self._fetch(payload)
        except (BytesLost, OSError) as error:
            self.trouble = str(error)
            return False
        self.resident_bytes += payload.size
        self._residents.append(payload)
        return True

    def read(self, payload: Payload) -> bytes:
        """The bytes, which stay where they are. Raises Unreadable."""
        raw = payload.raw
        if raw is not None:
            return raw
        try:
            return self._fetch(payload)
        except (BytesLost, OSError) as error:
            raise Unreadable(f"{payload.size} bytes cannot be read: {error}") from error

    def lent(self, payload: Payload) -> bool:
        """As tried, for a payload that only looks at bytes which another one answers for: they are
        nobody's, and gone with it."""
        if payload.raw is None:
            try:
                payload.raw = self._fetch(payload)
            except (BytesLost, OSError) as error:
                self.trouble = str(error)
                return False
        return True

    def finish(self, payload: Payload, n: int) -> None:
        """n (queue, message) pairs need the payload no longer. Its bytes stay until `sweep`."""
        payload.live -= n
        if payload.live == 0:
            self._dying.append(payload)
            if payload.pack is not None:
                self._dead_packed += 1

    def committed(self) -> None:
        """The records of this turn are in the journal's hands."""
        if self._dying:
            self._dead += self._dying
            self._dying.clear()

    def sweep(self) -> None:
        """Let go of what had died before the last commit; its effects have been carried out. Where
        that is a lot, the rest goes with the next turns."""
        dead = self._dead
        if len(dead) > SWEPT or self._dead_packed:
            self._sweep_some()
        else:
            for payload in dead:
                self._release(payload)
            dead.clear()
            self.is_behind = False
        residents = self._residents
        while residents and residents[0].raw is None:
            residents.popleft()
            self._unused -= 1
        if self._unused > 1024 and self._unused * 2 > len(residents):
            self._residents = deque([p for p in residents if p.raw is not None])
            self._unused = 0

    def _sweep_some(self) -> None:
        room = SWEPT
        at = 0
        dead = self._dead
        while at < len(dead) and room > 0:
            payload = dead[at]
            pack = payload.pack
            if pack is not None:
                self._dead_packed -= 1
                room -= payload.count - pack.taken
            else:
                room -= 1
            self._release(payload)
            at += 1
        del dead[:at]
        self.is_behind = len(dead) > 0

    def _release(self, payload: Payload) -> None:
        if payload.live:
            return  # somebody uses it again
        self.forget(payload)
        pack = payload.pack
        if pack is not None:
            cuts = payload.cuts
            for i in range(pack.taken, payload.count):
                self.released.append((pack.positions[i], cuts[i + 1] - cuts[i]))
            pack.taken = payload.count
        elif payload.position >= 0:
            self.released.append((payload.position, payload.size))
            payload.position = NOWHERE

    def spill(self, budget: int, written: int, out: list[Record]) -> None:
        """Bring memory down to `budget` bytes: payloads below journal position `written` lose
        their bytes, transient ones are first given a place through a record in `out`. No more of
        them than has to go: what is on its way there counts as gone."""
        held: list[Payload] = []
        residents = self._residents
        excess = self.resident_bytes - budget
        while excess > 0 and residents and len(held) < HELD_AT_MOST:
            payload = residents.pop()
            if payload.raw is None:
                self._unused -= 1
            elif payload.position < 0 or payload.position + payload.size > written:
                if payload.position == NOWHERE and payload.live:
                    payload.position = ON_ITS_WAY
                    out.append(
                        Record(
                            records.PAYLOAD,
                            0,
                            payload.first_id,
                            payload.count,
                            payload.arrived_ms,
                            payload,
                            flags=records.TRANSIENT,
                        )
                    )
                if payload.position != NOWHERE:
                    excess -= payload.size
                held.append(payload)
            else:
                excess -= payload.size
                self._drop_bytes(payload)
                self._unused -= 1
        held.reverse()
        residents.extend(held)

    def forget(self, payload: Payload) -> None:
        """Its bytes in memory are needed no longer."""
        if payload.raw is not None:
            self._drop_bytes(payload)

    def _drop_bytes(self, payload: Payload) -> None:
        payload.raw = None
        self.resident_bytes -= payload.size
        self._unused += 1
