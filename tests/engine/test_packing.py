"""A deep backlog of single messages costs little memory and behaves like any other."""

from __future__ import annotations

from itertools import pairwise

from tallymark.engine.outcomes import ACCEPTED
from tallymark.engine.packing import UNPACK, Packing
from tests.support.engine_rig import Rig

MANY = 5 * UNPACK


def deep(n: int) -> Rig:
    rig = Rig()
    rig.broker.backlogs.packing = Packing(after=10, group=2 * UNPACK, fresh=2)
    rig.queue("q")
    session = rig.session()
    for number in range(n):
        rig.publish(session, "q", [number])
        rig.turn()
    return rig


def test_most_of_a_backlog_is_packed() -> None:
    rig = deep(MANY)
    assert len(rig.vhost.queues["q"].lanes.lowest.fresh) < MANY / 2
    rig.broker.check()
    assert rig.ready("q") == list(range(MANY))


def test_each_extent_is_released_once_whether_taken_out_or_purged() -> None:
    rig = deep(MANY)
    queue, session = rig.vhost.queues["q"], rig.session()
    for _ in range(UNPACK // 2):
        rig.get(session, queue)
    assert any(p.payload.pack is not None and p.lo > 0 for p in queue.lanes.lowest.fresh)
    rig.broker.contents.purge(queue)
    rig.broker.settlement.settle_up_to(session, 0, ACCEPTED)
    for _ in range(3):
        rig.turn()
    covered = sorted(rig.released)
    assert all(a + n <= b for (a, n), (b, _) in pairwise(covered))
    assert sum(n for _, n in covered) == rig.log.stored_bytes
    rig.broker.check()


def test_a_packed_backlog_survives_a_checkpoint_and_a_restart() -> None:
    rig = deep(MANY)
    session = rig.session()
    for _ in range(UNPACK // 2):
        rig.get(session, rig.vhost.queues["q"])
    rig.broker.settlement.settle_up_to(session, 5, ACCEPTED)
    rig.checkpoint()
    after = rig.restart()
    after.broker.backlogs.packing = Packing(after=10, group=UNPACK, fresh=2)
    after.broker.pack_all(after.log.end)
    after.turn()
    after.broker.check()
    assert len(after.vhost.queues["q"].lanes.lowest.fresh) < MANY / 2
    assert after.ready("q") == list(range(5, MANY))


def test_a_reader_of_the_whole_queue_sees_single_messages() -> None:
    rig = deep(MANY)
    queue = rig.vhost.queues["q"]
    pinned = rig.broker.contents.pin(queue)
    assert all(piece.payload.pack is None for piece in pinned)
    rig.broker.contents.purge(queue)
    rig.turn()
    rig.turn()
    assert rig.released == []
    rig.broker.contents.unpin(pinned)
    rig.turn()
    rig.turn()
    assert len(rig.released) == MANY
