"""Random programs of AMQP 0-9-1, for two brokers that have to show the same.

A program is drawn from a seed: steps of a client with three channels (one for each of two
connections, with confirms, and one for transactions) over a handful of queues and exchanges, with
arguments and properties of which some are wrong. A Player takes the steps on one broker and notes
what a client sees of each: answers, messages, returns, refusals with their texts, and the depths of
all queues.

Left out is what ours does otherwise on purpose, and what depends on time. Histories of deaths are
compared without the time, the order of their entries and x-last-death-*, see side_by_side.py.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    AMQPError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    DuplicateConsumerTag,
    NackError,
    UnroutableError,
)
from pika.spec import Basic, BasicProperties

QUEUES = ("q0", "q1", "q2", "q3")
EXCHANGES = ("e0", "e1", "e2")
OWN = ("amq.fanout", "amq.topic", "amq.headers", "amq.direct")
KEYS = ("", *QUEUES, "a", "a.b", "a.b.c", "*.b", "a.#", "#")
TAGS = ("t0", "t1", "t2")
TRANSACTIONS = 2
"""The channel without confirms."""
FIELDS = (
    "content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "type", "user_id", "app_id",
)  # fmt: skip
POLL_S = 0.004
STEADY = 3
"""Looks in a row that have to show the same: a dead letter may go on as often before it rests."""
Note = tuple[Any, ...]


class Step(NamedTuple):
    """One thing that a client does, on one of its channels."""

    kind: str
    channel: int
    values: dict[str, Any]


# -- programs


class _Writer:
    """Draws the steps of a program."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.pick = chance.choice
        self.bodies = 0

    def some(self, share: float) -> bool:
        return self.chance.random() < share

    def given(self, shares: dict[str, tuple[float, list[Any]]]) -> dict[str, Any]:
        """Return some of these names, each with its share, with one of their values."""
        return {name: self.pick(few) for name, (share, few) in shares.items() if self.some(share)}

    def queue_arguments(self) -> dict[str, Any]:
        found = self.given({
            "x-dead-letter-exchange": (0.25, ["", *EXCHANGES, "amq.fanout", "none"]),
            "x-max-length": (0.2, [0, 1, 2, 3]),
            "x-max-length-bytes": (0.06, [0, 5, 20]),
            "x-overflow": (0.15, ["drop-head", "reject-publish", "reject-publish-dlx", "x"]),
            "x-max-priority": (0.08, [1, 3, 10, 0, 255, 256]),
            "x-message-ttl": (0.08, [0, 0, 600_000, -1]),
            "x-expires": (0.05, [600_000, 0]),
            "x-single-active-consumer": (0.05, [True, False]),
            "x-unknown": (0.03, [1, "x", True, {"a": 1}]),
        })  # fmt: skip
        if "x-dead-letter-exchange" in found and self.some(0.4):
            found["x-dead-letter-routing-key"] = self.pick(KEYS)
        return found

    def binding_arguments(self) -> dict[str, Any]:
        return self.given({
            "x-match": (0.6, ["all", "any", "all-with-x", "any-with-x", "x"]),
            "k": (0.6, [1, "a", True, None]), "j": (0.3, [1, "b"]), "x-z": (0.2, ["1"]),
        })  # fmt: skip

    def properties(self) -> dict[str, Any]:
        found = self.given({
            "delivery_mode": (0.7, [1, 2]), "priority": (0.2, [0, 1, 2, 3, 9, 255]),
            "expiration": (0.1, ["0", "600000", "-1", "x", "", " 1", "1.5"]),
            "user_id": (0.05, ["guest", "other"]), "message_id": (0.1, ["m"]),
            "timestamp": (0.1, [5]), "correlation_id": (0.1, ["c"]), "reply_to": (0.1, ["r"]),
            "type": (0.1, ["t"]), "content_type": (0.1, ["x"]), "app_id": (0.1, ["a"]),
        })  # fmt: skip
        headers = self.given({
            "k": (0.2, [1, "a", True, None, 1 << 40, -3, [1, "x"], {"y": 1}]),
            "j": (0.1, [1, "b"]), "CC": (0.06, [["q1"], ["q0", "a.b"], [1], []]),
            "BCC": (0.05, [["q2"], ["q3", "q3"]]),
        })  # fmt: skip
        return {**found, "headers": headers} if headers else found

    def any_exchange(self) -> str:
        return str(self.pick([*EXCHANGES, *EXCHANGES, *OWN]))

    def values(self, kind: str) -> dict[str, Any]:
        """Return what a step of this kind is about."""
        match kind:
            case "declare queue":
                return {
                    "queue": self.pick(QUEUES), "durable": self.some(0.8),
                    "exclusive": self.some(0.07), "auto_delete": self.some(0.07),
                    "arguments": self.queue_arguments(),
                }  # fmt: skip
            case "declare exchange":
                kinds = ["direct", "fanout", "topic", "headers"]
                return {
                    "exchange": self.pick([*EXCHANGES, *EXCHANGES, "amq.x"]),
                    "exchange_type": self.pick(kinds), "durable": self.some(0.8),
                    "auto_delete": self.some(0.1), "internal": self.some(0.08),
                    "arguments": self.given(
                        {"alternate-exchange": (0.3, [*EXCHANGES, "none", "amq.fanout"])}
                    ),
                }  # fmt: skip
            case "bind" | "unbind":
                queues = [*QUEUES, *QUEUES, *QUEUES, "none"]
                return {
                    "queue": self.pick(queues), "exchange": self.any_exchange(),
                    "routing_key": self.pick(KEYS), "arguments": self.binding_arguments(),
                }  # fmt: skip
            case "bind exchange" | "unbind exchange":
                return {
                    "destination": self.pick([*EXCHANGES, "none"]),
                    "source": self.any_exchange(), "routing_key": self.pick(KEYS),
                }  # fmt: skip
            case "publish":
                self.bodies += 1
                return {
                    "exchange": self.pick(["", "", self.any_exchange(), "none"]),
                    "routing_key": self.pick(KEYS), "mandatory": self.some(0.3),
                    "body": f"b{self.bodies}" + self.pick(["", "x" * 10]),
                    "properties": self.properties(),
                }  # fmt: skip
            case "get":
                return {"queue": self.pick(QUEUES), "auto_ack": self.some(0.3)}
            case "ack" | "nack" | "reject":
                return {
                    "which": self.chance.random(), "unknown": self.some(0.03),
                    "multiple": self.some(0.3), "requeue": self.some(0.5),
                }  # fmt: skip
            case "delete queue":
                unused, empty = self.some(0.3), self.some(0.3)
                return {"queue": self.pick(QUEUES), "if_unused": unused, "if_empty": empty}
            case "delete exchange":
                return {"exchange": self.pick([*EXCHANGES, OWN[0]]), "if_unused": self.some(0.4)}
            case "consume":
                return {
                    "queue": self.pick(QUEUES), "auto_ack": self.some(0.2),
                    "exclusive": self.some(0.1), "consumer_tag": self.pick([*TAGS, None]),
                    "arguments": self.given({"x-priority": (0.2, [1, -1, 5])}),
                }  # fmt: skip
            case "cancel":
                return {"consumer_tag": self.pick(TAGS)}
            case "qos":
                return {"prefetch_count": self.pick([0, 1, 2, 3]), "global_qos": self.some(0.3)}
            case "transaction":
                return {"what": self.pick(["select", "commit", "rollback"])}
            case _:
                return {"queue": self.pick(QUEUES)}


