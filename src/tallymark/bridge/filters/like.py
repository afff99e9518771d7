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
"""Maximum number of positions in one text at which parts with `_` are tried. A text that needs more
has the result unknown."""


@final
class Part:
    """A part of a pattern between two `%`: runs of ordinary characters, with `_` before, between
    and behind."""

    __slots__ = ("anchor", "anchor_at", "runs", "size", "text")

    def __init__(self, characters: list[str]) -> None:
        """characters: "" stands for any character."""
        self.size = len(characters)
        self.runs: list[tuple[int, str]] = []
        """Runs of ordinary characters, each with its offset in the part."""
        at = 0
        while at < len(characters):
            end = at
            while end < len(characters) and characters[end]:
                end += 1
            if end > at:
                self.runs.append((at, "".join(characters[at:end])))
            at = end + 1
        self.text = self.runs[0][1] if self.runs and len(self.runs[0][1]) == self.size else ""
        """Whole text of a part without `_`; otherwise empty."""
        self.anchor = ""
        """Longest run; "" if there is none."""
        self.anchor_at = 0
        for start, run in self.runs:
            if len(run) > len(self.anchor):
                self.anchor = run
                self.anchor_at = start

    def stands_at(self, subject: str, at: int) -> bool:
        """Return whether the part matches at `at`. The subject is long enough."""
        for start, run in self.runs:  # noqa: SIM110  (compiled, a generator costs more than the look)
            if not subject.startswith(run, at + start):
                return False
        return True


@final
class Pattern:
    """One parsed pattern."""

    __slots__ = ("least", "parts")

    def __init__(self, text: str, escape: str) -> None:
        """escape: the character that makes a following `%`, `_` or itself ordinary; "": none.

        Raises: FilterError.
        """
        self.parts = [Part(characters) for characters in _between_percents(text, escape)]
        self.least = sum(part.size for part in self.parts)
        """Minimum number of characters of a matching text."""

    def matches(self, subject: str) -> bool | None:
        """Return whether the text matches; None: finding out would take too long."""
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
    """Return the characters of each part, "" for `_`."""
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
