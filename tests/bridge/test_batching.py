"""What clients see does not depend on how their input is batched: the same commands in one read,
and in one read each, get the same answers and leave the same queues.

Queues that refuse, drop or know some messages are among the targets: there the outcome of one
message depends on those before it. All is done in one turn, so that nothing else differs.
"""

from __future__ import annotations

import random

from tallymark.bridge.amqp091.connection import Amqp091
from tallymark.bridge.amqp10.connection import Amqp10
from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicNack,
    ConfirmSelect,
    QueueBind,
    QueueDelete,
    TxCommit,
    TxSelect,
)
from tallymark.wire.amqp10.events import CreditReceived, LinkDetached
from tallymark.wire.amqp10.performatives import Attach, Source, Target
from tallymark.wire.amqp10.sections import Header, Properties, encode_message
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.types import Symbol
from tests.bridge import rig10
from tests.bridge.rig import Peer, Rig
from tests.bridge.test_delays import declare
from tests.support.amqp091 import method_frame

ROUNDS = 60
LIMITS: dict[str, dict[str, object]] = {
    "refuses": {"max_length": 1, "overflow": "reject-publish"},
    "weighs": {"max_length_bytes": 12, "overflow": "reject-publish", "max_priority": 3},
    "drops": {"max_length": 2, "overflow": "drop-tail"},
    "knows": {"message_deduplication": 60_000, "max_length": 4, "overflow": "reject-publish"},
    "stream": {"queue_type": "stream"},
    "plain": {},
    "other": {},
}
SETS = {
    "1": ("plain", "other"), "2": ("other", "refuses"), "3": ("weighs",), "4": ("plain", "drops"),
    "5": ("knows",), "6": ("stream", "plain"), "7": ("refuses", "weighs"), "8": ("drops", "knows"),
    "9": ("other",),
}  # fmt: skip
HELD: dict[str, object] = {"headers": {"x-delay": 60_000}}


def left(rig: Rig) -> dict[str, object]:
    """What the queues hold: messages with their sequences, and the account."""
    rig.broker.check()
    found: dict[str, object] = {}
    for name, queue in rig.broker.vhost("/").queues.items():
        messages = []
        for piece in queue.slices():
            payload = piece.payload
            rig.broker.store.load(payload)
            assert payload.raw is not None
            for i in range(piece.lo, piece.hi):
                route = payload.route if payload.routes is None else payload.routes[i]
                body = payload.raw[payload.cuts[i] : payload.cuts[i + 1]]
                messages.append((piece.first + i - piece.lo, route.exchange, route.key, body))
        found[name] = (messages, queue.account.terms())
    return found


def feed(bridge: Amqp091 | Amqp10, rig: Rig, sent: list[bytes], together: bool) -> None:
    for one in [b"".join(sent)] if together else sent:
        bridge.receive(one, rig.now_ms, rig.now_ms)


def published(peer: Peer, chance: random.Random) -> list[bytes]:
    """Publishes in runs of alike ones, over few routes, as clients send them."""
    keys = [*chance.sample([*SETS], k=4), "nowhere"]
    routes = [("", chance.choice([*LIMITS])), *[("amq.direct", key) for key in keys]]
    sent: list[bytes] = []
    while len(sent) < 20:
        exchange, key = chance.choice(routes)
        more: dict[str, object] = {"delivery_mode": chance.choice([None, 2])}
        kind = chance.random()
        if kind < 0.15:
            more.update(HELD)
        elif kind < 0.25:
            more["headers"] = {chance.choice(["CC", "BCC"]): [chance.choice([*SETS])]}
        elif kind < 0.5:
            more["message_id"] = chance.choice("uvw")
        elif kind < 0.6:
            more["priority"] = chance.randint(0, 3)
        elif kind < 0.62:
            exchange = "gone"
        mandatory = chance.random() < 0.3
        for _ in range(chance.choice([1, 1, 2, 4])):
            body = b"%02d" % len(sent) * chance.randint(1, 2)
            sent.append(peer.publish(body, key, exchange=exchange, mandatory=mandatory, **more))
        if chance.random() < 0.03:
            sent.append(method_frame(2, QueueDelete("other")))
    return sent


