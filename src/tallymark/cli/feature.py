"""`tallymark feature`: feature flags of a running broker, over HTTP."""

from __future__ import annotations

import typer

from tallymark.cli.inspect import LOGIN, URL, Json, Login, Url, ask
from tallymark.cli.output import show_json, show_table
from tallymark.spark.client import api_path

app = typer.Typer(
    help="Feature flags: which newer stored forms are written. One way.", no_args_is_help=True
)


@app.command(name="list")
def list_features(url: Url = URL, user: Login = LOGIN, json: Json = False) -> None:
    """Feature flags and whether they are enabled."""
    rows = ask(url, user, "GET", api_path("features"))["features"]
    if json:
        return show_json(rows)
    return show_table(rows, ("name", "enabled", "needs", "help"), "no feature flags", ("needs",))


@app.command()
def enable(name: str, url: Url = URL, user: Login = LOGIN) -> None:
    """Enable a feature flag, for good: no version that lacks it can then use the data folder."""
    ask(url, user, "PUT", api_path("features", name))
    print(f"feature flag '{name}' is enabled")
