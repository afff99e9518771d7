"""Deep backlogs in a journal that finds payloads by position: leases and relocations name them."""

from __future__ import annotations

from array import array

import pytest

from tallymark.engine.broker import Broker
from tallymark.engine.message import Payload, Slice
from tallymark.engine.packing import Packing
from tallymark.engine.restore import Restorer, live_payloads, packed_in
from tallymark.stored.annotations import Route
from tests.support.memory_journal import MemoryJournal

SIZE = 8


class Life:
    """One broker process on a journal; packs early."""

    def __init__(self, journal: MemoryJournal) -> None:
        self.journal = journal
        self.broker = Broker(journal.fetch)
        self.broker.backlogs.packing = Packing(after=4, group=8, fresh=1)
        Restorer(self.broker).run(journal.recovered())
        journal.start()
        for payload in live_payloads(self.broker):
            journal.retain(payload.position, payload.size)
        self.vhost = self.broker.registry.add_vhost("/")
        connection = self.broker.clients.open_connection("/", "guest", "life")
        self.session = self.broker.clients.open_session(connection)
        self.queue = self.broker.registry.declare_queue(
            connection, "q", True, False, False, {}, False
        )
        self.turn()

    def turn(self) -> None:
        broker, journal = self.broker, self.journal
        broker.turn(1)
        records = broker.take_records()
        broker.committed(journal.commit(records, 1) if records else journal.end)
        journal.sync()
        broker.synced(journal.synced)
        broker.spill(0, journal.written)
        for position, size in broker.store.released:
            journal.release(position, size)
        broker.store.released.clear()

    def publish(self, messages: list[int]) -> None:
        raw = b"".join(n.to_bytes(SIZE, "big") for n in messages)
        cuts = array("I", range(0, len(raw) + 1, SIZE))
        first_id = self.broker.new_message_ids(len(messages))
        payload = Payload(1, raw, cuts, Route("", "q"), None, first_id, 1, True, SIZE)
        self.broker.publishing.publish(self.session, self.vhost.route("", ["q"], None), payload)
        self.turn()

    def numbers(self, piece: Slice) -> list[int]:
        self.broker.store.load(piece.payload)
        raw, cuts = piece.payload.raw, piece.payload.cuts
        assert raw is not None
        return [int.from_bytes(raw[cuts[i] : cuts[i + 1]], "big")
                for i in range(piece.lo, piece.hi)]  # fmt: skip

    def after_a_crash(self) -> Life:
        return Life(self.journal.crash())


def deep(at_a_time: int) -> Life:
    life = Life(MemoryJournal())
    for first in range(0, 20 * at_a_time, at_a_time):
        life.publish(list(range(first, first + at_a_time)))
    return life


@pytest.mark.parametrize("at_a_time", [1, 2, 3])
def test_a_lease_from_a_deep_backlog_is_the_same_after_a_crash(at_a_time: int) -> None:
    life = deep(at_a_time)
    life.broker.leases.lease(life.broker.leases.attach(life.queue, "s"), 0, 10, 0)
    life.turn()
    life = life.after_a_crash()
    subscription = life.broker.leases.find(life.queue, "s")
    pieces = life.broker.leases.read(subscription, 0, 10)
    assert [n for _, piece in pieces for n in life.numbers(piece)] == list(range(10))


@pytest.mark.parametrize("at_a_time", [1, 2, 3])
def test_what_was_relocated_out_of_a_deep_backlog_is_found_where_it_is(at_a_time: int) -> None:
    life = deep(at_a_time)
    assert life.broker.consuming.get(life.session, life.queue, True) is not None
    life.turn()
    segment = life.journal.end >> 32
    loose = live_payloads(life.broker)
    packed = list(packed_in(life.broker, {segment}))
    assert bool(packed) == (at_a_time == 1)
    life.journal.relocate([*loose, *(payload for _, _, payload in packed)], 1)
    for pack, i, payload in packed:
        pack.positions[i] = payload.position
    moved = {p.position for p in loose} | {p.position for _, _, p in packed}
    life.turn()
    life = life.after_a_crash()
    assert {p.position for p in live_payloads(life.broker)} == moved
    found = [n for piece in life.queue.slices() for n in life.numbers(piece)]
    assert found == list(range(1, 20 * at_a_time))
