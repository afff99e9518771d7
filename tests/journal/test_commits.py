"""Transactions in the journal: whole or not at all wherever it ends [TX-D1], and bodies
that are written before the transaction that names them is committed."""

from __future__ import annotations

from array import array
from pathlib import Path

from tallymark.engine.broker import Broker
from tallymark.engine.message import Payload
from tallymark.engine.outcomes import ACCEPTED, REJECTED
from tallymark.engine.restore import Restorer, live_payloads, snapshot
from tallymark.engine.session import Session
from tallymark.engine.staging import Transaction
from tallymark.journal.verify import verify
from tallymark.stored import records
from tallymark.stored.annotations import Route
from tests.journal.builders import TIME, Disk
from tests.support.long import longer, sized

QUEUES = tuple(f"q{n}" for n in range(5))
Contents = dict[str, list[int]]


class House:
    """A broker on a real journal, without the server's loop."""

    def __init__(self, disk: Disk, **settings: object) -> None:
        self.disk = disk
        self.time = TIME
        self.journal = disk.make(**settings)
        self.broker = Broker(self.journal.fetch)
        self.broker.clock.tell(self.time)
        Restorer(self.broker).run(self.journal.recovered())
        for p in live_payloads(self.broker):
            assert self.journal.retain(p.position, p.size), p.position
        self.journal.start()
        self.vhost = self.broker.registry.add_vhost("/")
        self.connection = self.broker.clients.open_connection("/", "guest", "house")

    def declare(self, name: str, arguments: dict[str, object] | None = None) -> None:
        self.broker.registry.declare_queue(
            self.connection, name, True, False, False, arguments or {}, False
        )

    def payload(self, key: str, number: int, size: int = 24) -> Payload:
        cuts = array("I", (0, size))
        raw = str(number).encode().ljust(size)
        return Payload(
            0, raw, cuts, Route("", key), None, self.broker.new_message_ids(1), self.time, True,
            size,
        )  # fmt: skip

    def publish(self, session: Session, key: str, number: int) -> None:
        targets = self.vhost.route("", [key], None)
        self.broker.publishing.publish(session, targets, self.payload(key, number))

    def stage(self, transaction: Transaction, key: str, number: int, size: int = 24) -> None:
        targets = self.vhost.route("", [key], None)
        self.broker.publishing.stage(
            transaction, transaction.session, targets, self.payload(key, number, size)
        )

    def take(self, session: Session, name: str) -> int:
        """A tag."""
        found = self.broker.consuming.get(session, self.vhost.queues[name], False)
        assert found is not None, name
        return found[1]

    def turn(self, budget: int = 1 << 40) -> None:
        """One block, if there is anything for it, on disk when this returns."""
        self.time += 1
        self.broker.turn(self.time)
        block = self.broker.take_records()
        end = self.journal.commit(block, self.time) if block else self.journal.end
        self.broker.committed(end)
        self.disk.wait()
        self.broker.synced(end)
        for position, size in self.broker.store.released:
            self.journal.release(position, size)
        self.broker.store.released.clear()
        self.broker.spill(budget, self.journal.written)

    def checkpoint(self) -> None:
        """Nothing may be left to commit."""
        assert not self.broker.ledger.rows
        assert self.journal.checkpoint(snapshot(self.broker, False), self.time)
        self.disk.finish_cleaning()
        self.disk.clean(self.time)

    def contents(self) -> Contents:
        """What is ready in each queue, in order."""
        found: Contents = {}
        for name, queue in self.vhost.queues.items():
            found[name] = []
            for piece in queue.slices():
                self.broker.store.load(piece.payload)
                raw, cuts = piece.payload.raw, piece.payload.cuts
                assert raw is not None
                found[name] += [int(raw[cuts[i] : cuts[i + 1]]) for i in range(piece.lo, piece.hi)]
        return found

    def after_a_restart(self) -> Contents:
        """What would be ready: what is handed out or staged comes back."""
        for session in list(self.connection.sessions):
            self.broker.clients.close_session(session, lost=True)
        return self.contents()


