"""Messages over HTTP: publish, get, purge, and RabbitMQ's aliveness test.

For trying things out and for operators. A message got is shown as a consumer would see it.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

from aiohttp import web

from tallymark.server.http.requests import Refused, answer, user_of
from tallymark.server.http.state import plain
from tallymark.server.local import Received
from tallymark.server.management.requests import Channel, Fields, Routes, fields_of
from tallymark.server.management.topology import ONE_EXCHANGE, ONE_QUEUE, exchange_name
from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicReject,
    BasicReturn,
    ConfirmSelect,
    ConfirmSelectOk,
    QueueDeclare,
    QueueDeclareOk,
)
from tallymark.wire.amqp091.properties import Properties, decode_properties, encode_properties

TEXTS: Final = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id",
    "type", "user_id", "app_id", "cluster_id",
)  # fmt: skip
NUMBERS: Final = ("delivery_mode", "priority", "timestamp")
ACK_MODES: Final = (
    "ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false",
)  # fmt: skip
ENCODINGS: Final = ("auto", "base64")
MOST: Final = 10_000
MOST_BYTES: Final = 64 << 20
"""Messages and bytes of one get: it ends with the message that passes this."""
ALIVENESS: Final = "aliveness-test"


class Messages(Routes):
    """Routes that publish and get."""

    def add_to(self, app: web.Application) -> None:
        app.router.add_post(ONE_EXCHANGE + "/publish", self._publish)
        app.router.add_post(ONE_QUEUE + "/get", self._get)
        app.router.add_delete(ONE_QUEUE + "/contents", self._purge)
        app.router.add_get("/api/aliveness-test/{vhost}", self._aliveness)

    async def _publish(self, request: web.Request) -> web.Response:
        """Answers when the broker confirmed the message."""
        fields = await fields_of(request)
        publish = BasicPublish(exchange_name(request), fields.text("routing_key"), mandatory=True)
        section, body = _section(fields), _payload(fields)
        self.check_alarms()
        await self.turn(request)
        async with self.channel(request) as channel:
            await channel.call(ConfirmSelect(), ConfirmSelectOk)
            routed = await _published(channel, publish, section, body)
        return answer({"routed": routed})

    async def _get(self, request: web.Request) -> web.Response:
        fields = await fields_of(request)
        count, mode = fields.number("count"), _word(fields, "ackmode", ACK_MODES)
        encoding = _word(fields, "encoding", ENCODINGS)
        cut = fields.number("truncate", 1 << 62)
        if not 1 <= count <= MOST:
            raise fields.wrong("count", f"1 to {MOST}")
        get = BasicGet(request.match_info["name"], mode == "ack_requeue_false")
        found: list[Received] = []
        async with self.channel(request) as channel:
            size = 0
            while len(found) < count and size < MOST_BYTES:
                channel.send(get)
                received = await channel.next()
                if isinstance(received.method, BasicGetEmpty):
                    break
                found.append(received)
                size += len(received.body)
            # Only now: what is given back would be got again.
            if mode != "ack_requeue_false" and found:
                _settle(channel, found, mode)
        await self.node.durable()
        return answer([_shown(one, encoding, cut) for one in found])

    async def _purge(self, request: web.Request) -> web.Response:
        self.operations(request).purge_queue(request.match_info["name"])
        await self.node.durable()
        return web.Response(status=204)

    async def _aliveness(self, request: web.Request) -> web.Response:
        """Declare a queue, publish to it and get the message back [rabbitmq aliveness-test]."""
        self.check_alarms()
        async with self.channel(request) as channel:
            await channel.call(QueueDeclare(ALIVENESS), QueueDeclareOk)
            await channel.call(ConfirmSelect(), ConfirmSelectOk)
            said = user_of(request).name.encode()
            await _published(channel, BasicPublish("", ALIVENESS, True), b"\0\0", said)
            received = await channel.call(BasicGet(ALIVENESS, True), BasicGetOk)
        return answer({"status": "ok" if received.routing_key == ALIVENESS else "failed"})


async def _published(channel: Channel, publish: BasicPublish, section: bytes, body: bytes) -> bool:
    """Return whether the message was routed to a queue. Raises Refused: a queue refused it."""
    channel.send(publish, section, body)
    routed = True
    while True:
        method = (await channel.next()).method
        if isinstance(method, BasicReturn):
            routed = False
        elif isinstance(method, BasicAck):
            return routed
        elif isinstance(method, BasicNack):
            raise Refused(400, "bad_request", "rejected: a queue refused the message")


def _settle(channel: Channel, found: list[Received], mode: str) -> None:
    """`ack_...` gives back uncounted, `reject_...` counts as a failed delivery [DL-5]."""
    last = found[-1].method
    assert isinstance(last, BasicGetOk)
    if mode == "ack_requeue_true":
        channel.send(BasicNack(last.delivery_tag, multiple=True, requeue=True))
        return
    for one in found:
        assert isinstance(one.method, BasicGetOk)
        channel.send(BasicReject(one.method.delivery_tag, mode == "reject_requeue_true"))


def _shown(received: Received, encoding: str, cut: int) -> dict[str, Any]:
    method = received.method
    assert isinstance(method, BasicGetOk)
    properties = decode_properties(received.properties)
    body = received.body[:cut]
    text = _text(body) if encoding == "auto" else None
    return {
        "payload_bytes": len(received.body),
        "redelivered": method.redelivered,
        "exchange": method.exchange,
        "routing_key": method.routing_key,
        "message_count": method.message_count,
        "properties": {
            name: plain(value)
            for name in ("headers", *TEXTS, *NUMBERS)
            if (value := getattr(properties, name)) is not None
        },
        "payload": base64.b64encode(body).decode() if text is None else text,
        "payload_encoding": "base64" if text is None else "string",
    }


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


# -- what a request says


def _word(fields: Fields, name: str, words: tuple[str, ...]) -> str:
    word = fields.text(name)
    if word not in words:
        raise fields.wrong(name, ", ".join(words))
    return word


def _payload(fields: Fields) -> bytes:
    text = fields.text("payload")
    encoding = _word(fields, "payload_encoding", ("string", "base64"))
    if encoding == "string":
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise fields.wrong("payload", f"base64 ({error})") from error


def _section(fields: Fields) -> bytes:
    """The property section. A property that is not known is refused, not lost."""
    if "properties" not in fields.value:
        raise fields.wrong("properties", "an object")
    given = Fields(fields.table("properties"))
    unknown = [name for name in given.value if name not in ("headers", *TEXTS, *NUMBERS)]
    if unknown:
        known = ", ".join(("headers", *TEXTS, *NUMBERS))
        raise Refused(400, "bad_request", f"property {unknown[0]!r}, expected one of {known}")
    properties = Properties(headers=given.table("headers") if "headers" in given else None)
    for name in TEXTS:
        if name in given:
            setattr(properties, name, given.text(name))
    for name in NUMBERS:
        if name in given:
            setattr(properties, name, given.number(name))
    try:
        return encode_properties(properties)
    except (ValueError, TypeError) as error:
        raise Refused(400, "bad_request", f"properties: {error}") from error
