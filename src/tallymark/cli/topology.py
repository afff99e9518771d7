"""`tallymark queue` and `tallymark exchange`: declare, bind, purge and delete, over HTTP."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from tallymark.cli.inspect import LOGIN, URL, Login, Url, ask, ask_list, exchanges, queues
from tallymark.cli.output import fail, json_object

queue = typer.Typer(help="Queues of a running broker.", no_args_is_help=True)
exchange = typer.Typer(help="Exchanges of a running broker.", no_args_is_help=True)

Vhost = Annotated[str, typer.Option(help="Virtual host.")]
Key = Annotated[str, typer.Option(help="Routing key, or the pattern of a topic exchange.")]
Arguments = Annotated[str, typer.Option(help='JSON object, such as {"x-max-length": 1000}.')]
Transient = Annotated[
    bool, typer.Option("--transient", help="Not durable: deleted by a restart of the broker.")
]
IfUnused = Annotated[bool, typer.Option("--if-unused", help="Refuse while it is in use.")]
NO_ARGUMENTS = "{}"


def queue_path(vhost: str, name: str) -> str:
    """Return the path of a queue in RabbitMQ's interface."""
    return _path("queues", vhost, name)


@queue.command(name="create")
def create_queue(
    name: str,
    type: Annotated[str | None, typer.Option(help="classic, quorum or stream.")] = None,
    transient: Transient = False,
    auto_delete: Annotated[
        bool, typer.Option("--auto-delete", help="Deleted when its last consumer is gone.")
    ] = False,
    arguments: Arguments = NO_ARGUMENTS,
    vhost: Vhost = "/",
    url: Url = URL,
    user: Login = LOGIN,
) -> None:
    """Declare a queue. Does nothing where it is there as described, fails where it is otherwise."""
    table = json_object("--arguments", arguments)
    if type is not None:
        table["x-queue-type"] = type
    body = {"durable": not transient, "auto_delete": auto_delete, "arguments": table}
    ask(url, user, "PUT", _path("queues", vhost, name), body)
    print(f"queue '{name}' declared in vhost '{vhost}'")


@queue.command(name="delete")
def delete_queue(
    name: str,
    if_unused: IfUnused = False,
    if_empty: Annotated[
        bool, typer.Option("--if-empty", help="Refuse while it has messages that nobody holds.")
    ] = False,
    vhost: Vhost = "/",
    url: Url = URL,
    user: Login = LOGIN,
) -> None:
    """Delete a queue with its messages and bindings."""
    conditions = {"if-unused": if_unused, "if-empty": if_empty}
    ask(url, user, "DELETE", _path("queues", vhost, name) + _query(conditions))
    print(f"queue '{name}' deleted from vhost '{vhost}'")


@queue.command(name="purge")
def purge_queue(name: str, vhost: Vhost = "/", url: Url = URL, user: Login = LOGIN) -> None:
    """Drop all messages of a queue that nobody holds: those that are ready or deferred, that cannot
    be read, and dead letters that nothing takes."""
    ask(url, user, "DELETE", _path("queues", vhost, name, "contents"))
    print(f"queue '{name}' of vhost '{vhost}' purged")


@queue.command(name="bind")
def bind_queue(
    name: str,
    source: Annotated[str, typer.Argument(metavar="EXCHANGE")],
    key: Key = "",
    arguments: Arguments = NO_ARGUMENTS,
    vhost: Vhost = "/",
    url: Url = URL,
    user: Login = LOGIN,
) -> None:
    """Bind a queue to an exchange. Does nothing where it is bound so."""
    _bind("queue", "q", name, source, key, arguments, vhost, url, user)


@queue.command(name="unbind")
def unbind_queue(
    name: str,
    source: Annotated[str, typer.Argument(metavar="EXCHANGE")],
    key: Key = "",
    arguments: Arguments = NO_ARGUMENTS,
    vhost: Vhost = "/",
    url: Url = URL,
    user: Login = LOGIN,
) -> None:
    """Undo `bind`: the key and the arguments are those it was bound with."""
    _unbind("queue", "q", name, source, key, arguments, vhost, url, user)


