"""A window of 1 and a handler that is slow: it needs the one label printer, and the broker locks
an order for a second. First with the contract of old clients, where a slot is free once its message
was handed over: the broker sends, and locks, all that it has; locks expire while orders wait for
the printer, and those orders come twice. Then with credit that follows settlement: none does.

Both times it is the same application with Tallymark's own client, over AMQP 1.0. Claims checked:
how many orders were out at once; which locks expired, and how often orders came; each order ended
once all the same. In the account at the end the journal says which deliveries were taken back.
"""

from __future__ import annotations

import asyncio
import json
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

import pika

from tallymark.client import (
    Accepted,
    ClientError,
    Message,
    Outcome,
    ReceivedMessage,
    Receiver,
    Released,
    Session,
    SettlementRefused,
    connect,
)
from tallymark.spark.account import Reconciliation
from tallymark.spark.client import counted
from tallymark_demo.stage import CheckFailed, Stage, table_of

if TYPE_CHECKING:
    from tallymark.client.arguments import CreditOn
    from tallymark.client.turn import Opening

HANDOVER: Final = "demo.handover"
SETTLEMENT: Final = "demo.settlement"
WINDOW: Final = 1
ORDERS: Final = 12
LOCK_MS: Final = 1_000
PRINT_S: Final = 0.15
"""One label. Far below the lock, so that a machine that stalls for a moment expires none; twelve of
them are far above it."""
SHIFT_S: Final = 60.0
"""Longer than either half takes anywhere."""


@dataclass(slots=True)
class Shift:
    """Deliveries that the application saw under one contract."""

    came: Counter[str] = field(default_factory=Counter)
    """Number of deliveries of each order."""
    expired: int = 0
    """Deliveries that the broker took back because their time was up."""
    most_held: int = 0
    """Deliveries that were with the application at once."""
    labels: int = 0
    done: set[str] = field(default_factory=set)
    """Orders whose settlement the broker has confirmed."""
    warned: bool = False
    seconds: float = 0.0

    @property
    def twice(self) -> int:
        """Orders that came more than once."""
        return sum(times > 1 for times in self.came.values())

    @property
    def is_complete(self) -> bool:
        return len(self.done) == ORDERS

    def shows_the_fault(self) -> bool:
        """More was out than the window has slots, locks expired, orders came twice."""
        return self.most_held > WINDOW and self.expired > 0 and self.twice > 0 and self.is_complete

    def shows_none(self) -> bool:
        """Never more than the window was out, and each order came once."""
        came_once = self.came.total() == len(self.came) == ORDERS
        return self.most_held == WINDOW and self.expired == 0 and came_once and self.is_complete

    def row(self, credit_on: str) -> dict[str, Any]:
        """Return the row of the table."""
        return {
            "credit on": credit_on,
            "orders": len(self.done),
            "deliveries": self.came.total(),
            "most at once": self.most_held,
            "locks expired": self.expired,
            "came twice": self.twice,
            "labels": self.labels,
            "time": f"{self.seconds:.1f} s",
        }


def play(stage: Stage) -> None:
    declare(stage.broker.parameters())
    stage.say(
        f"twice {counted(ORDERS, 'order')}: a label takes {PRINT_S * 1000:.0f} ms, an order is "
        f"locked for {LOCK_MS:,} ms, the window is {WINDOW}"
    )
    with stage.console.status("labels are printed, credit on hand-over"):
        old = work(stage.broker.amqp_url, HANDOVER, "handover")
    with stage.console.status("labels are printed, credit on settlement"):
        new = work(stage.broker.amqp_url, SETTLEMENT, "settlement")
    table_of(
        stage.console,
        "One printer, a window of 1",
        [old.row("hand-over"), new.row("settlement")],
    )
    stage.check(
        f"credit on hand-over: {old.most_held} were out at once, {counted(old.expired, 'lock')} "
        f"expired, {counted(old.twice, 'order')} came twice",
        old.shows_the_fault(),
    )
    stage.check(
        f"credit on settlement: {new.most_held} was out at once, {counted(new.expired, 'lock')} "
        f"expired, {counted(new.twice, 'order')} came twice",
        new.shows_none(),
    )
    stage.check(
        "the client warned of the old contract, and only of that", old.warned and not new.warned
    )
    stage.check(
        "each order ended once all the same",
        all(ended_once(stage.queue(name)) for name in (HANDOVER, SETTLEMENT)),
    )
    stage.in_account.append(lambda account: _check_account(stage, account, old))


