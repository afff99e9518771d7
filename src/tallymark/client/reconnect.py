"""Connecting again: when, and how often. What is taken up again is the connection's business.

A connection that breaks is made anew, then its sessions, senders and receivers under their old
names and with their old settings: the objects the application holds live on. What does not live on
is what the broker has taken back with the old connection, see docs/client.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import final

from tallymark.client.errors import ClientError, Closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waiting times between attempts to connect: `initial_ms`, then `factor` times as long up to
    `max_ms`, less a random part of up to `jitter` of it, so that clients do not come back all at
    once."""

    initial_ms: int = 100
    factor: float = 2.0
    max_ms: int = 30_000
    jitter: float = 0.5
    """0: none, 1: anything between nothing and the whole delay."""
    attempts: int | None = None
    """Give up after so many; None: never."""

    def __post_init__(self) -> None:
        if self.initial_ms < 0 or self.max_ms < self.initial_ms:
            raise ValueError(
                f"delays from {self.initial_ms} to {self.max_ms} ms, expected 0 or more, ascending"
            )
        if self.factor < 1:
            raise ValueError(f"factor={self.factor}, expected 1 or more")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter={self.jitter}, expected 0 to 1")
        if self.attempts is not None and self.attempts < 1:
            raise ValueError(f"attempts={self.attempts}, expected 1 or more, or None")

    def delays_ms(self, draw: Callable[[], float]) -> Iterator[int]:
        """The delay before each attempt; `draw` gives numbers from 0 to 1."""
        base = float(self.initial_ms)
        done = 0
        while self.attempts is None or done < self.attempts:
            yield int(base * (1 - self.jitter * draw()))
            base = min(base * self.factor, float(self.max_ms))
            done += 1


@final
class Reconnector:
    """Attempts to connect until one succeeds, no further one may be made, or they are cancelled."""

    def __init__(
        self,
        backoff: Backoff,
        attempt: Callable[[], Awaitable[None]],
        waiting: Callable[[int, int, ClientError], None],
    ) -> None:
        """`attempt` raises Closed where it fails; `waiting(number, delay_ms, error)` is called
        before each."""
        self._backoff = backoff
        self._attempt = attempt
        self._waiting = waiting

    async def run(self, error: ClientError) -> ClientError | None:
        """Try to connect until an attempt succeeds, and return None. Return the last error if
        trying again cannot help, or if no attempts are left."""
        for number, delay_ms in enumerate(self._backoff.delays_ms(random.random), 1):
            self._waiting(number, delay_ms, error)
            await asyncio.sleep(delay_ms / 1000)
            try:
                await self._attempt()
            except Closed as failed:
                error = failed
                if not failed.may_retry:
                    return error
            else:
                return None
        return error
