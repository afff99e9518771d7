"""Dispositions of consumers: outcomes of deliveries, translated from delivery numbers to the
engine's tags.

A disposition is a range of the session, over all its links, and may name what is settled already:
that is passed over. Where the client waits for our answer (it does not settle itself), the answer
waits for the disk, so that what it hears is so after a crash as well [FC-12].
"""

from __future__ import annotations

from typing import Final

from tallymark.bridge.amqp10.client import Answers, Session, number_of
from tallymark.bridge.amqp10.consume import RELEASED, OutgoingLink
from tallymark.engine.arguments import LONGEST_MS
from tallymark.engine.clock import Clock
from tallymark.engine.intervals import IntervalSet
from tallymark.engine.outcomes import ACCEPTED, DISCARDED, FAILED, REJECTED, RETURNED
from tallymark.engine.session import InFlight
from tallymark.engine.session import Session as EngineSession
from tallymark.stored.annotations import Notes
from tallymark.units import EngineMs, Tag, WallMs
from tallymark.wire.amqp10.codec import encode
from tallymark.wire.amqp10.events import DispositionReceived
from tallymark.wire.amqp10.outcomes import (
    Accepted,
    DeliveryState,
    Modified,
    Received,
    Rejected,
    Released,
)
from tallymark.wire.amqp10.serial import Serial

UNKNOWN: Final = 0
"""Placeholder for states that are no outcome of the engine."""
DELIVERY_TIME: Final = "x-opt-delivery-time"
"""Annotation of `modified`: time before which the message is not ready again; wall time,
milliseconds."""
OURS: Final = "x-"
"""Prefix of all annotations that a consumer may add [FC-20]."""


def outcome_of(state: DeliveryState | None) -> int:
    """Return the engine's outcome for a delivery state; UNKNOWN for one that is none of the four
    outcomes [FC-20, LC-1]."""
    if isinstance(state, Accepted):
        return ACCEPTED
    if isinstance(state, Released):
        return RETURNED
    if isinstance(state, Rejected):
        return REJECTED
    if isinstance(state, Modified):
        if state.undeliverable_here:
            return REJECTED if state.delivery_failed else DISCARDED
        return FAILED if state.delivery_failed else RETURNED
    return UNKNOWN


def notes_of(state: DeliveryState | None) -> Notes:
    """Return a consumer's annotations of messages, encoded."""
    if not isinstance(state, Modified) or not state.message_annotations:
        return ()
    return tuple(
        [
            (str(key), encode(value))
            for key, value in state.message_annotations.items()
            if isinstance(key, str) and key.startswith(OURS) and key != DELIVERY_TIME
        ]
    )


def due_of(state: DeliveryState | None, clock: Clock) -> int:
    """Return the time at which messages are to be ready again, engine time, ms; 0: at once [LC-1].
    The client gives it in wall time."""
    if isinstance(state, Modified) and state.message_annotations:
        due = state.message_annotations.get(DELIVERY_TIME)
        if isinstance(due, int) and not isinstance(due, bool):
            return max(0, min(clock.from_wall(WallMs(due)), clock.now_ms + LONGEST_MS))
    return 0


def settle(session: Session, event: DispositionReceived) -> None:
    """Handle a disposition: the client gives an outcome for deliveries, or settles them on its
    side."""
    first, last = session.tag_of(event.first), session.tag_of(event.last)
    state = event.state
    if outcome_of(state) == UNKNOWN:
        if event.settled:
            _forget(session, first, last)
            settle_by_default(session, first, last)
        return
    if event.settled:
        _forget(session, first, last)
    for low, high in outstanding(session.engine, first, last):
        _settle_as(session, low, high, state)
    if not event.settled and state is not None:
        if session.answers is None:
            session.answers = Answers(session)
        for low, high in _outside_transactions(session, first, last):
            session.answers.add(number_of(low), number_of(high), state)


def settle_by_default(session: Session, first: int, last: int) -> None:
    """Settle the unsettled tags among first..last, each with the default outcome of its link."""
    for low, high, state in default_outcomes(session, first, last):
        _settle_as(session, low, high, state)


