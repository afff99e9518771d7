"""Sinks over HTTP: stage, commit, abort. What a Spark job calls, on executors and on its driver.

    POST   /api/tallymark/sinks/{vhost}/{sink}/stage?count=N    frames -> {"staging": id}
    POST   /api/tallymark/sinks/{vhost}/{sink}/commit    {"identity", "batch", "staging", ...}
    POST   /api/tallymark/sinks/{vhost}/{sink}/abort            {"staging"}
    GET    /api/tallymark/sinks
    DELETE /api/tallymark/sinks/{vhost}/{sink}                  an operator's word

The body of `stage` is AMQP 0-9-1: publish method, header and body frames of channel 1, end to end,
as a publisher sends them. They are read, checked and stored by the same code as those of a
connection, so that whatever a publish can say can be said here, at the same cost; and the broker
needs no library of columns. All of it is taken, or none.

`stage` is refused with 503, `blocked`, where a publisher would be held back: during an alarm, and
while a queue that the messages would go to has a slow consumer whose policy is `flow`. Asked again
later it is taken.

`stage`, `commit` and `abort` answer when what they changed is on disk, in every sync mode. A
repeated commit does nothing and says so; a repeated `stage` leaves something behind that its sink's
next commit, or time, ends.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from aiohttp import web

from tallymark.bridge.amqp091.channel import Intake
from tallymark.bridge.permissions import EXCHANGE, WRITE, check_keys
from tallymark.engine.clock import Clock
from tallymark.engine.sinks import Sink, Staging
from tallymark.server.http.requests import (
    Refused,
    answer,
    body_of,
    check_rights_stayed,
    number_in,
    require_administrator,
    user_of,
)
from tallymark.server.management.requests import Routes, whole
from tallymark.stored.annotations import keys_of
from tallymark.units import Ms

EXPIRES_MS: Final = 6 * 3_600_000
"""Milliseconds that a staging waits for its commit where its writer names no time."""
LONGEST_MS: Final = 7 * 24 * 3_600_000
FEED_BYTES: Final = 1 << 20
"""Bytes read in one round of the loop: other connections are served in between."""
LONGEST_NAME: Final = 255


class Commit(msgspec.Struct, forbid_unknown_fields=True):
    """forget_ms: of writers that come once: how long a repeated commit is recognised; 0: always.
    after: the batch that the sink must have last, 0 for none; None: any earlier one. target: where
    the messages go, in the writer's words; the same batch with another one is refused."""

    identity: str
    batch: int
    staging: list[int]
    forget_ms: int = 0
    after: int | None = None
    target: str = ""


class Abort(msgspec.Struct, forbid_unknown_fields=True):
    staging: list[int]


