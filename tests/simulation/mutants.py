"""Deliberate bugs, each of which the worlds must find.

    python -m tests.simulation.mutants                      # all: seeds that it took
    python -m tests.simulation.mutants "confirm before sync" --seeds 500 --write --jobs 2

--write puts what it took into the table of docs/simulation.md. A seed counts as one that found a
bug only if its world holds without the bug.

A mutant changes the broker's modules in this process; they run from src, interpreted.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tallymark.bridge.amqp091 import lifecycle as amqp091
from tallymark.bridge.amqp10 import lifecycle as amqp10
from tallymark.engine import restore
from tallymark.engine.account import Account
from tallymark.engine.admission import Admission
from tallymark.engine.broker import Broker
from tallymark.engine.clock import Clock
from tallymark.engine.commit import Commit
from tallymark.engine.deadletters import DeadLetters
from tallymark.engine.delivery import Dispatcher
from tallymark.engine.entrance import Entrance
from tallymark.engine.ledger import Ledger
from tallymark.engine.queue import Queue
from tallymark.engine.queue_parts import Deferrals, Pin
from tallymark.engine.restore import Restorer
from tallymark.engine.session import Consumer
from tallymark.engine.settlement import Settlement
from tallymark.engine.sinks import Sinks
from tallymark.engine.state import Agenda
from tallymark.engine.subscription import Subscription
from tallymark.engine.topology import Targets
from tallymark.engine.transactions import Transactions
from tallymark.engine.upkeep import Upkeep
from tallymark.journal.cleaner import Cleaner
from tallymark.journal.files import Files
from tallymark.journal.journal import Journal
from tallymark.journal.reading import Reader
from tallymark.journal.recovery import Recovery
from tallymark.journal.writer import Writer
from tallymark.simulation.plan import CLOCK, RIGHTS, Plan, draw
from tallymark.simulation.run import run
from tallymark.stored import records
from tallymark.units import UNLIMITED

Patch = Callable[[], None]
MUTANTS: Final[dict[str, Patch]] = {}
NEEDS: Final[dict[str, Callable[[Plan], object]]] = {}
"""Tests of a plan, for bugs that most worlds have no use for."""
FIRST: Final = 1_000_000
"""First of the seeds that are played."""
PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "simulation.md"
HEAD: Final = "| bug | seeds | seen as |\n|---|---|---|"
SHOWN: Final = 90
"""Characters of what was seen."""


def mutant(name: str, needs: Callable[[Plan], object] | None = None) -> Callable[[Patch], Patch]:
    """Name a deliberate bug. needs: returns whether a plan has what the bug is about."""

    def add(patch: Patch) -> Patch:
        MUTANTS[name] = patch
        if needs is not None:
            NEEDS[name] = needs
        return patch

    return add


def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put something in the place of a method, made of it."""
    setattr(owner, name, make(getattr(owner, name)))


def without_records(kind: int) -> None:
    """Have the ledger lack the records of a kind."""

    def make(emit: Any) -> Any:
        def lacking(self: Any, row: Any) -> None:
            if row.kind != kind:
                emit(self, row)

        return lacking

    replaced(Ledger, "emit", make)


def not_restored(kind: int) -> None:
    """Have a restart pass over the records of a kind."""

    def make(apply: Any) -> Any:
        def passing(self: Any, record: Any) -> None:
            if record.kind != kind:
                apply(self, record)

        return passing

    replaced(Restorer, "apply", make)


def files_lack(name: str, call: Callable[[Any], Any]) -> None:
    """Have the journal's files call something else."""

    def make(init: Any) -> Any:
        def begin(self: Any, folder: Any, files: Files, *rest: Any, **more: Any) -> None:
            setattr(files, name, call(getattr(files, name)))
            init(self, folder, files, *rest, **more)

        return begin

    replaced(Writer, "__init__", make)


# -- parts of a plan that a bug acts on


def _has_workers(plan: Plan) -> bool:
    has_operator = any(RIGHTS in one.kinds for one in plan.operators)
    return has_operator and any(one.is_worker for one in (*plan.publishers, *plan.consumers))


def _has_subscriptions(plan: Plan) -> bool:
    return bool(plan.subscriptions)


def _has_rivals(plan: Plan) -> bool:
    return any(one.rival for one in plan.subscriptions)