def _settle_as(session: Session, first: int, last: int, state: DeliveryState | None) -> None:
    """Settle unsettled tags first..last with this outcome, and what it says of the messages."""
    broker = session.client.broker
    broker.settlement.settle(
        session.engine, Tag(first), Tag(last), outcome_of(state), notes_of(state),
        EngineMs(due_of(state, broker.clock)),
    )  # fmt: skip


def _outside_transactions(session: Session, first: Tag, last: Tag) -> list[tuple[Tag, Tag]]:
    """Return those of tags first..last that were not settled under a transaction which is open: of
    the others the discharge decides, and nothing is confirmed before it [TX-15]."""
    parked = IntervalSet()
    for work in session.client.works.values():
        for low, high in work.parked(session, first, last):
            parked.add(low, high + 1)
    return [(Tag(low), Tag(high - 1)) for low, high in parked.gaps(first, last + 1)]


def _forget(session: Session, first: int, last: int) -> None:
    """Note that the client has settled these tags on its side, including those settled under a
    transaction before."""
    for work in session.client.works.values():
        work.forget(session, first, last)


def withdraw(session: Session, first: Serial, last: Serial) -> None:
    """Requeue deliveries that had not left when the client took back its credit. Those that are
    settled by being sent are no longer in flight."""
    engine = session.engine
    for low, high in outstanding(engine, session.tag_of(first), session.tag_of(last)):
        session.client.broker.settlement.settle(engine, Tag(low), Tag(high), RETURNED)


def outstanding(engine: EngineSession, first: int, last: int) -> list[tuple[int, int]]:
    """Return the unsettled tags among first..last, as ranges, ascending."""
    inflight = engine.inflight
    if not inflight:
        return []
    entry = inflight[0]
    if entry.done is None and entry.first <= first and last <= entry.last:
        return [(first, last)] if first <= last else []
    found: list[tuple[int, int]] = []
    for entry in _held(engine, first, last):
        found += entry.pieces(Tag(max(first, entry.first)), Tag(min(last, entry.last)))
    return found


def _held(engine: EngineSession, first: int, last: int) -> list[InFlight]:
    """Return the in-flight entries that contain some of the tags first..last."""
    inflight = engine.inflight
    low = 0
    high = len(inflight)
    while low < high:
        middle = (low + high) >> 1
        if inflight[middle].last < first:
            low = middle + 1
        else:
            high = middle
    found: list[InFlight] = []
    while low < len(inflight) and inflight[low].first <= last:
        found.append(inflight[low])
        low += 1
    return found


def default_outcomes(
    session: Session, first: int, last: int
) -> list[tuple[int, int, DeliveryState]]:
    """Return the default outcomes of unsettled tags among first..last, as (first, last, outcome).
    Each link's source defines what settling without an outcome means
    [amqp-1.0 §3.5.3 default-outcome]."""
    found: list[tuple[int, int, DeliveryState]] = []
    for entry in _held(session.engine, first, last):
        consumer = entry.consumer
        end = None if consumer is None else consumer.handle
        outcome = end.default_outcome if isinstance(end, OutgoingLink) else RELEASED
        for low, high in entry.pieces(Tag(max(first, entry.first)), Tag(min(last, entry.last))):
            found.append((low, high, outcome))
    return found


def holders(session: Session, first: int, last: int) -> list[OutgoingLink]:
    """Return the links that hold unsettled deliveries among tags first..last."""
    found: list[OutgoingLink] = []
    for entry in _held(session.engine, first, last):
        end = None if entry.consumer is None else entry.consumer.handle
        if not isinstance(end, OutgoingLink) or end in found:
            continue
        if entry.pieces(Tag(max(first, entry.first)), Tag(min(last, entry.last))):
            found.append(end)
    return found


def is_final(state: DeliveryState | None) -> bool:
    """Return whether the state is allowed in a disposition here: none, one of the four outcomes, or
    received."""
    return state is None or isinstance(state, Received) or outcome_of(state) != UNKNOWN
