"""Order of password checks: clients that try wrong passwords must not keep others out.

A check is one scrypt, some 30 ms and 16 MiB; memory and threads limit how many run at a time.
Checks that wait are run in this order:

    first   those of a user who has recently logged in from the same address
    then    those of addresses with the fewest running checks, the fewest failures first

One check runs at a time for each address and user. After a failure the next one is delayed, longer
each time. When too many checks wait, one is refused unchecked: a stranger's before one of a user
who has recently logged in from the same address, then one of the address with the most waiting
checks, the last of these.

Clients who wait with the same password for the same user get the answer of the first of them: as
many as come back after a restart are let in by one check.

A password that was right is remembered for VERIFIED_MS, as a keyed hash in memory: it is accepted
without a check, however many wrong ones wait.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from tallymark.server.clock import now_ms

AT_A_TIME: Final = 4
"""Checks running: bounds memory and threads under a storm of log-ins."""
OF_ONE_ADDRESS: Final = 3
"""Checks running for one address, so that one is left for others."""
WAITING: Final = 1000
WAITING_OF_ONE: Final = 64
"""Checks that may wait, of all clients and of one address and user; more are refused."""
VERIFIED_MS: Final = 300_000
"""Milliseconds that a verified password is accepted without a check."""
KNOWN_MS: Final = 3_600_000
"""Milliseconds after a log-in for which its address goes first."""
FIRST_DELAY_MS: Final = 50
LONGEST_DELAY_MS: Final = 2000
FORGIVEN_MS: Final = 60_000
"""Milliseconds without a failure after which earlier failures of an address and user are
forgotten."""
REMEMBERED: Final = 10_000
"""Entries of each table."""

K = TypeVar("K")
Entry = tuple[str, bytes, bytes]
"""A user, what is stored of the user's password, and the keyed hash of the password that was given:
the answer is the same each time."""
Key = tuple[str, str]
"""An address and a user's name."""


class Waiting:
    """A check that has not begun."""

    __slots__ = ("entry", "key", "number", "turn")

    def __init__(
        self, key: Key, entry: Entry | None, number: int, turn: asyncio.Future[bool | None]
    ) -> None:
        self.key = key
        self.entry = entry
        """Entry of the password that is checked; None: equal checks are not joined."""
        self.number = number
        self.turn = turn
        """Future of its turn. None: it may run now. True or False: result of another check with the
        same entry."""


class Failures:
    """Recent failures of one address and user."""

    __slots__ = ("count", "last_ms")

    def __init__(self) -> None:
        self.count = 0
        self.last_ms = 0


