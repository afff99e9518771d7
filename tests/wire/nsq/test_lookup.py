"""nsqlookupd's client: commands out, answers in."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.nsq.commands import sized
from tallymark.wire.nsq.lookup import ANSWER_MAX, LookupAnswer, LookupClient, LookupdError


def client() -> LookupClient:
    return LookupClient(
        version="1.3.0",
        tcp_port=4150,
        http_port=4151,
        hostname="host",
        broadcast_address="192.0.2.7",
    )


def answers(lookup: LookupClient, *chunks: bytes) -> list[LookupAnswer]:
    found = []
    for data in chunks:
        lookup.receive_data(data)
        while (answer := lookup.next_answer()) is not None:
            found.append(answer)
    return found


def test_it_says_who_it_is_first() -> None:
    lookup = client()
    raw = b"".join(lookup.out)
    head = b"  V1IDENTIFY\n"
    assert raw.startswith(head)
    size = int.from_bytes(raw[len(head) : len(head) + 4], "big")
    body = raw[len(head) + 4 :]
    assert size == len(body)
    assert json.loads(body) == {
        "version": "1.3.0",
        "tcp_port": 4150,
        "http_port": 4151,
        "hostname": "host",
        "broadcast_address": "192.0.2.7",
    }
    info = b'{"tcp_port":4160,"broadcast_address":"there"}'
    (answer,) = answers(lookup, sized(info))
    assert (answer.command, answer.error) == ("IDENTIFY", "")
    assert answer.info == {"tcp_port": 4160, "broadcast_address": "there"}


def test_registrations_as_bytes() -> None:
    lookup = client()
    lookup.out.clear()
    lookup.register("t")
    lookup.register("t", "c#ephemeral")
    lookup.unregister("t", "c")
    lookup.unregister("t")
    lookup.ping()
    assert lookup.out == [
        b"REGISTER t\n",
        b"REGISTER t c#ephemeral\n",
        b"UNREGISTER t c\n",
        b"UNREGISTER t\n",
        b"PING\n",
    ]
    assert lookup.unanswered() == 6


@given(st.lists(st.integers(1, 80), max_size=8))
def test_answers_come_in_order_however_they_are_split(cuts: list[int]) -> None:
    lookup = client()
    lookup.register("a")
    lookup.register("b*")
    raw = sized(b"OK") + sized(b"OK") + sized(b"E_BAD_TOPIC REGISTER topic name 'b*' is not valid")
    ends = sorted(min(cut, len(raw)) for cut in cuts)
    chunks = [raw[a:b] for a, b in zip([0, *ends], [*ends, len(raw)], strict=True)]
    found = answers(lookup, *chunks)
    assert [(answer.command, answer.error) for answer in found] == [
        ("IDENTIFY", ""),
        ("REGISTER a", ""),
        ("REGISTER b*", "E_BAD_TOPIC REGISTER topic name 'b*' is not valid"),
    ]
    assert lookup.unanswered() == 0


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\xff\xff\xff",
        (ANSWER_MAX + 1).to_bytes(4, "big"),
        sized(b"{"),
        sized(b'{"a":' * 5000),
        sized(b"OK") * 2,
    ],
)
def test_what_is_not_an_answer(raw: bytes) -> None:
    with pytest.raises(LookupdError):
        answers(client(), raw)


@given(st.binary(max_size=60))
def test_any_bytes_give_answers_or_one_error(noise: bytes) -> None:
    try:
        found = answers(client(), *[noise[i : i + 1] for i in range(len(noise))])
    except LookupdError:
        return
    assert len(found) <= 1


def test_where_a_server_stands_is_told() -> None:
    lookup = LookupClient(
        version="1",
        tcp_port=1,
        http_port=2,
        hostname="h",
        broadcast_address="b",
        topology_region="r",
        topology_zone="z",
    )
    assert b'"topology_region":"r","topology_zone":"z"' in b"".join(lookup.out)
