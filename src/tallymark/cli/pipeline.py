"""`tallymark pipeline` and `tallymark demo`: commands that run Spark, which is imported only by
them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from tallymark.cli.inspect import LOGIN, Json, Login, Url
from tallymark.cli.inspect import URL as BROKER
from tallymark.cli.output import fail, require

app = typer.Typer(help="Data pipelines: Spark over queues and the ledger.", no_args_is_help=True)
Master = Annotated[str, typer.Option(help="Spark master.")]
DataDir = Annotated[
    Path, typer.Option(envvar="TALLYMARK_DATA_DIR", help="The broker's data folder.")
]
LiveUrl = Annotated[
    str | None,
    typer.Option(
        envvar="TALLYMARK_URL",
        help="HTTP address of the running broker; without it the newest checkpoint is used.",
    ),
]
QueueVhost = Annotated[str, typer.Option(help="Virtual host of the queue.")]
MASTER = "local[*]"
DATA_DIR = Path("tallymark-data")
WRONG: Final = (
    ValueError, FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError,
    PermissionError,
)  # fmt: skip
"""Exceptions that mean that an argument is wrong."""


def _require_spark() -> None:
    require("pyspark", "pyarrow", "numpy", extra="spark")


def _login(url: str | None, user: str) -> tuple[str | None, str | None]:
    """Name and password; those that the URL says itself count before --user."""
    if url is not None and "@" in url:
        return None, None
    name, _, password = user.partition(":")
    return name, password


def _run(work: Callable[[], int]) -> None:
    """Exit with the code that `work` returns, or 2 where it says that an argument is wrong."""
    try:
        code = work()
    except WRONG as error:
        fail(str(error), 2)
    raise typer.Exit(code)


@app.command()
def land(
    queue: Annotated[str, typer.Option(help="Queue to read.")],
    subscription: Annotated[str, typer.Option(help="Name of the durable subscription.")],
    to: Annotated[Path, typer.Option(help="Folder of the Parquet table.")],
    trigger: Annotated[
        str, typer.Option(help="available-now (all there is, then stop) or a period such as 30s.")
    ] = "available-now",
    vhost: QueueVhost = "/",
    max_rows: Annotated[int | None, typer.Option(help="Most rows of a batch.")] = None,
    partitions: Annotated[
        int | None,
        typer.Option(help="Most tasks that read at once; without it as many as processors here."),
    ] = None,
    format: Annotated[str, typer.Option(help="parquet or delta.")] = "parquet",
    schema: Annotated[
        str | None,
        typer.Option(help="Read bodies as JSON: 'id bigint, note string', @file, or infer."),
    ] = None,
    quarantine: Annotated[
        Path | None,
        typer.Option(help="Table for rows that do not fit; without it TO/_quarantine."),
    ] = None,
    partition_by: Annotated[
        str | None,
        typer.Option(help="Columns of the table's folders, with commas; without it the date."),
    ] = None,
    master: Master = MASTER,
    url: Url = BROKER,
    user: Login = LOGIN,
    json: Json = False,
) -> None:
    """Write a queue to Parquet or Delta, settled batch by batch."""
    _require_spark()
    if format == "delta":
        require("deltalake", extra="delta")
    from tallymark.spark import land as landing

    name, password = _login(url, user)
    _run(
        lambda: landing.main(
            queue, subscription, to, trigger, master, url, name, password, vhost, json, max_rows,
            format, schema, quarantine, partitions, partition_by,
        )
    )  # fmt: skip


@app.command()
def optimize(
    table: Annotated[Path, typer.Argument(help="Folder of a Delta table that was landed.")],
    target_mib: Annotated[int, typer.Option(help="Size of a file to come near, in MiB.")] = 256,
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Remove files that no version of a week has.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make few files of many small ones; the table may be read and landed in meanwhile."""
    require("deltalake", "pyarrow", extra="delta")
    from tallymark.spark import optimize as work

    _run(lambda: work.main(table, target_mib, vacuum, as_json))


