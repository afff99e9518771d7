"""python -m tallymark.simulation: play seeds, one seed with its history, or the crash matrix.

A run says which interesting states it has reached. A corpus is a file of seeds that reach each:
`--corpus FILE` plays it, `--renew FILE` writes it from the seeds that are played. `--choose FILE`
writes a list of those that cost least and reach each state several times; `--list FILE` plays one.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Final, TypeVar

from tallymark.simulation import matrix
from tallymark.simulation.choosing import chosen
from tallymark.simulation.drawing import draw
from tallymark.simulation.playing import play, run
from tallymark.simulation.run import Result
from tallymark.simulation.shrink import Less, shrunk
from tallymark.simulation.states import STATES

T = TypeVar("T")
SEEDS_A_PROCESS: Final = 200
"""Worlds after which a process is replaced: what an abandoned broker held stays in it."""
PROGRESS_S: Final = 30.0
"""Time between two lines of progress, seconds."""
LOOK_S: Final = 0.2
"""Time between two looks at whether Ctrl-C has come, seconds."""
LONG_S: Final = 120.0
"""Time after which a world that is under way is named with the progress, seconds: it may hang."""
INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as a shell has it."""
EACH: Final = 2
"""Seeds of a corpus for each state."""


def main() -> int:
    """Play what was asked for; returns 1 if a promise was broken, 130 after Ctrl-C."""
    asked = _parser().parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets have one order, so that a seed has one run
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-m", "tallymark.simulation", *sys.argv[1:]]
        os.execve(sys.executable, command, environment)
    if asked.seed is not None:
        names = tuple(asked.without.split(",")) if asked.without else ()
        return _one(asked.seed, Less(names, asked.seconds), asked.shrink, asked.pairs or None)
    if asked.matrix:
        points = [*matrix.points(asked.every)]
        if asked.twice:
            points = [(one[0], second) for one in points for second in range(1, asked.twice + 1)]
        return _many(matrix.crash, points, asked)
    plays = partial(play, pairs=True) if asked.pairs else play
    if asked.corpus:
        return _many(plays, sorted({*_listed([asked.corpus])}), asked)
    seeds = dict.fromkeys(range(asked.first, asked.first + asked.seeds))
    seeds |= dict.fromkeys(_listed(asked.list))
    fresh = [random.SystemRandom().randrange(1 << 32) for _ in range(asked.fresh)]
    if fresh:
        print("fresh seeds:", *fresh)
    return _many(plays, [*seeds, *fresh], asked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tallymark.simulation", description="docs/simulation.md is the guide."
    )
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds")
    parser.add_argument("--fresh", type=int, default=0, help="further seeds, drawn now")
    parser.add_argument("--list", type=Path, action="append", default=[],
                        help="and the seeds of this file, or corpus, one a line")  # fmt: skip
    parser.add_argument("--choose", type=Path, help="write a list of those that were played, "
                        "beside those of --list: cheap ones that reach every state")  # fmt: skip
    parser.add_argument("--time", type=float, help="seconds after which none is begun")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seed", type=int, help="this one alone, with its history")
    parser.add_argument(
        "--shrink", action="store_true", help="with --seed: look for less that fails"
    )
    parser.add_argument("--without", help="with --seed: parts of its plan that are left out")
    parser.add_argument("--seconds", type=float, help="with --seed: its length, simulated seconds")
    parser.add_argument("--corpus", type=Path, help="play the seeds of this file, which reach "
                        "every state: if they do not, the exit code is 1")  # fmt: skip
    parser.add_argument("--renew", type=Path, help="write a corpus of what is played")
    parser.add_argument("--pairs", action="store_true", help="two brokers in each world")
    parser.add_argument("--matrix", action="store_true", help="crash in each call to the disk")
    parser.add_argument("--every", type=int, default=1, help="with --matrix: each so-many-th call")
    parser.add_argument("--twice", type=int, default=0, help="with --matrix: and again in the "
                        "recovery, in each of so many calls")  # fmt: skip
    return parser


def _one(seed: int, less: Less, shrink: bool, pairs: bool | None) -> int:
    """Play a seed and print its history; with `shrink` the least of it that fails as it does."""
    whole = draw(seed, pairs)
    result = run(less.of(whole))
    if result.failure and shrink:
        kind = result.failure.split(":")[0]
        less = shrunk(whole, lambda one: run(one).failure.split(":")[0] == kind, less)
        result = run(less.of(whole))
    for name, value in vars(result.plan).items():
        print(f"{name}: {value}")
    print("\n".join(result.log))
    print(_line(seed, result))
    how = " --pairs" if pairs else ""
    print(f"to see it again: python -m tallymark.simulation --seed {seed}{how}{less.arguments()}")
    return 1 if result.failure else 0


