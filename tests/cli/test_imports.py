"""What a command may import: the command line starts quickly and works without Spark.

How long an import takes is the machine's; which modules are there is ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tallymark.cli.app import build
from tallymark.cli.commands import COMMANDS
from tallymark.cli.main import help_text
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

SPARK = ("pyspark", "pyarrow", "pandas", "numpy", "py4j", "tallymark.spark")
TYPER = ("typer", "click", "rich", "pygments", "markdown_it")
SERVER = ("asyncio", "uvloop", "prometheus_client", "tallymark.server", "tallymark.engine")
WEB = ("aiohttp", "http.client", "yarl", "multidict")
SLOW = ("importlib.metadata", "email.message", "structlog", "difflib")
"""Of the standard library and elsewhere: what only some errors and some settings need."""


def imported(folder: Path, program: str, names: tuple[str, ...]) -> list[str]:
    """Those of the modules that the program has loaded when it ends."""
    found = folder / "imported"
    wrapped = (
        "import atexit, sys\n"
        f"names = {names!r}\n"
        f"atexit.register(lambda: open({str(found)!r}, 'w').write("
        "' '.join(n for n in names if n in sys.modules)))\n"
        f"{program}"
    )
    # A broker looks for what is nearest to a setting that it does not know, as the tests' own.
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith("TALLYMARK_")
    }
    subprocess.run(
        [sys.executable, "-c", wrapped], capture_output=True, timeout=PATIENCE_S, check=False,
        env=environ,
    )  # fmt: skip
    return found.read_text().split()


def until_ready(folder: Path) -> str:
    """The program of a broker that stops when it is ready."""
    flags = ["--data-dir", str(folder / "data"), "--amqp-port", "0", "--http-port", "0"]
    flags += ["--nsq-port", "0", "--nsq-http-port", "0"]
    return (
        f"sys.argv = {['tallymark', 'serve', *flags]!r}\n"
        "import os, signal\n"
        "from tallymark.server import run\n"
        "announce = run._announce\n"
        "def announced(*given):\n"
        "    announce(*given)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "run._announce = announced\n"
        "from tallymark.cli.main import main\n"
        "main()"
    )


@pytest.mark.parametrize(
    ("words", "barred"),
    [
        (["--help"], (*SPARK, *TYPER, *SERVER, *WEB, *SLOW)),
        (["--version"], (*SPARK, *TYPER, "asyncio", "uvloop", *WEB, *SLOW)),
        (["nsqd", "-help"], (*SPARK, *TYPER, "asyncio", "tallymark.server", *WEB)),
        (["nsqd", "-version"], (*SPARK, *TYPER, "asyncio", "uvloop", *WEB, *SLOW[:3])),
        (["queues", "--help"], (*SPARK[:5], *SERVER[:3], "aiohttp")),
        (["serve", "--help"], (*SPARK, "uvloop", "prometheus_client", *WEB)),
        (["pipeline", "--help"], (*SPARK[:5], *SERVER[:3], "aiohttp")),
    ],
    ids=" ".join,
)
def test_a_command_imports_what_it_needs(
    tmp_path: Path, words: list[str], barred: tuple[str, ...]
) -> None:
    program = f"sys.argv = {['tallymark', *words]!r}\nfrom tallymark.cli.main import main\nmain()"
    assert imported(tmp_path, program, barred) == []


def test_the_process_that_plans_a_streaming_query_needs_no_broker_and_no_decoder(
    tmp_path: Path,
) -> None:
    """Spark gives it ten seconds to connect, on however busy a machine."""
    barred = (
        *SERVER, *TYPER, "aiohttp", "pandas", "tallymark.wire", "tallymark.bridge",
        "tallymark.journal", "tallymark.spark.decode", "tallymark.spark.frames",
        "tallymark.spark.sink", "tallymark.spark.ledger", "pyarrow.compute",
    )  # fmt: skip
    program = "import tallymark.spark.source, tallymark.spark.streams"
    assert imported(tmp_path, program, barred) == []


def test_a_broker_that_nobody_asks_over_http_has_not_loaded_what_answers(tmp_path: Path) -> None:
    """Until the first connection to an HTTP port. Then it answers, and that connection is not
    refused: the ports are listened on from the start."""
    barred = (*SPARK, *TYPER, *WEB, *SLOW, "tallymark.server.http.server", "prometheus_client")
    barred += ("jinja2", "tallymark.server.page")
    barred += ("opentelemetry", "tallymark.server.tracing")
    assert imported(tmp_path, until_ready(tmp_path), barred) == []


def test_the_first_request_is_answered(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        assert broker.http("GET", "/api/tallymark/status")[0] == 200


def test_help_names_every_command_there_is() -> None:
    """The table of main.py is what there is without typer; the commands are what there is."""
    whole = build()
    found = {command.name or "" for command in whole.registered_commands}
    found |= {
        (command.callback.__name__ if command.callback else "").replace("_", "-")
        for command in whole.registered_commands
        if command.name is None
    }
    found |= {group.name or "" for group in whole.registered_groups}
    assert found - {""} == set(COMMANDS)
    for name in COMMANDS:
        assert f"  {name} " in help_text()


def test_a_worker_of_spark_loads_nothing_of_the_broker(tmp_path: Path) -> None:
    """Nor a whole protocol: of wire, what reads a message."""
    layers = ("engine", "bridge", "journal", "server")
    barred = tuple(f"tallymark.{layer}" for layer in layers)
    barred += ("tallymark.wire.amqp091.connection", "tallymark.wire.amqp10.connection")
    program = "import tallymark.spark.source, tallymark.spark.decode"
    loaded = "tallymark.spark.decode"
    assert imported(tmp_path, program, (*barred, loaded)) == [loaded]


def test_a_missing_extra_is_named() -> None:
    program = (
        "import sys; from importlib.machinery import PathFinder\n"
        "class NoSpark(PathFinder):\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('pyspark', 'pyarrow'): return None\n"
        "        return PathFinder.find_spec(name, path, target)\n"
        "sys.meta_path = [f for f in sys.meta_path if f is not PathFinder] + [NoSpark]\n"
        "sys.argv = ['tallymark', 'pipeline', 'reconcile']\n"
        "from tallymark.cli.main import main; main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 1
    assert "pip install 'tallymark[spark]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("words", "most"), [("--help", 75), ("nsqd -help", 130), ("serve", 580)])
def test_a_start_imports_no_more_modules_than_it_did(tmp_path: Path, words: str, most: int) -> None:
    """A module is 0.4 ms of CPU: help is there after 0.05 s, a broker after 0.2 s. Compiled, each
    library is one more. Whoever needs more modules raises the number, and says why."""
    found = tmp_path / "count"
    program = f"sys.argv = {['tallymark', *words.split()]!r}\n"
    program += "from tallymark.cli.main import main\nmain()"
    counting = (
        "import atexit, sys\n"
        f"atexit.register(lambda: open({str(found)!r}, 'w').write(str(len(sys.modules))))\n"
    )
    counting += until_ready(tmp_path) if words == "serve" else program
    subprocess.run(
        [sys.executable, "-c", counting], capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert int(found.read_text()) <= most
