"""Playing of worlds: `run` plays a plan, `play` that of a seed, and says what went wrong."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import random
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
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            logs.configure("error", {}, "text")
            try:
                # Each life of the broker collects and freezes: it looks at its own objects only.
                gc.freeze()
                return (Run if plan.pair is None else PairRun)(plan, folder).play()
            finally:
                _collect()
    finally:
        random._urandom = drawn  # type: ignore[attr-defined]
        sys.unraisablehook = hook
        shutil.rmtree(folder, ignore_errors=True)
        gc.enable()


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
