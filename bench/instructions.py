#!/usr/bin/env python3
"""Instructions per message of eight fixed workloads, beside a budget: a guard that reads no clock.

    instructions.py                     measure, and compare with instructions.json
    instructions.py --only f,p          some workloads
    instructions.py --renew "REASON"    write what was measured as the budget of this kind of build

Callgrind counts what Node, clients, bridges, engine and journal execute in one process, input by
input (stepped.py). The count is divided by that of a fixed loop of Python, counted in the same run:
so it stands for this source, and hardly for a compiler, a library or a machine. A budget holds for
a kind of build: compiled or interpreted, the version of Python, the processor's family.

Exit code 1: a workload is dearer than its budget by more than the margin. 3: nothing was measured,
because valgrind, gcc or a budget for this kind of build is missing; says which.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

BUDGET = Path(__file__).with_suffix(".json")
LOOP, TURNS = "loop", 2_000
"""The fixed loop, and how often it is run."""
LEAST_REASON = 15
"""Characters of a reason: enough to say why, for whoever reads the file later."""
DEARER, MISSING = 1, 3
LIMIT_S = 600
"""Seconds after which callgrind is stuck."""

Costs = dict[str, float]
"""Turns of the fixed loop that a message of each workload costs."""


class Unmeasured(Exception):
    """Nothing can be measured here; the text says why."""


def fixed_loop(turns: int) -> int:
    """What the interpreter does all the time: names, integers, small objects, a dict, bytes."""
    total, table = 0, {}
    for number in range(turns):
        table[number & 63] = (number, str(number))
        total += len(table[number & 63][1]) + (b"%d" % number)[0]
    return total


# -- the process that is counted


def run_counted(library: str, names: Sequence[str]) -> None:
    """Warm up and run each workload; callgrind writes a file for each."""
    from bench.stepped import SteppedBroker
    from bench.workloads import WORKLOADS

    marks = ctypes.CDLL(library)
    assert marks.is_watched(), "this process is meant to run under valgrind"
    with tempfile.TemporaryDirectory() as folder, SteppedBroker(Path(folder) / "data") as broker:
        begun = []
        for workload in WORKLOADS:
            if workload.name in names:
                inputs = workload.set_up(broker)
                for _ in range(max(2, workload.messages // workload.per_step // 4)):
                    for peer, data in inputs(workload.per_step):
                        peer.send(data)
                begun.append((workload, inputs))
        fixed_loop(TURNS)
        marks.start()
        marks.toggle()
        fixed_loop(TURNS)
        marks.toggle()
        marks.dump(LOOP.encode())
        for workload, inputs in begun:
            for _ in range(workload.messages // workload.per_step):
                for peer, data in inputs(workload.per_step):
                    marks.toggle()
                    peer.send(data)
                    marks.toggle()
                    if peer.pipe.written and workload.name != "nsq":
                        peer.pipe.take()
            marks.dump(workload.name.encode())
        left = {queue.name: queue.ready for queue in broker.node.broker.queues.values()}
        assert not any(left.values()), f"messages were left: {left}"


# -- the process that counts


def kind_of_build() -> str:
    """The build whose budget counts here."""
    from tallymark import is_compiled

    how = "compiled" if is_compiled() else "interpreted"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{how}, {platform.python_implementation()} {version}, {platform.machine()}"


def measure(names: Sequence[str]) -> Costs:
    """Count. Raises Unmeasured."""
    for program, package in (("valgrind", "valgrind"), ("gcc", "gcc")):
        if shutil.which(program) is None:
            raise Unmeasured(f"no {program} here: apt-get install {package}")
    with tempfile.TemporaryDirectory() as folder:
        library, out = f"{folder}/callgrind.so", f"{folder}/counted"
        build = ["gcc", "-O1", "-shared", "-fPIC", "-o", library, str(ROOT / "bench/callgrind.c")]
        built = subprocess.run(build, capture_output=True, text=True)
        if built.returncode:
            raise Unmeasured(f"valgrind's headers are not usable: {built.stderr.strip()[-200:]}")
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no"]
        command += [f"--callgrind-out-file={out}", sys.executable, __file__]
        command += ["--counted", library, "--only", ",".join(names)]
        environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired as error:
            raise Unmeasured(f"callgrind was not done within {LIMIT_S} s") from error
        if done.returncode and "nrecognised instruction" in done.stderr:
            raise Unmeasured("this valgrind does not know an instruction of this processor")
        if done.returncode:
            raise RuntimeError(f"callgrind ended with {done.returncode}: {done.stderr[-2000:]}")
        return costs_of([path.read_text() for path in Path(folder).glob("counted.*")])


def costs_of(dumps: Sequence[str]) -> Costs:
    """Costs by what callgrind wrote."""
    from bench.workloads import WORKLOADS

    counts = {}
    for text in dumps:
        name = re.search(r"^desc: Trigger: Client Request: (\S+)$", text, re.MULTILINE)
        total = re.search(r"^(?:totals|summary): (\d+)$", text, re.MULTILINE)
        if name and total:
            counts[name[1]] = int(total[1])
    turn = counts[LOOP] / TURNS
    messages = {workload.name: workload.messages for workload in WORKLOADS}
    return {
        name: round(counts[name] / messages[name] / turn, 3) for name in messages if name in counts
    }


# -- the budget


def read_budget() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(BUDGET.read_text())
    return found


def verdicts(costs: Costs, budget: Costs, margin: float) -> tuple[list[str], bool]:
    """A line for each workload, and whether all are within the budget and its margin."""
    lines, is_held = [], True
    for name, cost in costs.items():
        allowed = budget.get(name)
        if allowed is None:
            lines.append(f"{name:4} {cost:10.3f}, without a budget: renew it")
            is_held = False
            continue
        change = cost / allowed - 1
        told = "dearer than the budget allows" if change > margin else "held"
        told = "much cheaper: renew the budget" if change < -margin else told
        lines.append(f"{name:4} {cost:10.3f} of {allowed:10.3f} {change:+7.1%}  {told}")
        is_held = is_held and change <= margin
    return lines, is_held


def renewed(budget: dict[str, Any], kind: str, costs: Costs, reason: str) -> dict[str, Any]:
    """The budget with these costs for a kind of build. Raises ValueError: no reason is given."""
    reason = " ".join(reason.split())
    if len(reason) < LEAST_REASON:
        raise ValueError(
            f"reason {reason!r}, expected a line of {LEAST_REASON} characters or more that says "
            "why a message may cost this"
        )
    kinds = dict(budget["kinds"])
    before = kinds.get(kind, {"costs": {}, "reasons": []})
    stamp = datetime.now(UTC).strftime("%Y-%m-%d")
    kinds[kind] = {
        "costs": before["costs"] | costs,
        "reasons": [*before["reasons"], f"{stamp} {','.join(costs)}: {reason}"],
    }
    return budget | {"kinds": kinds}


def compare(names: Sequence[str]) -> int:
    budget, kind = read_budget(), kind_of_build()
    if kind not in budget["kinds"]:
        raise Unmeasured(f"no budget for {kind}, only for {'; '.join(budget['kinds'])}")
    lines, is_held = verdicts(measure(names), budget["kinds"][kind]["costs"], budget["margin"])
    print(f"{kind}: turns of the fixed loop per message\n" + "\n".join(lines))
    return 0 if is_held else DEARER


def main(words: Sequence[str]) -> int:
    from bench.workloads import WORKLOADS

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(one.name for one in WORKLOADS))
    parser.add_argument("--renew", metavar="REASON")
    parser.add_argument("--counted", help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    names = asked.only.split(",")
    if asked.counted is not None:
        run_counted(asked.counted, names)
        return 0
    try:
        if asked.renew is None:
            return compare(names)
        renewed(read_budget(), kind_of_build(), {}, asked.renew)  # before minutes are spent
        found = renewed(read_budget(), kind_of_build(), measure(names), asked.renew)
    except Unmeasured as error:
        print(f"not measured: {error}", file=sys.stderr)
        return MISSING
    except ValueError as error:
        parser.error(str(error))
    BUDGET.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{BUDGET.name}: {kind_of_build()} renewed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