SHARES = {
    "publish": 30, "get": 12, "declare queue": 10, "bind": 10, "declare exchange": 6, "ack": 6,
    "nack": 5, "consume": 5, "reject": 4, "bind exchange": 4, "transaction": 3, "unbind": 2,
    "recover": 2, "delete queue": 2, "cancel": 2, "qos": 2, "look": 2, "unbind exchange": 1,
    "delete exchange": 1, "purge": 1, "close": 1,
}  # fmt: skip
"""How often each kind of step comes."""


def program(seed: int, length: int) -> list[Step]:
    """Return so many steps, the same ones for the same seed."""
    chance = Random(seed)
    writer = _Writer(chance)
    begin = ["declare queue", "declare queue", "declare exchange"]
    kinds = chance.choices(list(SHARES), list(SHARES.values()), k=length - len(begin))
    return [
        Step(
            kind,
            TRANSACTIONS if kind == "transaction" else chance.choice([0, 0, 0, 1, TRANSACTIONS]),
            writer.values(kind),
        )
        for kind in begin + kinds
    ]


# -- what is seen


def _headers(headers: dict[str, Any] | None) -> dict[str, Any] | None:
    if headers is None:
        return None
    seen = {name: repr(value) for name, value in headers.items() if "x-last-death" not in name}
    if isinstance(headers.get("x-death"), list):
        entries = ({**entry, "time": 0} for entry in headers["x-death"])
        seen["x-death"] = str(
            sorted(json.dumps(one, default=str, sort_keys=True) for one in entries)
        )
    return seen