def _has_verdicts(plan: Plan) -> bool:
    return any(one.reject or one.release or one.fail for one in plan.subscriptions)


def _has_nsq(plan: Plan) -> bool:
    return any(one.protocol == "nsq" for one in plan.publishers)


def _has_deferrals(plan: Plan) -> bool:
    return any(one.protocol == "nsq" and one.fail for one in plan.consumers)


def _has_plans_of_streams(plan: Plan) -> bool:
    return any(one.max_bytes is not None for one in plan.streams)


def _has_ttl(plan: Plan) -> bool:
    return any(one.ttl_ms is not None for one in plan.queues)


def _has_clock_steps(plan: Plan) -> bool:
    return any(one.kind == CLOCK for one in plan.faults)


# -- the disk


@mutant("confirm before sync")
def _() -> None:
    Journal.synced = property(lambda self: self.end)  # type: ignore[assignment,method-assign]


@mutant("confirm when written")
def _() -> None:
    Journal.synced = property(lambda self: self.written)  # type: ignore[assignment,method-assign]


@mutant("no data sync")
def _() -> None:
    files_lack("fdatasync", lambda call: lambda fd: None)


@mutant("failed sync forgotten")
def _() -> None:
    def forgetting(call: Any) -> Any:
        def sync(fd: int) -> None:
            with suppress(OSError):
                call(fd)

        return sync

    files_lack("fdatasync", forgetting)


@mutant("no file sync before a rename")
def _() -> None:
    files_lack("fsync", lambda call: lambda fd: None)


@mutant("no folder sync")
def _() -> None:
    Files.sync_folder = lambda self, folder: None  # type: ignore[method-assign]


@mutant("checkpoint before its position is on disk")
def _() -> None:
    Writer.sync = lambda self: True  # type: ignore[method-assign]


@mutant("short write not continued")
def _() -> None:
    def once(self: Files, fd: int, buffers: list[bytes], offset: int) -> int:
        self.pwritev(fd, buffers[:1024], offset)
        return sum(map(len, buffers))

    Files.write_all = once  # type: ignore[method-assign]


@mutant("bytes released twice")
def _() -> None:
    def make(release: Any) -> Any:
        def twice(self: Any, position: int, size: int) -> None:
            release(self, position, size)
            release(self, position, size)

        return twice

    replaced(Journal, "release", make)


@mutant("body of the wrong bytes")
def _() -> None:
    def make(fetch: Any) -> Any:
        def shifted(self: Any, payload: Any) -> bytes:
            found = fetch(self, payload)
            return bytes(found[-1:] + found[:-1])

        return shifted

    replaced(Reader, "fetch", make)


@mutant("recovery ends a record early")
def _() -> None:
    def make(read: Any) -> Any:
        def early(self: Any) -> Any:
            last = None
            for record in read(self):
                if last is not None:
                    yield last
                last = record

        return early

    replaced(Recovery, "records", make)


@mutant("checkpoint of the state before")
def _() -> None:
    kept: dict[int, list[Any]] = {}
    original = Cleaner.checkpoint

    def older(self: Cleaner, end: int, found: list[Any], now: Any, version: int) -> bool:
        before = kept.get(id(self), found)
        kept[id(self)] = found
        return original(self, end, before, now, version)

    Cleaner.checkpoint = older  # type: ignore[method-assign]


# -- records


@mutant("settlement not recorded")
def _() -> None:
    without_records(records.SETTLED)


@mutant("mark not recorded")
def _() -> None:
    without_records(records.MARK)


@mutant("return not recorded")
def _() -> None:
    without_records(records.RETURNED)


@mutant("dead letter not recorded")
def _() -> None:
    without_records(records.DEAD_LETTERED)


@mutant("mark not restored")
def _() -> None:
    not_restored(records.MARK)


@mutant("settlement not restored")
def _() -> None:
    not_restored(records.SETTLED)


# -- the engine


@mutant("rollback commits")
def _() -> None:
    def commits(self: Any, transaction: Any, lost: bool = False) -> None:
        self.commit(transaction)

    Transactions.rollback = commits  # type: ignore[method-assign]


