"""`tallymark quarantine`: messages of a running broker whose bytes cannot be read."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tallymark.cli.inspect import LOGIN, URL, Json, Login, Url, ask
from tallymark.cli.output import show_json, show_table
from tallymark.spark.client import api_path

app = typer.Typer(help="Messages whose bytes cannot be read.", no_args_is_help=True)
VHost = Annotated[str, typer.Option(help="Virtual host of the queue.")]


@app.command(name="list")
def list_all(url: Url = URL, user: Login = LOGIN, json: Json = False) -> None:
    """List messages that were put aside, by queue and sequence number, and why."""
    rows = ask(url, user, "GET", "/api/tallymark/quarantine")["quarantine"]
    if json:
        return show_json(rows)
    columns = ("vhost", "queue", "first", "last", "bytes", "died_of", "trouble")
    return show_table(rows, columns, "nothing is quarantined", ("bytes", "died_of", "vhost"))


@app.command()
def retry(queue: str, vhost: VHost = "/", url: Url = URL, user: Login = LOGIN) -> None:
    """Read quarantined messages again: those whose bytes are back return to their places in the
    queue."""
    done = ask(url, user, "POST", api_path("quarantine", vhost, queue, "retry"), {})
    print(
        f"{_messages(done['back'])} back in queue '{queue}', {done['quarantined']} cannot be read"
    )


@app.command()
def drop(
    queue: str,
    first: Annotated[
        int | None, typer.Option(help="Sequence number of the first to drop.", min=1)
    ] = None,
    last: Annotated[
        int | None, typer.Option(help="Sequence number of the last to drop.", min=1)
    ] = None,
    vhost: VHost = "/",
    url: Url = URL,
    user: Login = LOGIN,
) -> None:
    """Give them up: they are counted as dropped, reason `unreadable`. What arrived together with
    one of them is stored as one and goes with it."""
    wanted: dict[str, object] = {
        name: number for name, number in (("first", first), ("last", last)) if number is not None
    }
    done: dict[str, Any] = ask(
        url, user, "POST", api_path("quarantine", vhost, queue, "drop"), wanted
    )
    print(f"{_messages(done['dropped'])} of queue '{queue}' dropped")


def _messages(n: int) -> str:
    return "1 message" if n == 1 else f"{n} messages"
