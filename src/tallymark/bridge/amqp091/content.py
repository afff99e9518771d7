"""Content to clients: basic.deliver, basic.get-ok, basic.return.

Header and body frames leave as the publisher sent them; in front of each comes a frame made of a
template and a tag. Only where the channel number differs, the reader's frame-max is smaller than
a frame, or the broker has something to add (annotated.py), is anything inside rewritten.
"""

from __future__ import annotations

from array import array
from typing import Final, final

from tallymark.bridge.amqp091.annotated import Additions, additions_to
from tallymark.bridge.amqp091.channel import REPLIES_HELD, Channel, Replies
from tallymark.bridge.conversion.amqp10_to_amqp091 import Converter, frames_of
from tallymark.bridge.conversion.nsq_to_amqp091 import as_amqp091
from tallymark.engine.message import Payload, Slice
from tallymark.stored.annotations import Route
from tallymark.stored.formats import AMQP091, NSQ
from tallymark.wire.amqp091.deliveries import (
    encode_deliveries,
    encode_mixed_deliveries,
    rechannel,
    reframe,
)
from tallymark.wire.amqp091.errors import NO_ROUTE
from tallymark.wire.amqp091.frames import METHOD, frame
from tallymark.wire.amqp091.layouts import encode_method
from tallymark.wire.amqp091.methods import BasicGetOk, BasicReturn

DELIVER: Final = b"\x00\x3c\x00\x3c"
TEMPLATES_KEPT: Final = 1024
"""Number of routes cached per consumer."""
LARGE: Final = 8192
"""Bytes of a message on average above which each is written by itself: another buffer costs less
than to move it into one with others."""
PUBLISH_FIXED: Final = 17
"""Bytes of a publish method frame besides those of the exchange and the key."""


@final
class Template:
    """One consumer's deliver frame for one route, without the tag."""

    __slots__ = ("method_size", "prefix", "redelivered_suffix", "suffix")

    def __init__(self, channel: int, tag: bytes, route: Route) -> None:
        exchange = route.exchange.encode()
        key = route.key.encode()
        names = bytes((len(exchange),)) + exchange + bytes((len(key),)) + key + b"\xce"
        size = len(DELIVER) + 1 + len(tag) + 8 + len(names)  # one more for the flag, less the end
        self.prefix = (
            b"\x01" + channel.to_bytes(2, "big") + size.to_bytes(4, "big")
            + DELIVER + bytes((len(tag),)) + tag
        )  # fmt: skip
        """Frame up to the delivery tag."""
        self.suffix = b"\x00" + names
        """Frame after the delivery tag, not redelivered."""
        self.redelivered_suffix = b"\x01" + names
        self.method_size = method_size(route)


def method_size(route: Route) -> int:
    """Return the size of the publish method frame of a message of this route."""
    return PUBLISH_FIXED + len(route.exchange.encode()) + len(route.key.encode())


