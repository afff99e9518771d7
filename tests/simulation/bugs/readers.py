"""Deliberate bugs of what works over HTTP, of permissions and of shovels."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from tallymark.bridge.amqp091 import lifecycle as amqp091
from tallymark.bridge.amqp10 import lifecycle as amqp10
from tallymark.engine.queue_parts import Pin
from tallymark.engine.sinks import Sinks
from tallymark.engine.subscription import Subscription
from tallymark.shovels.amqp import AmqpTarget
from tallymark.shovels.parcel import Parcel
from tallymark.stored import records
from tests.simulation.bugs.registry import (
    has_plans_of_streams,
    has_rivals,
    has_shovels,
    has_subscriptions,
    has_verdicts,
    has_workers,
    mutant,
    not_restored,
    replaced,
    without_records,
)


@mutant("revoked right that lasts", has_workers)
def _() -> None:
    for lifecycle in (amqp091.Lifecycle, amqp10.Lifecycle):
        lifecycle.rights_changed = lambda self, permissions: None  # type: ignore[method-assign]


def without_fence(handler: str) -> None:
    """Have an operation over HTTP let readers pass whose place was taken."""

    def make(check: Any) -> Any:
        def lax(self: Any, fence: int) -> None:
            callers = [sys._getframe(1), sys._getframe(2)]  # a comprehension has a frame, too
            if handler not in [frame.f_code.co_name for frame in callers]:
                check(self, fence)

        return lax

    replaced(Subscription, "check_fence", make)


@mutant("verdict without fence", has_rivals)
def _() -> None:
    without_fence("_judge")


@mutant("stale settle accepted", has_rivals)
def _() -> None:
    without_fence("_settle")


@mutant("verdicts of the holder before", has_rivals)
def _() -> None:
    Subscription.begin = lambda self, start: []  # type: ignore[method-assign]


@mutant("retention that eats what is unread", has_plans_of_streams)
def _() -> None:
    Pin.keep = lambda self, piece, store: None  # type: ignore[method-assign]


@mutant("lease forgotten", has_subscriptions)
def _() -> None:
    not_restored(records.LEASED)


@mutant("lease not recorded", has_subscriptions)
def _() -> None:
    without_records(records.LEASED)


@mutant("end of a lease not restored", has_subscriptions)
def _() -> None:
    not_restored(records.LEASE_SETTLED)


@mutant("verdicts not recorded", has_verdicts)
def _() -> None:
    without_records(records.VERDICTS)


@mutant("batch of a sink twice")
def _() -> None:
    def never(self: Sinks, sink: Any, identity: str, batch: int, target: str) -> bool:
        return False

    Sinks._is_repeated = never  # type: ignore[method-assign]


@mutant("batch of a sink not recorded")
def _() -> None:
    without_records(records.SINK_STAGED)


@mutant("shovel that settles before the confirm", has_shovels)
def _() -> None:
    def make(put: Any) -> Any:
        async def at_once(self: Any, batch: Any) -> None:
            task = asyncio.ensure_future(put(self, batch))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

        return at_once

    replaced(AmqpTarget, "put", make)


@mutant("shovel says nothing of a redelivery", has_shovels)
def _() -> None:
    def make(init: Any) -> Any:
        def unflagged(self: Any, message: Any, redelivered: bool) -> None:
            init(self, message, False)

        return unflagged

    replaced(Parcel, "__init__", make)
