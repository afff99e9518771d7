"""The commands that typer reads, put together; main.py says what there is."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer

from tallymark.cli.main import COMMANDS, GROUPS, version_line


def _show_version(wanted: bool) -> None:
    if wanted:
        print(version_line())
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version, and whether the hot layers are compiled or pure Python.",
        ),
    ] = False,
) -> None:
    """A message broker that accounts for every message."""


def nsqd(context: typer.Context) -> None:
    """Run a broker in nsqd's place: takes nsqd's own flags (-help shows them)."""
    from tallymark.cli.nsqd import main

    raise typer.Exit(main(context.args))


def build(name: str | None = None) -> typer.Typer:
    """The command of this name alone, or all of them where there is none of it."""
    app = typer.Typer(
        name="tallymark",
        help="A message broker that accounts for every message.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(root)
    chosen = {name: COMMANDS[name]} if name in COMMANDS else COMMANDS
    done = set()
    for command, (module, _) in chosen.items():
        if command == "nsqd":
            raw: dict[str, Any] = {"ignore_unknown_options": True, "allow_extra_args": True}
            settings = {**raw, "help_option_names": []}
            app.command(name="nsqd", context_settings=settings, add_help_option=False)(nsqd)
            continue
        found = import_module(f"tallymark.cli.{module}")
        if command in GROUPS:
            app.add_typer(getattr(found, GROUPS[command]), name=command)
        elif module not in done:
            done.add(module)
            found.add_to(app)
    return app
