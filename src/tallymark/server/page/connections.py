"""Connections, and of each its channels."""

from __future__ import annotations

from typing import Any, Final

from tallymark.engine.errors import NotFound
from tallymark.server.management.connections import Connections, Listed, channel_rows_of, row_of
from tallymark.server.management.rates import Rates
from tallymark.server.page.tables import Column, table_of
from tallymark.server.page.view import Context, Page, View, at
from tallymark.server.places import place_of


def _user(client: Listed) -> str:
    place = place_of(client)
    return "" if place is None else place[1]


def _vhost(client: Listed) -> str:
    place = place_of(client)
    return "" if place is None else place[0]


def _sessions(client: Listed) -> int:
    connection = client.bridge.connection
    return 0 if connection is None else len(connection.sessions)


def _held(client: Listed) -> int:
    connection = client.bridge.connection
    return 0 if connection is None else sum(one.unacked for one in connection.sessions)


def _state(client: Listed) -> str:
    connection = client.bridge.connection
    if client.blocked_reason is not None:
        return "blocked"
    return "slow" if connection is not None and connection.paused else "running"


COLUMNS: Final[tuple[Column[Listed], ...]] = (
    Column(
        "name", "Connection", lambda one: one.peer, link=lambda one: at("connections", one.peer)
    ),
    Column("protocol", "Protocol", lambda one: one.category),
    Column("user", "User", _user),
    Column("vhost", "Virtual host", _vhost),
    Column("state", "State", _state, tone=lambda one: "" if _state(one) == "running" else "warn"),
    Column("channels", "Channels", _sessions, "number"),
    Column("unsettled", "Unsettled", _held, "number"),
    Column("received", "Received", lambda one: one.received_bytes, "size"),
    Column("sent", "Sent", lambda one: one.sent_bytes, "size"),
    Column("unsent", "Not read by it", lambda one: one.unsent(), "size"),
)

CHANNELS: Final[tuple[Column[dict[str, Any]], ...]] = (
    Column("number", "Channel", lambda row: row["number"], "number"),
    Column("state", "State", lambda row: row["state"]),
    Column("consumer_count", "Consumers", lambda row: row["consumer_count"], "number"),
    Column("prefetch_count", "Prefetch", lambda row: row["prefetch_count"] or "no limit"),
    Column("messages_unacknowledged", "Unsettled", lambda row: row["messages_unacknowledged"],
           "number"),
    Column("messages_unconfirmed", "Unconfirmed", lambda row: row["messages_unconfirmed"],
           "number"),
    Column("confirm", "Confirms", lambda row: row["confirm"], "flag"),
    Column("transactional", "Transactional", lambda row: row["transactional"], "flag"),
)  # fmt: skip


def _seen(view: View) -> list[Listed]:
    """Return the connections that the user sees."""
    return list(Connections(view.http).seen(view.request))


async def show_list(view: View) -> Context:
    table = await table_of(
        view, "Connections", _seen(view), COLUMNS, "name",
        lambda one: f"{one.peer} {_user(one)} {_vhost(one)}",
        "Search by address, user or virtual host", "Nobody is connected.",
    )  # fmt: skip
    return {"table": table}


async def show_one(view: View) -> Context:
    name = view.names["name"]
    client = next((one for one in _seen(view) if one.peer == name), None)
    if client is None:
        raise NotFound(f"no connection '{name}': it may have ended")
    row = row_of(client, Rates(view.node, view.request))
    facts = {
        "Protocol": row["protocol"], "State": row["state"], "User": row["user"],
        "Virtual host": row["vhost"], "Encrypted": "yes" if row["ssl"] else "no",
    }  # fmt: skip
    return {
        "row": row, "facts": facts,
        "properties": {key: value for key, value in row["client_properties"].items()
                       if not isinstance(value, dict)},
        "table": await table_of(
            view, "Channels", channel_rows_of(client), CHANNELS, "number",
            empty="No channel is open.",
        ),
    }  # fmt: skip


LIST: Final = Page("/ui/connections", "Connections", "list.html", show_list, nav="Connections")
ONE: Final = Page("/ui/connections/{name}", "Connection", "connection.html", show_one)
