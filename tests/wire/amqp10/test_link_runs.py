"""The hot paths: a run sent is one call and one write, a stretch received is one event."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp10.events import TransfersReceived
from tallymark.wire.amqp10.frames import frame
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import Accepted, TransactionalState
from tallymark.wire.amqp10.performatives import Transfer
from tests.support.amqp10_pair import BODY, Pair, Server, run_of, transfer

LIMITS = Limits(incoming_window=5000)


def test_a_run_is_one_write_and_one_event() -> None:
    pair = Pair(LIMITS, LIMITS).open()
    ours, _ = pair.session()
    receiver, sender = pair.receiver(ours)
    receiver.flow(1000)
    pair.pump()
    messages = [BODY * (1 + i % 3) for i in range(1000)]
    raw, cuts = run_of(messages)
    sender.send_run(raw, cuts, 0, 600, settled=False)
    sender.send_run(raw, cuts, 600, 1000, settled=False)
    out = pair.server.connection.take_output(0)
    assert len(out) == 2
    pair.client.give(b"".join(out), 0)
    event = pair.client.one(TransfersReceived)
    assert (event.link, event.first, len(event)) == (receiver, 0, 1000)
    assert event.data == raw
    assert event.cuts == cuts
    assert pair.client.take(0) == b""


def _runs(*said: tuple[Transfer, bytes]) -> list[tuple[str, int, int]]:
    """Name of the link, first id and length of each event, for frames in one read."""
    server = Server(LIMITS)
    server.publisher(credit=100, handle=0)
    server.publisher(credit=100, handle=1)
    server.hear(b"".join([frame(0, one.encode(), payload) for one, payload in said]))
    return [(one.link.name, one.first, len(one)) for one in server.of(TransfersReceived)]


STATE = TransactionalState(b"t")


@pytest.mark.parametrize(
    "other",
    [
        transfer(2, settled=True),
        transfer(2, state=Accepted()),
        transfer(2, state=STATE),
        transfer(2, message_format=1),
        transfer(2, handle=1),
        transfer(2, more=True),
    ],
)
def test_a_stretch_is_of_deliveries_alike(other: Transfer) -> None:
    said = [(transfer(0), BODY), (transfer(1), BODY), (other, BODY)]
    if other.more:
        said.append((transfer(None), BODY))
    said += [(transfer(3), BODY), (transfer(4), BODY)]
    assert _runs(*said) == [("p0", 0, 2), (f"p{other.handle}", 2, 1), ("p0", 3, 2)]


def test_a_stretch_has_no_gaps() -> None:
    said = [(transfer(i), BODY) for i in (0, 1, 2, 7, 8)]
    assert _runs(*said) == [("p0", 0, 3), ("p0", 7, 2)]


def test_what_is_alike_goes_on_over_differing_sizes_and_tags() -> None:
    said = [(transfer(i, delivery_tag=b"t" * (i % 33)), bytes(i * 7)) for i in range(50)]
    assert _runs(*said) == [("p0", 0, 50)]


def test_states_of_a_stretch_are_read_once() -> None:
    server = Server(LIMITS)
    server.publisher(credit=100)
    for first in (0, 10):
        said = [frame(0, transfer(first + i, state=STATE).encode(), BODY) for i in range(10)]
        server.hear(b"".join(said))
    first_event, second_event = server.of(TransfersReceived)
    assert first_event.state == STATE
    assert first_event.state is second_event.state


@pytest.mark.parametrize("size", [0, 1, 1000, 200_000])
def test_a_front_takes_the_place_of_what_is_skipped(size: int) -> None:
    pair = Pair(LIMITS, LIMITS).open()
    ours, _ = pair.session()
    receiver, sender = pair.receiver(ours)
    receiver.flow(10)
    pair.pump()
    raw, cuts = run_of([b"HEAD" + bytes([i]) * size for i in range(4)])
    sender.send_run(raw, cuts, 1, 4, settled=True, front=b"front", skip=4)
    pair.pump()
    got = [message[2] for message in pair.client.messages()]
    assert got == [b"front" + bytes([i]) * size for i in range(1, 4)]
