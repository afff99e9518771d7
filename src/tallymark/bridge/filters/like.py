"""Patterns of LIKE: `%` stands for any text, `_` for any one character [filtex §6, SQL-92 §8.5].

A pattern is cut at its `%`; what is between them has to be found one after the other, each as far
to the left as it can be, the first at the start and the last at the end. Nothing is ever taken
back, so a pattern of many `%` costs no more than one of few. A part with `_` in it is looked for by
its longest run of ordinary characters; how often that may be in vain is limited.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.filters.errors import FilterError, shown

LOOKS: Final = 2_000
"""How many places of one text are tried for the parts that have a `_`. A text that would need more
has no answer: unknown."""


@final
class Part:
    """What stands between two `%`: runs of ordinary characters, `_` before, between and behind."""

    __slots__ = ("anchor", "anchor_at", "runs", "size", "text")

    def __init__(self, characters: list[str]) -> None:
        """characters: "" stands for any one."""
        self.size = len(characters)
        self.runs: list[tuple[int, str]] = []
        """Where each run begins in the part, and the run."""
        at = 0
        while at < len(characters):
            end = at
            while end < len(characters) and characters[end]:
                end += 1
            if end > at:
                self.runs.append((at, "".join(characters[at:end])))
            at = end + 1
        self.text = self.runs[0][1] if self.runs and len(self.runs[0][1]) == self.size else ""
        """All of it, where no `_` is in it."""
        self.anchor = ""
        """The longest run; "" where there is none."""
        self.anchor_at = 0
        for start, run in self.runs:
            if len(run) > len(self.anchor):
                self.anchor = run
                self.anchor_at = start

    def stands_at(self, subject: str, at: int) -> bool:
        """Whether it is there; the subject reaches that far."""
        for start, run in self.runs:  # noqa: SIM110  (compiled, a generator costs more than the look)
            if not subject.startswith(run, at + start):
                return False
        return True


@final
class Pattern:
    """One pattern, taken apart."""

    __slots__ = ("least", "parts")

    def __init__(self, text: str, escape: str) -> None:
        """escape: the character behind which `%`, `_` and itself are ordinary; "": none.

        Raises: FilterError.
        """
        self.parts = [Part(characters) for characters in _between_percents(text, escape)]
        self.least = sum(part.size for part in self.parts)
        """Characters that a text needs at least."""

    def matches(self, subject: str) -> bool | None:
        """None: it would take too long to say."""
        parts = self.parts
        last = len(parts) - 1
        size = len(subject)
        if size < self.least:
            return False
        if last == 0:
            return size == self.least and parts[0].stands_at(subject, 0)
        end = size - parts[last].size
        if not (parts[0].stands_at(subject, 0) and parts[last].stands_at(subject, end)):
            return False
        at = parts[0].size
        looks = LOOKS
        for i in range(1, last):
            part = parts[i]
            if part.text or not part.anchor:
                found = subject.find(part.text, at, end) if part.text else at
                if found < 0:
                    return False
                at = found + part.size
                continue
            while True:
                found = subject.find(part.anchor, at + part.anchor_at, end)
                looks -= len(part.runs)
                if found < 0:
                    return False
                if looks < 0:
                    return None
                at = found - part.anchor_at
                if at + part.size <= end and part.stands_at(subject, at):
                    break
                at += 1
            at += part.size
        return at <= end


def _between_percents(text: str, escape: str) -> list[list[str]]:
    """The characters of each part, "" for `_`."""
    parts: list[list[str]] = [[]]
    at = 0
    while at < len(text):
        character = text[at]
        if character == escape:
            at += 1
            if at == len(text):
                raise FilterError(
                    f"the pattern {shown(text)} ends in its escape character {escape!r}, "
                    "expected the character that is meant behind it"
                )
            parts[-1].append(text[at])
        elif character == "%":
            parts.append([])
        else:
            parts[-1].append("" if character == "_" else character)
        at += 1
    return parts
