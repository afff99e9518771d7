"""How much of one read is worked on: commands that make or end something count more than others."""

from __future__ import annotations

from tallymark.wire.amqp091.limits import Limits
from tallymark.wire.amqp091.methods import (
    BasicCancel,
    BasicConsume,
    ChannelOpen,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDelete,
)
from tests.bridge.rig import Rig

STEPS = 50
COUNT = 200
OF_A_SHARE = 10
"""Declarations in one share."""


def test_what_makes_or_ends_something_is_more_than_one_step() -> None:
    rig = Rig(Limits(steps=STEPS))
    peer = rig.connect()
    sent: dict[str, list[Method | tuple[int, Method]]] = {
        "declare": [QueueDeclare(queue=f"q{n}") for n in range(COUNT)],
        "bind": [
            QueueBind(queue="q0", exchange="amq.topic", routing_key=f"{n}") for n in range(COUNT)
        ],
        "consume": [BasicConsume(queue="q0", consumer_tag=f"{n}") for n in range(COUNT)],
        "cancel": [BasicCancel(consumer_tag=f"{n}") for n in range(COUNT)],
        "delete": [QueueDelete(queue=f"q{n}") for n in range(COUNT)],
        "open": [(n, ChannelOpen()) for n in range(2, COUNT)],
    }
    for name, methods in sent.items():
        peer.send(*methods)
        shares = 1
        while peer.bridge.is_behind:
            peer.send(b"")
            shares += 1
        assert shares >= len(methods) // OF_A_SHARE, name
        rig.settle_down()
