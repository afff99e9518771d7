"""kill -9 at a random moment, over and over on one folder: nothing reported is ever lost.

Checkpoints, cleaning and relocation run all the while, so that the kill lands in them too.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tallymark.engine.message import Payload
from tallymark.journal.journal import Journal
from tallymark.journal.verify import verify
from tallymark.stored.records import ENTERED, LIVE, SETTLED
from tests.journal.builders import entering

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 6
MOST_COUNTED = 300_000
"""How far to count between an output and the kill, at most: some milliseconds."""


def run_and_kill(folder: Path, seed: int, lines: int) -> list[str]:
    """Let a child work until it has said `lines` lines and a little longer, then kill it."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.journal_child", str(folder), str(seed)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )  # fmt: skip
    assert child.stdout is not None
    said = []
    for line in child.stdout:
        said.append(line)
        if len(said) >= lines:
            break
    # Any moment within the next milliseconds: count, so that the kill is not tied to an output.
    for _ in range(random.Random(seed).randrange(MOST_COUNTED)):
        pass
    child.kill()
    said += child.stdout.readlines()
    child.stdout.close()
    child.wait()
    assert len(said) >= lines, "the child ended by itself"
    return [line for line in said if line.endswith("\n")]


@pytest.mark.parametrize("seed", range(3))
def test_what_was_reported_synced_survives_every_kill(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    entered: set[int] = set()
    settled: set[int] = set()
    for round_ in range(ROUNDS):
        for line in run_and_kill(tmp_path, 100 * seed + round_, chance.randint(20, 150)):
            for word in line.split():
                (entered if word[0] == "+" else settled).add(int(word[1:]))
        live = recovered_live(tmp_path)
        assert entered - settled <= set(live) | unreported_settled(tmp_path)
        assert not settled & set(live)
    report = verify(tmp_path)
    assert report.is_sound, report.problems
    assert any(s.stripped for s in report.segments)


def recovered_live(folder: Path) -> dict[int, Payload]:
    """What is in the queue according to the folder; every live message's bytes are checked."""
    journal = Journal(folder, lambda error: None, segment_bytes=16384)
    live: dict[int, Payload] = {}
    for record in journal.recovered():
        if record.kind in (ENTERED, LIVE):
            assert record.payload is not None
            record.payload.live += record.count
            live[record.first] = record.payload
        elif record.kind == SETTLED:
            del live[record.first]
    for number, payload in live.items():
        assert journal.retain(payload.position, payload.size)
        expected = entering(number, 1, payload.size)[0].payload
        assert expected is not None
        assert journal.fetch(payload) == expected.raw
    journal.close()
    return live


def unreported_settled(folder: Path) -> set[int]:
    """Settlements that reached the disk though the kill came before they were reported."""
    from tallymark.journal.recovery import Folder
    from tallymark.journal.unpacking import Unpacker
    from tallymark.stored.segment import scan

    found: set[int] = set()
    for file in Folder(folder).segments.values():
        data = (folder / file.name).read_bytes()
        for header in scan(data, file.number, file.salt)[0]:
            records = Unpacker({}, False).records(data, header)
            found |= {r.first for r in records if r.kind == SETTLED}
    return found
