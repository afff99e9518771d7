"""Durable subscriptions over HTTP: the requests of a Spark driver and its executors.

ATTACH, LEASE, BEGIN, VERDICTS and SETTLE answer only when what they changed is on disk, in every
sync mode; all may be repeated. READ is stateless: any number of readers, the same rows until the
range is settled. All but ATTACH carry the fence of the attach that they follow, and are refused
(409) once there is a newer one; STAT may.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from aiohttp import web

from tallymark.engine.clock import in_wall_time
from tallymark.engine.errors import Gone, NotFound
from tallymark.engine.extents import BLOCK_BYTES, PIECES, Excerpts, LeaseExtents
from tallymark.engine.names import named
from tallymark.engine.outcomes import ACCEPTED, FAILED, REJECTED, RETURNED
from tallymark.engine.subscription import Subscription
from tallymark.journal import packer
from tallymark.journal.journal import BytesLost
from tallymark.server.http.blocks import send_blocks
from tallymark.server.http.extents import (
    ANSWER_BYTES,
    MOST_ANSWER_BYTES,
    NEXT,
    are_written,
    send_apart,
)
from tallymark.server.http.requests import (
    HttpContext,
    Refused,
    answer,
    body_of,
    number_in,
    require_administrator,
)
from tallymark.units import LeaseSequence

LONGEST_WAIT_MS: Final = 60_000
OUTCOMES: Final = {
    "accepted": ACCEPTED,
    "rejected": REJECTED,
    "released": RETURNED,
    "modified": FAILED,
}
"""Verdicts, in AMQP 1.0's words: modified is given back as a failed delivery."""


class Attach(msgspec.Struct, forbid_unknown_fields=True):
    """Limits on leased and unsettled messages; 0: the broker's default."""

    limit_rows: int = 0
    limit_bytes: int = 0


class Lease(msgspec.Struct, forbid_unknown_fields=True):
    """max_bytes 0: no limit but the subscription's. wait_ms: how long to wait for messages."""

    fence: int
    epoch: int
    start: int
    max_rows: int
    max_bytes: int = 0
    wait_ms: int = 0


class Begin(msgspec.Struct, forbid_unknown_fields=True):
    """The batch start..end-1 is about to be read."""

    fence: int
    epoch: int
    start: int
    end: int


class Settle(msgspec.Struct, forbid_unknown_fields=True):
    """Every lease sequence below `end` is done with."""

    fence: int
    epoch: int
    end: int


class Verdicts(msgspec.Struct, forbid_unknown_fields=True):
    """Outcomes of leased messages: (first lease sequence, count, outcome). The fence alone says
    which incarnation they are of: no number of an attach comes twice."""

    fence: int
    verdicts: list[tuple[int, int, str]]