@mutant("commit forgets its second run")
def _() -> None:
    def make(publish: Any) -> Any:
        def first(self: Any, run: Any, now: int) -> None:
            if run is self._transaction.runs[0]:
                publish(self, run, now)

        return first

    replaced(Commit, "_publish", make)


@mutant("acknowledgement in a transaction forgotten")
def _() -> None:
    Commit._settle = lambda self, settlement: False  # type: ignore[method-assign]


@mutant("lost connection returns nothing")
def _() -> None:
    def make(return_all: Any) -> Any:
        def nothing(self: Any, session: Any, reason: int, *rest: Any) -> None:
            if reason != records.RETURNED_BY_LOSS:
                return_all(self, session, reason, *rest)

        return nothing

    replaced(Settlement, "return_all", make)


@mutant("acknowledged twice counts twice")
def _() -> None:
    def make(add: Any) -> Any:
        def more(self: Any, bucket: int, count: int, size: int) -> None:
            add(self, bucket, count, size)
            if count == 3:
                self.settled += 1

        return more

    replaced(Account, "_add", make)


@mutant("dead letter dropped")
def _() -> None:
    def lost(self: Any, queue: Any, address: Any, letter: Any) -> list[Any]:
        self._complete(queue, letter)
        return []

    DeadLetters._deliver = lost  # type: ignore[method-assign]


@mutant("credit never comes back")
def _() -> None:
    Settlement.free_credit = lambda self, session, consumer, n: None  # type: ignore[method-assign]


@mutant("time to live ignored", _has_ttl)
def _() -> None:
    Upkeep._overdue = lambda self, queue, head, upto, now: 0  # type: ignore[method-assign]


@mutant("delivery limit ignored")
def _() -> None:
    Settlement._bury_worn = lambda self, queue, pieces, failed: pieces  # type: ignore[method-assign]


@mutant("marks not waited for")
def _() -> None:
    Dispatcher._within_mark = lambda self, queue, head, n, wanted: n  # type: ignore[method-assign]


@mutant("clock that stands still", _has_clock_steps)
def _() -> None:
    def make(read: Any) -> Any:
        def still(self: Any, wall_ms: int, monotonic_ms: int) -> Any:
            if self.jumps:
                return self.now_ms
            return read(self, wall_ms, monotonic_ms)

        return still

    replaced(Clock, "read", make)


@mutant("returned without a flag")
def _() -> None:
    def make(give_back: Any) -> Any:
        def unflagged(self: Any, queue: Any, pieces: list[Any], *rest: Any, **more: Any) -> None:
            give_back(self, queue, pieces, *rest, **more)
            for piece in pieces:
                piece.acquired = 0

        return unflagged

    replaced(Settlement, "give_back", make)


@mutant("dead letter entered twice")
def _() -> None:
    def make(enter: Any) -> Any:
        def twice(self: Any, *letter: Any) -> bool:
            enter(self, *letter)
            return bool(enter(self, *letter))

        return twice

    replaced(DeadLetters, "_enter", make)


@mutant("published before the commit")
def _() -> None:
    def at_once(
        self: Any, transaction: Any, session: Any, targets: Any, payload: Any, *rest: Any
    ) -> None:
        transaction.check_open()
        self.broker_of_mutant.publishing.publish(session, targets, payload)

    def make(init: Any) -> Any:
        def begin(self: Any, *parts: Any, **more: Any) -> None:
            init(self, *parts, **more)
            self.transactions.__class__.broker_of_mutant = self

        return begin

    replaced(Broker, "__init__", make)
    Transactions.publish = at_once  # type: ignore[method-assign]


@mutant("checkpoint lacks what is in flight")
def _() -> None:
    restore._in_flight = lambda broker: []


@mutant("fan-out forgets the last queue")
def _() -> None:
    def make(publish: Any) -> Any:
        def fewer(self: Any, targets: Any, payload: Any, *rest: Any) -> Any:
            if len(targets.queues) > 1:
                targets = Targets(targets.queues[:-1])
            return publish(self, targets, payload, *rest)

        return fewer

    replaced(Admission, "publish", make)


@mutant("newest message first")
def _() -> None:
    def make(enter: Any) -> Any:
        def reversed_parts(
            self: Any, queue: Any, payload: Any, lo: int, hi: int, *rest: Any
        ) -> Any:
            if hi - lo < 2:
                return enter(self, queue, payload, lo, hi, *rest)
            for one in range(hi - 1, lo - 1, -1):
                found = enter(self, queue, payload, one, one + 1, *rest)
            return found

        return reversed_parts

    replaced(Entrance, "enter", make)


