"""The equation, per queue, worked out by Spark from the journal's rows:

    entered = ready + acquired + deferred + staged + dead-letter-pending
            + quarantined                                                     what is still there
            + settled + dead-lettered + dropped, by reason                    what has ended

The left side and what has ended come from the ledger; what is still there is the broker's own
claim, taken at one journal position: asked of a running broker, or read from the newest checkpoint.
So the two sides have different sources, and a difference of 0 means something.

Besides the counts, every single sequence is checked, and faults are named: sweep.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tallymark.spark import ledger, ledger_files
from tallymark.spark.account import (
    STILL_THERE,
    Account,
    Beyond,
    Claim,
    Fault,
    Letters,
    Reconciliation,
    Returned,
)
from tallymark.spark.client import (
    BrokerRefused,
    BrokerUnreachable,
    Client,
    Endpoint,
    api_path,
)
from tallymark.spark.command import command
from tallymark.spark.hours import by_hour, with_ids
from tallymark.spark.ledger_files import LedgerIncomplete, LedgerLetGo, checkpoints
from tallymark.spark.sweep import drops, intervals, moves, returns, sweep, totals, with_faults

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
FAULTS_SHOWN: Final = 100
MOST_TASKS: Final = 64
ASK_AGAIN: Final = 5
RETRY_MS: Final = 5_000
WRITTEN_S: Final = 5.0
"""Seconds within which a requested checkpoint has to be in the folder."""


# -- functions on DataFrames


def read_ledger(
    spark: SparkSession,
    folder: Path,
    upto: int | None = None,
    url: str | None = None,
    *,
    is_unbroken: bool = False,
) -> DataFrame:
    """Read all rows of the ledger in a data folder up to a checkpoint, as `ledger.DDL` says: the
    one at position `upto`, by default the newest; or, with `url`, one that the broker there writes
    now.

    is_unbroken: only what lies behind the last gap that `ledger_retention` made, as an account
    needs it: a message that entered before the gap may have ended in it.

    The same as format("tallymark") with the option `ledger`, but planned here: a Python source
    costs several processes before its first row. Raises LedgerIncomplete; with `url` BrokerRefused,
    BrokerUnreachable.
    """
    if url is not None:
        upto = asked(Endpoint.from_url(url, retry_ms=RETRY_MS), folder)
    files = ledger.plan(folder, upto, is_unbroken=is_unbroken)

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from ledger.read_file(files[number])

    tasks = spark.range(0, len(files), 1, min(len(files), MOST_TASKS))
    return tasks.mapInArrow(read, ledger.DDL)


def reconcile(
    rows: DataFrame, position: int, claims: Sequence[Claim], hourly: bool = False
) -> Reconciliation:
    """Work the equation out for every queue of the ledger and of the claims.

    hourly: and for every hour in which messages entered it."""
    from pyspark.sql import functions as f

    ranges = intervals(rows).cache()
    try:
        stretches = with_faults(sweep(ranges)).cache()
        names = queue_names(rows, claims)
        bad = stretches.where(f.col("fault").isNotNull()).orderBy("queue_id", "low")
        broken = bad.limit(FAULTS_SHOWN).collect()
        faults = [
            Fault(name, row.low, row.high - 1, row.fault, vhost)
            for row in broken
            for vhost, name in (_name(names, row.queue_id),)
        ]
        faults = with_ids(rows, faults, [row.queue_id for row in broken])
        sums = {row.queue_id: row.asDict() for row in totals(stretches).collect()}
        dropped: dict[int, dict[str, int]] = {}
        for row in drops(ranges).collect():
            dropped.setdefault(row.queue_id, {})[row.reason] = row["count"]
        letters = [
            Letters(_name(names, row.source)[1], _name(names, row.target)[1], row.letters)
            for row in moves(rows).orderBy("source", "target").collect()
        ]
        returned = [
            Returned(_name(names, row.queue_id)[1], row.reason, row.deliveries)
            for row in returns(rows).orderBy("queue_id", "reason").collect()
        ]
        hours = by_hour(stretches, names) if hourly else []
        stretches.unpersist()
    finally:
        ranges.unpersist()
    claimed = {claim.id: claim for claim in claims}
    faults += _miscounted(sums, claimed)
    accounts = [
        _account(queue_id, names, sums.get(queue_id), dropped.get(queue_id, {}), claimed)
        for queue_id in sorted(set(sums) | set(claimed))
    ]
    return Reconciliation(position, accounts, faults, letters, returned, hours=hours)


def _miscounted(sums: Mapping[int, Mapping[str, int]], claims: Mapping[int, Claim]) -> list[Fault]:
    """Queues whose number of messages entered is another in the ledger than in the broker."""
    found = []
    for queue_id, sum_of in sums.items():
        claim = claims.get(queue_id)
        counted = _before(sum_of, claim) + sum_of["entered"]
        if claim is not None and claim.count("entered") != counted:
            said = claim.count("entered")
            low, high = sorted((said, counted))
            what = f"entered: {said} by the broker, {counted} here"
            found.append(Fault(claim.name, low + 1, high, what, claim.vhost))
    return found


def _before(sum_of: Mapping[str, int], claim: Claim | None) -> int:
    """The number of messages that entered a queue before the ledger: up to the first that entered
    in it. Where none did, all that the broker counted, or as many as there are traces of."""
    if sum_of["entered"] or claim is None:
        return sum_of["before_ledger"]
    return max(sum_of["before_ledger"], claim.count("entered"))


def queue_names(rows: DataFrame, claims: Sequence[Claim]) -> dict[int, tuple[str, str]]:
    """(virtual host, name) by queue id: from the claims, and from definitions for deleted ones."""
    names = {}
    for row in rows.where("kind = 'definition'").select("blob").distinct().collect():
        definition = json.loads(row.blob)
        if definition.get("op") == "queue":
            names[int(definition["id"])] = (str(definition["vhost"]), str(definition["name"]))
    names.update((claim.id, (claim.vhost, claim.name)) for claim in claims)
    return names


def _name(names: Mapping[int, tuple[str, str]], queue_id: int) -> tuple[str, str]:
    return names.get(queue_id, ("", f"(id {queue_id})"))


def _account(
    queue_id: int,
    names: Mapping[int, tuple[str, str]],
    sums: Mapping[str, int] | None,
    dropped: dict[str, int],
    claims: Mapping[int, Claim],
) -> Account:
    vhost, name = _name(names, queue_id)
    claim = claims.get(queue_id, Claim(queue_id, vhost, name, {}))
    there = {state: claim.count(state) for state in STILL_THERE}
    if sums is None:
        # Nothing of it is in the ledger: not durable, or nothing ever entered.
        settled, entered, dropped = claim.count("settled"), claim.count("entered"), claim.dropped()
        dead_lettered = claim.count("dead_lettered")
        ended = settled + dead_lettered + sum(dropped.values())
        difference = entered - sum(there.values()) - ended
        return Account(
            name, vhost, entered, there, settled, dead_lettered, dropped, difference,
            from_ledger=entered == 0,
        )  # fmt: skip
    dead_lettered = sums["dead_lettered"]
    ended = sums["settled"] + dead_lettered + sums["dropped"]
    difference = sums["entered"] - (sum(there.values()) - sums["live_before"]) - ended
    return Account(
        name, vhost, sums["entered"], there, sums["settled"], dead_lettered, dropped, difference,
        before_ledger=_before(sums, claim),
    )  # fmt: skip


# -- where the claim comes from


def ask_broker(endpoint: Endpoint) -> tuple[int, list[Claim]]:
    """Let a running broker write a checkpoint: its position, and its claim for every queue there.

    Raises BrokerRefused, BrokerUnreachable.
    """
    client = Client(endpoint)
    try:
        answer = client.call("POST", api_path("ledger", "checkpoint"), {})
    finally:
        client.close()
    return int(answer["position"]), [
        Claim(int(q["id"]), str(q["vhost"]), str(q["name"]), q) for q in answer["queues"]
    ]


def claims_of_checkpoint(ledger_rows: DataFrame) -> tuple[int, list[Claim]]:
    """Return the claims of the checkpoint that was read with the ledger, from its COUNTERS rows,
    and their position."""
    state = ledger_rows.where("source = 'checkpoint'").select(
        "position", "kind", "queue_id", "blob"
    )
    rows = state.where("kind in ('counters', 'definition')").collect()
    names = {}
    for row in rows:
        definition = json.loads(row.blob)
        if row.kind == "definition" and definition.get("op") == "queue":
            names[int(definition["id"])] = (str(definition["vhost"]), str(definition["name"]))
    claims = [
        Claim(row.queue_id, *_name(names, row.queue_id), json.loads(row.blob))
        for row in rows
        if row.kind == "counters"
    ]
    return (int(rows[0].position) if rows else 0), claims


# -- the command


def run(
    spark: SparkSession, data_dir: Path, endpoint: Endpoint | None, hourly: bool = False
) -> Reconciliation:
    """Reconcile a data folder: against the running broker when an endpoint is given, else against
    its newest checkpoint. Raises LedgerIncomplete, FileNotFoundError, BrokerRefused."""
    return kept(lambda: _run(spark, data_dir, endpoint, hourly))


def kept(attempt: Callable[[], T]) -> T:
    """Make an attempt over the ledger, and another where a running broker let go of a file before
    it was read: the files that are left are a whole ledger, of a shorter time. Raises as the last
    attempt does."""
    from pyspark.errors import PySparkException

    for _ in range(ASK_AGAIN - 1):
        try:
            return attempt()
        except LedgerLetGo:
            continue
        except PySparkException as error:  # of the process that read it there is only the text
            if LedgerLetGo.__name__ not in str(error):
                raise
    return attempt()


def _run(
    spark: SparkSession, data_dir: Path, endpoint: Endpoint | None, hourly: bool
) -> Reconciliation:
    asked = None if endpoint is None else _ask_until_written(endpoint, data_dir)
    ledger_files.check_end(data_dir)
    state = ledger_files.find_checkpoint(data_dir, asked[0] if asked else None)
    as_of = ledger.time_of(state)
    rows = read_ledger(spark, data_dir, state.number, is_unbroken=True).cache()
    try:
        claims = asked[1] if asked else claims_of_checkpoint(rows)[1]
        outcome = reconcile(rows, state.number, claims, hourly)
    finally:
        rows.unpersist()
    more = None if asked else ledger.beyond(data_dir, state.number)
    return replace(
        outcome,
        source="checkpoint" if endpoint is None else str(endpoint),
        as_of=_iso(as_of),
        beyond=Beyond(more[0], _iso(more[1])) if more else None,
    )


def _iso(time: datetime) -> str:
    return time.isoformat(timespec="seconds").replace("+00:00", "Z")


def asked(endpoint: Endpoint, data_dir: Path) -> int:
    """The position of a checkpoint that the broker at `endpoint` has just written into this folder.

    Raises LedgerIncomplete (also where it uses another folder), BrokerRefused, BrokerUnreachable.
    """
    _check_broker(endpoint, data_dir)
    return _ask_until_written(endpoint, data_dir)[0]


def _ask_until_written(endpoint: Endpoint, data_dir: Path) -> tuple[int, list[Claim]]:
    """A claim whose checkpoint is in the data folder. The broker writes checkpoints beside its
    other work, one at a time: when one was being written already, it has to be asked again."""
    for _ in range(ASK_AGAIN):
        position, claims = ask_broker(endpoint)
        deadline = time.monotonic() + WRITTEN_S
        while time.monotonic() < deadline:
            if any(file.number == position for file in checkpoints(data_dir)):
                return position, claims
            time.sleep(0.02)
    raise LedgerIncomplete(
        f"{data_dir}: no checkpoint at position {position:#x}, the one the broker at {endpoint} "
        "spoke of: is this its data folder?"
    )


def main(
    data_dir: Path,
    url: str | None = None,
    user: str | None = None,
    password: str | None = None,
    master: str = "local[*]",
    as_json: bool = False,
    hourly: bool = False,
) -> int:
    """`tallymark pipeline reconcile`: print the equation of every queue.

    Returns 0 when every difference is 0 and no message breaks the account, else 1, also with the
    reason on stderr when there is no account. Raises ValueError, FileNotFoundError for arguments
    that cannot be right.
    """
    from tallymark.spark.reconcile_table import show

    endpoint = _endpoint(url, user, password)
    present = ""

    def prepare() -> None:
        nonlocal present
        ledger_files.journal_folder(data_dir)
        if endpoint is not None:
            _check_broker(endpoint, data_dir)
        else:
            present = _check_checkpoint(data_dir, user, password)

    def work(spark: SparkSession) -> int:
        outcome = run(spark, data_dir, endpoint, hourly)
        show(outcome, as_json, present=present)
        return 0 if outcome.balanced else 1

    doing = f"reconciling {data_dir}"
    return command(work, "tallymark reconcile", doing, master, prepare=prepare, brief=True)


def over_ledger(
    data_dir: Path,
    url: str | None,
    user: str | None,
    password: str | None,
    master: str,
    what: str,
    work: Callable[[DataFrame, datetime], None],
) -> int:
    """Call `work` with the ledger's rows up to a checkpoint and the time of that: the newest one,
    or one that the broker at `url` writes now. what: the command's name, for its messages.

    Returns 0, or 1 with the reason on stderr. Raises ValueError, FileNotFoundError and the like
    for arguments that cannot be right, and whatever `work` raises of its own.
    """
    endpoint = _endpoint(url, user, password)
    state: ledger_files.LedgerFile | None = None

    def prepare() -> None:
        nonlocal state
        ledger_files.journal_folder(data_dir)
        upto = None if endpoint is None else asked(endpoint, data_dir)
        state = ledger_files.find_checkpoint(data_dir, upto)

    def over(spark: SparkSession) -> int:
        assert state is not None
        work(read_ledger(spark, data_dir, state.number), ledger.time_of(state))
        return 0

    doing = f"{what} over {data_dir}"
    return command(over, f"tallymark {what}", doing, master, prepare=prepare, brief=True)


def _endpoint(url: str | None, user: str | None, password: str | None) -> Endpoint | None:
    if url is None:
        return None
    return Endpoint.from_url(url, user=user, password=password, retry_ms=RETRY_MS)


def _check_broker(endpoint: Endpoint, data_dir: Path) -> None:
    """Check that this broker answers and uses this folder.

    Raises LedgerIncomplete, BrokerRefused, BrokerUnreachable.
    """
    client = Client(endpoint)
    try:
        pid = int(client.patient("GET", api_path("status"))["broker"]["pid"])
    finally:
        client.close()
    using = ledger.user_of(data_dir)
    if using and using != pid:
        raise LedgerIncomplete(
            f"{data_dir} is in use by a broker of pid {using}, and the one at {endpoint} has pid "
            f"{pid}: this is not its data folder"
        )
    _ask_until_written(endpoint, data_dir)


def _check_checkpoint(data_dir: Path, user: str | None, password: str | None) -> str:
    """Check that there is a checkpoint whose claims can stand for the broker's; return advice on
    how to reconcile the present state instead. Raises LedgerIncomplete."""
    using = ledger.user_of(data_dir)
    if using is None:
        present = "start the broker and use --url"
    else:
        url = _default_url(using, user, password) or "http://HOST:PORT of its HTTP interface"
        present = f"use --url {url}"
    try:
        ledger_files.find_checkpoint(data_dir, None)
    except LedgerIncomplete:
        if checkpoints(data_dir):
            raise
        if using is None:
            raise LedgerIncomplete(
                f"{data_dir}: no checkpoint yet: start the broker on this folder and add --url, or "
                "let it stop cleanly, which writes one"
            ) from None
        who = f"a broker (pid {using})" if using else "a broker"
        raise LedgerIncomplete(
            f"{data_dir}: no checkpoint yet; {who} is using this folder: "
            f"{present.replace('use', 'add', 1)}"
        ) from None
    return present


def _default_url(pid: int, user: str | None, password: str | None) -> str | None:
    """The address that a broker has by default, if the one of this pid answers there."""
    endpoint = Endpoint(retry_ms=0, timeout_ms=2_000)
    if user is not None and password is not None:
        endpoint = replace(endpoint, user=user, password=password)
    client = Client(endpoint)
    try:
        found = client.call("GET", api_path("status"))["broker"]["pid"]
    except (BrokerRefused, BrokerUnreachable, KeyError, TypeError, ValueError):
        return None
    finally:
        client.close()
    return str(endpoint) if pid in (0, found) else None
