"""A worker makes an invoice of each order, in transactions, and three times something fails in the
middle. First a client that only says `tx.rollback` and `basic.recover`: what it had in its buffer
comes before what was rolled back. Then Tallymark's client, whose handler rolls back: everything
comes again in its old order, and no invoice is seen that was not committed with its order.

QPID-1864 is the fault of the first half, in a client that meant to do better. Claims checked: which
order came first after each rollback; one invoice for each order, in their order; and in the account
the journal says that orders were given back, and that none ended otherwise than by a commit.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, Final

import pika

from tallymark.client import ClientError, Message, ReceivedMessage, Sender, Transaction, connect
from tallymark.spark.account import Reconciliation
from tallymark.spark.client import counted
from tallymark_demo.stage import CheckFailed, Stage, table_of

BOOKINGS: Final = "demo.bookings"
INVOICES: Final = "demo.invoices"
ORDERS: Final = 12
WINDOW: Final = 8
IN_ONE: Final = 4
"""Orders of one transaction: fewer than the window, so that some wait in the buffer."""
FAILURES: Final = 3
SHIFT_S: Final = 60.0
"""Longer than the scene takes anywhere."""
QUIET_S: Final = 2.0
"""Seconds without a delivery after which none will come."""


def name_of(number: int) -> str:
    return f"o-{number:06d}"


NAMES: Final = [name_of(number) for number in range(ORDERS)]


@dataclass(slots=True)
class Work:
    """Deliveries that the worker saw."""

    attempts: list[list[str]] = field(default_factory=list)
    """The orders of each transaction, as they came."""
    rollbacks: int = 0

    @property
    def after_rollbacks(self) -> list[str]:
        """The first order of each transaction that followed a rollback."""
        return [attempt[0] for attempt in self.attempts[1 : self.rollbacks + 1]]

    def begins_again(self) -> bool:
        """Return whether each rollback was followed by the same orders."""
        first = NAMES[:IN_ONE]
        return self.rollbacks == FAILURES and self.attempts[: FAILURES + 1] == [first] * (
            FAILURES + 1
        )

    def is_in_order(self) -> bool:
        """Return whether the committed orders came in the order of publication."""
        committed = [name for attempt in self.attempts[self.rollbacks :] for name in attempt]
        return committed == NAMES


def play(stage: Stage) -> None:
    parameters = stage.broker.parameters()
    declare(parameters)
    with stage.console.status("orders are invoiced"):
        overtaken = without_stopping(parameters)
        work = invoice(stage.broker.amqp_url)
    table_of(
        stage.console,
        f"{FAILURES} rollbacks, then commits",
        [
            {
                "transaction": number,
                "orders": f"{attempt[0]} to {attempt[-1]}",
                "end": "rollback" if number <= work.rollbacks else "commit",
            }
            for number, attempt in enumerate(work.attempts, 1)
        ],
    )
    stage.check(
        f"rollback and recover alone: {overtaken} came next, before {name_of(0)}",
        overtaken == name_of(IN_ONE),
    )
    stage.check(
        f"rollback in the client's handler: {counted(len(work.after_rollbacks), 'time')} the first "
        f"order came first again, and the others behind it",
        work.begins_again(),
    )
    stage.check("what was committed came in the orders' order", work.is_in_order())
    stage.check(
        "one invoice for each order, in their order; none of what was rolled back",
        invoices(parameters) == NAMES,
    )
    stage.check("each order ended once", ended_once(stage.queue(BOOKINGS)))
    stage.in_account.append(lambda account: _check_account(stage, account, work))


def declare(parameters: pika.ConnectionParameters) -> None:
    """Both queues, and the orders."""
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        for queue in (BOOKINGS, INVOICES):
            channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        for name in NAMES:
            body = json.dumps({"order": name}).encode()
            channel.basic_publish("", BOOKINGS, body, pika.BasicProperties(delivery_mode=2))


def without_stopping(parameters: pika.ConnectionParameters) -> str:
    """Settle some orders in a transaction, roll it back, have everything given back, and go on
    with what comes next, while deliveries go on too. Returns the order that was."""
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.tx_select()
        channel.basic_qos(prefetch_count=WINDOW)
        deliveries = channel.consume(BOOKINGS, inactivity_timeout=QUIET_S)
        for _ in range(IN_ONE):
            method, _, _ = next(deliveries)
            if method is None:
                raise CheckFailed(f"{BOOKINGS}: no order within {QUIET_S:.0f} s")
            channel.basic_ack(method.delivery_tag)
        connection.process_data_events(0)
        channel.tx_rollback()
        channel.basic_recover(requeue=True)
        _, _, body = next(deliveries)
        return "nothing" if body is None else order_of(body)


def invoice(url: str) -> Work:
    """The worker. Raises CheckFailed."""
    try:
        return asyncio.run(_invoice(url))
    except TimeoutError as error:
        raise CheckFailed(f"not every order has its invoice after {SHIFT_S:.0f} s") from error
    except ClientError as error:
        raise CheckFailed(f"{BOOKINGS}: {error}") from error


async def _invoice(url: str) -> Work:
    async with (
        asyncio.timeout(SHIFT_S),
        connect(url) as connection,
        connection.session() as session,
        session.sender(f"/queues/{INVOICES}") as sender,
        session.receiver(f"/queues/{BOOKINGS}", credit=WINDOW) as receiver,
        session.transaction() as transaction,
    ):
        clerk = Clerk(sender, transaction)
        working = asyncio.create_task(receiver.run(clerk.handle))
        await asyncio.wait(
            [working, asyncio.ensure_future(clerk.done.wait())],
            return_when=asyncio.FIRST_COMPLETED,
        )
        working.cancel()
        await asyncio.wait([working])
        if not working.cancelled():
            working.result()
        return clerk.work


class Clerk:
    """Makes an invoice of each order, so many in one transaction."""

    def __init__(self, sender: Sender, transaction: Transaction) -> None:
        self.work = Work(attempts=[[]])
        self.done = asyncio.Event()
        self._sender = sender
        self._transaction = transaction

    async def handle(self, message: ReceivedMessage) -> None:
        name = order_of(bytes(message.body))
        work = self.work
        work.attempts[-1].append(name)
        await self._sender.send(Message(json.dumps({"invoice": name}).encode()))
        if len(work.attempts[-1]) < IN_ONE:
            await message.accept()
        elif work.rollbacks < FAILURES:  # something fails
            work.rollbacks += 1
            work.attempts.append([])
            await self._transaction.rollback()
        else:
            await message.accept()
            await self._transaction.commit()
            if name == NAMES[-1]:
                self.done.set()
            else:
                work.attempts.append([])


def order_of(body: bytes) -> str:
    found = json.loads(body)
    return str(found.get("order") or found.get("invoice"))


def invoices(parameters: pika.ConnectionParameters) -> list[str]:
    """Return the orders in the invoices' queue, and empty it."""
    found: list[str] = []
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        while True:
            method, _, body = channel.basic_get(INVOICES, auto_ack=True)
            if method is None or body is None:
                return found
            found.append(order_of(body))


def ended_once(queue: dict[str, Any]) -> bool:
    """Return whether all orders entered the queue and were settled: none is in it now, and none
    was dropped."""
    return (
        int(queue["entered"]) == int(queue["settled"]) == ORDERS
        and int(queue["ready"]) == int(queue["acquired"]) == int(queue["staged"]) == 0
        and not queue["dropped"]
    )


def given_back(account: Reconciliation) -> int:
    """Deliveries of orders that went back to their queue, as the journal has it."""
    return sum(one.count for one in account.returned if one.queue == BOOKINGS)


def _check_account(stage: Stage, account: Reconciliation, work: Work) -> None:
    back = given_back(account)
    stage.check(
        f"orders given back, by the journal: {back:,}, at least {IN_ONE} by each rollback",
        back >= IN_ONE * (work.rollbacks + 1),
    )
