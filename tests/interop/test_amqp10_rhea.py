"""rhea, the AMQP 1.0 client of Node.js, unchanged, against the broker over sockets.

Where it is found is in tests/support/node_modules.py. What it does is in rhea_client.js.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_modules import environment_with
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

CLIENT = Path(__file__).with_name("rhea_client.js")


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """In which Node finds rhea."""
    return environment_with("rhea")


@pytest.fixture
def queue(environment: dict[str, str], broker: BrokerProcess, name: str) -> str:
    broker.http("PUT", f"/api/queues/%2F/{name}", {"durable": True})
    return name


@pytest.fixture
def depth(broker: BrokerProcess, queue: str) -> Any:
    def depth() -> tuple[int, int]:
        """(ready, acquired)"""
        row = broker.queues()[queue]
        return row["ready"], row["acquired"]

    return depth


@pytest.fixture
def tell(environment: dict[str, str], port: int, queue: str) -> Any:
    """Run a story; what it found."""

    def tell(story: str) -> Any:
        told = subprocess.run(
            ["node", str(CLIENT), story, str(port), queue],
            env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert told.returncode == 0, told.stderr
        assert told.stderr == ""  # where rhea notes what it holds for an error of its peer
        return json.loads(told.stdout)

    return tell


def test_every_type_of_value_and_every_property(tell: Any, depth: Any) -> None:
    message = tell("types")["message"]
    body = message.pop("body")
    assert body == {
        "list": [1, "a", None], "map": {"k": {"n": 1}}, "long": -5, "ubyte": 255, "symbol": "sym",
        "double": 0.25, "array": [1, 2, 3], "nothing": None, "no": False,
    }  # fmt: skip
    annotations = message.pop("message_annotations")
    assert annotations.pop("x-opt-mine") == "here"
    assert set(annotations) == {"x-exchange", "x-routing-key", "x-opt-locked-until"}
    expected = {
        "durable": True, "priority": 7, "message_id": "m", "user_id": "guest", "to": "somewhere",
        "subject": "s", "reply_to": "/queues/r", "correlation_id": 5, "content_type": "a/b",
        "content_encoding": "x", "absolute_expiry_time": "2030-03-17T17:46:40.000Z",
        "creation_time": "2020-09-13T12:26:40.000Z", "group_id": "g", "group_sequence": 7,
        "reply_to_group_id": "rg", "first_acquirer": True,
        "application_properties": {"text": "grüße", "int": 5, "yes": True, "double": 1.5},
    }  # fmt: skip
    assert 0 < message.pop("ttl") <= 600_000
    message.pop("delivery_count", None)
    assert message == expected


def test_a_thousand(tell: Any, depth: Any) -> None:
    assert tell("many")["bodies"] == list(range(1000))
    assert depth() == (0, 0)


def test_messages_of_many_frames(tell: Any) -> None:
    assert tell("large")["bodies"] == [True, True]


def test_credit_by_hand_and_drain(tell: Any, depth: Any) -> None:
    """FC-5: five of thirteen, then the delivery-count is where the credit would have ended."""
    found = tell("drain")
    assert found["bodies"] == [0, 1, 2, 3, 4, "later"]
    assert found["events"] == [3, ["drained", 5, 0, 13], ["drained", 5, 0, 17], 1]
    assert depth() == (0, 0)


def test_mode_second(tell: Any, depth: Any) -> None:
    """FC-12"""
    found = tell("second")
    assert found["events"] == [1]
    assert len(found["bodies"]) == 10
    assert depth() == (0, 0)


def test_requests_and_answers(tell: Any, depth: Any) -> None:
    found = tell("rpc")
    assert found["bodies"] == [[i, f"Q{i}"] for i in range(10)]
    assert found["address"].startswith("/queues/amq.gen-")
    assert depth() == (0, 0)


def test_settled_on_the_way(tell: Any, depth: Any) -> None:
    found = tell("settled")
    assert found["bodies"] == list(range(20))
    assert found["events"] == [True] * 20
    assert found["durable"] == 0  # asked for, not promised: nothing is kept beyond the link
    assert depth() == (0, 0)


def test_a_selector(tell: Any, depth: Any) -> None:
    found = tell("selector")
    assert (found["filter"], found["bodies"]) == (["jms-selector"], [5, 7, 9])
    assert depth() == (7, 0)


def test_browsing(tell: Any, depth: Any) -> None:
    assert tell("browse")["bodies"] == [0, 1, 2]
    assert depth() == (3, 0)


def test_outcomes(tell: Any, depth: Any) -> None:
    """FC-20"""
    assert tell("outcomes")["bodies"] == [
        [0, 0, None], [0, 0, None], [1, 0, None], [1, 1, "busy"], [2, 0, None],
    ]  # fmt: skip
    assert depth() == (0, 0)


def test_refusals(tell: Any, depth: Any) -> None:
    assert tell("refusals")["events"] == ["released", "amqp:not-found", "accepted"]
    assert depth() == (1, 0)


def test_an_idle_connection_stays(tell: Any, depth: Any) -> None:
    found = tell("idle")
    assert (found["bodies"], found["events"]) == (["still here"], [])
