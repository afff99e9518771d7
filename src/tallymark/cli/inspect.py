"""Commands that ask a running broker over HTTP: status, queues, exchanges, connections, ..."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import typer

from tallymark.cli.output import USAGE, fail, show_json, show_table
from tallymark.spark.client import (
    BrokerRefused,
    BrokerUnreachable,
    Client,
    Endpoint,
    WrongFile,
    api_path,
)

Url = Annotated[
    str, typer.Option("--url", envvar="TALLYMARK_URL", help="HTTP address of the broker.")
]
Login = Annotated[
    str, typer.Option("--user", envvar="TALLYMARK_USER", help="NAME:PASSWORD of a user.")
]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
URL = "http://127.0.0.1:15672"
LOGIN = "guest:guest"
POSITIONS = ("end", "written", "synced", "durable")
WAITING = (
    "ready", "acquired", "leased", "deferred", "staged", "dead_letter_pending", "quarantined",
)  # fmt: skip
"""Counts of messages that are in a queue; leased ones are acquired."""
GONE = ("settled", "dead_lettered", "dropped")
"""Counts of those that were. With what waits, but not leased, they make what entered."""
QUEUE_COLUMNS = (
    "vhost", "name", "durable", "entered", *WAITING, *GONE, "ready_bytes", "consumers",
)  # fmt: skip
CONSUMER_COLUMNS = (
    "vhost", "queue", "tag", "connection", "delivered", "settled", "rate", "unsettled",
    "oldest_unsettled_ms", "credit", "idle_ms", "state",
)  # fmt: skip
SPARE_OF_CONSUMERS = ("vhost", "connection", "idle_ms", "credit", "delivered")
"""Columns that a narrow terminal leaves out, the first first."""

subscriptions = typer.Typer(help="Durable subscriptions of a queue.", no_args_is_help=True)


def ask(url: str, login: str, method: str, path: str, body: dict[str, object] | None = None) -> Any:
    """The broker's answer, or exit code 1 with its reason on stderr; 2 for a malformed URL, or an
    empty name in the path."""
    return _told(url, login, path, lambda client: client.call(method, path, body))


def ask_list(
    url: str, login: str, path: str, method: str = "GET", body: dict[str, object] | None = None
) -> list[dict[str, Any]]:
    """Ask for a list and return it, as `ask` does for an object."""
    found = _told(url, login, path, lambda client: client.answer(method, path, body))
    if not isinstance(found, list):
        fail(f"{path} answered {found!r}, expected a list")
    return found


def _told(url: str, login: str, path: str, call: Callable[[Client], Any]) -> Any:
    name, _, password = login.partition(":")
    if "" in path.partition("?")[0].split("/")[1:]:
        fail("a name is empty, expected 1 to 255 bytes", USAGE)
    try:
        endpoint = Endpoint.from_url(url, retry_ms=0)
    except ValueError as error:
        fail(f"--url: {error}", USAGE)
    if "@" not in url:
        endpoint = replace(endpoint, user=name, password=password)
    try:
        return call(Client(endpoint))
    except BrokerUnreachable as error:
        cause = error.__cause__ or error
        reason = getattr(cause, "strerror", None) or str(cause)
        shown = reason if reason.isprintable() else f"{reason!r}, expected an answer over HTTP"
        fail(f"{endpoint}: no broker answers: {shown}")
    except BrokerRefused as error:
        fail(f"{endpoint}: {error}")
    except WrongFile as error:
        fail(str(error), 2)


def status(url: Url = URL, user: Login = LOGIN, json: Json = False) -> None:
    """The broker at a glance: version, memory, journal, alarms, counts."""
    found = ask(url, user, "GET", "/api/tallymark/status")
    if json:
        return show_json(found)
    rows = [
        {"what": f"{group} {key}".replace("_", " ").strip(), "value": _shown(key, value)}
        for group, values in found.items()
        for key, value in (values if isinstance(values, dict) else {"": values}).items()
    ]
    return show_table(rows, ("what", "value"), "nothing")


def _shown(key: str, value: object) -> object:
    """Positions as the journal's messages show them; a pid is a name, not a count."""
    if isinstance(value, int) and key in POSITIONS:
        return f"{value:#x}"
    return str(value) if key == "pid" else value


