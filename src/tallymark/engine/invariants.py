"""Invariants of a queue, for tests and for a broker that is told to check itself."""

from __future__ import annotations

from tallymark.engine.queue import Queue


def check_queue(queue: Queue) -> None:
    """Assert that the account balances and says what is there [LC-5]. O(slices)."""
    account = queue.account
    account.check()
    pieces = queue.slices()
    assert account.ready == sum(len(p) for p in pieces), (queue.name, account.ready)
    assert account.ready_bytes == sum(p.size() for p in pieces), queue.name
    for priority, lane in enumerate(queue.lanes):
        last = 0
        for piece in lane.slices():
            place = piece.first + piece.shift
            assert piece.priority == priority, (queue.name, piece.priority, priority)
            assert place > last, (queue.name, place, last)
            last = place + len(piece) - 1
        assert last <= queue.entered + queue.shift, (queue.name, last)
    waiting = [entry.piece for entry in queue.deferrals]
    assert account.deferred == sum(len(p) for p in waiting), (queue.name, account.deferred)
    assert account.deferred_bytes == sum(p.size() for p in waiting), queue.name
    held = [letter.piece for letter in queue.letters]
    assert account.pending == sum(len(p) for p in held), (queue.name, account.pending)
    assert account.pending_bytes == sum(p.size() for p in held), queue.name
    if account.body_bytes >= 0:
        bodies = sum(p.body_bytes() for p in pieces) + sum(p.body_bytes() for p in held)
        assert account.body_bytes == bodies, (queue.name, account.body_bytes, bodies)
    aside = [entry.piece for entry in queue.quarantine]
    assert account.quarantined == sum(len(p) for p in aside), queue.name
