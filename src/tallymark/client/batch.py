"""Receiving in batches: up to n messages, or fewer when the time-out ends [FC-24]."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tallymark.client.errors import Closed, NotPossible
from tallymark.client.received import ReceivedMessage
from tallymark.client.waiting import answer_to

if TYPE_CHECKING:
    from tallymark.client.consumer import Consumer

DRAIN_S: Final = 5.0
"""Seconds that a batch waits for the answer to its drain."""


async def next_batch(consumer: Consumer, n: int, timeout: float | None) -> list[ReceivedMessage]:
    """Up to n messages. See Receiver.receive_batch.

    They stay in the buffer until there are enough, or time is up: nobody holds them meanwhile.
    """
    if consumer.batching is not None:
        raise NotPossible("receive_batch while another one is under way")
    loop = consumer.dispatcher.loop
    until = None if timeout is None else loop.time() + timeout
    if consumer.is_manual and consumer.port is not None:
        missing = n - len(consumer.buffer) - consumer.promised
        if missing > 0:
            consumer.issue(missing)
    await _gathered(consumer, n, until)
    if consumer.is_manual and len(consumer.buffer) < n:
        await _end_of_batch(consumer)
    batch: list[ReceivedMessage] = []
    while len(batch) < n and consumer.buffer and (message := consumer.take()) is not None:
        batch.append(message)
    if not batch and consumer.error is not None:
        raise consumer.error.again()
    return batch


async def _end_of_batch(consumer: Consumer) -> None:
    """Stop deliveries at the end of a batch. A peer that does not answer a drain, as the standard
    requires, is waited for once; then its credit is taken back."""
    port = consumer.port
    if consumer.dispatcher.has_no_inflow:  # a rollback has taken the credit back
        consumer.forget_lost_credit()
        return
    if port is not None and consumer.peer_drains:
        try:
            async with asyncio.timeout(DRAIN_S):
                await consumer.drain()
        except TimeoutError:
            consumer.peer_drains = False
            consumer.draining = None
        except Closed:
            port = None  # it broke meanwhile: nothing comes of that credit
    if port is None or port is not consumer.port or consumer.dispatcher.has_no_inflow:
        consumer.forget_lost_credit()
    elif not consumer.peer_drains:
        port.revoke()
        consumer.dispatcher.turn.request()


async def _gathered(consumer: Consumer, n: int, until: float | None) -> None:
    """Wait until n messages are in the buffer, no more will come, or the time `until` is
    reached."""
    loop = consumer.dispatcher.loop
    while consumer.error is None and (len(consumer.buffer) < n or consumer.dispatcher.is_stopped):
        left = None if until is None else until - loop.time()
        if left is not None and left <= 0:
            return
        consumer.batching = loop.create_future()
        parked = consumer.dispatcher.gate.park()
        try:
            await answer_to(consumer.batching, left)
        finally:
            consumer.batching = None
            consumer.dispatcher.gate.go_on(parked)
