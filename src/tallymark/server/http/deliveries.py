"""Leased messages as a consumer of AMQP 0-9-1 would be sent them: what a shovel reads.

    GET /api/tallymark/subscriptions/{vhost}/{queue}/{name}/deliveries?fence&epoch&from&to

The answer is frames, end to end: basic.deliver, header, body; the delivery tag is the message's
lease sequence, and channel numbers say nothing. Messages of other protocols are converted, and dead
letters have their history, as on any channel. The answer ends with the message that passes
ANSWER_BYTES; the header NEXT says where to go on. What was lost is missing.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from tallymark.bridge.amqp091.content import content_of
from tallymark.bridge.amqp091.local import CHANNEL
from tallymark.engine.message import Slice
from tallymark.server.http.extents import NEXT
from tallymark.server.http.requests import HttpContext, Refused, number_in
from tallymark.server.parts import PART
from tallymark.units import LeaseSequence
from tallymark.wire.amqp091.frames import METHOD, frame
from tallymark.wire.amqp091.layouts import encode_method
from tallymark.wire.amqp091.methods import BasicDeliver

ANSWER_BYTES: Final = 4 << 20
MOST: Final = 10_000
"""Most messages of one answer."""


class Deliveries:
    """The route."""

    def __init__(self, http: HttpContext) -> None:
        self._http = http

    def add_to(self, app: web.Application) -> None:
        path = "/api/tallymark/subscriptions/{vhost}/{queue}/{name}/deliveries"
        app.router.add_get(path, self._read)

    async def _read(self, request: web.Request) -> web.Response:
        fence, epoch = number_in(request, "fence"), number_in(request, "epoch")
        low, high = number_in(request, "from"), number_in(request, "to")
        if low > high:
            raise Refused(400, "bad_request", f"from is {low}, expected at most to = {high}")
        leases = self._http.node.broker.leases
        frames = Frames(low)
        end = min(high, low + MOST)
        while frames.next < end and not frames.is_full:
            if frames.parts:
                await self._http.part(request)
            subscription = leases.find(
                self._http.queue(request), request.match_info["name"]
            )  # again after each wait: it may be another by now
            subscription.check_epoch(epoch)
            subscription.check_fence(fence)
            until = min(end, frames.next + PART)
            part = subscription.part(LeaseSequence(frames.next), LeaseSequence(until))
            for first, piece in part:
                leases.load(subscription, piece)
                frames.add(first, piece, subscription.queue.shows_counts)
            if not frames.is_full:
                frames.next = until
        return web.Response(
            body=b"".join(frames.parts),
            content_type="application/octet-stream",
            headers={NEXT: str(frames.next)},
        )


class Frames:
    """The frames of one answer."""

    def __init__(self, next: int) -> None:
        self.next = next
        """Lease sequence to go on from."""
        self.parts: list[bytes] = []
        self.room = ANSWER_BYTES

    @property
    def is_full(self) -> bool:
        return self.room <= 0

    def add(self, first: LeaseSequence, piece: Slice, shows_counts: bool) -> None:
        """Add messages of a slice, the first of which has this lease sequence, while there is
        room."""
        for i in range(len(piece)):
            if self.is_full:
                return
            one = piece.part(i, i + 1)
            route, content, _ = content_of(one, shows_counts)
            tag = first + i
            method = BasicDeliver("", tag, one.acquired > 0, route.exchange, route.key)
            self.parts += (frame(METHOD, CHANNEL, encode_method(method)), content)
            self.room -= len(content)
            self.next = tag + 1
