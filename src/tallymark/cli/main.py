"""The commands of `tallymark`, put together. Results go to stdout, logs and errors to stderr.

Exit codes: 0 done; 1 the command failed (the reason is on stderr); 2 wrong usage or configuration;
3 the data folder is in use by another broker; 4 the journal failed or is corrupt.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tallymark import __version__, is_compiled
from tallymark.cli import (
    config,
    definitions,
    feature,
    inspect,
    journal,
    nsqd,
    pipeline,
    policy,
    quarantine,
    serve,
    topology,
    user,
)
from tallymark.cli.output import reason_of

app = typer.Typer(
    name="tallymark",
    help="A message broker that accounts for every message.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
serve.add_to(app)
nsqd.add_to(app)
inspect.add_to(app)
app.add_typer(inspect.subscriptions, name="subscription")
app.add_typer(topology.queue, name="queue")
app.add_typer(topology.exchange, name="exchange")
app.add_typer(config.app, name="config")
app.add_typer(policy.app, name="policy")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(definitions.app, name="definitions")
app.add_typer(feature.app, name="feature")
app.add_typer(user.app, name="user")
app.add_typer(journal.app, name="journal")
pipeline.add_to(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"tallymark {__version__} ({'compiled' if is_compiled() else 'pure'})")
        raise typer.Exit


@app.callback()
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


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except OSError as error:
        print(f"tallymark: {reason_of(error)}", file=sys.stderr)
        sys.exit(1)
