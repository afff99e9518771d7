"""Playing of worlds: `run` plays a plan, `play` that of a seed, and says what went wrong."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import random
import re
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Final

from tallymark.server import logs
from tallymark.simulation.drawing import draw
from tallymark.simulation.pair_run import PairRun
from tallymark.simulation.plan import Plan
from tallymark.simulation.run import Result, Run

COLLECT_EVERY: Final = 10
"""Worlds after which a process looks for garbage in all that it has."""
SHARED_MEMORY: Final = Path("/dev/shm")
MISTAKES: Final = frozenset({
    "connection.broken", "effect.unsaid", "housekeeping.failed", "request.failed",
    "server.unexpected", "shovel.broken",
})  # fmt: skip
"""Events of the log after which the broker goes on, though it has a mistake. No fault of a world
leads to one."""
_LOGGED: Final = re.compile(r"\S+ \[error *\] (\S+) *(.*)")


def run(plan: Plan) -> Result:
    """Play a plan."""
    parent = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="tallymark-world-", dir=parent))
    chance = random.Random(f"system {plan.seed}")
    drawn = random._urandom  # type: ignore[attr-defined]
    random._urandom = chance.randbytes  # type: ignore[attr-defined]
    random.seed(plan.seed)
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None  # of coroutines that never end
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    try:
        said = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            logs.configure("error", {}, "text")
            try:
                # Each life of the broker collects and freezes: it looks at its own objects only.
                gc.freeze()
                world = (Run if plan.pair is None else PairRun)(plan, folder)
                result = world.play()
                # Later, coroutines of dead processes are closed, and may log: no world saw that.
                result.failure = result.failure or mistake_in(said.getvalue())
                del world
            finally:
                _collect()
        return result
    finally:
        random._urandom = drawn  # type: ignore[attr-defined]
        sys.unraisablehook = hook
        shutil.rmtree(folder, ignore_errors=True)
        gc.enable()


def mistake_in(said: str) -> str:
    """Return the first mistake that brokers have logged, as a failure; empty: there is none."""
    for line in said.splitlines():
        found = _LOGGED.fullmatch(line)
        if found is not None and found[1] in MISTAKES:
            return f"log: {found[1]} {found[2]}"
    return ""


_since_collected = itertools.count(1)
"""Worlds of this process."""


def _collect() -> None:
    """Collect the garbage of worlds: now and then, since that looks at the whole program."""
    if next(_since_collected) % COLLECT_EVERY == 0:
        gc.unfreeze()
        gc.collect()


def play(seed: int, pairs: bool | None = None) -> Result:
    """Play the plan of a seed, and leave its history out of the result. pairs: as `draw`."""
    result = run(draw(seed, pairs))
    result.log = []
    return result
