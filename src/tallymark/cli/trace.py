"""`tallymark trace`: where a message went."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import typer

from tallymark.cli.inspect import LOGIN, Login, ask
from tallymark.cli.output import USAGE, fail, show_json, show_table
from tallymark.printable import printable

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
        int | None,
        typer.Option(
            min=1, help="Rows of the journal to look at, the newest first.", show_default="1000000"
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="In place of --data-dir: HTTP address of a broker, which searches."),
    ] = None,
    user: Login = LOGIN,
    json: Annotated[bool, typer.Option("--json", help="JSON instead of tables.")] = False,
) -> None:
    """Show where a message went: its journey through every queue, from the journal.

    Looks at the newest rows of the journal, while a broker runs on the folder or not. Exit code 1
    where no message is found. For older messages, or many: tallymark pipeline ledger.
    """
    given = [one for one in (text, body, number) if one is not None]
    if len(given) != 1 or given == [""]:
        fail("expected one of TEXT, --body and --number", USAGE)
    if url is not None and rows is not None:
        fail("--rows is for --data-dir: a broker has its own limit", USAGE)
    if url is not None:
        words = {"text": text, "body": body, "number": number}
        query = urlencode({name: value for name, value in words.items() if value is not None})
        found = ask(url, user, "GET", f"/api/tallymark/trace?{query}")
    else:
        found = _from_folder(data_dir, text, body, number, rows)
    if json:
        show_json(found)
    else:
        _show(found)
    if not found["journeys"]:
        raise typer.Exit(NOT_FOUND)


def _from_folder(
    folder: Path, text: str | None, body: str | None, number: int | None, rows: int | None
) -> dict[str, Any]:
    """rows: how many are looked at, whatever they take of the disk; None: the usual limits."""
    from tallymark.journeys.search import ANY_BYTES, Limits, Sought, TooMany, as_json, search
    from tallymark.stored.layout import LayoutError

    if number is not None:
        sought = Sought(number=number)
    else:
        sought = Sought(text) if text is not None else Sought(body or "", ("body",))
    limits = Limits() if rows is None else Limits(rows, ANY_BYTES)
    try:
        return as_json(search(folder, sought, limits))
    except (TooMany, FileNotFoundError) as error:
        fail(str(error))
    except LayoutError as error:
        fail(f"the journal in {folder} is not understood: {error}")


def _show(found: dict[str, Any]) -> None:
    for journey in found["journeys"]:
        print(_headline(journey))
        rows = [step | {"time": _shown(step["time"])} for step in journey["steps"]]
        show_table(rows, STEPS, "no row of it among those looked at", ("vhost", "sequence"))
        for now in journey["now"]:
            print(printable(f"{now['state']} in {now['queue']} ({now['vhost']})"))
    if not found["journeys"]:
        print("no message found")
    since = "" if found["since"] is None else f", since {_shown(found['since'])}"
    rest = (
        "all that there are"
        if found["is_all"]
        else "older ones with --data-dir and --rows, or with tallymark pipeline ledger"
    )
    print(f"looked at {found['rows']:,} rows of the journal{since}: {rest}")


def _headline(journey: dict[str, Any]) -> str:
    words = [f"message {journey['broker_message_id']}"]
    for name in ("message_id", "correlation_id", "exchange", "routing_key"):
        value = journey.get(name)
        if value is not None:
            words.append(f"{name.replace('_', ' ')} {value!r}")
    if "body_bytes" in journey:
        words.append(f"{journey['body_bytes']:,} bytes")
    return ", ".join(words)


def _shown(time: str) -> str:
    return datetime.fromisoformat(time).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def add_to(app: typer.Typer) -> None:
    app.command()(trace)
