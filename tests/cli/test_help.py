"""The help of every command, as a terminal shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tallymark.cli.app import build

WIDE = 10_000
"""Columns: nothing is wrapped."""


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[Any]:
    """Every command of the tree but `nsqd`, which has nsqd's own flags: the words that call it."""
    if words != ("nsqd",):
        yield pytest.param(command, words, id=" ".join(("tallymark", *words)))
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*words, name))


def plain(text: str | None) -> str:
    return " ".join((text or "").split())


@pytest.mark.parametrize(("command", "words"), [*commands(typer.main.get_command(build()))])
def test_help_shows_the_whole_text_of_each_flag(command: Any, words: tuple[str, ...]) -> None:
    """Brackets are text, not markup: `[/KEY]` ended the command with an error."""
    shown = CliRunner().invoke(
        build(), [*words, "--help"], terminal_width=WIDE, max_content_width=WIDE
    )
    assert shown.exit_code == 0, shown.output
    assert plain(command.help) in plain(shown.output)
    for parameter in command.params:
        assert plain(getattr(parameter, "help", None)) in plain(shown.output), parameter.name


def test_every_command_takes_its_data_folder_from_the_same_variable() -> None:
    """`serve` and its like have a flag for each setting, and read the variables themselves."""
    found = {}
    for case in commands(typer.main.get_command(build())):
        command, words = case.values
        folders = {flag: one for one in command.params for flag in one.opts}
        if "--data-dir" in folders and "--amqp-port" not in folders:
            found[" ".join(words)] = folders["--data-dir"].envvar
    assert {"user add", "backup", "trace", "what-if", "pipeline reconcile"} <= found.keys()
    assert set(found.values()) == {"TALLYMARK_DATA_DIR"}
