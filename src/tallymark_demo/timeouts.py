"""Workers on NSQ take orders of a channel. One of them hangs over its first order: when its time is
over, the order goes to a worker that is awake, and the late word of the one that hung counts for
nothing. Another order is put off for a moment. A worker leaves in the middle of its work, and an
AMQP client drains what the channel still has.

Claims checked: attempts and times of the two orders; each order ended once, whichever protocol its
worker speaks; what was held by the worker that left was there again at once; the channel's account.
"""

from __future__ import annotations

import json
import time
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pika

from tallymark.spark.client import counted
from tallymark.wire.nsq import commands
from tallymark_demo.input import generated_orders
from tallymark_demo.nsq import Delivery, NsqClient
from tallymark_demo.stage import CheckFailed, Stage, table_of

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

TOPIC: Final = "demo.orders"
CHANNEL: Final = "packing"
QUEUE: Final = f"{TOPIC}:{CHANNEL}"
"""Name of the channel's queue, as AMQP clients see it."""
MORNING: Final = 150
EVENING: Final = 50
SEED: Final = 16
TIMEOUT_MS: Final = 1_000
"""Message timeout of the worker that hangs: the shortest there is."""
DELAY_MS: Final = 400
READY: Final = 20
HELD: Final = 10
"""Messages in flight at the worker when it disconnects."""
QUIET_S: Final = 10.0


@dataclass(slots=True)
class Work:
    """Results of the worker that keeps running."""

    done: list[bytes] = field(default_factory=list)
    again: dict[int, Delivery] = field(default_factory=dict)
    """Deliveries that were not the first of their message, by id."""
    put_off: Delivery | None = None
    put_off_at_s: float = 0.0


def play(stage: Stage) -> None:
    orders = [body for _, body in generated_orders(MORNING + EVENING, SEED)]
    port = stage.broker.nsq_port
    with (
        NsqClient(port, "sleeper", msg_timeout_ms=TIMEOUT_MS) as sleeper,
        NsqClient(port, "worker") as worker,
        NsqClient(port, "shop") as shop,
    ):
        for one in (sleeper, worker):
            one.subscribe(TOPIC, CHANNEL)
        shop.publish(TOPIC, orders[:MORNING])
        stage.say(f"the shop published {counted(MORNING, 'order')} to {TOPIC}, by one MPUB")
        begun = time.monotonic()
        sleeper.send(commands.rdy(1))
        hung = sleeper.message()
        sleeper.send(commands.rdy(0))
        with stage.console.status("one worker hangs, another works"):
            work = _work(worker)
        _check_hung(stage, sleeper, hung, begun, work)
        _check_put_off(stage, work)
        sleeper.stop()
        shop.publish(TOPIC, orders[MORNING:])
        worker.send(commands.rdy(HELD))
        held = [worker.message().body for _ in range(HELD)]
    stage.say(f"the shop published {EVENING} more; the worker took {HELD} of them and left")
    _drain(stage, orders, work.done, held)


def _work(worker: NsqClient) -> Work:
    """Do all orders of the morning; the first is put off once."""
    work = Work()
    worker.send(commands.rdy(READY))
    while len(work.done) < MORNING:
        got = worker.message()
        if work.put_off is None:
            work.put_off = got
            work.put_off_at_s = time.monotonic()
            worker.send(commands.req(got.id, DELAY_MS))
            continue
        if got.attempts > 1:
            work.again[got.id] = got
        worker.send(commands.fin(got.id))
        work.done.append(got.body)
    worker.send(commands.rdy(0))
    return work