def played(seed: int, together: bool) -> tuple[object, ...]:
    chance = random.Random(seed)
    rig = Rig()
    peer = rig.connect()
    peer.open(2)
    for name, limits in LIMITS.items():
        declare(peer, name, **limits)
    for key, names in SETS.items():
        for name in names:
            peer.ask(QueueBind(name, "amq.direct", key))
    in_tx = chance.random() < 0.3
    peer.ask(TxSelect() if in_tx else ConfirmSelect())
    sent = published(peer, chance)
    if in_tx:
        sent.append(method_frame(1, TxCommit()))
    feed(peer.bridge, rig, sent, together)
    verdicts: dict[int, str] = {}
    others: list[object] = []
    for channel, one in peer.hear():
        if isinstance(one, (BasicAck, BasicNack)):
            first = one.delivery_tag
            if one.multiple:
                first = 1
            for number in range(first, one.delivery_tag + 1):
                verdicts.setdefault(number, type(one).__name__)
        else:
            others.append((channel, one))
    return verdicts, others, left(rig)


def test_publishes_of_amqp_0_9_1_have_the_outcome_that_each_has_alone() -> None:
    for seed in range(ROUNDS):
        assert played(seed, True) == played(seed, False), seed


ADDRESSES = (
    "/queues/refuses", "/queues/weighs", "/queues/drops", "/queues/knows", "/queues/stream",
    "/queues/plain", "/exchanges/amq.direct/2", "/exchanges/amq.direct/7", "", "dynamic",
    "/exchanges/gone",
)  # fmt: skip
TO = (
    "/queues/refuses", "/queues/other", "/queues/none", "/exchanges/amq.direct/7", "what/is/this",
    "/exchanges/amq.direct/nowhere", "/exchanges/amq.direct/1", None,
)  # fmt: skip


def transfers(links: dict[str, SenderLink], chance: random.Random, peer: rig10.Peer) -> list[bytes]:
    sent: list[bytes] = []
    while len(sent) < 20:
        address = chance.choice([*links])
        head = Header(durable=True) if chance.random() < 0.5 else None
        held = {Symbol("x-opt-delivery-delay"): 60_000} if chance.random() < 0.15 else None
        settled = chance.random() < 0.3
        for _ in range(chance.choice([1, 2, 4])):
            own = Properties(
                to=chance.choice(TO) if not address else None,
                user_id=chance.choice([None, b"guest", b"guest", b"guest", b"root"]),
                message_id=chance.choice([None, "u", "v"]),
            )
            data = encode_message(
                header=head, message_annotations=held, properties=own, body=b"%02d" % len(sent)
            )
            if chance.random() < 0.02:
                data = data[: chance.randint(0, len(data) - 1)]
            links[address].send(data, settled=settled)
            sent.append(b"".join(peer.wire.take_output(peer.rig.now_ms)))
    return sent


def played10(seed: int, together: bool) -> tuple[object, ...]:
    chance = random.Random(seed)
    rig = rig10.Rig()
    for name, limits in LIMITS.items():
        rig.declare(name, **limits)
    for key, names in SETS.items():
        for name in names:
            rig.broker.vhost("/").bind_queue(name, "amq.direct", key, {}, rig.owner.id)
    vhost = rig.broker.vhost("/")
    vhost.declare_exchange("gone", "fanout", True, False, False, {}, False)
    peer = rig.connect10()
    session = peer.session()
    links = {}
    for address in chance.sample(ADDRESSES, k=2):
        target = Target(address=address or None)
        if address == "dynamic":
            target = Target(dynamic=True)
        second = chance.choice([None, 1])
        asked = Attach(source=Source(), target=target)
        links[address] = peer.sender(session, attach=asked, rcv=second)
    vhost.delete_exchange("gone", False)
    peer.events.clear()
    feed(peer.bridge, rig, transfers(links, chance, peer), together)
    dynamic = [one for name, one in vhost.queues.items() if name not in LIMITS]
    peer.pump()
    told = {number: (one.states, one.settled) for number, one in peer.told.items()}
    ended = [(one.link.name, one.error) for one in peer.events if isinstance(one, LinkDetached)]
    assert all(isinstance(one, (LinkDetached, CreditReceived)) for one in peer.events)
    for queue in dynamic:
        queue.account.check()
        assert not queue.deleted or not queue.ready, "messages that nothing takes out"
    return told, ended, left(rig)


def test_transfers_of_amqp_1_0_have_the_outcome_that_each_has_alone() -> None:
    for seed in range(ROUNDS):
        assert played10(seed, True) == played10(seed, False), seed
