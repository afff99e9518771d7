"""The command `tallymark` and its subcommands. Results go to stdout, logs and errors to stderr.

A command imports what it needs itself and nothing else: help and `nsqd` do without typer, and so
does `serve` where its flags are plain. tests/cli/test_imports.py holds that.

Exit codes: 0 done; 1 the command failed (the reason is on stderr); 2 wrong usage or configuration;
3 the data folder is in use by another broker; 4 the journal failed or is corrupt; 5 another broker
leads the journal, or has taken the lead; 130 Ctrl-C ended it.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Final

from tallymark.cli.commands import COMMANDS, COMPLETE, version_line

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C: what a shell says of a program that SIGINT ended."""


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


def main() -> None:
    """Entry point of the console script."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may lack a name's characters
    try:
        try:
            if COMPLETE in os.environ:
                from tallymark.cli.completion import complete

                complete()
            sys.exit(_run(sys.argv[1:]))
        finally:
            _flush()
    except KeyboardInterrupt:  # while a command is loaded: a running one has its own answer
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # whoever reads the output has seen enough
        sys.exit(1)
    except OSError as error:
        from tallymark.cli.output import reason_of

        print(f"tallymark: {reason_of(error)}", file=sys.stderr)
        sys.exit(1)
    except UnicodeEncodeError as error:
        if error.reason != "surrogates not allowed":  # bytes of a word that are no text
            raise
        print(f"tallymark: {error.object!r:.80}, expected text in UTF-8", file=sys.stderr)
        sys.exit(2)


def _flush() -> None:
    """Write what stdout still holds, while an error can be told. What it does not take is thrown
    away: the interpreter would try again at its end."""
    if sys.stdout is None:  # closed by whoever started us
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


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
        from tallymark.cli.serving import plain_flags, spelled_out

        words = spelled_out(words)
        flags = plain_flags(words[1:])
        if flags is not None:
            from tallymark.cli.serving import serve_with

            return serve_with(flags)
    from tallymark.cli.app import build

    build(words[0])(words)
    return None
