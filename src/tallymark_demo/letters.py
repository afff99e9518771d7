"""A worker refuses orders that it cannot do now. The queue sends them round: they wait in a second
queue until their time is over, and come back as dead letters of it, with their history. What fails
a third time is parked. Then a message circles by its time to live alone, without anybody's word,
and the hop limit ends it.

Claims checked: each order ends once, done or parked; what a stock client reads in x-death is how
often it was refused; the loop is circled exactly 32 times, and Spark sees each of its deaths.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pika

from tallymark.spark import schema
from tallymark.spark.client import counted
from tallymark_demo.input import generated_orders, refuses
from tallymark_demo.stage import CheckFailed, Stage, table_of

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

DLX: Final = "demo.refused"
WORK: Final = "demo.try"
WAIT: Final = "demo.wait"
PARKED: Final = "demo.parked"
WAIT_MS: Final = 150
ORDERS: Final = 300
SEED: Final = 15
DOWN: Final = "asia"
"""Orders of this region cannot be done until they were refused twice."""
TRIES: Final = 3

LOOP: Final = "demo.loop"
TRACE: Final = "demo.trace"
LOOP_MS: Final = 5
HOPS: Final = 32
LOOP_S: Final = 20.0
QUIET_S: Final = 10.0


@dataclass(slots=True)
class Work:
    """Results of the worker."""

    done: int = 0
    late: int = 0
    """Number of the done that had been refused before."""
    parked: list[bytes] = field(default_factory=list)
    refusals: int = 0
    counts_hold: bool = True
    """True if each message's x-death had exactly the number of its refusals."""
    last_history: list[dict[str, Any]] = field(default_factory=list)
    """x-death of the order that was parked last."""


def play(stage: Stage) -> None:
    with pika.BlockingConnection(stage.broker.parameters()) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        _retry(stage, channel)
        _loop(stage, channel)
    _look(stage)


# -- retries


def _retry(stage: Stage, channel: BlockingChannel) -> None:
    # work --refused--> the exchange --> wait --its time is over--> work
    channel.exchange_declare(DLX, "direct", durable=True)
    channel.queue_declare(WORK, durable=True, arguments={"x-dead-letter-exchange": DLX})
    wait = {
        "x-message-ttl": WAIT_MS,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": WORK,
    }
    channel.queue_declare(WAIT, durable=True, arguments=wait)
    channel.queue_bind(WAIT, DLX, WORK)
    channel.queue_declare(PARKED, durable=True)
    orders = [body for _, body in generated_orders(ORDERS, SEED)]
    for number, body in enumerate(orders):
        _publish(channel, WORK, body, number)
    with stage.console.status("a worker refuses what it cannot do"):
        work = _work(channel, len(orders))
    stage.say(
        f"a worker (pika) got {counted(len(orders), 'order')}: it did {work.done:,}, of which "
        f"{work.late:,} had come back, and parked {len(work.parked):,} after {TRIES} tries each"
    )
    table_of(stage.console, "x-death of the order parked last", work.last_history)
    stage.check("x-death says of every message how often it was refused", work.counts_hold)
    poisonous = [body for body in orders if refuses("application/json", body)]
    tried, parked, waited = stage.queue(WORK), stage.queue(PARKED), stage.queue(WAIT)
    stage.check(
        f"every order ended once: {work.done:,} done, {len(work.parked):,} parked",
        work.parked == poisonous
        and work.done + len(poisonous) == len(orders) == int(tried["settled"])
        and int(parked["ready"]) == len(poisonous)
        and int(tried["ready"]) == int(tried["acquired"]) == int(waited["ready"]) == 0,
    )
    stage.check(
        f"each of {work.refusals:,} refusals went round once",
        int(tried["dead_lettered"]) == int(waited["dead_lettered"]) == work.refusals
        and int(waited["entered"]) == work.refusals
        and int(tried["entered"]) == len(orders) + work.refusals
        and not tried["dropped"]
        and not waited["dropped"],
    )


def _publish(channel: BlockingChannel, queue: str, body: bytes, number: int) -> None:
    properties = pika.BasicProperties(
        content_type="application/json", delivery_mode=2, message_id=str(number)
    )
    channel.basic_publish("", queue, body, properties)