def _check_hung(stage: Stage, sleeper: NsqClient, hung: Delivery, begun: float, work: Work) -> None:
    found = work.again.get(hung.id)
    after_ms = round((found.at_s - begun) * 1000) if found else 0
    stage.check(
        f"the order of the worker that hung came to the other after {after_ms:,} ms, attempts "
        f"{found.attempts if found else 'unknown'}; its time was {TIMEOUT_MS:,} ms",
        found is not None
        and (hung.attempts, found.attempts) == (1, 2)
        and found.body == hung.body
        and after_ms >= TIMEOUT_MS,
    )
    sleeper.send(commands.fin(hung.id))
    refusal = sleeper.refusal()
    stage.check(
        f"its late FIN is refused: {refusal}",
        refusal == f"E_FIN_FAILED FIN {hung.id:016x} failed ID not in flight",
    )


def _check_put_off(stage: Stage, work: Work) -> None:
    assert work.put_off is not None
    found = work.again.get(work.put_off.id)
    after_ms = round((found.at_s - work.put_off_at_s) * 1000) if found else 0
    stage.check(
        f"an order put off for {DELAY_MS} ms (REQ) came again after {after_ms:,} ms, attempts "
        f"{found.attempts if found else 'unknown'}; no other came twice",
        found is not None
        and found.attempts == 2
        and found.body == work.put_off.body
        and after_ms >= DELAY_MS
        and len(work.again) == 2,
    )


# -- the evening


def _drain(stage: Stage, orders: list[bytes], done: list[bytes], held: list[bytes]) -> None:
    with pika.BlockingConnection(stage.broker.parameters()) as connection:
        channel = connection.channel()
        bodies, redelivered = _consume(channel)
        # Answered behind the acknowledgements: they have been carried out.
        channel.queue_declare(QUEUE, passive=True)
    stage.say(
        f"an AMQP client (pika) drained queue {QUEUE}: {counted(len(bodies), 'order')}, "
        f"{len(redelivered)} of them redelivered"
    )
    stage.check(
        f"the {HELD} orders that the worker held were there again when it left, flagged",
        sorted(redelivered) == sorted(held),
    )
    row = stage.queue(QUEUE)
    stage.check(
        f"every order ended once: {len(done):,} by FIN, {len(bodies):,} by basic.ack",
        sorted(done + bodies) == sorted(orders)
        and int(row["entered"]) == int(row["settled"]) == len(orders)
        and not row["dropped"]
        and int(row["ready"]) == int(row["acquired"]) == int(row["deferred"]) == 0,
    )
    shown = _as_nsqd(stage)
    table_of(stage.console, "The channel in nsqd's statistics", [shown])
    stage.check(
        "NSQ's counters agree: one time-out, one requeue, nothing left",
        shown == {"messages": len(orders), "depth": 0, "in flight": 0, "deferred": 0,
                  "requeued": 1, "timed out": 1},
    )  # fmt: skip


def _consume(channel: BlockingChannel) -> tuple[list[bytes], list[bytes]]:
    """The orders of the evening, and which of them were flagged as redelivered."""
    bodies: list[bytes] = []
    redelivered: list[bytes] = []
    for method, _, body in channel.consume(QUEUE, inactivity_timeout=QUIET_S):
        if method is None or body is None:
            raise CheckFailed(f"nothing came for {QUIET_S:.0f} s, {len(bodies)} so far")
        bodies.append(body)
        if method.redelivered:
            redelivered.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(bodies) == EVENING:
            break
    channel.cancel()
    return bodies, redelivered


def _as_nsqd(stage: Stage) -> dict[str, Any]:
    """The channel's numbers in /stats."""
    query = f"/stats?format=json&topic={TOPIC}&channel={CHANNEL}"
    url = f"http://127.0.0.1:{stage.broker.nsq_http_port}{query}"
    try:
        with urllib.request.urlopen(url, timeout=QUIET_S) as response:
            (topic,) = json.load(response)["topics"]
    except OSError as error:
        raise CheckFailed(f"{url}: {error}") from error
    (channel,) = topic["channels"]
    return {
        "messages": channel["message_count"],
        "depth": channel["depth"],
        "in flight": channel["in_flight_count"],
        "deferred": channel["deferred_count"],
        "requeued": channel["requeue_count"],
        "timed out": channel["timeout_count"],
    }
