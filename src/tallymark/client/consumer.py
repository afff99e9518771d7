"""State of one receiver: its buffer, its window, and its unsettled messages.

    BUFFERED --hand_over--> HELD --settle--> SETTLED                 mode first
                            HELD --settle--> SETTLING --> SETTLED    mode second, when answered
                            HELD --ignore--> IGNORED
                            HELD --settle--> STAGED --commit--> SETTLED    in a transaction
    BUFFERED, HELD, SETTLING --sender takes it back--> SETTLED; gone from the buffer
    BUFFERED, HELD, STAGED --rollback--> RETURNED; gone from the buffer
    HELD, SETTLING, BUFFERED --link gone--> LOST

Every change of state and of the window's counts is one step without an await. Waiting readers are
woken with nothing in their hands: who gets a message is decided when it is taken (`hand_over`), so
nobody holds one across an await, or when cancelled [TX-18, TX-21].
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, final

from tallymark.client.credit import NOTHING, Window
from tallymark.client.errors import ClientError, NotPossible, TimedOut
from tallymark.client.events import CreditDecided, Decision, Event
from tallymark.client.leaks import LeakWatch
from tallymark.client.outcomes import Modified, Outcome, Released
from tallymark.client.received import (
    BUFFERED,
    IGNORED,
    LOST,
    RETURNED,
    SETTLED,
    SETTLING,
    STAGED,
    ReceivedMessage,
    result_of,
)
from tallymark.client.turn import TIME_IS_UP, Waiter, answer_to, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from tallymark.client.adapter import ReceiverPort
    from tallymark.client.dispatcher import Dispatcher
    from tallymark.client.options import ReceiverOptions

    StateCallback = Callable[[ReceivedMessage, Outcome | None], None]


@final
class Consumer:
    """A receiver for as long as it lives; the link behind it may be replaced."""

    __slots__ = (
        "_credit_lost",
        "_is_touched",
        "_was_paused",
        "address",
        "attaching",
        "batching",
        "buffer",
        "closing",
        "dispatcher",
        "draining",
        "dropped",
        "ending",
        "error",
        "filter",
        "held",
        "is_manual",
        "last_tag",
        "leaks",
        "link_error",
        "mode",
        "on_state_changed",
        "opening",
        "options",
        "peer_drains",
        "port",
        "settled_total",
        "settling",
        "staged",
        "waiters",
        "was_attached",
        "window",
    )

    def __init__(self, dispatcher: Dispatcher, options: ReceiverOptions) -> None:
        self.dispatcher = dispatcher
        self.options = options
        self.is_manual = options.credit_mode == "manual"
        self.window = Window(
            0 if self.is_manual else options.credit, options.credit_on == "handover"
        )
        self.port: ReceiverPort | None = None
        """Link's end in the adapter; None: not attached."""
        self.opening: ReceiverPort | None = None
        """Link's end in the adapter from the beginning of the attach on."""
        self.address = options.address or ""
        self.filter: Mapping[str, object] = {}
        """Source filters in effect."""
        self.mode = "first"
        """rcv-settle-mode in effect."""
        self.buffer: deque[ReceivedMessage] = deque()
        self.held: dict[int, weakref.ref[ReceivedMessage]] = {}
        """Messages that the application holds, by tag; weak, so that a message which the
        application has forgotten is noticed."""
        self.dropped: dict[int, ReceivedMessage] = {}
        """Messages that the application has forgotten unsettled, by tag; these are held
        strongly."""
        self.settling: dict[int, ReceivedMessage] = {}
        """Messages settled in mode second whose answer from the sender is awaited, with or without
        a waiting call [FC-12, FC-A4]."""
        self.staged: dict[int, ReceivedMessage] = {}
        """Messages settled in a transaction that has not ended; they keep their slots [TX-4]."""
        self.waiters: deque[Waiter] = deque()
        """Calls that wait for a message; see `wake`."""
        self.attaching: Waiter | None = None
        self.closing: list[Waiter] = []
        self.error: ClientError | None = None
        """Reason why no message will come any more; None: some may."""
        self.link_error: ClientError | None = None
        """Reason why the last link ended."""
        self.ending: ClientError | None = None
        """Set once the application closes it: what still arrives can be read, but not settled
        [FC-A7]."""
        self.last_tag = b""
        self.settled_total = 0
        self.was_attached = False
        self.peer_drains = True
        """False once the peer did not answer a drain."""
        self.on_state_changed: StateCallback | None = None
        self.leaks = LeakWatch(self)
        self._is_touched = False
        self._was_paused = True
        self.draining: Waiter | None = None
        self.batching: Waiter | None = None
        """Caller that waits for a batch; see receiver.py."""
        self._credit_lost = 0

    # Called by the adapter

    def attached(
        self, port: ReceiverPort, address: str, mode: str, filter: Mapping[str, object]
    ) -> None:
        self.port = port
        self.filter = filter
        self.address = address
        self.mode = mode
        self.was_attached = True
        self.peer_drains = True
        self._was_paused = True
        self.inflow_resumed()  # by hand: what was issued on the link before
        if self.attaching is not None:
            resolve(self.attaching, None)

    def deliver(self, messages: list[ReceivedMessage]) -> None:
        """Add deliveries to the buffer, in the order of their tags, which is the session's."""
        if self.error is not None:
            return  # given up already
        last = messages[-1]
        self.dispatcher.highest_tag = last.tag  # before anybody can see them [TX-17]
        self.last_tag = last.delivery_tag
        self.buffer.extend(messages)
        self.window.buffered += len(messages)
        if self.ending is not None:
            self._lose_buffered(self.ending)
        self.touch()
        self.leaks.arrived(messages)
        if self.waiters or self.batching is not None:
            self.wake(len(messages))

    def answered(self, first: int, last: int, state: Outcome | None) -> None:
        """The sender settled these, which it was asked to [FC-12]. state None: as asked."""
        for tag in known_tags(first, last, self.settling):
            message = self.settling.pop(tag)
            self._freed(message.delivery_tag)
            message.answered(result_of(message, state), SETTLED)
        self.touch()

    def drained(self, given_up: int) -> None:
        self._decided(Decision.DRAINED)
        draining = self.draining
        self.draining = None
        if draining is not None:
            resolve(draining, given_up)

    def detached(self, error: ClientError) -> None:
        """The link is gone, and only the link: by the peer, or as the application asked."""
        if self.error is not None:
            return
        asked = self.ending
        was_open = self.was_attached
        self.close(error if asked is None else asked)
        if asked is None and was_open:
            self.dispatcher.scoped_error(error)

    # Reading

    def take(self) -> ReceivedMessage | None:
        """The next message, if the application may have one now. Raises the error after the last
        one of a closed receiver [FC-19]."""
        if self.buffer:
            return self.dispatcher.hand_over(self)
        if self.error is not None:
            raise self.error.again()
        return None

    async def next(self, timeout: float | None) -> ReceivedMessage:
        """The next message, when there is one. See Receiver.receive."""
        loop = self.dispatcher.loop
        until = None if timeout is None else loop.time() + timeout
        while True:
            message = self.take()
            if message is not None:
                return message
            left = None if until is None else until - loop.time()
            if left is not None and left <= 0:
                raise TimedOut(f"no message from {self.address!r} within {timeout} s")
            await self.readable(left)

    async def readable(self, timeout: float | None) -> None:
        """Wait until a message may be in the buffer, or the time-out ends. The caller checks
        again."""
        waiter: Waiter = self.dispatcher.loop.create_future()
        self.waiters.append(waiter)
        parked = self.dispatcher.gate.park()
        try:
            result = await answer_to(waiter, timeout)
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self.wake(1)  # it was woken and cannot take: wake another
            self._forget(waiter)
            raise
        finally:
            self.dispatcher.gate.go_on(parked)
        if result is TIME_IS_UP:
            self._forget(waiter)

    def _forget(self, waiter: Waiter) -> None:
        """Remove a waiting call; `wake` may have removed it already."""
        if waiter in self.waiters:
            self.waiters.remove(waiter)

    def wake(self, count: int) -> None:
        """Let so many readers look whether there is something for them."""
        if self.batching is not None:
            resolve(self.batching, None)
        waiters = self.waiters
        while count > 0 and waiters:
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def wake_all(self) -> None:
        self.wake(len(self.waiters))

    # Credit

    def touch(self) -> None:
        """Look at the credit at the end of this turn."""
        if not self._is_touched:
            self._is_touched = True
            self.dispatcher.touched(self)

    def evaluate(self) -> None:
        """Decide about credit, at most once per turn [FC-17]."""
        self._is_touched = False
        port = self.port
        if port is None or self.dispatcher.has_no_inflow:
            return
        credit = port.credit
        if not self.is_manual and self.draining is None:
            due = self.window.grant(credit)
            if due != NOTHING:
                port.grant(due)
                self._decided(Decision.TOP_UP if credit else Decision.RESUME)
                self._was_paused = False
                return
        if credit == 0 and not self._was_paused:
            self._was_paused = True
            self._decided(Decision.PAUSE)
        if credit == 0:
            self.leaks.paused()

    def issue(self, count: int) -> None:
        """See Receiver.issue_credit."""
        if count < 1:
            raise ValueError(f"issue_credit({count}), expected 1 or more")
        port = self._by_hand("issue_credit")
        if self.dispatcher.has_no_inflow:
            self._credit_lost += count
            return
        port.grant(port.credit + count)
        self._was_paused = False
        self._decided(Decision.ISSUE)
        self.dispatcher.turn.request()

    async def drain(self) -> int:
        """See Receiver.drain."""
        port = self._by_hand("drain")
        if not port.drain():
            return 0
        self._decided(Decision.DRAIN)
        self.dispatcher.turn.request()
        self.draining = self.dispatcher.loop.create_future()
        given_up = await answer_to(self.draining, None)
        assert isinstance(given_up, int)
        return given_up

    @property
    def credit(self) -> int:
        """Messages the peer may still send; 0 while there is no link."""
        return 0 if self.port is None else self.port.credit

    @property
    def promised(self) -> int:
        """Outstanding credit, including what is granted once deliveries resume."""
        return self.credit + self._credit_lost

    @property
    def is_draining(self) -> bool:
        return self.draining is not None

    def _by_hand(self, call: str) -> ReceiverPort:
        if not self.is_manual:
            raise NotPossible(
                f"{call} on a receiver with credit_mode='auto': its window of "
                f"{self.window.size} gives the credit; pass credit_mode='manual'"
            )
        if self.port is None:
            raise (self.error or self.link_error or NotPossible("not attached")).again()
        if self.draining is not None:
            raise NotPossible(f"{call} while a drain is under way")
        self.dispatcher.say_settlements()
        return self.port

    def _freed(self, delivery_tag: bytes) -> None:
        """A slot is free: a message is settled."""
        self.window.held -= 1
        self.last_tag = delivery_tag
        self.settled_total += 1

    # A rollback, or recover; called by the dispatcher

    def inflow_stops(self) -> None:
        """Take back all credit, and end a drain."""
        port = self.port
        draining = self.draining
        self.draining = None
        if draining is not None:
            resolve(draining, self.credit)
        if self.is_manual and port is not None:
            self._credit_lost = len(self.buffer) + (0 if draining is not None else port.credit)

    def inflow_resumed(self) -> None:
        """Grant again the credit that was lost with the link or by a rollback."""
        if self._credit_lost and self.port is not None and not self.dispatcher.has_no_inflow:
            self.port.grant(max(0, self._credit_lost - len(self.buffer)))
            self._credit_lost = 0
        self.touch()

    def forget_lost_credit(self) -> None:
        self._credit_lost = 0

    def take_back(self, mark: int, error: ClientError) -> list[int]:
        """Give the deliveries up to the mark back to the broker and return their tags, in any
        order. Messages that were sent settled stay: nobody would send them again. Those of a
        receiver that was closed are the broker's already, and are not shown any more."""
        tags = [tag for tag in (*self.held, *self.dropped) if tag <= mark]
        gone: list[ReceivedMessage | None] = []
        for tag in tags:
            reference = self.held.pop(tag, None)
            gone.append(self.dropped.pop(tag) if reference is None else reference())
        self.window.held -= len(tags)
        kept: deque[ReceivedMessage] = deque()
        for message in self.buffer:
            if message.tag > mark or (message.state == SETTLED and not self.options.browse):
                kept.append(message)
                continue
            gone.append(message)
            if message.state == BUFFERED:
                tags.append(message.tag)
        self.buffer = kept
        self.window.buffered = len(kept)
        for found in gone:
            if found is not None:
                found.state = RETURNED
                found.outcome_or_error = error
        return tags

    def staged_ended(self, message: ReceivedMessage, error: ClientError | None) -> None:
        """The transaction is over: committed, or rolled back with that error."""
        message.state = SETTLED if error is None else RETURNED
        if error is not None:
            message.outcome_or_error = error
        if self.staged.pop(message.tag, None) is message:
            self.window.held -= 1
            self.last_tag = message.delivery_tag
            self.settled_total += error is None
            self.touch()

    # Settling; called by the dispatcher

    def settled(self, message: ReceivedMessage, outcome: Outcome, is_staged: bool) -> None:
        message.outcome_or_error = outcome
        if self.held.pop(message.tag, None) is None:
            del self.dropped[message.tag]
        if is_staged:
            message.state = STAGED
            self.staged[message.tag] = message
            return
        if message.is_second:
            message.state = SETTLING
            self.settling[message.tag] = message
            return
        message.state = SETTLED
        self.window.held -= 1
        self.last_tag = message.delivery_tag
        self.settled_total += 1
        if not self._is_touched:
            self._is_touched = True
            self.dispatcher.touched(self)

    def ignore(self, message: ReceivedMessage) -> None:
        message.state = IGNORED
        del self.held[message.tag]
        self._freed(message.delivery_tag)
        self.window.ignored += 1
        self.touch()

    def forgotten(self, message: ReceivedMessage) -> None:
        """The application has no reference to it any more, and it is not settled [FC-D2]."""
        if self.held.pop(message.tag, None) is not None:
            self.dropped[message.tag] = message
            self.leaks.forgotten(message)

    def changed_by_peer(self, first: int, last: int, state: Outcome | None) -> None:
        """Handle outcomes that the sender set by itself [FC-18]."""
        takes_back = isinstance(state, (Released, Modified))
        if self.buffer and self.buffer[0].tag <= last and self.buffer[-1].tag >= first:
            self._change_buffered(first, last, state, takes_back)
        for tag in known_tags(first, last, self.settling):
            message = self.settling.pop(tag)
            self._freed(message.delivery_tag)
            message.answered(result_of(message, state), SETTLED)
        for tag in known_tags(first, last, self.dropped):
            message = self.dropped.pop(tag)
            self._freed(message.delivery_tag)
            message.state = SETTLED
        for tag in known_tags(first, last, self.held):
            found = self.held.pop(tag)()
            self._freed(self.last_tag if found is None else found.delivery_tag)
            if found is not None:
                found.state = SETTLED
                found.outcome_or_error = state
                if self.on_state_changed is not None:
                    self._call_back(found, state)
        self.touch()

    def _change_buffered(
        self, first: int, last: int, state: Outcome | None, takes_back: bool
    ) -> None:
        """A message taken back is not shown; one that is settled otherwise takes no slot once it
        is."""
        kept: deque[ReceivedMessage] = deque()
        for message in self.buffer:
            if first <= message.tag <= last and message.state == BUFFERED:
                message.state = SETTLED
                message.outcome_or_error = state
                if takes_back:
                    continue
            kept.append(message)
        self.window.buffered = len(kept)
        self.buffer = kept

    def _call_back(self, message: ReceivedMessage, state: Outcome | None) -> None:
        assert self.on_state_changed is not None
        self.dispatcher.call_back(
            "on_delivery_state_changed", self.on_state_changed, message, state
        )

    # The end

    def begin_close(self, error: ClientError) -> None:
        """The application closes it, and the peer has not heard of it yet."""
        self.ending = error
        if self.opening is not None:
            self.opening.close()
            self.dispatcher.turn.request()
        self._let_go(error)
        self._lose_buffered(error)

    def close(self, error: ClientError) -> None:
        """Close: no more messages come; buffered ones may still be read, but are lost [FC-19,
        FC-A6]."""
        if self.error is None:
            self.error = error
        self._let_go(error)
        self._lose_buffered(error)
        self.leaks.close()
        for waiter in self.closing:
            resolve(waiter, None)
        self.closing.clear()
        self.wake_all()

    def suspend(self, error: ClientError) -> None:
        """Suspend for a reconnect: unsettled messages come again, so buffered ones must not be
        read; readers wait on [FC-19, TX-22]."""
        if self.ending is not None:
            self.close(self.ending)
            return
        self._lose_buffered(error)
        if self.is_manual and self.port is not None and not self.dispatcher.has_no_inflow:
            drains = self.draining is not None  # the rest of the credit is given up
            self._credit_lost = len(self.buffer) + (0 if drains else self.port.credit)
        self.buffer.clear()
        self.window.buffered = 0
        self._let_go(error)

    def _lose_buffered(self, error: ClientError) -> None:
        for message in self.buffer:
            if message.state == BUFFERED:
                message.state = LOST
                message.outcome_or_error = error

    def _let_go(self, error: ClientError) -> None:
        """Mark unsettled messages as lost: their link is gone."""
        self.port = self.opening = None
        self.link_error = error
        if self.attaching is not None:
            resolve(self.attaching, error)
        settling = list(self.settling.values())
        held = [*self.dropped.values(), *[reference() for reference in self.held.values()]]
        self.settling.clear()
        if self.staged:
            self.dispatcher.link_gone(self, error)
            self.staged.clear()  # they are the transaction's
        self.held.clear()
        self.dropped.clear()
        self.window.held = 0
        for message in settling:
            message.answered(error.again(), LOST)
        for found in held:
            if found is not None:
                found.state = LOST
                found.outcome_or_error = error
        draining = self.draining
        self.draining = None
        if draining is not None:
            resolve(draining, error.again())

    # Telling

    def report(self, event: Event, error: BaseException | None = None) -> None:
        self.dispatcher.reporter.report(event, error)

    def _decided(self, decision: Decision) -> None:
        reporter = self.dispatcher.reporter
        if not reporter.wants(CreditDecided):
            return
        port = self.port
        window = self.window
        reporter.report(
            CreditDecided(
                decision=decision,
                address=self.address,
                link=self.options.name,
                credit=self.credit,
                delivery_count=0 if port is None else port.delivery_count,
                buffered=window.buffered,
                unsettled=window.held,
                window=window.size,
                settle_mode=self.mode,
                delivery_tag=self.last_tag,
            )
        )


def known_tags(first: int, last: int, known: Mapping[int, object]) -> list[int]:
    """Return the tags of first..last that are in `known`, ascending, in time of the smaller of the
    two."""
    if last - first < len(known):
        return [tag for tag in range(first, last + 1) if tag in known]
    return sorted(tag for tag in known if first <= tag <= last)
