"""Where a message went, asked of the broker over HTTP."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pika
import pytest

from tests.server.management import FULL, call, connect, done, get, refused
from tests.support.process import BrokerProcess

DURABLE = 2


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = Path(tmp_path_factory.mktemp("trace")) / "data"
    with BrokerProcess(folder) as broker:
        done(broker, "PUT", "vhosts/other")
        for user, vhost, rights in (
            ("stranger", "other", FULL),
            ("reader", "/", {"configure": "", "write": "", "read": "^letters$"}),
        ):
            done(broker, "PUT", f"users/{user}", {"password": user, "tags": "management"})
            done(broker, "PUT", f"permissions/{vhost.replace('/', '%2F')}/{user}", rights)
        with connect(broker) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}
            channel.queue_declare("orders", durable=True, arguments=letters)
            channel.queue_declare("letters", durable=True)
            for number in range(3):
                properties = pika.BasicProperties(
                    delivery_mode=DURABLE, message_id=f"m-{number}", correlation_id=f"c-{number}",
                    headers={"tier": f"gold-{number}", "count": 1000 + number},
                )  # fmt: skip
                channel.basic_publish("", "orders", b"order %d of three" % number, properties)
            for _ in range(2):
                method, _, _ = channel.basic_get("orders")
            channel.basic_reject(method.delivery_tag, requeue=False)
            # Confirmed when the disk has it, and with it what came before.
            channel.basic_publish("", "orders", b"last", pika.BasicProperties(delivery_mode=2))
        yield broker


def asked(broker: BrokerProcess, user: str = "guest:guest", **words: object) -> dict[str, Any]:
    found: dict[str, Any] = get(broker, f"tallymark/trace?{urlencode(words)}", user)
    return found


def steps(broker: BrokerProcess, user: str = "guest:guest", **words: object) -> list[Any]:
    """What is told of the one message that is found."""
    (journey,) = asked(broker, user, **words)["journeys"]
    return [(step["queue"], step["event"]) for step in journey["steps"]]


JOURNEY = [
    ("orders", "entered"),
    ("orders", "acquired"),
    ("letters", "entered"),
    ("orders", "dead_lettered"),
]


@pytest.mark.parametrize(
    "words",
    [
        {"text": "gold-1"},
        {"body": "r 1 of"},
        {"number": 2},
        {"text": "c-1", "since": "2020-01-01", "until": "2999-01-01T00:00:00+01:00"},
    ],
)
def test_a_journey_is_found_by_what_is_in_the_message(
    broker: BrokerProcess, words: dict[str, object]
) -> None:
    assert sorted(steps(broker, **words)) == sorted(JOURNEY)


def test_what_is_told_of_a_message(broker: BrokerProcess) -> None:
    found = asked(broker, text="c-1")
    (journey,) = found["journeys"]
    assert journey["message_id"] == "m-1"
    assert journey["headers"] == {"tier": "gold-1", "count": "1001"}
    assert journey["body_bytes"] == 16
    assert journey["routing_key"] == "orders"
    states = {one["queue"]: one["state"] for one in journey["now"]}
    assert states == {"orders": "dead-lettered", "letters": "ready"}
    assert found["is_all"]
    assert found["rows"] >= 4
    assert found["since"] <= journey["timestamp"]
    assert "tallymark trace" in found["older"]


def test_only_messages_of_the_time_are_found(broker: BrokerProcess) -> None:
    assert asked(broker, text="c-1", until="2020-01-01")["journeys"] == []


def test_users_see_what_happened_in_queues_that_they_may_read(broker: BrokerProcess) -> None:
    assert asked(broker, "stranger:stranger", text="c-1")["journeys"] == []
    (journey,) = asked(broker, "reader:reader", body="of three")["journeys"]  # of three messages
    assert [one["event"] for one in journey["steps"]] == ["entered"]
    assert [one["queue"] for one in journey["now"]] == ["letters"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({}, "nothing given, expected one of text, body and number"),
        ({"text": "c-1", "body": "order"}, "text and body given"),
        ({"text": "c"}, "'c' has 1 bytes, expected 3"),
        ({"number": "x"}, "number is 'x', expected a whole number"),
        ({"number": "9" * 5000}, "number has 5000 digits, expected a whole number of at most 30"),
        ({"text": "c-1", "since": "yesterday"}, "since is 'yesterday', expected ISO 8601"),
    ],
)
def test_a_wrong_question_is_refused(
    broker: BrokerProcess, words: dict[str, str], reason: str
) -> None:
    status, error, told = refused(broker, "GET", f"tallymark/trace?{urlencode(words)}")
    assert (status, error) == (400, "bad_request")
    assert reason in told


def test_of_three_searches_at_a_time_one_is_refused(broker: BrokerProcess) -> None:
    """A file that gives its bytes later holds the others up."""
    late = broker.data_dir / "9999999999-00000000.segment"
    os.mkfifo(late)
    writer = os.open(late, os.O_RDWR)  # or readers of it would wait for one
    with ThreadPoolExecutor(3) as pool:
        try:
            path = "tallymark/trace?text=c-1"
            searches = [pool.submit(call, broker, "GET", path) for _ in range(3)]
            ended, _ = wait(searches, return_when=FIRST_COMPLETED)
            (status, _, said), *_ = [one.result() for one in ended]
            assert (status, said["error"]) == (429, "busy")
        finally:
            late.unlink()
            os.close(writer)
    assert sorted(steps(broker, text="c-1")) == sorted(JOURNEY)
