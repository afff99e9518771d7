"""Runs the programs of docs/quickstarts.md: see page.py. What is not installed is passed over, and
said."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess

GOPATH = Path("/usr/share/gocode")
"""Place of Debian's packages of Go modules."""

if TYPE_CHECKING:
    from tests.docs.page import Example, Page


def run_all(page: Page, broker: BrokerProcess, wants_spark: bool) -> None:
    page.run(page.take("import pika"), {})
    assert settled(broker, "pika", 1)
    page.run(page.take("import aio_pika"), {})
    assert settled(broker, "aio-pika", 1)
    celery(page, page.take("Celery("))
    faststream(page, page.take("RabbitBroker"))
    page.take("@RabbitListener", language="java")
    node(page, page.take("amqplib", language="javascript"))
    go(page, page.take("amqp091-go", language="go"))
    page.take("RabbitMQ.Client", language="csharp")
    pynsq(page, page.take("import nsq"))
    landing = page.take("readStream")
    if wants_spark:
        page.declare("spark")
        page.fill("spark", b"1", b"2")
        from tallymark.spark.java import find_java

        os.environ["PYSPARK_PYTHON"] = sys.executable  # as in an environment that is activated
        os.environ["JAVA_HOME"] = str(find_java().home)
        names: dict[str, object] = {}
        page.run(landing, names)
        assert list((page.folder / "lake/spark").glob("*.parquet"))
        names["spark"].stop()  # type: ignore[attr-defined]
        assert settled(broker, "spark", 2)


def settled(broker: BrokerProcess, queue: str, count: int) -> bool:
    """Wait until so many of a queue's messages are settled."""
    until(lambda: broker.queues()[queue]["settled"] >= count, what=queue)
    return bool(broker.queues()[queue]["settled"] == count)


@contextmanager
def running(page: Page, name: str, *command: str) -> Iterator[None]:
    """A program that goes on until it is told to end. What it says is shown where a page fails."""
    with (page.folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=page.folder, stdout=log, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(page.folder), *sys.path])},
        )  # fmt: skip
    try:
        yield
    except BaseException:
        print((page.folder / f"{name}.log").read_text(errors="replace"), file=sys.stderr)
        raise
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()


def ended(page: Page, *command: str, **variables: str) -> str:
    """Run a program to its end. Return what it says."""
    done = subprocess.run(
        command, cwd=page.folder, env={**os.environ, **variables}, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def celery(page: Page, example: Example) -> None:
    (page.folder / "tasks.py").write_text(example.text)
    words = ("-A", "tasks", "worker", "--pool", "solo", "--without-mingle", "--without-gossip")
    call = f"import tasks; print(tasks.add.delay(2, 3).get(timeout={PATIENCE_S}))"
    with running(page, "celery", sys.executable, "-m", "celery", *words):
        assert ended(page, sys.executable, "-c", call) == "5\n"


def faststream(page: Page, example: Example) -> None:
    if find_spec("faststream") is None:
        return
    (page.folder / "orders.py").write_text(example.text)
    with running(page, "faststream", sys.executable, "-m", "faststream", "run", "orders:app"):
        until(lambda: "faststream" in page.broker.queues())
        assert settled(page.broker, "faststream", 1)


def node(page: Page, example: Example) -> None:
    modules = Path(sys.prefix) / "node_modules"
    if shutil.which("node") is None or not (modules / "amqplib").exists():
        return
    (page.folder / "quick.js").write_text(example.text)
    assert ended(page, "node", "quick.js", NODE_PATH=str(modules)) == "hello\n"


def go(page: Page, example: Example) -> None:
    """With the module as Debian has it: nothing is fetched."""
    if shutil.which("go") is None or not (GOPATH / "src/github.com/rabbitmq/amqp091-go").exists():
        return
    (page.folder / "quick.go").write_text(example.text)
    where = {"GO111MODULE": "off", "GOPATH": str(GOPATH), "GOFLAGS": ""}
    cache = {"GOCACHE": str(page.folder / "go-cache")}
    assert ended(page, "go", "run", "quick.go", **where, **cache) == "hello\n"


def pynsq(page: Page, example: Example) -> None:
    if find_spec("nsq") is None:
        return
    (page.folder / "packer.py").write_text(example.text)
    with running(page, "pynsq", sys.executable, "packer.py"):
        until(lambda: "orders:packing" in page.broker.queues())
        assert settled(page.broker, "orders:packing", 1)
