"""Three screens follow the quotes of a topic, and one of them freezes. The broker does not become
its buffer: it tells of it at 80 % of what may lie there, and above that disconnects it, with error
506 on its channel and nothing else. The others get every quote. A durable subscription beside them
may not be deleted; by its policy its oldest quotes are dropped instead.

Claims checked: near is told before anything is done; what the frozen screen hears, that its
connection goes on and that it may subscribe anew; that nobody else misses anything; the account of
the durable subscription; and all of it in the ledger, as Spark reads it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pika
from pika.exceptions import ChannelClosedByBroker

from tallymark.spark.client import Client, api_path
from tallymark_demo.stage import CheckFailed, Stage, table_of

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

QUOTES: Final = "demo.quotes"
KEY: Final = "stocks.us.ibm"
SCREEN: Final = "demo.screen"
HISTORY: Final = "demo.history"
LIMIT: Final = 200
KEPT: Final = 100
CALM: Final = 170
"""Quotes until the frozen screen is near its limit, and not above it."""
TOTAL: Final = 400
PATIENCE_S: Final = 20.0
POLICIES: Final[dict[str, dict[str, object]]] = {
    SCREEN: {"slow-consumer-count": LIMIT, "slow-consumer-policy": "delete"},
    HISTORY: {"slow-consumer-count": KEPT, "slow-consumer-policy": "drop-oldest"},
}


class Screen:
    """A subscriber on a connection of its own, that takes ten quotes at a time."""

    def __init__(self, stage: Stage, name: str, durable: bool = False) -> None:
        self.name = name
        self.connection = pika.BlockingConnection(stage.broker.parameters())
        self.numbers: list[int] = []
        self.channel = self.subscribe(durable)

    def subscribe(self, durable: bool = False) -> BlockingChannel:
        channel = self.connection.channel()
        channel.exchange_declare(QUOTES, "topic", durable=True)
        channel.queue_declare(self.name, durable=durable, exclusive=not durable)
        channel.queue_bind(self.name, QUOTES, "stocks.us.*")
        channel.basic_qos(prefetch_count=10)
        channel.basic_consume(self.name, self._show, exclusive=True)
        return channel

    def _show(self, channel: BlockingChannel, method: Any, _: Any, body: bytes) -> None:
        self.numbers.append(int(json.loads(body)["number"]))
        channel.basic_ack(method.delivery_tag)

    def read(self, upto: int) -> None:
        """Read until quote `upto` is shown."""
        _until(
            lambda: bool(self.numbers) and self.numbers[-1] >= upto,
            f"quote {upto} on {self.name}",
            lambda: self.connection.process_data_events(0.05),
        )


def play(stage: Stage) -> None:
    client = Client(stage.broker.endpoint)
    try:
        for name, definition in POLICIES.items():
            body = {"pattern": f"^{name}", "definition": definition, "apply-to": "queues"}
            client.call("PUT", f"/api/policies/%2F/{quote(name)}", body)
        screens = [Screen(stage, f"{SCREEN}-{number}") for number in (1, 2, 3)]
        history = Screen(stage, HISTORY, durable=True)
        try:
            _follow(stage, client, screens)
            _check_history(stage, history)
        finally:
            for one in (*screens, history):
                if one.connection.is_open:
                    one.connection.close()
        client.call("POST", api_path("ledger", "checkpoint"))
    finally:
        client.close()
    _look(stage)


def _follow(stage: Stage, client: Client, screens: list[Screen]) -> None:
    frozen, others = screens[2], screens[:2]
    with pika.BlockingConnection(stage.broker.parameters()) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        _publish(channel, 1, CALM, others)
        _until(lambda: _state(client, frozen.name) == "near", f"{frozen.name} near its limit")
        stage.say(
            f"{CALM} quotes were published; {frozen.name} froze over them and is near its limit "
            f"of {LIMIT}"
        )
        stage.check("near the limit nothing is done", frozen.name in _names(stage))
        _publish(channel, CALM + 1, TOTAL, others)
        _until(lambda: frozen.name not in _names(stage), f"{frozen.name} disconnected")
        said = _why_closed(frozen)
        stage.check(f"above it {frozen.name} is disconnected: {said}", said == SLOW)
        frozen.numbers.clear()
        frozen.channel = frozen.subscribe()
        _publish(channel, TOTAL + 1, TOTAL + 20, screens)
    stage.check(
        "its connection was kept: it subscribed anew on it and got the next 20 quotes",
        frozen.numbers == list(range(TOTAL + 1, TOTAL + 21)),
    )
    everything = list(range(1, TOTAL + 21))
    stage.check(
        f"the other screens got each of {len(everything)} quotes, in order",
        all(one.numbers == everything for one in others),
    )


SLOW: Final = "506 Consuming too slow."


def _why_closed(screen: Screen) -> str:
    """Return the error with which the client library reports the close."""
    try:
        screen.channel.start_consuming()
    except ChannelClosedByBroker as closed:
        return f"{closed.reply_code} {closed.reply_text}"
    return "not closed"


def _check_history(stage: Stage, history: Screen) -> None:
    """Check the screen that read nothing: ten quotes are on their way to it, and of the others the
    newest are in its queue."""
    total = TOTAL + 20
    _until(lambda: int(stage.queue(HISTORY)["ready"]) == KEPT - 10, f"{HISTORY} down to its limit")
    row = stage.queue(HISTORY)
    stage.check(
        f"the durable subscription stays, with its newest {KEPT}: {total - KEPT} quotes dropped",
        row["dropped"] == {"slow_consumer": total - KEPT} and int(row["acquired"]) == 10,
    )
    history.read(total)
    newest = list(range(total - KEPT + 11, total + 1))
    stage.check("and its consumer goes on with them", history.numbers == [*range(1, 11), *newest])


def _look(stage: Stage) -> None:
    """The ledger's rows, by Spark."""
    from pyspark.sql import functions as f

    spark, blob = stage.spark(), "blob"
    rows = (
        spark.read.format("tallymark")
        .option("ledger", str(stage.broker.data_dir))
        .load()
        .where("kind = 'slow_consumer'")
        .select(
            f.get_json_object(blob, "$.queue").alias("subscription"),
            f.col("reason").alias("event"),
            f.get_json_object(blob, "$.policy").alias("policy"),
            f.get_json_object(blob, "$.count").cast("int").alias("messages"),
            f.get_json_object(blob, "$.dropped").cast("int").alias("dropped"),
        )
        .orderBy("position", "row")
        .collect()
    )
    frozen = f"{SCREEN}-3"
    shown = [row.asDict() for row in rows if row.subscription == frozen]
    for row in shown:
        del row["dropped"]
    table_of(stage.console, f"{frozen} in the ledger", shown)
    events = [row.event for row in rows if row.subscription == frozen]
    dropped = sum(row.dropped or 0 for row in rows if row.subscription == HISTORY)
    stage.check(
        "the ledger has what was near, found and done, in this order",
        events[:3] == ["near", "found", "acted"] and dropped == TOTAL + 20 - KEPT,
    )


def _publish(channel: BlockingChannel, first: int, last: int, readers: list[Screen]) -> None:
    """Ten at a time, which these screens then show."""
    properties = pika.BasicProperties(content_type="application/json", delivery_mode=2)
    for number in range(first, last + 1):
        body = json.dumps({"number": number, "price": 100 + number % 7}).encode()
        channel.basic_publish(QUOTES, KEY, body, properties)
        if number % 10 == 0:
            for one in readers:
                one.read(number)


def _state(client: Client, queue: str) -> str:
    rows = client.call("GET", api_path("slow-consumers"))["subscriptions"]
    return next((str(row["state"]) for row in rows if row["queue"] == queue), "")


def _names(stage: Stage) -> list[str]:
    client = Client(stage.broker.endpoint)
    try:
        return [row["name"] for row in client.call("GET", api_path("queues"))["queues"]]
    finally:
        client.close()


def _until(holds: Callable[[], bool], what: str, work: Callable[[], object] | None = None) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise CheckFailed(f"not within {PATIENCE_S:.0f} s: {what}")
        if work is not None:
            work()
        else:
            time.sleep(0.02)
