"""The section [slow_consumers]: how it is written, what it comes to, what is refused [SC-2, SC-5,
SC-6, SC-A6, SC-D2]."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.policies import Policy
from tallymark.server.config.kinds import Wrong
from tallymark.server.config.settings import DECLARED, Config, ConfigError, load
from tallymark.server.config.slow_consumers import NO_LIMIT, SlowSettings, parse
from tallymark.server.slow.policies import slow_policies

FILE = """
[slow_consumers]
delay = 2
timeunit = "Minutes"
depth = "4MiB"
message_age = "10m"
message_count = 50
rate = 0.5
policy = "Delete"
options = { delete-persistent = true }

[[slow_consumers.topics]]
key = "stocks.us.*"
message_count = 39

[[slow_consumers.queues]]
name = "audit"
message_age = 3600000
policy = "notify"

[[slow_consumers.subscriptions]]
name = "client:orders"
message_count = 9

[[slow_consumers.subscriptions]]
name = "client:orders"
topic = "stocks.#"
rate = 2
"""


def from_file(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "tallymark.toml"
    file.write_text(text)
    return load(file, {}, {})


def test_sc_5_general_topic_queue_and_subscription_sections(tmp_path: Path) -> None:
    settings = from_file(tmp_path, FILE).slow_consumers
    rules = settings.rules
    assert settings.period_s == 120
    assert rules.general is not None
    assert rules.general.values() == (
        4 << 20, 600_000, 50, 0.5, "Delete", {"delete-persistent": True}
    )  # fmt: skip
    assert rules.topics["stocks.us.*"].values() == (-1, -1, 39, -1, "", {})
    assert rules.queues["audit"].values() == (-1, 3_600_000, -1, -1, "notify", {})
    found = [(one.name, one.topic, one.rule.count, one.rule.rate) for one in rules.subscriptions]
    assert found == [("client:orders", "", 9, -1), ("client:orders", "stocks.#", -1, 2.0)]


def test_sc_4_ten_seconds_where_nothing_is_said_of_time() -> None:
    assert parse({"message_count": 1, "policy": "delete"}).period_s == 10
    assert parse("").period_s == 10
    assert SlowSettings().rules.general is None


@pytest.mark.parametrize(
    ("delay", "unit", "seconds"),
    [(250, "MILLISECONDS", 0.25), (3, "seconds", 3), (1, "Hours", 3600), (2, "DAYS", 172_800),
     (20_000, "MicroSeconds", 0.02), (50_000_000, "NANOSECONDS", 0.05)],
)  # fmt: skip
def test_sc_4_any_name_of_a_unit_in_any_case(delay: int, unit: str, seconds: float) -> None:
    assert parse({"delay": delay, "timeunit": unit}).period_s == pytest.approx(seconds)


def test_sc_d2_delete_persistent_is_what_it_says() -> None:
    """It was on wherever the key was present."""

    def action(value: object) -> object:
        return slow_policies().action("delete", {"delete-persistent": value})

    for value in (True, "true", "TRUE", "yes", False, "false", "no"):
        assert action(value) is action(value)
    for value in (1, "on", None, ""):
        with pytest.raises(ValueError, match=f"delete-persistent is {value!r}, expected true or"):
            action(value)


BASE: dict[str, Any] = {"message_count": 1, "policy": "delete"}


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({}, f"is empty: {NO_LIMIT}"),
        ({"policy": "delete"}, NO_LIMIT),
        ({"policy": "delete", "depth": 0, "message_age": 0, "message_count": 0, "rate": 0},
         NO_LIMIT),
        ({"message_count": 1}, "no policy here nor in the general section, expected one of: d"),
        ({**BASE, "policy": ""}, "policy is '', expected delete, topicDelete, drop-oldest"),
        ({**BASE, "policy": None}, "policy is None, expected delete, topicDelete"),
        ({**BASE, "policy": "explode"},
         "slow consumer policy 'explode' is unknown, expected one of: delete, topicDelete, "
         "drop-oldest, dead-letter, flow, notify"),
        ({**BASE, "message_count": -1}, "message_count is -1, expected a whole number from 0"),
        ({**BASE, "depth": -5}, "depth is -5, expected a size"),
        ({**BASE, "message_age": -1}, "message_age is -1, expected a time"),
        ({**BASE, "rate": -0.1}, "rate is -0.1, expected 0 to 1000000000 messages per second"),
        ({**BASE, "rate": 1e17}, "rate is 1e+17, expected 0 to 1000000000 messages per second"),
        ({**BASE, "rate": float("nan")}, "rate is nan"),
        ({**BASE, "message_count": True}, "message_count is True"),
        ({**BASE, "delay": 0}, "delay is 0, expected a whole number from 1"),
        ({**BASE, "timeunit": "fortnights"}, "timeunit is 'fortnights', expected one of nanos"),
        ({**BASE, "delay": 5, "timeunit": "microseconds"}, "expected 10 ms to 3650 days"),
        ({**BASE, "delay": 3651, "timeunit": "days"},
         "delay is 3651 days, expected 10 ms to 3650 days, ten years"),
        ({**BASE, "delay": 1 << 60, "timeunit": "nanoseconds"}, "expected 10 ms to 3650 days"),
        ({**BASE, "message_age": "3651d"}, "message_age is '3651d', expected a time such as"),
        ({**BASE, "messageCount": 5}, "unknown key 'messageCount', expected delay, timeunit"),
        ({**BASE, "options": {"delete-persistent": "maybe"}},
         "delete-persistent is 'maybe', expected true or false"),
        ({**BASE, "options": {"scope": "world"}}, "scope is 'world', expected session or link"),
        ({**BASE, "options": {"deletePersistent": True}}, "unknown option 'deletePersistent'"),
        ({**BASE, "policy": "notify", "options": {"x": 1}}, "unknown option 'x', expected none"),
        ({**BASE, "options": [1]}, "options is [1], expected a table"),
        ({**BASE, "topics": [{"key": "a", "message_count": 1, "options": {"scope": "link"}}]},
         "topics 'a': options without a policy"),
        ({**BASE, "topics": {"a": {}}}, "expected tables ([[slow_consumers.topics]])"),
        ({**BASE, "topics": [{"message_count": 1}]}, "topics number 1: key is None, expected text"),
        ({**BASE, "topics": [{"key": "a", "name": "b"}]}, "topics 'a': unknown key 'name'"),
        ({**BASE, "topics": [{"key": "a"}]}, f"topics 'a': {NO_LIMIT}"),
        ({**BASE, "topics": [{"key": "a", "depth": 1}, {"key": "a", "depth": 2}]},
         "topics 'a': is there twice, expected once"),
        ({"topics": [{"key": "a", "depth": 1}]}, "topics 'a': no policy here nor in the general"),
        ({**BASE, "subscriptions": [{"name": "s", "topic": "t", "depth": 1},
                                    {"name": "s", "topic": "t", "depth": 2}]},
         "subscription 's' with topic 't': is there twice, expected once"),
    ],
)  # fmt: skip
def test_sc_a6_a_section_that_makes_no_sense_is_refused_and_named(
    section: dict[str, Any], told: str
) -> None:
    with pytest.raises(Wrong) as refused:
        parse(section)
    assert told in str(refused.value)


def test_sc_2_the_words_are_qpids() -> None:
    assert NO_LIMIT == (
        "At least one configuration property('messageAge','depth' or 'messageCount') must be "
        "specified."
    )


def test_a_refusal_at_load_names_the_file_and_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        from_file(tmp_path, "[slow_consumers]\npolicy = 'delete'\n")
    assert str(refused.value) == f"{tmp_path / 'tallymark.toml'}: slow_consumers {NO_LIMIT}"
    with pytest.raises(ConfigError, match=r"slow_consumers has .*, expected values that JSON has"):
        from_file(tmp_path, "[slow_consumers]\ndepth = 1979-05-27\npolicy = 'delete'\n")


def test_as_text_it_is_json_and_shown_as_it_is_written(tmp_path: Path) -> None:
    settings = from_file(tmp_path, FILE).slow_consumers
    kind = DECLARED["slow_consumers"].kind
    shown = kind.show(settings)
    again = load(None, {"TALLYMARK_SLOW_CONSUMERS": shown}, {}).slow_consumers
    assert again == settings
    assert json.loads(shown)["topics"] == [{"key": "stocks.us.*", "message_count": 39}]


@pytest.mark.parametrize("name", ["Delete", "delete", "TOPICDELETE", "Drop-Oldest", "NOTIFY"])
def test_sc_6_names_are_compared_without_case(name: str) -> None:
    assert parse({"message_count": 1, "policy": name}).rules.general is not None


def test_sc_a6_a_brokers_policy_is_held_to_the_same() -> None:
    def definition(**keys: object) -> Policy:
        return Policy("p", ".*", {f"slow-consumer-{key}": value for key, value in keys.items()})

    slow_policies().check(definition(count=1))
    slow_policies().check(definition(policy="Flow"))
    with pytest.raises(PreconditionFailed, match="'explode' is unknown, expected one of: delete"):
        slow_policies().check(definition(policy="explode"))
    with pytest.raises(PreconditionFailed, match="unknown option 'x'"):
        slow_policies().check(definition(policy="flow", options={"x": 1}))
