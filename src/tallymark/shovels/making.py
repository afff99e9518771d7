"""Source and target of a plan, by the schemes of its addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tallymark.shovels.amqp import AmqpSource, AmqpTarget, exchange_address
from tallymark.shovels.ends import Source, Target
from tallymark.shovels.nsq import NsqSource, NsqTarget
from tallymark.shovels.parcel import Stamp
from tallymark.shovels.plan import AMQP, HTTP, NSQ, Plan, is_091, scheme_of
from tallymark.shovels.shovel import Pace
from tallymark.shovels.tallymark import TallymarkSource, TallymarkTarget
from tallymark.wire.conversion.addresses import queue_address

RDY_MAX: Final = 2500
"""Most messages in flight that an nsqd allows unless it is told otherwise."""


def attempts_of(plan: Plan, by: str, pace: Pace) -> Callable[[], tuple[Source, Target]]:
    """Return what makes source and target for each attempt: where a side is several brokers, the
    next attempt is for the next of them."""
    turns = plan.turns()
    return lambda: ends_of(next(turns), by, pace)


def ends_of(plan: Plan, by: str, pace: Pace) -> tuple[Source, Target]:
    """Return source and target of a plan with one broker on each side, not yet open. by: who moves
    the messages."""
    return _source(plan, pace), _target(plan, Stamp(by, plan.name, plan.queue))


def _source(plan: Plan, pace: Pace) -> Source:
    if scheme_of(plan.source) in HTTP:
        return TallymarkSource(plan.source, plan.queue, plan.name)
    window = pace.batch * pace.ahead
    if scheme_of(plan.source) == NSQ:
        topic, _, channel = plan.queue.partition("/")
        return NsqSource(plan.source, topic, channel, min(window, RDY_MAX))
    return AmqpSource(_for_client(plan.source), _address(plan.source, plan.queue), window)


def _target(plan: Plan, stamp: Stamp) -> Target:
    exchange, key = plan.to_exchange, plan.to_key
    queue = plan.to_queue or plan.queue
    if scheme_of(plan.target) in HTTP:
        if exchange is None:
            return TallymarkTarget(plan.target, "", queue, stamp)
        return TallymarkTarget(plan.target, exchange, key, stamp)
    if scheme_of(plan.target) == NSQ:
        return NsqTarget(plan.target, queue)
    address: str | None = _address(plan.target, queue)
    if exchange is not None:
        address = None if key is None else exchange_address(exchange, key)
    return AmqpTarget(_for_client(plan.target), address, exchange or "", stamp)


def _address(broker: str, queue: str) -> str:
    """Return the address of a queue. Peers of AMQP 1.0 have addresses of their own, which are taken
    as they stand."""
    return queue_address(queue) if is_091(broker) else queue


def _for_client(address: str) -> str:
    scheme, slashes, rest = address.partition("://")
    return AMQP[scheme.lower()] + slashes + rest
