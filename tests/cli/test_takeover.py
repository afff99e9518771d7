"""`tallymark takeover` and `handover`, where there is no database to ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tallymark.cli import cluster
from tallymark.journal.postgresql.errors import SchemaRefused

leadership = pytest.importorskip("tallymark.journal.postgresql.leadership", reason="needs psycopg")

TEXT = "the tables in the schema tallymark are of version 99, this program works with version 2"


@pytest.mark.parametrize("command", [cluster.takeover, cluster.handover])
def test_tables_of_another_version_are_refused_in_words(
    command: Callable[[dict[str, Any]], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(self: object) -> None:
        raise SchemaRefused(TEXT)

    monkeypatch.setattr(leadership.Leadership, "connected", refuse)
    with pytest.raises(SystemExit) as left:
        command({"config": None, "no_nsq": False, "journal": "postgresql://database/tallymark"})
    assert left.value.code == 1
    assert capsys.readouterr().err == f"tallymark: {TEXT}\n"
