"""The runner: what it does when it is told to stop at an awkward moment, and when an end has a
bug."""

from __future__ import annotations

import asyncio

from tallymark.shovels.ends import Batch, ShovelFailed, Source, Target
from tallymark.shovels.runner import Runner
from tallymark.shovels.shovel import Pace, Phase


class Away(Source):
    """A source that cannot be opened, and tells of each attempt to close it."""

    def __init__(self, attempts: list[str], error: Exception) -> None:
        self.attempts = attempts
        self.error = error
        self.runner: Runner | None = None

    async def open(self) -> None:
        self.attempts.append("open")
        if len(self.attempts) > 2:
            raise asyncio.CancelledError("it goes on although it was told to stop")
        raise self.error

    async def begin(self, known: int | None) -> None:
        raise AssertionError("it is never open")

    async def take(self, most: int) -> Batch | None:
        raise AssertionError("it is never open")

    async def settle(self, batch: Batch) -> None:
        raise AssertionError("it is never open")

    async def close(self) -> None:
        if self.runner is not None:
            self.runner.stop()
            await asyncio.sleep(0)


class Nowhere(Target):
    async def open(self, origin: str) -> int | None:
        raise AssertionError("the source is opened first")

    async def put(self, batch: Batch) -> None:
        raise AssertionError("it is never open")

    async def close(self) -> None:
        return


def run(error: Exception) -> tuple[Runner, list[str], list[str]]:
    """Run a shovel whose source fails so, and which is stopped while its ends are closed."""
    attempts: list[str] = []
    said: list[str] = []

    async def main() -> Runner:
        source = Away(attempts, error)
        runner = Runner(Pace(), lambda: (source, Nowhere()), lambda s: said.append(s.problem))
        source.runner = runner
        await runner.run()
        return runner

    return asyncio.run(main()), attempts, said


def test_one_that_is_stopped_while_it_closes_ends() -> None:
    runner, attempts, said = run(ShovelFailed("source: away"))
    assert (runner.shovel.phase, attempts, said) == (Phase.ENDED, ["open"], ["source: away"])


def test_a_bug_of_an_end_is_a_failure_that_says_so() -> None:
    runner, _, said = run(KeyError("x"))
    assert runner.shovel.phase is Phase.ENDED
    assert said == ["unexpected: KeyError('x')"]
