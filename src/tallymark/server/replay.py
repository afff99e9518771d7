"""Replay: a broker in the making, from the records of a data folder.

A start replays what the folder has and goes on. A standby replays for as long as it is one, with
each step what came since the last.
"""

from __future__ import annotations

from tallymark.bridge.amqp091.format import Amqp091Format
from tallymark.bridge.amqp10.format import Amqp10Format
from tallymark.bridge.nsq.format import NsqFormat
from tallymark.engine.broker import Broker
from tallymark.engine.message import Payload
from tallymark.engine.restore import (
    Restorer,
    drop_lost,
    live_payloads,
    missing_since,
    packed_payloads,
    put_aside,
    take_apart,
)
from tallymark.journal.journal import Journal
from tallymark.journal.recovery import Opened
from tallymark.server.clock import both_ms
from tallymark.server.logs import log_of
from tallymark.stored.formats import AMQP091, AMQP10, NSQ
from tallymark.stored.layout import LayoutError
from tallymark.units import Position

log = log_of("server")


class NotUnderstood(Exception):
    """The data folder has what this version does not know; the text says what."""


class Replay:
    """A broker that is being restored from a folder. One thread at a time."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self._journal: Journal | None = None
        self.broker = Broker(self._fetch)
        self.broker.formats[AMQP091] = Amqp091Format()
        self.broker.formats[NSQ] = NsqFormat()
        self.broker.formats[AMQP10] = Amqp10Format()
        self.broker.clock.read(*both_ms())
        self._restorer = Restorer(self.broker)

    def advance(self) -> None:
        """Apply the records that are there and were not yet applied.

        Raises:
            JournalCorrupt, NotUnderstood, OSError: the replay is void.
        """
        try:
            for record in self.opened.recovery.growth():
                self._restorer.apply(record)
        except (LayoutError, ValueError) as error:
            raise self._not_understood(error) from error

    def finish(self, journal: Journal) -> None:
        """Apply the rest, and make the broker ready to serve from the folder's journal, which is
        not started. Raises as `advance`."""
        self._journal = journal
        self.broker.clock.read(*both_ms())
        try:
            self._restorer.run(journal.recovered())
        except (LayoutError, ValueError) as error:
            raise self._not_understood(error) from error
        _compare(self.broker, journal, self._restorer.unbalanced)

    def _not_understood(self, error: Exception) -> NotUnderstood:
        return NotUnderstood(f"the journal in {self.opened.path} is not understood: {error}")

    def _fetch(self, payload: Payload) -> bytes:
        assert self._journal is not None, "nothing is read while the replay lasts"
        return self._journal.fetch(payload)


def _compare(broker: Broker, journal: Journal, unbalanced: list[str]) -> None:
    """Compare a restored broker with the bytes that are there; drop what is lost."""
    if journal.anchor is not None:
        said = journal.anchor
        for problem in missing_since(broker, said.queues, said.subscriptions):
            journal.missing(problem)
    journal.unbalanced(unbalanced)
    gone: set[int] = set()
    packed = packed_payloads(broker)
    lost = [p for p in live_payloads(broker) if not journal.retain(p.position, p.size)]
    for payload in packed:
        gone.update(journal.retain_packed(payload))
    if gone:
        lost += take_apart(broker, gone)
    if lost:
        log.error("messages.lost", count=drop_lost(broker, lost))
    if journal.damaged:
        log.error("messages.damaged", count=put_aside(broker, journal.damaged))
    broker.pack_all(Position(1 << 62))  # a restored message can be read back wherever it is
