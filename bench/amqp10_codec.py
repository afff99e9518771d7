"""Nanoseconds of the AMQP 1.0 codec: a message in a run, a performative, a section, a value.

    python bench/amqp10_codec.py                   as installed, mostly compiled
    PYTHONPATH=src python bench/amqp10_codec.py    interpreted

Each figure is the best of seven rounds of a tenth of a second of processor time: other load makes
it worse, never better. A run is 1000 messages of 151 bytes with header, properties and application
properties.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator
from time import process_time

from tallymark.wire.amqp10 import frames
from tallymark.wire.amqp10.codec import decode, encode
from tallymark.wire.amqp10.performatives import Flow, decode_performative
from tallymark.wire.amqp10.scanning import Meaning, Shape, scan_dispositions, scan_transfers
from tallymark.wire.amqp10.sections import Header, Properties, Sections, encode_message
from tallymark.wire.amqp10.sending import (
    ACCEPTED,
    TransferForm,
    disposition_frame,
    encode_tagged_transfers,
    encode_transfers,
)
from tallymark.wire.amqp10.types import Symbol, UInt

RUN = 1000
ROUNDS = 7
ROUND_S = 0.1
LIMIT = 1 << 30

Case = tuple[str, int, Callable[[], object]]
"""What, how many messages a call is about, the call."""


def nanoseconds(call: Callable[[], object], count: int) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        calls = 0
        begin = process_time()
        while True:
            call()
            calls += 1
            took = process_time() - begin
            if took >= ROUND_S:
                break
        best = min(best, took / (calls * count))
    return best * 1e9


def message(more: int = 0) -> bytes:
    properties = Properties(message_id="m-123456", to="/queues/q")
    return encode_message(Header(True), None, None, properties, {"a": 1}, b"x" * (100 + more))


def run_of(messages: list[bytes]) -> tuple[bytes, array[int]]:
    cuts = array("I", [0])
    for one in messages:
        cuts.append(cuts[-1] + len(one))
    return b"".join(messages), cuts


def runs() -> Iterator[Case]:
    form = TransferForm(1, 0)
    shapes: dict[bytes, Shape] = {}
    rng = random.Random(1)
    same = run_of([message()] * RUN)
    varying = run_of([message(rng.randrange(100)) for _ in range(RUN)])
    tags = [i.to_bytes(16, "big") for i in range(RUN)]
    for name, (raw, cuts) in (("equal sizes", same), ("varying sizes", varying)):
        data, _ = encode_transfers(form, 1000, 1000, raw, cuts, 0, RUN, b"", 0, LIMIT)
        yield (
            f"transfers in, {name}",
            RUN,
            lambda data=data: scan_transfers(data, 0, len(data), 1, LIMIT, LIMIT, LIMIT, shapes),
        )
        yield (
            f"transfers out, {name}",
            RUN,
            lambda raw=raw, cuts=cuts: encode_transfers(
                form, 1000, 1000, raw, cuts, 0, RUN, b"", 0, LIMIT
            ),
        )
    raw, cuts = same
    yield (
        "transfers out, another front",
        RUN,
        lambda: encode_transfers(form, 1000, 1000, raw, cuts, 0, RUN, b"f" * 60, 10, LIMIT),
    )
    yield (
        "transfers out, tags given",
        RUN,
        lambda: encode_tagged_transfers(form, 1000, tags, raw, cuts, 0, RUN, b"", 0, LIMIT),
    )
    one, _ = encode_transfers(form, 1000, 1000, raw, cuts, 0, 1, b"", 0, LIMIT)
    yield (
        "a transfer in by itself",
        1,
        lambda: scan_transfers(one, 0, len(one), 1, LIMIT, LIMIT, LIMIT, shapes),
    )
    yield (
        "a transfer out by itself",
        1,
        lambda: encode_transfers(form, 1000, 1000, raw, cuts, 0, 1, b"", 0, LIMIT),
    )
    yield "a transfer in, frame by frame", 1, lambda: decode_performative(one, 8, len(one))
    said: dict[bytes, Meaning] = {}
    acks = b"".join(disposition_frame(1, True, i, i, True, ACCEPTED) for i in range(300, 300 + RUN))
    yield "dispositions in", RUN, lambda: scan_dispositions(acks, 0, len(acks), 1, said)
    yield "a disposition out", 1, lambda: disposition_frame(1, True, 300, 400, True, ACCEPTED)


def others() -> Iterator[Case]:
    flow = Flow(5, 400, 7, 400, 1, 2, 3, 4)
    encoded = flow.encode()
    yield "a flow in", 1, lambda: decode_performative(encoded, 0, len(encoded))
    yield "a flow out", 1, flow.encode
    raw = message()
    sections = Sections(raw, 0, len(raw))
    yield "a message, split", 1, lambda: Sections(raw, 0, len(raw))
    yield "its header", 1, lambda: sections.header
    yield "its properties", 1, lambda: sections.properties
    yield "its application properties", 1, lambda: sections.application_properties
    yield "a message, written", 1, message
    value = {"a": 1, "b": "text", "c": True, "d": [1, 2, 3], "e": {"x": 1.5}, "f": UInt(5)}
    value |= {"g": Symbol("s"), "h": None}
    bytes_of_it = encode(value)
    yield "a map of eight, written", 1, lambda: encode(value)
    yield "a map of eight, read", 1, lambda: decode(bytes_of_it, 0, len(bytes_of_it))


def main() -> None:
    print("compiled" if not frames.__file__.endswith(".py") else "interpreted")
    for name, count, call in (*runs(), *others()):
        print(f"{name:34} {nanoseconds(call, count):8.0f} ns")


if __name__ == "__main__":
    main()
