"""Performatives as python-qpid-proton 0.40 sends them."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp10.composites import BY_CLASS
from tallymark.wire.amqp10.outcomes import (
    Error,
    Modified,
    Rejected,
)
from tallymark.wire.amqp10.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Source,
    Target,
    Transfer,
    decode_performative,
)
from tallymark.wire.amqp10.types import (
    Described,
    Symbol,
    ULong,
)

MOST = (1 << 31) - 1
FILTERED = Source(
    address="/queues/q",
    durable=2,
    expiry_policy="never",
    timeout=30,
    distribution_mode="copy",
    filter={"selector": Described(Symbol("apache.org:selector-filter:string"), "a = 1")},
    outcomes=("amqp:accepted:list", "amqp:rejected:list"),
    capabilities=("queue", "shared"),
)
DYNAMIC = Source(
    dynamic=True, dynamic_node_properties={"lifetime-policy": Described(ULong(43), [])}
)
ANNOTATED = Modified(
    delivery_failed=True, undeliverable_here=True, message_annotations={"x-why": "no"}
)

PROTON: list[tuple[bytes, Performative]] = [
    (
        b"\x00S\x10\xc0v\n\xa1\x08client-1\xa1\x0bexample.orgp\x00\x00\x10\x00`\x00\np\x00\x00"
        b"\x0f\xa0@@\xf0\x00\x00\x00\x0f\x00\x00\x00\x02\xb3\x00\x00\x00\x01a\x00\x00\x00\x01b"
        b"\xf0\x00\x00\x00\x18\x00\x00\x00\x01\xb3\x00\x00\x00\x0fANONYMOUS-RELAY\xd1\x00\x00"
        b"\x00\x19\x00\x00\x00\x04\xa3\x07product\xa1\x05tally\xa3\x01nU\x05",
        Open(
            container_id="client-1",
            hostname="example.org",
            max_frame_size=4096,
            channel_max=10,
            idle_time_out=4000,
            offered_capabilities=("a", "b"),
            desired_capabilities=("ANONYMOUS-RELAY",),
            properties={"product": "tally", "n": 5},
        ),
    ),
    (
        b"\x00S\x11\xc0\x12\x05@Cp\x7f\xff\xff\xffp\x7f\xff\xff\xffp\x7f\xff\xff\xff",
        Begin(incoming_window=MOST, outgoing_window=MOST, handle_max=MOST),
    ),
    (
        b"\x00S\x12\xc03\x0b\xa1\x03outCBP\x00P\x00\x00S(\xc0\t\x05\xa1\x02meC@CB\x00S)\xc0\x10"
        b"\x05\xa1\t/queues/qC@CB@@CD",
        Attach(
            name="out",
            snd_settle_mode=0,
            rcv_settle_mode=0,
            source=Source(address="me"),
            target=Target(address="/queues/q"),
            initial_delivery_count=0,
            max_message_size=0,
        ),
    ),
    (
        b"\x00S\x12\xc0\xd1\x0b\xa1\x02inR\x01AP\x02P\x01\x00S(\xc0\xb1\x0b\xa1\t/queues/qR\x02"
        b"\xa3\x05neverR\x1eB@\xa3\x04copy\xd1\x00\x00\x009\x00\x00\x00\x02\xa3\x08selector\x00"
        b"\xa3!apache.org:selector-filter:string\xa1\x05a = 1@\xf0\x00\x00\x001\x00\x00\x00\x02"
        b"\xb3\x00\x00\x00\x12amqp:accepted:list\x00\x00\x00\x12amqp:rejected:list\xf0\x00\x00"
        b"\x00\x18\x00\x00\x00\x02\xb3\x00\x00\x00\x05queue\x00\x00\x00\x06shared\x00S)\xc0\x06"
        b"\x05@C@CB@@CD",
        Attach(
            name="in",
            handle=1,
            role=True,
            snd_settle_mode=2,
            rcv_settle_mode=1,
            source=FILTERED,
            target=Target(),
            initial_delivery_count=0,
            max_message_size=0,
        ),
    ),
    (
        b"\x00S\x12\xc0E\x0b\xa1\x03dynR\x02AP\x02P\x00\x00S(\xc0$\x06@C@CA\xd1\x00\x00\x00\x19"
        b"\x00\x00\x00\x02\xa3\x0flifetime-policy\x00S+E\x00S)\xc0\x06\x05@C@CB@@CD",
        Attach(
            name="dyn",
            handle=2,
            role=True,
            snd_settle_mode=2,
            rcv_settle_mode=0,
            source=DYNAMIC,
            target=Target(),
            initial_delivery_count=0,
            max_message_size=0,
        ),
    ),
    (
        b"\x00S\x13\xc0\x14\t@p\x7f\xff\xff\xffCp\x7f\xff\xff\xffR\x01CR\n@B",
        Flow(
            incoming_window=MOST,
            outgoing_window=MOST,
            handle=1,
            delivery_count=0,
            link_credit=10,
        ),
    ),
    (
        b"\x00S\x14\xc0\x08\x04CC\xa0\x02\x00\x01C",
        Transfer(delivery_id=0, delivery_tag=b"\x00\x01", message_format=0),
    ),
    (
        b"\x00S\x14\xc0\n\x05CR\x01\xa0\x02t2CA",
        Transfer(delivery_id=1, delivery_tag=b"t2", message_format=0, settled=True),
    ),
    (
        b"\x00S\x14\xc0\t\x04CR\x02\xa0\x02t3C",
        Transfer(delivery_id=2, delivery_tag=b"t3", message_format=0),
    ),
    (
        b"\x00S\x13\xc0\x15\tCp\x7f\xff\xff\xffR\x03p\x7f\xff\xff\xffR\x01CR\r@A",
        Flow(
            next_incoming_id=0,
            incoming_window=MOST,
            next_outgoing_id=3,
            outgoing_window=MOST,
            handle=1,
            delivery_count=0,
            link_credit=13,
            drain=True,
        ),
    ),
    (b"\x00S\x16\xc0\x03\x02CA", Detach(closed=True)),
    (b"\x00S\x17E", End()),
    (b"\x00S\x18E", Close()),
    (
        b"\x00S\x10\xc0\x0f\x04\xa1\x03srv@p\x00\x00\x80\x00`\x00\n",
        Open(container_id="srv", max_frame_size=32768, channel_max=10),
    ),
    (
        b"\x00S\x11\xc0\x14\x05`\x00\x00Cp\x7f\xff\xff\xffp\x7f\xff\xff\xffp\x7f\xff\xff\xff",
        Begin(
            remote_channel=0,
            incoming_window=MOST,
            outgoing_window=MOST,
            handle_max=MOST,
        ),
    ),
    (
        b"\x00S\x12\xc03\x0b\xa1\x03outCAP\x02P\x00\x00S(\xc0\t\x05\xa1\x02meC@CB\x00S)\xc0\x10"
        b"\x05\xa1\t/queues/qC@CB@@CD",
        Attach(
            name="out",
            role=True,
            snd_settle_mode=2,
            rcv_settle_mode=0,
            source=Source(address="me"),
            target=Target(address="/queues/q"),
            initial_delivery_count=0,
            max_message_size=0,
        ),
    ),
    (
        b"\x00S\x12\xc0\xd1\x0b\xa1\x02inR\x01BP\x02P\x00\x00S(\xc0\xb1\x0b\xa1\t/queues/qR\x02"
        b"\xa3\x05neverR\x1eB@\xa3\x04copy\xd1\x00\x00\x009\x00\x00\x00\x02\xa3\x08selector\x00"
        b"\xa3!apache.org:selector-filter:string\xa1\x05a = 1@\xf0\x00\x00\x001\x00\x00\x00\x02"
        b"\xb3\x00\x00\x00\x12amqp:accepted:list\x00\x00\x00\x12amqp:rejected:list\xf0\x00\x00"
        b"\x00\x18\x00\x00\x00\x02\xb3\x00\x00\x00\x05queue\x00\x00\x00\x06shared\x00S)\xc0\x06"
        b"\x05@C@CB@@CD",
        Attach(
            name="in",
            handle=1,
            snd_settle_mode=2,
            rcv_settle_mode=0,
            source=FILTERED,
            target=Target(),
            initial_delivery_count=0,
            max_message_size=0,
        ),
    ),
    (
        b"\x00S\x12\xc0E\x0b\xa1\x03dynR\x02BP\x02P\x00\x00S(\xc0$\x06@C@CA\xd1\x00\x00\x00\x19"
        b"\x00\x00\x00\x02\xa3\x0flifetime-policy\x00S+E\x00S)\xc0\x06\x05@C@CB@@CD",
        Attach(
            name="dyn",
            handle=2,
            snd_settle_mode=2,
            rcv_settle_mode=0,
            source=DYNAMIC,
            target=Target(),
            initial_delivery_count=0,
            max_message_size=0,
        ),
    ),
    (
        b"\x00S\x13\xc0\x13\tCp\x7f\xff\xff\xffCp\x7f\xff\xff\xffCCR\x05@B",
        Flow(
            next_incoming_id=0,
            incoming_window=MOST,
            outgoing_window=MOST,
            handle=0,
            delivery_count=0,
            link_credit=5,
        ),
    ),
    (
        b"\x00S\x15\xc0!\x05AC@@\x00S'\xc0\x17\x03AA\xd1\x00\x00\x00\x0f\x00\x00\x00\x02\xa3\x05"
        b"x-why\xa1\x02no",
        Disposition(
            role=True,
            state=ANNOTATED,
        ),
    ),
    (
        b"\x00S\x15\xc0!\x05AC@A\x00S'\xc0\x17\x03AA\xd1\x00\x00\x00\x0f\x00\x00\x00\x02\xa3\x05"
        b"x-why\xa1\x02no",
        Disposition(
            role=True,
            settled=True,
            state=ANNOTATED,
        ),
    ),
    (
        b"\x00S\x15\xc07\x05AR\x02@A\x00S%\xc0,\x01\x00S\x1d\xc0&\x03\xa3\x10amqp:not-allowed"
        b"\xa1\x03bad\xd1\x00\x00\x00\t\x00\x00\x00\x02\xa3\x01kU\x01",
        Disposition(
            role=True,
            first=2,
            settled=True,
            state=Rejected(
                error=Error(condition="amqp:not-allowed", description="bad", info={"k": 1})
            ),
        ),
    ),
    (
        b"\x00S\x13\xc0\x15\tR\x03p\x7f\xff\xff\xffCp\x7f\xff\xff\xffR\x01R\rC@A",
        Flow(
            next_incoming_id=3,
            incoming_window=MOST,
            outgoing_window=MOST,
            handle=1,
            delivery_count=13,
            link_credit=0,
            drain=True,
        ),
    ),
    (b"\x00S\x16\xc0\x02\x01C", Detach()),
    (
        b"\x00S\x18\xc0%\x01\x00S\x1d\xc0\x1f\x02\xa3\x16amqp:connection:forced\xa1\x04stop",
        Close(error=Error(condition="amqp:connection:forced", description="stop")),
    ),
]


@pytest.mark.parametrize(("raw", "value"), PROTON)
def test_performatives_of_proton_are_read(raw: bytes, value: Performative) -> None:
    found, end = decode_performative(raw, 0, len(raw))
    assert end == len(raw)
    for field in BY_CLASS[type(value)].fields:
        # what is not in `value` proton left out, or sent what is the standard's default
        expected = getattr(value, field.name)
        assert getattr(found, field.name) == (field.default if expected is None else expected)
    for again in (value.encode(), found.encode()):
        assert decode_performative(again, 0, len(again)) == (found, len(again))
        assert len(again) <= len(raw)
