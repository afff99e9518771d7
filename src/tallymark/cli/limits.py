"""`tallymark limits`: limits of users and virtual hosts of a running broker, over HTTP."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from tallymark.cli.inspect import LOGIN, URL, Json, Login, Url, ask, ask_list
from tallymark.cli.output import fail, show_json, show_table

app = typer.Typer(
    help="Limits of users and virtual hosts: connections, channels, queues, publish rate.",
    no_args_is_help=True,
)
Kind = Annotated[str, typer.Argument(help="user or vhost.", metavar="user|vhost")]
Name = Annotated[str, typer.Argument(help="Which one.")]
Limit = Annotated[
    str,
    typer.Argument(
        help="max-connections, max-publish-rate (messages a second); of a user max-channels, of a "
        "virtual host max-queues."
    ),
]


def _path(kind: str, name: str, limit: str) -> str:
    if kind not in ("user", "vhost"):
        fail(f"{kind!r}, expected user or vhost", 2)
    return f"/api/{kind}-limits/{quote(name, safe='')}/{quote(limit, safe='')}"


@app.command(name="list")
def list_limits(url: Url = URL, user: Login = LOGIN, json: Json = False) -> None:
    """Limits that are set."""
    rows = [
        {"of": kind, "name": row[kind], "limit": limit, "value": value}
        for kind in ("user", "vhost")
        for row in ask_list(url, user, f"/api/{kind}-limits")
        for limit, value in row["value"].items()
    ]
    if json:
        return show_json(rows)
    return show_table(rows, ("of", "name", "limit", "value"), "no limits")


@app.command(name="set")
def set_limit(
    kind: Kind,
    name: Name,
    limit: Limit,
    value: Annotated[int, typer.Argument(help="The limit; 0: none at all.", min=0)],
    url: Url = URL,
    user: Login = LOGIN,
) -> None:
    """Set a limit. What is open already stays; a publish rate holds at once."""
    ask(url, user, "PUT", _path(kind, name, limit), {"value": value})
    print(f"{limit} of {kind} '{name}' is {value}")


@app.command()
def clear(kind: Kind, name: Name, limit: Limit, url: Url = URL, user: Login = LOGIN) -> None:
    """Take a limit away."""
    ask(url, user, "DELETE", _path(kind, name, limit))
    print(f"{limit} of {kind} '{name}' is gone")
