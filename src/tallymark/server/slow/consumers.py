"""The housekeeping task that looks for slow consumers and lets policies act on them [SC-4].

State comes before action [SC-D5]: a subscription that comes near a limit is told of, in the log and
in the ledger, and one that is above it too, before its policy does anything. What is told once is
told again only when it has changed. An error over one subscription is logged and costs only that
one.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from typing import Any, Final

from tallymark.engine.queue import Queue
from tallymark.engine.slow.actions import SlowSubscription, record
from tallymark.engine.slow.consumers import FINE, NEAR, OVER, Reading, Watched
from tallymark.engine.slow.rules import LIMITS
from tallymark.server.logs import log_of
from tallymark.server.slow.policies import NOTIFY, slow_policies
from tallymark.server.turns import Turns
from tallymark.stored import records

SLICES_AT_ONCE: Final = 20_000
"""Slices that may be gone through before others get their turn."""
LOOKS_AT_ONCE: Final = 500
ROUNDS: Final = 2
"""Rounds of the loop after which all sockets were read: asyncio's loop runs what is due before what
it has just read, uvloop the other way round."""
STATES: Final = {FINE: "fine", NEAR: "near", OVER: "over"}

log = log_of("engine")


class SlowConsumerWatch:
    """The watch of one node."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._held: dict[int, tuple[Queue, Watched]] = {}
        """Queues whose publishers are held back, with their state at that time, by queue id."""
        self.found = 0
        """Number of times that a subscription exceeded its limits."""
        self.near = 0
        """Number of times that one came near them."""
        self.acted: Counter[str] = Counter()
        """Number of actions by policy."""
        self.errors = 0

    def period_s(self) -> float:
        return self._turns.config.slow_consumers.period_s

    async def run(self) -> None:
        """Look at the subscriptions that are due, after all sockets were read: acknowledgements may
        wait there, for as long as the process was stopped."""
        for _ in range(ROUNDS):
            await asyncio.sleep(0)
        slow = self._turns.broker.slow
        self._turns.tell_time()
        walked, looks, rules = slow.walked, 0, slow.rules
        for watched in slow.due():
            if slow.rules is not rules:
                break  # they are others now: all of it is due again
            self._turns.tell_time()
            self._step(watched)
            looks += 1
            if looks >= LOOKS_AT_ONCE or slow.walked - walked >= SLICES_AT_ONCE:
                await asyncio.sleep(0)
                walked, looks = slow.walked, 0
        self._release_recovered()

    def use_rules(self) -> None:
        """The configuration's rules are in effect with the next look."""
        self._turns.broker.slow.rules = self._turns.config.slow_consumers.rules

    def _step(self, watched: Watched) -> None:
        try:
            self._look(watched)
        except Exception as error:  # costs this subscription's look, and no other's
            self.errors += 1
            watched.forget()
            log.error(
                "slow_consumer.failed", vhost=watched.queue.vhost, queue=watched.queue.name,
                error=repr(error), trace="".join(traceback.format_exception(error)),
            )  # fmt: skip

    def _look(self, watched: Watched) -> None:
        before, last = watched.state, watched.reading
        reading = self._turns.broker.slow.look(watched)
        if reading is None or watched.state == FINE:
            if before != FINE:
                self._tell_recovered(watched, last, reading)
            return
        if watched.state == NEAR:
            if before != NEAR or last is None or last.near != reading.near:
                self.near += 1
                self._tell("slow_consumer.near", records.SLOW_NEAR, reading)
            return
        if before != OVER or last is None or last.over != reading.over:
            self.found += 1
            self._tell("slow_consumer.found", records.SLOW_FOUND, reading)
        self._act(watched, reading)

    def _act(self, watched: Watched, reading: Reading) -> None:
        turns, queue = self._turns, watched.queue
        held = self._held.get(queue.id)
        if held is not None and held[1] is not watched:  # its rule is another now
            self._release(queue)
        name = reading.rule.policy or NOTIFY
        values = reading.values(turns.broker.clock.now_ms)
        action = slow_policies().action(name, reading.rule.options)
        done = action(SlowSubscription(turns.broker, reading))
        if queue.holds_publishers:
            self._held[queue.id] = (queue, watched)
        if done is None:
            return
        self.acted[name] += 1
        record(turns.broker, reading, records.SLOW_ACTED, {"policy": name, **done, **values})
        log.warning("slow_consumer.acted", policy=name, **done, **_for_log(values))
        turns.turn_now()  # the client hears of it before anything it says is read

    def _tell(self, event: str, kind: int, reading: Reading) -> None:
        broker = self._turns.broker
        values = reading.values(broker.clock.now_ms)
        record(broker, reading, kind, {"policy": reading.rule.policy or NOTIFY, **values})
        log.warning(event, policy=reading.rule.policy or NOTIFY, **_for_log(values))
        self._turns.schedule()

    def _tell_recovered(
        self, watched: Watched, last: Reading | None, reading: Reading | None
    ) -> None:
        queue, broker = watched.queue, self._turns.broker
        if queue.deleted:
            return
        if reading is not None:
            values = reading.values(broker.clock.now_ms)
            record(broker, reading, records.SLOW_RECOVERED, values)
        elif last is not None:
            place = {"vhost": queue.vhost, "queue": queue.name, "count": watched.count}
            record(broker, last, records.SLOW_RECOVERED, place)
        log.info("slow_consumer.recovered", vhost=queue.vhost, queue=queue.name,
                 count=watched.count)  # fmt: skip
        self._turns.schedule()

    def _release_recovered(self) -> None:
        if not self._held:
            return
        present = {id(watched) for watched in self._turns.broker.slow.watched()}
        for queue, watched in list(self._held.values()):
            if id(watched) not in present or watched.state != OVER or queue.deleted:
                self._release(queue)

    def _release(self, queue: Queue) -> None:
        del self._held[queue.id]
        self._turns.broker.publishing.hold_publishers(queue, False)
        log.info("slow_consumer.publishers_released", vhost=queue.vhost, queue=queue.name)
        self._turns.schedule()

    # -- for lists and metrics

    def rows(self) -> list[dict[str, Any]]:
        """Return every subscription that has a rule, with its state at the last check; measures
        only of those near a limit or above one."""
        now = self._turns.broker.clock.now_ms
        return [
            {
                "vhost": one.queue.vhost,
                "queue": one.queue.name,
                "state": STATES[one.state],
                "policy": one.rule.policy or NOTIFY,
                "limits": one.rule.limits(),
                "publishers_held": one.queue.holds_publishers,
                "reading": None if one.reading is None else one.reading.values(now),
            }
            for one in self._turns.broker.slow.watched()
        ]


def used(reading: Reading) -> dict[str, float]:
    """Return the used fraction of each limit that is set; 1 is all of it. Of a rate its inverse."""
    rule = reading.rule
    measures = dict(
        zip(LIMITS, (reading.depth, reading.age_ms, reading.count, reading.rate), strict=True)
    )
    limits = {"depth": rule.depth, "age": rule.age, "count": rule.count}
    found = {name: measures[name] / limit for name, limit in limits.items() if limit > 0}
    if rule.rate > 0 and reading.rate >= 0:
        found["rate"] = rule.rate / reading.rate if reading.rate else float("inf")
    return found


def _for_log(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values short enough for a line of the log: the ledger has all of them."""
    shown = {name: value for name, value in values.items() if name != "consumers"}
    shown["consumers"] = [one["tag"] for one in values["consumers"]]
    return shown
