"""Connections, channels and consumers over HTTP, as RabbitMQ's management interface has them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final, TypeAlias

from aiohttp import web

from tallymark.engine.errors import AccessRefused, NotFound
from tallymark.engine.queue_consumers import consumers_of
from tallymark.engine.session import Consumer
from tallymark.server.amqp import AmqpClient
from tallymark.server.client import Client
from tallymark.server.http.requests import user_of
from tallymark.server.logs import log_of
from tallymark.server.management.lists import listed, shown
from tallymark.server.management.rates import MOST_IN_A_LIST, Rates
from tallymark.server.management.requests import Routes
from tallymark.server.management.rows import (
    channel_rows,
    connection_row,
    consumer_row,
    nsq_channel_rows,
    nsq_connection_row,
)
from tallymark.server.nsq.client import NsqClient
from tallymark.server.places import place_of

ONE: Final = "/api/connections/{name}"
OF_USER: Final = "/api/connections/username/{user}"
REASON: Final = "Closed via management plugin"

Listed: TypeAlias = AmqpClient | NsqClient

log = log_of("http")


def row_of(client: Listed, rates: Rates) -> dict[str, Any]:
    if isinstance(client, NsqClient):
        return nsq_connection_row(client, rates)
    return connection_row(client, rates)


def channel_rows_of(client: Listed) -> list[dict[str, Any]]:
    return nsq_channel_rows(client) if isinstance(client, NsqClient) else channel_rows(client)


def _held(client: Client) -> list[Consumer]:
    """Return the consumers of a connection, of all its channels."""
    sessions = [] if client.bridge.connection is None else client.bridge.connection.sessions
    return [consumer for session in sessions for consumer in session.consumers.values()]


class Connections(Routes):
    """Routes under /api/connections, /api/channels and /api/consumers."""

    def add_to(self, app: web.Application) -> None:
        router = app.router
        for path in ("/api/connections", "/api/vhosts/{vhost}/connections"):
            router.add_get(path, self._connections)
        router.add_get(OF_USER, self._connections_of)
        router.add_delete(OF_USER, self._close_all)
        router.add_get(ONE, self._connection)
        router.add_delete(ONE, self._close)
        router.add_get(ONE + "/channels", self._channels_of)
        for path in ("/api/channels", "/api/vhosts/{vhost}/channels"):
            router.add_get(path, self._channels)
        router.add_get("/api/channels/{name}", self._channel)
        for path in ("/api/consumers", "/api/consumers/{vhost}"):
            router.add_get(path, self._consumers)

    def seen(self, request: web.Request) -> Iterator[Listed]:
        """The connections that are through their handshake: all, or the user's own."""
        wanted = self.vhost(request).name if "vhost" in request.match_info else None
        is_seen = self.sees_user(request)
        for client in self.node.clients:
            place = place_of(client)
            if place is None or wanted not in (None, place[0]):
                continue
            if is_seen(place[1]):
                assert isinstance(client, Listed)
                yield client

    def _found(self, request: web.Request) -> Listed:
        """Find a connection. Raises NotFound, also for a connection that the user may not see."""
        name = request.match_info["name"]
        for client in self.seen(request):
            if client.peer == name:
                return client
        raise NotFound(f"no connection '{name}'")

    async def _connections(self, request: web.Request) -> web.Response:
        return await self._rows(request, list(self.seen(request)))

    async def _rows(self, request: web.Request, clients: list[Listed]) -> web.Response:
        rates = Rates(self.node, request, MOST_IN_A_LIST)

        def row(client: Listed) -> dict[str, Any]:
            return {} if place_of(client) is None else row_of(client, rates)

        rows = await self.http.rows(request, clients, row)
        there = [one for one in rows if one]  # without those gone meanwhile
        return await listed(self.http, request, there)

    async def _connection(self, request: web.Request) -> web.Response:
        return shown(request, row_of(self._found(request), Rates(self.node, request)))

    async def _close(self, request: web.Request) -> web.Response:
        """Close a connection: an AMQP client gets 320 with the reason in `X-Reason`, and the
        broker's side ends at once.

        A user who is no administrator may close only its own connections.
        """
        self._end(request, self._found(request))
        return web.Response(status=204)

    async def _connections_of(self, request: web.Request) -> web.Response:
        return await self._rows(request, self._seen_of(request))

    async def _close_all(self, request: web.Request) -> web.Response:
        """Close all connections of a user, as one is closed. Raises AccessRefused, also where there
        are none: that others' are closed is not to be answered, nor logged as done."""
        user, name = user_of(request), request.match_info["user"]
        if not user.administrator and name != user.name:
            raise AccessRefused(f"user '{user.name}' is not an administrator")
        for client in self._seen_of(request):
            self._end(request, client)
        return web.Response(status=204)

    def _seen_of(self, request: web.Request) -> list[Listed]:
        """Return the connections of the user that the path names, as far as the asking user sees
        them."""
        name = request.match_info["user"]
        seen = ((client, place_of(client)) for client in self.seen(request))
        return [client for client, place in seen if place is not None and place[1] == name]

    def _end(self, request: web.Request, client: Listed) -> None:
        """Close a connection. Raises AccessRefused."""
        user, place = user_of(request), place_of(client)
        assert place is not None, client.peer
        if not user.administrator and place[1] != user.name:
            raise AccessRefused(
                f"connection '{client.peer}' is of user '{place[1]}', and user "
                f"'{user.name}' is not an administrator"
            )
        reason = request.headers.get("X-Reason", REASON)
        log.info(
            "connection.close_asked", peer=client.peer, id=client.id, user=user.name,
            reason=reason,
        )  # fmt: skip
        client.bridge.shutdown(reason)
        client.touch()

    async def _channels_of(self, request: web.Request) -> web.Response:
        return await listed(self.http, request, channel_rows_of(self._found(request)))

    async def _channels(self, request: web.Request) -> web.Response:
        def rows(client: Listed) -> list[dict[str, Any]]:
            return [] if place_of(client) is None else channel_rows_of(client)

        found = await self.http.rows(request, list(self.seen(request)), rows)
        return await listed(self.http, request, chain.from_iterable(found))

    async def _channel(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        for client in self.seen(request):
            if not name.startswith(client.peer):  # as those of all its channels do
                continue
            for row in channel_rows_of(client):
                if row["name"] == name:
                    held = await self.http.rows(request, _held(client), consumer_row)
                    number = row["number"]
                    row["consumer_details"] = [
                        one for one in held if one["channel_details"]["number"] == number
                    ]
                    return shown(request, row)
        raise NotFound(f"no channel '{name}'")

    async def _consumers(self, request: web.Request) -> web.Response:
        """Show the consumers of the connections that the user sees: all, or those of its own."""
        is_seen = self.sees_user(request)
        found = [
            consumer
            for vhost in self.vhosts(request)
            for queue in vhost.queues.values()
            for consumer in consumers_of(queue)
            if is_seen(consumer.session.connection.user)
        ]
        return await listed(self.http, request, await self.http.rows(request, found, consumer_row))
