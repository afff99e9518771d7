"""A rehearsed start: finds what the next start of a broker on a data folder would miss.

Replays the journal into a broker that is thrown away, so it takes the memory that a start takes.
Nothing is changed and no lock is taken; what the broker beside it removes meanwhile is read anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tallymark.engine.broker import Broker
from tallymark.engine.errors import BytesLost
from tallymark.engine.message import Payload, Slice
from tallymark.engine.names import named
from tallymark.engine.queue import Queue
from tallymark.engine.restore import (
    Restorer,
    live_payloads,
    missing_since,
    packed_payloads,
    take_apart,
)
from tallymark.engine.subscription import subscriptions_of
from tallymark.journal.recovery import Folder, Recovery
from tallymark.journal.stock import Stock
from tallymark.server.clock import both_ms
from tallymark.stored.layout import LayoutError

ATTEMPTS: Final = 5
"""Attempts to read a folder in which a running broker replaces files that were listed."""
RANGES: Final = 5
"""Sequence ranges that are named for one queue."""


def rehearse(folder: Path) -> list[str]:
    """Return what live messages need and is missing, accounts that do not add up, and what is
    missing at the journal's end; empty: nothing. Damage that `journal.verify` names is passed over.

    Raises OSError.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _rehearse(folder)
        except FileNotFoundError:
            if attempt == ATTEMPTS:
                raise
    raise AssertionError


def _rehearse(folder: Path) -> list[str]:
    found = Folder(folder)
    if found.doubles:
        return []  # there is no one journal that a start could read
    recovery = Recovery(found, True)
    stock = Stock(found)
    broker = Broker(_nothing_is_read)
    broker.clock.read(*both_ms())
    restorer = Restorer(broker)
    try:
        restorer.run(recovery.records())
    except (LayoutError, ValueError) as error:
        return [f"a start could not go on: {error}"]
    problems: list[str] = []
    if recovery.is_behind:
        said = recovery.anchor
        problems.append(recovery.behind_text())
        problems += missing_since(broker, said.queues, said.subscriptions)
    if not recovery.has_losses:
        problems += restorer.unbalanced
    return problems + _lost(broker, stock)


def _lost(broker: Broker, stock: Stock) -> list[str]:
    """Return descriptions of messages whose bytes are missing, by queue."""
    gone: set[int] = set()
    packed = packed_payloads(broker)
    lost = {id(p) for p in live_payloads(broker) if not stock.retain(p.position, p.size)}
    for payload in packed:
        assert payload.pack is not None
        gone.update(stock.retain_all(payload.pack.positions, payload.cuts))
    if gone:
        lost.update(id(payload) for payload in take_apart(broker, gone))
    problems = []
    for queue in broker.queues.values():
        pieces = [piece for piece in _pieces(queue) if id(piece.payload) in lost]
        if pieces:
            problems.append(_text_of(queue, pieces))
    return problems


def _pieces(queue: Queue) -> list[Slice]:
    held = [lease.slice for one in subscriptions_of(queue) for lease in one.leases]
    held += [letter.piece for letter in queue.letters]
    return [*queue.slices(), *[entry.piece for entry in queue.deferrals], *held]


def _text_of(queue: Queue, pieces: list[Slice]) -> str:
    ranges: list[list[int]] = []
    segments: set[int] = set()
    count = 0
    for piece in sorted(pieces, key=_first):
        count += len(piece)
        segments.add(piece.payload.position >> 32)
        if ranges and ranges[-1][1] + 1 == piece.first:
            ranges[-1][1] = piece.first + len(piece) - 1
        else:
            ranges.append([piece.first, piece.first + len(piece) - 1])
    texts = [str(low) if low == high else f"{low} to {high}" for low, high in ranges[:RANGES]]
    more = f" and {len(ranges) - RANGES} ranges more" if len(ranges) > RANGES else ""
    return (
        f"{named('queue', queue.name, queue.vhost)}: the bytes of {count} messages are gone, "
        f"sequences {', '.join(texts)}{more}, with segments "
        f"{', '.join(str(number) for number in sorted(segments))}"
    )


def _first(piece: Slice) -> int:
    return piece.first


def _nothing_is_read(payload: Payload) -> bytes:
    raise BytesLost(f"position {payload.position:#x} is not read in a rehearsal")
