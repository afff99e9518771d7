"""NSQ messages for queues: they have bodies and no properties."""

from __future__ import annotations

from array import array
from typing import final

from tallymark.engine.message import Format, Payload
from tallymark.wire.nsq.kernel import body_sizes


@final
class NsqFormat(Format):
    """The Format of NSQ messages."""

    __slots__ = ()

    def bodies(self, payload: Payload) -> array[int]:
        raw = payload.raw
        assert raw is not None, payload.position
        totals = array("Q", (0,))
        total = 0
        for size in body_sizes(raw, payload.cuts, 0, payload.count):
            total += size
            totals.append(total)
        return totals
