"""Deduplication: a message that its publisher repeats enters once. A queue remembers message ids
within a window; a stream remembers the numbers of publishers that number what they append."""

from __future__ import annotations

from typing import final


@final
class Deduplication:
    """The ids and numbers of one queue."""

    __slots__ = ("ids", "numbers")

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        """Message ids given by publishers within the window, oldest first, with the time at which
        each was accepted."""
        self.numbers: dict[str, int] = {}
        """Highest publishing number of each named publisher of a stream, ordered by the time of the
        last publish."""

    def restore_id(self, id: str, time_ms: int) -> None:
        """Note an id that was accepted, perhaps anew: it goes to the end of the order."""
        self.ids.pop(id, None)
        self.ids[id] = time_ms

    def restore_number(self, publisher: str, number: int) -> None:
        """Note a publisher's number. The publisher goes to the end of the order."""
        self.numbers.pop(publisher, None)
        self.numbers[publisher] = number

    def forget_until(self, time_ms: int) -> None:
        """Forget ids that were accepted at that time or before."""
        ids = self.ids
        while ids:
            first = next(iter(ids))
            if ids[first] > time_ms:
                return
            del ids[first]

    def ids_by_time(self) -> list[tuple[int, list[str]]]:
        """Return the ids, grouped by the time at which they were accepted."""
        found: dict[int, list[str]] = {}
        for id, time_ms in self.ids.items():
            found.setdefault(time_ms, []).append(id)
        return list(found.items())
