"""Arguments of every type of a table, on ours and on RabbitMQ 3.10: the same answers, word by word.

A client's library sends a number in whatever width it likes, and a mistake in whatever type it is.
So this client writes its own frames.
"""

from __future__ import annotations

import re
import socket
from decimal import Decimal

import pytest

from tallymark.wire.amqp091.fields import Float32, Timestamp, WireInt
from tallymark.wire.amqp091.frames import METHOD, frame_length
from tallymark.wire.amqp091.layouts import decode_method
from tallymark.wire.amqp091.methods import (
    BasicCancel,
    BasicConsume,
    BasicQos,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ExchangeDeclare,
    ExchangeDelete,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDelete,
)
from tallymark.wire.amqp091.properties import Properties
from tests.support.amqp091 import handshake, method_frame, publish
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess
from tests.support.rabbitmq import RabbitProcess

VALUES: tuple[object, ...] = (
    True, False, None, WireInt(-5, "b"), WireInt(5, "B"), WireInt(5, "s"), WireInt(5, "u"), 0, 5,
    -1, WireInt(5, "i"), WireInt(5, "l"), WireInt(5, "L"), 1 << 33, Float32(5.0), 5.0, 1.5,
    Decimal("5"), Decimal("5.0"), "", "5", "abc", "all", b"abc", b"", [], [WireInt(1, "l"), "a"],
    {}, {"a": [1]}, Timestamp(5),
)  # fmt: skip
OF_QUEUES = (
    "x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority",
    "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-overflow",
    "x-single-active-consumer", "x-queue-type", "x-queue-mode", "x-unknown",
)  # fmt: skip
MINUTE_MS = 60_000
LONGEST = {"b": 127, "B": 255, "s": 32_767}
"""Largest integers of the widths that a minute in ms does not fit in."""
RANGE = re.compile(r", expected \d+ to \d+ milliseconds, ten years")
"""Part of a refusal that ours has and RabbitMQ has not."""


class Client:
    """A connection with one channel, which is opened anew when the broker closed it."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""
        self._socket.sendall(handshake(1))
        while not isinstance(self._method(), ChannelOpenOk):
            pass

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, *methods: Method | bytes) -> list[str]:
        """Return the answer to each of these methods, or to what stands behind bytes."""
        answers: list[str] = []
        for method in methods:
            if isinstance(method, bytes):
                self._socket.sendall(method)
                continue
            self._socket.sendall(method_frame(1, method))
            answer = self._method()
            answers.append(RANGE.sub("", repr(answer)))
            if isinstance(answer, ChannelClose):
                again = method_frame(1, ChannelCloseOk()) + method_frame(1, ChannelOpen())
                self._socket.sendall(again)
                assert isinstance(self._method(), ChannelOpenOk)
        return answers

    def _method(self) -> Method:
        """Read the next method; other frames are passed over."""
        while True:
            while len(self._unread) < 7 or len(self._unread) < frame_length(self._unread, 0):
                data = self._socket.recv(65_536)
                assert data, "the broker ended the connection"
                self._unread += data
            size = frame_length(self._unread, 0)
            whole, self._unread = self._unread[:size], self._unread[size:]
            if whole[0] == METHOD:
                return decode_method(whole[7:-1])


def of_argument(name: str, value: object) -> object:
    """The value. Of x-expires, in place of 5 ms the longest time of that width up to a minute: the
    queue is to be there still when it is declared again."""
    if (
        name != "x-expires"
        or not isinstance(value, int)
        or value != 5
        or isinstance(value, Timestamp)
    ):
        return value
    if not isinstance(value, WireInt):
        return MINUTE_MS
    return WireInt(LONGEST.get(value.tag, MINUTE_MS), value.tag)


@pytest.mark.parametrize("name", OF_QUEUES)
def test_arguments_of_queues(name: str, ours: BrokerProcess, rabbit: RabbitProcess) -> None:
    """Declared, declared with the same value and without it."""
    more: dict[str, object] = {}
    if name == "x-dead-letter-routing-key":
        more = {"x-dead-letter-exchange": "x"}
    with Client(ours.amqp_port) as mine, Client(rabbit.port) as theirs:
        for value in VALUES:
            given = QueueDeclare("q", arguments={name: of_argument(name, value), **more})
            steps = (given, given, QueueDeclare("q", arguments=more), QueueDelete("q"))
            assert mine.ask(*steps) == theirs.ask(*steps), repr(value)


def test_arguments_of_exchanges(ours: BrokerProcess, rabbit: RabbitProcess) -> None:
    with Client(ours.amqp_port) as mine, Client(rabbit.port) as theirs:
        for value in VALUES:
            given = ExchangeDeclare("e", "direct", arguments={"alternate-exchange": value})
            other = ExchangeDeclare("e", "direct", arguments={"alternate-exchange": "other"})
            steps = (given, given, other, ExchangeDelete("e"))
            assert mine.ask(*steps) == theirs.ask(*steps), repr(value)


def test_arguments_of_bindings(ours: BrokerProcess, rabbit: RabbitProcess) -> None:
    with Client(ours.amqp_port) as mine, Client(rabbit.port) as theirs:
        for value in VALUES:
            steps = (
                QueueDeclare("q"),
                QueueBind("q", "amq.headers", "k", arguments={"x-match": value}),
                QueueDelete("q"),
            )
            assert mine.ask(*steps) == theirs.ask(*steps), repr(value)


def test_arguments_of_consumers(ours: BrokerProcess, rabbit: RabbitProcess) -> None:
    with Client(ours.amqp_port) as mine, Client(rabbit.port) as theirs:
        for value in VALUES:
            steps = (
                QueueDeclare("q"),
                BasicConsume("q", "c", arguments={"x-priority": value}),
                BasicCancel("c"),
                QueueDelete("q"),
            )
            assert mine.ask(*steps) == theirs.ask(*steps), repr(value)


@pytest.mark.parametrize("name", ["CC", "BCC"])
def test_further_routing_keys(name: str, ours: BrokerProcess, rabbit: RabbitProcess) -> None:
    with Client(ours.amqp_port) as mine, Client(rabbit.port) as theirs:
        for value in (*VALUES, ["a"], ["a", 1], [b"a"], ["a", None]):
            sent = publish(1, b"", properties=Properties(headers={name: value}))
            assert mine.ask(sent, BasicQos()) == theirs.ask(sent, BasicQos()), repr(value)
