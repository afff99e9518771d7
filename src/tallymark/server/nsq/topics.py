"""Publishing, topics and channels at nsqd's HTTP interface.

What changes something answers when it is on disk.
"""

from __future__ import annotations

from array import array

from aiohttp import web

from tallymark.bridge.nsq.topic import Topic
from tallymark.server.logs import log_of
from tallymark.server.nsq.requests import (
    BOOLS,
    CELL_HEAD,
    NsqContext,
    Parameters,
    Refused,
    answer,
    body_of,
)
from tallymark.wire.nsq.errors import WireError
from tallymark.wire.nsq.kernel import make_cells
from tallymark.wire.nsq.parsing import mpub_cuts

log = log_of("nsq")


class TopicRoutes:
    """Routes that publish, and that make, delete, empty and pause topics and channels."""

    def __init__(self, http: NsqContext) -> None:
        self._http = http
        self._node = http.node

    def add_to(self, app: web.Application) -> None:
        router = app.router
        router.add_post("/pub", self._pub)
        router.add_post("/mpub", self._mpub)
        router.add_post("/topic/create", self._create_topic)
        router.add_post("/topic/delete", self._delete_topic)
        router.add_post("/topic/empty", self._empty_topic)
        router.add_post("/topic/{verb:pause|unpause}", self._pause_topic)
        router.add_post("/channel/create", self._create_channel)
        router.add_post("/channel/delete", self._delete_channel)
        router.add_post("/channel/empty", self._empty_channel)
        router.add_post("/channel/{verb:pause|unpause}", self._pause_channel)

    # -- publishing

    async def _pub(self, request: web.Request) -> web.Response:
        body = await body_of(request, self._http.limits.max_msg_size, "MSG_TOO_BIG")
        if not body:
            raise Refused(400, "MSG_EMPTY")
        parameters = Parameters(request)
        topic = parameters.topic()
        delay_ms = self._delay(parameters)
        raw, cuts = make_cells([body])
        return await self._publish(request, topic, raw, cuts, delay_ms)

    def _delay(self, parameters: Parameters) -> int:
        text = parameters.get("defer")
        if text is None:
            return 0
        digits = text.removeprefix("+")
        if not (digits.isascii() and digits.isdigit()):
            raise Refused(400, "INVALID_DEFER")
        if len(digits) > 18 or int(digits) > self._http.limits.max_req_timeout_ms:
            raise Refused(400, "INVALID_DEFER")
        return int(digits)

    async def _mpub(self, request: web.Request) -> web.Response:
        """Publish all of the messages, or none [NQ-D5]."""
        most = self._http.limits.max_body_size
        if (request.content_length or 0) > most:
            raise Refused(413, "BODY_TOO_BIG")
        parameters = Parameters(request)
        topic = parameters.topic()
        binary = parameters.get("binary")
        body = await body_of(request, most, "BODY_TOO_BIG")
        if binary is not None and BOOLS.get(binary, True):
            try:
                cuts = mpub_cuts(body, 0, len(body), self._http.limits)
            except WireError as error:
                raise Refused(413, error.code.removeprefix("E_")) from None
            return await self._publish(request, topic, body[4 : 4 + cuts[-1]], cuts, 0)
        lines = [line for line in body.split(b"\n") if line]
        if any(len(line) > self._http.limits.max_msg_size for line in lines):
            raise Refused(413, "MSG_TOO_BIG")
        raw, cuts = make_cells(lines)
        return await self._publish(request, topic, raw, cuts, 0)

    async def _publish(
        self, request: web.Request, topic: str, raw: bytes, cuts: array[int], delay_ms: int
    ) -> web.Response:
        """OK when the disk has it. Raises Refused: publishers are held back, or this one may
        not."""
        allowed = self._http.access(request)
        user = "" if allowed is None else allowed[0].user
        await self._node.pacer.turn(self._http.topics.vhost, user)
        self._http.allow(request, lambda access: self._http.topics.check_publish(access, topic))
        if self._node.alarms.active:
            alarms = ", ".join(sorted(self._node.alarms.active))
            log.info("publish.refused", topic=topic, alarms=alarms)
            raise Refused(503, "BLOCKED")
        now = self._http.now()
        published = self._node.broker.publishing.published
        if len(cuts) == 1:
            self._http.topics.topic(topic)  # as nsqd: no message is one use of a topic more
        else:
            self._http.topics.publish(topic, raw, cuts, CELL_HEAD, now, delay_ms)
        count = self._node.broker.publishing.published - published
        self._node.pacer.published_over_http(self._http.topics.vhost, user, count)
        self._node.broker.durability.answered(count)
        await self._node.durable()
        return answer("OK")

    # -- topics and channels

    def _found_topic(self, name: str) -> Topic:
        found = self._http.topics.find(name)
        if found is None:
            raise Refused(404, "TOPIC_NOT_FOUND")
        return found

    def _found(self, request: web.Request) -> tuple[str, str]:
        """Names of the topic, which exists, and of the channel, which may not."""
        topic, channel = Parameters(request).topic_and_channel()
        self._found_topic(topic)
        self._http.now()
        return topic, channel

    def _managed_channel(self, request: web.Request, empties: bool = False) -> tuple[str, str]:
        """Names of both, which exist, and which the request may change."""
        topic, channel = self._found(request)
        if channel not in self._found_topic(topic).channels:
            raise Refused(404, "CHANNEL_NOT_FOUND")
        check = self._http.topics.check_manage
        self._http.allow(request, lambda access: check(access, topic, channel, empties))
        return topic, channel

    def _managed_topic(self, request: web.Request, empties: bool = False) -> str:
        """Return the name of a topic that exists and that the request may change; a malformed name
        is one that does not exist."""
        name = Parameters(request).need("topic")
        self._found_topic(name)
        self._http.now()
        check = self._http.topics.check_manage
        self._http.allow(request, lambda access: check(access, name, "", empties))
        return name

    async def _create_topic(self, request: web.Request) -> web.Response:
        name = Parameters(request).topic()
        self._http.now()
        self._http.allow(request, lambda access: self._http.topics.check_make(access, name, ""))
        self._http.topics.topic(name)
        return await self._http.done()

    async def _delete_topic(self, request: web.Request) -> web.Response:
        self._http.topics.delete_topic(self._managed_topic(request))
        return await self._http.done()

    async def _empty_topic(self, request: web.Request) -> web.Response:
        Parameters(request).topic()
        self._http.topics.empty_topic(self._managed_topic(request, empties=True))
        return await self._http.done()

    async def _pause_topic(self, request: web.Request) -> web.Response:
        pauses = request.match_info["verb"] == "pause"
        self._http.topics.pause_topic(self._managed_topic(request), pauses)
        return await self._http.done()

    async def _create_channel(self, request: web.Request) -> web.Response:
        topic, channel = self._found(request)
        self._http.allow(
            request, lambda access: self._http.topics.check_make(access, topic, channel)
        )
        self._http.topics.channel(topic, channel)
        return await self._http.done()

    async def _delete_channel(self, request: web.Request) -> web.Response:
        self._http.topics.delete_channel(*self._managed_channel(request))
        return await self._http.done()

    async def _empty_channel(self, request: web.Request) -> web.Response:
        self._http.topics.empty_channel(*self._managed_channel(request, empties=True))
        return await self._http.done()

    async def _pause_channel(self, request: web.Request) -> web.Response:
        pauses = request.match_info["verb"] == "pause"
        self._http.topics.pause_channel(*self._managed_channel(request), pauses)
        return await self._http.done()