@mutant("returned to the tail")
def _() -> None:
    def make(give_back: Any) -> Any:
        def behind(self: Any, pieces: list[Any], failed: bool, to_tail: bool = True) -> None:
            give_back(self, pieces, failed, True)

        return behind

    replaced(Queue, "give_back", make)


@mutant("one more than the prefetch")
def _() -> None:
    def make(init: Any) -> Any:
        def more(self: Any, *parts: Any, **named: Any) -> None:
            init(self, *parts, **named)
            if not self.by_link and 0 < self.limit < UNLIMITED:
                self.limit += 1

        return more

    replaced(Consumer, "__init__", make)


@mutant("revoked right that lasts", _has_workers)
def _() -> None:
    for lifecycle in (amqp091.Lifecycle, amqp10.Lifecycle):
        lifecycle.rights_changed = lambda self, permissions: None  # type: ignore[method-assign]


def without_fence(handler: str) -> None:
    """Have an operation over HTTP let readers pass whose place was taken."""

    def make(check: Any) -> Any:
        def lax(self: Any, fence: int) -> None:
            callers = {sys._getframe(depth).f_code.co_name for depth in (1, 2)}
            if handler not in callers:
                check(self, fence)

        return lax

    replaced(Subscription, "check_fence", make)


@mutant("verdict without fence", _has_rivals)
def _() -> None:
    without_fence("_judge")


@mutant("stale settle accepted", _has_rivals)
def _() -> None:
    without_fence("_settle")


@mutant("verdicts of the holder before", _has_rivals)
def _() -> None:
    Subscription.begin = lambda self, start: []  # type: ignore[method-assign]


@mutant("retention that eats what is unread", _has_plans_of_streams)
def _() -> None:
    Pin.keep = lambda self, piece, store: None  # type: ignore[method-assign]


@mutant("half a transaction visible")
def _() -> None:
    def at_once(self: Agenda, queue: Any, first: Any, kept: bool, is_moved: bool) -> None:
        if is_moved or (kept and self._syncs_first(queue)):
            self._hold(queue, first)

    Agenda.entered = at_once  # type: ignore[method-assign]


@mutant("time to live ignored after a restart", _has_ttl)
def _() -> None:
    restored: dict[int, int] = {}

    def make_finish(finish: Any) -> Any:
        def noting(self: Any) -> None:
            finish(self)
            restored.clear()
            for queue in self._broker.queues.values():
                restored[id(queue)] = queue.entered

        return noting

    def make_overdue(overdue: Any) -> Any:
        def young(self: Any, queue: Any, head: Any, upto: int, now: int) -> int:
            if head.first <= restored.get(id(queue), 0):
                return 0
            return int(overdue(self, queue, head, upto, now))

        return young

    replaced(Restorer, "finish", make_finish)
    replaced(Upkeep, "_overdue", make_overdue)


@mutant("deferred lost", _has_deferrals)
def _() -> None:
    def make(add: Any) -> Any:
        def without(broker: Any, queue: Any, *rest: Any) -> None:
            deferrals, queue.deferrals = queue.deferrals, Deferrals()
            add(broker, queue, *rest)
            queue.deferrals = deferrals

        return without

    replaced(restore, "_snapshot_queue", make)


@mutant("lease forgotten", _has_subscriptions)
def _() -> None:
    not_restored(records.LEASED)


@mutant("lease not recorded", _has_subscriptions)
def _() -> None:
    without_records(records.LEASED)


@mutant("end of a lease not restored", _has_subscriptions)
def _() -> None:
    not_restored(records.LEASE_SETTLED)


@mutant("verdicts not recorded", _has_verdicts)
def _() -> None:
    without_records(records.VERDICTS)


@mutant("batch of a sink twice")
def _() -> None:
    Sinks._is_repeated = lambda self, sink, identity, batch: False  # type: ignore[method-assign]


@mutant("batch of a sink not recorded")
def _() -> None:
    without_records(records.SINK_STAGED)


@mutant("deferral not recorded", _has_deferrals)
def _() -> None:
    without_records(records.DEFERRED)


