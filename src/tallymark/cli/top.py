"""`tallymark top`: the busiest queues of a running broker, live in the terminal."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from tallymark.cli.inspect import LOGIN, URL, Login, Url, ask
from tallymark.cli.output import USAGE, fail, show_table
from tallymark.cli.watching import LEAST_S, MOST_S, again

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS: Final = (
    "queue", "ready", "acquired", "in_s", "out_s", "dead_s", "consumers", "deferred", "vhost",
)  # fmt: skip
SPARE: Final = ("vhost", "deferred", "dead_s", "consumers", "acquired")
"""Columns that a narrow terminal leaves out, the first first."""
HEAD: Final = 7
"""Lines of a screen that are no queues."""
KEYS: Final = {"ready": "ready", "acquired": "acquired", "in": "in_s", "out": "out_s"}
"""Columns by which queues may be sorted, by the option's words."""


class Seen(NamedTuple):
    """A broker at one moment."""

    at: float
    """Monotonic time, in seconds."""
    status: dict[str, Any]
    overview: dict[str, Any]
    queues: list[dict[str, Any]]


def rows_of(before: Seen | None, now: Seen) -> list[dict[str, Any]]:
    """Return the queues with messages a second since they were seen before, if they were."""
    old: dict[int, dict[str, Any]] = {}
    seconds = 0.0
    if before is not None:
        old = {row["id"]: row for row in before.queues}
        seconds = now.at - before.at
    rows = []
    for row in now.queues:
        last = old.get(row["id"], row)

        def rate(name: str, row: dict[str, Any] = row, last: dict[str, Any] = last) -> int:
            """After a crash a queue may have counts that are less."""
            moved = max(row[name] - last[name], 0)
            return round(moved / seconds) if seconds > 0 else 0

        rows.append(
            {
                **row,
                "queue": row["name"],
                "in_s": rate("entered"),
                "out_s": rate("settled"),
                "dead_s": rate("dead_lettered"),
            }
        )
    return rows


def headlines(now: Seen, rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines above the table."""
    overview = now.overview
    return [
        f"tallymark {overview['version']}, {len(rows):,} queues, "
        f"{overview['connections']:,} connections, alarms: {now.status['broker']['alarms']}",
        f"ready {overview['ready']:,}, in flight {overview['acquired']:,}, "
        f"in {sum(row['in_s'] for row in rows):,}/s, out {sum(row['out_s'] for row in rows):,}/s",
    ]


def draw(console: Console, before: Seen | None, now: Seen, sort: str) -> None:
    """Print one screen, with as many queues as it has room for."""
    rows = rows_of(before, now)
    rows.sort(key=lambda row: (-row[KEYS[sort]], row["vhost"], row["name"]))
    for line in headlines(now, rows):
        console.print(line, highlight=False, markup=False, overflow="ellipsis", no_wrap=True)
    room = max(console.height - HEAD, 1) if console.is_terminal else len(rows)
    show_table(rows[:room], COLUMNS, "no queues", SPARE, "a wider terminal")


def top(
    interval: Annotated[
        float,
        typer.Option(min=LEAST_S, max=MOST_S, metavar="SECONDS", help="Time between two screens."),
    ] = 2.0,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="End after so many screens.", show_default=False)
    ] = None,
    sort: Annotated[str, typer.Option(help=f"By what: {', '.join(KEYS)}.")] = "ready",
    url: Url = URL,
    user: Login = LOGIN,
) -> None:
    """Queues and their rates, live: what waits, what is handed out, messages a second in, out and
    dead-lettered. Ctrl-C ends it."""
    from rich.console import Console

    if sort not in KEYS:
        fail(f"--sort is {sort!r}, expected one of {', '.join(KEYS)}", USAGE)
    console = Console()
    before: Seen | None = None
    drawn = 0

    def screen() -> None:
        nonlocal before, drawn
        now = Seen(
            monotonic(),
            ask(url, user, "GET", "/api/tallymark/status"),
            ask(url, user, "GET", "/api/tallymark/overview"),
            ask(url, user, "GET", "/api/tallymark/queues")["queues"],
        )
        draw(console, before, now, sort)
        before = now
        drawn += 1
        if drawn == rounds:
            raise KeyboardInterrupt

    again(interval, screen)


def add_to(app: typer.Typer) -> None:
    app.command()(top)
