"""Rates beside the counts of lists, as RabbitMQ's management interface has them.

`X_details` of a count X has its `rate`: what was counted in the newest slot of samples, per second.
A request with `lengths_age` and `lengths_incr` (of numbers of messages), `msg_rates_age` and
`msg_rates_incr` (of messages published and acknowledged) or `data_rates_age` and `data_rates_incr`
(of bytes), all in seconds, is given the samples of that time too, newest first, with `avg` and
`avg_rate`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from tallymark.engine.queue import Queue
from tallymark.server.client import Client
from tallymark.server.http.requests import Refused
from tallymark.server.management.requests import is_number
from tallymark.server.node import Node
from tallymark.server.samples import (
    BROKER,
    BYTES,
    MESSAGES,
    OF_BROKER,
    SLOT_MS,
    At,
    end_ms,
    total,
)

LENGTHS: Final = "lengths"
MSG_RATES: Final = "msg_rates"
DATA_RATES: Final = "data_rates"
SLOT_S: Final = SLOT_MS // 1000
MOST: Final = 721
"""Samples of one count in an answer about one thing."""
MOST_IN_A_LIST: Final = 25


@dataclass(frozen=True, slots=True)
class Span:
    """A time up to now, in steps; both in slots."""

    age: int
    step: int


class Rates:
    """The rates of one request."""

    def __init__(self, node: Node, request: web.Request, most: int = MOST) -> None:
        """Raises Refused 400: samples are asked for that are none, or above `most`."""
        self._samples = node.samples
        self._clock = node.broker.clock
        self._slot = node.samples.newest(self._clock.now_ms)
        """The newest slot; before the first one of a broker has ended, the present one."""
        self._spans = {
            kind: _span(request, kind, most) for kind in (LENGTHS, MSG_RATES, DATA_RATES)
        }

    def of_queue(self, queue: Queue) -> Counted:
        return Counted(self, MESSAGES, self._samples.queues.at(queue.id))

    def capacity_of(self, queue: Queue) -> float | None:
        """Return which part of the time its consumers could take messages; see Capacity.of."""
        return self._samples.capacity.of(queue, self._slot)

    def of_vhosts(self, names: Iterable[str]) -> Counted:
        """Return the rates of all queues in these virtual hosts."""
        return Counted(self, MESSAGES, total(self._samples.vhosts.at(name) for name in names))

    def of_broker(self) -> Counted:
        """Return the rates of what the broker counts as a whole."""
        return Counted(self, OF_BROKER, self._samples.broker.at(BROKER))

    def of_connection(self, client: Client) -> Counted:
        return Counted(self, BYTES, self._samples.connections.at(client.id))

    def at_rest_since(self, queue: Queue) -> int | None:
        """Return the wall time, in ms, from which on nothing was counted in a queue; None: in the
        newest slot something was, or nothing is known yet."""
        ring = self._samples.queues.rings.get(queue.id)
        if ring is None or ring.changed() >= self._samples.slot:
            return None
        return end_ms(ring.changed(), self._clock)

    def details(self, at: At | None, column: int, kind: str) -> dict[str, Any]:
        """Return the details of one count."""
        slot, span = self._slot, self._spans[kind]

        def count(slot: int) -> int:
            return 0 if at is None else at(slot)[column]

        found: dict[str, Any] = {"rate": _rate(count(slot) - count(slot - 1), 1, kind)}
        if span is not None:
            slots = range(slot, slot - span.age - 1, -span.step)
            counts = [count(one) for one in slots]
            found["samples"] = [
                {"sample": one, "timestamp": end_ms(at_slot, self._clock)}
                for one, at_slot in zip(counts, slots, strict=True)
            ]
            found["avg"] = sum(counts) / len(counts)
            found["avg_rate"] = _rate(counts[0] - counts[-1], max(slot - slots[-1], 1), kind)
        return found


class Counted:
    """The counts of one thing, as they are shown."""

    def __init__(self, rates: Rates, names: tuple[str, ...], at: At | None) -> None:
        self._rates = rates
        self._names = names
        self._at = at

    def counted(self, counts: dict[str, int], kind: str) -> dict[str, Any]:
        """Return each count with its details. kind: LENGTHS, MSG_RATES or DATA_RATES."""
        found: dict[str, Any] = {}
        for name, count in counts.items():
            found[name] = count
            column = self._names.index(name)
            found[f"{name}_details"] = self._rates.details(self._at, column, kind)
        return found


def _rate(count: int, slots: int, kind: str) -> float:
    """Return a count per second. What only grows has no negative rate: it began anew."""
    rate = count / (slots * SLOT_S)
    return rate if kind == LENGTHS else max(rate, 0.0)


def _span(request: web.Request, kind: str, most: int) -> Span | None:
    """Return the time that samples are asked for; None: they are not. Raises Refused 400."""
    age, step = request.query.get(f"{kind}_age"), request.query.get(f"{kind}_incr")
    if age is None or step is None:
        return None
    for text in (age, step):
        if not is_number(text) or not int(text):
            reason = f"{kind}_age is {age!r} and {kind}_incr is {step!r}, expected seconds above 0"
            raise Refused(400, "bad_request", reason)
    steps = max(int(step) // SLOT_S, 1)
    slots = int(age) // SLOT_S
    if slots // steps >= most:
        reason = f"{kind}_age={age}&{kind}_incr={step}: more than {most} samples of one count"
        raise Refused(400, "bad_request", reason)
    return Span(slots, steps)
