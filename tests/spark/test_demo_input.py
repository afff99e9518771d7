"""What the demo publishes: a file's lines to the byte, and orders that are the same every time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tallymark_demo import input as demo_input
from tallymark_demo.input import file_lines, generated_orders, refuses, workload


def test_a_line_keeps_every_byte_but_its_newline(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"one\r\n\n\xff\xfe\x00\n  last")
    assert [body for _, body in file_lines(path)] == [b"one\r", b"", b"\xff\xfe\x00", b"  last"]


def test_lines_are_spread_over_keys_that_the_bindings_tell_apart(tmp_path: Path) -> None:
    path = tmp_path / "lines.ndjson"
    path.write_bytes(b"{}\n" * 8)
    work = workload(path)
    assert [key for key, _ in work.messages()].count(work.some) == 2
    assert work.media_type == "application/json"


def test_orders_are_the_same_every_time_and_have_all_kinds() -> None:
    orders = list(generated_orders())
    assert orders == list(workload(None).messages())
    assert len(orders) == demo_input.ORDERS
    poisonous = [body for _, body in orders if refuses("application/json", body)]
    late = [key for key, _ in orders if key.endswith("late")]
    whole = [json.loads(body)["order"] for _, body in orders if body not in set(poisonous)]
    assert len(poisonous) > 100
    assert len(late) > 100
    assert len(whole) - len(set(whole)) > 100


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        workload(tmp_path / "nothing")


def test_json_lines_are_judged_as_json_and_others_by_length() -> None:
    assert not refuses("application/json", b'{"note": "' + b"x" * 500 + b'"}')
    assert refuses("application/json", b"")
    assert not refuses("text/plain", b"no json")
    assert refuses("text/plain", b"")
    assert refuses("text/plain", b"x" * 401)
