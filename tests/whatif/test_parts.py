"""Worlds that are played part by part: what comes out is what comes out of the whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tallymark.whatif.changes import AS_IT_WAS, Change, ChangeRefused, changes_of
from tallymark.whatif.figures import shown
from tallymark.whatif.parts import Parts
from tallymark.whatif.recording import Recording
from tallymark.whatif.sources import source_of
from tallymark.whatif.sweep import Sweep, merged, run_world
from tests.support.patience import until
from tests.whatif.test_worlds import plain

CHANGES: dict[str, dict[str, Any]] = {
    "a limit": {"queue": [{"name": "mail", "max-length": 3}]},
    "drawn times": {"consumers": [{"queue": "bill", "times": 2, "speed": 0.5}]},
    "a connection": {"bind": [{"queue": "table", "exchange": "letters", "key": "#"}]},
}


def named(recording: Recording, *changes: Change) -> list[set[str]]:
    return [{name for _, name in part} for part in Parts(recording, changes).queues]


@pytest.mark.longer(ci=False)
@pytest.mark.parametrize("name", ["as it was", *CHANGES])
def test_the_parts_of_a_world_are_the_world(name: str, recording: Recording) -> None:
    change = AS_IT_WAS if name == "as it was" else next(changes_of(name, CHANGES[name]))
    count = len(Parts(recording, [change]).queues)
    assert count > 3
    found = [run_world(recording, change, 1, 0, (number, count)) for number in range(count)]
    order = [shown(queue) for queue in sorted(recording.fates)]
    whole = run_world(recording, change, 1)
    assert merged(found, order) == whole
    two = [run_world(recording, change, 1, 0, (number, 2)) for number in range(2)]
    assert merged(two, order) == whole, "put together"


@pytest.mark.longer(ci=False)
def test_with_more_messages_the_parts_have_what_the_world_has(recording: Recording) -> None:
    """How far ahead of deliveries a mark is set depends on the turns of the whole broker, so that
    some messages wait for the disk in the one and not in the other: they meet other fates."""
    [change] = changes_of("more", {"publishers": [{"rate": 1.5}]})
    count = len(Parts(recording, [change]).queues)
    found = [run_world(recording, change, 1, 0, (number, count)) for number in range(count)]
    parts = merged(found, [shown(queue) for queue in sorted(recording.fates)])
    whole = run_world(recording, change, 1)
    assert parts["queues"].keys() == whole["queues"].keys()
    for queue, told in whole["queues"].items():
        entered = told["account"]["entered"]
        assert abs(parts["queues"][queue]["account"]["entered"] - entered) <= 0.05 * entered, queue
    was = run_world(recording, AS_IT_WAS, 1)["queues"]["bill"]["account"]["entered"]
    assert whole["queues"]["bill"]["account"]["entered"] > 1.4 * was


@pytest.mark.longer(ci=False)
def test_a_sweep_of_parts_is_one_of_worlds(data: Path, tmp_path: Path) -> None:
    changes = list(changes_of("x", CHANGES["a limit"]))
    told: list[str] = []
    whole = Sweep(source_of(data), tmp_path / "whole").run(changes, 1, told.append)
    parts = Sweep(source_of(data), tmp_path / "parts").run(changes, 4, told.append)
    assert parts == whole
    assert any("part 2 of 2" in text for text in told)
    left = sorted(path.suffix for path in (tmp_path / "parts").iterdir())
    assert left == [".json", ".json", ".pickle"], "the parts' results are put together"


@pytest.mark.longer(ci=False)
def test_what_touches_is_one_part(recording: Recording) -> None:
    parts = named(recording)
    together = next(part for part in parts if "work" in part)
    assert "retry" in together, "by a dead-letter exchange"
    assert {"events:billing", "events:archive"} <= next(p for p in parts if "events:billing" in p)
    [change] = changes_of("x", {"queue": [{"name": "table", "dead-letter-exchange": "letters"}]})
    joined = named(recording, change)
    assert any({"table", "parked"} <= part for part in joined)
    assert not any({"table", "parked"} <= part for part in parts)


def test_letters_without_a_key_may_get_to_any_queue() -> None:
    [change] = changes_of("x", {"queue": [{"name": "orders", "dead-letter-routing-key": "none"}]})
    assert named(plain()) == [{"orders", "parked"}]
    assert named(plain(), change) == [{"orders", "parked"}]


def test_workers_end_with_the_sweep_that_started_them(tmp_path: Path) -> None:
    program = tmp_path / "sweep.py"
    program.write_text(
        "import os, sys, time\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        "from multiprocessing import get_context\n"
        "from tallymark.whatif.sweep import _end_with_parent\n"
        "if __name__ == '__main__':\n"
        "    with ProcessPoolExecutor(1, get_context('spawn'), _end_with_parent) as pool:\n"
        "        print(pool.submit(os.getpid).result(), flush=True)\n"
        "        time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True) as sweep:
        assert sweep.stdout is not None
        worker = int(sweep.stdout.readline())
        sweep.kill()
    until(lambda: not Path(f"/proc/{worker}").exists(), what="the worker has ended")


def test_a_stretch_behind_the_ledgers_end_is_refused(data: Path, tmp_path: Path) -> None:
    """It has no messages, so that nothing would differ, and the answer would be yes."""
    [change] = changes_of("limit", {"policy": [{"name": "p", "definition": {"max-length": 1}}]})
    sweep = Sweep(source_of(data), tmp_path / "late", since_ms=1 << 42)
    with pytest.raises(ChangeRefused, match=r"^the stretch begins at 2109-05-15T07:35:11Z, exp"):
        sweep.run([change], 1, print)
    assert not list((tmp_path / "late").glob("*.json"))
