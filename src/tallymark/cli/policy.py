"""`tallymark policy`: policies and operator policies of a running broker, over HTTP."""

from __future__ import annotations

import json as jsons
import sys
from typing import Annotated, Any
from urllib.parse import quote

import typer

from tallymark.cli.inspect import LOGIN, URL, Json, Login, Url, ask, ask_list
from tallymark.cli.output import json_object, show_json, show_table
from tallymark.engine.policies import APPLY_TO, idle_keys

app = typer.Typer(
    help="Settings for queues and exchanges by pattern of their names.", no_args_is_help=True
)
Vhost = Annotated[str, typer.Option(help="Virtual host.")]
Operator = Annotated[
    bool, typer.Option("--operator", help="An operator policy: limits that nothing exceeds.")
]


@app.command(name="set")
def set_policy(
    name: str,
    pattern: Annotated[str, typer.Argument(help="Regular expression, searched for in names.")],
    definition: Annotated[str, typer.Argument(help='JSON object, such as {"max-length": 1000}.')],
    priority: Annotated[int, typer.Option(help="Of those that match, the highest holds.")] = 0,
    apply_to: Annotated[str, typer.Option(help=", ".join(APPLY_TO) + ".")] = "all",
    vhost: Vhost = "/",
    operator: Operator = False,
    url: Url = URL,
    user: Login = LOGIN,
) -> None:
    """Set a policy, or replace the one of this name. Effective at once."""
    keys = json_object("DEFINITION", definition)
    body = {"pattern": pattern, "definition": keys, "priority": priority, "apply-to": apply_to}
    ask(url, user, "PUT", _path(operator, vhost, name), body)
    print(f"{_kind(operator)} '{name}' set in vhost '{vhost}'")
    idle = idle_keys(keys, apply_to)
    if idle:
        print(f"tallymark: without effect: {', '.join(idle)}", file=sys.stderr)


@app.command(name="list")
def list_policies(
    vhost: Annotated[str | None, typer.Option(help="Virtual host; all when not given.")] = None,
    url: Url = URL,
    user: Login = LOGIN,
    json: Json = False,
) -> None:
    """Policies and operator policies."""
    within = () if vhost is None else (vhost,)
    rows: list[dict[str, Any]] = []
    for operator in (False, True):
        for row in ask_list(url, user, _path(operator, *within)):
            rows.append({**row, "operator": operator})
    if json:
        return show_json(rows)
    for row in rows:
        row["definition"] = jsons.dumps(row["definition"])
    columns = ("vhost", "name", "operator", "pattern", "apply-to", "priority", "definition")
    return show_table(rows, columns, "no policies", ("vhost", "apply-to"))


@app.command(name="delete")
def delete_policy(
    name: str,
    vhost: Vhost = "/",
    operator: Operator = False,
    url: Url = URL,
    user: Login = LOGIN,
) -> None:
    """Delete a policy. Effective at once."""
    ask(url, user, "DELETE", _path(operator, vhost, name))
    print(f"{_kind(operator)} '{name}' deleted from vhost '{vhost}'")


def _kind(operator: bool) -> str:
    return "operator policy" if operator else "policy"


def _path(operator: bool, *names: str) -> str:
    what = "operator-policies" if operator else "policies"
    return "/".join(["/api", what, *(quote(name, safe="") for name in names)])
