"""python -m tallymark.simulation: play seeds, one seed with its history, or the crash matrix."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import Final, TypeVar

from tallymark.simulation import matrix
from tallymark.simulation.plan import draw
from tallymark.simulation.run import STATES, Result, play, run, shrunk

T = TypeVar("T")
SEEDS_A_PROCESS: Final = 25
"""Worlds after which a process is replaced: what an abandoned broker held stays in it."""


def main() -> int:
    """Play what was asked for; returns 1 if a promise was broken."""
    asked = _parser().parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets have one order, so that a seed has one run
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-m", "tallymark.simulation", *sys.argv[1:]]
        os.execve(sys.executable, command, environment)
    if asked.seed is not None:
        return _one(asked.seed, asked.shrink)
    if asked.matrix:
        points = [*matrix.points(asked.every)]
        if asked.twice:
            points = [(one[0], second) for one in points for second in range(1, asked.twice + 1)]
        return _many(matrix.crash, points, asked)
    seeds: list[int] = [*range(asked.first, asked.first + asked.seeds)]
    if asked.fresh:
        seeds += [random.SystemRandom().randrange(1 << 32) for _ in range(asked.fresh)]
        print("fresh seeds:", *seeds[asked.seeds :])
    return _many(play, seeds, asked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tallymark.simulation", description="docs/simulation.md is the guide."
    )
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds")
    parser.add_argument("--fresh", type=int, default=0, help="further seeds, drawn now")
    parser.add_argument("--time", type=float, help="seconds after which none is begun")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seed", type=int, help="this one alone, with its history")
    parser.add_argument(
        "--shrink", action="store_true", help="with --seed: look for less that fails"
    )
    parser.add_argument("--matrix", action="store_true", help="crash in each call to the disk")
    parser.add_argument("--every", type=int, default=1, help="with --matrix: each so-many-th call")
    parser.add_argument("--twice", type=int, default=0, help="with --matrix: and again in the "
                        "recovery, in each of so many calls")  # fmt: skip
    return parser


def _one(seed: int, shrink: bool) -> int:
    plan = draw(seed)
    result = run(plan)
    if result.failure and shrink:
        kind = result.failure.split(":")[0]
        plan = shrunk(plan, lambda one: run(one).failure.split(":")[0] == kind)
        result = run(plan)
    print(plan)
    print("\n".join(result.log))
    print(_line(seed, result))
    return 1 if result.failure else 0


def _many(work: Callable[[T], Result], seeds: Iterable[T], asked: argparse.Namespace) -> int:
    """Play all on all cores, and print what fails."""
    began = time.perf_counter()
    seen: Counter[str] = Counter()
    done = failed = 0
    simulated_s = 0.0
    # Processes of their own, and new ones after a while.
    context = multiprocessing.get_context("spawn")
    left = iter(seeds)
    with ProcessPoolExecutor(
        asked.jobs, mp_context=context, max_tasks_per_child=SEEDS_A_PROCESS
    ) as pool:
        running: dict[Future[Result], T] = {}
        while True:
            while len(running) < 2 * asked.jobs and (seed := next(left, None)) is not None:
                if asked.time is not None and time.perf_counter() - began > asked.time:
                    break
                running[pool.submit(work, seed)] = seed
            if not running:
                break
            over = next(as_completed(running))
            seed, result = running.pop(over), over.result()
            done += 1
            simulated_s += result.simulated_s
            seen.update(result.seen)
            if result.failure:
                failed += 1
                print(_line(seed, result), flush=True)
    seconds = time.perf_counter() - began
    print(f"{done} worlds, {failed} failed, {seconds:.0f} s: {done * 3600 / seconds:.0f} an hour, "
          f"{simulated_s / seconds:.1f} simulated seconds a second")  # fmt: skip
    print("reached:", ", ".join(f"{name} {seen[name]}" for name in STATES if seen[name]))
    missing = [name for name in STATES if not seen[name]]
    if missing:
        print("never reached:", ", ".join(missing))
    return 1 if failed else 0


def _line(seed: object, result: Result) -> str:
    return (f"{seed}: {result.failure or 'passed'} ({result.simulated_s:.1f} s, "
            f"{result.published} published, {result.delivered} delivered, {result.lives} lives, "
            f"{result.steps} steps)")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
