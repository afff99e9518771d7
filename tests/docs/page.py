"""Runs the examples of one page of the documentation, as they are printed.

    unshare -rn python -m tests.docs.page docs/client.md --own-network

In a network of its own there is a broker at the ports that the page means, whatever else runs on
the machine. The examples of a page share it, and a folder, in which its data folder
`tallymark-data` is. What an example takes for given (an open session, a queue with messages) is
made here, page by page; an example that nothing here runs is an error.
"""

from __future__ import annotations

import ast
import asyncio
import fcntl
import inspect
import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import tomllib
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

ROOT: Final = Path(__file__).parents[2]
AMQP: Final = 5672
HTTP: Final = 15672
NSQ: Final = 4150
"""NSQ's own port; the next one is that of its HTTP interface."""
URL: Final = "amqp://guest:guest@localhost:5672"
SIOCGIFFLAGS: Final = 0x8913
SIOCSIFFLAGS: Final = 0x8914
IFF_UP: Final = 1


@dataclass(frozen=True)
class Example:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    def code(self) -> Any:
        """Compiled so that a traceback names page and line; `await` may stand anywhere."""
        shifted = "\n" * self.line + self.text
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        return compile(shifted, self.page, "exec", flags=flags)


def examples(page: str) -> list[Example]:
    """Those of a page. Blocks without a language are output, drawings, or commands for machines
    other than this one."""
    text = (ROOT / page).read_text()
    return [
        Example(page, text[: match.start()].count("\n") + 1, match.group(1), match.group(2))
        for match in re.finditer(r"^```(\w+)\n(.*?)^```", text, re.S | re.M)
    ]