def queues(url: Url = URL, user: Login = LOGIN, json: Json = False) -> None:
    """Queues with what entered, what waits, what is held and what is done.

    entered = ready + acquired + deferred + staged + dead letter pending + quarantined + settled
    + dead lettered + dropped. Paused: an operator has stopped its deliveries.
    """
    rows = ask(url, user, "GET", "/api/tallymark/queues")["queues"]
    if json:
        return show_json(rows)
    paused = ("paused",) if any(row.get("paused") for row in rows) else ()
    return show_table(rows, (*QUEUE_COLUMNS, *paused), "no queues", spare_columns(rows))


def spare_columns(rows: list[dict[str, Any]]) -> list[str]:
    """Return the columns of queues that a narrow terminal leaves out, the first first: those of the
    account go late, and of them those first in which nothing is counted."""
    nothing = [name for name in (*GONE, *WAITING[::-1]) if not any(row.get(name) for row in rows)]
    last = [name for name in ("leased", "dropped") if name not in nothing]
    return ["ready_bytes", "durable", "consumers", "vhost", *nothing, *last]


def exchanges(url: Url = URL, user: Login = LOGIN, json: Json = False) -> None:
    """Exchanges of every virtual host."""
    rows = ask(url, user, "GET", "/api/tallymark/exchanges")["exchanges"]
    if json:
        return show_json(rows)
    return show_table(
        rows,
        ("vhost", "name", "type", "durable", "auto_delete", "internal"),
        "no exchanges",
        ("internal", "auto_delete", "durable", "vhost"),
    )


def connections(url: Url = URL, user: Login = LOGIN, json: Json = False) -> None:
    """Client connections."""
    rows = ask(url, user, "GET", "/api/tallymark/connections")["connections"]
    if json:
        return show_json(rows)
    columns = (
        "id", "peer", "protocol", "user", "vhost", "channels", "consumers", "received_bytes",
        "sent_bytes", "state",
    )  # fmt: skip
    spare = ("sent_bytes", "received_bytes", "consumers", "vhost", "channels", "protocol")
    return show_table(rows, columns, "no connections", spare)


def consumers(url: Url = URL, user: Login = LOGIN, json: Json = False) -> None:
    """Consumers with what they were sent, what they settled and how fast, what they hold."""
    rows = ask(url, user, "GET", "/api/tallymark/consumers")["consumers"]
    if json:
        return show_json(rows)
    return show_table(rows, CONSUMER_COLUMNS, "no consumers", SPARE_OF_CONSUMERS)


def shovels(url: Url = URL, user: Login = LOGIN, json: Json = False) -> None:
    """Shovels with their ends, what they have moved, and why they do not."""
    rows = ask(url, user, "GET", "/api/tallymark/shovels")["shovels"]
    if json:
        return show_json(rows)
    columns = ("name", "from", "queue", "to", "state", "moved", "in_hand", "failures", "problem")
    return show_table(rows, columns, "no shovels", ("in_hand", "failures", "to", "from"))


def log_level(
    category: Annotated[str, typer.Argument(help="Log category, or 'all'.")],
    level: Annotated[str, typer.Argument(help="debug, info, warning, error or off.")],
    url: Url = URL,
    user: Login = LOGIN,
) -> None:
    """Change a running broker's log level."""
    found = ask(url, user, "PUT", "/api/tallymark/log-levels", {category: level})
    show_table([found], list(found), "")


@subscriptions.command(name="list")
def list_subscriptions(url: Url = URL, user: Login = LOGIN, json: Json = False) -> None:
    """Subscriptions with what they hold on lease."""
    rows = ask(url, user, "GET", "/api/tallymark/subscriptions")["subscriptions"]
    if json:
        return show_json(rows)
    columns = ("vhost", "queue", "name", "epoch", "floor", "next", "leased", "leased_bytes")
    spare = ("leased_bytes", "vhost", "epoch")
    return show_table(rows, columns, "no subscriptions", spare)


@subscriptions.command(name="drop")
def drop_subscription(
    queue: str,
    name: str,
    vhost: Annotated[str, typer.Option(help="Virtual host of the queue.")] = "/",
    url: Url = URL,
    user: Login = LOGIN,
) -> None:
    """Delete a subscription: its leased messages return to their old places in the queue."""
    ask(url, user, "DELETE", api_path("subscriptions", vhost, queue, name))
    print(f"subscription '{name}' of queue '{queue}' dropped")


def add_to(app: typer.Typer) -> None:
    for command in (status, queues, exchanges, connections, consumers, shovels):
        app.command()(command)
    app.command(name="log-level")(log_level)
