"""Drivers: those who read queues through durable subscriptions, in a world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tallymark.engine.broker import Broker
from tallymark.engine.subscription import Subscription
from tallymark.units import LeaseSequence
from tallymark.whatif import recording as told
from tallymark.whatif.declaring import Declaring
from tallymark.whatif.fates import QueueName

UNLIMITED: Final = 1 << 40
"""Limit on messages and bytes of a subscription: how much it takes is what it took."""


class Drivers:
    """All durable subscriptions of a world, by their epochs in the recording."""

    def __init__(self, broker: Broker, declaring: Declaring) -> None:
        self._broker = broker
        self._declaring = declaring
        self._subscriptions: dict[int, Subscription] = {}
        self._owed: dict[int, int] = {}
        """Messages that were not there when they were to be leased: the next lease is longer."""

    def take(self, kind: int, said: object) -> None:
        """Carry out an input."""
        if kind == told.UNSUBSCRIBE:
            assert isinstance(said, int)
            gone = self._subscriptions.pop(said, None)
            if gone is not None and not gone.queue.deleted:
                self._broker.drop_subscription(gone)
            return
        assert isinstance(said, tuple)
        if kind == told.SUBSCRIBE:
            self._subscribe(*said)
            return
        subscription = self._subscriptions.get(said[0])
        if subscription is None or subscription.queue.deleted:
            return
        if kind == told.LEASE:
            self._lease(subscription, *said)
        elif kind == told.JUDGE:
            self._judge(subscription, said[1])
        else:
            end = LeaseSequence(min(said[1], subscription.next))
            self._broker.leases.settle(subscription, end)

    def _subscribe(self, epoch: int, place: QueueName, name: str) -> None:
        queue = self._declaring.queue_of(place)
        known = self._subscriptions.get(epoch)
        if queue is None or (known is not None and not known.queue.deleted):
            return
        attach = self._broker.leases.attach
        self._subscriptions[epoch] = attach(queue, name, UNLIMITED, UNLIMITED)

    def _lease(self, subscription: Subscription, epoch: int, count: int) -> None:
        wanted = count + self._owed.get(epoch, 0)
        start = subscription.next
        end = self._broker.leases.lease(subscription, start, wanted, 0)
        self._owed[epoch] = wanted - (end - start)

    def _judge(self, subscription: Subscription, said: Sequence[tuple[int, int, int]]) -> None:
        """Give the outcomes of those messages that are leased in this world, too."""
        found = []
        for first, count, outcome in said:
            low = max(first, subscription.floor)
            high = min(first + count, subscription.next)
            if low < high:
                found.append((LeaseSequence(low), high - low, outcome))
        if found:
            self._broker.leases.judge(subscription, found)
