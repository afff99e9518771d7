"""Streams that are not as they should be: nobody reads the output, the disk is full, the terminal
lacks the characters, stdin is closed; and Ctrl-C before a command is at work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tallymark.cli import main as cli
from tests.support import forked
from tests.support.forked import COMMAND

NAME = "zählung ☃"


def end_of(*words: str, stdout: int, **variables: str) -> tuple[int, str]:
    """Return the exit code and what stderr says of a command with this stdout."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [*COMMAND, *words], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False,
        env=environ | variables,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("variables", [{}, {"PYTHONUNBUFFERED": "1"}])
@pytest.mark.parametrize("words", [("--help",), ("completion", "bash"), ("nsqd", "-help")])
def test_a_pipe_that_nobody_reads_any_more_is_left_without_a_word(
    words: tuple[str, ...], variables: dict[str, str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert end_of(*words, stdout=writer, **variables) == (1, "")
    finally:
        os.close(writer)


@pytest.mark.parametrize("words", [("--help",), ("check-config",)])
def test_output_that_the_disk_has_no_room_for_is_told_in_one_line(words: tuple[str, ...]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        assert end_of(*words, stdout=full) == (1, "tallymark: No space left on device\n")
    finally:
        os.close(full)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437"])
def test_characters_that_a_terminal_lacks_are_shown_as_escapes(
    tmp_path: Path, encoding: str
) -> None:
    """A user is there, though the sentence that says so cannot be shown as it is."""
    folder = str(tmp_path)
    for words in (["add", NAME, "--password", "x"], ["list"]):
        done = subprocess.run(
            [*COMMAND, "user", *words, "--data-dir", folder], capture_output=True, check=False,
            env=os.environ | {"PYTHONIOENCODING": encoding},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")
        assert NAME.encode(encoding, "backslashreplace") in done.stdout


def test_ctrl_c_while_a_command_is_loaded_ends_it_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(words: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", interrupted)
    monkeypatch.setattr(sys, "argv", ["tallymark", "doctor"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("words", [("queues", "--watch", "inf"), ("top", "--interval", "1e12")])
def test_a_time_that_no_clock_has_room_for_is_refused(words: tuple[str, ...]) -> None:
    done = forked.run(*words)
    assert done.returncode == 2
    assert "less than or equal to 86400" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("publish", "orders"),
        ("definitions", "import", "-"),
        ("move", "--definitions", "--from", "-"),
        ("user", "add", "ann", "--password", "-"),
        ("user", "add", "ann"),
    ],
)
def test_a_closed_stdin_is_told_in_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    """As of a program that a daemon starts without streams."""
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, *words], capture_output=True, text=True,
        check=False, env=os.environ | {"TALLYMARK_DATA_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "tallymark: stdin is closed, expected something to read from it\n"
