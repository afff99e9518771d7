"""Output of a reconciliation for people: a row for each queue, and the faults below."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from tallymark.printable import literal, printable
from tallymark.spark.account import STILL_THERE, Account, Fault, Reconciliation
from tallymark.spark.client import counted
from tallymark.spark.hours import show_hours
from tallymark.stored.records import UNSURE

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NAME_WIDTH: Final = 24
"""A queue's name gets so many columns before it is broken."""


def show(
    outcome: Reconciliation,
    as_json: bool = False,
    console: Console | None = None,
    present: str = "start the broker and use --url",
) -> None:
    """Print the outcome: one JSON object, or a table with the faults below it.

    present: what to do for the present state of affairs, where the journal goes on.
    """
    if as_json:
        print(json.dumps({**asdict(outcome), "balanced": outcome.balanced}))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.measure import Measurement

    console = console or Console(emoji=False)  # a queue may be called topic:two
    console.print(escape(_title(outcome)), highlight=False, soft_wrap=True)
    table = _account_table(outcome.accounts)
    # A line longer than the terminal is less bad than a difference nobody sees.
    unbound = console.options.update_width(1000)
    width = max(console.width, Measurement.get(console, unbound, table).maximum)
    console.print(table, width=width, crop=False)
    if outcome.hours:
        show_hours(console, outcome.hours)
    if outcome.beyond is not None:
        console.print(
            f"the journal goes on {counted(outcome.beyond.blocks, 'block')} past this checkpoint, "
            f"until {_shown(outcome.beyond.until)}; {present} for the present",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    _show_notes(console, outcome)


def _show_notes(console: Console, outcome: Reconciliation) -> None:
    """Print what stands below the table, faults last."""
    for account in outcome.accounts:
        if account.dropped:
            reasons = [f"{count:,} {why}" for why, count in sorted(account.dropped.items())]
            console.print(f"dropped from {literal(_label(account))}: {', '.join(reasons)}")
    for moved in outcome.letters:
        console.print(
            f"dead letters from {literal(moved.source)} to {literal(moved.target)}: "
            f"{moved.count:,}",
            soft_wrap=True,
        )
    for back in outcome.returned:
        text = f"deliveries returned to {literal(back.queue)}: {back.count:,} by {back.reason}"
        if back.reason == UNSURE:
            text = (
                f"{literal(back.queue)}: {back.count:,} may have been delivered before a crash, "
                "though no row says so"
            )
        console.print(
            text,
            soft_wrap=True,
        )
    for account in outcome.accounts:
        if account.before_ledger:
            console.print(
                f"{literal(account.queue)}: sequences 1 to {account.before_ledger:,} are older "
                "than the ledger that is kept and were left out"
            )
        if not account.from_ledger:
            console.print(f"{literal(account.queue)}: not durable, the account is the broker's own")
    for fault in outcome.faults:
        console.print(
            f"[bold red]{literal(fault.queue)}: sequences {fault.first} to {fault.last}"
            f"{_ids(fault)}: {fault.fault}[/]",
            soft_wrap=True,
        )


def _ids(fault: Fault) -> str:
    if fault.message_id is None:
        return ""
    return f" (message id {fault.message_id}{'' if fault.first == fault.last else ' and on'})"


def _account_table(accounts: list[Account]) -> Table:
    """One row a queue; of the equation's terms only those that are not 0 everywhere."""
    from rich import box
    from rich.table import Table

    shown = [
        name
        for name in (*STILL_THERE, "settled", "dead_lettered")
        if name in ("ready", "settled") or any(map(_term(name), accounts))
    ]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    longest = max((len(printable(_label(account))) for account in accounts), default=0)
    table.add_column("queue", overflow="fold", min_width=min(longest, NAME_WIDTH))
    for heading in ("entered", *shown, "dropped", "difference"):
        table.add_column(heading.replace("_", " "), justify="right")
    for account in accounts:
        good = "green" if account.difference == 0 else "bold red"
        table.add_row(
            literal(_label(account)),
            f"{account.entered:,}",
            *(f"{_term(name)(account):,}" for name in shown),
            f"{sum(account.dropped.values()):,}",
            f"[{good}]{account.difference:,}[/]",
        )
    return table


def _label(account: Account) -> str:
    """The queue, with its virtual host unless that is the default one."""
    return f"{account.vhost}: {account.queue}".removeprefix("/: ").removeprefix(": ")


def _title(outcome: Reconciliation) -> str:
    title, position = "The account of every queue", f"journal position {outcome.position:#x}"
    if not outcome.as_of:
        return f"{title} at {position}"
    if outcome.source == "checkpoint":
        return f"{title} as of the checkpoint of {_shown(outcome.as_of)}, {position}"
    return f"{title} as of {_shown(outcome.as_of)}, {position}, asked of {outcome.source}"


def _shown(iso: str) -> str:
    return iso.replace("T", " ").replace("Z", " UTC")


def _term(name: str) -> Callable[[Account], int]:
    """A term of the equation by its name."""

    def value(account: Account) -> int:
        if name in STILL_THERE:
            return account.still_there[name]
        return account.settled if name == "settled" else account.dead_lettered

    return value
