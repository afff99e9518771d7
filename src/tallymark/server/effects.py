"""Effects: each one that the engine returns goes to the bridge of the client that it concerns."""

from __future__ import annotations

import asyncio
from typing import assert_never

from tallymark.bridge.bridge import Bridge, Waiter
from tallymark.engine.effects import (
    Activated,
    Cancelled,
    CloseConsumer,
    CloseSession,
    Confirm,
    Deliver,
    Drained,
    Durable,
    Effect,
    PublisherHeld,
    Refused,
    Signal,
    TimedOut,
    TransactionExpired,
)
from tallymark.engine.session import Session
from tallymark.server.interfaces import Served, Tracer
from tallymark.server.logs import log_of

log = log_of("server")
engine_log = log_of("engine")


def carry_out_all(effects: list[Effect], served: Served, tracer: Tracer | None) -> None:
    """Carry out effects in their order. What cannot be sent to a client ends its connection alone.

    tracer: is told of deliveries; None: nobody is. Raises whatever an effect raises that is for no
    client.
    """
    for effect in effects:
        try:
            _carry_out(effect, served, tracer)
        except Exception as error:
            _undeliverable(effect, error, served)


def _carry_out(effect: Effect, served: Served, tracer: Tracer | None) -> None:
    if isinstance(effect, Deliver):
        bridge = _bridge_of(effect.consumer.session)
        bridge.deliver(effect)
        if tracer is not None:
            tracer.delivered(effect)
    elif isinstance(effect, Confirm):
        bridge = _bridge_of(effect.session)
        bridge.confirm(effect)
    elif isinstance(effect, Drained):
        bridge = _bridge_of(effect.consumer.session)
        bridge.drained(effect)
    elif isinstance(effect, Activated):
        bridge = _bridge_of(effect.consumer.session)
        bridge.activated(effect)
    elif isinstance(effect, TimedOut):
        bridge = _bridge_of(effect.session)
        bridge.timed_out(effect)
    elif isinstance(effect, Refused):
        bridge = _bridge_of(effect.session)
        bridge.refused(effect)
    elif isinstance(effect, Durable):
        waiter = effect.waiter
        if isinstance(waiter, asyncio.Future):
            if not waiter.done():
                waiter.set_result(None)
            return
        assert isinstance(waiter, Waiter), waiter
        bridge = waiter.owner
        waiter.durable()
    elif isinstance(effect, Cancelled):
        bridge = _bridge_of(effect.consumer.session)
        bridge.cancelled(effect)
    elif isinstance(effect, TransactionExpired):
        bridge = _bridge_of(effect.transaction.session)
        bridge.transaction_expired(effect)
    elif isinstance(effect, CloseSession):
        bridge = _bridge_of(effect.session)
        bridge.close_session(effect)
    elif isinstance(effect, CloseConsumer):
        bridge = _bridge_of(effect.consumer.session)
        bridge.close_consumer(effect)
    elif isinstance(effect, PublisherHeld):
        handle = effect.connection.handle
        assert isinstance(handle, Bridge), handle
        served.hold_for(handle, effect.queue, effect.held)
        return
    elif isinstance(effect, Signal):
        tell = engine_log.error if effect.is_alarm else engine_log.info
        tell(effect.name, **effect.values)
        return
    else:
        assert_never(effect)
    served.flush_soon(bridge)


def _undeliverable(effect: Effect, error: Exception, served: Served) -> None:
    """Close the connection of a client that an effect could not be sent to. The engine is done
    with the effect, so only this connection is lost, and its messages return to their queues. A
    broker that stopped instead would fail at the same message after each start.

    Raises the error where the effect is for nobody.
    """
    bridge = _recipient(effect)
    if bridge is None:
        raise error
    if not served.broken(bridge, error):
        log.error("effect.unsaid", effect=type(effect).__name__, error=repr(error))


def _recipient(effect: Effect) -> Bridge | None:
    """Return the bridge of the client that an effect concerns; None: it concerns no client."""
    match effect:
        case Deliver() | Drained() | Activated() | Cancelled() | CloseConsumer():
            return _bridge_of(effect.consumer.session)
        case Confirm() | TimedOut() | Refused() | CloseSession():
            return _bridge_of(effect.session)
        case TransactionExpired():
            return _bridge_of(effect.transaction.session)
        case Durable(waiter=Waiter() as waiter):
            return waiter.owner
        case _:
            return None


def _bridge_of(session: Session) -> Bridge:
    bridge = session.connection.handle
    assert isinstance(bridge, Bridge), bridge
    return bridge
