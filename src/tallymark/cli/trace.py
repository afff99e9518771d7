"""`tallymark trace`: where a message went."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tallymark.cli.output import USAGE, fail, require, show_json, show_table

if TYPE_CHECKING:
    from tallymark.spark.trace import Journey, Traced

MOST_ROWS: Final = 1_000_000
NOT_FOUND: Final = 1
STEPS: Final = ("time", "vhost", "queue", "sequence", "event", "about")


def trace(
    text: Annotated[
        str | None,
        typer.Argument(help="Message id, correlation id, or value of a header, as published."),
    ] = None,
    data_dir: Annotated[
        Path,
        typer.Option("--data-dir", envvar="TALLYMARK_DATA_DIR", help="The broker's data folder."),
    ] = Path("tallymark-data"),
    body: Annotated[
        str | None, typer.Option(help="In place of TEXT: a part of the message's body.")
    ] = None,
    number: Annotated[
        int | None,
        typer.Option(
            min=1, help="In place of TEXT: the broker's number of the message, broker_message_id."
        ),
    ] = None,
    rows: Annotated[
        int, typer.Option(min=1, help="Rows of the journal to look at, the newest first.")
    ] = MOST_ROWS,
    json: Annotated[bool, typer.Option("--json", help="JSON instead of tables.")] = False,
) -> None:
    """Show where a message went: its journey through every queue, from the journal.

    Looks at the newest rows of the journal, while a broker runs on the folder or not. Exit code 1
    where no message is found. For older messages, or many: tallymark pipeline ledger.
    """
    given = [one for one in (text, body, number) if one is not None]
    if len(given) != 1 or given == [""]:
        fail("expected one of TEXT, --body and --number", USAGE)
    require("numpy", "pyarrow", extra="spark")
    from tallymark.spark.client import CannotRun
    from tallymark.spark.trace import Sought, TooMany
    from tallymark.spark.trace import trace as look

    if number is not None:
        sought = Sought(number=number)
    else:
        sought = Sought(text) if text is not None else Sought(body or "", ("body",))
    try:
        found = look(data_dir, sought, rows)
    except (CannotRun, TooMany, FileNotFoundError) as error:
        fail(str(error))
    if json:
        show_json(_as_json(found))
    else:
        _show(found)
    if not found.journeys:
        raise typer.Exit(NOT_FOUND)


def _show(found: Traced) -> None:
    for journey in found.journeys:
        print(_headline(journey))
        rows = [
            {name: getattr(step, name) for name in STEPS} | {"time": _shown(step.time)}
            for step in journey.steps
        ]
        show_table(rows, STEPS, "no row of it among those looked at", ("vhost", "sequence"))
        for vhost, queue, state in journey.now:
            print(f"{state} in {queue} ({vhost})")
    if not found.journeys:
        print("no message found")
    since = "" if found.since is None else f", since {_shown(found.since)}"
    rest = (
        "all that there are"
        if found.is_all
        else "older ones with --rows, or with tallymark pipeline ledger"
    )
    print(f"looked at {found.rows:,} rows of the journal{since}: {rest}")


def _headline(journey: Journey) -> str:
    words = [f"message {journey.number}"]
    for name in ("message_id", "correlation_id", "exchange", "routing_key"):
        value = journey.properties.get(name)
        if value is not None:
            words.append(f"{name.replace('_', ' ')} {value!r}")
    if journey.body_bytes is not None:
        words.append(f"{journey.body_bytes:,} bytes")
    return ", ".join(words)


def _as_json(found: Traced) -> dict[str, Any]:
    return {
        "journeys": [
            {
                "broker_message_id": journey.number,
                **{name: _plain(value) for name, value in journey.properties.items()},
                "body_bytes": journey.body_bytes,
                "steps": [
                    {name: _plain(getattr(step, name)) for name in STEPS} for step in journey.steps
                ],
                "now": [
                    {"vhost": vhost, "queue": queue, "state": state}
                    for vhost, queue, state in journey.now
                ],
            }
            for journey in found.journeys
        ],
        "rows": found.rows,
        "since": _plain(found.since),
        "is_all": found.is_all,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    return dict(value) if isinstance(value, list) else value


def _shown(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def add_to(app: typer.Typer) -> None:
    app.command()(trace)
