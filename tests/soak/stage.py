"""The broker of a soak as its clients see it: on the same ports in every life, there or not there.

A client that loses its connection while the broker lives has found a defect, and says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

from pika.exceptions import AMQPError

from bench.lean import ClosedByBroker
from tests.support.ports import reserved
from tests.support.process import BrokerProcess

LOST = (OSError, HTTPException, ClosedByBroker, AMQPError)
LOOK_S = 0.05
NAMES = ("amqp_port", "http_port", "nsq_port", "nsq_http_port")
SETTINGS = {
    "host": "127.0.0.1",
    "nsq_host": "127.0.0.1",
    "segment_size": "1MiB",
    "checkpoint_every": "4MiB",
    "ledger_retention": "1m",
    "max_memory": "32MiB",
    "auto_create_queues": "^churn$",
    "log_level": "warning",
}
"""With these the disk can be flat: small segments, a checkpoint every few seconds, and ledgers that
are kept for about a life. `reconcile` accounts for that time; the broker's own account, for all."""


class HungUp(Exception):
    """A connection broke although the broker lived."""


class Stage:
    """The broker, the files of its clients, and what is going on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = {name: str(reserved()) for name in NAMES}
        self.broker = BrokerProcess(folder / "data", is_forked=False, **SETTINGS, **ports)
        self.life = 0
        self.up = threading.Event()
        self.ended = threading.Event()
        """Nothing more is published."""
        self.closed = threading.Event()
        """Everybody goes."""

    def rise(self) -> None:
        """The broker is ready: clients may connect."""
        self.life += 1
        self.up.set()

    def fall(self) -> None:
        """It is about to be killed."""
        self.up.clear()

    def lives(self, life: int) -> bool:
        """Whether the broker of that life is there."""
        return self.up.is_set() and self.life == life


class Actor(threading.Thread):
    """A client that goes on over any number of connections: `work` is one."""

    def __init__(self, stage: Stage, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.stage = stage
        self.failure: BaseException | None = None
        self.connections = 0

    def work(self) -> None:
        """One connection, until there is nothing more to do. Raises one of LOST when it broke."""
        raise NotImplementedError

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to connect for."""
        return self.stage.closed.is_set()

    def run(self) -> None:
        try:
            while not self.is_done:
                if self.stage.up.wait(LOOK_S):
                    self._connect(self.stage.life)
        except BaseException as error:
            self.failure = error

    def _connect(self, life: int) -> None:
        try:
            self.connections += 1
            self.work()
        except LOST as error:
            if self.stage.lives(life):
                raise HungUp(f"{self.name}: {error!r}") from error


class Repeated(Actor):
    """An actor that does a thing again and again, each time on connections of its own."""

    def __init__(self, stage: Stage, name: str, every_s: float, once: Callable[[], object]) -> None:
        super().__init__(stage, name)
        self.rounds = 0
        self._every_s = every_s
        self._once = once

    @property
    def is_done(self) -> bool:
        return self.stage.ended.is_set()

    def work(self) -> None:
        life = self.stage.life
        while self.stage.lives(life) and not self.is_done:
            try:
                self._once()
            except AssertionError as error:
                if self.stage.lives(life):
                    raise
                raise ConnectionError(str(error)) from error  # a client that was hung up on
            self.rounds += 1
            self.stage.ended.wait(self._every_s)