def _message(method: Basic.Deliver | Basic.GetOk, properties: BasicProperties, body: bytes) -> Note:
    given = {name: getattr(properties, name) for name in FIELDS}
    known = {name: value for name, value in given.items() if value is not None}
    where = method.exchange, method.routing_key, method.redelivered
    return (*where, body.decode(), known, _headers(properties.headers))


def _text(text: str) -> str:
    """Return the text of a refusal; of several arguments that are wrong, brokers name any."""
    return "an argument is wrong" if "invalid arg" in text else text


class Player:
    """Takes steps on the broker at a port of this machine."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.seen: list[Note] = []
        """What was seen of the newest step."""
        self._connections = [self._connect(), self._connect()]
        self._channels: dict[int, BlockingChannel] = {}
        self._unsettled: dict[int, list[tuple[str, int]]] = defaultdict(list)
        """Bodies and tags, by channel."""
        self._side = self._connect()
        self._looking: BlockingChannel | None = None

    def _connect(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", self.port, heartbeat=0)
        )

    def _channel(self, number: int) -> BlockingChannel:
        """Return the channel of that number, opened anew where it was closed."""
        known = self._channels.get(number)
        if known is not None and known.is_open:
            return known
        at = 1 if number == 1 else 0
        if not self._connections[at].is_open:
            self._connections[at] = self._connect()
        made = self._connections[at].channel()
        if number != TRANSACTIONS:
            made.confirm_delivery()
        made.add_on_cancel_callback(lambda _: self.seen.append(("cancelled", number)))
        made.add_on_return_callback(
            lambda _, method, __, body: self.seen.append(
                ("returned", method.reply_code, method.reply_text, method.routing_key, body)
            )
        )
        self._unsettled[number] = []
        self._channels[number] = made
        return made

    # -- steps

    def take(self, step: Step) -> None:
        """Take a step; what is seen of it is in `seen`."""
        self.seen = []
        try:
            self._do(step, self._channel(step.channel))
        except (ChannelClosedByBroker, ConnectionClosedByBroker) as error:
            self.seen.append(("closed", error.reply_code, _text(error.reply_text)))
        except UnroutableError as error:
            self.seen += [("unroutable", one.method.reply_text) for one in error.messages]
        except (NackError, DuplicateConsumerTag, AMQPError) as error:
            self.seen.append((type(error).__name__,))

    def _do(self, step: Step, channel: BlockingChannel) -> None:
        number, values = step.channel, step.values
        calls: dict[str, Callable[..., Any]] = {
            "declare queue": channel.queue_declare, "declare exchange": channel.exchange_declare,
            "bind": channel.queue_bind, "unbind": channel.queue_unbind,
            "bind exchange": channel.exchange_bind, "unbind exchange": channel.exchange_unbind,
            "delete queue": channel.queue_delete, "delete exchange": channel.exchange_delete,
            "purge": channel.queue_purge, "cancel": channel.basic_cancel, "qos": channel.basic_qos,
        }  # fmt: skip
        match step.kind:
            case "publish":
                properties = BasicProperties(**values["properties"])
                channel.basic_publish(
                    values["exchange"], values["routing_key"], values["body"].encode(), properties,
                    values["mandatory"],
                )  # fmt: skip
            case "get":
                method, properties, body = channel.basic_get(**values)
                if method is None:
                    self.seen.append(("nothing",))
                    return
                self.seen.append(("got", method.message_count, *_message(method, properties, body)))
                if not values["auto_ack"]:
                    self._unsettled[number].append((body.decode(), method.delivery_tag))
            case "ack" | "nack" | "reject":
                self._settle(step, channel)
            case "recover":
                self._unsettled[number] = []
                channel.basic_recover(True)
            case "consume":
                self._consume(number, channel, values)
            case "transaction":
                getattr(channel, f"tx_{values['what']}")()
            case "look":
                channel.queue_declare(values["queue"], passive=True)
            case "close":
                channel.close()
            case kind:
                answer = getattr(calls[kind](**values), "method", None)
                self.seen.append(("done", getattr(answer, "message_count", None)))

    def _consume(self, number: int, channel: BlockingChannel, values: dict[str, Any]) -> None:
        def deliver(
            _: BlockingChannel, method: Basic.Deliver, properties: BasicProperties, body: bytes
        ) -> None:
            tag = method.consumer_tag if method.consumer_tag in TAGS else "drawn"
            self.seen.append(("delivered", tag, *_message(method, properties, body)))
            if not values["auto_ack"]:
                self._unsettled[number].append((body.decode(), method.delivery_tag))

        channel.basic_consume(on_message_callback=deliver, **values)

    def _settle(self, step: Step, channel: BlockingChannel) -> None:
        """Settle one of the messages that the channel has, or a tag that it has not."""
        held = sorted(self._unsettled[step.channel])
        values = step.values
        tag = 999
        if not values["unknown"]:
            if not held:
                return
            body, tag = held[int(values["which"] * len(held))]
            self.seen.append(("settled", body))
            is_multiple = values["multiple"] and step.kind != "reject"
            self._unsettled[step.channel] = [
                one for one in held if one[1] != tag and not (is_multiple and one[1] < tag)
            ]
        if step.kind == "ack":
            channel.basic_ack(tag, values["multiple"])
        elif step.kind == "nack":
            channel.basic_nack(tag, values["multiple"], values["requeue"])
        else:
            channel.basic_reject(tag, values["requeue"])

    # -- what comes later

    def settle_down(self) -> str:
        """Wait until nothing changes any more; return all that the newest step has led to, with the
        depths of all queues, as a text to compare."""
        last, same = "", 0
        while same < STEADY:
            for connection in self._connections:
                if not connection.is_open:
                    continue
                try:
                    connection.process_data_events(POLL_S)
                except AMQPError as error:
                    self.seen.append((type(error).__name__, getattr(error, "reply_text", "")))
            found = self._shown()
            last, same = (last, same + 1) if found == last else (found, 0)
        return last

    def _shown(self) -> str:
        late = ("delivered", "returned", "cancelled")  # in whatever order of queues
        seen = [one for one in self.seen if one[0] not in late]
        seen += sorted((one for one in self.seen if one[0] in late), key=repr)
        text = json.dumps([*seen, self._depths()], default=str, sort_keys=True)
        return re.sub(r"ctag\d+\.[0-9a-f]+", "drawn", text)

    def _depths(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for queue in QUEUES:
            if self._looking is None or not self._looking.is_open:
                self._looking = self._side.channel()
            try:
                there = self._looking.queue_declare(queue, passive=True).method
                found[queue] = there.message_count, there.consumer_count
            except ChannelClosedByBroker as error:
                found[queue] = error.reply_code
        return found

    def drain(self) -> None:
        """End the connections and take what is left in the queues; it is in `seen`."""
        self.seen = []
        for connection in self._connections:
            if connection.is_open:
                connection.close()
        self._connections = []
        self.settle_down()
        channel = self._side.channel()
        for queue in QUEUES:
            try:
                while (found := channel.basic_get(queue, auto_ack=True))[0] is not None:
                    self.seen.append(("left", queue, *_message(*found)))
            except ChannelClosedByBroker:
                channel = self._side.channel()

    def close(self) -> None:
        """Delete whatever a program may have made, and end."""
        for connection in self._connections:
            if connection.is_open:
                connection.close()
        channel = self._side.channel()
        for queue in QUEUES:
            channel.queue_delete(queue)
        for exchange in EXCHANGES:
            channel.exchange_delete(exchange)
        self._side.close()