@exchange.command(name="create")
def create_exchange(
    name: str,
    type: Annotated[
        str, typer.Option(help="direct, fanout, topic, headers, x-consistent-hash, ...")
    ] = "direct",
    transient: Transient = False,
    auto_delete: Annotated[
        bool, typer.Option("--auto-delete", help="Deleted when its last binding is removed.")
    ] = False,
    internal: Annotated[
        bool, typer.Option("--internal", help="Only other exchanges publish to it.")
    ] = False,
    arguments: Arguments = NO_ARGUMENTS,
    vhost: Vhost = "/",
    url: Url = URL,
    user: Login = LOGIN,
) -> None:
    """Declare an exchange. Does nothing where it is there as described."""
    body = {
        "type": type,
        "durable": not transient,
        "auto_delete": auto_delete,
        "internal": internal,
        "arguments": json_object("--arguments", arguments),
    }
    ask(url, user, "PUT", _path("exchanges", vhost, name), body)
    print(f"exchange '{name}' declared in vhost '{vhost}'")


@exchange.command(name="delete")
def delete_exchange(
    name: str,
    if_unused: IfUnused = False,
    vhost: Vhost = "/",
    url: Url = URL,
    user: Login = LOGIN,
) -> None:
    """Delete an exchange with its bindings."""
    ask(url, user, "DELETE", _path("exchanges", vhost, name) + _query({"if-unused": if_unused}))
    print(f"exchange '{name}' deleted from vhost '{vhost}'")


@exchange.command(name="bind")
def bind_exchange(
    name: str,
    source: Annotated[str, typer.Argument(help="The exchange that passes on.")],
    key: Key = "",
    arguments: Arguments = NO_ARGUMENTS,
    vhost: Vhost = "/",
    url: Url = URL,
    user: Login = LOGIN,
) -> None:
    """Have another exchange pass on to this one. Does nothing where it does so."""
    _bind("exchange", "e", name, source, key, arguments, vhost, url, user)


@exchange.command(name="unbind")
def unbind_exchange(
    name: str,
    source: Annotated[str, typer.Argument(help="The exchange that passes on.")],
    key: Key = "",
    arguments: Arguments = NO_ARGUMENTS,
    vhost: Vhost = "/",
    url: Url = URL,
    user: Login = LOGIN,
) -> None:
    """Undo `bind`: the key and the arguments are those it was bound with."""
    _unbind("exchange", "e", name, source, key, arguments, vhost, url, user)


queue.command(name="list")(queues)
exchange.command(name="list")(exchanges)


def _bind(
    kind: str, letter: str, name: str, source: str, key: str, arguments: str, vhost: str,
    url: str, user: str,
) -> None:  # fmt: skip
    body: dict[str, object] = {
        "routing_key": key,
        "arguments": json_object("--arguments", arguments),
    }
    ask(url, user, "POST", _path("bindings", vhost, "e", source, letter, name), body)
    print(f"{kind} '{name}' bound to exchange '{source}' with key '{key}'")


def _unbind(
    kind: str, letter: str, name: str, source: str, key: str, arguments: str, vhost: str,
    url: str, user: str,
) -> None:  # fmt: skip
    table = json_object("--arguments", arguments)
    wanted = (key, _exactly(table))
    between = _path("bindings", vhost, "e", source, letter, name)
    rows: list[dict[str, Any]] = ask_list(url, user, between)
    found = [row for row in rows if (row["routing_key"], _exactly(row["arguments"])) == wanted]
    if not found:
        told = f" and arguments {arguments}" if table else ""
        fail(f"{kind} '{name}' is not bound to exchange '{source}' with key '{key}'{told}")
    ask(url, user, "DELETE", f"{between}/{quote(found[0]['properties_key'], safe='')}")
    print(f"{kind} '{name}' unbound from exchange '{source}' with key '{key}'")


def _exactly(arguments: dict[str, Any]) -> str:
    """Return the table as text by which 1, 1.0 and true differ, which Python takes for equal."""
    return json.dumps(arguments, sort_keys=True)


def _path(*names: str) -> str:
    return "/".join(["/api", *(quote(name, safe="") for name in names)])


def _query(conditions: dict[str, bool]) -> str:
    asked = [f"{name}=true" for name, wanted in conditions.items() if wanted]
    return "?" + "&".join(asked) if asked else ""