class Page:
    """The examples, the broker and the folder they share."""

    def __init__(self, broker: BrokerProcess, folder: Path, found: list[Example]) -> None:
        self.broker = broker
        self.folder = folder
        self.left = list(found)
        self.done = 0

    def take(self, *words: str, language: str = "python") -> Example:
        """The first example that is left; it has these words, or this file is behind the page."""
        example = self.left.pop(0)
        missing = [word for word in words if word not in example.text]
        if missing or example.language != language:
            raise AssertionError(f"{example.where}: expected {language} with {missing}")
        self.done += 1
        return example

    def run(self, example: Example, names: dict[str, Any]) -> None:
        """Python, in these names, which keep what it defines."""
        names.setdefault("__name__", "example")
        result = eval(example.code(), names)
        if inspect.iscoroutine(result):
            asyncio.run(result)

    def shell(self, example: Example, without: tuple[str, ...] = ()) -> str:
        """Words of a shell, as one script; `without`: lines that begin so."""
        lines = [line for line in example.text.splitlines() if not line.startswith(without)]
        commands = self.folder / "bin"
        commands.mkdir(exist_ok=True)
        (commands / "tallymark").write_text(f'#!/bin/sh\nexec {sys.executable} -m tallymark "$@"\n')
        (commands / "tallymark").chmod(0o755)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
            cwd=self.folder,
            env={**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE_S,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"{example.where}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
        return done.stdout

    def declare(self, name: str, **arguments: object) -> None:
        table = {key.replace("_", "-"): value for key, value in arguments.items()}
        path = f"/api/queues/%2F/{quote(name, safe='')}"
        self.broker.http("DELETE", path)
        status, answer = self.broker.http("PUT", path, {"durable": True, "arguments": table})
        assert status == 201, answer

    def fill(self, queue: str, *bodies: bytes, exchange: str = "", **properties: Any) -> None:
        import pika

        properties = {"delivery_mode": 2, **properties}
        with pika.BlockingConnection() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for body in bodies:
                channel.basic_publish(exchange, queue, body, pika.BasicProperties(**properties))


# Pages


def readme(page: Page) -> None:
    serving = page.take("tallymark serve", language="sh")
    assert page.shell(serving, without=("pip", "tallymark serve")) == ""
    assert page.broker.ready["amqp"][1] == AMQP  # that is what runs already
    page.run(page.take("basic_publish", "basic_ack"), {})
    shown = page.shell(page.take("tallymark queues", language="sh"))
    assert re.search(r"\borders\b.*\b100\b.*\b99\b", shown), shown
    landing = page.take("pipeline land", "pipeline reconcile", language="sh")
    if wants_spark():
        landed = page.shell(landing, without=("pip",))
        assert list((page.folder / "orders").rglob("*.parquet")), landed
        assert re.search(r"\borders +100 +0 +100 +0 +0\b", landed), landed
    page.shell(page.take("make demo", "make test", language="sh"), without=("make",))
    check_targets("README.md")


def client(page: Page) -> None:
    page.run(page.take("asyncio.run(main())"), {})
    while page.left:
        example = page.take()
        page.broker.http("DELETE", "/api/exchanges/%2F/events")
        page.declare("orders")
        page.declare("events", x_queue_type="stream")
        page.fill("orders", *[b"%d" % i for i in range(11)])
        page.fill("events", b"0", b"1")
        asyncio.run(inside_a_session(example))


async def inside_a_session(example: Example) -> None:
    """With what the guide has open. Those that read for ever are cancelled in the end."""
    import tallymark.client as client

    names = {"asyncio": asyncio, **{name: getattr(client, name) for name in client.__all__}}
    source = textwrap.indent(example.text, "    ")
    shifted = "\n" * (example.line - 1) + f"async def example(connection, session):\n{source}"
    exec(compile(shifted, example.page, "exec"), names)
    is_endless = "receiver.run(" in example.text or "/queues/events" in example.text
    async with client.connect(URL) as connection, connection.session() as session:
        queue = "events" if "/queues/events" in example.text else "orders"
        call = asyncio.ensure_future(names["example"](connection, session))  # type: ignore[operator]
        try:
            async with asyncio.timeout(PATIENCE_S):
                while is_endless and not call.done():
                    state = await session.queue_state(queue)
                    if queue == "orders" and not state.message_count:
                        break
                    if queue == "events" and state.consumer_count:
                        break
                if not is_endless:
                    await call
        finally:
            call.cancel()
            await asyncio.wait([call])
        if not call.cancelled() and call.exception() is not None:
            raise call.exception() or AssertionError


def transactions(page: Page) -> None:
    import pika

    for queue in ("orders", "invoices", "shipments"):
        page.declare(queue)
    page.fill("orders", b"1")
    with pika.BlockingConnection() as connection:
        channel = connection.channel()
        names = {"pika": pika, "channel": channel, "invoice": b"i", "shipment": b"s"}
        page.run(page.take("tx_commit"), names)
        found = page.broker.queues()
        assert [found[q]["ready"] for q in ("orders", "invoices", "shipments")] == [0, 1, 1]
        channel.basic_publish("", "invoices", b"never")
        page.run(page.take("tx_rollback"), names)
        assert page.broker.queues()["invoices"]["ready"] == 1
    example = page.take("on_transaction_declared")
    try:
        import proton
    except ImportError:
        return
    from proton import handlers, reactor

    names = {
        "MessagingHandler": handlers.MessagingHandler,
        "TransactionHandler": handlers.TransactionHandler,
        "invoice": proton.Message(body="invoice", durable=True),
    }
    page.run(example, names)
    page.fill("orders", b"2")

    class Mover(names["Move"]):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(prefetch=1, auto_accept=False)
            self.committed = 0

        def on_start(self, event: Any) -> None:
            connection = event.container.connect(URL)
            event.container.create_receiver(connection, "/queues/orders")
            self.sender = event.container.create_sender(connection, "/queues/invoices")

        def on_transaction_committed(self, event: Any) -> None:
            self.committed += 1
            event.connection.close()

    mover = Mover()
    reactor.Container(mover).run()
    assert mover.committed == 1
    found = page.broker.queues()
    assert [found[q]["ready"] for q in ("orders", "invoices")] == [0, 2]


def filters(page: Page) -> None:
    page.declare("q")
    page.fill("q", b"blue")
    page.fill("q", b"red", headers={"color": "red", "n": 3})
    rabbit, proton_example = page.take("StreamFilterOptions"), page.take("Filter(")
    more = page.take("application_properties")
    try:
        import rabbitmq_amqp_python_client as rabbitmq
    except ImportError:
        rabbitmq = None
    if rabbitmq is not None:

        class Seen(BaseException):
            pass

        class Handler(rabbitmq.AMQPMessagingHandler):  # type: ignore[misc]
            def on_amqp_message(self, event: Any) -> None:
                self.delivery_context.accept(event)
                raise Seen(str(bytes(event.message.body)))

        names = {name: getattr(rabbitmq, name) for name in dir(rabbitmq)}
        from rabbitmq_amqp_python_client.entities import MessageProperties

        names["MessageProperties"] = MessageProperties
        environment = rabbitmq.Environment(uri=f"amqp://guest:guest@localhost:{AMQP}/")
        names["connection"] = environment.connection()
        names["connection"].dial()
        names["handler"] = Handler()
        page.run(rabbit, names)
        with pytest.raises(Seen, match="red"):
            names["consumer"].run()
        names["connection"].close()
        page.run(more, names)
    try:
        import proton.utils
    except ImportError:
        return
    page.fill("q", b"red", headers={"color": "red", "n": 3})
    from proton.reactor import Filter

    connection = proton.utils.BlockingConnection(URL, user="guest", password="guest")
    names = {
        "Filter": Filter,
        "symbol": proton.symbol,
        "Described": proton.Described,
        "connection": connection,
    }
    page.run(proton_example, names)
    got = names["receiver"].receive(timeout=PATIENCE_S)
    assert bytes(got.body) == b"red", got
    connection.close()


def configuration(page: Page) -> None:
    """Files are read, together where one is a part; what they name must not be there."""
    settings = page.take("data_dir", language="toml")
    policies = page.take("[[policies]]", language="toml")
    file = page.folder / "tallymark.toml"
    file.write_text(settings.text + policies.text)
    assert tomllib.loads(file.read_text())["policies"][0]["name"] == "retry"
    check_config(page, file)


def oauth(page: Page) -> None:
    settings = page.take("auth_oauth2.resource_server_id", language="toml")
    file = page.folder / "tallymark.toml"
    file.write_text(settings.text)
    assert tomllib.loads(file.read_text())["auth_oauth2"]["resource_server_id"] == "tallymark"
    check_config(page, file)


def slow_consumers(page: Page) -> None:
    settings = page.take("[slow_consumers]", language="toml")
    file = page.folder / "tallymark.toml"
    file.write_text(settings.text)
    check_config(page, file)
    points = tomllib.loads(page.take("entry-points", language="toml").text)
    groups = points["project"]["entry-points"]
    sources = "".join(file.read_text() for file in (ROOT / "src/tallymark/server").rglob("*.py"))
    for group in groups:
        assert f'"{group}"' in sources, group


def check_config(page: Page, file: Path) -> None:
    command = [sys.executable, "-m", "tallymark", "check-config", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def nsq(page: Page) -> None:
    latency = page.take("latencies(")
    answer = json.loads(page.take("authorizations", language="json").text)
    assert set(answer) == {"ttl", "identity", "identity_url", "authorizations"}
    if wants_spark():
        page.declare("orders")
        page.fill("orders", b"1")
        page.broker.stop()  # with a checkpoint to read from
        page.broker.restart()
        with spark_session() as spark:
            page.run(latency, {"spark": spark, "Path": Path})


def operations(page: Page) -> None:
    page.broker.http("DELETE", "/api/exchanges/%2F/events")
    shown = page.shell(page.take("tallymark queue create orders", language="sh"))
    assert "queue 'orders' deleted from vhost '/'" in shown
    assert "orders" not in page.broker.queues()
    shown = page.shell(page.take("tallymark publish", language="sh"))
    assert "1 would be moved to 'later'" in shown
    assert "1 moved to 'later'" in shown
    queues = page.broker.queues()
    assert (queues["tried"]["ready"], queues["later"]["ready"]) == (0, 0)
    assert queues["later"]["settled"] == 1


def contributing(page: Page) -> None:
    """Looked up, not run: they are how these tests are run themselves."""
    page.take("make check", language="sh")
    check_targets("docs/contributing.md")
    direct = page.take("-m pytest", language="sh")
    for path in re.findall(r"\btests/\S+", direct.text):
        assert (ROOT / path).exists(), path


def simulation(page: Page) -> None:
    """Looked up: its tests run it."""
    page.take("make simulate", "tallymark.simulation --seed", language="sh")
    check_targets("docs/simulation.md")


def quickstarts(page: Page) -> None:
    """Those whose client is installed; the others are looked up only by their language."""
    from tests.docs.quickstarts import run_all

    run_all(page, page.broker, wants_spark())


def check_targets(file: str) -> None:
    """Each `make TARGET` that the page names is there."""
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"^make ([a-z-]+)", (ROOT / file).read_text(), re.M))
    assert named <= known, named - known


