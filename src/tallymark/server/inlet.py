"""Inlet: whether a client's socket is read, and when what it sent is decoded.

A client is not read while a reason speaks against it: it does not read its own output, others go
first, memory or disk run low, it published more than its rate allows. Each reason has a flag, or is
a state of another part; whoever changes one calls `read_or_not`.

A client that does not read its output is not read itself. It may lag behind by CLOGGED high water
marks where it has something of ours to answer for (a subscriber goes on saying what it is done
with), else by one; and what it asks for is answered only as far as its socket has room
(`Bridge.room`), however much it asked for in one read.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from tallymark.engine.queue import Queue
from tallymark.server.buffers import Buffers
from tallymark.server.giving_way import (
    FIRST_RETRY_S,
    IS_OVER,
    IS_VAIN,
    PAUSE,
    PAUSE_S,
    ROUND,
    GivingWay,
    next_retry_s,
)
from tallymark.server.outlet import Outlet
from tallymark.server.postponed import Postponed
from tallymark.server.turns import Turns

CLOGGED: Final = 8
"""High water marks of bytes waiting in a client's socket buffer above which it is not read."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Inlet(Outlet):
    """One client's inlet, a part of `Client`."""

    def __init__(self, turns: Turns, buffers: Buffers, postponed: Postponed) -> None:
        super().__init__(turns, buffers)
        self._postponed = postponed
        self.resting = False
        """True while it is not read because it publishes and memory or disk run low."""
        self.is_paced = False
        """True while it is not read because it published more than its rate allows."""
        self.yielding = False
        """True while it is not read because others go first: it sent much in one read."""
        self._giving_way: GivingWay | None = None
        """Wait for the consumers of a queue that it is ahead of, while `yielding`."""
        self._gives_way_from = 0.0
        """Time on the loop's clock before which it does not give way."""
        self._retry_s = FIRST_RETRY_S
        """Seconds from a wait that was vain to the next one."""
        self.is_in_line = False
        """True while it stands in the line of postponed input."""
        self.is_reading = True
        """True while its socket is read."""
        self.holds_input = False
        """True while input that was read waits to be decoded: the socket is not read meanwhile, so
        that no more of it piles up."""

    def work_on(self) -> None:
        """Have the bridge work on postponed input for one more share; then it is another's turn."""
        raise NotImplementedError

    def may_lag(self) -> int:
        """Bytes of output that may wait in a full socket while the client is still read."""
        return CLOGGED * self._turns.config.write_high_water

    def rest(self, resting: bool) -> None:
        """Pause or resume reading from this client."""
        self.resting = resting
        self.read_or_not()

    def let_others(self) -> None:
        """Pause reading until other clients were read."""
        if not self.yielding:
            self.yielding = True
            self.read_or_not()
            self._turns.loop.call_soon(self._go_on)

    def give_way(self, queue: Queue, entered: int) -> None:
        """Pause reading until the queue's consumers have caught up; entered: number of messages
        that the read added."""
        if self._giving_way is None and self._turns.loop.time() >= self._gives_way_from:
            self._giving_way = GivingWay(queue, entered)
            self.let_others()

    def _go_on(self) -> None:
        giving_way = self._giving_way
        if giving_way is not None:
            ends = self.is_over or self.transport.is_closing()
            found = IS_OVER if ends else giving_way.look()
            if found == ROUND:
                self._turns.loop.call_soon(self._go_on)
                return
            if found == PAUSE:
                self._turns.loop.call_later(PAUSE_S, self._go_on)
                return
            if found == IS_VAIN:
                self._gives_way_from = self._turns.loop.time() + self._retry_s
            self._retry_s = next_retry_s(found, self._retry_s)
            self._giving_way = None
        self.yielding = False
        self.read_or_not()
        self.catch_up()

    def takes_input(self) -> bool:
        """Return whether the bridge may be given input now."""
        return not (
            self.resting
            or self.is_paced
            or self.yielding
            or not self.bridge.wants_data
            or self.is_clogged()
        )

    def read_or_not(self) -> None:
        """Have the transport read, or not, as it should be now."""
        wanted = self.is_over or self.takes_input()
        if wanted and self.holds_input and not self.is_over:
            wanted = False
            self.go_on_decoding()
        if wanted == self.is_reading or self.transport.is_closing():
            return
        self.is_reading = wanted
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def go_on_decoding(self) -> None:
        """Decode the input that `holds_input` tells of, soon."""

    def is_clogged(self) -> bool:
        """Return whether its unread output exceeds `may_lag`, so that answers to new requests would
        pile up."""
        return self.is_full and self.unsent() > self.may_lag()

    def catch_up(self) -> None:
        """Have the bridge continue with postponed input, once the socket has room again."""
        if (
            self.bridge.is_behind
            and not self.bridge.lacks_room  # after the next flush
            and not self.is_full
            and not self.yielding
            and not self.is_paced
            and not self.is_over
            and not self.transport.is_closing()
        ):
            self._postponed.add(self)