def _work(channel: BlockingChannel, orders: int) -> Work:
    """Take orders until each was done or parked."""
    work = Work()
    parked: dict[int, bytes] = {}
    refused: dict[str, int] = {}
    channel.basic_qos(prefetch_count=50)
    for method, properties, body in channel.consume(WORK, inactivity_timeout=QUIET_S):
        if method is None or properties is None or body is None:
            raise CheckFailed(f"nothing came for {QUIET_S:.0f} s, {work} so far")
        number = str(properties.message_id)
        history = list((properties.headers or {}).get("x-death", ()))
        before = _refusals(history)
        work.counts_hold = work.counts_hold and before == refused.get(number, 0)
        poisonous = refuses("application/json", body)
        if poisonous and before + 1 >= TRIES:
            channel.basic_publish("", PARKED, body, properties)
            parked[int(number)] = body
            work.last_history = [_shown(death) for death in history]
            channel.basic_ack(method.delivery_tag)
        elif poisonous or (before + 1 < TRIES and json.loads(body)["region"] == DOWN):
            refused[number] = before + 1
            work.refusals += 1
            channel.basic_reject(method.delivery_tag, requeue=False)
        else:
            work.done += 1
            work.late += before > 0
            channel.basic_ack(method.delivery_tag)
        if work.done + len(parked) == orders:
            break
    channel.cancel()
    work.parked = [parked[number] for number in sorted(parked)]
    return work


def _refusals(history: list[dict[str, Any]]) -> int:
    """Return the number of refusals by a worker in the message's x-death."""
    for death in history:
        if (death["queue"], death["reason"]) == (WORK, "rejected"):
            return int(death["count"])
    return 0


def _shown(death: dict[str, Any]) -> dict[str, Any]:
    return {
        "queue": death["queue"],
        "reason": death["reason"],
        "count": int(death["count"]),
        "exchange": death["exchange"] or "(default)",
        "routing keys": ", ".join(death["routing-keys"]),
        "first time": f"{death['time']:%H:%M:%S}",
    }


# -- the loop


def _loop(stage: Stage, channel: BlockingChannel) -> None:
    """One message in a queue that dead-letters to itself, and a copy of each letter beside it."""
    channel.exchange_declare(LOOP, "fanout", durable=True)
    arguments = {
        "x-message-ttl": LOOP_MS,
        "x-dead-letter-exchange": LOOP,
        "x-dead-letter-hop-limit": HOPS,
    }
    channel.queue_declare(LOOP, durable=True, arguments=arguments)
    channel.queue_declare(TRACE, durable=True)
    for queue in (LOOP, TRACE):
        channel.queue_bind(queue, LOOP)
    begun = time.monotonic()
    _publish(channel, LOOP, b'{"order": "o-loop"}', 0)
    with stage.console.status("a message circles"):
        while not (loop := stage.queue(LOOP))["dropped"]:
            if time.monotonic() - begun > LOOP_S:
                raise CheckFailed(f"the loop goes on after {LOOP_S:.0f} s: {loop}")
            time.sleep(0.02)
    seconds = time.monotonic() - begun
    copies = int(stage.queue(TRACE)["ready"])
    stage.say(
        f"a message circled in {LOOP}, {LOOP_MS} ms a round, without a client's word: "
        f"{copies} rounds in {seconds:.1f} s"
    )
    stage.check(
        f"the loop was circled exactly {HOPS} times and then ended, counted as such",
        copies == HOPS
        and int(loop["entered"]) == HOPS + 1
        and int(loop["dead_lettered"]) == HOPS
        and loop["dropped"] == {"dead_letter_hop_limit": 1}
        and int(loop["ready"]) == 0,
    )


def _look(stage: Stage) -> None:
    """Spark looks at the copies, which stay where they are."""
    from pyspark.sql import functions as f

    columns = ("sequence", "exchange", "routing_key", "deaths")
    assert set(columns) <= set(schema.ALL)
    letters = (
        stage.spark()
        .read.format("tallymark")
        .options(url=stage.broker.url, queue=TRACE, columns=",".join(columns))
        .load()
        .select("sequence", f.size("deaths").alias("deaths"), f.col("deaths")[0].alias("last"))
        .orderBy("sequence")
        .collect()
    )
    stage.check(
        f"Spark sees 1 to {HOPS} deaths in the copies, none compacted",
        [row.deaths for row in letters] == list(range(1, HOPS + 1))
        and all(row.last["reason"] == "expired" and row.last["count"] == 1 for row in letters),
    )
