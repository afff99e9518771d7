"""AMQP 1.0 clients that say whatever a frame can, in any order, with a whole broker behind: no turn
fails, the account of every queue balances, and readers of both versions are sent what is left.

The default is quick, of `make test-long` long; TALLYMARK_FUZZ_CASES=1000 runs as many histories,
TALLYMARK_FUZZ_SEED another selection.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

from tallymark.bridge.amqp10.connection import Amqp10
from tallymark.bridge.permissions import Permissions
from tallymark.wire.amqp091.methods import BasicConsume
from tallymark.wire.amqp10 import types
from tallymark.wire.amqp10.frames import AMQP_HEADER, SASL_HEADER, frame, sasl_frame
from tallymark.wire.amqp10.outcomes import (
    Accepted,
    Declare,
    DeliveryState,
    Discharge,
    Error,
    Modified,
    Received,
    Rejected,
    Released,
    TransactionalState,
)
from tallymark.wire.amqp10.performatives import (
    Attach,
    Begin,
    Coordinator,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Source,
    Target,
    Transfer,
)
from tallymark.wire.amqp10.sasl import SaslInit, plain_response
from tallymark.wire.amqp10.sections import Header, Properties, Value, encode_message
from tallymark.wire.amqp10.types import Described, Symbol, ULong
from tests.bridge.rig10 import Rig
from tests.support.long import longer, sized

CASES = int(os.environ.get("TALLYMARK_FUZZ_CASES", sized("12", "60", "500")))
SEED = os.environ.get("TALLYMARK_FUZZ_SEED", "tallymark")
STEPS = 120
QUEUES = ("q", "full", "letters", "stream", "single", "prio", "brief")
ADDRESSES = (
    *[f"/queues/{name}" for name in QUEUES],
    *("/exchanges/match/k", "/exchanges/amq.fanout/k", "/exchanges/amq.fanout/%C3%9F", None),
    *("/queues/auto1", "/queues/auto%FF", "/queues/auto" + "n" * 300, "/queues/none", "/queues/%"),
    *("/exchanges/amq.fanout/%FF", "/exchanges/amq.fanout/" + "k" * 300, "/exchanges/none", ""),
    *("/management", "amq.rabbitmq.reply-to", "/queues/amq.rabbitmq.reply-to.nobody", "/other"),
)
IDS = (b"", b"never", *[n.to_bytes(8, "big") for n in range(1, 6)])
FILTERS = (
    ("amqp:sql-filter", "m.[x-a] = 'a' OR p.subject LIKE '%a_' OR h.priority > 3 OR k * 2 > 5"),
    ("apache.org:selector-filter:string", "JMSMessageID = 'x' OR JMSPriority BETWEEN 1 AND 5"),
    ("amqp:properties-filter", {"subject": "&p:a"}),
    ("rabbitmq:stream-offset-spec", "first"),
)
ANNOTATIONS = ("x-cc", "x-a", "x-opt-delivery-delay", "x-opt-deaths", "x-basic-type", "b")
FROM_091: tuple[dict[str, object], ...] = (
    {"reply_to": "/exchanges/\udcff"},
    {"message_id": "\udcff", "type": "amqp-1.0", "priority": 200},
    {"headers": {"x-\udcff": ["\udcff"], "CC": ["letters", "\udcff"]}},
    {"timestamp": 2**64 - 1, "app_id": "\udcff", "user_id": "guest"},
)


class Chance(random.Random):
    """Draws what clients say."""

    def maybe(self, often: float = 0.5) -> bool:
        return self.random() < often

    def either(self, *made: Callable[[], object]) -> object:
        return self.choice(made)()

    def number(self) -> int:
        return self.choice((0, 1, 2, 5, 100, 2**31 - 1, 2**31, 2**32 - 1, self.randrange(12)))

    def value(self, depth: int = 0) -> object:
        simple = (
            None, True, types.UByte(255), types.UInt(7), ULong(2**64 - 1), types.Byte(-1), -(2**63),
            types.Float(1.5), float("nan"), types.Char("ß"), types.Timestamp(-1), b"\xff", "", "a",
            types.Decimal(0x94, b"\x7e" + bytes(15)), "x" * 300, Symbol("s"), types.Short(-5),
        )  # fmt: skip
        if depth > 2 or self.maybe(0.7):
            return self.choice(simple)
        return self.either(
            lambda: [self.value(depth + 1) for _ in range(self.randrange(3))],
            lambda: {self.choice(("k", Symbol("a"), 5, b"k")): self.value(depth + 1)},
            lambda: Described(self.value(3), self.value(depth + 1)),
        )

    def outcome(self) -> DeliveryState:
        return self.choice(
            (
                Accepted(),
                Released(),
                Rejected(Error("a:b", "text", {"k": self.value()}) if self.maybe() else None),
                Modified(self.maybe(), self.maybe(), {Symbol("x-a"): self.value()}),
                Modified(None, None, {Symbol("x-opt-delivery-time"): self.value()}),
            )
        )

    def state(self) -> DeliveryState | None:
        outcome = self.outcome() if self.maybe(0.8) else None
        return self.choice(
            (outcome, outcome, Received(1, 2), TransactionalState(self.choice(IDS), outcome))
        )

    def source(self) -> Source:
        kind, said = self.choice(FILTERS)
        named: dict[object, object] = {Symbol("f"): Described(Symbol(kind), said)}
        return Source(
            address=self.choice(ADDRESSES),
            dynamic=self.maybe(0.1),
            distribution_mode=self.choice((None, None, "move", "copy")),
            filter=named if self.maybe(0.3) else None,
            default_outcome=self.outcome() if self.maybe(0.2) else None,
            outcomes=self.choice(((), ("amqp:accepted:list",), ("amqp:rejected:list",))),
            capabilities=("rabbitmq:volatile-queue",) if self.maybe(0.1) else (),
        )

    def target(self) -> Target | Coordinator:
        if self.maybe(0.2):
            return Coordinator()
        return Target(address=self.choice(ADDRESSES), dynamic=self.maybe(0.1))

    def message(self) -> bytes:
        kind = self.randrange(6)
        if kind == 0:
            request = Declare() if self.maybe() else Discharge(self.choice(IDS), self.maybe())
            return encode_message(body=Value(request))
        if kind == 1:
            return encode_message(
                properties=Properties(
                    message_id=1, reply_to="$me", to=self.choice(("/queues/made", "/queues/q")),
                    subject=self.choice(("GET", "PUT", "DELETE")),
                ),
                body=Value({"arguments": {"x-max-length": self.value()}}),
            )  # fmt: skip
        if kind == 2:
            return self.randbytes(self.randrange(9))
        annotations: dict[object, object] = {Symbol(self.choice(ANNOTATIONS)): self.value()}
        if self.maybe(0.2):
            annotations = {Symbol("x-cc"): ["q", "k" * 300]}
        return encode_message(
            header=Header(priority=self.choice((0, 4, 255)), ttl=self.choice((None, 0, 5))),
            message_annotations=annotations,
            properties=Properties(
                to=self.choice(ADDRESSES), subject="a1", message_id=self.choice((None, b"\xff")),
                user_id=self.choice((None, None, b"guest", b"x")),
            ),
            application_properties={"k": self.value(3), Symbol("a"): 1},
            body=self.choice((b"", b"x", b"x" * 700, Value(self.value()))),
        )  # fmt: skip


class Client:
    """One connection, on which sessions begin anew; its links 0 to 2 publish, 3 to 5 consume."""

    def __init__(self, rig: Rig, chance: Chance) -> None:
        self.rig = rig
        self.chance = chance
        self.delivery = -1
        self.bridge = Amqp10(rig.broker, rig.settings10, "hostile")
        rig.bridges.append(self.bridge)  # type: ignore[arg-type]
        self.hear(SASL_HEADER)
        self.hear(sasl_frame(SaslInit("PLAIN", plain_response("guest", "guest")).encode()))
        self.bridge.login_succeeded(Permissions.all("guest"))
        self.hear(AMQP_HEADER)
        self.say(Open("hostile", max_frame_size=chance.choice((1000, 65_536))))
        self.begin()

    @property
    def is_in(self) -> bool:
        return not self.bridge.closing and self.bridge.entered is not None

    def hear(self, data: bytes) -> None:
        self.bridge.receive(data, self.rig.now_ms, self.rig.now_ms)

    def say(self, performative: Performative, payload: bytes = b"") -> None:
        self.hear(frame(0, performative.encode(), payload))

    def begin(self) -> None:
        chance = self.chance
        self.delivery = -1
        self.say(Begin(None, 0, chance.choice((0, 3, 2**31 - 1, 2**31 - 1)), 1000))
        for handle in range(6):
            self.attach(handle)
            if handle > 2:
                self.say(Flow(0, 1000, 0, 1000, handle, 0, chance.choice((0, 1, 100))))

    def attach(self, handle: int) -> None:
        chance = self.chance
        source, target = chance.source(), chance.target()
        if handle == 0:
            target = Coordinator()
        attach = Attach(
            name=f"l{handle}", handle=handle, role=handle > 2,
            snd_settle_mode=chance.choice((0, 1, 2, 2)), rcv_settle_mode=chance.choice((0, 0, 1)),
            source=source, target=target, initial_delivery_count=0 if handle < 3 else None,
            max_message_size=chance.choice((None, None, 5, 1000)),
            properties={"paired": True, "rabbitmq:priority": 5} if chance.maybe(0.2) else None,
        )  # fmt: skip
        self.say(attach)

    def step(self) -> None:
        client = self.bridge.client
        if client is not None and not client.sessions:
            if self.bridge.wire.sessions:  # ours to end: it is over for the broker
                self.say(End())
            self.begin()
        self.anything()
        self.bridge.take_output()

    def anything(self) -> None:
        chance = self.chance
        kind = chance.random()
        if kind < 0.3:
            properties: dict[object, object] = {"txn-id": chance.choice((*IDS, None, 5))}
            self.say(
                Flow(
                    chance.choice((None, 0, 0, chance.number())), chance.choice((0, 1, 5, 1000)),
                    0, 1000, chance.choice((3, 4, 5, 3, 4, 5, None)), chance.number(),
                    chance.choice((0, 1, 10, 100, 2**32 - 1, None)), None, chance.maybe(0.3),
                    chance.maybe(0.3), properties if chance.maybe(0.2) else None,
                )
            )  # fmt: skip
        elif kind < 0.65:
            self.delivery += 1
            state = chance.choice((None, TransactionalState(chance.choice(IDS))))
            self.say(
                Transfer(
                    chance.choice((0, 1, 1, 1, 2, 2)), self.delivery, b"t", 0, chance.maybe(0.3),
                    chance.maybe(0.05), None, state if chance.maybe(0.4) else None, False,
                    chance.maybe(0.05),
                ),
                chance.message(),
            )  # fmt: skip
        elif kind < 0.9:
            first = chance.randrange(30)
            last = chance.choice((None, first, first + 1, first + 100))
            self.say(Disposition(chance.maybe(0.8), first, last, chance.maybe(), chance.state()))
        elif kind < 0.96:
            handle = chance.randrange(6)
            self.say(Detach(handle, chance.maybe(0.7)))
            self.attach(handle)
        else:
            self.say(End() if chance.maybe(0.2) else Flow(None, 0, 0, 0, 9, None, 1))


def topology(rig: Rig, chance: Chance) -> None:
    vhost = rig.broker.vhost("/")
    rig.declare("letters")
    rig.declare("q", dead_letter_exchange="", dead_letter_routing_key="letters")
    rig.declare("full", max_length=2, overflow=chance.choice(("reject-publish", "drop-head")))
    rig.declare("stream", queue_type="stream")
    rig.declare("single", single_active_consumer=True)
    rig.declare("prio", max_priority=5, consumer_timeout=60_000)
    rig.declare("brief", message_ttl=5, dead_letter_exchange="match")
    vhost.declare_exchange("match", "headers", True, False, False, {}, False)
    for name in QUEUES:
        vhost.bind_queue(name, "amq.fanout", "", {}, rig.owner.id)
    vhost.bind_queue("letters", "match", "", {"x-match": "all"}, rig.owner.id)


def happens(rig: Rig, chance: Chance, clients: list[Client]) -> None:
    """What no client does."""
    if chance.maybe(0.5):
        rig.turn()
    if chance.maybe(0.3):
        rig.settle_down()
    if chance.maybe(0.05):
        rig.hold_disk = not rig.hold_disk
    if chance.maybe(0.05):
        rig.now_ms += chance.choice((5, 100, 70_000))
    if chance.maybe(0.03):
        queues = [
            name for name in rig.broker.vhost("/").queues if name.startswith(("auto", "full"))
        ]
        if queues:
            rig.delete(chance.choice(queues))
    if chance.maybe(0.1):
        properties = chance.choice(FROM_091)
        publisher = rig.connect()
        publisher.send(publisher.publish(b"b", chance.choice(QUEUES), **properties))
        publisher.bridge.eof()
    if chance.maybe(0.03):
        chance.choice(clients).bridge.eof()


def history(seed: str) -> int:
    """Returns how many messages entered queues."""
    chance = Chance(seed)
    rig = Rig(auto_create="auto.*", link_credit=chance.choice((5, 170)))
    topology(rig, chance)
    clients: list[Client] = []
    for _ in range(STEPS):
        clients = [client for client in clients if client.is_in]
        while len(clients) < 2:
            clients.append(Client(rig, chance))
        chance.choice(clients).step()
        happens(rig, chance, clients)
    rig.hold_disk = False
    for client in clients:
        client.bridge.eof()
    rig.settle_down()
    rig.broker.check()
    queues = list(rig.broker.vhost("/").queues.values())
    for queue in queues:
        read(rig, queue.name, queue.settings.is_stream, chance.maybe())
    rig.broker.check()
    return sum(queue.entered for queue in queues)


def read(rig: Rig, name: str, is_stream: bool, by_amqp10: bool) -> None:
    if by_amqp10 or is_stream:
        peer = rig.connect10()
        peer.receiver(peer.session(), f"/queues/{name}", 1000, snd=1)
    else:
        rig.connect().ask(BasicConsume(name, "reader", no_ack=True))


@longer
def test_no_client_of_amqp_10_stops_the_broker() -> None:
    entered = 0
    for number in range(CASES):
        try:
            entered += history(f"{SEED}:{number}")
        except BaseException as error:
            error.add_note(f"case {SEED}:{number}")
            raise
    assert entered > 10 * CASES  # the cases are not mostly noise