PAGES: Final[dict[str, Callable[[Page], None]]] = {
    "README.md": readme,
    "docs/client.md": client,
    "docs/configuration.md": configuration,
    "docs/contributing.md": contributing,
    "docs/filters.md": filters,
    "docs/nsq.md": nsq,
    "docs/oauth.md": oauth,
    "docs/operations.md": operations,
    "docs/quickstarts.md": quickstarts,
    "docs/simulation.md": simulation,
    "docs/slow-consumers.md": slow_consumers,
    "docs/transactions.md": transactions,
}


# Spark


def wants_spark() -> bool:
    return "--spark" in sys.argv


@contextmanager
def spark_session() -> Iterator[Any]:
    from tallymark.spark.session import build_session

    spark = build_session()
    try:
        yield spark
    finally:
        spark.stop()


def stop_streams(spark: Any) -> None:
    """Let what an example has started take what is there, and end it."""
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()


def spark(page: Page) -> None:
    if not wants_spark():
        page.left.clear()
        return
    from pyspark.sql.functions import col, when

    for queue in ("orders", "returns", "parked", "reports", "clean", "invoices-queue"):
        page.declare(queue)
    page.declare("events", x_queue_type="stream")
    page.broker.http("PUT", "/api/exchanges/%2F/invoices", {"type": "fanout", "durable": True})
    page.broker.http("POST", "/api/bindings/%2F/e/invoices/q/invoices-queue", {})
    page.fill("orders", b'{"n": 1}', b"no json")
    page.fill("events", b"e")
    with spark_session() as session:
        summary = session.range(3).selectExpr("cast(id AS string) body")
        names = {"spark": session, "col": col, "when": when, "summary": summary}
        page.run(page.take("readStream", "writeStream"), names)
        stop_streams(session)
        assert list((page.folder / "lake/orders").glob("*.parquet"))
        several = dict(names)
        page.run(page.take('"subscribe"'), several)
        assert "queue" in several["orders"].columns
        page.run(page.take("startingOffsets", "startingTimestamp"), names)
        assert names["week"].count() == 0
        page.run(page.take("deaths is not null"), names)
        page.run(page.take("groupBy"), names)
        with_data = dict(names)
        page.run(page.take('"schema"'), with_data)
        assert "data" in with_data["orders"].columns
        table = session.sql("SELECT 'q' queue, '{\"id\": 1}' body, 'application/json' content_type")
        page.run(page.take("from_message"), {**names, "table": table})
        for statement in page.take("TEMPORARY VIEW", language="sql").text.split(";"):
            if statement.strip():
                session.sql(statement).collect()
        page.fill("orders", b'{"n": 2}', b"neither")
        page.run(page.take('"reports"', '"invoices"'), names)
        stop_streams(session)
        found = page.broker.queues()
        assert found["reports"]["ready"] == 3
        assert found["invoices-queue"]["ready"] > 0
        page.fill("orders", b'{"n": 3}', b"nor this")
        page.run(page.take("send_verdicts"), names)
        stop_streams(session)
        assert page.broker.queues()["clean"]["ready"] > 0
        for table, first in (("old", 0), ("new", 2)):
            rows = session.range(first, first + 3).withColumnRenamed("id", "lease_sequence")
            rows.createTempView(table)
        both = session.sql(page.take("LEFT ANTI JOIN", language="sql").text)
        assert sorted(row.lease_sequence for row in both.collect()) == [0, 1, 2, 3, 4]
        iceberg = page.take("append_batch")
        if find_spec("pyiceberg"):
            page.fill("orders", b'{"n": 4}', b"in a table of Iceberg")
            page.run(iceberg, names)
            stop_streams(session)
            assert names["catalog"].load_table("lake.orders").scan().to_arrow().num_rows > 0
        page.take("build_session")  # tests/spark/test_notebook.py runs it
    page.left.clear()  # of the cluster: tests/spark/test_cluster.py runs them


