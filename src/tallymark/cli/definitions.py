"""`tallymark definitions`: users, virtual hosts, policies and topology as one file, over HTTP."""

from __future__ import annotations

import json as jsons
import os
import stat
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from tallymark.cli.inspect import LOGIN, URL, Login, Url, ask
from tallymark.cli.output import fail, reason_of, standard_input

app = typer.Typer(
    help="Export and import users, virtual hosts, policies and topology, as RabbitMQ has them.",
    no_args_is_help=True,
)
File = Annotated[Path, typer.Argument(help="JSON file; '-' for stdout or stdin.")]
Vhost = Annotated[str | None, typer.Option(help="This virtual host only; all when not given.")]
STREAM = Path("-")
BYTE_ORDER_MARK = "\ufeff"
"""Begins files of PowerShell and Excel; JSON may be read without it [RFC 8259 §8.1]."""


@app.command(name="export")
def export(file: File, vhost: Vhost = None, url: Url = URL, user: Login = LOGIN) -> None:
    """Write what there is, without messages, to a file. Password hashes are in it."""
    text = jsons.dumps(ask(url, user, "GET", _path(vhost)), indent=2) + "\n"
    if file == STREAM:
        print(text, end="")
        return
    _write(file, text)
    print(f"definitions exported to {file}", file=sys.stderr)


def _write(file: Path, text: str) -> None:
    """Write a file that its owner alone may read; one that was there is for its owner alone before
    the text is in it. What is no file (a pipe, /dev/stdout) stays as it is."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fchmod(descriptor, 0o600)
            os.ftruncate(descriptor, 0)
        opened.write(text)


@app.command(name="import")
def import_file(file: File, vhost: Vhost = None, url: Url = URL, user: Login = LOGIN) -> None:
    """Take in a file that RabbitMQ or this broker exported. What is not offered here is passed
    over and named; if something is wrong nothing is done."""
    take_in(read(file), str(file), vhost, url, user)


def read(file: Path) -> dict[str, Any]:
    """Return the definitions in a file, or leave with exit code 1."""
    try:
        text = standard_input().read() if file == STREAM else file.read_text("utf-8")
        value = jsons.loads(text.removeprefix(BYTE_ORDER_MARK))
    except OSError as error:
        fail(reason_of(error))
    except ValueError as error:
        fail(f"{file}: expected JSON: {error}")
    if not isinstance(value, dict):
        fail(f"{file}: expected a JSON object")
    return value


def take_in(value: dict[str, Any], of: str, vhost: str | None, url: str, user: str) -> None:
    """Have a broker take in definitions, and say what it has not. of: the file or broker that they
    come from."""
    found = ask(url, user, "POST", _path(vhost), value)
    for text in found.get("unsupported", []):
        print(f"tallymark: not supported: {text}", file=sys.stderr)
    print(f"definitions of {of} imported")
    _show_shovels(value, url)


def _show_shovels(definitions: dict[str, Any], url: str) -> None:
    """Print the lines of configuration that take the place of RabbitMQ's dynamic shovels."""
    from tallymark.shovels.dynamic import shovels_in
    from tallymark.shovels.plan import shown

    first = url.partition(",")[0]
    address = shown(first if "://" in first else f"http://{first}").rstrip("/")
    here = address.replace("://", "://USER:PASSWORD@", 1)
    if found := shovels_in(definitions, here):
        print("\n# In place of the shovels, for the configuration of this broker:")
    for shovel in found:
        print("", *shovel.lines(), sep="\n")


def _path(vhost: str | None) -> str:
    return "/api/definitions" + ("" if vhost is None else f"/{quote(vhost, safe='')}")
