"""Policies in the configuration: how they are written, what is refused, what a start does."""

from __future__ import annotations

import json
from pathlib import Path

import pika
import pytest

from tallymark.engine.ledger import definition_record
from tallymark.server.config.settings import DECLARED, Config, ConfigError, load
from tallymark.units import WallMs
from tests.journal.builders import Disk
from tests.support.process import BrokerProcess

FILE = """
vhosts = ["/", "eu"]

[[policies]]
name = "retry"
pattern = '^retry\\.'
definition = { message-ttl = 60000, dead-letter-exchange = "work" }
priority = 1
apply-to = "queues"

[[policies]]
vhost = "eu"
name = "retry"
pattern = ""
definition.max-length = 1000
operator = true
"""


def from_file(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "tallymark.toml"
    file.write_text(text)
    return load(file, {}, {})


def test_policies_are_an_array_of_tables(tmp_path: Path) -> None:
    retry, cap = from_file(tmp_path, FILE).policies
    assert (retry.vhost, retry.operator, retry.policy.name) == ("/", False, "retry")
    assert retry.policy.value() == {
        "pattern": "^retry\\.",
        "definition": {"message-ttl": 60000, "dead-letter-exchange": "work"},
        "priority": 1,
        "apply-to": "queues",
    }
    assert (cap.vhost, cap.operator) == ("eu", True)
    assert (cap.policy.priority, cap.policy.apply_to) == (0, "all")


def test_as_text_they_are_json_and_shown_as_they_are_written(tmp_path: Path) -> None:
    policies = from_file(tmp_path, FILE).policies
    kind = DECLARED["policies"].kind
    shown = kind.show(policies)
    again = load(None, {"TALLYMARK_POLICIES": shown}, {"vhosts": "/,eu"}).policies
    assert [one.value() for one in again] == [one.value() for one in policies]
    assert json.loads(shown)[0]["name"] == "retry"


PLAIN = "[[policies]]\nname = 'p'\npattern = ''\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("policies = 3", "policies is 3, expected tables with name, pattern and definition"),
        ("policies = ['p']", "policies is ['p'], expected tables with name"),
        ("[[policies]]\npattern = ''", "policies number 1: name is None, expected text"),
        (PLAIN + "definition = {}", "policies number 1, 'p': no policy provided"),
        (PLAIN + "definition.ttl = 5", '[{<<"ttl">>,5}] are not recognised policy settings'),
        (PLAIN + "definition.expires = 0", "0 is not a valid queue expiry"),
        (
            PLAIN + "definition.overflow = 'drop-head'\noperator = true",
            "are not recognised operator policy settings",
        ),
        (
            PLAIN + "definition.expires = 1\napply_to = 'all'",
            "unknown field 'apply_to', expected vhost, name, pattern",
        ),
        (
            PLAIN + "definition.ha-mode = 2020-01-01",
            "number 1, 'p': Object of type date is not JSON serializable, expected values that",
        ),
        (
            PLAIN + "definition.slow-consumer-policy = 'gone'",
            "number 1, 'p': slow consumer policy 'gone' is unknown, expected one of: delete, ",
        ),
        (
            PLAIN + "definition.slow-consumer-policy = 'flow'\n"
            "definition.slow-consumer-options.a = 1",
            "number 1, 'p': slow consumer policy 'flow': unknown option 'a', expected none",
        ),
        (PLAIN + "definition.expires = 1\nvhost = 1", "vhost is 1, expected text"),
        (PLAIN + "definition.expires = 1\noperator = 'yes'", "operator is 'yes', expected true"),
        (PLAIN + "definition.expires = 1\nvhost = 'eu'", "has 'p' for vhost 'eu', expected one"),
        (
            2 * (PLAIN + "definition.expires = 1\n"),
            "policies has policy 'p' of vhost '/' twice, expected once",
        ),
    ],
)
def test_a_refusal_names_the_policy_and_the_reason(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_file(tmp_path, text)
    assert told in str(refused.value)


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(ConfigError, match="--policies is '\\[', expected tables"):
        load(None, {}, {"policies": "["})


def test_a_policy_and_an_operator_policy_may_have_one_name(tmp_path: Path) -> None:
    both = PLAIN + "definition.expires = 1\n"
    assert len(from_file(tmp_path, both + both + "operator = true").policies) == 2


def test_they_are_in_effect_from_the_start_and_replaced_by_the_next_ones(tmp_path: Path) -> None:
    def policies(limit: int, **more: object) -> str:
        definition = {"max-length": limit, "overflow": "reject-publish", **more}
        return json.dumps([{"name": "p", "pattern": "^q", "definition": definition}])

    def stored(broker: BrokerProcess) -> dict[str, int]:
        rows = broker.http("GET", "/api/policies")[1]
        return {row["name"]: row["definition"]["max-length"] for row in rows}

    with BrokerProcess(tmp_path / "data", policies=policies(1, **{"ha-mode": "all"})) as broker:
        connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
        connection.channel().queue_declare("q", durable=True)
        connection.close()
        assert stored(broker) == {"p": 1}
        assert "policy.without_effect" in broker.log()
        assert "ha-mode" in broker.log()
        broker.http("PUT", "/api/policies/%2F/p", {"pattern": "", "definition": {"max-length": 7}})
        assert stored(broker) == {"p": 7}
    with BrokerProcess(tmp_path / "data", policies=policies(2)) as broker:
        assert stored(broker) == {"p": 2}
    with BrokerProcess(tmp_path / "data") as broker:
        assert stored(broker) == {"p": 2}


def test_a_stored_policy_for_slow_consumers_that_is_not_there_any_more_is_told(
    tmp_path: Path,
) -> None:
    """Its package was installed in the environment of an older version, and is not in this one."""
    folder = tmp_path / "data"
    folder.mkdir()
    policy = {
        "op": "policy", "vhost": "/", "name": "p", "pattern": ".*", "priority": 0,
        "apply_to": "all", "definition": {"slow-consumer-policy": "gone"},
    }  # fmt: skip
    disk = Disk(folder)
    disk.start()
    disk.journal.commit([definition_record(json.dumps(policy).encode())], WallMs(1))
    disk.journal.close()
    with BrokerProcess(folder) as broker:
        assert [row["name"] for row in broker.http("GET", "/api/policies")[1]] == ["p"]
        (told,) = [line for line in broker.log().splitlines() if "policy.without_effect" in line]
        assert "slow consumer policy 'gone' is unknown, expected one of: delete" in told