def _listed(files: Iterable[Path]) -> list[int]:
    """Return the seeds of lists and corpora, with which their lines begin."""
    return [int(line.split()[0]) for file in files for line in file.read_text().splitlines()]


def _written(corpus: Path, reached: dict[str, list[object]]) -> None:
    """Write a corpus: some seeds for each state."""
    rows = [f"{seed} {state}" for state in STATES for seed in reached.get(state, ())]
    corpus.write_text("\n".join(rows) + "\n")


def _many(work: Callable[[T], Result], seeds: Iterable[T], asked: argparse.Namespace) -> int:
    """Play all on all cores, and print what fails; progress goes to stderr. Ctrl-C ends it with
    the sum so far.
    A second Ctrl-C changes nothing."""
    ctrl_c = _CtrlC()
    began = told = time.perf_counter()
    seen: Counter[str] = Counter()
    reached: defaultdict[str, list[object]] = defaultdict(list)
    played: dict[object, tuple[int, set[str]]] = {}
    done = failed = 0
    simulated_s = 0.0
    # Processes of their own, and new ones after a while.
    context = multiprocessing.get_context("spawn")
    left = iter(seeds)
    pool = ProcessPoolExecutor(asked.jobs, mp_context=context, max_tasks_per_child=SEEDS_A_PROCESS)
    running: dict[Future[Result], tuple[T, float]] = {}
    try:
        while not ctrl_c.has_come:
            while len(running) < 2 * asked.jobs and (seed := next(left, None)) is not None:
                if asked.time is not None and time.perf_counter() - began > asked.time:
                    break
                with ctrl_c.kept_from_what_begins():
                    running[pool.submit(work, seed)] = seed, time.perf_counter()
            if not running:
                break
            over, _ = wait(running, LOOK_S, FIRST_COMPLETED)
            for future in over:
                (seed, _), result = running.pop(future), future.result()
                done += 1
                simulated_s += result.simulated_s
                seen.update(result.seen)
                played[seed] = result.steps, result.seen
                for state in result.seen:
                    if len(reached[state]) < EACH:
                        reached[state].append(seed)
                if result.failure:
                    failed += 1
                    print(_line(seed, result), flush=True)
            is_first = done == len(over) > 0
            if is_first or time.perf_counter() - told > PROGRESS_S:
                told = time.perf_counter()
                line = _count(done, failed, told - began, simulated_s)
                print(line + _long(running.values(), told), file=sys.stderr, flush=True)
        is_interrupted = ctrl_c.has_come
        if is_interrupted:
            print("interrupted: worlds under way are finished first", file=sys.stderr, flush=True)
    finally:
        pool.shutdown(cancel_futures=True)
    print(_count(done, failed, time.perf_counter() - began, simulated_s))
    print("reached:", ", ".join(f"{name} {seen[name]}" for name in STATES if seen[name]))
    if is_interrupted:
        return INTERRUPTED
    missing = [name for name in STATES if not seen[name]]
    if missing:
        print("never reached:", ", ".join(missing))
    if asked.renew:
        _written(asked.renew, reached)
    if asked.choose:
        seeds_of = {seed: what for seed, what in played.items() if isinstance(seed, int)}
        found = chosen(seeds_of, {*_listed(asked.list)})
        asked.choose.write_text("".join(f"{seed}\n" for seed in found))
    return 1 if failed or (asked.corpus and missing) else 0


class _CtrlC:
    """SIGINT in a program that has workers. It is noted, and raises nothing: whoever waits for a
    worker may hold a lock that the end of the workers needs."""

    def __init__(self) -> None:
        self.has_come = False
        resource_tracker.ensure_running()  # its start would unblock the signal at some later time
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._comes)

    def _comes(self, number: int, frame: object) -> None:
        self.has_come = True

    @contextlib.contextmanager
    def kept_from_what_begins(self) -> Iterator[None]:
        """Block the signal in the threads and processes that begin here, and in what these begin:
        they inherit that, and have it from their first instruction on."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _count(done: int, failed: int, seconds: float, simulated_s: float) -> str:
    pace = f"{done * 3600 / seconds:.0f} an hour, {simulated_s / seconds:.1f} simulated seconds"
    return f"{done} worlds, {failed} failed, {seconds:.0f} s: {pace} a second"


def _long(running: Iterable[tuple[object, float]], now_s: float) -> str:
    """Return the seeds that have been under way for long, for the line of progress. running: each
    seed with the time it began."""
    return "".join(
        f"; {seed} under way for {now_s - began_s:.0f} s"
        for seed, began_s in running
        if now_s - began_s > LONG_S
    )


def _line(seed: object, result: Result) -> str:
    return (f"{seed}: {result.failure or 'passed'} ({result.simulated_s:.1f} s, "
            f"{result.published} published, {result.delivered} delivered, {result.lives} lives, "
            f"{result.steps} steps)")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
