"""Queues, exchanges and bindings over HTTP, as RabbitMQ's management interface has them.

Changes are the same operations as over AMQP (bridge/operations.py), so what is refused is the same,
in the same words; an answer to a change of what is durable means that it is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final
from urllib.parse import quote, unquote, unquote_plus

from aiohttp import web

from tallymark.bridge.operations import queue_of
from tallymark.bridge.permissions import EXCHANGE, QUEUE
from tallymark.engine.errors import NotFound
from tallymark.engine.exchange import Binding, Exchange
from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import consumers_of
from tallymark.engine.vhost import VirtualHost
from tallymark.server.http.requests import Refused
from tallymark.server.management.lists import listed, shown
from tallymark.server.management.rates import MOST_IN_A_LIST, Rates
from tallymark.server.management.requests import DEFAULT_EXCHANGE, Routes, fields_of
from tallymark.server.management.rows import (
    any_binding_row,
    binding_row,
    bindings_of,
    brief_row,
    consumer_row,
    exchange_row,
    implied_row,
    properties_key,
    queue_details,
    queue_row,
)

KEPT: Final = "surrogateescape"
"""Error handler with which keys that are not UTF-8 are quoted."""
READINGS: Final[tuple[Callable[[str], str], ...]] = (
    str, partial(unquote, errors=KEPT), partial(unquote_plus, errors=KEPT),
)  # fmt: skip
"""Readings of a properties key as a path may have it, the best first."""
ONE_QUEUE = "/api/queues/{vhost}/{name}"
ONE_EXCHANGE = "/api/exchanges/{vhost}/{name}"
BETWEEN = "/api/bindings/{vhost}/e/{source}/{kind:[qe]}/{destination}"


def exchange_name(request: web.Request, part: str = "name") -> str:
    """The exchange that the path names; the default one has no name of its own."""
    name = request.match_info[part]
    return "" if name == DEFAULT_EXCHANGE else name


class Topology(Routes):
    """Routes under /api/queues, /api/exchanges and /api/bindings."""

    def add_to(self, app: web.Application) -> None:
        router = app.router
        for path in ("/api/queues", "/api/queues/detailed", "/api/queues/{vhost}"):
            router.add_get(path, self._queues)
        router.add_get(ONE_QUEUE, self._queue)
        router.add_put(ONE_QUEUE, self._put_queue)
        router.add_delete(ONE_QUEUE, self._delete_queue)
        router.add_get(ONE_QUEUE + "/bindings", self._bindings_of_queue)
        for path in ("/api/exchanges", "/api/exchanges/{vhost}"):
            router.add_get(path, self._exchanges)
        router.add_get(ONE_EXCHANGE, self._exchange)
        router.add_put(ONE_EXCHANGE, self._put_exchange)
        router.add_delete(ONE_EXCHANGE, self._delete_exchange)
        router.add_get(ONE_EXCHANGE + "/bindings/{end:source|destination}", self._bindings_of)
        for path in ("/api/bindings", "/api/bindings/{vhost}"):
            router.add_get(path, self._bindings)
        router.add_get(BETWEEN, self._bindings_between)
        router.add_post(BETWEEN, self._bind)
        router.add_get(BETWEEN + "/{properties}", self._binding)
        router.add_delete(BETWEEN + "/{properties}", self._unbind)

    # -- queues

    async def _queues(self, request: web.Request) -> web.Response:
        found = [(vhost, one) for vhost in self.vhosts(request) for one in vhost.queues.values()]
        if _is_brief(request):
            totals = request.query.get("enable_queue_totals") == "true"
            brief = await self.http.rows(request, found, lambda one: brief_row(one[1], totals))
            return await listed(self.http, request, brief)
        rates = Rates(self.node, request, MOST_IN_A_LIST)
        rows = await self.http.rows(request, found, lambda one: queue_row(self.node, *one, rates))
        return await listed(self.http, request, rows)

    def _found_queue(self, request: web.Request) -> tuple[VirtualHost, Queue]:
        vhost = self.vhost(request)
        return vhost, queue_of(vhost, request.match_info["name"])

    async def _queue(self, request: web.Request) -> web.Response:
        if _is_brief(request):
            return shown(request, brief_row(self._found_queue(request)[1], False))
        vhost, queue = self._found_queue(request)
        row = queue_details(self.node, vhost, queue, Rates(self.node, request))
        row["consumer_details"] = await self.http.rows(request, consumers_of(queue), consumer_row)
        return shown(request, row)

    async def _put_queue(self, request: web.Request) -> web.Response:
        fields = await fields_of(request)
        made = self.operations(request).declare_queue(
            request.match_info["name"], fields.flag("durable"), False, fields.flag("auto_delete"),
            fields.arguments(),
        )  # fmt: skip
        return await self.done(made.queue.stored, made.is_new)

    async def _delete_queue(self, request: web.Request) -> web.Response:
        _, queue = self._found_queue(request)
        done = self.operations(request).delete_queue(
            queue.name, _asked(request, "if-unused"), _asked(request, "if-empty")
        )
        return await self.done(done.lasts)

    async def _bindings_of_queue(self, request: web.Request) -> web.Response:
        vhost, queue = self._found_queue(request)
        rows = await self._rows(request, vhost.topology.inbound.get(queue.id, ()))
        return await listed(self.http, request, [implied_row(queue), *rows])

    # -- exchanges

    async def _exchanges(self, request: web.Request) -> web.Response:
        found = [(vhost, one) for vhost in self.vhosts(request) for one in vhost.exchanges.values()]
        rows = await self.http.rows(request, found, lambda one: exchange_row(*one))
        return await listed(self.http, request, rows)

    def _found_exchange(self, request: web.Request) -> tuple[VirtualHost, Exchange]:
        vhost = self.vhost(request)
        return vhost, vhost.exchange(exchange_name(request))

    async def _exchange(self, request: web.Request) -> web.Response:
        return shown(request, exchange_row(*self._found_exchange(request)))

    async def _put_exchange(self, request: web.Request) -> web.Response:
        fields = await fields_of(request)
        done = self.operations(request).declare_exchange(
            exchange_name(request), fields.text("type", "direct"), fields.flag("durable"),
            fields.flag("auto_delete"), fields.flag("internal"), fields.arguments(),
        )  # fmt: skip
        return await self.done(done.lasts, done.is_new)

    async def _delete_exchange(self, request: web.Request) -> web.Response:
        _, exchange = self._found_exchange(request)
        unused = _asked(request, "if-unused")
        done = self.operations(request).delete_exchange(exchange.name, unused)
        return await self.done(done.lasts)

    async def _bindings_of(self, request: web.Request) -> web.Response:
        vhost, exchange = self._found_exchange(request)
        as_source = request.match_info["end"] == "source"
        if as_source and exchange.name == "":
            implied = await self.http.rows(request, vhost.queues.values(), implied_row)
            return await listed(self.http, request, implied)
        bindings = exchange.bindings.values() if as_source else exchange.inbound
        return await listed(self.http, request, await self._rows(request, bindings))

    # -- bindings

    async def _rows(
        self, request: web.Request, bindings: Iterable[Binding]
    ) -> list[dict[str, Any]]:
        """Return the rows of bindings in the virtual host that the path names, made in parts."""
        vhost = request.match_info["vhost"]
        return await self.http.rows(request, bindings, lambda one: binding_row(vhost, one))

    async def _bindings(self, request: web.Request) -> web.Response:
        found = [one for vhost in self.vhosts(request) for one in bindings_of(vhost)]
        rows = await self.http.rows(request, found, lambda one: any_binding_row(*one))
        return await listed(self.http, request, rows)

    def _ends(self, request: web.Request) -> tuple[VirtualHost, Exchange, Queue | Exchange]:
        """Return the virtual host, source and destination that the path names. Raises NotFound."""
        vhost = self.vhost(request)
        source = vhost.exchange(exchange_name(request, "source"))
        if request.match_info["kind"] == "q":
            return vhost, source, queue_of(vhost, request.match_info["destination"])
        return vhost, source, vhost.exchange(exchange_name(request, "destination"))

    def _between(self, request: web.Request) -> list[Binding]:
        _, source, destination = self._ends(request)
        return [b for b in source.bindings.values() if destination in (b.queue, b.exchange)]

    async def _bindings_between(self, request: web.Request) -> web.Response:
        _, source, destination = self._ends(request)
        if source.name == "" and isinstance(destination, Queue):
            return await listed(self.http, request, [implied_row(destination)])
        return await listed(self.http, request, await self._rows(request, self._between(request)))

    async def _found_binding(self, request: web.Request) -> Binding:
        """The path has the properties key as it is shown, which is quoted, or, as RabbitMQ takes it
        too, with its quotes taken off. Raises NotFound."""
        wanted = request.match_info["properties"]

        def reading(binding: Binding) -> tuple[int, Binding]:
            """Return by which reading of its key the binding is wanted; by none: len(READINGS)."""
            key = properties_key(binding.key, binding.arguments)
            fits = (n for n, read in enumerate(READINGS) if read(key) == wanted)
            return next(fits, len(READINGS)), binding

        found = await self.http.rows(request, self._between(request), reading)
        best, binding = min(found, key=lambda one: one[0], default=(len(READINGS), None))
        if binding is None or best == len(READINGS):
            raise NotFound(f"no binding {wanted!r} between the two")
        return binding

    async def _binding(self, request: web.Request) -> web.Response:
        _, source, destination = self._ends(request)
        if source.name == "" and isinstance(destination, Queue):
            return shown(request, implied_row(destination))
        vhost = request.match_info["vhost"]
        return shown(request, binding_row(vhost, await self._found_binding(request)))

    async def _bind(self, request: web.Request) -> web.Response:
        fields = await fields_of(request)
        key, arguments = fields.text("routing_key", ""), fields.arguments()
        source, destination = exchange_name(request, "source"), request.match_info["destination"]
        kind = QUEUE
        if request.match_info["kind"] == "e":
            kind, destination = EXCHANGE, exchange_name(request, "destination")
        done = self.operations(request).bind(source, kind, destination, key, arguments)
        bound = await self.done(done.lasts, is_new=True)
        made = properties_key(key, arguments)
        bound.headers["Location"] = f"{quote(destination, safe='')}/{quote(made, safe='')}"
        return bound

    async def _unbind(self, request: web.Request) -> web.Response:
        binding = await self._found_binding(request)
        done = self.operations(request).unbind(
            binding.source.name, binding.kind(), binding.destination(), binding.key,
            binding.arguments,
        )  # fmt: skip
        return await self.done(done.lasts)


def _is_brief(request: web.Request) -> bool:
    """Return whether a queue's row is to be without figures, which is cheaper."""
    return request.query.get("disable_stats") == "true"


def _asked(request: web.Request, name: str) -> bool:
    """A yes or no from the query string. Raises Refused 400."""
    text = request.query.get(name, "false")
    if text not in ("true", "false"):
        raise Refused(400, "bad_request", f"{name} is {text!r}, expected true or false")
    return text == "true"
