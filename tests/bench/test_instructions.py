"""The guard of instructions per message: its verdicts, and what it says of this source.

Counted are instructions of one process that reads no clock and no socket, so a busy machine changes
nothing: three counts on one that was agree within 1 %.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.instructions import (
    BUDGET,
    LOOP,
    MISSING,
    ROOT,
    TURNS,
    costs_of,
    main,
    read_budget,
    renewed,
    verdicts,
)
from bench.stepped import SteppedBroker
from bench.workloads import WORKLOADS
from tests.support.long import long

EMPTY = {"margin": 0.2, "kinds": {}}
REASON = "acknowledgements are checked twice since then"


def test_a_workload_may_cost_its_budget_and_a_margin() -> None:
    lines, is_held = verdicts({"a": 1.19, "b": 0.5}, {"a": 1.0, "b": 1.0}, 0.2)
    assert is_held
    assert "held" in lines[0]
    assert "much cheaper: renew" in lines[1]


def test_above_the_margin_it_fails_and_says_by_how_much() -> None:
    lines, is_held = verdicts({"a": 1.0, "b": 1.25}, {"a": 1.0, "b": 1.0}, 0.2)
    assert not is_held
    assert "+25.0%  dearer" in lines[1]


def test_a_workload_without_a_budget_fails() -> None:
    assert verdicts({"z": 1.0}, {}, 0.2) == (
        ["z         1.000, without a budget: renew it"],
        False,
    )


@pytest.mark.parametrize("reason", ["", "  \n ", "because"])
def test_a_budget_is_not_renewed_without_a_reason(reason: str) -> None:
    with pytest.raises(ValueError, match="says why a message may cost this"):
        renewed(EMPTY, "compiled", {"a": 1.0}, reason)


def test_the_command_refuses_it_before_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    before = BUDGET.read_text()
    with pytest.raises(SystemExit):
        main(["--renew", "so"])
    assert "reason 'so', expected a line of 15 characters or more" in capsys.readouterr().err
    assert BUDGET.read_text() == before


def test_a_renewed_budget_keeps_the_others_and_all_reasons() -> None:
    first = renewed(EMPTY, "compiled", {"a": 1.0, "b": 2.0}, "the first that was measured")
    second = renewed(first, "compiled", {"b": 3.0}, REASON)
    third = renewed(second, "interpreted", {"a": 9.0}, "interpreted as well from now on")
    assert third["kinds"]["compiled"]["costs"] == {"a": 1.0, "b": 3.0}
    assert third["kinds"]["interpreted"]["costs"] == {"a": 9.0}
    [one, two] = third["kinds"]["compiled"]["reasons"]
    assert one.endswith("a,b: the first that was measured")
    assert two.endswith(f"b: {REASON}")
    assert first["kinds"]["compiled"]["costs"] == {"a": 1.0, "b": 2.0}


def test_costs_are_turns_of_the_fixed_loop() -> None:
    def dump(name: str, count: int) -> str:
        return f"version: 1\ndesc: Trigger: Client Request: {name}\nevents: Ir\ntotals: {count}\n"

    workload = WORKLOADS[0]
    texts = [dump(LOOP, 500 * TURNS), dump(workload.name, 500 * 3 * workload.messages)]
    assert costs_of([*texts, "no dump at all"]) == {workload.name: 3.0}


def test_each_kind_of_build_in_the_file_has_every_workload_and_says_why() -> None:
    budget = read_budget()
    assert budget["kinds"]
    for kind in budget["kinds"].values():
        assert set(kind["costs"]) == {workload.name for workload in WORKLOADS}
        assert kind["reasons"]


def test_every_workload_is_handed_out_and_settled_to_the_last_message(tmp_path: Path) -> None:
    """Twice the same: input has one course, however fast the disk is."""
    written = []
    for folder in ("one", "two"):
        with SteppedBroker(tmp_path / folder) as broker:
            for workload in WORKLOADS:
                inputs = workload.set_up(broker)
                for _ in range(3):
                    for peer, data in inputs(workload.per_step):
                        peer.send(data)
            queues = broker.node.broker.queues.values()
            accounts = {queue.name: queue.account for queue in queues}
            left = {name: (one.ready, one.acquired) for name, one in accounts.items()}
            assert set(left.values()) == {(0, 0)}, left
            written.append((broker.node.turns, broker.node.journal.end))
    assert written[0] == written[1]


def guard(environment: dict[str, str]) -> None:
    """Run the guard; skip with its words where nothing can be measured."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "instructions.py")],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    if done.returncode == MISSING:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\nWhere it must be: --renew REASON"


@long
def test_no_message_is_dearer_than_its_budget_as_installed() -> None:
    """Long because callgrind runs a program fifty times slower; what is dearer also fails nothing
    in `make test`, and shows in `make bench`."""
    guard({})


@long(ci=False)
def test_no_message_is_dearer_than_its_budget_interpreted() -> None:
    guard({"PYTHONPATH": str(Path(ROOT) / "src")})
