"""Source and target of a plan, by the schemes of its addresses."""

from __future__ import annotations

from tallymark.shovels.amqp import AmqpSource, AmqpTarget, address_of_queue, exchange_address
from tallymark.shovels.ends import Source, Target
from tallymark.shovels.parcel import Stamp
from tallymark.shovels.plan import AMQP, HTTP, Plan, scheme_of
from tallymark.shovels.shovel import Pace
from tallymark.shovels.tallymark import TallymarkSource, TallymarkTarget


def ends_of(plan: Plan, by: str, pace: Pace) -> tuple[Source, Target]:
    """Return source and target of a plan, not yet open. by: who moves the messages."""
    return _source(plan, pace), _target(plan, Stamp(by, plan.name, plan.queue))


def _source(plan: Plan, pace: Pace) -> Source:
    if scheme_of(plan.source) in HTTP:
        return TallymarkSource(plan.source, plan.queue, plan.name)
    window = pace.batch * pace.ahead
    return AmqpSource(_for_client(plan.source), address_of_queue(plan.queue), window)


def _target(plan: Plan, stamp: Stamp) -> Target:
    exchange, key = plan.to_exchange, plan.to_key
    queue = plan.to_queue or plan.queue
    if scheme_of(plan.target) in HTTP:
        if exchange is None:
            return TallymarkTarget(plan.target, "", queue, stamp)
        return TallymarkTarget(plan.target, exchange, key, stamp)
    address: str | None = address_of_queue(queue)
    if exchange is not None:
        address = None if key is None else exchange_address(exchange, key)
    return AmqpTarget(_for_client(plan.target), address, exchange or "", stamp)


def _for_client(address: str) -> str:
    scheme, slashes, rest = address.partition("://")
    return AMQP[scheme.lower()] + slashes + rest