def pipelines(page: Page) -> None:
    if not wants_spark():
        page.left.clear()
        return
    page.declare("parked")
    page.declare("work", x_dead_letter_exchange="", x_dead_letter_routing_key="parked")
    page.declare("clicks", x_queue_type="stream")
    page.fill("clicks", b"1", b"2")
    page.fill("work", b"bad", b"worse", message_id="4711")
    import pika

    with pika.BlockingConnection() as connection:
        channel = connection.channel()
        for _ in range(2):
            method, _, _ = channel.basic_get("work")
            channel.basic_reject(method.delivery_tag, requeue=False)
    archive = "tallymark pipeline archive --all --stream clicks --to lake/clicks"
    page.shell(Example("docs/pipelines.md", 0, "sh", archive))
    with spark_session() as session:
        names = {"spark": session, "Path": Path}
        page.run(page.take("redrive"), names)
        assert page.broker.queues()["work"]["ready"] == 2
        page.run(page.take("read_archived"), names)
        assert names["clicks"].count() == 2
        page.run(page.take("read_ledger", "transitions"), names)
        page.run(page.take("report("), names)
        assert (page.folder / "report.html").exists()


PAGES["docs/spark.md"] = spark
PAGES["docs/pipelines.md"] = pipelines
ELSEWHERE: Final = {
    "docs/streaming.md": "tests/spark/test_streaming.py",
    "docs/what-if.md": "tests/whatif/test_changes.py",
}
"""Pages whose examples other tests run as they are printed."""
WITH_SPARK: Final = (
    "README.md",
    "docs/quickstarts.md",
    "docs/nsq.md",
    "docs/spark.md",
    "docs/pipelines.md",
)


# The process


def raise_loopback() -> None:
    """In a new network nothing is up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        wanted = struct.pack("16sh14x", b"lo", 0)
        _, flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, wanted))
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def main() -> None:
    name = sys.argv[1]
    if "--own-network" in sys.argv:
        raise_loopback()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.chdir(folder)
        ports = {"amqp_port": str(AMQP), "http_port": str(HTTP)}
        if name == "docs/quickstarts.md":
            ports |= {"nsq_port": str(NSQ), "nsq_http_port": str(NSQ + 1)}
        with BrokerProcess(folder / "tallymark-data", **ports) as broker:
            page = Page(broker, folder, examples(name))
            try:
                PAGES[name](page)
            except BaseException:
                traceback.print_exc()
                sys.exit(1)
            if page.left:
                sys.exit(f"nothing runs {[example.where for example in page.left]}")
    print(page.done)


if __name__ == "__main__":
    main()
