"""What a task of Spark costs beside its rows."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from pyspark import TaskContext
from tallymark.spark.reading import freeze_modules

freeze_modules()
assert gc.get_freeze_count() == 0, "a program of its own collects as it likes"
TaskContext._taskContext = TaskContext()  # as Spark's worker has it
freeze_modules()
frozen, looked_at = gc.get_freeze_count(), len(gc.get_objects())
assert looked_at < frozen / 20, f"{looked_at} objects are looked at, {frozen} are not"
later = [[] for _ in range(1000)]
freeze_modules()
assert gc.get_freeze_count() <= frozen, "what a task makes was frozen, too"
"""


def test_a_worker_of_spark_does_not_look_through_modules_behind_each_task() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
