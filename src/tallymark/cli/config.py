"""`tallymark config`: have a running broker read its configuration again; import another broker's
configuration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tallymark.cli.inspect import LOGIN, URL, Json, Login, Url, ask
from tallymark.cli.output import fail, show_json
from tallymark.spark.client import api_path

USAGE = 2

app = typer.Typer(help="The configuration of a broker.", no_args_is_help=True)


@app.command()
def reload(url: Url = URL, user: Login = LOGIN, json: Json = False) -> None:
    """Have a running broker read its configuration again. Refused as a whole, or taken."""
    done = ask(url, user, "POST", api_path("config", "reload"))
    if json:
        return show_json(done)
    print(f"in effect now: {', '.join(done['changed']) or 'nothing new'}")
    if done["at_next_start"]:
        print(f"with the next start: {', '.join(done['at_next_start'])}")
    return None


@app.command(name="import-qpid")
def import_qpid(
    file: Annotated[Path, typer.Argument(help="Qpid's XML with <consumer> sections.")],
) -> None:
    """Show Qpid's configuration of slow consumers as a [slow_consumers] section."""
    from tallymark.server.config.qpid import QpidRefused, as_toml, read_qpid

    try:
        text = file.read_text(encoding="utf-8")
        found = read_qpid(text)
    except UnicodeDecodeError as error:
        fail(f"{file}: {error}")
    except QpidRefused as error:
        fail(f"{file}: {error}", USAGE)
    for warning in found.warnings:
        print(f"tallymark: {file}: {warning}", file=sys.stderr)
    print(as_toml(found.value), end="")
