"""What a newer version recorded and this one does not know: a restart refuses it [DL-20].

Passed over it would be undone with the next checkpoint, or mean something else.
"""

from __future__ import annotations

import json

import pytest

from tallymark.engine.broker import Broker
from tallymark.engine.ledger import counters_record, definition_record, payload_record
from tallymark.engine.message import Payload
from tallymark.engine.record import Record
from tallymark.engine.restore import Restorer
from tallymark.stored import records
from tallymark.stored.formats import NEWEST
from tests.journal.builders import payload

EXCHANGE: dict[str, object] = {
    "op": "exchange", "vhost": "/", "name": "x", "type": "direct", "durable": True,
    "auto_delete": False, "internal": False, "arguments": {},
}  # fmt: skip
QUEUE: dict[str, object] = {
    "op": "queue", "vhost": "/", "id": 1, "name": "q", "durable": True, "auto_delete": False,
    "arguments": {},
}  # fmt: skip
BINDING: dict[str, object] = {
    "op": "binding", "vhost": "/", "source": "amq.direct", "kind": "queue", "destination": "q",
    "key": "k", "arguments": {},
}  # fmt: skip
SUBSCRIPTION: dict[str, object] = {
    "op": "subscription", "epoch": 1, "queue_id": 1, "name": "s", "fence": 1, "limit_rows": 9,
    "limit_bytes": 9,
}  # fmt: skip
SINK: dict[str, object] = {
    "op": "sink", "vhost": "/", "name": "s", "identity": "i", "batch": 1, "forget_ms": 0,
}  # fmt: skip
IDS: dict[str, object] = {"op": "ids", "queue": 1, "owner": 1, "message": 1, "epoch": 1}
COUNTERS: dict[str, object] = {
    "entered": 2, "settled": 1, "dead_lettered": 0, "dropped": {"rejected": 1},
}  # fmt: skip


def nothing(payload: Payload) -> bytes:
    raise AssertionError(payload)


def restored(*said: Record) -> Broker:
    broker = Broker(nothing)
    Restorer(broker).run(said)
    return broker


def defined(definition: dict[str, object]) -> Record:
    return definition_record(json.dumps(definition).encode())


def refused(*said: Record) -> str:
    with pytest.raises(ValueError, match=r"\w") as found:
        restored(*said)
    return str(found.value)


KNOWN = [EXCHANGE, QUEUE, BINDING, SUBSCRIPTION, SINK, IDS]


@pytest.mark.parametrize("definition", KNOWN, ids=lambda one: str(one["op"]))
def test_dl_20_a_field_of_a_definition_that_is_not_known_is_refused(
    definition: dict[str, object],
) -> None:
    restored(defined(QUEUE), defined(definition))
    text = refused(defined(QUEUE), defined({**definition, "shape": 2040}))
    assert text == (
        f"definition field 'shape' of op '{definition['op']}' is not known: written by a newer "
        "version?"
    )


@pytest.mark.parametrize("definition", KNOWN, ids=lambda one: str(one["op"]))
def test_dl_20_a_definition_that_lacks_a_field_is_refused(definition: dict[str, object]) -> None:
    last = list(definition)[-1]
    lacking = {name: definition[name] for name in definition if name != last}
    assert (
        refused(defined(lacking)) == f"definition op '{definition['op']}' lacks the field '{last}'"
    )


@pytest.mark.parametrize(
    ("definition", "told"),
    [
        (
            {**EXCHANGE, "type": "x-ring"},
            "exchange 'x': unknown exchange type 'x-ring': written by",
        ),
        ({**QUEUE, "arguments": {"x-queue-type": "ring"}}, "queue 'q' is of type 'ring': written"),
        ({**BINDING, "kind": "ring"}, "binding to a 'ring': written by a newer version?"),
        ({"vhost": "/"}, "field 'op' is None, expected text"),
        ({"op": "shape"}, "definition op 'shape': written by a newer version?"),
    ],
)
def test_dl_20_a_definition_of_something_unknown_is_refused(
    definition: dict[str, object], told: str
) -> None:
    assert told in refused(defined(definition))


@pytest.mark.parametrize(
    "kind",
    [records.SETTLED, records.RETURNED, records.DROPPED, records.DEAD_LETTERED, records.SINK_ENDED],
)
def test_dl_20_a_reason_that_is_not_known_is_refused(kind: int) -> None:
    """Its messages were counted, and the next look at their queue failed."""
    entered = Record(records.ENTERED, 1, 1, 1, 0, flags=records.TRANSIENT)
    ended = Record(kind, 1, 1, 1, 0, reason=99)
    name = records.KINDS[kind]
    assert refused(defined(QUEUE), entered, ended) == (
        f"{name} record of unknown reason 99: written by a newer version?"
    )


def test_dl_20_counters_that_are_not_known_are_refused() -> None:
    """Without them the account of the queue is off, and its messages were said to be lost."""
    restored(defined(QUEUE), counters_record(1, COUNTERS))
    more = counters_record(1, {**COUNTERS, "entered": 5, "evaporated": 3})
    assert refused(defined(QUEUE), more) == (
        "counter 'evaporated' is not known: written by a newer version?"
    )
    more = counters_record(1, {**COUNTERS, "dropped": {"evaporated": 1}})
    assert refused(defined(QUEUE), more) == (
        "messages dropped as 'evaporated': written by a newer version?"
    )


def test_dl_20_messages_of_a_format_that_is_not_known_are_refused() -> None:
    """They were taken for those of AMQP 1.0, and clients got nonsense."""

    def stored(number: int) -> Record:
        return payload_record(payload([b"a", b"b"], format=number))

    restored(stored(NEWEST))
    assert (
        refused(stored(NEWEST + 1)) == "messages of unknown format 4: written by a newer version?"
    )


def test_dl_20_a_verdict_that_is_not_known_is_refused() -> None:
    made = defined(QUEUE), defined(SUBSCRIPTION)
    verdicts = Record(records.VERDICTS, 1, 0, 0, 0, owner=1, blob=b"[[0,1,99]]")
    assert refused(*made, verdicts) == "verdict of unknown outcome 99: written by a newer version?"
