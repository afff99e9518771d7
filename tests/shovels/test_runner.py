"""The runner: what it does when it is told to stop at an awkward moment, and when an end has a
bug."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tallymark.client import Message
from tallymark.shovels.ends import Batch, PartlyPut, ShovelFailed, Source, Target
from tallymark.shovels.parcel import Parcel
from tallymark.shovels.runner import Runner
from tallymark.shovels.shovel import Pace, Phase
from tests.support.patience import PATIENCE_S


class Away(Source):
    """A source that cannot be opened, and tells of each attempt to close it."""

    def __init__(self, attempts: list[str], error: Exception) -> None:
        self.attempts = attempts
        self.error = error
        self.runner: Runner | None = None

    is_numbered = True

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

    async def settle_some(self, batch: Batch, put: Sequence[int]) -> None:
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


class Full(Source):
    """A source that has two messages, again and again."""

    def __init__(self) -> None:
        self.said: list[str] = []

    async def open(self) -> None:
        self.said.append("open")

    async def begin(self, known: int | None) -> None:
        return

    async def take(self, most: int) -> Batch | None:
        self.said.append("take")
        return Batch([Parcel(Message(b"x"), False), Parcel(Message(b"y"), False)], held=[1, 2])

    async def settle(self, batch: Batch) -> None:
        self.said.append("settle")

    async def settle_some(self, batch: Batch, put: Sequence[int]) -> None:
        self.said.append(f"settle {list(put)}")

    async def close(self) -> None:
        self.said.append("close")


class Blocked(Target):
    """A target that takes nothing, as one whose disk is full, and has a shovel stopped when it is
    asked to."""

    def __init__(self) -> None:
        self.runner: Runner | None = None

    async def open(self, origin: str) -> int | None:
        return None

    async def put(self, batch: Batch) -> None:
        assert self.runner is not None
        self.runner.stop()
        await asyncio.Event().wait()

    async def close(self) -> None:
        return


def test_what_cannot_be_moved_in_time_goes_back_to_the_source() -> None:
    source, target, said = Full(), Blocked(), list[str]()

    async def main() -> Runner:
        made = Runner(
            Pace(ahead=1), lambda: (source, target), lambda s: said.append(s.problem), last_s=0.01
        )
        target.runner = made
        await asyncio.wait_for(made.run(), PATIENCE_S)
        return made

    runner = asyncio.run(main())
    assert (runner.shovel.phase, runner.shovel.moved) == (Phase.ENDED, 0)
    assert source.said[:3] == ["open", "take", "close"]
    assert "settle" not in source.said
    assert said == ["what was taken could not be moved in 0.01 s"]


class Choosy(Blocked):
    """A target that takes the first message of a batch and refuses the others."""

    async def put(self, batch: Batch) -> None:
        raise PartlyPut("target: 1 of 2 messages", [0], False)


def test_what_a_target_took_of_a_batch_is_settled_and_counted() -> None:
    source, target, said = Full(), Choosy(), list[str]()

    async def main() -> Runner:
        pace = Pace(ahead=1, persists=False)
        made = Runner(pace, lambda: (source, target), lambda s: said.append(s.problem))
        await asyncio.wait_for(made.run(), PATIENCE_S)
        return made

    runner = asyncio.run(main())
    assert source.said[:4] == ["open", "take", "settle [0]", "close"]
    assert (runner.shovel.moved, said) == (1, ["target: 1 of 2 messages"])


class Mending(Target):
    """A target that fails three times, then takes all, and counts how often it was made."""

    def __init__(self, made: list[str], put: list[list[tuple[bytes, bool]]]) -> None:
        made.append("target")
        self.made = made
        self.batches = put

    async def open(self, origin: str) -> int | None:
        if len(self.made) == 4:  # the first was never opened
            raise ShovelFailed("target: away")
        return None

    async def put(self, batch: Batch) -> None:
        if len(self.made) == 2:
            raise PartlyPut("target: full", [0], True)
        if len(self.made) == 3:
            raise ShovelFailed("target: gone")
        self.batches.append([(parcel.message.body, parcel.redelivered) for parcel in batch.parcels])

    async def close(self) -> None:
        return


def test_a_source_keeps_what_was_taken_while_its_target_is_opened_anew() -> None:
    """What comes back to a broker is counted there, and ends once it came back too often."""
    source, made, said = Full(), list[str](), list[str]()
    put: list[list[tuple[bytes, bool]]] = []
    pace = Pace(batch=2, most=2, follows=False)

    async def main() -> Runner:
        runner = Runner(
            pace, lambda: (source, Mending(made, put)), lambda s: said.append(s.problem)
        )
        await asyncio.wait_for(runner.run(), PATIENCE_S)
        return runner

    runner = asyncio.run(main())
    assert source.said[:5] == ["open", "take", "settle [0]", "settle", "close"]
    assert said == ["target: full", "target: gone", "target: away"]
    assert put == [[(b"y", True)]]  # the second time it may have been taken
    assert (runner.shovel.moved, runner.shovel.problem) == (2, "")