@app.command()
def reconcile(
    data_dir: DataDir = DATA_DIR,
    url: LiveUrl = None,
    user: Login = LOGIN,
    hours: Annotated[
        bool, typer.Option("--hours", help="And of every hour in which messages entered it.")
    ] = False,
    since: Annotated[
        Path | None,
        typer.Option(
            help="Folder of accounts: go on from the newest there, and write this one to it."
        ),
    ] = None,
    outside: Annotated[
        list[Path] | None,
        typer.Option(help="Checkpoint of a Spark query that must not know more than the journal."),
    ] = None,
    master: Annotated[
        str | None, typer.Option(help="Spark master; without it this process does the work.")
    ] = None,
    json: Json = False,
) -> None:
    """Print the equation of every queue, computed from the journal. Exit code 1 if one is off."""
    require(*(("pyspark",) if master else ()), "pyarrow", "numpy", extra="spark")
    from tallymark.spark import reconcile as reconciling

    name, password = _login(url, user)
    _run(
        lambda: reconciling.main(
            data_dir, url, name, password, master, json, hours, since, outside or ()
        )
    )


@app.command()
def ledger(
    to: Annotated[Path, typer.Option(help="Folder of the table: a new one, without --rows.")],
    data_dir: DataDir = DATA_DIR,
    rows: Annotated[
        bool,
        typer.Option(
            "--rows",
            help="The ledger's own rows, which `what-if --ledger` plays; what is new is appended.",
        ),
    ] = False,
    format: Annotated[str, typer.Option(help="parquet or delta; of --rows.")] = "parquet",
    header: Annotated[
        list[str] | None,
        typer.Option(help="A header that --rows keeps, beside those that bindings ask for."),
    ] = None,
    url: LiveUrl = None,
    user: Login = LOGIN,
    master: Master = MASTER,
) -> None:
    """Write every transition, one row for each message and event, to Parquet."""
    name, password = _login(url, user)
    if rows:
        require(*(("deltalake",) if format == "delta" else ()), "pyarrow", "numpy",
                extra="delta" if format == "delta" else "spark")  # fmt: skip
        _run(lambda: _write_rows(data_dir, to, format, header or (), url, name, password))
    if header or format != "parquet":
        fail("--header and --format are of --rows, expected it beside them", 2)
    _require_spark()
    from tallymark.spark.transitions import main

    _run(lambda: main(data_dir, to, url, name, password, master))


def _write_rows(
    data_dir: Path,
    to: Path,
    format: str,
    headers: Sequence[str],
    url: str | None,
    user: str | None,
    password: str | None,
) -> int:
    """Append the ledger's rows to a table. Raises ValueError, FileNotFoundError."""
    from tallymark.spark.claims import asked, endpoint_of
    from tallymark.spark.client import BrokerRefused, CannotRun, counted
    from tallymark.spark.ledger_files import journal_folder
    from tallymark.whatif.table import write_delta, write_table

    if format not in ("parquet", "delta"):
        raise ValueError(f"--format is {format!r}, expected parquet or delta")
    journal_folder(data_dir)
    endpoint = endpoint_of(url, user, password)
    write = write_delta if format == "delta" else write_table
    try:
        upto = None if endpoint is None else asked(endpoint, data_dir)
        count = write(data_dir, to, upto, headers)
    except (BrokerRefused, CannotRun) as error:
        fail(str(error))
    print(f"{counted(count, 'row')} more in {to}")
    return 0


