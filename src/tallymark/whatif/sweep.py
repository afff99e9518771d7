"""Sweep: many worlds of one recording, in processes of their own, or as tasks of Spark.

Each world's result is a file in a work folder, written when it is done: a sweep that was killed
goes on with the worlds that have none. A file's name says of which recording and change it is.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from hashlib import blake2b
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from tallymark import __version__
from tallymark.whatif import comparison
from tallymark.whatif.acting import check_acts, check_stretch, known_of
from tallymark.whatif.changes import AS_IT_WAS, Change, read_changes
from tallymark.whatif.figures import compare_fates, figures_of, shown
from tallymark.whatif.parts import Parts, Place
from tallymark.whatif.reading import read_recording
from tallymark.whatif.recording import FOREVER, Recording
from tallymark.whatif.sources import Source, frame_source, source_of
from tallymark.whatif.world import World

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDING: Final = "recording.pickle"
Result = dict[str, Any]
Part = tuple[int, int]
"""Number of a part of a world, and of how many."""
WHOLE: Final = (0, 1)
Task = tuple[str, Change, Part]
"""Path of the result, the world, and which part of it."""
Progress = Callable[[str], None]


def run_world(
    recording: Recording, change: Change, seed: int, since_ms: int = 0, part: Part = WHOLE
) -> Result:
    """Run one world, or a part of it, and return its figures, from a time on."""
    number, count = part
    queues: frozenset[Place] | None = None
    if count > 1:
        parts = Parts(recording, [change])
        queues = parts.put_together(count)[number]
        recording = parts.recording(queues, not number)
    outcome = World(recording, change, seed).run()
    # All definitions are told to all parts: each has all queues.
    told = {
        name: fates.since(since_ms)
        for name, fates in outcome.fates.items()
        if queues is None or name[:2] in queues
    }
    begin_ms = min(max(recording.begin_ms, since_ms), recording.end_ms)
    result: Result = {
        "name": change.name,
        "queues": figures_of(told, begin_ms, recording.end_ms),
        "drawn": sum(outcome.drawn.values()),
        "delivered": sum(outcome.delivered.values()),
        "drawn_by_queue": {f"{v} {q}": n for (v, q, _), n in sorted(outcome.drawn.items())},
        "published": outcome.published,
        "unroutable": outcome.unroutable,
        "timed_out": {q: n for (_, q, _), n in sorted(outcome.timed_out.items())},
    }
    if change == AS_IT_WAS:
        result["faithfulness"] = compare_fates(recording.fates, outcome.fates)
    return result


def merged(found: Sequence[Result], order: Sequence[str]) -> Result:
    """Return the result of a world from those of its parts. order: names of all queues."""
    first = found[0]
    places = {name: i for i, name in enumerate(order)}
    result = {**first}
    for key in ("drawn", "delivered", "published", "unroutable"):
        result[key] = sum(one[key] for one in found)
    for key in ("queues", "drawn_by_queue", "timed_out"):
        result[key] = dict(sorted(item for one in found for item in one[key].items()))
    if "faithfulness" in first:
        said = [one["faithfulness"] for one in found]
        queues = [queue for one in said for queue in one["queues"]]
        queues.sort(key=lambda queue: places[queue["queue"]])
        result["faithfulness"] = {
            **said[0], "queues": queues,
            **{key: sum(one[key] for one in said) for key in ("messages", "same", "near")},
            "is_exact": all(one["is_exact"] for one in said),
        }  # fmt: skip
    return result


class Sweep:
    """The worlds of one recording, and a folder for their results."""

    def __init__(
        self, source: Source, work: Path, seed: int = 1, since_ms: int = 0,
        until_ms: int = FOREVER, headers: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Read the recording, or take the one that is in the folder already. since_ms, until_ms:
        the stretch of time that is told of; what was before it is played, too. headers: those that
        changes ask for. Raises LedgerIncomplete, NoTable, NotEnough."""
        work.mkdir(parents=True, exist_ok=True)
        self._work = work
        self._seed = seed
        self._since_ms = since_ms
        self._path = work / RECORDING
        stamp = f"{source.stamp} {until_ms} {sorted(headers)}"
        if self._path.exists():
            with self._path.open("rb") as file:
                known, recording = pickle.load(file)
            if known == stamp:
                self.recording: Recording = recording
                self._stamp = stamp
                return
        self._stamp = stamp
        self.recording = read_recording(source, until_ms, headers)
        _write(self._path, pickle.dumps((stamp, self.recording), pickle.HIGHEST_PROTOCOL))

    def run(self, changes: Sequence[Change], workers: int, progress: Progress) -> list[Result]:
        """Return the results: of the world as it was, and of each change, compared with it."""
        wanted = self._checked(changes)
        left = [one for one in wanted if not self._file(one).exists()]
        progress(f"{len(wanted)} worlds, {len(wanted) - len(left)} of them done before")
        tasks = self._tasks(left, workers)
        if workers <= 1 or len(tasks) == 1:
            for number, change in enumerate(left, 1):
                self.one(change)
                progress(f"{number} of {len(left)}: {change.name}")
        elif tasks:
            context = get_context("spawn")
            with ProcessPoolExecutor(workers, context, _end_with_parent) as pool:
                given = {
                    pool.submit(_task, str(self._path), *task, self._seed, self._since_ms): task
                    for task in tasks
                }
                for number, task in enumerate(as_completed(given), 1):
                    task.result()
                    progress(f"{number} of {len(tasks)}: {_called(given[task])}")
            self._merge(left, workers)
        return self.results(wanted)

    def _tasks(self, left: Sequence[Change], workers: int) -> list[Task]:
        """Return what is to be run of these worlds: whole ones, or parts of them where there are
        more workers than worlds."""
        tasks: list[Task] = []
        for change in left:
            count = self._split(change, left, workers)
            for number in range(count):
                path = self._file(change, (number, count))
                if not path.exists():
                    tasks.append((str(path.absolute()), change, (number, count)))
        return tasks

    def _split(self, change: Change, left: Sequence[Change], workers: int) -> int:
        """Return into how many parts a world is divided."""
        wanted = -(-workers // len(left))
        if wanted == 1:
            return 1
        return min(wanted, len(Parts(self.recording, [change]).queues))

    def _merge(self, left: Sequence[Change], workers: int) -> None:
        """Make one result of the parts of each world."""
        order = [shown(name) for name in sorted(self.recording.fates)]
        for change in left:
            count = self._split(change, left, workers)
            if count > 1:
                paths = [self._file(change, (number, count)) for number in range(count)]
                found = [json.loads(path.read_bytes()) for path in paths]
                _write(self._file(change), json.dumps(merged(found, order)).encode())
                for path in paths:
                    path.unlink()

    def one(self, change: Change) -> None:
        """Run one world here, and write its result."""
        result = run_world(self.recording, change, self._seed, self._since_ms)
        _write(self._file(change), json.dumps(result).encode())

    def run_in_spark(self, spark: SparkSession, changes: Sequence[Change]) -> DataFrame:
        """Run the worlds as tasks of Spark, one each, or one for each part of a world where there
        are more processors than worlds, and return a DataFrame of one row for each world and
        queue. The work folder must be seen by all executors under its path."""
        wanted = self._checked(changes)
        path, seed, since_ms = str(self._path.absolute()), self._seed, self._since_ms
        left = [one for one in wanted if not self._file(one).exists()]
        # Spark Connect has no context, and does not say.
        has_context = hasattr(spark, "sparkContext")
        cores = spark.sparkContext.defaultParallelism if has_context else os.cpu_count() or 1
        tasks = self._tasks(left, cores)

        def run(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                for number in batch["id"]:
                    _task(path, *tasks[int(number)], seed, since_ms)
                yield batch

        if tasks:
            worlds = spark.range(0, len(tasks), 1, len(tasks))
            worlds.mapInPandas(run, "id bigint").count()
            self._merge(left, cores)
        return spark.createDataFrame(list(rows_of(self.results(wanted))), DDL)

    def _checked(self, changes: Sequence[Change]) -> list[Change]:
        """Return the world as it was and the changes. Raises ChangeRefused."""
        known = known_of(self.recording)
        check_stretch(self._since_ms, known)
        for one in changes:
            check_acts(one, known)
        return [AS_IT_WAS, *changes]

    def results(self, wanted: Sequence[Change]) -> list[Result]:
        """Return the results that are there, each compared with the first."""
        found: list[Result] = [json.loads(self._file(one).read_bytes()) for one in wanted]
        base, exactly = found[0]["queues"], found[0]["faithfulness"]
        for one in found:
            one["differences"] = comparison.differences(base, one["queues"])
            one["verdict"] = comparison.verdict(base, one["queues"], exactly)
        return found

    def _file(self, change: Change, part: Part = WHOLE) -> Path:
        said = f"{__version__} {self._stamp} {self._since_ms} {self._seed} {change!r}"
        if part[1] > 1:
            said += f" part {part}"
        return self._work / f"{blake2b(said.encode(), digest_size=12).hexdigest()}.json"


def what_if(
    ledger: DataFrame | Path,
    changes: Sequence[Path],
    work: Path | None = None,
    seed: int = 1,
    spark: SparkSession | None = None,
) -> DataFrame:
    """Play a ledger again with the changes of these files, a world a task, and return a row for
    each measure of each queue in each world, see DDL.

    ledger: a DataFrame of `read_traffic`, or of a table that `tallymark pipeline ledger --rows`
    has written; or the folder of such a table, or of a broker's data. work: a folder that all
    executors see under its path; what it has already of this ledger is not run again. Without it
    this machine's temporary folder is taken, which does where the tasks run here. spark: the
    session, where `ledger` is a folder; without it the active one.

    Raises LedgerIncomplete, NoTable, NotEnough, ChangeRefused.
    """
    from pyspark.sql import SparkSession as Session

    worlds = [world for path in changes for world in read_changes(path)]
    names = {name for one in worlds for name in one.headers()}
    if isinstance(ledger, Path):
        spark = spark or Session.getActiveSession()
        if spark is None:
            raise ValueError("spark is None and no session is active, expected a SparkSession")
        source = source_of(ledger)
    else:
        spark, source = ledger.sparkSession, frame_source(ledger)
    if work is not None:
        return Sweep(source, work, seed, headers=names).run_in_spark(spark, worlds)
    with TemporaryDirectory(prefix="tallymark-what-if-") as folder:
        return Sweep(source, Path(folder), seed, headers=names).run_in_spark(spark, worlds)


MEASURES: Final = ("deepest", "oldest_ms", "most_bytes", "redelivered", "refused")
"""Measures of a queue beside its account and its latencies."""
DDL: Final = (
    "world string, queue string, measure string, before double, after double, drawn_share double"
)


def rows_of(results: Sequence[Result]) -> Iterator[tuple[str, str, str, float, float, float]]:
    """Yield rows of DDL: each measure of each queue in each world beside what it was."""
    base = results[0]["queues"]
    for one in results:
        share = one["drawn"] / one["delivered"] if one["delivered"] else 0.0
        for queue, told in one["queues"].items():
            before, after = _flat(base.get(queue)), _flat(told)
            for measure in sorted({*before, *after}):
                yield (
                    one["name"], queue, measure, float(before.get(measure, 0)),
                    float(after.get(measure, 0)), share,
                )  # fmt: skip


def _flat(told: dict[str, Any] | None) -> dict[str, int]:
    if told is None:
        return {}
    flat = {**told["account"], **{f"latency {k} ms": v for k, v in told["latency_ms"].items()}}
    return {
        **flat,
        **{key: told[key] for key in MEASURES},
    }


def _task(
    recording: str, target: str, change: Change, part: Part, seed: int, since_ms: int
) -> None:
    """Run one world, or a part of it, in a process that knows nothing yet."""
    with open(recording, "rb") as file:
        _, told = pickle.load(file)
    _write(Path(target), json.dumps(run_world(told, change, seed, since_ms, part)).encode())


def _end_with_parent() -> None:
    """Have this process end when the one that started it does: a sweep that is killed would leave
    its workers, which wait for more to do."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def _called(task: Task) -> str:
    _, change, (number, count) = task
    return change.name if count == 1 else f"{change.name}, part {number + 1} of {count}"


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    part.replace(path)
