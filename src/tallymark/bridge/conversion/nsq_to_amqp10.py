"""NSQ messages as AMQP 1.0 readers see them: a data section, no properties."""

from __future__ import annotations

from array import array

from tallymark.bridge.conversion.cells import Cells, data_head
from tallymark.engine.message import Slice
from tallymark.wire.amqp10.front import Front
from tallymark.wire.nsq.kernel import body_of


def cells(piece: Slice) -> Cells:
    """Convert a slice whose bytes are in memory."""
    payload = piece.payload
    raw, cuts = payload.raw, payload.cuts
    assert raw is not None, payload.position
    out: list[bytes] = []
    ends = [0]
    total = 0
    for i in range(piece.lo, piece.hi):
        body = body_of(raw, cuts[i], cuts[i + 1])
        head = data_head(len(body))
        out += (head, body)
        total += len(head) + len(body)
        ends.append(total)
    return Cells(b"".join(out), array("I", ends), [(0, len(piece), Front(-1, -1, []))])
