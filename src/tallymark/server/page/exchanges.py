"""Exchanges, and of each its bindings."""

from __future__ import annotations

import json
from typing import Final

from tallymark.engine.exchange import Binding, Exchange
from tallymark.engine.vhost import VirtualHost
from tallymark.server.http.state import plain
from tallymark.server.page.tables import Column, table_of
from tallymark.server.page.view import Context, Page, View, at

DEFAULT: Final = "amq.default"
"""Name of the default exchange in addresses: its own is empty."""
Placed = tuple[VirtualHost, Exchange]


def _shown(name: str) -> str:
    return name or "(default)"


def _address(vhost: str, name: str) -> str:
    return at("exchanges", vhost, name or DEFAULT)


def _policy(one: Placed) -> str:
    policy = one[0].policy_table.of_exchange(one[1])
    return "" if policy is None else policy.name


EXCHANGES: Final[tuple[Column[Placed], ...]] = (
    Column("name", "Exchange", lambda one: _shown(one[1].name),
           link=lambda one: _address(one[0].name, one[1].name)),
    Column("vhost", "Virtual host", lambda one: one[0].name),
    Column("type", "Type", lambda one: one[1].type),
    Column("policy", "Policy", _policy),
    Column("durable", "Durable", lambda one: one[1].durable, "flag"),
    Column("auto_delete", "Deleted when unused", lambda one: one[1].auto_delete, "flag"),
    Column("internal", "Internal", lambda one: one[1].internal, "flag"),
)  # fmt: skip


def _end(binding: Binding) -> str:
    vhost = binding.queue.vhost if binding.queue is not None else ""
    name = binding.destination()
    return at("queues", vhost, name) if binding.queue is not None else ""


FROM: Final[tuple[Column[Binding], ...]] = (
    Column("to", "To", lambda one: one.destination(), link=_end,
           note=lambda one: "" if one.queue is not None else "an exchange"),
    Column("key", "Routing key", lambda one: one.key),
    Column("arguments", "Arguments", lambda one: _text(one.arguments)),
)  # fmt: skip
TO: Final[tuple[Column[Binding], ...]] = (
    Column("from", "From", lambda one: _shown(one.source.name)),
    Column("key", "Routing key", lambda one: one.key),
    Column("arguments", "Arguments", lambda one: _text(one.arguments)),
)


def _text(arguments: dict[str, object]) -> str:
    return json.dumps(plain(arguments), ensure_ascii=False) if arguments else ""


async def show_list(view: View) -> Context:
    every = [
        (vhost, exchange)
        for vhost in view.routes.vhosts(view.request)
        for exchange in vhost.exchanges.values()
    ]
    table = await table_of(
        view, "Exchanges", every, EXCHANGES, "name", lambda one: f"{one[1].name} {one[1].type}"
    )
    return {"table": table}


async def show_one(view: View) -> Context:
    vhost = view.routes.vhost(view.request)
    name = view.names["exchange"]
    exchange = vhost.exchange("" if name == DEFAULT else name)
    bindings = vhost.topology.bindings()
    return {
        "exchange": exchange, "vhost": vhost.name, "shown": _shown(exchange.name),
        "arguments": _text(exchange.arguments), "policy": _policy((vhost, exchange)),
        "is_default": not exchange.name,
        "out": await table_of(
            view, "Bindings from it", [one for one in bindings if one.source is exchange], FROM,
            "to", lambda one: f"{one.destination()} {one.key}",
            "Search by queue or key", "Nothing is bound: what is published here reaches no queue.",
        ),
        "into": await table_of(
            view, "Bindings to it", [one for one in bindings if one.exchange is exchange], TO,
            "from", empty="It is bound to no other exchange.", prefix="i",
        ),
    }  # fmt: skip


LIST: Final = Page("/ui/exchanges", "Exchanges", "list.html", show_list, nav="Exchanges")
ONE: Final = Page("/ui/exchanges/{vhost}/{exchange}", "Exchange", "exchange.html", show_one)
