"""`tallymark policy` and `tallymark feature` as a user types them, against a real broker."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.support import forked
from tests.support.process import BrokerProcess

DEFINITION = '{"max-length": 1, "overflow": "reject-publish"}'


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = Path(tmp_path_factory.mktemp("cli")) / "data"
    with BrokerProcess(folder, vhosts="/,a b") as running:
        yield running


def run(url: str, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = forked.run(*arguments, env={"TALLYMARK_URL": url})
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def listed(url: str, *more: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads(run(url, "policy", "list", "--json", *more).stdout)
    return rows


def test_a_policy_is_set_listed_and_deleted(broker: BrokerProcess) -> None:
    url = broker.url
    assert run(url, "policy", "list").stdout == "no policies\n"
    more = ("--priority", "7", "--apply-to", "classic_queues", "--vhost", "a b")
    done = run(url, "policy", "set", "p/1", "^x%", DEFINITION, *more)
    assert (done.stdout, done.stderr) == ("policy 'p/1' set in vhost 'a b'\n", "")
    (row,) = listed(url)
    assert row == {
        "vhost": "a b", "name": "p/1", "pattern": "^x%", "definition": json.loads(DEFINITION),
        "priority": 7, "apply-to": "classic_queues", "operator": False,
    }  # fmt: skip
    assert listed(url, "--vhost", "/") == []
    assert listed(url, "--vhost", "a b") == [row]
    assert DEFINITION in run(url, "policy", "list").stdout
    missing = run(url, "policy", "delete", "p/1", code=1)  # of the virtual host /
    assert len(missing.stderr.splitlines()) == 1
    done = run(url, "policy", "delete", "p/1", "--vhost", "a b")
    assert done.stdout == "policy 'p/1' deleted from vhost 'a b'\n"
    assert listed(url) == []


def test_an_operator_policy_is_another_one_of_the_same_name(broker: BrokerProcess) -> None:
    url = broker.url
    run(url, "policy", "set", "cap", "", '{"max-length": 9}')
    done = run(url, "policy", "set", "cap", "", '{"max-length": 5}', "--operator")
    assert done.stdout == "operator policy 'cap' set in vhost '/'\n"
    found = [(row["operator"], row["definition"]) for row in listed(url)]
    assert found == [(False, {"max-length": 9}), (True, {"max-length": 5})]
    run(url, "policy", "delete", "cap")
    assert [row["operator"] for row in listed(url)] == [True]
    run(url, "policy", "delete", "cap", "--operator")
    refused = run(url, "policy", "set", "cap", "", DEFINITION, "--operator", code=1)
    assert "not recognised operator policy settings" in refused.stderr


def test_a_bad_policy_is_refused_with_the_reason_and_the_old_one_stays(
    broker: BrokerProcess,
) -> None:
    url = broker.url
    run(url, "policy", "set", "p", "", '{"max-length": 9}')
    before = listed(url)
    for definition, pattern, code, told in (
        ('{"max-length": -1}', "", 1, "-1 is not a valid maximum length"),
        ('{"max-lenght": 1}', "", 1, "max-lenght"),
        ('{"max-length": 1}', "(", 1, "pattern should be regular expression but is invalid"),
        ("{}", "", 1, "no policy provided"),
        ("{max-length: 1}", "", 2, "expected a JSON object"),
        ("[]", "", 2, "DEFINITION is '[]', expected a JSON object"),
    ):
        done = run(url, "policy", "set", "p", pattern, definition, code=code)
        assert told in done.stderr
        assert done.stdout == ""
    refused = run(url, "policy", "set", "p", "", DEFINITION, "--apply-to", "moons", code=1)
    assert "apply-to 'moons' unrecognised" in refused.stderr
    assert listed(url) == before
    run(url, "policy", "delete", "p")


def test_keys_without_effect_are_told(broker: BrokerProcess) -> None:
    definition = '{"ha-mode": "all", "max-length": 9}'
    done = run(broker.url, "policy", "set", "p", "", definition)
    assert done.stderr == "tallymark: without effect: ha-mode\n"
    done = run(broker.url, "policy", "set", "p", "", definition, "--apply-to", "exchanges")
    assert done.stderr == "tallymark: without effect: ha-mode, max-length\n"
    run(broker.url, "policy", "delete", "p")


def test_a_policy_outlives_a_restart_and_an_exchange_feels_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
        channel = connection.channel()
        channel.exchange_declare("e", "direct", durable=True)
        channel.queue_declare("rest", durable=True)
        channel.queue_bind("rest", "amq.fanout")
        run(
            broker.url, "policy", "set", "ae", "^e$", '{"alternate-exchange": "amq.fanout"}',
            "--apply-to", "exchanges",
        )  # fmt: skip
        channel.confirm_delivery()
        channel.basic_publish("e", "nowhere", b"1", mandatory=True)
        connection.close()
        broker.kill()
    with BrokerProcess(tmp_path / "data") as broker:
        (row,) = listed(broker.url)
        assert (row["name"], row["apply-to"]) == ("ae", "exchanges")
        with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as again:
            channel = again.channel()
            channel.confirm_delivery()
            channel.basic_publish("e", "nowhere", b"2", mandatory=True)
            run(broker.url, "policy", "delete", "ae")
            with pytest.raises(pika.exceptions.UnroutableError):
                channel.basic_publish("e", "nowhere", b"3", mandatory=True)


def test_feature_flags_are_listed_and_enabled(broker: BrokerProcess) -> None:
    shown = run(broker.url, "feature", "list").stdout
    assert "message_containers_deaths_v2" in shown
    rows = json.loads(run(broker.url, "feature", "list", "--json").stdout)
    assert {row["name"] for row in rows} >= {"message_containers", "message_containers_deaths_v2"}
    assert all(row["enabled"] for row in rows)
    done = run(broker.url, "feature", "enable", "message_containers")
    assert done.stdout == "feature flag 'message_containers' is enabled\n"
    refused = run(broker.url, "feature", "enable", "moons", code=1)
    assert "no feature flag 'moons', expected one of message_containers" in refused.stderr
