"""A subscription to topics in a broker without sockets, under one rule for slow consumers."""

from __future__ import annotations

from typing import Any

from tallymark.engine.session import Consumer
from tallymark.engine.slow.actions import SlowSubscription
from tallymark.engine.slow.consumers import Reading, Watched
from tallymark.engine.slow.rules import Rule, Rules
from tests.support.engine_rig import Rig


class Slow:
    """Subscription `sub` to key `k` of topic exchange `t`, and its consumer `c`."""

    def __init__(
        self,
        prefetch: int = 0,
        no_ack: bool = False,
        exclusive_queue: bool = True,
        exclusive: bool = False,
        consume: bool = True,
        type: str = "topic",
        durable: bool = False,
        arguments: dict[str, object] | None = None,
        **limits: Any,
    ) -> None:
        self.rig = Rig()
        self.rig.tick_ms = 0
        self.broker = self.rig.broker
        self.slow = self.broker.slow
        self.slow.rules = Rules(general=Rule(**limits))
        self.queue = self.broker.registry.declare_queue(
            self.rig.connection, "sub", durable, exclusive_queue, False, arguments or {}, False
        )
        self.rig.exchange("t", type, ("sub", "k"))
        self.session = self.rig.session()
        self.publisher = self.rig.session(
            self.broker.clients.open_connection("/", "guest", "publisher")
        )
        self.consumer: Consumer | None = None
        if consume:
            self.consumer = self.subscribe(prefetch, no_ack, exclusive)
        self.next = 1

    def subscribe(
        self, prefetch: int = 0, no_ack: bool = False, exclusive: bool = False
    ) -> Consumer:
        self.broker.consuming.set_prefetch(self.session, prefetch, shared=False)
        return self.broker.consuming.consume(
            self.session, self.queue, "c", no_ack, exclusive, 0, {}
        )

    def send(self, n: int, together: bool = False) -> None:
        """So many more messages, numbered on from 1."""
        numbers = list(range(self.next, self.next + n))
        self.next += n
        for part in [numbers] if together else [[one] for one in numbers]:
            self.rig.send("k", *part, exchange="t", session=self.publisher)
        self.rig.settle_down()

    def settle(self, first: int, last: int) -> None:
        self.broker.settlement.settle(self.session, first, last, 1)
        self.rig.settle_down()

    def wait(self, ms: int) -> None:
        self.rig.advance(ms)

    @property
    def watched(self) -> Watched:
        (one,) = self.slow.watched()
        return one

    def look(self) -> Reading | None:
        """As the housekeeping does: only at what may have changed. Nothing changed: as before."""
        if self.watched in self.slow.due():
            return self.slow.look(self.watched)
        return self.watched.reading

    @property
    def state(self) -> int:
        self.look()
        return self.watched.state

    def over(self) -> list[str]:
        reading = self.look()
        return [] if reading is None else reading.over

    def caught(self) -> SlowSubscription:
        """It is above a limit: what a policy is handed."""
        assert self.over()
        reading = self.watched.reading
        assert reading is not None
        return SlowSubscription(self.broker, reading)
