"""Archives: ranges of a stream that were copied elsewhere and may then be deleted from the stream.

An archiver reports a range when its copy is safe. `record` checks the claim against the content of
the stream and stores it durably. `release` deletes messages below the end of the archive, and never
more than what was archived.

A stream has one archive, with an id of its own, which grows at its end. Between two ranges no
message may be missing that the stream still retains. All numbers here are sequences.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.engine import records, streams
from tallymark.engine.arguments import named
from tallymark.engine.claims import Archived
from tallymark.engine.errors import Fenced, PreconditionFailed
from tallymark.engine.queue import Queue
from tallymark.engine.state import State

IN_A_TURN: Final = 1000
"""Number of slices deleted in one turn."""
MOST: Final = 1 << 31
"""Maximum number of sequences in one range."""


@final
class Archives:
    """Operations on the archives of streams."""

    __slots__ = ("_ledger", "_state")

    def __init__(self, state: State) -> None:
        self._state = state
        self._ledger = state.ledger

    def record(self, queue: Queue, made: Archived) -> bool:
        """Record a range as archived. False: it was recorded before. Messages deleted by retention
        are not counted again.

        Raises:
            Fenced: the stream's archive has another id.
            PreconditionFailed: it is no stream; the range leaves out messages that are kept, or
            was archived before with another content, or ends behind what readers may see; or it
            does not have as many messages as the stream.
        """
        streams.check_stream(queue, 0)
        what = named("stream", queue.name, queue.vhost)
        known = queue.retention.archive
        if known is not None and known.archive != made.archive:
            raise Fenced(
                f"the archive of {what} is '{known.archive}' at {known.place}, not '{made.archive}'"
            )
        if known is not None and known.same(made):
            return False
        low = 1 if known is None else known.high
        if not low <= made.low <= max(low, queue.retention.kept_from):
            raise PreconditionFailed(
                f"archived offsets from {made.low - 1} on of {what}, expected {low - 1}"
                + (
                    f" to {queue.retention.kept_from - 1}"
                    if queue.retention.kept_from > low
                    else ""
                )
            )
        if not made.low < made.high <= queue.end() or made.high - made.low >= MOST:
            raise PreconditionFailed(
                f"archived offsets {made.low - 1} to {made.high - 2} of {what}, expected a range "
                f"that ends before {queue.end() - 1}"
            )
        begin = max(made.low, queue.retention.kept_from)
        found = 0
        if begin < made.high:
            pieces = streams.between(queue, begin, made.high)
            found = sum([len(piece) for piece in pieces])
        if found > made.rows or (made.low >= queue.retention.kept_from and found != made.rows):
            raise PreconditionFailed(
                f"archived {made.rows} messages of offsets {made.low - 1} to {made.high - 2} of "
                f"{what}, expected {found}"
            )
        queue.retention.archive = made
        self._ledger.emit(made.to_record(queue.id))
        return True

    def release(self, queue: Queue, high: int) -> bool:
        """Delete the archived messages below `high`, a part of them in each turn. False: call again
        in the next turn.

        Raises:
            PreconditionFailed: it is no stream, or not all of that was archived.
        """
        streams.check_stream(queue, 0)
        known = queue.retention.archive
        archived = 1 if known is None else known.high
        if high > archived:
            raise PreconditionFailed(
                f"release of offsets below {high - 1} of "
                f"{named('stream', queue.name, queue.vhost)}, archived are those below "
                f"{archived - 1}"
            )
        fresh = queue.lanes[0].fresh
        room = IN_A_TURN
        while fresh and fresh[0].first < high:
            if room == 0:
                return False
            room -= 1
            piece = queue.let_go(min(len(fresh[0]), high - fresh[0].first))
            for pin in queue.retention.pins:
                pin.keep(piece, self._state.store)
            self._state.drop(queue, piece, records.DROPPED_ARCHIVED)
        queue.retention.kept_from = max(queue.retention.kept_from, high)
        return True
