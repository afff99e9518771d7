"""Clients with postponed input take turns, and a round of the loop is for others, too."""

from __future__ import annotations

import asyncio

import pytest

from tallymark.server.postponed import Postponed


class Flooder:
    """Has input for so many shares."""

    def __init__(self, name: str, shares: int, line: Postponed, worked: list[str]) -> None:
        self.is_in_line = False
        self.name = name
        self.shares = shares
        self.line = line
        self.worked = worked

    def work_on(self) -> None:
        self.shares -= 1
        self.worked.append(self.name)
        if self.shares:
            self.line.add(self)


async def play(rounds: dict[str, int], round_ns: int) -> list[str]:
    """Names in the order of their shares; "." is a round of the loop, in which sockets are read."""
    loop = asyncio.get_running_loop()
    seen: list[str] = []
    line = Postponed(loop, round_ns)
    flooders = [Flooder(name, shares, line, seen) for name, shares in rounds.items()]

    def other() -> None:
        seen.append(".")
        if any(one.shares for one in flooders):
            loop.call_soon(other)
        else:
            done.set_result(None)

    done = loop.create_future()
    for one in flooders:
        line.add(one)
        line.add(one)  # who stands in line stands there once
    loop.call_soon(other)
    await done
    return seen


def test_a_round_is_for_one_share_and_then_for_all_others() -> None:
    found = "".join(asyncio.run(play({"a": 3, "b": 1, "c": 2}, round_ns=0)))
    assert found == "a.b.c.a.c.a."


@pytest.mark.parametrize("rounds", [{"a": 500}, {"a": 200, "b": 7, "c": 300}])
def test_a_round_with_time_is_for_as_many_shares_as_fit(rounds: dict[str, int]) -> None:
    found = asyncio.run(play(rounds, round_ns=1 << 62))
    assert found.count(".") == 1
    assert {name: found.count(name) for name in rounds} == rounds
    assert found[: len(rounds)] == list(rounds)
