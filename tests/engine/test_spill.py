"""What leaves memory when it is more than it may be."""

from __future__ import annotations

from tallymark.stored import records
from tests.support.engine_rig import Rig


def test_no_more_transient_messages_are_written_than_have_to_go() -> None:
    """All of them at once would be a block that a small disk may not take."""
    rig = Rig()
    broker = rig.broker
    broker.registry.declare_queue(rig.connection, "q", False, False, False, {}, False)
    for number in range(1, 11):
        rig.send("q", number)
    rig.settle_down()
    whole = broker.store.resident_bytes
    one = whole // 10
    broker.spill(whole - 3 * one, 1 << 60)
    asked = [one for one in broker.ledger.rows if one.kind == records.PAYLOAD]
    assert len(asked) == 3
    broker.spill(whole - 3 * one, 1 << 60)  # they are on their way: nothing more is asked for
    assert len([one for one in broker.ledger.rows if one.kind == records.PAYLOAD]) == 3
    rig.settle_down(whole - 3 * one)
    assert broker.store.resident_bytes == whole - 3 * one
    rig.settle_down(0)
    rig.settle_down(0)
    assert broker.store.resident_bytes == 0
    broker.check()
