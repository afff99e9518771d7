"""`tallymark serve` and `tallymark check-config`: their flags are the declarations of
server/config/settings.py."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tallymark.cli.output import fail
from tallymark.cli.serving import USAGE, configured, serve_with
from tallymark.server.config.settings import DECLARED


def with_settings(command: Callable[[dict[str, Any]], None]) -> Callable[..., None]:
    """A command with one flag per declared setting, --config and --no-nsq; it is handed what was
    given, by name."""

    def run(**given: Any) -> None:
        command(given)

    path = Annotated[Path | None, typer.Option("--config", help="TOML file with settings.")]
    parameters = [_parameter("config", path)]
    no_nsq = typer.Option("--no-nsq", help="As --nsq false.", show_default=False)
    parameters.append(_parameter("no_nsq", Annotated[bool, no_nsq], False))
    for declared in DECLARED.values():
        default = declared.kind.show(declared.default) or "none"
        option = typer.Option(
            declared.flag,
            help=f"{declared.help} {declared.env}, default {default}.",
            metavar=declared.name.upper(),
            show_default=False,
        )
        kind: Any = list[str] | None if declared.kind.many else str | None
        parameters.append(_parameter(declared.name, Annotated[kind, option]))
    run.__dict__["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    return run


def _parameter(name: str, annotation: Any, default: object = None) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def serve(given: dict[str, Any]) -> None:
    """Run a broker until SIGTERM or SIGINT. Prints one JSON line when all listeners are open."""
    raise typer.Exit(serve_with(given))


def check_config(given: dict[str, Any]) -> None:
    """Show the settings as a broker would see them; exit code 2 when one is refused."""
    from tallymark.server.access.user import UsersError
    from tallymark.server.run import StartRefused, check_settings

    config, _ = configured(given)
    try:
        check_settings(config)
    except (StartRefused, UsersError) as error:
        fail(str(error), USAGE)
    for declared in DECLARED.values():
        print(f"{declared.name} = {declared.kind.show(getattr(config, declared.name))}")


def add_to(app: typer.Typer) -> None:
    app.command(name="serve")(with_settings(serve))
    app.command(name="check-config")(with_settings(check_config))