@final
class Recipient:
    """The channel that a consumer's deliveries go to: Consumer.handle."""

    __slots__ = ("_additions", "_converter", "_tag", "_templates", "channel")

    def __init__(self, channel: Channel, tag: str) -> None:
        self.channel = channel
        self._tag = tag.encode()
        self._templates: dict[Route, Template] = {}
        self._additions: Additions | None = None
        """Additions used last."""
        self._converter = Converter()

    def template(self, route: Route) -> Template:
        found = self._templates.get(route)
        if found is None:
            if len(self._templates) >= TEMPLATES_KEPT:
                self._templates.clear()
            found = Template(self.channel.number, self._tag, route)
            self._templates[route] = found
        return found

    def write(self, out: list[bytes], piece: Slice, first_tag: int, shows_counts: bool) -> None:
        """Append a slice whose bytes are in memory, as frames of this channel. shows_counts: True
        if the queue's messages show their delivery counts."""
        piece = published(piece, self._converter)
        if piece.annotations is not None or (shows_counts and piece.acquired > 0):
            additions = additions_to(piece, shows_counts, self._additions)
            if additions is not None:
                self._additions = additions
                out.append(self._annotated(piece, first_tag, additions))
                return
        payload = piece.payload
        lo = piece.lo
        hi = piece.hi
        is_redelivered = piece.acquired > 0
        raw = payload.raw
        assert raw is not None, payload.position
        number = self.channel.number
        limit = self.channel.client.wire.frame_max
        if limit and payload.largest_frame > limit:
            out.append(self._reframed(payload, raw, lo, hi, first_tag, is_redelivered))
            return
        cuts = payload.cuts
        is_same = channel_of(raw, cuts[lo]) == number
        if is_same and cuts[hi] - cuts[lo] >= (hi - lo) * LARGE:
            self._write_singly(out, payload, raw, lo, hi, first_tag, is_redelivered)
            return
        data = self._joined(payload, raw, lo, hi, first_tag, is_redelivered)
        out.append(data if is_same else rechannel(data, number))

    def _joined(
        self, payload: Payload, raw: bytes, lo: int, hi: int, first_tag: int, is_redelivered: bool
    ) -> bytes:
        """Encode messages lo..hi-1 end to end, on the channel they came on."""
        cuts = payload.cuts
        route = payload.route
        routes = payload.routes
        if routes is not None:
            part = routes[lo:hi]
            route = part[0]
            if part.count(route) < hi - lo:
                prefixes: list[bytes] = []
                suffixes: list[bytes] = []
                for each in part:
                    template = self.template(each)
                    prefixes.append(template.prefix)
                    suffixes.append(
                        template.redelivered_suffix if is_redelivered else template.suffix
                    )
                return encode_mixed_deliveries(prefixes, suffixes, first_tag, raw, cuts, lo, hi)
        template = self.template(route)
        suffix = template.redelivered_suffix if is_redelivered else template.suffix
        if hi - lo == 1:
            content = raw[cuts[lo] + template.method_size : cuts[hi]]
            return b"".join((template.prefix, first_tag.to_bytes(8, "big"), suffix, content))
        return encode_deliveries(
            template.prefix, suffix, first_tag, raw, cuts, lo, hi, template.method_size
        )

    def _write_singly(
        self,
        out: list[bytes],
        payload: Payload,
        raw: bytes,
        lo: int,
        hi: int,
        first_tag: int,
        is_redelivered: bool,
    ) -> None:
        """Append the content of each message behind a frame of its own: it is copied once."""
        cuts = payload.cuts
        for i in range(lo, hi):
            template = self.template(_route_of(payload, i))
            suffix = template.redelivered_suffix if is_redelivered else template.suffix
            tag = (first_tag + i - lo).to_bytes(8, "big")
            out.append(template.prefix + tag + suffix)
            out.append(raw[cuts[i] + template.method_size : cuts[i + 1]])

    def _annotated(self, piece: Slice, first_tag: int, additions: Additions) -> bytes:
        """Encode message by message, with patched header frames."""
        payload = piece.payload
        raw = payload.raw
        assert raw is not None, payload.position
        cuts = payload.cuts
        number = self.channel.number
        limit = self.channel.client.wire.frame_max
        small = limit > 0 and payload.largest_frame > limit
        is_redelivered = piece.acquired > 0
        shown = shown_route(piece)
        out: list[bytes] = []
        for i in range(piece.lo, piece.hi):
            template = self.template(shown if shown is not None else _route_of(payload, i))
            start = cuts[i]
            header = start + 8 + int.from_bytes(raw[start + 3 : start + 7], "big")
            body = header + 8 + int.from_bytes(raw[header + 3 : header + 7], "big")
            frame = additions.header_frame(raw, header, body)
            content = raw[body : cuts[i + 1]]
            out += (
                template.prefix,
                (first_tag + i - piece.lo).to_bytes(8, "big"),
                template.redelivered_suffix if is_redelivered else template.suffix,
            )
            if small:
                out.append(reframe(frame + content, 0, number, limit))
            else:
                out += (frame, content)
        data = b"".join(out)
        if small or channel_of(raw, cuts[piece.lo]) == number:
            return data
        return rechannel(data, number)

    def _reframed(
        self, payload: Payload, raw: bytes, lo: int, hi: int, first_tag: int, is_redelivered: bool
    ) -> bytes:
        """Encode message by message, for a reader with a smaller maximum frame."""
        number = self.channel.number
        limit = self.channel.client.wire.frame_max
        out: list[bytes] = []
        for i in range(lo, hi):
            template = self.template(_route_of(payload, i))
            message = raw[payload.cuts[i] : payload.cuts[i + 1]]
            out += (
                template.prefix,
                (first_tag + i - lo).to_bytes(8, "big"),
                template.redelivered_suffix if is_redelivered else template.suffix,
                reframe(message, template.method_size, number, limit),
            )
        return b"".join(out)


def published(piece: Slice, converter: Converter) -> Slice:
    """Return messages of another protocol as if they were published by this one."""
    came_as = piece.payload.format
    if came_as == AMQP091:
        return piece
    return as_amqp091(piece) if came_as == NSQ else converter.slice(piece)


def channel_of(raw: bytes, at: int) -> int:
    """Return the channel of the frame at `at`. All frames of a payload have the same one."""
    return raw[at + 1] << 8 | raw[at + 2]


def _route_of(payload: Payload, i: int) -> Route:
    return payload.route if payload.routes is None else payload.routes[i]


