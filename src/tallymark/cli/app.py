"""The commands that typer parses; main.py lists all commands."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

from tallymark.cli.commands import COMMANDS, GROUPS, version_line
from tallymark.cli.output import USAGE, fail
from tallymark.cli.watching import LEAST_S, MOST_S, again
from tallymark.environment import CA_FILE, CERT_FILE, KEY_FILE


def _show_version(wanted: bool) -> None:
    if wanted:
        print(version_line())
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version, and whether the hot layers are compiled or pure Python.",
        ),
    ] = False,
) -> None:
    """A message broker that accounts for every message."""


def nsqd(context: typer.Context) -> None:
    """Run a broker in nsqd's place: takes nsqd's own flags (-help shows them)."""
    from tallymark.cli.nsqd import main

    raise typer.Exit(main(context.args))


CaFile = Annotated[
    str | None,
    typer.Option(
        envvar=CA_FILE, metavar="FILE", show_default=False,
        help="With https: certificates of those who may sign the broker's.",
    ),
]  # fmt: skip
CertFile = Annotated[
    str | None,
    typer.Option(
        envvar=CERT_FILE, metavar="FILE", show_default=False,
        help="With https: the certificate to show.",
    ),
]  # fmt: skip
KeyFile = Annotated[
    str | None,
    typer.Option(
        envvar=KEY_FILE, metavar="FILE", show_default=False,
        help="Its private key, where that is in a file of its own.",
    ),
]  # fmt: skip
Watch = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", min=LEAST_S, max=MOST_S, show_default=False,
        help="Show it again every so many seconds; Ctrl-C ends it.",
    ),
]  # fmt: skip
TLS_FILES: Final = {
    "ca_file": (CA_FILE, CaFile),
    "cert_file": (CERT_FILE, CertFile),
    "key_file": (KEY_FILE, KeyFile),
}
"""Environment variables and options of every command that asks a broker over HTTP."""

HOME_EXPANDED: Final = "home_expanded"
"""Mark of a command that was put together before."""


def _apps(app: typer.Typer) -> Iterator[typer.Typer]:
    """Yield the app and every app of commands within it."""
    yield app
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from _apps(group.typer_instance)


def _with_home(app: typer.Typer) -> None:
    """Have each command with --data-dir take a path that begins with ~ as `serve` takes it: a shell
    expands it neither in --data-dir=~/data nor in a variable that something else has set."""
    for command in app.registered_commands:
        found = command.callback
        if found is None or HOME_EXPANDED in found.__dict__:
            continue
        if "data_dir" in inspect.signature(found).parameters:
            command.callback = _expanding(found)


def _expanding(command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def run(**given: Any) -> Any:
        folder = given["data_dir"]
        if isinstance(folder, Path):  # serve and its like have a text, which settings expand
            try:
                given["data_dir"] = folder.expanduser()
            except RuntimeError:
                fail(f"--data-dir is '{folder}': ~ is of a user who has no home", USAGE)
        return command(**given)

    run.__dict__[HOME_EXPANDED] = True
    return run


def _with_tls_files(app: typer.Typer) -> None:
    """Have each command with --url take TLS_FILES. Options take the place of their environment
    variables, so that Spark's workers are told the same way."""
    for command in app.registered_commands:
        found = command.callback
        if found is not None and "url" in inspect.signature(found).parameters:
            command.callback = _taking_tls_files(found)


def _taking_tls_files(command: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(command)
    if "ca_file" in signature.parameters:
        return command  # its app was put together before

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        for name, (variable, _) in TLS_FILES.items():
            value = given.pop(name)
            if value is not None:
                os.environ[variable] = value
        return command(**given)

    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, (_, option) in TLS_FILES.items()
    ]
    hints = get_type_hints(command, include_extras=True)
    run.__annotations__ = {**hints, **{one.name: one.annotation for one in added}}
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]  # read by inspect
        parameters=[
            *(one.replace(annotation=hints[one.name]) for one in signature.parameters.values()),
            *added,
        ]
    )
    return run


def _with_watch(app: typer.Typer) -> None:
    """Have each command that shows a list of a broker take --watch."""
    for command in app.registered_commands:
        found = command.callback
        if found is not None and {"url", "json"} <= inspect.signature(found).parameters.keys():
            command.callback = _watching(found)


def _watching(command: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(command)
    if "watch" in signature.parameters:
        return command  # its app was put together before

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        seconds = given.pop("watch")
        if seconds is None:
            return command(**given)
        return again(seconds, lambda: command(**given))

    added = inspect.Parameter(
        "watch", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Watch
    )
    run.__annotations__ = {**get_type_hints(command, include_extras=True), "watch": Watch}
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]  # read by inspect
        parameters=[*signature.parameters.values(), added]
    )
    return run


def build(name: str | None = None) -> typer.Typer:
    """The command of this name alone, or all of them where there is none of it."""
    app = typer.Typer(
        name="tallymark",
        help="A message broker that accounts for every message.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(root)
    chosen = {name: COMMANDS[name]} if name in COMMANDS else COMMANDS
    done = set()
    for command, (module, _) in chosen.items():
        if command == "nsqd":
            raw: dict[str, Any] = {"ignore_unknown_options": True, "allow_extra_args": True}
            settings = {**raw, "help_option_names": []}
            app.command(name="nsqd", context_settings=settings, add_help_option=False)(nsqd)
            continue
        found = import_module(f"tallymark.cli.{module}")
        if command in GROUPS:
            app.add_typer(getattr(found, GROUPS[command]), name=command)
        elif module not in done:
            done.add(module)
            found.add_to(app)
    for one in _apps(app):
        one.rich_markup_mode = None  # a name in brackets is text: [/KEY] would be markup
        _with_home(one)
        _with_tls_files(one)
        _with_watch(one)
    return app
