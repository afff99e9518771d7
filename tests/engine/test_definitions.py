"""Topology in and out of JSON: values, snapshots, and replaying the changes one by one."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from datetime import UTC
from decimal import Decimal
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.engine import definitions
from tallymark.engine.clock import Clock
from tallymark.engine.errors import BrokerError
from tallymark.engine.ledger import Ledger
from tallymark.engine.table_json import canonical, from_json, to_json
from tallymark.engine.vhost import VirtualHost
from tallymark.stored.records import DEFINITION

TEXTS = st.text(max_size=8) | st.sampled_from(["$bytes", "$table", "$", "\udcff", "a\0b"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), 1 << 64)
    | st.floats(allow_nan=False)
    | TEXTS
    | st.binary(max_size=8)
    | st.decimals(allow_nan=False)
    | st.datetimes(timezones=st.none() | st.just(UTC)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def same_with_types(a: object, b: object) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_with_types, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_with_types(a[k], b[k]) for k in a)
    return a == b


@given(VALUES)
def test_values_keep_their_types(value: object) -> None:
    through = from_json(json.loads(json.dumps(to_json(value))))
    assert same_with_types(through, value)
    assert canonical(through) == canonical(value)


def test_values_json_has_not() -> None:
    assert math.isnan(from_json(to_json(math.nan)))  # type: ignore[arg-type]
    assert to_json(b"\xff") == {"$bytes": "/w=="}
    assert to_json({"$a": 1}) == {"$table": [["$a", 1]]}
    assert to_json(Decimal("1.50")) == {"$decimal": "1.50"}
    with pytest.raises(TypeError):
        to_json(object())
    with pytest.raises(ValueError):
        from_json({"$new": "x"})


def test_canonical_tells_types_apart_and_not_orders() -> None:
    values: list[object] = [1, 1.0, True, "1", b"1", None, [1], {"1": 1}, Decimal(1)]
    assert len({canonical(value) for value in values}) == len(values)
    assert canonical({"a": 1, "b": 2}) == canonical({"b": 2, "a": 1})
    assert canonical({"$a": 1, "$b": 2}) == canonical({"$b": 2, "$a": 1})


def new_host() -> VirtualHost:
    ids = count(1)
    clock = Clock()
    vhost = VirtualHost("/v", clock, Ledger(clock), lambda: next(ids))
    vhost.clock.tell(1234)
    return vhost


NAMES = st.sampled_from(["a", "b", "c"])
KINDS = st.sampled_from(["direct", "fanout", "topic", "headers", "x-consistent-hash"])
KEYS = st.sampled_from(["1", "2", "a.#"])
ARGUMENTS = st.sampled_from([{}, {"n": 1}, {"n": b"\xff", "f": 1.0, "t": {"$x": None}}])
COMMANDS = st.one_of(
    st.tuples(
        st.just("declare_exchange"),
        NAMES,
        KINDS,
        st.booleans(),
        st.booleans(),
        st.booleans(),
        ARGUMENTS,
        st.just(False),
    ),
    st.tuples(st.just("delete_exchange"), NAMES, st.booleans()),
    st.tuples(
        st.just("declare_queue"),
        NAMES,
        st.booleans(),
        st.booleans(),
        st.booleans(),
        ARGUMENTS,
        st.just(1),
        st.just(False),
    ),
    st.tuples(st.just("delete_queue"), NAMES, st.just(False), st.just(False), st.just(1)),
    st.tuples(st.just("bind_queue"), NAMES, NAMES, KEYS, ARGUMENTS, st.just(1)),
    st.tuples(st.just("unbind_queue"), NAMES, NAMES, KEYS, ARGUMENTS, st.just(1)),
    st.tuples(st.just("bind_exchange"), NAMES, NAMES, KEYS, ARGUMENTS),
    st.tuples(st.just("unbind_exchange"), NAMES, NAMES, KEYS, ARGUMENTS),
)


def replayed(blobs: list[bytes]) -> VirtualHost:
    vhost = new_host()
    for blob in blobs:
        vhost.topology.apply(blob)
    assert vhost.ledger.rows == []
    return vhost


@given(st.lists(COMMANDS, max_size=40))
def test_replay_and_snapshot_rebuild_what_is_durable(
    history: list[tuple[object, ...]],
) -> None:
    vhost = new_host()
    for name, *args in history:
        before = (vhost.generation, len(vhost.ledger.rows), sorted(vhost.topology.definitions()))
        try:
            getattr(vhost, str(name))(*args)
        except BrokerError:
            assert before == (
                vhost.generation,
                len(vhost.ledger.rows),
                sorted(vhost.topology.definitions()),
            )
    durable = sorted(vhost.topology.definitions())
    after_replay = replayed([record.blob for record in vhost.ledger.rows])
    assert sorted(after_replay.topology.definitions()) == durable
    after_snapshot = replayed(vhost.topology.definitions())
    assert sorted(after_snapshot.topology.definitions()) == durable
    for key in ("1", "a.b"):
        for exchange in after_snapshot.exchanges.values():
            once = after_snapshot.route_from(exchange, [key], None)
            again = after_replay.route_from(after_replay.exchanges[exchange.name], [key], None)
            assert [queue.id for queue in once.queues] == [queue.id for queue in again.queues]


@given(st.lists(COMMANDS, max_size=30))
def test_tables_stay_consistent(history: list[tuple[object, ...]]) -> None:
    vhost = new_host()
    for name, *args in history:
        with suppress(BrokerError):
            getattr(vhost, str(name))(*args)
    for binding in vhost.topology.bindings():
        assert vhost.exchanges[binding.source.name] is binding.source
        if binding.queue is not None:
            assert vhost.queues[binding.queue.name] is binding.queue
            assert binding in vhost.topology.inbound[binding.queue.id]
        else:
            assert binding.exchange is vhost.exchanges[binding.destination()]
            assert binding in binding.exchange.inbound
    inbound = sum(len(bound) for bound in vhost.topology.inbound.values())
    inbound += sum(len(exchange.inbound) for exchange in vhost.exchanges.values())
    assert inbound == len(vhost.topology.bindings())


def operations(vhost: VirtualHost) -> list[str]:
    return [
        definitions.text_of(definitions.decode(record.blob), "op") for record in vhost.ledger.rows
    ]


def test_only_what_is_durable_at_both_ends_is_recorded() -> None:
    vhost = new_host()
    vhost.declare_exchange("lasting", "direct", True, False, False, {}, False)
    vhost.declare_exchange("passing", "direct", False, False, False, {}, False)
    vhost.declare_queue("lasting", True, False, False, {}, 1, False)
    vhost.declare_queue("passing", False, False, False, {}, 1, False)
    vhost.declare_queue("own", True, True, False, {}, 1, False)
    assert operations(vhost) == ["exchange", "queue"]
    for queue in ("lasting", "passing", "own"):
        for exchange in ("lasting", "passing"):
            vhost.bind_queue(queue, exchange, "k", {}, 1)
            vhost.bind_queue(queue, exchange, "k", {}, 1)
    vhost.bind_exchange("passing", "lasting", "k", {})
    assert operations(vhost)[2:] == ["binding"]
    vhost.unbind_queue("lasting", "lasting", "k", {}, 1)
    vhost.delete_queue("passing", False, False, 1)
    vhost.delete_queue("lasting", False, False, 1)
    vhost.delete_exchange("passing", False)
    vhost.delete_exchange("lasting", False)
    assert operations(vhost)[3:] == ["unbind", "delete_queue", "delete_exchange"]
    assert {(record.kind, record.queue, record.time_ms) for record in vhost.ledger.rows} == {
        (DEFINITION, 0, 1234)
    }


def test_queue_definition_in_full() -> None:
    vhost = new_host()
    vhost.declare_queue("q", True, False, False, {"x-max-length": 9}, 1, False)
    assert definitions.decode(vhost.ledger.rows[0].blob) == {
        "op": "queue",
        "vhost": "/v",
        "id": 1,
        "name": "q",
        "durable": True,
        "auto_delete": False,
        "arguments": {"x-max-length": 9},
    }


def test_deletion_of_an_earlier_queue_spares_its_successor() -> None:
    vhost = new_host()
    vhost.declare_queue("q", True, False, False, {}, 1, False)
    vhost.topology.apply(b'{"op":"delete_queue","vhost":"/v","id":7,"name":"q"}')
    assert "q" in vhost.queues


def test_changes_of_what_is_missing_are_passed_over() -> None:
    binding = (
        b'{"op":"%s","vhost":"/v","source":"no","kind":"queue","destination":"no",'
        b'"key":"k","arguments":{}}'
    )
    vhost = replayed(
        [
            binding % b"binding",
            binding % b"unbind",
            b'{"op":"delete_exchange","vhost":"/v","name":"no"}',
            b'{"op":"delete_queue","vhost":"/v","id":7,"name":"no"}',
            definitions.vhost_definition("/v"),
            definitions.vhost_deletion("/v"),
        ]
    )
    assert vhost.topology.definitions() == [definitions.vhost_definition("/v")]


@pytest.mark.parametrize(
    "blob",
    [
        b"[]",
        b"{",
        b'{"op":"queue"}',
        b'{"op":"teleport","vhost":"/v"}',
        b'{"op":"queue","vhost":"/v","id":true,"name":"q"}',
        b'{"op":"queue","vhost":"/v","id":1,"name":5}',
        b'{"op":"queue","vhost":"/v","id":1,"name":"q","arguments":[]}',
    ],
)
def test_what_is_no_definition_is_refused(blob: bytes) -> None:
    with pytest.raises(ValueError):
        replayed([blob])