def declare(parameters: pika.ConnectionParameters) -> None:
    """Two queues alike, one for each contract."""
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        for name in (HANDOVER, SETTLEMENT):
            channel.queue_declare(name, durable=True, arguments={"x-consumer-timeout": LOCK_MS})


def ended_once(queue: dict[str, Any]) -> bool:
    """Return whether all orders entered the queue and were settled: none is in it now, and none
    was dropped."""
    return (
        int(queue["entered"]) == int(queue["settled"]) == ORDERS
        and int(queue["ready"]) == int(queue["acquired"]) == 0
        and not queue["dropped"]
    )


def taken_back(account: Reconciliation, queue: str) -> int:
    """Deliveries of a queue that came back because their time was up, as the journal has it."""
    returns = account.returned
    return sum(one.count for one in returns if (one.queue, one.reason) == (queue, "timeout"))


def is_in_journal(account: Reconciliation, old: Shift) -> bool:
    """Return whether the journal has each lock that the application saw expire, and none under the
    other contract. It may know of more: deliveries that were still on their way."""
    return taken_back(account, HANDOVER) >= old.expired > 0 == taken_back(account, SETTLEMENT)


def _check_account(stage: Stage, account: Reconciliation, old: Shift) -> None:
    late, none = taken_back(account, HANDOVER), taken_back(account, SETTLEMENT)
    stage.check(
        f"locks expired, by the journal: {late:,} in {HANDOVER}, {none:,} in {SETTLEMENT}",
        is_in_journal(account, old),
    )


# -- the application


def work(url: str, queue: str, credit_on: CreditOn) -> Shift:
    """Send the orders to a queue, and print a label for each. Raises CheckFailed."""
    try:
        return asyncio.run(_work(url, queue, credit_on))
    except TimeoutError as error:
        raise CheckFailed(f"{queue}: not every order is done after {SHIFT_S:.0f} s") from error
    except ClientError as error:
        raise CheckFailed(f"{queue}: {error}") from error
    except ExceptionGroup as group:
        raise CheckFailed(f"{queue}: {group.exceptions[0]}") from group


async def _work(url: str, queue: str, credit_on: CreditOn) -> Shift:
    async with (
        asyncio.timeout(SHIFT_S),
        connect(url) as connection,
        connection.session() as session,
    ):
        async with session.sender(f"/queues/{queue}") as sender:
            await sender.send_batch([_order(number) for number in range(ORDERS)])
        shift = Shift()
        begun = time.monotonic()
        async with _receiver(session, queue, credit_on, shift) as receiver:
            await Desk(shift).work(receiver)
        shift.seconds = time.monotonic() - begun
        return shift


def _order(number: int) -> Message:
    name = f"o-{number:06d}"
    return Message(json.dumps({"order": name}).encode(), message_id=name)


def _receiver(session: Session, queue: str, credit_on: CreditOn, shift: Shift) -> Opening[Receiver]:
    """Mode second, in which an order counts as done when the broker has said so."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opening = session.receiver(
            f"/queues/{queue}", credit=WINDOW, credit_on=credit_on, rcv_mode="second"
        )
    shift.warned = any(issubclass(one.category, DeprecationWarning) for one in caught)
    return opening


@final
class Desk:
    """Starts a handler for each message that it is given; one printer for all of them."""

    def __init__(self, shift: Shift) -> None:
        self._shift = shift
        self._printer = asyncio.Lock()
        self._finished = asyncio.Event()

    async def work(self, receiver: Receiver) -> None:
        """Returns when all orders are done. Raises what the client does, in a group."""
        receiver.on_delivery_state_changed(self._changed)
        async with asyncio.TaskGroup() as handlers:
            handlers.create_task(self._read(receiver, handlers))
            await self._finished.wait()
            await receiver.close()

    async def _read(self, receiver: Receiver, handlers: asyncio.TaskGroup) -> None:
        shift = self._shift
        async for message in receiver:
            shift.came[str(message.message_id)] += 1
            shift.most_held = max(shift.most_held, receiver.unsettled)
            handlers.create_task(self._handle(message))

    async def _handle(self, message: ReceivedMessage) -> None:
        shift = self._shift
        async with self._printer:
            if message.settled:
                return  # taken back while it waited: a label now would be one too many
            await asyncio.sleep(PRINT_S)  # the printer
            shift.labels += 1
        try:
            outcome = await message.accept()
        except SettlementRefused:  # taken back in the same moment
            shift.expired += 1
            return
        if isinstance(outcome, Accepted):
            shift.done.add(str(message.message_id))
            if shift.is_complete:
                self._finished.set()

    def _changed(self, message: ReceivedMessage, state: Outcome | None) -> None:
        self._shift.expired += isinstance(state, Released)