@mutant("deferral not restored", _has_deferrals)
def _() -> None:
    not_restored(records.DEFERRED)


@mutant("checkpoint of another position")
def _() -> None:
    kept: dict[int, int] = {}
    original = Cleaner.checkpoint

    def other(self: Cleaner, end: int, *rest: Any) -> bool:
        before = kept.get(id(self), end)
        kept[id(self)] = end
        return original(self, before, *rest)

    Cleaner.checkpoint = other  # type: ignore[method-assign]


# -- looking for them


def seeds_needed(name: str, begin: int, most: int) -> tuple[int, str]:
    """Play seeds with a deliberate bug; return how many it took and what was seen. 0: not found.

    A world in which the bug has nothing to act on cannot find it: it counts, and is not played.
    """
    MUTANTS[name]()
    needs = NEEDS.get(name)
    for number in range(begin, most + 1):
        plan = draw(FIRST + number - 1)
        if needs is not None and not needs(plan):
            continue
        try:
            failure = run(plan).failure
        except Exception as error:  # the bug made the broker or its client fail outright
            failure = f"{type(error).__name__}: {error}"
        if failure:
            return number, failure
    return 0, "not found"


def in_a_process(module: str, *arguments: str) -> str:
    """Run a module of this tree by itself, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], env={**os.environ, "PYTHONHASHSEED": "0"},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return done.stdout


def holds_without(seed: int) -> bool:
    """Return whether a world holds without any bug: else what was seen says nothing of one."""
    return f"{seed}: passed" in in_a_process("tallymark.simulation", "--seed", str(seed))


def search(name: str, most: int) -> str:
    """Look for a bug, and return its row of the table."""
    begin = 1
    while True:
        asked = ["--row", name, "--begin", str(begin), "--seeds", str(most)]
        said = in_a_process("tests.simulation.mutants", *asked).strip()
        found = said.splitlines()[-1].partition(" ") if said else ("0", "", "")
        number = int(found[0])
        if not number or holds_without(FIRST + number - 1):
            return row_of(name, number, found[2], most)
        print(f"seed {FIRST + number - 1} fails without a bug, too", file=sys.stderr)
        begin = number + 1


def row_of(name: str, number: int, seen: str, most: int) -> str:
    """Return the row of a table for one bug. most: seeds that were played if it was not found."""
    clean = re.sub(r"/\S*tallymark-world-\S*?/", "", seen).replace("|", "/")
    kept = clean if len(clean) <= SHOWN else clean[:SHOWN].rstrip() + " ..."
    return f"| {name} | {number or f'not in {most}'} | {kept if number else ''} |"


def write_table(rows: list[str]) -> None:
    """Put rows into the table of the guide; those of other bugs that still exist are kept."""
    text = PAGE.read_text()
    head, _, rest = text.partition(HEAD)
    old, _, tail = rest.partition("\n\n")
    by_name = {row.split("|")[1].strip(): row for row in [*old.splitlines(), *rows] if row}
    table = "".join("\n" + by_name[name] for name in MUTANTS if name in by_name)
    PAGE.write_text(f"{head}{HEAD}{table}\n\n{tail}")


def main() -> int:
    """Look for one, or each in a process of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", nargs="*", metavar="NAME", help="those alone")
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=1, help="bugs at a time")
    parser.add_argument("--write", action="store_true", help="into the table of the guide")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--begin", type=int, default=1, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.row is not None:
        number, seen = seeds_needed(asked.row, asked.begin, asked.seeds)
        print(number, " ".join(seen.split()), flush=True)
        os._exit(0)  # a broken broker leaves threads and coroutines that cannot end
    names = asked.name or list(MUTANTS)
    unknown = [name for name in names if name not in MUTANTS]
    if unknown:
        parser.error(f"no such bug: {unknown}, expected some of {list(MUTANTS)}")
    is_missed = False
    with ThreadPoolExecutor(asked.jobs) as pool:
        for done in as_completed([pool.submit(search, name, asked.seeds) for name in names]):
            row = done.result()
            print(row, flush=True)
            is_missed |= "| not in " in row
            if asked.write:
                write_table([row])
    return int(is_missed)


if __name__ == "__main__":
    sys.exit(main())
