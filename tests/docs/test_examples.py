"""Every example in README.md and docs/ is run as it is printed; see page.py for how. Commands in
the text are looked up: there is such a command, with such options."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

import click
import pytest
import typer

from tallymark.cli.app import build
from tests.docs.page import AMQP, ELSEWHERE, HTTP, NSQ, PAGES, ROOT, WITH_SPARK, examples
from tests.support.long import long
from tests.support.patience import PATIENCE_S

ONLY_LONG = ("docs/pipelines.md", "docs/quickstarts.md", "docs/spark.md")
"""Pages that need Spark throughout, or programs that are not installed for `make test`."""
DOCUMENTS = sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
)


@cache
def network() -> list[str] | None:
    """What a process is started with to have a network of its own; nothing, where the ports are
    free here; None: neither."""
    unshare = shutil.which("unshare")
    if unshare is not None:
        for flags in ("-rn", "-n"):
            if subprocess.run([unshare, flags, "true"], capture_output=True).returncode == 0:
                return [unshare, flags]
    for port in (AMQP, HTTP, NSQ, NSQ + 1):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return None
    return []


def run_page(page: str, *flags: str) -> None:
    prefix = network()
    if prefix is None:
        pytest.skip(
            f"one of the ports {AMQP}, {HTTP}, {NSQ}, {NSQ + 1} is in use, and no network of our "
            "own can be had"
        )
    command = [*prefix, sys.executable, "-m", "tests.docs.page", page, *flags]
    if prefix:
        command.append("--own-network")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)},
        capture_output=True,
        text=True,
        timeout=8 * PATIENCE_S,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def test_every_page_with_examples_is_run() -> None:
    assert {page for page in DOCUMENTS if examples(page)} == {*PAGES, *ELSEWHERE}
    for page, tests in ELSEWHERE.items():
        assert page in (ROOT / tests).read_text()


@pytest.mark.parametrize("page", sorted(set(PAGES) - set(ONLY_LONG)))
def test_the_examples_of_a_page_run_as_printed(page: str) -> None:
    run_page(page)


# A JVM for each page; what the examples call is tested in tests/spark, in the session there.
@pytest.mark.spark
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=long(ci=page == "README.md")) for page in WITH_SPARK]
)
def test_the_examples_with_spark_run_as_printed(page: str) -> None:
    run_page(page, "--spark")


@long  # programs of nine clients, of which some are not installed for `make test`
def test_the_quick_starts_run_as_printed() -> None:
    run_page("docs/quickstarts.md")


@long(ci=False)  # a JVM for one program more; README.md's does the same in CI
@pytest.mark.spark
def test_the_quick_starts_run_as_printed_with_spark() -> None:
    run_page("docs/quickstarts.md", "--spark")


# Imports


@pytest.mark.parametrize("page", DOCUMENTS)
def test_what_examples_import_is_there(page: str) -> None:
    """Read from the sources: examples with Spark are run by `make test-long` only."""
    for module, names in re.findall(
        r"^ *from (tallymark[\w.]*) import ([\w, ]+)", (ROOT / page).read_text(), re.MULTILINE
    ):
        spec = importlib.util.find_spec(module)
        assert spec is not None, f"{page}: no module {module}"
        assert spec.origin is not None
        words = set(re.findall(r"\w+", Path(spec.origin).read_text()))
        folder = Path(spec.origin).parent
        for name in map(str.strip, names.split(",")):
            assert name in words or (folder / f"{name}.py").exists(), f"{page}: {module}.{name}"


# Commands


def commands(page: str) -> list[tuple[str, int, list[str]]]:
    """Lines of examples and indented lines that begin with `tallymark`, or with a path to it: page,
    line, words."""
    found = []
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        match = re.match(r"(?: {4,}|\t)?(?:/\S+/)?tallymark ([a-z].*)", line)
        if match is not None:
            words = re.sub(r"\s+#.*", "", match.group(1)).rstrip("\\ ").split()
            found.append((page, number, words))
    return found


COMMANDS = [command for page in DOCUMENTS for command in commands(page)]


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 40


@cache
def tallymark() -> click.Command:
    """The command with all of its commands: made once, as it takes a tenth of a second."""
    command: click.Command = typer.main.get_command(build())
    return command


@pytest.mark.parametrize(
    ("page", "line", "words"), COMMANDS, ids=[f"{Path(p).name}-{n}" for p, n, _ in COMMANDS]
)
def test_a_command_in_the_text_is_there_with_its_options(
    page: str, line: int, words: list[str]
) -> None:
    command = tallymark()
    rest = list(words)
    while isinstance(command, click.Group) or hasattr(command, "commands"):
        name = rest.pop(0)
        known = command.commands  # type: ignore[attr-defined]
        assert name in known, f"{page}:{line}: no command {name!r}, expected one of {sorted(known)}"
        command = known[name]
    options = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    options.add("--help")
    for word in rest:
        if word.startswith("--"):
            option = word.partition("=")[0].strip("[]`,.;)")
            assert option in options, f"{page}:{line}: no option {option} of {command.name}"
