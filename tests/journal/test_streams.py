"""Deep streams in a journal: packed in checkpoints, moved by the cleaner, lost in parts."""

from __future__ import annotations

from array import array

import pytest

from tallymark.engine.broker import Broker
from tallymark.engine.message import Format, Payload, Slice
from tallymark.engine.packing import Packing
from tallymark.engine.policies import Policy
from tallymark.engine.queue import Queue
from tallymark.engine.restore import (
    Restorer,
    drop_lost,
    live_payloads,
    packed_in,
    packed_payloads,
    snapshot,
    take_apart,
)
from tallymark.stored.annotations import Route
from tests.journal.builders import Disk

SIZE = 40
SEGMENT = 16 * 1024
ROUTES = [Route("", "s"), Route("x", "key")]


class Host:
    """A broker on a journal, as the server runs it, without a loop."""

    def __init__(self, disk: Disk, accept_loss: bool = False) -> None:
        self.disk = disk
        self.now = 1_000_000
        self.journal = disk.make(segment_bytes=SEGMENT, accept_loss=accept_loss)
        self.broker = Broker(self.journal.fetch)
        self.broker.formats[0] = Format()
        self.broker.backlogs.packing = Packing(after=20, group=16, fresh=4)
        Restorer(self.broker).run(self.journal.recovered())
        packed = packed_payloads(self.broker)
        lost = [p for p in live_payloads(self.broker)
                if not self.journal.retain(p.position, p.size)]  # fmt: skip
        gone = [at for payload in packed for at in self.journal.retain_packed(payload)]
        if gone:
            lost += take_apart(self.broker, set(gone))
        self.lost = drop_lost(self.broker, lost) if lost else 0
        self.journal.start()
        self.vhost = self.broker.registry.add_vhost("/")
        self.connection = self.broker.clients.open_connection("/", "guest", "host")
        self.session = self.broker.clients.open_session(self.connection)

    def queue(self, name: str, **arguments: object) -> Queue:
        given = {"x-" + word.replace("_", "-"): value for word, value in arguments.items()}
        return self.broker.registry.declare_queue(
            self.connection, name, True, False, False, given, False
        )  # fmt: skip

    def publish(self, name: str, *numbers: int) -> None:
        """Each as a run of its own, in one turn."""
        for n in numbers:
            raw = n.to_bytes(8, "big") * (SIZE // 8)
            payload = Payload(
                0, raw, array("I", (0, SIZE)), ROUTES[n % 7 == 0], None,
                self.broker.new_message_ids(1), self.now, True, SIZE,
            )  # fmt: skip
            self.broker.publishing.publish(
                self.session, self.vhost.route("", [name], None), payload
            )
            self.now += 3
        self.turn()

    def turn(self) -> None:
        broker, journal = self.broker, self.journal
        self.now += 1
        broker.turn(self.now)
        records = broker.take_records()
        broker.committed(journal.commit(records, self.now) if records else journal.end)
        journal.flush()
        broker.synced(journal.synced)
        broker.spill(0, journal.written)
        for position, size in broker.store.released:
            journal.release(position, size)
        broker.store.released.clear()

    def checkpoint(self) -> None:
        self.turn()
        assert self.journal.checkpoint(snapshot(self.broker, False), self.now)
        self.journal.finish_cleaning()
        self.journal.clean(self.now, 1 << 40)

    def clean(self) -> None:
        for _ in range(50):
            self.journal.clean(self.now, 1 << 40)
            self.journal.finish_cleaning()

    def crash(self, accept_loss: bool = False) -> Host:
        self.journal.close(clean=False)
        after = Host(self.disk, accept_loss)
        after.now = self.now
        return after

    def bodies(self, name: str) -> list[int]:
        """Read as a reader does, from what is packed as it is."""
        found = []
        queue = self.vhost.queues[name]
        place = queue.retention.kept_from
        while (piece := queue.lanes.lowest.peek(place)) is not None:
            raw = self.journal.fetch(piece.payload)
            for i in range(piece.lo, piece.hi):
                cell = raw[piece.payload.cuts[i] : piece.payload.cuts[i + 1]]
                assert cell == cell[:8] * (SIZE // 8)
                found.append(int.from_bytes(cell[:8], "big"))
                route = piece.payload.route
                assert (route.exchange == "x") == (found[-1] % 7 == 0)
            place = piece.first + len(piece)
        return found

    def about(self, name: str) -> list[tuple[int, int]]:
        """Message id and arrival of each."""
        found = []
        for piece in self.vhost.queues[name].slices():
            pack = piece.payload.pack
            for i in range(piece.lo, piece.hi):
                if pack is None:
                    found.append((piece.payload.first_id + i, piece.payload.arrived_ms))
                else:
                    found.append((pack.ids[i], pack.arrivals[i]))
        return found


def packs(host: Host, name: str = "s") -> int:
    return sum(p.payload.pack is not None for p in host.vhost.queues[name].lanes.lowest.fresh)


def filled(disk: Disk, count: int = 400) -> Host:
    host = Host(disk)
    host.queue("s", queue_type="stream")
    for n in range(0, count, 5):
        host.publish("s", *range(n, n + 5))
    assert packs(host) > 5
    return host


def test_a_checkpoint_keeps_a_stream_packed(disk: Disk) -> None:
    host = filled(disk)
    about = host.about("s")
    host.checkpoint()
    host.publish("s", 400, 401)
    after = host.crash()
    assert packs(after) > 5
    assert after.bodies("s") == list(range(402))
    assert after.about("s")[:400] == about
    after.broker.check()
    again = after.crash()
    assert again.bodies("s") == list(range(402))


def test_what_retention_takes_after_a_checkpoint_is_released_once(disk: Disk) -> None:
    host = filled(disk)
    host.checkpoint()
    limit = {"max-length-bytes": 250 * SIZE}
    host.broker.registry.set_policy("/", Policy("p", "^s$", limit, 0, "queues"))
    host.turn()
    assert host.bodies("s") == list(range(150, 400))
    after = host.crash()
    assert after.bodies("s") == list(range(150, 400))
    after.broker.registry.set_policy("/", Policy("p", "^s$", {"max-length-bytes": 0}, 0, "queues"))
    for _ in range(5):
        after.turn()
    assert after.bodies("s") == []
    after.checkpoint()
    after.clean()
    assert [s.live for s in after.journal._stock._segments.values()] == [
        0 for _ in after.journal._stock._segments
    ]
    after.broker.check()
    assert after.crash().vhost.queues["s"].retention.kept_from == 401


@pytest.mark.parametrize("twice", [False, True])
def test_packed_messages_that_the_cleaner_moves_are_found_where_they_are(
    disk: Disk, twice: bool
) -> None:
    """A queue's messages lie between those of the stream; when they are gone, segments are mostly
    dead, and what is left of them is written again."""
    host = Host(disk)
    host.queue("s", queue_type="stream")
    queue = host.queue("q")
    for n in range(60):
        host.publish("s", n)
        host.publish("q", *range(1000, 1020))
    assert packs(host) > 1
    host.checkpoint()
    host.broker.contents.purge(queue)
    host.turn()
    for _ in range(2 if twice else 1):
        host.publish("q", *range(2000, 2300))
        host.broker.contents.purge(queue)
        host.checkpoint()
        sparse = set(host.journal.sparse())
        assert sparse
        moved = list(packed_in(host.broker, sparse))
        assert moved
        host.journal.relocate([payload for _, _, payload in moved], host.now)
        for pack, i, payload in moved:
            pack.positions[i] = payload.position
        host.journal.flush()
        host.clean()
        assert host.bodies("s") == list(range(60))
    after = host.crash()
    assert after.bodies("s") == list(range(60))
    after.checkpoint()
    after.clean()
    assert after.crash().bodies("s") == list(range(60))


def test_packed_messages_whose_bytes_are_gone_are_counted_as_lost(disk: Disk) -> None:
    host = filled(disk)
    host.checkpoint()
    host.publish("s", 400)
    host.journal.close(clean=False)
    victim = disk.segments()[1]
    number = int(victim.name.split("-")[0])
    lost = {
        n for n, piece in enumerate(_singles(host)) if piece.payload.position >> 32 == number
    }  # fmt: skip
    assert 10 < len(lost) < 390
    disk.remove(victim.name)
    after = Host(disk, accept_loss=True)
    assert after.lost == len(lost)
    assert after.bodies("s") == [n for n in range(401) if n not in lost]
    after.broker.check()


def _singles(host: Host) -> list[Slice]:
    queue = host.vhost.queues["s"]
    queue.unpack()
    return queue.slices()