@app.command()
def report(
    data_dir: DataDir = DATA_DIR,
    to: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    url: LiveUrl = None,
    stalled_after: Annotated[
        float, typer.Option(help="Seconds unsettled after which credit is leaked or stalled.")
    ] = 600.0,
    queue: Annotated[
        list[str] | None, typer.Option(help="Only this queue; several times for several.")
    ] = None,
    begin: Annotated[
        str | None, typer.Option(help="Only what happened then or later: 2026-01-01T08:00Z.")
    ] = None,
    end: Annotated[str | None, typer.Option(help="Only what happened before.")] = None,
    user: Login = LOGIN,
    master: Master = MASTER,
    json: Json = False,
) -> None:
    """Latencies, redeliveries, dead-letter paths, slow consumers and more, as one HTML page."""
    _require_spark()
    from tallymark.spark.report.reporting import main

    name, password = _login(url, user)
    if stalled_after <= 0:
        fail(f"--stalled-after is {stalled_after:g}, expected a number of seconds above 0", 2)
    stalled_ms = round(stalled_after * 1000)
    _run(
        lambda: main(
            data_dir, to, url, name, password, master, json, stalled_ms, queue or (), begin, end
        )
    )


@app.command()
def redrive(
    queue: Annotated[str, typer.Option(help="Queue that holds the dead letters.")],
    where: Annotated[
        str | None,
        typer.Option(
            help="SQL over the columns of a browse, such as \"deaths[0].reason = 'expired'\"."
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            help="Another target than the first publish: QUEUE, /queues/QUEUE or "
            "/exchanges/EXCHANGE[/KEY]."
        ),
    ] = None,
    move: Annotated[
        bool, typer.Option("--move", help="Move them; without it, only show what would move.")
    ] = False,
    rate: Annotated[float | None, typer.Option(help="Most messages a second.")] = None,
    run: Annotated[
        str | None, typer.Option(help="Name of this run, to go on with one that was stopped.")
    ] = None,
    vhost: QueueVhost = "/",
    master: Master = MASTER,
    url: Url = BROKER,
    user: Login = LOGIN,
    json: Json = False,
) -> None:
    """Send dead letters back to where they were first published, each once. Dry run by default."""
    _require_spark()
    from tallymark.spark.pipelines import redrives

    name, password = _login(url, user)
    _run(
        lambda: redrives.main(
            queue, where, to, move, rate, run, vhost, master, url, name, password, json
        )
    )


@app.command()
def archive(
    stream: Annotated[str, typer.Option(help="Stream to archive.")],
    to: Annotated[Path, typer.Option(help="Folder of the archive, the same for every run.")],
    rows: Annotated[int, typer.Option(help="Most messages of a range.")] = 1_000_000,
    everything: Annotated[
        bool, typer.Option("--all", help="Also the newest range, which is not full.")
    ] = False,
    release: Annotated[
        bool, typer.Option(help="Have the broker release archived messages.")
    ] = True,
    vhost: Annotated[str, typer.Option(help="Virtual host of the stream.")] = "/",
    master: Master = MASTER,
    url: Url = BROKER,
    user: Login = LOGIN,
    json: Json = False,
) -> None:
    """Write full ranges of a stream to Parquet, then let the broker let go of them."""
    _require_spark()
    from tallymark.spark.pipelines import archives

    name, password = _login(url, user)
    _run(
        lambda: archives.main(
            stream, to, rows, everything, release, vhost, master, url, name, password, json
        )
    )


def demo(
    input: Annotated[
        Path | None,
        typer.Option(help="File whose lines are published; without it orders are generated."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="New or empty folder for the results.")] = None,
    keep: Annotated[bool, typer.Option(help="Keep that folder.")] = True,
    plain: Annotated[bool, typer.Option("--plain", help="No colours, no moving lines.")] = False,
) -> None:
    """The play: publish, consume, crash, land through Spark, reconcile."""
    require("pyspark", "pyarrow", "numpy", "pika", "aio_pika", extra="demo")
    if input is not None and not input.is_file():
        fail(f"--input is {str(input)!r}, expected a file of lines", 2)
    from tallymark_demo import play

    try:
        code = play.main(input, out, keep, plain)
    except (ValueError, FileExistsError, NotADirectoryError, PermissionError) as error:
        fail(str(error), 2)
    except OSError as error:
        fail(str(error))
    raise typer.Exit(code)


def add_to(root: typer.Typer) -> None:
    root.add_typer(app, name="pipeline")
    root.command(name="demo")(demo)