def shown_route(piece: Slice) -> Route | None:
    """Return the route to show to a slice's reader in place of the publisher's; None: the
    publisher's."""
    known = piece.annotations
    return None if known is None else known.route


def content_for(channel: Channel, message: bytes, size: int, largest_frame: int) -> bytes:
    """Return header and body frames of one message in the form this channel's client accepts. size:
    bytes of the publish method frame in front."""
    limit = channel.client.wire.frame_max
    if limit and largest_frame > limit:
        return reframe(message, size, channel.number, limit)
    content = message[size:]
    if channel_of(message, 0) == channel.number:
        return content
    return rechannel(content, channel.number)


def send_got(channel: Channel, piece: Slice, tag: int, left: int, shows_counts: bool) -> None:
    """Answer basic.get with a slice of one message; `left`: count of ready messages behind it.
    shows_counts: as for Recipient.encode."""
    route, content, largest_frame = content_of(piece, shows_counts)
    content = content_for(channel, content, 0, largest_frame)
    answer = BasicGetOk(tag, piece.acquired > 0, route.exchange, route.key, left)
    channel.client.wire.send_content(channel.number, answer, content, b"")


def content_of(piece: Slice, shows_counts: bool) -> tuple[Route, bytes, int]:
    """Return the route of a slice of one message, its header and body frames, and the size of the
    largest of them."""
    piece = published(piece, Converter())
    payload = piece.payload
    raw = payload.raw
    assert raw is not None, payload.position
    start = payload.cuts[piece.lo]
    header = start + 8 + int.from_bytes(raw[start + 3 : start + 7], "big")
    content = raw[header : payload.cuts[piece.hi]]
    additions = additions_to(piece, shows_counts, None)
    if additions is not None:
        body = 8 + int.from_bytes(content[3:7], "big")
        content = additions.header_frame(content, 0, body) + content[body:]
    return shown_route(piece) or _route_of(payload, piece.lo), content, payload.largest_frame


def return_messages(
    channel: Channel, route: Route, raw: bytes, cuts: array[int], lo: int, hi: int, size: int
) -> None:
    """Return messages lo..hi-1 to their publisher because no queue takes them
    [amqp-0.9.1 basic.return].

    They came on this very channel: their frames fit it as they are. `size`: bytes of the method
    frame in front of each.
    """
    head = frame(
        METHOD,
        channel.number,
        encode_method(BasicReturn(NO_ROUTE, "NO_ROUTE", route.exchange, route.key)),
    )
    parts: list[bytes] = []
    for i in range(lo, hi):
        parts += (head, raw[cuts[i] + size : cuts[i + 1]])
    channel.returned += hi - lo
    wire = channel.client.wire
    returned = b"".join(parts)
    wire.line.content_bytes += len(returned)
    wire.line.out.append(returned)


@final
class ReplyRecipient(Replies):
    """A channel that waits for direct replies."""

    __slots__ = ("_held", "_held_bytes", "_route", "_template", "channel")

    def __init__(self, channel: Channel, tag: str, token: str) -> None:
        super().__init__(tag, token)
        self.channel = channel
        self._route = Route("", "")
        self._template = Template(channel.number, tag.encode(), self._route)
        """Frame of the last reply, and its route: whoever replies publishes by one."""
        self._held: list[tuple[bytes, Route, int, int]] = []
        """Replies that arrived while the client had stopped deliveries [TX-10]."""
        self._held_bytes = 0

    def answer(
        self, format: int, message: bytes, route: Route, method_size: int, largest_frame: int
    ) -> None:
        """Deliver a reply. It needs no acknowledgement, so that it uses up no tag of the
        engine's."""
        if format != AMQP091:
            message, method_size = frames_of(message, route)
            largest_frame = len(message)
        if self.channel.session.flow:
            self._deliver(message, route, method_size, largest_frame)
        elif self._held_bytes + len(message) <= REPLIES_HELD:
            self._held_bytes += len(message)
            self._held.append((message, route, method_size, largest_frame))

    def go_on(self) -> None:
        held, self._held = self._held, []
        self._held_bytes = 0
        for message, route, size, largest_frame in held:
            self._deliver(message, route, size, largest_frame)

    def _deliver(self, message: bytes, route: Route, method_size: int, largest_frame: int) -> None:
        channel = self.channel
        client = channel.client
        if not client.takes_reply(len(message)):
            return
        if route is not self._route:
            self._route = route
            self._template = Template(channel.number, self.tag.encode(), route)
        template = self._template
        client.wire.line.out.append(
            template.prefix + channel.session.next_tag.to_bytes(8, "big") + template.suffix
            + content_for(channel, message, method_size, largest_frame)
        )  # fmt: skip
        client.replies.written.append(client.owner)
