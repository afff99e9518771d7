"""`tallymark takeover` and `tallymark handover`: who leads a journal on PostgreSQL. They take the
configuration of the brokers and ask the database, not a broker."""

from __future__ import annotations

import time
from typing import Any, Final

import typer

from tallymark.cli.output import fail
from tallymark.cli.serve import with_settings
from tallymark.cli.serving import configured
from tallymark.server.config.settings import Config

PRESENT_MS: Final = 10_000
"""Milliseconds for which a standby that was seen counts as there."""
ASK_S: Final = 0.1
"""Seconds between two looks at the lease."""
WAIT_S: Final = 60
"""Seconds after which a change of leader that did not happen is given up."""


def takeover(given: dict[str, Any]) -> None:
    """Have a standby take over now, though the leader's lease has not run out. The leader can write
    nothing from then on, and exits with code 5."""
    from tallymark.journal.postgresql.lease import TAKEOVER

    _change(given, TAKEOVER)


def handover(given: dict[str, Any]) -> None:
    """Have the leader stop in good order and a standby go on at once."""
    from tallymark.journal.postgresql.lease import HANDOVER

    _change(given, HANDOVER)


def _change(given: dict[str, Any], request: str) -> None:
    config, _ = configured(given)
    if config.journal == "local":
        fail("journal is local, expected postgresql://...: a folder has no other broker")
    import psycopg

    from tallymark.journal.postgresql.errors import SchemaRefused

    try:
        print(_changed(config, request))
    except SchemaRefused as error:
        fail(str(error))
    except psycopg.Error as error:
        fail(f"the database does not answer: {' '.join(str(error).split())}")


def _changed(config: Config, request: str) -> str:
    """Ask for another leader and wait for it; return a text about it."""
    from tallymark.journal.postgresql.leadership import Leadership
    from tallymark.server.standby import process_name

    leadership = Leadership(config.journal, config.journal_id, process_name(), config.lease)
    try:
        if not any(one.seen_ms < PRESENT_MS for one in leadership.followers()):
            fail(f"no standby follows journal {config.journal_id}: nobody would take over")
        before = leadership.request(request)
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            lease, _ = leadership.look()
            if lease.epoch > before.epoch:
                return f"{lease.holder} leads, epoch {lease.epoch}; before: {before.holder or '-'}"
            leadership.wait(ASK_S)
    finally:
        leadership.close()
    return fail(f"{before.holder} still leads after {WAIT_S} s; the request stays")


def add_to(app: typer.Typer) -> None:
    app.command(name="takeover")(with_settings(takeover))
    app.command(name="handover")(with_settings(handover))
