"""Backlogs: the queues that are deep enough to be packed. Packing itself is in packing.py."""

from __future__ import annotations

from typing import final

from tallymark.engine.packing import Packing
from tallymark.engine.queue import Queue
from tallymark.engine.state import State
from tallymark.engine.units import Position


@final
class Backlogs:
    """Collects deep queues as they are published to, and packs them after the turn."""

    __slots__ = ("_deep", "_store", "packing")

    def __init__(self, state: State) -> None:
        self._store = state.store
        self._deep: list[Queue] = []
        self.packing = Packing()
        """Thresholds and operation of packing."""

    def note(self, queue: Queue) -> None:
        """Note a queue for packing. Called when its new slices exceed `packing.look_after`."""
        if queue.deep or (queue.seekers and not queue.settings.is_stream):
            return
        if _depth(queue) > self.packing.after:
            queue.deep = True
            self._deep.append(queue)
        else:
            queue.loose = 0

    def look_at(self, queue: Queue) -> None:
        """Consider all slices of the queue, as if all were new."""
        queue.loose = _depth(queue)
        if queue.loose > self.packing.look_after:
            self.note(queue)

    def pack(self, written: Position) -> None:
        """Pack the noted queues, as far as their bytes are below journal position `written`."""
        if not self._deep:
            return
        for queue in self._deep:
            queue.deep = False
            for lane in queue.lanes:
                for payload in self.packing.pack_newest(lane.fresh, queue.loose, written):
                    self._store.forget(payload)
            queue.loose = self.packing.fresh
        self._deep.clear()


def _depth(queue: Queue) -> int:
    """Return the count of slices that were never delivered, in all lanes."""
    return sum([len(lane.fresh) for lane in queue.lanes])
