"""NSQ messages as AMQP 0-9-1 readers see them: a body, no properties."""

from __future__ import annotations

from tallymark.bridge.conversion.cells import NO_PROPERTIES, Frames
from tallymark.engine.message import Slice
from tallymark.wire.nsq.kernel import body_of


def as_amqp091(piece: Slice) -> Slice:
    """Convert a slice whose bytes are in memory to AMQP 0-9-1 frames, published to the topic's
    exchange with the topic's name as routing key, over a payload of its own, for one reader."""
    payload = piece.payload
    raw, cuts = payload.raw, payload.cuts
    assert raw is not None, payload.position
    frames = Frames(piece)
    for i in range(piece.lo, piece.hi):
        frames.add(i, NO_PROPERTIES, body_of(raw, cuts[i], cuts[i + 1]))
    return frames.slice()
