"""Players: how consumers answer what they are given when traffic is played again.

A consumer that is given what it was given answers as it did. One that is given something else, or a
message that nobody was given at that attempt, is played by what was learned: the answer that the
message got from whoever had it, and the time that this consumer took, drawn by a seed from all it
is known to have done with messages of that queue and attempt.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from random import Random
from typing import Final

from tallymark.whatif.fates import QueueName
from tallymark.whatif.recording import (
    ACCEPTS,
    DELIVERIES,
    FOREVER,
    HELD,
    HOLDS,
    LATE,
    Answers,
    Recording,
)

ANYBODY: Final = -1
SAME_MS: Final = 100
"""A consumer that is given a message within this time of when it was given it answers at the
moment at which it did."""


@dataclass(slots=True)
class Player:
    """One consumer of a world."""

    owner: int
    """Its id in the recording; a copy has that of its original."""
    is_serial: bool
    pace: float = 1.0
    """Factor on the times that it takes."""
    is_copy: bool = False
    free_ms: float = 0.0
    """Time at which it will have answered all it was given, if it works on one after another.
    Parts of a millisecond count: a hundred messages may take one."""


@dataclass(slots=True)
class Reply:
    """Answer of a player, to come, for messages that it was given together."""

    count: int
    ended_ms: int
    order: int
    answer: int
    delay_ms: int
    is_drawn: bool
    keeps: bool = False
    """True if the player holds them for longer than it may, and is not stopped for it: another
    one did."""


class Learned:
    """Knowledge of all consumers of a recording."""

    def __init__(self, recording: Recording, seed: int) -> None:
        self._answers = recording.answers
        self._seed = seed
        self._randoms: dict[QueueName, Random] = {}
        """Draws of each queue, which do not depend on what others drew."""
        self._lines: dict[tuple[QueueName, int, int], list[int]] = defaultdict(list)
        """Lines of the answers of one owner, by queue, attempt and owner."""
        for (queue, attempt), answers in recording.answers.items():
            for line, owner in enumerate(answers.owner):
                if not _is_held(answers.answer[line]):
                    self._lines[queue, attempt, owner].append(line)
                    self._lines[queue, attempt, ANYBODY].append(line)

    def replies(
        self, player: Player, queue: QueueName, attempt: int, first_id: int, count: int, now: int,
    ) -> list[Reply]:  # fmt: skip
        """Return what the player does with messages that it is given now, in their order."""
        answers = self._answers.get((queue, attempt))
        if answers is None:
            return [self._draw(player, queue, attempt, count, now, -1)]
        found: list[Reply] = []
        for line, n in answers.find(first_id, count):
            is_own = line >= 0 and answers.owner[line] == player.owner and not player.is_copy
            is_same = line >= 0 and abs(now - answers.given_ms[line]) <= SAME_MS
            if is_own and is_same and _is_held(answers.answer[line]):
                found.append(Reply(n, FOREVER, 0, HOLDS, 0, False))
                continue
            if line >= 0 and is_same and not is_own and player.pace == 1.0 and not player.is_copy:
                found.append(_as_another_did(answers, line, n))
            elif is_own and not _is_held(answers.answer[line]):
                found.append(_as_it_was(player, answers, line, n, now))
            else:
                known = -1 if line < 0 or _is_held(answers.answer[line]) else line
                found += [self._draw(player, queue, attempt, 1, now, known) for _ in range(n)]
        return found

    def _draw(
        self, player: Player, queue: QueueName, attempt: int, count: int, now: int, line: int
    ) -> Reply:
        """line: the answer that these messages got from somebody else; -1: none is known."""
        answers, drawn = self._similar(player, queue, attempt)
        if answers is None:
            start = max(now, player.free_ms) if player.is_serial else now
            player.free_ms = start
            return Reply(count, round(start), 1 << 62, ACCEPTS, 0, True)
        work = answers.work_ms[drawn] / answers.count[drawn]
        if not player.is_serial:
            work = answers.ended_ms[drawn] - answers.given_ms[drawn]
        start = max(now, player.free_ms) if player.is_serial else now
        player.free_ms = start + work * count * player.pace
        end = round(player.free_ms)
        said = self._answers[queue, attempt] if line >= 0 else answers
        of = line if line >= 0 else drawn
        return Reply(count, end, 1 << 62, said.answer[of], said.delay_ms[of], True)

    def _similar(
        self, player: Player, queue: QueueName, attempt: int
    ) -> tuple[Answers | None, int]:
        """Return an answer that this consumer gave, in this queue at this attempt if it ever gave
        one, else the nearest that there is."""
        random = self._randoms.get(queue)
        if random is None:
            random = self._randoms[queue] = Random(f"{self._seed} {queue}")
        delivery = attempt % DELIVERIES
        nearest = (attempt, delivery, attempt - delivery, 0)
        for tried in nearest:
            lines = self._lines.get((queue, tried, player.owner))
            if lines:
                return self._answers[queue, tried], random.choice(lines)
        for tried in nearest:
            lines = self._lines.get((queue, tried, ANYBODY))
            if lines:
                return self._answers[queue, tried], random.choice(lines)
        return None, 0


def _is_held(answer: int) -> bool:
    return answer == HOLDS or bool(answer & HELD)


def _as_another_did(answers: Answers, line: int, count: int) -> Reply:
    """Return what another consumer did with messages that it had at this time: which of several
    was served first is not determined, and each message is answered as it was."""
    return Reply(
        count, answers.ended_ms[line], answers.order[line],
        answers.answer[line] & ~HELD & ~LATE, answers.delay_ms[line], False,
        bool(answers.answer[line] & LATE),
    )  # fmt: skip


def _as_it_was(player: Player, answers: Answers, line: int, count: int, now: int) -> Reply:
    """Return what the player did with the messages when it had them."""
    ended, given = answers.ended_ms[line], answers.given_ms[line]
    start = max(now, player.free_ms) if player.is_serial else now
    is_same = abs(now - given) <= SAME_MS and start <= ended and player.pace == 1.0
    at, behind = answers.order[line], False
    if is_same:
        free = float(ended)
    else:
        work = answers.work_ms[line] * count / answers.count[line]
        free = start + (work if player.is_serial else ended - given) * player.pace
        at, behind = 1 << 62, True
    end = round(free)
    player.free_ms = max(free, player.free_ms)
    return Reply(count, end, at, answers.answer[line], answers.delay_ms[line], behind and end < now)