class Logins:
    """The checks of a node. Times are monotonic milliseconds."""

    def __init__(self, clock: Callable[[], int] = now_ms) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._verified: dict[Entry, int] = {}
        """Times until which a verified password is accepted. A user who changes in anything but the
        password is let in as before; a new password is another entry."""
        self._known: dict[Key, int] = {}
        """Times until which an address and user go first."""
        self._failures: dict[Key, Failures] = {}
        self._waiting: list[Waiting] = []
        self._running: dict[Key, str] = {}
        """Addresses, by what is being checked."""
        self._numbers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        """Time for which the timer is set."""

    async def check(
        self,
        name: str,
        stored: bytes,
        password: str,
        peer: str,
        accepts: Callable[[], Awaitable[bool]],
    ) -> bool:
        """Return whether the password is right: by what is remembered, or by `accepts`, in turn.
        stored: of the user's password, so that a new one is not taken for the old one."""
        entry = (name, stored, hmac.digest(self._key, password.encode(), "sha256"))
        key = (peer, name)
        if self._verified.get(entry, 0) > self._clock():
            self._remember(self._known, key, KNOWN_MS)
            return True
        accepted = await self.attempt(name, peer, accepts, entry)
        if accepted:
            self._remember(self._verified, entry, VERIFIED_MS)
        return accepted

    async def attempt(
        self,
        name: str,
        peer: str,
        accepts: Callable[[], Awaitable[bool]],
        entry: Entry | None = None,
    ) -> bool:
        """Return what `accepts` says, in turn and after the delay that earlier failures made. For
        whatever proves who somebody is: guesses cost the same by every mechanism. entry: of a
        password, whose answer is that of others with the same entry."""
        key = (peer, name)
        answer = await self._turn(key, entry)
        if answer is not None:
            return answer
        accepted = False
        try:
            accepted = await accepts()
            if accepted:
                self._remember(self._known, key, KNOWN_MS)
                self._failures.pop(key, None)
            else:
                self._failed(key)
            if entry is not None:
                self._answer(key, entry, accepted)
        finally:
            del self._running[key]
            self._serve()
        return accepted

    def _answer(self, key: Key, entry: Entry, accepted: bool) -> None:
        """Give those who wait with the same entry the same answer. A failure is that of one address
        and user."""
        for one in list(self._waiting):
            if one.entry == entry and (accepted or one.key == key) and not one.turn.done():
                self._waiting.remove(one)
                one.turn.set_result(accepted)

    async def _turn(self, key: Key, entry: Entry | None) -> bool | None:
        """Wait until it is this one's turn, and return None: then it runs. Else the answer: too
        many wait, or another one had the same entry."""
        own = [one.entry for one in self._waiting if one.key == key]
        others = own.count(None) + len({*own} - {None, entry})
        if others >= WAITING_OF_ONE:
            return False
        if len(self._waiting) >= WAITING and not self._make_room(key):
            return False
        self._numbers += 1
        turn: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        waiting = Waiting(key, entry, self._numbers, turn)
        self._waiting.append(waiting)
        self._serve()
        try:
            return await turn
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif turn.result() is None:
                del self._running[key]
                self._serve()
            raise

    def _make_room(self, key: Key) -> bool:
        """Refuse a waiting check in favour of a new one. Return False if it is the new one that is
        to be refused. O(waiting checks)."""
        now = self._clock()
        counts = Counter(one.key[0] for one in self._waiting)
        counts[key[0]] += 1

        def surplus(of: Key) -> tuple[bool, int]:
            return self._known.get(of, 0) <= now, counts[of[0]]

        there = [one for one in self._waiting if not one.turn.done()]
        last = max(there, key=lambda one: (*surplus(one.key), one.number), default=None)
        if last is None or surplus(last.key) <= surplus(key):
            return False
        self._waiting.remove(last)
        last.turn.set_result(False)
        return True

    def _serve(self) -> None:
        """Start the checks whose turn has come; set a timer for the next delayed one."""
        while len(self._running) < AT_A_TIME:
            now = self._clock()
            # A turn that is over already is that of a client who has just gone.
            ready = [
                one for one in self._waiting if not one.turn.done() and self._may_run(one.key, now)
            ]
            if not ready:
                self._look_later(now)
                return
            first = min(ready, key=lambda one: self._rank(one, now))
            self._waiting.remove(first)
            self._running[first.key] = first.key[0]
            first.turn.set_result(None)

    def _may_run(self, key: Key, now: int) -> bool:
        of_address = sum(address == key[0] for address in self._running.values())
        is_known = self._known.get(key, 0) > now
        most = AT_A_TIME if is_known else OF_ONE_ADDRESS
        return key not in self._running and of_address < most and self._due(key) <= now

    def _rank(self, one: Waiting, now: int) -> tuple[bool, int, int, int]:
        of_address = sum(address == one.key[0] for address in self._running.values())
        failures = self._failures.get(one.key)
        is_stranger = self._known.get(one.key, 0) <= now
        return is_stranger, of_address, failures.count if failures else 0, one.number

    def _due(self, key: Key) -> int:
        """Return when the next check of an address and user may begin."""
        failures = self._failures.get(key)
        if failures is None:
            return 0
        delay = min(FIRST_DELAY_MS << min(failures.count - 1, 16), LONGEST_DELAY_MS)
        return failures.last_ms + delay

    def _failed(self, key: Key) -> None:
        now = self._clock()
        failures = self._failures.get(key)
        if failures is None or failures.last_ms + FORGIVEN_MS <= now:
            if len(self._failures) >= REMEMBERED:
                self._failures.pop(next(iter(self._failures)))
            failures = self._failures[key] = Failures()
        failures.count += 1
        failures.last_ms = now

    def _look_later(self, now: int) -> None:
        dues = [self._due(one.key) for one in self._waiting if one.key not in self._running]
        dues = [due for due in dues if due > now]
        if not dues:
            return
        if self._timer is not None:
            if self._timer_ms <= min(dues):
                return
            self._timer.cancel()
        self._timer_ms = min(dues)
        wait_s = (self._timer_ms - now) / 1000
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _look(self) -> None:
        self._timer = None
        self._serve()

    def _remember(self, table: dict[K, int], key: K, for_ms: int) -> None:
        table.pop(key, None)
        if len(table) >= REMEMBERED:
            table.pop(next(iter(table)))
        table[key] = self._clock() + for_ms
