"""`tallymark get`, `publish` and `purge`: messages of a running broker, over HTTP."""

from __future__ import annotations

import base64
import os
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from tallymark.cli.inspect import LOGIN, URL, Json, Login, Url, ask, ask_list
from tallymark.cli.output import fail, json_object, show_json, show_table, standard_input
from tallymark.cli.topology import Vhost, purge_queue, queue_path

DEFAULT_EXCHANGE: Final = "amq.default"
"""Name in paths of the exchange without a name, which routes to the queue that the key names."""
NOT_ROUTED: Final = 1
COLUMNS: Final = ("exchange", "routing_key", "redelivered", "properties", "bytes", "body")
SPARE: Final = ("exchange", "redelivered", "properties")
SHOWN: Final = 200
"""Characters of a body in a table."""


def get(
    queue: str,
    count: Annotated[int, typer.Option(min=1, help="Most messages.")] = 1,
    take: Annotated[
        bool, typer.Option("--take", help="Take them: they are settled and leave the queue.")
    ] = False,
    vhost: Vhost = "/",
    url: Url = URL,
    user: Login = LOGIN,
    json: Json = False,
) -> None:
    """Look at the messages that would be delivered next. They return to their places, flagged as
    redelivered; with --take they are gone."""
    body: dict[str, object] = {
        "count": count,
        "ackmode": "ack_requeue_false" if take else "ack_requeue_true",
        "encoding": "auto",
    }
    rows = ask_list(url, user, f"{queue_path(vhost, queue)}/get", "POST", body)
    if json:
        return show_json(rows)
    return show_table([_row(row) for row in rows], COLUMNS, "no messages", SPARE)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    text = row["payload"]
    return {
        **row,
        "bytes": row["payload_bytes"],
        "body": text if len(text) <= SHOWN else f"{text[:SHOWN]}...",
    }


def publish(
    key: Annotated[str, typer.Argument(help="Routing key; without --exchange a queue's name.")],
    body: Annotated[str | None, typer.Argument(help="The body; without it, stdin.")] = None,
    exchange: Annotated[str, typer.Option(help="Exchange to publish to.")] = DEFAULT_EXCHANGE,
    properties: Annotated[
        str,
        typer.Option(help='JSON object, such as {"message_id": "7", "headers": {"a": 1}}.'),
    ] = "{}",
    transient: Annotated[
        bool, typer.Option("--transient", help="Not persistent: gone after a restart.")
    ] = False,
    vhost: Vhost = "/",
    url: Url = URL,
    user: Login = LOGIN,
) -> None:
    """Publish a message and wait for its confirm. Exit code 1 where it reached no queue."""
    given = json_object("--properties", properties)
    raw = standard_input().buffer.read() if body is None else os.fsencode(body)  # as it was typed
    message: dict[str, object] = {
        "properties": {"delivery_mode": 1 if transient else 2, **given},
        "routing_key": key,
        "payload": base64.b64encode(raw).decode(),
        "payload_encoding": "base64",
    }
    path = f"/api/exchanges/{quote(vhost, safe='')}/{quote(exchange, safe='')}/publish"
    if not ask(url, user, "POST", path, message)["routed"]:
        fail(f"no queue takes what is published to '{exchange}' with key '{key}'", NOT_ROUTED)
    print(f"published, {len(raw):,} bytes")


def add_to(app: typer.Typer) -> None:
    app.command()(get)
    app.command()(publish)
    app.command(name="purge")(purge_queue)