class Subscriptions:
    """Routes under /api/tallymark/subscriptions."""

    def __init__(self, http: HttpContext) -> None:
        self._http = http
        self._node = http.node

    def add_to(self, app: web.Application) -> None:
        one = "/api/tallymark/subscriptions/{vhost}/{queue}/{name}"
        app.router.add_get("/api/tallymark/subscriptions", self._list)
        app.router.add_post(one + "/attach", self._attach)
        app.router.add_post(one + "/lease", self._lease)
        app.router.add_post(one + "/begin", self._begin)
        app.router.add_get(one + "/read", self._read, allow_head=False)
        app.router.add_post(one + "/verdicts", self._judge)
        app.router.add_post(one + "/settle", self._settle)
        app.router.add_get(one + "/stat", self._stat)
        app.router.add_delete(one, self._delete)

    def _find(self, request: web.Request) -> Subscription:
        queue = self._http.queue(request)
        return self._node.broker.leases.find(queue, request.match_info["name"])

    def _holds(self, request: web.Request, fence: int, epoch: int) -> Subscription:
        """Return the subscription, if its newest attach is the one with this fence. Raises Fenced,
        NotFound."""
        subscription = self._find(request)
        subscription.check_epoch(epoch)
        subscription.check_fence(fence)
        return subscription

    def _reads(self, request: web.Request) -> Subscription:
        """Return the subscription of a READ, whose fence and epoch are in its query. Raises Fenced,
        NotFound, Refused 400."""
        return self._holds(request, number_in(request, "fence"), number_in(request, "epoch"))

    async def _list(self, request: web.Request) -> web.Response:
        leases, is_seen = self._node.broker.leases, self._http.sees(request)

        def row(subscription: Subscription) -> dict[str, object]:
            stat = dict(leases.stat(subscription))
            stat["name"] = stat.pop("subscription")
            return stat

        entered = [one for one in leases.subscriptions.values() if is_seen(one.queue.vhost)]
        return answer({"subscriptions": await self._http.rows(request, entered, row)})

    async def _attach(self, request: web.Request) -> web.Response:
        wanted = await body_of(request, Attach)
        if wanted.limit_rows < 0 or wanted.limit_bytes < 0:
            raise Refused(400, "bad_request", "limits are negative, expected 0 (default) or more")
        queue = self._http.queue(request)
        subscription = self._node.broker.leases.attach(
            queue, request.match_info["name"], wanted.limit_rows, wanted.limit_bytes
        )
        fence = subscription.fence
        await self._node.durable()
        return answer(
            {
                "epoch": subscription.epoch,
                "fence": fence,
                "floor": subscription.floor,
                "leased": subscription.next - subscription.floor,
                "next": subscription.next,
            }
        )

    async def _lease(self, request: web.Request) -> web.Response:
        wanted = await body_of(request, Lease)
        loop = self._node.loop
        deadline = loop.time() + min(max(0, wanted.wait_ms), LONGEST_WAIT_MS) / 1000
        while True:
            # Again after each wait: it may be another by now.
            subscription = self._holds(request, wanted.fence, wanted.epoch)
            end = self._node.broker.leases.lease(
                subscription, LeaseSequence(wanted.start), wanted.max_rows, wanted.max_bytes
            )
            left = deadline - loop.time()
            if end > wanted.start or left <= 0:
                break
            try:
                await asyncio.wait_for(self._node.polls.ready(subscription.queue), left)
            except TimeoutError:
                break
        await self._node.durable()
        return answer({"end": end})

    async def _begin(self, request: web.Request) -> web.Response:
        wanted = await body_of(request, Begin)
        subscription = self._holds(request, wanted.fence, wanted.epoch)
        if self._node.broker.leases.begin(
            subscription, LeaseSequence(wanted.start), LeaseSequence(wanted.end)
        ):
            await self._node.durable()
        return answer({"floor": subscription.floor})

    async def _read(self, request: web.Request) -> web.StreamResponse:
        """Send all rows of a range, or with max_bytes as many as fit an answer."""
        if "max_bytes" in request.query:
            return await self._read_apart(request)
        subscription = self._reads(request)
        low = LeaseSequence(number_in(request, "from"))
        high = LeaseSequence(number_in(request, "to"))
        if low > high:
            raise Refused(400, "bad_request", f"from is {low}, expected at most to = {high}")
        subscription.part(low, high, 0)  # refuses what is settled or was never leased
        fence = subscription.fence
        leases = self._node.broker.leases

        def take(at: int, excerpts: Excerpts) -> int:
            """Put the next rows of the range, up to a block's worth; returns where to go on.
            What was lost is missing: the range may end before `high`, or have gaps."""
            if subscription not in subscription.queue.subscriptions:
                raise NotFound(f"subscription '{subscription.name}' is gone")
            subscription.check_fence(fence)
            self._http.check_read(request, subscription.queue)
            found = subscription.part(LeaseSequence(at), high, most_bytes=BLOCK_BYTES)
            for first, piece in found:
                leases.load(subscription, piece)
                n = excerpts.add_leased(subscription.epoch, first, piece)
                if excerpts.full:
                    return first + n
            return high

        ahead_ms = self._node.broker.clock.ahead_ms
        return await send_blocks(request, subscription.queue.id, low, high, take, ahead_ms)

    async def _read_apart(self, request: web.Request) -> web.StreamResponse:
        """One block, whose raw is sent from where it lies in the journal; the header NEXT says
        where to go on."""
        subscription = self._reads(request)
        low = LeaseSequence(number_in(request, "from"))
        high = LeaseSequence(number_in(request, "to"))
        if low > high:
            raise Refused(400, "bad_request", f"from is {low}, expected at most to = {high}")
        most_bytes = min(number_in(request, "max_bytes") or ANSWER_BYTES, MOST_ANSWER_BYTES)
        found = subscription.part(low, high, PIECES, most_bytes)
        if any(piece.payload.position < 0 for _, piece in found):
            await self._node.durable()  # leased just now, by an answer that has not left yet
            subscription = self._reads(request)
            found = subscription.part(low, high, PIECES, most_bytes)
        queue = subscription.queue
        store = self._node.broker.store
        extents = LeaseExtents(queue.id, subscription.epoch, low, most_bytes, store)
        unreadable = extents.add(found)
        if unreadable is not None:
            raise self._node.broker.quarantine.refuse_leased(subscription, unreadable)
        if not extents.full and len(found) < PIECES:
            extents.next = high  # what is missing was lost
        journal = self._node.journal
        if not are_written(journal, extents.spans):
            extents.release()
            await self._node.durable()
            return await self._read_apart(request)
        try:
            rows = in_wall_time(extents.rows, self._node.broker.clock.ahead_ms)
            head, padding = packer.pack_apart(rows)
            headers = {NEXT: str(extents.next)}
            return await send_apart(request, journal, head, extents.spans, padding, headers)
        except BytesLost as error:
            raise Gone(f"{named('queue', queue.name, queue.vhost)}: {error}") from error
        finally:
            extents.release()

    async def _judge(self, request: web.Request) -> web.Response:
        wanted = await body_of(request, Verdicts)
        subscription = self._find(request)
        subscription.check_fence(wanted.fence)
        said: list[tuple[LeaseSequence, int, int]] = []
        for first, count, outcome in wanted.verdicts:
            if outcome not in OUTCOMES:
                raise Refused(
                    400, "bad_request",
                    f"outcome {outcome!r} of lease sequence {first}, expected one of "
                    f"{', '.join(OUTCOMES)}",
                )  # fmt: skip
            said.append((LeaseSequence(first), count, OUTCOMES[outcome]))
        self._node.broker.leases.judge(subscription, said)
        await self._node.durable()
        return answer({"floor": subscription.floor, "verdicts": len(subscription.verdicts)})

    async def _settle(self, request: web.Request) -> web.Response:
        wanted = await body_of(request, Settle)
        subscription = self._holds(request, wanted.fence, wanted.epoch)
        floor = self._node.broker.leases.settle(subscription, LeaseSequence(wanted.end))
        await self._node.durable()
        return answer({"floor": floor})

    async def _stat(self, request: web.Request) -> web.Response:
        subscription = self._find(request)
        if "fence" in request.query:
            subscription.check_fence(number_in(request, "fence"))
        at = number_in(request, "at", subscription.floor)
        return answer(self._node.broker.leases.stat(subscription, at))

    async def _delete(self, request: web.Request) -> web.Response:
        require_administrator(request)
        released = self._node.broker.drop_subscription(self._find(request))
        await self._node.durable()
        return answer({"released": released})
