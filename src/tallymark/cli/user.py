"""`tallymark user`: who may log in. Works on the data folder; a running broker notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from tallymark.cli.output import USAGE, fail, show_json, show_table, standard_input
from tallymark.server.access import users
from tallymark.server.access.user import (
    Permission,
    User,
    UsersError,
    check_name,
    in_place_of,
    make_user,
    tagged,
)

app = typer.Typer(help="Users of a broker, stored in its data folder.", no_args_is_help=True)
Folder = Annotated[
    Path, typer.Option("--data-dir", envvar="TALLYMARK_DATA_DIR", help="The broker's data folder.")
]
Password = Annotated[
    str | None,
    typer.Option(
        "--password",
        envvar="TALLYMARK_PASSWORD",
        help="Asked for when not given; '-' reads one line from stdin.",
    ),
]
FOLDER = Path("tallymark-data")


def _secret(given: str | None) -> str:
    if given is None:
        standard_input()  # or the prompt has nothing to read from
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))
    if given != "-":
        return given
    try:
        return standard_input().readline().rstrip("\n")
    except UnicodeDecodeError:
        fail("the password on stdin, expected text in UTF-8", USAGE)


def _load(folder: Path, expected: bool = True) -> dict[str, User]:
    """expected: the folder must be there."""
    if expected and not folder.is_dir():
        fail(f"no data folder {folder.absolute()}")
    try:
        return users.load(folder)
    except UsersError as error:
        fail(str(error))


def _check_new(known: dict[str, User], name: str) -> None:
    """Leave with exit code 1 where somebody has the name of a user who is to be added."""
    if name in known:
        fail(f"user '{name}' exists; delete it first, or change its password with passwd")


def _check_known(known: dict[str, User], name: str, folder: Path) -> None:
    """Leave with exit code 1 where nobody has that name."""
    if name not in known:
        fail(f"no user '{name}' in {folder}")


def _edit(folder: Path, change: Callable[[dict[str, User]], None]) -> None:
    """Change the users as they are now: a broker may have changed them while somebody typed."""
    try:
        users.edit(folder, change)
    except UsersError as error:
        fail(str(error))


@app.command()
def add(
    name: str,
    data_dir: Folder = FOLDER,
    password: Password = None,
    administrator: Annotated[
        bool, typer.Option("--administrator", help="May use every HTTP operation.")
    ] = False,
    vhost: Annotated[
        list[str] | None, typer.Option(help="Virtual host it may enter; '*' (default) for all.")
    ] = None,
    configure: Annotated[str, typer.Option(help="Names it may declare and delete.")] = ".*",
    write: Annotated[str, typer.Option(help="Names it may publish to.")] = ".*",
    read: Annotated[str, typer.Option(help="Names it may consume from.")] = ".*",
) -> None:
    """Add a user."""
    try:
        check_name(name)
    except UsersError as error:
        fail(str(error))
    _check_new(_load(data_dir, expected=False), name)
    permission = Permission(configure, write, read)
    try:
        made = make_user(
            name, _secret(password), administrator, dict.fromkeys(vhost or ["*"], permission)
        )
    except UsersError as error:
        fail(str(error))

    def change(known: dict[str, User]) -> None:
        _check_new(known, name)
        known[name] = made

    _edit(data_dir, change)
    print(f"user '{name}' added")


@app.command()
def passwd(name: str, data_dir: Folder = FOLDER, password: Password = None) -> None:
    """Change a user's password."""
    _check_known(_load(data_dir), name, data_dir)
    try:
        made = make_user(name, _secret(password), False, {})
    except UsersError as error:
        fail(str(error))

    def change(known: dict[str, User]) -> None:
        _check_known(known, name, data_dir)
        user = known[name]
        known[name] = tagged(in_place_of(made, user), user.all_tags)

    _edit(data_dir, change)
    print(f"password of user '{name}' changed")


@app.command()
def delete(name: str, data_dir: Folder = FOLDER) -> None:
    """Delete a user. A running broker closes the user's connections."""
    _check_known(_load(data_dir), name, data_dir)

    def change(known: dict[str, User]) -> None:
        _check_known(known, name, data_dir)
        del known[name]

    _edit(data_dir, change)
    print(f"user '{name}' deleted")


def _permissions(user: User) -> list[tuple[str | None, Permission | None]]:
    """Return the user's permissions by virtual host; one pair of None where there are none."""
    return list(user.vhosts.items()) or [(None, None)]


@app.command(name="list")
def list_users(
    data_dir: Folder = FOLDER,
    json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """List the users and what they may do; one that may enter no virtual host is a row without."""
    rows = [
        {
            "name": user.name,
            "administrator": user.administrator,
            "vhost": vhost,
            "configure": None if permission is None else permission.configure,
            "write": None if permission is None else permission.write,
            "read": None if permission is None else permission.read,
        }
        for user in _load(data_dir).values()
        for vhost, permission in _permissions(user)
    ]
    if json:
        show_json(rows)
    else:
        show_table(
            rows,
            ("name", "administrator", "vhost", "configure", "write", "read"),
            "no users: guest/guest from loopback only",
        )
