"""Reading the configuration again: what counts as changed, and what then happens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import until
from tests.support.process import BrokerProcess


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "tallymark.toml"
    found.write_text("")
    return found


@pytest.fixture
def broker(tmp_path: Path, file: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", config=str(file)) as running:
        yield running


def reload(broker: BrokerProcess) -> dict[str, list[str]]:
    status, answer = broker.http("POST", "/api/tallymark/config/reload")
    assert status == 200, answer
    return dict(answer)


def shovel(broker: BrokerProcess, password: str, batch: int) -> str:
    """A table of the configuration: a shovel from `a` to `b`."""
    address = f"amqp://guest:{password}@127.0.0.1:{broker.amqp_port}"
    table = {
        "name": "s", "from": address, "queue": "a", "to": address, "to-queue": "b", "batch": batch
    }  # fmt: skip
    return "[[shovels]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in table.items())


def test_a_shovel_takes_another_password_and_another_batch(
    broker: BrokerProcess, file: Path
) -> None:
    for queue in "ab":
        broker.http("PUT", f"/api/queues/%2F/{queue}", {"durable": True})

    def row() -> dict[str, Any]:
        *_, newest = broker.http("GET", "/api/tallymark/shovels")[1]["shovels"]  # one may be ending
        return dict(newest)

    file.write_text(shovel(broker, "wrong", 5))
    assert reload(broker)["changed"] == ["shovels"]
    until(lambda: row()["failures"] > 0, what=row)
    file.write_text(shovel(broker, "guest", 5))
    assert reload(broker)["changed"] == ["shovels"]
    until(lambda: row()["state"] == "running", what=row)
    file.write_text(shovel(broker, "guest", 6))
    assert reload(broker)["changed"] == ["shovels"]
    assert reload(broker) == {"changed": [], "at_next_start": []}


def test_a_level_that_was_set_over_http_stays_while_the_file_says_the_same_of_it(
    broker: BrokerProcess, file: Path
) -> None:
    def levels() -> dict[str, str]:
        found = broker.http("GET", "/api/tallymark/log-levels")[1]
        return {category: found[category] for category in ("http", "amqp", "nsq")}

    broker.http("PUT", "/api/tallymark/log-levels", {"http": "debug", "nsq": "error"})
    file.write_text('log_levels = { amqp = "warning" }\n')
    assert reload(broker)["changed"] == ["log_levels"]
    assert levels() == {"http": "debug", "amqp": "warning", "nsq": "error"}
    file.write_text('log_level = "warning"\nlog_levels = { amqp = "warning", nsq = "info" }\n')
    assert reload(broker)["changed"] == ["log_level", "log_levels"]
    assert levels() == {"http": "warning", "amqp": "warning", "nsq": "error"}