class Sinks(Routes):
    """Routes under /api/tallymark/sinks."""

    def add_to(self, app: web.Application) -> None:
        one = "/api/tallymark/sinks/{vhost}/{sink}"
        app.router.add_get("/api/tallymark/sinks", self._list)
        app.router.add_post(one + "/stage", self._stage)
        app.router.add_post(one + "/commit", self._commit)
        app.router.add_post(one + "/abort", self._abort)
        app.router.add_delete(one, self._delete)

    async def _stage(self, request: web.Request) -> web.Response:
        vhost, sink = _names(request)
        count = number_in(request, "count")
        expires_ms = number_in(request, "expires_ms", 0)
        if expires_ms > LONGEST_MS:
            raise Refused(
                400, "bad_request", f"expires_ms is {expires_ms}, expected at most {LONGEST_MS}"
            )
        self.check_alarms()
        frames = await whole(request.content.iter_any())
        node, intake = self.node, Intake()
        with self.publisher(request) as publisher:
            publisher.send_to(intake)
            for at in range(0, len(frames), FEED_BYTES):
                part = frames[at : at + FEED_BYTES]
                publisher.receive(part, node.tell_time(), node.broker.clock.now_ms)
                await asyncio.sleep(0)
                check_rights_stayed(request)
            if intake.count != count:
                raise Refused(
                    400, "bad_request",
                    f"count is {count}, expected {intake.count}, which is how many whole messages "
                    f"came in {len(frames)} bytes",
                )  # fmt: skip
            staging = node.broker.sinks.stage(
                vhost, sink, intake.parts, Ms(expires_ms or EXPIRES_MS)
            )
        await self.node.durable()
        return answer({"staging": staging.id, "messages": staging.count, "bytes": staging.size})

    async def _commit(self, request: web.Request) -> web.Response:
        vhost, sink = _names(request)
        wanted = await body_of(request, Commit)
        if wanted.batch < 0 or not 0 <= wanted.forget_ms <= LONGEST_MS:
            raise Refused(
                400, "bad_request",
                f"batch is {wanted.batch} and forget_ms {wanted.forget_ms}, expected 0 or more, "
                f"and at most {LONGEST_MS} for the latter",
            )  # fmt: skip
        user = user_of(request).name
        await self.node.pacer.turn(vhost, user)
        self._check_access(request, wanted.staging)
        published = self.node.broker.publishing.published
        done = self.node.broker.publishing.commit_sink(
            vhost, sink, wanted.identity, wanted.batch, wanted.staging, Ms(wanted.forget_ms),
            wanted.after, wanted.target,
        )  # fmt: skip
        count = self.node.broker.publishing.published - published
        self.node.pacer.published_over_http(vhost, user, count)
        await self.node.durable()
        return answer(
            {
                "published": done.published,
                "unroutable": done.unroutable,
                "repeated": done.repeated,
            }
        )

    async def _abort(self, request: web.Request) -> web.Response:
        vhost, sink = _names(request)
        wanted = await body_of(request, Abort)
        self._check_access(request, wanted.staging)
        dropped = self.node.broker.sinks.abort(vhost, sink, wanted.staging)
        await self.node.durable()
        return answer({"dropped": dropped})

    async def _delete(self, request: web.Request) -> web.Response:
        require_administrator(request)
        dropped = self.node.broker.sinks.forget(*_names(request))
        await self.node.durable()
        return answer({"dropped": dropped})

    async def _list(self, request: web.Request) -> web.Response:
        sinks = self.node.broker.sinks
        clock = self.node.broker.clock
        is_seen = self.http.sees(request)

        def row(sink: Sink) -> dict[str, object]:
            return {
                "vhost": sink.vhost,
                "name": sink.name,
                "identity": sink.identity,
                "batch": sink.batch,
                "forgotten_at_ms": clock.to_wall(sink.due_ms) if sink.due_ms else None,
            }

        found = [sink for sink in sinks.sinks.values() if is_seen(sink.vhost)]
        staged = [staging for staging in sinks.stagings.values() if is_seen(staging.vhost)]
        return answer(
            {
                "sinks": await self.http.rows(request, found, row),
                "stagings": await self.http.rows(
                    request, staged, lambda staging: _staging_row(staging, clock)
                ),
            }
        )

    def _check_access(self, request: web.Request, ids: list[int]) -> None:
        """Raises NotFound (virtual host), AccessRefused unless the user may publish all of it."""
        found = self.node.broker.vhost(request.match_info["vhost"])
        vhost = found.name
        access = self.http.access(request, vhost)
        stagings = self.node.broker.sinks.stagings
        for id in ids:
            staging = stagings.get(id)
            if staging is not None and staging.vhost == vhost:
                for part in staging.parts:
                    payload = part.payload
                    for route in payload.routes or [payload.route]:
                        access.check(EXCHANGE, route.exchange, WRITE)
                        exchange = found.exchanges.get(route.exchange)
                        check_keys(access, exchange, keys_of(part.annotations, route), WRITE)


def _names(request: web.Request) -> tuple[str, str]:
    """Virtual host and sink. Raises Refused 400."""
    vhost, sink = request.match_info["vhost"], request.match_info["sink"]
    if len(sink) > LONGEST_NAME:
        raise Refused(
            400, "bad_request", f"sink name of {len(sink)} letters, expected at most {LONGEST_NAME}"
        )
    return vhost, sink


def _staging_row(staging: Staging, clock: Clock) -> dict[str, object]:
    return {
        "staging": staging.id,
        "vhost": staging.vhost,
        "sink": staging.sink,
        "messages": staging.count,
        "bytes": staging.size,
        "expires_at_ms": clock.to_wall(staging.due_ms),
    }
