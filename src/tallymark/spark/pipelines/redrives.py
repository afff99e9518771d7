"""Redrive: dead letters chosen by SQL, back to where they were first published.

    letters = browse(spark, "parked").where("deaths[0].reason = 'rejected'")
    redrive(letters)                    what would become of each: nothing moves
    redrive(letters, dry_run=False)     moves them

Spark chooses and the broker moves: each message by its (queue, sequence, message id), whole or not
at all and once. So a run that was killed is simply run again, and two runs at a time do no harm.
docs/pipelines.md says what the broker answers.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tallymark.printable import literal
from tallymark.spark.client import (
    Client,
    Endpoint,
    api_path,
    counted,
)
from tallymark.spark.command import command
from tallymark.wire.conversion.addresses import EXCHANGES, BadAddress, target_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

MOVED: Final = "moved"
STATUSES: Final = (
    MOVED, "gone", "not_ready", "unroutable", "unreadable", "full", "no_letter", "forbidden",
    "repeated",
)  # fmt: skip
"""Results that the broker gives for a message, in the order in which they are shown."""
BATCH: Final = 1_000
"""Messages of one request, at most: the broker handles a request in one turn."""
A_SECOND: Final = 4
"""Requests a second under a limit of the rate, so that messages move evenly."""
NAMES: Final = ("queue", "sequence", "broker_message_id")
"""The columns by which a message is named."""


@dataclass(slots=True)
class Way:
    """Target of some of the messages, or the target they would have."""

    exchange: str
    routing_keys: list[str]
    queues: list[str]
    """Empty: no queue takes them from there."""
    results: dict[str, int] = field(default_factory=dict)
    """Number of messages by result."""


@dataclass(slots=True)
class Redriven:
    """Result of a redrive, or of its rehearsal."""

    run: str
    dry_run: bool
    chosen: int = 0
    asked: int = 0
    """Number of the chosen messages for which the broker has answered."""
    results: dict[str, int] = field(default_factory=dict)
    ways: list[Way] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, answer: dict[str, Any]) -> None:
        """Count one answer of the broker."""
        found = [self._way(way) for way in answer["ways"]]
        for status, at in answer["results"]:
            self.asked += 1
            self.results[status] = self.results.get(status, 0) + 1
            if at is not None:
                results = found[at].results
                results[status] = results.get(status, 0) + 1

    def _way(self, way: dict[str, Any]) -> Way:
        wanted = Way(way["exchange"], way["routing_keys"], way["queues"])
        for known in self.ways:
            if (known.exchange, known.routing_keys, known.queues) == (
                wanted.exchange, wanted.routing_keys, wanted.queues
            ):  # fmt: skip
                return known
        self.ways.append(wanted)
        return wanted


@dataclass(frozen=True, slots=True)
class Target:
    """Another target than that of the first publish; key None: the first keys stay."""

    exchange: str
    key: str | None

    @staticmethod
    def parse(address: str) -> Target:
        """A queue's name, /queues/:queue or /exchanges/:exchange[/:key]. Raises ValueError."""
        try:
            found = target_of(address)
        except BadAddress as error:
            raise ValueError(str(error)) from None
        keeps = address.startswith(EXCHANGES) and "/" not in address.removeprefix(EXCHANGES)
        return Target(found.exchange, None if keeps else found.key)


def browse(
    spark: SparkSession,
    queue: str,
    *,
    url: str | None = None,
    user: str | None = None,
    password: str | None = None,
    vhost: str | None = None,
    columns: str | None = None,
) -> DataFrame:
    """Return the ready messages of a queue as a table; none is taken. columns: those to make, as
    the option of format("tallymark"); `queue`, `sequence` and `broker_message_id` name a
    message."""
    given = {"url": url, "user": user, "password": password, "vhost": vhost, "columns": columns}
    options = {name: value for name, value in given.items() if value is not None}
    return spark.read.format("tallymark").options(queue=queue, **options).load()


def redrive(
    chosen: DataFrame,
    *,
    dry_run: bool = True,
    endpoint: Endpoint | None = None,
    vhost: str = "/",
    to: str | None = None,
    run: str | None = None,
    rate: float | None = None,
    told: Callable[[Redriven], None] | None = None,
) -> Redriven:
    """Move messages to where they were first published, queue by queue, in order of their numbers.

    chosen: rows with `queue`, `sequence` and `broker_message_id`, such as `browse` makes; collected
    on the driver, about 30 bytes a row. to: an address in place of the first publish. run: the name
    that stands on the messages as their provenance; what a run of that name moved before and what
    died again since is not moved by it once more. rate: at most so many messages a second. told: is
    called with the counts so far after each request.

    Raises ValueError for arguments that cannot be right, BrokerRefused, BrokerUnreachable: what
    moved until then has moved, and the same may be asked again.
    """
    if rate is not None and not rate > 0:
        raise ValueError(f"rate {rate}: expected more than 0 messages a second")
    target = None if to is None else Target.parse(to)
    named = chosen.select(*NAMES).toArrow().sort_by([(name, "ascending") for name in NAMES[:2]])
    done = Redriven(run or new_run(), dry_run, chosen=named.num_rows)
    begun = time.monotonic()
    client = Client(endpoint or Endpoint())
    try:
        for queue, messages in _batches(named, rate):
            if rate is not None and not dry_run:
                time.sleep(max(0.0, begun + done.asked / rate - time.monotonic()))
            body: dict[str, object] = {"messages": messages, "run": done.run, "dry_run": dry_run}
            if target is not None:
                body |= {"exchange": target.exchange, "routing_key": target.key}
            done.add(client.call("POST", api_path("redrive", vhost, queue), body))
            done.seconds = round(time.monotonic() - begun, 3)
            if told is not None:
                told(done)
    finally:
        client.close()
    return done


