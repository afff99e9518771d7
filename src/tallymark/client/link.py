"""Link of a sender or receiver. `Link` is its life: attached, lost with its connection and attached
again, closed by either side. A receiver's has credit, which follows settlement [FC-17]: `Window` is
the rule, without I/O, `Flow` keeps it on the link, or issues credit by hand [FC-14].

A window of W slots. Each slot is at any time one of: free, announced to the sender as credit, taken
by a message that waits in the buffer, or by one that the application holds. A settlement, whatever
its outcome, frees one slot; so does `ignore()`. The promise is

    credit + buffered + held <= W

at every moment, so a sender can never push (and lock) a message that nobody has room for.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Final, Generic, TypeVar, final

from tallymark.client.adapter import LinkOwner, LinkPort, ReceiverPort, SessionPort
from tallymark.client.arguments import CREDIT_MAX
from tallymark.client.deliveries import Deliveries
from tallymark.client.errors import ClientError, Closed, LinkClosed, NotPossible, TimedOut
from tallymark.client.events import Decision
from tallymark.client.turn import TIME_IS_UP, Waiter, answer_to, resolve

P = TypeVar("P", bound=LinkPort)


class Link(LinkOwner, Generic[P]):
    """A sender or receiver for as long as it lives; the port behind it may be replaced."""

    def __init__(self, dispatcher: Deliveries, address: str | None, name: str) -> None:
        self.dispatcher = dispatcher
        self._asked = address
        self.name = name
        self.port: P | None = None
        self.error: ClientError | None = None
        self.ending: ClientError | None = None
        self._opening: P | None = None
        """The port from the beginning of the attach on."""
        self._was_attached = False
        self._attaching: Waiter | None = None
        self._closing: list[Waiter] = []

    @abstractmethod
    def begin(self, session: SessionPort) -> P:
        """Begin to attach."""

    @abstractmethod
    def lose(self, error: ClientError) -> None:
        """Give up what depends on the port, which is gone."""

    @abstractmethod
    def give_up(self, error: ClientError) -> None:
        """Give up what waited for another port: there will be none."""

    @property
    def is_attached(self) -> bool:
        return self.port is not None

    @property
    def is_closed(self) -> bool:
        """Return whether it is closed by either side, or is being closed."""
        return self.error is not None or self.ending is not None

    # Attaching

    async def open(self) -> None:
        """Attach it for the first time; where that fails, or is cancelled, no link remains."""
        try:
            await self.attach()
        except BaseException:
            error = LinkClosed("it was never opened")
            error.was_asked_for = True
            if self.error is None:
                self.begin_close(error)
                self.close(error)
            raise

    async def attach(self) -> None:
        dispatcher = self.dispatcher
        if dispatcher.port is None:
            raise (dispatcher.error or Closed("the session is not there")).copied()
        self._attaching = dispatcher.loop.create_future()
        try:
            self._opening = self.begin(dispatcher.port)
            dispatcher.turn.request()
            if await answer_to(self._attaching, dispatcher.answer_s) is TIME_IS_UP:
                limit_s = dispatcher.answer_s
                raise TimedOut(f"attach to {self._asked!r} not answered in {limit_s} s")
        finally:
            self._attaching = None
        if self.error is not None:  # detached at once
            raise self.error.copied()

    def now_attached(self, port: P) -> None:
        """Note that the peer has attached."""
        self.port = port
        self._was_attached = True
        if self._attaching is not None:
            resolve(self._attaching, None)

    # The end

    async def detach(self) -> None:
        """Close it for the application, and wait for the peer's answer. See `Receiver.close`."""
        if self.error is not None:
            return
        dispatcher = self.dispatcher
        if self.ending is None:
            dispatcher.turn.finish()
            error = LinkClosed("closed by the application")
            error.was_asked_for = True
            was_attached = self.port is not None
            self.begin_close(error)
            if not was_attached:
                self.close(error)
                return
        waiter: Waiter = dispatcher.loop.create_future()
        self._closing.append(waiter)
        if await answer_to(waiter, dispatcher.answer_s) is TIME_IS_UP:
            assert self.ending is not None
            self.close(self.ending)
            raise TimedOut(f"detach of {self.name!r} not answered in {dispatcher.answer_s} s")

    def begin_close(self, error: ClientError) -> None:
        """The application closes it, and the peer has not heard of it yet."""
        self.ending = error
        if self._opening is not None:
            self._opening.close()
            self.dispatcher.turn.request()
        self._lose_port(error)
        self.give_up(error)

    def detached(self, error: ClientError) -> None:
        if self.error is not None:
            return
        by_us = self.ending
        was_open = self._was_attached
        self.close(error if by_us is None else by_us)
        if by_us is None and was_open:
            self.dispatcher.report_loss(error)

    def close(self, error: ClientError) -> None:
        if self.error is None:
            self.error = error
        self._lose_port(error)
        self.give_up(error)
        for waiter in self._closing:
            resolve(waiter, None)
        self._closing.clear()

    def suspend(self, error: ClientError) -> None:
        if self.ending is not None:
            self.close(self.ending)
        else:
            self._lose_port(error)

    def _lose_port(self, error: ClientError) -> None:
        self.port = self._opening = None
        if self._attaching is not None:
            resolve(self._attaching, error)
        self.lose(error)


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
        "_lost_by",
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
        self._lost_by: ClientError | None = None
        """Reason why the last link ended."""
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

    def issue(self, count: int) -> None:
        """Let the peer send `count` more messages. See Receiver.issue_credit."""
        port = self._port_by_hand("issue_credit")
        if self._dispatcher.has_no_inflow:
            self._unused += count
            return
        port.grant(port.credit + count)
        self._was_paused = False
        self._decided(Decision.ISSUE)
        self._dispatcher.turn.request()

    def ask(self, count: int) -> None:
        """Let the peer send `count` more messages for a batch: when there is a link again, where
        the last one is lost."""
        if self.port is None:
            self._unused += count
        else:
            self.issue(count)

    async def drain(self) -> int:
        """Have the peer use its credit or give it up. Return how much it gave up. See
        Receiver.drain."""
        if not self._port_by_hand("drain").drain():
            return 0
        self._decided(Decision.DRAIN)
        self._dispatcher.turn.request()
        self.draining = self._dispatcher.loop.create_future()
        given_up = await answer_to(self.draining, None)
        assert isinstance(given_up, int)
        return given_up

    def _port_by_hand(self, call: str) -> ReceiverPort:
        if not self.is_manual:
            raise NotPossible(
                f"{call} on a receiver with credit_mode='auto': its window of "
                f"{self.window.size} gives the credit; pass credit_mode='manual'"
            )
        if self.port is None:
            raise (self._lost_by or NotPossible("not attached")).copied()
        if self.draining is not None:
            raise NotPossible(f"{call} while a drain is under way")
        self._dispatcher.send_settlements()
        return self.port

    def drained(self, given_up: int) -> None:
        """End a drain: the peer has answered it."""
        self._decided(Decision.DRAINED)
        self._end_drain(given_up)

    def _end_drain(self, result: object) -> None:
        draining = self.draining
        self.draining = None
        if draining is not None:
            resolve(draining, result)

    async def end_batch(self) -> None:
        """Stop deliveries at the end of a batch, by a drain. A peer that does not answer a drain,
        as the standard requires, is waited for once; then its credit is taken back."""
        port = self.port
        if self._dispatcher.has_no_inflow:  # a rollback has taken the credit back
            self._unused = 0
            return
        if port is not None and self._peer_drains:
            try:
                async with asyncio.timeout(DRAIN_S):
                    await self.drain()
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
        self._lost_by = error
        self.port = None
        self._end_drain(error.copied())
