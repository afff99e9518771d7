"""Qpid's XML, read as it was published and refused where it is not understood [SC-5, SC-6]."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tallymark.server.config.qpid import QpidRefused, as_toml, read_qpid
from tallymark.server.config.settings import load
from tests.support import forked

# As published, comments shortened.
CONSUMER = """\
<consumer>
    <!-- The depth before which the policy will be applied-->
    <depth>4235264</depth>
    <!-- The message age before which the policy will be applied-->
    <messageAge>600000</messageAge>
    <messageCount>50</messageCount>
    <policy name="Delete">
        <options>
            <option name="delete-persistent" value="true"/>
        </options>
    </policy>
</consumer>
"""
TOPIC = """\
<topic key="stocks.us.*">
    <consumer>
        <!-- The depth before which the policy will be applied-->
        <depth>4235264</depth>
        <!-- The message age before which the policy will be applied-->
        <maessageAge>600000</messageAge>
        <messageCount>50</messageCount>
        <policy name="Delete">
            <options>
                <option name="delete-persistent" value="true"/>
            </options>
        </policy>
    </consumer>
</topic>
"""
RULE = {
    "depth": 4235264, "message_age": 600000, "message_count": 50, "policy": "Delete",
    "options": {"delete-persistent": True},
}  # fmt: skip


def test_the_published_queue_example_is_the_general_section() -> None:
    found = read_qpid(CONSUMER)
    assert (found.value, found.warnings) == (RULE, [])
    assert read_qpid(f"<queue>{CONSUMER}</queue>").value == RULE


def test_the_published_topic_example_is_read_as_it_was_meant_with_a_warning() -> None:
    found = read_qpid(TOPIC)
    assert found.value == {"topics": [{"key": "stocks.us.*", **RULE}]}
    assert found.warnings == ["line 6: <maessageAge> is read as <messageAge>"]


def test_several_sections_around_them_and_an_xml_declaration() -> None:
    text = (
        '<?xml version="1.0"?>\n<queues>\n<queue name="audit">'
        '<consumer><messageCount>1</messageCount><policy name="topicDelete"/></consumer></queue>\n'
        '</queues><topics><topic name="a.#"><consumer><depth>7</depth><policy name="notify"/>'
        "</consumer></topic></topics>" + CONSUMER
    )
    assert read_qpid(text).value == {
        "queues": [{"name": "audit", "message_count": 1, "policy": "topicDelete"}],
        "topics": [{"key": "a.#", "depth": 7, "policy": "notify"}],
        **RULE,
    }


@pytest.mark.parametrize("value", ["false", "FALSE", " False "])
def test_sc_d2_an_option_that_is_false_is_false(value: str) -> None:
    found = read_qpid(CONSUMER.replace('value="true"', f'value="{value}"'))
    assert found.value["options"] == {"delete-persistent": False}


def test_what_comes_out_is_a_configuration_that_says_the_same(tmp_path: Path) -> None:
    for text in (CONSUMER, TOPIC, CONSUMER + TOPIC.replace("stocks.us.*", "a&quot;\\b.*")):
        found = read_qpid(text)
        written = as_toml(found.value)
        assert tomllib.loads(written) == {"slow_consumers": found.value}
        file = tmp_path / "tallymark.toml"
        file.write_text(written)
        assert load(file, {}, {}).slow_consumers.value == found.value


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (CONSUMER.replace("depth>", "dept>"),
         "line 3: unknown element <dept> in <consumer>, expected <depth>, <messageAge>"),
        (TOPIC.replace("maessageAge", "mesageAge").replace("/messageAge", "/mesageAge"),
         "line 6: unknown element <mesageAge> in <consumer>"),
        ("<broker/>", "line 1: unknown element <broker> in the file, expected <consumer>, <queue>"),
        ("<topic><consumer/></topic>", "line 1: <topic>: no attribute 'key'"),
        ('<topic key="a" durable="yes"><consumer/></topic>',
         "<topic>: unknown attribute 'durable', expected key or name"),
        (CONSUMER.replace("50", "many"), "line 6: <messageCount>: 'many', expected a whole number"),
        (CONSUMER.replace("50", "-1"), "line 6: <messageCount>: '-1', expected a whole number"),
        (CONSUMER.replace("50", "<x/>"), "line 6: unknown element <x> in <messageCount>"),
        (CONSUMER.replace('name="Delete"', 'name="Explode"'),
         "slow consumer policy 'Explode' is unknown, expected one of: delete, topicDelete"),
        (CONSUMER.replace(' name="Delete"', ""), "<policy>: no attribute 'name'"),
        (CONSUMER.replace('"delete-persistent"', '"delete-all"'), "unknown option 'delete-all'"),
        (CONSUMER.replace('value="true"', 'valeu="true"'), "<option>: unknown attribute 'valeu'"),
        (CONSUMER.replace("<depth>4235264</depth>", "<depth>1</depth><depth>2</depth>"),
         "<depth>: there twice"),
        (CONSUMER.replace("</options>",
                          '<option name="delete-persistent" value="false"/></options>'),
         "<option>: 'delete-persistent' twice, expected once"),
        (CONSUMER + CONSUMER, "<consumer>: a second general section"),
        (TOPIC + TOPIC, "topics 'stocks.us.*': is there twice, expected once"),
        ("<consumer>loose<depth>1</depth></consumer>", "'loose' beside its elements"),
        ("<consumer><depth>1</depth>", "line 1: not well-formed: mismatched tag"),
        ("<queues/>", "no <consumer> in it, expected one"),
        ("", "no <consumer> in it, expected one"),
        ('<consumer><policy name="delete"/></consumer>', "At least one configuration property("),
        ('<!DOCTYPE a [<!ENTITY b "c">]><consumer><depth>&b;</depth></consumer>',
         "line 1: not well-formed"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_by_name(text: str, told: str) -> None:
    with pytest.raises(QpidRefused) as refused:
        read_qpid(text)
    assert told in str(refused.value)


def test_the_command_writes_toml_to_stdout_and_warnings_to_stderr(tmp_path: Path) -> None:
    file = tmp_path / "topic.xml"
    file.write_text(TOPIC)
    done = forked.run("config", "import-qpid", str(file))
    assert done.returncode == 0
    assert tomllib.loads(done.stdout)["slow_consumers"]["topics"][0]["key"] == "stocks.us.*"
    assert done.stderr == (f"tallymark: {file}: line 6: <maessageAge> is read as <messageAge>\n")
    file.write_text("<broker/>")
    done = forked.run("config", "import-qpid", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown element <broker>" in done.stderr
