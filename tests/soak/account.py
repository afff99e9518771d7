"""The account of a soak: messages that were confirmed, in files, against messages that arrived.

Each publisher writes the number of a message to its file when the broker has confirmed it, each
consumer the number of what it got, with the redelivered flag. At the end the files alone decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from tests.support.crash_history import SEQUENCE, Arrival

REJECTED_EVERY = 20
SHOWN = 5


class Notes:
    """A file of numbers, one a line, `r` behind it for redelivered. Lines are written as they come
    and read again at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w")
        self.count = 0

    def add(self, number: int, redelivered: bool = False) -> None:
        self._file.write(f"{number} r\n" if redelivered else f"{number}\n")
        self.count += 1

    def read(self) -> list[Arrival]:
        """Every line so far."""
        self._file.flush()
        found = []
        for line in self.path.read_text().splitlines():
            number, _, flag = line.partition(" ")
            found.append(Arrival(int(number), flag == "r"))
        return found

    def numbers(self) -> list[int]:
        return [arrival.number for arrival in self.read()]

    def close(self) -> None:
        self._file.close()


def dies(number: int) -> bool:
    """Whether consumers reject the message, so that it ends in the dead-letter queue."""
    return (number & SEQUENCE) % REJECTED_EVERY == 0


def breaches(
    name: str,
    confirmed: Collection[int],
    got: Collection[Arrival],
    was_sent: Callable[[int], bool],
    *,
    is_once: bool = False,
) -> list[str]:
    """What the files of one queue say against its broker, each in a line.

    is_once: nothing may arrive twice, as in a table; otherwise what arrives again is flagged.
    """
    there = {arrival.number for arrival in got}
    found = [
        _said(name, "were confirmed and never arrived", set(confirmed) - there),
        _said(name, "arrived and were never sent", {one for one in there if not was_sent(one)}),
    ]
    if is_once:
        counts = Counter(arrival.number for arrival in got)
        found.append(_said(name, "are there twice", [one for one, n in counts.items() if n > 1]))
    else:
        found.append(_said(name, "arrived again without the flag", _unflagged(got)))
    return [line for line in found if line]


def _unflagged(got: Iterable[Arrival]) -> set[int]:
    seen: set[int] = set()
    found: set[int] = set()
    for number, redelivered in got:
        if number in seen and not redelivered:
            found.add(number)
        seen.add(number)
    return found


def _said(name: str, what: str, numbers: Iterable[int]) -> str:
    named = sorted(numbers)
    if not named:
        return ""
    shown = ", ".join(f"{number:x}" for number in named[:SHOWN])
    return f"{name}: {len(named)} messages {what}: {shown}"
