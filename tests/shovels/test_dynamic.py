"""Dynamic shovels of RabbitMQ, as lines for the configuration."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from tallymark.shovels.dynamic import Translated, shovels_in
from tallymark.shovels.plan import Plan

HERE = "http://USER:PASSWORD@127.0.0.1:15672"
FAR = "amqp://me:secret@far:5673/orders"


def translated(*values: dict[str, Any], name: str = "s") -> list[Translated]:
    rows = [
        {"component": "shovel", "vhost": f"v{n}", "name": name, "value": value}
        for n, value in enumerate(values)
    ]
    other = {"component": "operator_policy", "vhost": "/", "name": "p", "value": {}}
    return shovels_in({"parameters": [other, *rows]}, HERE)


def test_a_shovel_from_another_broker_to_this_one() -> None:
    [found] = translated({
        "src-protocol": "amqp091", "src-uri": FAR, "src-queue": "a", "src-prefetch-count": 50,
        "dest-protocol": "amqp091", "dest-uri": "amqp://", "dest-queue": "b",
        "ack-mode": "on-confirm", "src-delete-after": "never", "add-forward-headers": True,
        "reconnect-delay": 5,
    })  # fmt: skip
    assert found.notes == []
    [table] = tomllib.loads("\n".join(found.lines()))["shovels"]
    assert table == {
        "name": "s", "from": FAR, "queue": "a", "to": f"{HERE}/v0", "to-queue": "b", "batch": 50,
    }  # fmt: skip
    Plan.from_table(table)


def test_whatever_a_parameter_has_its_lines_are_toml() -> None:
    name = 'orders \U0001f69a \x7f "ä"'
    [found] = translated(
        {"src-uri": f"{FAR}?a\nb = 1", "src-queue": name, "dest-queue": name}, name=name
    )
    read = tomllib.loads("\n".join(found.lines()))
    [table] = read.pop("shovels")
    assert (table["name"], table["queue"], table["to-queue"]) == (name, name, name)
    assert read == {}, "a note stays a comment"


def test_an_exchange_and_a_peer_of_amqp_1_0() -> None:
    first, second = translated(
        {"src-uri": "amqps://far", "src-queue": "a", "dest-uri": "amqp:///v",
         "dest-exchange": "e", "dest-exchange-key": "k"},
        {"src-uri": ["amqp://", "amqp://x"], "src-queue": "a", "dest-protocol": "amqp10",
         "dest-uri": "amqps://far?idle_time_out=1", "dest-address": "/queues/b"},
    )  # fmt: skip
    assert first.table == {
        "name": "s", "from": "amqps://far", "queue": "a", "to": f"{HERE}/v", "to-exchange": "e",
        "to-key": "k",
    }  # fmt: skip
    assert second.table == {
        "name": "s of v1", "from": f"{HERE}/v1", "queue": "a", "to": "amqps10://far",
        "to-queue": "/queues/b",
    }  # fmt: skip
    assert second.notes == [
        "src-uri had 2 addresses: only the first is named",
        "dest-uri had ?idle_time_out=1, which has no place here",
    ]


@pytest.mark.parametrize(
    ("further", "note"),
    [
        ({"ack-mode": "no-ack"}, "ack-mode was 'no-ack': here"),
        ({"src-delete-after": "queue-length"}, "src-delete-after was 'queue-length': this one"),
        ({"dest-add-timestamp-header": True}, "dest-add-timestamp-header = true has no place"),
    ],
)
def test_what_a_table_cannot_say_is_named(further: dict[str, Any], note: str) -> None:
    [found] = translated({"src-uri": FAR, "src-queue": "a", "dest-queue": "b", **further})
    assert found.table is not None
    assert [one for one in found.notes if one.startswith(note)]


def test_where_messages_kept_their_exchange_that_is_to_be_named() -> None:
    [found] = translated({"src-uri": FAR, "src-queue": "a", "dest-uri": "amqp://"})
    assert found.table == {"name": "s", "from": FAR, "queue": "a", "to": f"{HERE}/v0"}
    assert "add to-exchange" in found.notes[0]


def test_a_shovel_that_has_no_table_is_named() -> None:
    [found] = translated({"src-uri": FAR, "src-exchange": "e", "dest-uri": "amqp://"})
    lines = found.lines()
    assert lines[0] == "# shovel 's' has no table:"
    assert any("took from exchange 'e'" in line for line in lines)
    assert tomllib.loads("\n".join(lines)) == {}


def test_definitions_without_shovels() -> None:
    assert shovels_in({}, HERE) == []
    assert shovels_in({"parameters": "no list"}, HERE) == []