def new_run() -> str:
    """A name that no other run has."""
    return f"redrive-{secrets.token_hex(4)}"


def _batches(named: pa.Table, rate: float | None) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Messages of one queue at a time, as many as one request may have."""
    size = BATCH if rate is None else max(1, int(min(BATCH, rate / A_SECOND)))
    queue, batch = "", list[tuple[int, int]]()
    for part in named.to_batches(max_chunksize=BATCH):
        columns = [part.column(name).to_pylist() for name in NAMES]
        for name, sequence, id in zip(*columns, strict=True):
            if batch and (name != queue or len(batch) == size):
                yield queue, batch
                batch = []
            queue = name
            batch.append((sequence, id))
    if batch:
        yield queue, batch


# -- the command


def columns_for(where: str) -> str:
    """The columns that a condition may speak of, and those that name a message."""
    from tallymark.spark.schema import ALL, TYPED_HEADERS

    words = {word.lower() for word in re.findall(r"\w+", where)} | {*NAMES, "deaths"}
    return ", ".join([name for name in (*ALL, TYPED_HEADERS.name) if name in words])


def main(
    queue: str,
    where: str | None = None,
    to: str | None = None,
    move: bool = False,
    rate: float | None = None,
    run: str | None = None,
    vhost: str = "/",
    master: str = "local[*]",
    url: str | None = None,
    user: str | None = None,
    password: str | None = None,
    as_json: bool = False,
) -> int:
    """`tallymark pipeline redrive`: returns 0, or 1 with the reason on stderr.

    Raises ValueError for arguments that cannot be right.
    """
    from tallymark.spark.options import SourceOptions

    if rate is not None and not rate > 0:
        raise ValueError(f"--rate {rate}: expected more than 0 messages a second")
    if to is not None:
        Target.parse(to)
    given = {"url": url, "user": user, "password": password, "vhost": vhost, "queue": queue}
    endpoint = SourceOptions.parse({k: v for k, v in given.items() if v is not None}).endpoint
    name = run or new_run()
    text = where or "true"

    def work(spark: SparkSession) -> int:
        found = browse(
            spark, queue, url=url, user=user, password=password, vhost=vhost,
            columns=columns_for(text),
        ).where(text)  # fmt: skip
        letters = found if to is not None else found.where("deaths is not null")
        display = Display(queue, as_json)
        done = redrive(
            letters, dry_run=not move, endpoint=endpoint, vhost=vhost, to=to, run=name, rate=rate,
            told=display.progress if move else None,
        )  # fmt: skip
        display.done(done)
        return 0

    try:
        return command(
            work, f"tallymark redrive {queue}", f"choosing messages of {queue}", master,
            prepare=lambda: _ask(endpoint, vhost, queue, name), brief=True,
        )  # fmt: skip
    except KeyboardInterrupt:
        print(
            f"tallymark: stopped; the messages moved so far stay moved, continue with --run {name}",
            file=sys.stderr,
        )
        return 1


def _ask(endpoint: Endpoint, vhost: str, queue: str, run: str) -> None:
    """Check that this user may redrive this queue. Raises BrokerRefused, BrokerUnreachable."""
    client = Client(endpoint)
    try:
        client.patient("GET", api_path("queues"))
        body = {"messages": [], "run": run, "dry_run": True}
        client.call("POST", api_path("redrive", vhost, queue), body)
    finally:
        client.close()


class Display:
    """Output of the command: one JSON object a line, or words and a table."""

    def __init__(self, queue: str, as_json: bool) -> None:
        self._queue = queue
        self._as_json = as_json

    def progress(self, so_far: Redriven) -> None:
        """A request was answered."""
        if self._as_json:
            line = {"asked": so_far.asked, "chosen": so_far.chosen, "results": so_far.results}
            print(json.dumps(line), flush=True)

    def done(self, redriven: Redriven) -> None:
        """Show the result."""
        if self._as_json:
            print(json.dumps({"done": True, **asdict(redriven)}), flush=True)
            return
        from rich import box
        from rich.console import Console
        from rich.table import Table

        console = Console(emoji=False)
        moved = redriven.results.get(MOVED, 0)
        would = "would move" if redriven.dry_run else "moved"
        console.print(
            f"{literal(self._queue)}: "
            f"{counted(redriven.chosen, 'message')} chosen, {would} "
            f"{moved:,}" + ("" if redriven.dry_run else f", run {literal(redriven.run)}"),
            highlight=False,
            soft_wrap=True,
        )
        seen = sorted(redriven.results, key=[*STATUSES, *redriven.results].index)
        if seen:
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
            for heading in ("exchange", "routing keys", "to queues"):
                table.add_column(heading, overflow="fold")
            for status in seen:
                table.add_column(status.replace("_", " "), justify="right")
            nowhere = dict(redriven.results)
            for way in redriven.ways:
                for status, count in way.results.items():
                    nowhere[status] -= count
                texts = (way.exchange or "(default)", ", ".join(way.routing_keys),
                         ", ".join(way.queues) or "-")  # fmt: skip
                table.add_row(
                    *map(literal, texts),
                    *(f"{way.results.get(status, 0):,}" for status in seen),
                )
            if any(nowhere.values()):
                table.add_row("-", "-", "-", *(f"{nowhere.get(status, 0):,}" for status in seen))
            console.print(table)
        if redriven.dry_run and moved:
            console.print("Nothing was moved: add --move to do it.", highlight=False)
