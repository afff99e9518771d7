"""Messages over HTTP: publish, get, purge, and RabbitMQ's aliveness test.

For trying things out and for operators. A message got is shown as a consumer would see it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from tallymark.bridge.amqp091.content import content_of
from tallymark.bridge.amqp091.local import CHANNEL, FRAME_MAX
from tallymark.engine.message import Slice
from tallymark.engine.outcomes import ACCEPTED, FAILED, NACKED, REJECTED
from tallymark.engine.queue import Queue
from tallymark.engine.session import Session
from tallymark.server.http.requests import Refused, answer, user_of
from tallymark.server.http.state import plain
from tallymark.server.management.requests import Fields, Routes, fields_of
from tallymark.server.management.topology import ONE_EXCHANGE, ONE_QUEUE, exchange_name
from tallymark.server.parts import PART
from tallymark.units import Tag
from tallymark.wire.amqp091.errors import WireError
from tallymark.wire.amqp091.frames import METHOD, content_frames, frame, frame_length, joined
from tallymark.wire.amqp091.layouts import encode_method
from tallymark.wire.amqp091.methods import (
    BasicPublish,
)
from tallymark.wire.amqp091.properties import (
    Properties,
    decode_properties,
    decode_readable,
    encode_properties,
)

Row = TypeVar("Row")

TEXTS: Final = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id",
    "type", "user_id", "app_id", "cluster_id",
)  # fmt: skip
NUMBERS: Final = ("delivery_mode", "priority", "timestamp")
OUTCOMES: Final = {
    "ack_requeue_true": NACKED, "ack_requeue_false": ACCEPTED, "reject_requeue_true": FAILED,
    "reject_requeue_false": REJECTED,
}  # fmt: skip
"""Outcomes by ackmode: `ack_...` gives back uncounted, `reject_...` is a failed delivery [DL-5]."""
ENCODINGS: Final = ("auto", "base64")
MOST: Final = 10_000
MOST_BYTES: Final = 64 << 20
"""Messages and bytes of one get: it ends with the message that passes this."""
PART_BYTES: Final = 1 << 20
"""Bytes of messages in one part of a get: it ends with the message that passes this."""
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
        return answer({"routed": await self._published(request, publish, section, body)})

    async def _published(
        self, request: web.Request, publish: BasicPublish, section: bytes, body: bytes
    ) -> bool:
        """Publish a message, and wait until it would be confirmed. Return whether it was routed to
        a queue. Raises Refused: it is no message, or a queue refused it."""
        try:
            frames = frame(METHOD, CHANNEL, encode_method(publish))
            frames += content_frames(CHANNEL, section, body, FRAME_MAX)
        except (ValueError, TypeError) as error:  # what AMQP has no room or no type for
            raise Refused(400, "bad_request", str(error)) from error
        node = self.node
        with self.publisher(request) as publisher:
            before = node.broker.publishing.published
            publisher.receive(frames, node.tell_time(), node.broker.clock.now_ms)
            place = publisher.logged_in().connection
            count = node.broker.publishing.published - before
            node.pacer.published_over_http(place.vhost, place.user, count)
            await node.recorded()
        if publisher.is_refused:
            raise Refused(400, "bad_request", "rejected: a queue refused the message")
        return publisher.returned == 0

    async def _get(self, request: web.Request) -> web.Response:
        fields = await fields_of(request)
        count, mode = fields.number("count"), _word(fields, "ackmode", tuple(OUTCOMES))
        encoding = _word(fields, "encoding", ENCODINGS)
        cut = fields.number("truncate", 1 << 62)
        if not 1 <= count <= MOST:
            raise fields.wrong("count", f"1 to {MOST}")
        if cut < 0:
            raise fields.wrong("truncate", "0 or more bytes")
        queue = self.operations(request).queue_to_read(request.match_info["name"])
        found = await self._taken(
            request, queue, count, mode,
            lambda one: msgspec.Raw(msgspec.json.encode(one.shown(encoding, cut))),
        )  # fmt: skip
        await self.node.durable()
        return answer(found)

    async def _taken(
        self, request: web.Request, queue: Queue, count: int, mode: str, show: Callable[[Got], Row]
    ) -> list[Row]:
        """Take messages as basic.get does, in parts, and settle them when all are taken: so what is
        given back is not taken again, and nothing is lost with a client that has gone meanwhile.
        Return them as `show` makes them. Raises BrokerError, Refused."""
        found: list[Row] = []
        size = last = 0
        with self.publisher(request) as local:
            while len(found) < count and size < MOST_BYTES:
                await self.http.part(request)
                self.http.check_read(request, queue)
                part, tag = self._part(local.session, queue, min(PART, count - len(found)))
                self.node.schedule()
                if not part:
                    break
                last = tag
                size += sum(len(one.body) for one in part)
                found += [show(one) for one in part]
            if last:
                self.node.broker.settlement.settle_up_to(local.session, Tag(last), OUTCOMES[mode])
        return found

    def _part(self, session: Session, queue: Queue, count: int) -> tuple[list[Got], int]:
        """Take up to `count` messages, or PART_BYTES; return them and the tag of the last one."""
        found: list[Got] = []
        size = last = 0
        while len(found) < count and size < PART_BYTES and not queue.deleted:
            taken = self.node.broker.consuming.get(session, queue, False)
            if taken is None:
                break
            piece, last = taken
            found.append(Got(queue, piece))
            size += len(found[-1].body)
        return found, last

    async def _purge(self, request: web.Request) -> web.Response:
        self.operations(request).purge_queue(request.match_info["name"])
        await self.node.durable()
        return web.Response(status=204)

    async def _aliveness(self, request: web.Request) -> web.Response:
        """Declare a queue, publish to it and get the message back [rabbitmq aliveness-test]."""
        self.check_alarms()
        self.operations(request).declare_queue(ALIVENESS, False, False, False, {})
        said = user_of(request).name.encode()
        await self._published(request, BasicPublish("", ALIVENESS, True), b"\0\0", said)
        queue = self.operations(request).queue_to_read(ALIVENESS)
        keys = await self._taken(request, queue, 1, "ack_requeue_false", lambda one: one.route.key)
        is_alive = keys == [ALIVENESS]
        return answer({"status": "ok" if is_alive else "failed"})


class Got:
    """A message that was taken, and is shown as a consumer of AMQP 0-9-1 would see it."""

    def __init__(self, queue: Queue, piece: Slice) -> None:
        self.route, content, _ = content_of(piece, queue.shows_counts)
        self.redelivered = piece.acquired > 0
        self.left = queue.ready
        header = frame_length(content, 0)
        self.properties = content[19 : header - 1]
        self.body = joined(content, header, len(content))

    def shown(self, encoding: str, cut: int) -> dict[str, Any]:
        properties, trouble = decode_readable(self.properties)
        body = self.body[:cut]
        text = _text(body) if encoding == "auto" else None
        return {
            "payload_bytes": len(self.body),
            "redelivered": self.redelivered,
            "exchange": self.route.exchange,
            "routing_key": self.route.key,
            "message_count": self.left,
            "properties": {
                name: plain(value)
                for name in ("headers", *TEXTS, *NUMBERS)
                if (value := getattr(properties, name)) is not None
            },
            "payload": base64.b64encode(body).decode() if text is None else text,
            "payload_encoding": "base64" if text is None else "string",
            **({"unreadable_headers": trouble} if trouble else {}),
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
        section = encode_properties(properties)
        decode_properties(section)  # refuses what is nested too deep to be read again
    except (ValueError, TypeError, RecursionError, WireError) as error:
        raise Refused(400, "bad_request", f"properties: {error}") from error
    return section
