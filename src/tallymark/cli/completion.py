"""`tallymark completion`: the script that has a shell complete commands and flags."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Final

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]
from typer.main import get_command

from tallymark.cli.commands import COMMANDS, COMPLETE
from tallymark.cli.output import USAGE, fail

SHELLS: Final = ("bash", "zsh", "fish")


def completion(
    shell: Annotated[str, typer.Argument(help=", ".join(SHELLS) + ".", metavar="SHELL")],
) -> None:
    """Show what a shell has to read to complete commands and flags.

    bash: tallymark completion bash > ~/.local/share/bash-completion/completions/tallymark

    zsh: tallymark completion zsh > _tallymark, in a folder of $fpath

    fish: tallymark completion fish > ~/.config/fish/completions/tallymark.fish
    """
    if shell not in SHELLS:
        fail(f"shell is {shell!r}, expected one of {', '.join(SHELLS)}", USAGE)
    print(get_completion_script(prog_name="tallymark", complete_var=COMPLETE, shell=shell))


def complete() -> None:
    """Answer a shell that asks for completions, and end the process."""
    from tallymark.cli.app import build

    words = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()
    name = words[1] if len(words) > 2 and words[1] in COMMANDS else None
    app = build(name)
    app._add_completion = True
    get_command(app).main(prog_name="tallymark", complete_var=COMPLETE)
    sys.exit(0)


def add_to(app: typer.Typer) -> None:
    app.command()(completion)
