"""The command `tallymark` and its subcommands. Results go to stdout, logs and errors to stderr.

A command imports what it needs itself and nothing else: help and `nsqd` do without typer, and so
does `serve` where its flags are plain. tests/cli/test_imports.py holds that.

Exit codes: 0 done; 1 the command failed (the reason is on stderr); 2 wrong usage or configuration;
3 the data folder is in use by another broker; 4 the journal failed or is corrupt.
"""

from __future__ import annotations

import sys
from typing import Final

from tallymark import __version__

COMMANDS: Final = {
    "serve": ("serve", "Run a broker until SIGTERM or SIGINT."),
    "check-config": ("serve", "Show the settings as a broker would see them."),
    "nsqd": ("nsqd", "Run a broker in nsqd's place: takes nsqd's own flags (-help shows them)."),
    "status": ("inspect", "The broker at a glance: version, memory, journal, alarms, counts."),
    "queues": ("inspect", "Queues with what entered, what waits, is held and is done."),
    "exchanges": ("inspect", "Exchanges of every virtual host."),
    "connections": ("inspect", "Client connections."),
    "consumers": ("inspect", "Consumers with what they were sent, settled and hold."),
    "log-level": ("inspect", "Change a running broker's log level."),
    "demo": ("pipeline", "The play: publish, consume, crash, land through Spark, reconcile."),
    "subscription": ("inspect", "Durable subscriptions of a queue."),
    "queue": ("topology", "Queues of a running broker."),
    "exchange": ("topology", "Exchanges of a running broker."),
    "config": ("config", "The configuration of a broker."),
    "policy": ("policy", "Settings for queues and exchanges by pattern of their names."),
    "quarantine": ("quarantine", "Messages whose bytes cannot be read."),
    "definitions": ("definitions", "Export and import users, policies and topology."),
    "feature": ("feature", "Feature flags: which newer stored forms are written."),
    "user": ("user", "Users of a broker, kept in its data folder."),
    "journal": ("journal", "A data folder's journal."),
    "pipeline": ("pipeline", "Data pipelines: Spark over queues and the ledger."),
}
"""Commands by name: the module of tallymark.cli, and a line of help."""
GROUPS: Final = {
    "subscription": "subscriptions",
    "queue": "queue",
    "exchange": "exchange",
    **dict.fromkeys(
        ("config", "policy", "quarantine", "definitions", "feature", "user", "journal", "pipeline"),
        "app",
    ),
}
"""Groups of commands, and the name of their app in that module."""


def help_text() -> str:
    width = max(map(len, COMMANDS))
    lines = (f"  {name:{width}}  {what}" for name, (_, what) in COMMANDS.items())
    return "\n".join(
        (
            "Usage: tallymark [OPTIONS] COMMAND [ARGS]...",
            "",
            "A message broker that accounts for every message.",
            "",
            "Options:",
            f"  {'--version':{width}}  Show the version, and whether the hot layers are compiled.",
            f"  {'--help':{width}}  Show this message and exit; after a command: its flags.",
            "",
            "Commands:",
            *lines,
        )
    )


def version_line() -> str:
    from tallymark import is_compiled

    return f"tallymark {__version__} ({'compiled' if is_compiled() else 'pure'})"


def main() -> None:
    """Entry point of the console script."""
    words = sys.argv[1:]
    try:
        sys.exit(_run(words))
    except OSError as error:
        from tallymark.cli.output import reason_of

        print(f"tallymark: {reason_of(error)}", file=sys.stderr)
        sys.exit(1)


def _run(words: list[str]) -> int | None:
    """Run the command and return its exit code; commands of typer leave by SystemExit."""
    if words in ([], ["--help"]):
        print(help_text())
        return 0 if words else 2
    if words == ["--version"]:
        print(version_line())
        return 0
    if words[0] == "nsqd":
        from tallymark.cli.nsqd import main as run_nsqd

        return run_nsqd(words[1:])
    if words[0] == "serve":
        from tallymark.cli.flags import plain_flags

        flags = plain_flags(words[1:])
        if flags is not None:
            from tallymark.cli.serving import serve_with

            return serve_with(flags)
    from tallymark.cli.app import build

    build(words[0])()
    return None
