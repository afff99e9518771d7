"""Changes of known effect: made for real on a broker that is given the same traffic again, and
predicted from the ledger of the first one.

The traffic is told what to do next by what it was given, never by the clock, so the counts are the
same each time. Too long for `make test` and for CI; tests/whatif/test_worlds.py has the same idea
over the engine alone.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika
import pytest

from tallymark.whatif.changes import changes_of
from tallymark.whatif.reading import read_recording
from tallymark.whatif.recording import Recording
from tallymark.whatif.world import World
from tests.support.patience import until
from tests.support.process import BrokerProcess

Channel = Any
MESSAGES = 200
STUBBORN = 5
"""Every so many messages of `orders` are given back, three times."""


@dataclass
class Setting:
    """A topology: what is declared, with which arguments."""

    arguments: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {
            "orders": {"x-dead-letter-exchange": "dead"},
            "pile": {"x-max-length": 5000},
            "brief": {"x-message-ttl": 600_000, "x-dead-letter-exchange": "dead"},
            "retry": {"x-message-ttl": 600_000},
            "dead-letters": {},
            "tick": {"x-message-ttl": 300},
        }
    )
    bindings: list[tuple[str, str, str]] = field(
        default_factory=lambda: [
            ("orders", "shop", "order"),
            ("pile", "shop", "#"),
            ("brief", "shop", "mail"),
            ("retry", "shop", "retry"),
            ("dead-letters", "dead", "#"),
        ]
    )


def traffic(folder: Path, setting: Setting) -> Recording:
    """A broker's ledger of the traffic."""
    with BrokerProcess(folder / "data") as broker:
        parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, heartbeat=0)
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        channel.confirm_delivery()
        for exchange in ("shop", "dead"):
            channel.exchange_declare(exchange, "topic", durable=True)
        for queue, arguments in setting.arguments.items():
            channel.queue_declare(queue, durable=True, arguments=arguments)
        for queue, exchange, key in setting.bindings:
            channel.queue_bind(queue, exchange, key)
        durable = pika.BasicProperties(delivery_mode=2)
        for number in range(MESSAGES):
            for key in ("order", "mail", "retry"):
                with suppress(pika.exceptions.NackError):  # a queue is full
                    channel.basic_publish("shop", key, b"%d" % number, durable)
        work(connection.channel(), setting.arguments["orders"].get("x-delivery-limit", 9))
        channel.basic_publish("", "tick", b"", durable)
        for queue, arguments in setting.arguments.items():
            if arguments.get("x-message-ttl", 600_000) < 600_000:
                until(lambda queue=queue: not left(channel, queue), what=f"{queue} is empty")
        connection.close()
    return read_recording(folder / "data")


def left(channel: Channel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def work(channel: Channel, limit: int) -> None:
    """Consume `orders` until all of it is acknowledged, or was given back more often than the
    limit allows."""
    channel.basic_qos(prefetch_count=10)
    given: dict[bytes, int] = {}
    done = 0
    for method, _, body in channel.consume("orders"):
        given[body] = given.get(body, 0) + 1
        if int(body) % STUBBORN == 0 and given[body] <= 3:
            channel.basic_reject(method.delivery_tag, requeue=True)
            done += given[body] > limit
        else:
            channel.basic_ack(method.delivery_tag)
            done += 1
        if done == MESSAGES:
            break
    channel.cancel()


def accounts(fates: dict[Any, Any]) -> dict[str, dict[str, int]]:
    return {name[1]: one.account() for name, one in fates.items()}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return traffic(tmp_path_factory.mktemp("as-it-was"), Setting())


def queue(name: str, **arguments: object) -> dict[str, object]:
    return {"queue": [{"name": name, **{k.replace("_", "-"): v for k, v in arguments.items()}}]}


CHANGES: dict[str, dict[str, object]] = {
    "a limit of 1000, where there were fewer": queue("pile", max_length=1000),
    "a limit": queue("pile", max_length=50),
    "a limit that refuses": queue("pile", max_length=50, overflow="reject-publish"),
    "a limit whose drops are letters": queue(
        "pile", max_length=50, dead_letter_exchange="dead", dead_letter_routing_key="pile"
    ),
    "a limit on bytes": queue("pile", max_length_bytes=100),
    "a time to live": queue("brief", message_ttl=100),
    "no dead-letter exchange": queue("brief", message_ttl=100, dead_letter_exchange="none"),
    "a cycle that is closed": queue(
        "retry", message_ttl=50, dead_letter_exchange="shop", dead_letter_routing_key="retry"
    ),
    "a delivery limit": queue("orders", delivery_limit=2),
    "a queue that is not there": {"remove-queue": [{"name": "dead-letters"}]},
    "one more binding": {"bind": [{"queue": "dead-letters", "exchange": "shop", "key": "mail"}]},
}


def changed(said: dict[str, Any]) -> Setting:
    """The topology with a change."""
    setting = Setting()
    for one in said.get("queue", ()):
        arguments = setting.arguments[one["name"]]
        for key, value in one.items():
            if key != "name":
                arguments[f"x-{key}"] = value
                if value == "none":
                    del arguments[f"x-{key}"]
    for one in said.get("remove-queue", ()):
        del setting.arguments[one["name"]]
        setting.bindings = [bound for bound in setting.bindings if bound[0] != one["name"]]
    for one in said.get("bind", ()):
        setting.bindings.append((one["queue"], one["exchange"], one["key"]))
    return setting


@pytest.mark.long(ci=False)
def test_the_world_as_it_was_is_what_happened(recording: Recording) -> None:
    outcome = World(recording).run()
    assert accounts(outcome.fates) == accounts(recording.fates)
    for name, was in recording.fates.items():
        again = outcome.fates[name]
        assert again.fate == was.fate
        near = sum(abs(a - b) <= 100 for a, b in zip(was.ended_ms, again.ended_ms, strict=True))
        assert near >= 0.99 * len(was.ids), name


@pytest.mark.long(ci=False)
@pytest.mark.parametrize("name", list(CHANGES))
def test_a_change_does_what_was_predicted(name: str, recording: Recording, tmp_path: Path) -> None:
    [change] = changes_of(name, CHANGES[name])
    predicted = accounts(World(recording, change).run().fates)
    assert predicted == accounts(traffic(tmp_path, changed(CHANGES[name])).fates)
    if name != "a limit of 1000, where there were fewer":
        assert predicted != accounts(recording.fates), "it has an effect"
