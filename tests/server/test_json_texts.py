"""A byte order mark in front of JSON is passed over [RFC 8259 §8.1]."""

from __future__ import annotations

import codecs
import json
from pathlib import Path

import pytest

from tallymark.server.json_texts import unmarked
from tallymark.server.management.requests import fields_in
from tests.support import forked
from tests.support.process import BrokerProcess

DEFINITIONS = {"queues": [{"name": "q", "vhost": "/", "durable": True, "arguments": {}}]}


@pytest.mark.parametrize("text", [b"", b"{}", b'{"a": 1}'])
def test_one_mark_in_front_is_passed_over(text: bytes) -> None:
    assert unmarked(codecs.BOM_UTF8 + text) == unmarked(text) == text
    assert unmarked(codecs.BOM_UTF8 * 2 + text) == codecs.BOM_UTF8 + text


def test_a_request_may_begin_with_one() -> None:
    assert fields_in(codecs.BOM_UTF8).value == {}
    assert fields_in(codecs.BOM_UTF8 + b' {"a": 1}').value == {"a": 1}


def test_files_of_definitions_and_bodies_may_begin_with_one(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    file.write_bytes(codecs.BOM_UTF8 + json.dumps(DEFINITIONS).encode())
    with BrokerProcess(tmp_path / "data", definitions=str(file)) as broker:
        assert broker.http("GET", "/api/queues/%2F/q")[0] == 200
        environment = {"TALLYMARK_URL": broker.url}
        done = forked.run("definitions", "import", str(file), env=environment)
        assert done.returncode == 0, done.stderr
        body = codecs.BOM_UTF8 + b'{"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}'
        assert broker.http("POST", "/api/queues/%2F/q/get", body) == (200, [])
        plan = codecs.BOM_UTF8 + b'{"from": -1, "to": 0}'
        arguments = {"x-queue-type": "stream"}
        broker.http("PUT", "/api/queues/%2F/s", {"durable": True, "arguments": arguments})
        status, found = broker.http("POST", "/api/tallymark/streams/%2F/s/plans", plan)
        assert (status, found["error"]) == (400, "bad_request")
