"""Store: the place of payload bytes, in memory or in the journal, and their release.

Memory is a cache over the journal. Beyond a budget the newest payloads lose their bytes first: the
head of a queue is what is read next. A transient payload has no place in the journal until the
budget is exceeded; then it is given one, and like every transient message it ends at a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, final

from tallymark.engine.errors import BytesLost, Unreadable
from tallymark.engine.ledger import Ledger, payload_record
from tallymark.engine.message import NOWHERE, ON_ITS_WAY, Payload
from tallymark.stored import records
from tallymark.units import Position

SWEPT: Final = 32_768
"""Number of messages released in one turn, whether packed or payloads of their own."""
HELD_AT_MOST: Final = 256
"""Number of payloads that one search skips because they cannot leave memory yet."""


@final
class Store:
    """Counts the users of payloads' bytes, loads bytes from the journal and releases them."""

    def __init__(self, fetch: Callable[[Payload], bytes]) -> None:
        self._fetch = fetch
        """Function that reads a payload's bytes back from the journal. It may block for a disk
        read."""
        self.resident_bytes = 0
        """Bytes of payloads in memory."""
        self._residents: deque[Payload] = deque()
        self._unused = 0
        """Count of entries of `_residents` that no longer have bytes."""
        self._dying: list[Payload] = []
        """Payloads without users that records or effects of this turn may still refer to."""
        self._dead: list[Payload] = []
        self._dead_packed = 0
        """Count of packed payloads among these and in `_dying`."""
        self.is_behind = False
        """True if a sweep had to leave work for the next turn."""
        self.released: list[tuple[Position, int]] = []
        """Journal extents (position, size) that are no longer needed. The owner takes them from
        here."""
        self.trouble = ""
        """Error text of the last read that failed."""

    def enter(self, payload: Payload, users: int) -> None:
        """Add a new payload with the number of its users, each a (queue, message) pair."""
        payload.live += users
        self.resident_bytes += payload.size
        self._residents.append(payload)

    def hold(self, size: int) -> None:
        """Count bytes in memory that belong to no payload yet; negative if they belong to one now
        or were released."""
        self.resident_bytes += size

    def use(self, payload: Payload, n: int) -> None:
        """Add n users, (queue, message) pairs, to a payload that has some."""
        payload.live += n

    def load(self, payload: Payload) -> None:
        """Load payload.raw into memory if it is not there.

        Raises Unreadable: ask before anything is changed, or `tried` where there is another way.
        """
        if not self.tried(payload):
            raise Unreadable(f"{payload.size} bytes of messages cannot be read: {self.trouble}")

    def tried(self, payload: Payload) -> bool:
        """Load payload.raw, as load does; False: the bytes cannot be read, and `trouble` has the
        error text."""
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
        """Return the bytes without loading them into the payload. Raises Unreadable."""
        raw = payload.raw
        if raw is not None:
            return raw
        try:
            return self._fetch(payload)
        except (BytesLost, OSError) as error:
            raise Unreadable(f"{payload.size} bytes cannot be read: {error}") from error

    def lent(self, payload: Payload) -> bool:
        """Load payload.raw, as tried does, for a view on bytes that belong to another payload. They
        are not counted, and are released with the view. False: they cannot be read."""
        if payload.raw is None:
            try:
                payload.raw = self._fetch(payload)
            except (BytesLost, OSError) as error:
                self.trouble = str(error)
                return False
        return True

    def finish(self, payload: Payload, n: int) -> None:
        """Remove n users, (queue, message) pairs. The bytes stay until `sweep`."""
        payload.live -= n
        if payload.live == 0:
            self._dying.append(payload)
            if payload.pack is not None:
                self._dead_packed += 1

    def committed(self) -> None:
        """Note that the records of this turn were passed to the journal."""
        if self._dying:
            self._dead += self._dying
            self._dying.clear()

    @property
    def awaits_sweep(self) -> bool:
        """True while payloads without users still have their bytes: a coming turn releases them."""
        return bool(self._dead or self._dying)

    def sweep(self) -> None:
        """Release payloads that had no users before the last commit, whose effects have been
        carried out. If there are many, the rest follows in the next turns."""
        dead = self._dead
        if len(dead) > SWEPT or self._dead_packed:
            self._sweep_some()
        else:
            if dead:
                for payload in dead:
                    self._release(payload)
                dead.clear()
            self.is_behind = False
        if not self._unused:
            return
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
            return  # it has users again
        self.forget(payload)
        pack = payload.pack
        if pack is not None:
            cuts = payload.cuts
            for i in range(pack.taken, payload.count):
                self.released.append((Position(pack.positions[i]), cuts[i + 1] - cuts[i]))
            pack.taken = payload.count
        elif payload.position >= 0:
            self.released.append((payload.position, payload.size))
            payload.position = Position(NOWHERE)

    def spill(self, budget: int, written: Position, ledger: Ledger) -> None:
        """Reduce memory to `budget` bytes. Payloads below journal position `written` lose their
        bytes; transient ones first get a position by a row of the ledger, but no more of them than
        needed, since bytes on their way to the journal count as gone."""
        held: list[Payload] = []
        residents = self._residents
        excess = self.resident_bytes - budget
        while excess > 0 and residents and len(held) < HELD_AT_MOST:
            payload = residents.pop()
            if payload.raw is None:
                self._unused -= 1
            elif payload.position < 0 or payload.position + payload.size > written:
                if payload.position == NOWHERE and payload.live:
                    payload.position = Position(ON_ITS_WAY)
                    ledger.emit(payload_record(payload, records.TRANSIENT))
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
        """Release a payload's bytes in memory."""
        if payload.raw is not None:
            self._drop_bytes(payload)

    def _drop_bytes(self, payload: Payload) -> None:
        payload.raw = None
        self.resident_bytes -= payload.size
        self._unused += 1