@longer
def test_tx_d1_whole_or_not_at_all_at_every_cut(disk: Disk, tmp_path: Path) -> None:
    """Ten transactions, each of which publishes to five queues, acknowledges from them and rejects
    one message to a sixth."""
    house = House(disk, segment_bytes=1 << 17)
    arguments: dict[str, object] = {
        "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"
    }  # fmt: skip
    for name in QUEUES:
        house.declare(name, arguments)
    house.declare("letters")
    session = house.broker.clients.open_session(house.connection)
    for number in range(20):
        for name in QUEUES:
            house.publish(session, name, number)
    house.turn()
    expected: list[Contents] = []
    contents = {name: list(range(20)) for name in QUEUES} | {"letters": []}
    expected.append({name: held[:] for name, held in contents.items()})
    transaction = house.broker.transactions.begin(session)
    ends = [house.journal.end]
    for number in range(100, 110):
        for i, name in enumerate(QUEUES):
            tags = [house.take(session, name) for _ in range(2)]
            house.turn()
            house.broker.transactions.settle(transaction, session, tags[0], tags[0], ACCEPTED)
            gone = [contents[name].pop(0)]
            if i == number % 5:
                house.broker.transactions.settle(transaction, session, tags[1], tags[1], REJECTED)
                gone.append(contents[name].pop(0))
                contents["letters"].append(gone[1])
            else:
                house.broker.settlement.settle(session, tags[1], tags[1], 3)  # given back at once
            house.turn()  # staged, and told so
            house.stage(transaction, name, number)
            contents[name].append(number)
        house.broker.transactions.commit(transaction)
        house.turn()
        house.broker.check()
        ends.append(house.journal.end)
        expected.append({name: held[:] for name, held in contents.items()})
        transaction = house.broker.transactions.begin(session)
    house.journal.close(clean=False)
    path = house.disk.segments()[0]
    data = path.read_bytes()
    offsets = [end & 0xFFFFFFFF for end in ends]
    near = {end + step for end in offsets for step in (-8, -1, 0, 1, 64)}
    cuts = sorted({*range(offsets[0], offsets[-1], sized(7001, 2803, 701)), *near})
    seen = set()
    for cut in cuts:
        if not offsets[0] <= cut <= offsets[-1]:
            continue
        whole = max(i for i, end in enumerate(offsets) if end <= cut)
        with disk.copied(tmp_path / "cut") as copy:
            copy.change(path.name, data[:cut])
            again = House(copy, segment_bytes=1 << 17)
            again.broker.check()
            assert again.contents() == expected[whole], (cut, whole)
            seen.add(whole)
            again.journal.close()
            if cut in offsets:
                assert verify(copy.folder).is_sound
    assert seen == set(range(len(expected)))


def test_bodies_written_ahead_are_found_by_a_later_commit(disk: Disk, tmp_path: Path) -> None:
    """Segments before and behind them are cleaned away, they are moved, a checkpoint names them:
    until the commit nothing else does."""
    house = House(disk, segment_bytes=8192)
    house.declare("q")
    house.declare("other")
    session = house.broker.clients.open_session(house.connection)
    transactions = house.broker.transactions
    committed, undone = transactions.begin(session), transactions.begin(session)
    for number in range(3):
        house.stage(committed, "q", number, 600)
        house.stage(undone, "q", 10 + number, 600)
        house.turn(budget=0)  # memory is short: they leave it
    house.turn(budget=0)
    staged = transactions.payloads()
    assert sum(p.count for p in staged) == 6
    assert all(p.raw is None for p in staged)
    old = {p.position >> 32 for p in staged}
    named = [r.first for r in snapshot(house.broker, False) if r.kind == records.PAYLOAD]
    assert {p.first_id for p in staged} <= set(named)
    for number in range(60):
        house.publish(session, "other", number)
        house.stage(undone, "q", 100 + number, 500)
        house.turn(budget=0)
    house.broker.contents.purge(house.vhost.queues["other"])
    house.turn()
    house.turn()
    transactions.rollback(undone)
    house.turn()
    house.turn()
    house.checkpoint()
    sparse = set(house.journal.sparse())
    moving = [p for p in live_payloads(house.broker) if p.position >> 32 in sparse]
    assert {id(p) for p in moving} <= {id(p) for p in staged}
    house.journal.relocate(moving, house.time)
    house.disk.wait()
    house.turn()
    house.publish(session, "other", 99)
    house.turn()
    house.checkpoint()
    stripped = {int(name[:10]) for name in house.disk.names(".ledger")}
    assert len(stripped) > 3
    assert not stripped.intersection(p.position >> 32 for p in transactions.payloads())
    assert moving
    assert old & stripped, "their first place is gone"
    with disk.copied(tmp_path / "crashed") as crashed:
        transactions.commit(committed)
        house.turn()
        house.broker.check()
        assert house.contents() == {"q": [0, 1, 2], "other": [99]}
        house.journal.close(clean=False)
        again = House(disk, segment_bytes=8192)
        assert again.contents() == {"q": [0, 1, 2], "other": [99]}
        again.journal.close()
        again = House(crashed, segment_bytes=8192)
        assert again.contents() == {"q": [], "other": [99]}
        again.journal.close()


def test_a_large_commit_is_one_small_block(disk: Disk) -> None:
    """Its bodies are in the journal already, but for the first MiB."""
    house = House(disk, segment_bytes=4 << 20)
    house.declare("q")
    session = house.broker.clients.open_session(house.connection)
    transaction = house.broker.transactions.begin(session)
    for number in range(160):
        house.stage(transaction, "q", number, 100_000)
        house.turn(budget=1 << 20)
        assert house.broker.store.resident_bytes < 3 << 20
    before = house.journal.end
    house.broker.transactions.commit(transaction)
    house.turn()
    end = house.journal.end
    size = end - before if end >> 32 == before >> 32 else end & 0xFFFFFFFF
    assert size < (1 << 20) + 200 * 64 + 100_000
    assert house.contents() == {"q": list(range(160))}
    house.journal.close(clean=False)
    again = House(disk, segment_bytes=4 << 20)
    assert again.contents() == {"q": list(range(160))}
    kinds = [r.kind for r in snapshot(again.broker, False)]
    assert kinds.count(records.LIVE) == 160
    again.journal.close()
