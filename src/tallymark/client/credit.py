"""Credit of a receiver, which follows settlement [FC-17]: `Window` is the rule, without I/O, `Flow`
keeps it on a link, or issues credit by hand [FC-14].

A window of W slots. Each slot is at any time one of: free, announced to the sender as credit, taken
by a message that waits in the buffer, or by one that the application holds. A settlement, whatever
its outcome, frees one slot; so does `ignore()`. The promise is

    credit + buffered + held <= W

at every moment, so a sender can never push (and lock) a message that nobody has room for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, final

from tallymark.client.adapter import ReceiverPort
from tallymark.client.arguments import CREDIT_MAX
from tallymark.client.deliveries import Deliveries
from tallymark.client.errors import ClientError, Closed
from tallymark.client.events import Decision
from tallymark.client.turn import Waiter, answer_to, resolve

NOTHING: Final = -1
"""`Window.grant`: leave the credit as it is."""
DRAIN_S: Final = 5.0
"""Seconds that a batch waits for the answer to its drain."""


@final
class Window:
    """The slots of one receiver; what the sender may still send is the link's and is passed in."""

    __slots__ = ("size", "buffered", "held", "on_handover", "ignored")

    def __init__(self, size: int, on_handover: bool = False) -> None:
        if not 0 <= size <= CREDIT_MAX:
            raise ValueError(f"a window of {size}, expected 0 to {CREDIT_MAX}")
        self.size = size
        self.buffered = 0
        """Messages that arrived and wait to be read."""
        self.held = 0
        """Messages the application was given and has not settled: `unsettled` to users."""
        self.on_handover = on_handover
        """The old contract: a slot is free once its message was handed over. Do not."""
        self.ignored = 0
        """Messages ever ignored [FC-25]."""

    @property
    def free(self) -> int:
        """Slots taken by no message; those announced as credit are among them. Below 0 after the
        window was made smaller."""
        if self.on_handover:
            return self.size - self.buffered
        return self.size - self.buffered - self.held

    def grant(self, credit: int) -> int:
        """The link-credit to announce now that `credit` is outstanding, or NOTHING.

        Announced is all that is free, once that is at least twice what is outstanding: few flows
        while messages are settled one by one, and never a stall while a slot is free [FC-17].
        """
        free = self.free
        if free > credit and 2 * credit <= free:
            return free
        return NOTHING


@final
class Flow:
    """Credit of one receiver's link: as its window says, or by hand."""

    __slots__ = (
        "_decided",
        "_dispatcher",
        "_peer_drains",
        "_unused",
        "_was_paused",
        "draining",
        "is_manual",
        "port",
        "window",
    )

    def __init__(
        self,
        dispatcher: Deliveries,
        window: Window,
        is_manual: bool,
        decided: Callable[[Decision], None],
    ) -> None:
        """`decided` reports each decision."""
        self.window = window
        self.is_manual = is_manual
        self.port: ReceiverPort | None = None
        """Link's end in the adapter; None: not attached."""
        self.draining: Waiter | None = None
        self._dispatcher = dispatcher
        self._decided = decided
        self._peer_drains = True
        """False once the peer did not answer a drain."""
        self._was_paused = True
        self._unused = 0
        """Credit by hand, and messages bought with it, that a lost link or a rollback has taken: to
        be issued again."""

    @property
    def credit(self) -> int:
        """Messages the peer may still send; 0 while there is no link."""
        return 0 if self.port is None else self.port.credit

    @property
    def promised(self) -> int:
        """Outstanding credit, including what is issued once deliveries resume."""
        return self.credit + self._unused

    def attach(self, port: ReceiverPort) -> None:
        """Begin with a new link, and with the credit by hand that was not used on the last one."""
        self.port = port
        self._peer_drains = True
        self._was_paused = True
        self.resume()

    def evaluate(self) -> int:
        """Decide about credit, at most once per turn [FC-17]. Return what is outstanding now."""
        port = self.port
        assert port is not None
        credit = port.credit
        if not self.is_manual and self.draining is None:
            due = self.window.grant(credit)
            if due != NOTHING:
                port.grant(due)
                self._decided(Decision.TOP_UP if credit else Decision.RESUME)
                self._was_paused = False
                return due
        if credit == 0 and not self._was_paused:
            self._was_paused = True
            self._decided(Decision.PAUSE)
        return credit

    # By hand

    def issue(self, port: ReceiverPort, count: int) -> None:
        """Let the peer send `count` more messages."""
        if self._dispatcher.has_no_inflow:
            self._unused += count
            return
        port.grant(port.credit + count)
        self._was_paused = False
        self._decided(Decision.ISSUE)
        self._dispatcher.turn.request()

    async def drain(self, port: ReceiverPort) -> int:
        """Have the peer use its credit or give it up. Return how much it gave up."""
        if not port.drain():
            return 0
        self._decided(Decision.DRAIN)
        self._dispatcher.turn.request()
        self.draining = self._dispatcher.loop.create_future()
        given_up = await answer_to(self.draining, None)
        assert isinstance(given_up, int)
        return given_up

    def drained(self, given_up: int) -> None:
        """End a drain: the peer has answered it."""
        self._decided(Decision.DRAINED)
        self._end_drain(given_up)

    def _end_drain(self, result: object) -> None:
        draining = self.draining
        self.draining = None
        if draining is not None:
            resolve(draining, result)

    async def end_batch(self, drain: Callable[[], Coroutine[Any, Any, int]]) -> None:
        """Stop deliveries at the end of a batch, by `drain`. A peer that does not answer a drain,
        as the standard requires, is waited for once; then its credit is taken back."""
        port = self.port
        if self._dispatcher.has_no_inflow:  # a rollback has taken the credit back
            self._unused = 0
            return
        if port is not None and self._peer_drains:
            try:
                async with asyncio.timeout(DRAIN_S):
                    await drain()
            except TimeoutError:
                self._peer_drains = False
                self.draining = None
            except Closed:
                port = None  # it broke meanwhile: nothing comes of that credit
        if port is None or port is not self.port or self._dispatcher.has_no_inflow:
            self._unused = 0
        elif not self._peer_drains:
            port.revoke()
            self._dispatcher.turn.request()

    # A rollback, a lost link

    def stop(self) -> None:
        """Note that all credit is taken back for a rollback; ends a drain."""
        was_draining = self.draining is not None
        self._end_drain(self.credit)
        if self.is_manual and self.port is not None:
            self._unused = self.window.buffered + (0 if was_draining else self.port.credit)

    def resume(self) -> None:
        """Issue again the credit that was taken by a lost link or a rollback."""
        if self._unused and self.port is not None and not self._dispatcher.has_no_inflow:
            self.port.grant(max(0, self._unused - self.window.buffered))
            self._unused = 0

    def suspend(self) -> None:
        """Remember credit by hand that was not used, before the buffer and the link go."""
        if self.is_manual and self.port is not None and not self._dispatcher.has_no_inflow:
            drains = self.draining is not None  # the rest of the credit is given up
            self._unused = self.window.buffered + (0 if drains else self.port.credit)

    def lose(self, error: ClientError) -> None:
        """Forget the link, which is gone."""
        self.port = None
        self._end_drain(error.copied())
