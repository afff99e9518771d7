"""`tallymark journal`: look into a data folder, with or without a broker running on it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from tallymark.cli.output import fail, reason_of, show_json, show_table

app = typer.Typer(help="A data folder's journal.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """A data folder's journal."""


@app.command()
def verify(
    directory: Annotated[Path, typer.Argument(help="The data folder.")],
    json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Read every byte, check every checksum, rehearse a start, describe what is there. Exit code 4
    for damage."""
    from tallymark.journal.verify import verify as examine
    from tallymark.server.rehearsal import rehearse

    if not directory.is_dir():
        fail(f"no data folder {directory.absolute()}")
    try:
        report = examine(directory)
        report.problems += rehearse(directory)
    except OSError as error:
        fail(reason_of(error))
    if not report.is_journal:
        fail(f"no journal in {directory.absolute()}")
    if json:
        show_json(report.as_dict())
    else:
        rows = [
            {
                "segment": segment.name,
                "verdict": segment.verdict + (", stripped" if segment.stripped else ""),
                "blocks": segment.blocks,
                "bytes": segment.bytes,
                "raw_bytes": segment.raw_bytes,
                "rows": sum(segment.rows.values()),
                "first": _time(segment.first_ms),
                "last": _time(segment.last_ms),
            }
            for segment in report.segments
        ]
        columns = ("segment", "verdict", "blocks", "bytes", "raw_bytes", "rows", "first", "last")
        show_table(rows, columns, "no segments", ("raw_bytes", "first", "blocks", "last"))
        kinds = [{"kind": kind, "rows": count} for kind, count in sorted(report.rows.items())]
        show_table(kinds, ("kind", "rows"), "no rows")
        print(f"checkpoints: {', '.join(report.checkpoints) or 'none'}")
        for problem in report.problems:
            print(f"DAMAGED: {problem}")
        print("sound" if report.is_sound else "not sound")
    if not report.is_sound:
        raise typer.Exit(4)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds") if ms else ""
