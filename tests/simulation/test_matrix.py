"""The script of the crash matrix has every kind of record in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tallymark.stored import records
from tests.support.long import long

SRC: Final = Path(__file__).parents[2] / "src"
SCRIPT: Final = """
import json
from tallymark.engine.ledger import Ledger
from tallymark.simulation import matrix
from tallymark.simulation.playing import run

kinds, emit = set(), Ledger.emit

def noting(self, row):
    kinds.add(row.kind)
    emit(self, row)

Ledger.emit = noting
failure = run(matrix.SCRIPT).failure
print(json.dumps([failure, sorted(kinds)]))
"""
ELSEWHERE: Final = {
    records.MOVED,  # of segments that are nearly empty, which takes longer than the script
}
"""Kinds that tests of their own have: tests/journal/test_cleaning.py."""


@long
def test_the_script_writes_every_kind_of_record() -> None:
    """In a process of its own, from src: what writes records is not compiled there."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(SRC), "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    failure, kinds = json.loads(done.stdout)
    assert failure == ""
    assert {*records.KINDS} - {*kinds} == ELSEWHERE
