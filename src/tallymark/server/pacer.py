"""Publish rates at the sockets: who published more than the limits allow is not read.

The count and the time are the engine's (engine/quotas.py); here is what follows. A connection is
counted after each read, whatever protocol it speaks (Clients.received); it then rests, as a whole,
as in an alarm. Requests over HTTP wait before they publish, for WAIT_S at most: then they are told
to come again.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from tallymark.bridge.bridge import Bridge
from tallymark.engine.errors import HeldBack
from tallymark.server.turns import Turns

WAIT_S: Final = 20.0
"""Longest wait of a request: less than clients of HTTP wait for an answer."""


class Paced(Protocol):
    """A client as the rates know it."""

    bridge: Bridge
    is_paced: bool

    def read_or_not(self) -> None:
        """Have the transport read, or not, as it should be now."""

    def catch_up(self) -> None:
        """Go on with postponed input."""


class Pacer:
    """Publishers of one node that rest."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._quotas = turns.broker.quotas
        self._resting: dict[Paced, asyncio.TimerHandle] = {}

    def published(self, client: Paced, count: int) -> None:
        """Count what a connection published; let it rest where that was too much."""
        place = client.bridge.publishes_as
        if place is not None:
            self._rest(client, self._spend(*place, count))

    def published_over_http(self, vhost: str, user: str, count: int) -> None:
        """Count what a request published."""
        if self._quotas.has_rates:
            self._spend(vhost, user, count)

    async def turn(self, vhost: str, user: str) -> None:
        """Wait until a user may publish in a virtual host. Raises HeldBack after WAIT_S."""
        left_s = WAIT_S
        while self._quotas.has_rates and (wait_s := self._spend(vhost, user, 0)):
            if wait_s > left_s:
                raise HeldBack(
                    f"publish rate of user '{user}' or virtual host '{vhost}' is exceeded: "
                    f"try again in {wait_s:.0f} s"
                )
            await asyncio.sleep(wait_s)
            self._turns.tell_time()
            left_s -= wait_s

    def look_again(self) -> None:
        """Apply limits that changed to those that rest."""
        for client in list(self._resting):
            self._look(client)

    def forget(self, client: Paced) -> None:
        """Drop a client that is gone."""
        timer = self._resting.pop(client, None)
        if timer is not None:
            timer.cancel()

    def _spend(self, vhost: str, user: str, count: int) -> float:
        """Count messages; return the seconds until the publisher may go on."""
        now_ms = self._turns.broker.clock.now_ms
        return (self._quotas.spend(vhost, user, count, now_ms) - now_ms) / 1000

    def _rest(self, client: Paced, seconds: float) -> None:
        self.forget(client)
        if seconds:
            self._resting[client] = self._turns.loop.call_later(seconds, self._look, client)
        if client.is_paced != bool(seconds):
            client.is_paced = bool(seconds)
            client.read_or_not()
            client.catch_up()

    def _look(self, client: Paced) -> None:
        """See whether a client may go on: others of its user may have published meanwhile."""
        self._turns.tell_time()
        place = client.bridge.publishes_as
        self._rest(client, 0.0 if place is None else self._spend(*place, 0))
