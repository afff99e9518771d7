"""Stream readers over AMQP 0-9-1 [rabbitmq streams]: basic.consume with `x-stream-offset`, and
deliveries with each message's offset.

    content   | header frame                                              | body frames
              | head 7 | class ... body size 12 | flags ... headers | ... xCE |
                         `front` as it came -> with one header more, whose value is the offset

The header `x-stream-offset` is the last entry of the table, so that all that changes from message
to message of a run are eight bytes behind the same front.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.amqp091.annotated import Additions, additions_to
from tallymark.bridge.amqp091.channel import Channel
from tallymark.bridge.amqp091.content import (
    Recipient,
    Template,
    channel_of,
    published,
    shown_route,
)
from tallymark.bridge.conversion.amqp10_to_amqp091 import Converter
from tallymark.bridge.filters import FilterError, filters_of
from tallymark.bridge.filters.attach import MATCH_UNFILTERED, STREAM_FILTER
from tallymark.bridge.names import STREAM_OFFSET
from tallymark.engine.clock import Clock
from tallymark.engine.errors import PreconditionFailed, Unsupported
from tallymark.engine.message import Filter, Slice
from tallymark.engine.names import named
from tallymark.engine.queue import Queue
from tallymark.engine.streams import TIME, Start, start_of
from tallymark.stored.annotations import Route
from tallymark.wire.amqp091.deliveries import rechannel, reframe
from tallymark.wire.amqp091.fields import Timestamp
from tallymark.wire.amqp091.methods import BasicConsume, BasicConsumeOk

FILTER_ARGUMENTS: Final[dict[str, str]] = {
    "x-stream-filter": STREAM_FILTER,
    "x-stream-match-unfiltered": MATCH_UNFILTERED,
}


def read_stream(channel: Channel, method: BasicConsume, queue: Queue, tag: str) -> None:
    """Start a reader by basic.consume on a stream. Acknowledgements return credit, so that the
    prefetch must be limited. `exclusive` and `no_local` have no effect.

    Raises:
        PreconditionFailed: no prefetch count, or an offset without a meaning.
        Unsupported: automatic acknowledgement, or a prefetch count shared by consumers.
    """
    client = channel.client
    what = named("queue", queue.name, queue.vhost)
    shared = channel.prefetch_shared
    if not channel.prefetch and not (shared and client.shares_prefetch):
        raise PreconditionFailed(f"consumer prefetch count is not set for '{what}'")
    if method.no_ack:
        raise Unsupported(f"automatic acknowledgement not supported by stream queues {what}")
    if shared and not client.shares_prefetch:
        raise Unsupported(f"{what} does not support global qos")
    start = _start(method.arguments.get(STREAM_OFFSET), what)
    broker = client.broker
    filter = _filter(method.arguments, broker.clock, what)
    consumer = broker.consuming.read(channel.session, queue, tag, start, False, filter)
    consumer.arguments = method.arguments
    consumer.handle = StreamRecipient(channel, tag)
    if not method.no_wait:
        channel.send(BasicConsumeOk(tag))


def _start(value: object, what: str) -> Start:
    if isinstance(value, Timestamp):
        return Start(TIME, int(value) * 1000)
    return start_of(value, what)


def _filter(arguments: dict[str, object], clock: Clock, what: str) -> Filter | None:
    """Return the filter by the filter values of messages [rabbitmq stream filtering]; None: there
    is none."""
    asked: dict[object, object] = {
        name: arguments[argument]
        for argument, name in FILTER_ARGUMENTS.items()
        if argument in arguments
    }
    try:
        filter, _ = filters_of(asked, clock, True)
    except FilterError as error:
        raise PreconditionFailed(f"{error.text} for '{what}'") from None
    return filter


@final
class StreamRecipient:
    """The channel that a reader's deliveries go to: Consumer.handle."""

    __slots__ = ("_additions", "_channel", "_converter", "_recipient")

    def __init__(self, channel: Channel, tag: str) -> None:
        self._channel = channel
        self._recipient = Recipient(channel, tag)
        self._additions: Additions | None = None
        """Additions used last."""
        self._converter = Converter()

    def encode(self, piece: Slice, first_tag: int) -> bytes:
        """Encode a slice whose bytes are in memory as frames of this channel."""
        piece = published(piece, self._converter)
        additions = additions_to(piece, False, self._additions, True)
        assert additions is not None, piece.first
        self._additions = additions
        payload = piece.payload
        raw = payload.raw
        assert raw is not None, payload.position
        limit = self._channel.client.wire.frame_max
        if limit and payload.largest_frame > limit:
            return self._singly(piece, raw, first_tag, additions, limit)
        if additions.died:
            data = self._singly(piece, raw, first_tag, additions, 0)
        else:
            data = self._run(piece, raw, first_tag, additions)
        number = self._channel.number
        return (
            data if channel_of(raw, payload.cuts[piece.lo]) == number else rechannel(data, number)
        )

    def _run(self, piece: Slice, raw: bytes, first_tag: int, additions: Additions) -> bytes:
        """Encode messages from which nothing is removed. The bytes before the offset are made once
        for all that begin alike."""
        cuts = piece.payload.cuts
        route: Route | None = None
        template = self._template(piece, piece.lo)
        unit = b""  # the header frame as it came, up to the end of its front
        before_offset = b""
        out: list[bytes] = []
        for i in range(piece.lo, piece.hi):
            header = cuts[i] + 8 + int.from_bytes(raw[cuts[i] + 3 : cuts[i] + 7], "big")
            now = route_of(piece, i)
            if now is not route:
                route = now
                template = self._template(piece, i)
                unit = b""
            if not unit or not raw.startswith(unit, header):
                unit, front = additions.before_offset(raw, header)
                before_offset = template.suffix + front
            step = i - piece.lo
            out += (
                template.prefix,
                (first_tag + step).to_bytes(8, "big"),
                before_offset,
                (piece.first - 1 + step).to_bytes(8, "big"),
                raw[header + len(unit) : cuts[i + 1]],
            )
        return b"".join(out)

    def _singly(
        self, piece: Slice, raw: bytes, first_tag: int, additions: Additions, limit: int
    ) -> bytes:
        """Encode message by message: dead letters, and messages to be cut into frames of `limit`
        bytes (0: not cut)."""
        cuts = piece.payload.cuts
        out: list[bytes] = []
        for i in range(piece.lo, piece.hi):
            template = self._template(piece, i)
            step = i - piece.lo
            header = cuts[i] + 8 + int.from_bytes(raw[cuts[i] + 3 : cuts[i] + 7], "big")
            body = header + 8 + int.from_bytes(raw[header + 3 : header + 7], "big")
            additions.offset = piece.first - 1 + step
            content = additions.header_frame(raw, header, body) + raw[body : cuts[i + 1]]
            out += (
                template.prefix,
                (first_tag + step).to_bytes(8, "big"),
                template.suffix,
                reframe(content, 0, self._channel.number, limit) if limit else content,
            )
        return b"".join(out)

    def _template(self, piece: Slice, i: int) -> Template:
        return self._recipient.template(shown_route(piece) or route_of(piece, i))


def route_of(piece: Slice, i: int) -> Route:
    """Return the route under which message i of the slice's payload was published."""
    payload = piece.payload
    return payload.route if payload.routes is None else payload.routes[i]
