"""Deliberate bugs, each of which the worlds must find.

    python -m tests.simulation.mutants                      # all: seeds that it took
    python -m tests.simulation.mutants "confirm before sync" --seeds 500 --write --jobs 2
    python -m tests.simulation.mutants --check              # only whether they fit

--write puts what it took into the tables of docs/simulation.md and docs/guarantees.md. A seed
counts as one that found a bug only if its world holds without the bug.

A mutant changes the broker's modules in this process; they run from src, interpreted. One that
takes other arguments than what it stands for would be found, and show nothing: before any world is
played all of them are checked.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Final

from tallymark.simulation.drawing import draw
from tallymark.simulation.playing import run
from tests.simulation.bugs import journal, pairs, queues, readers, recording
from tests.simulation.bugs.registry import MUTANTS, NEEDS, PAIRS

BUGS: Final = (journal, recording, queues, readers, pairs)
"""Modules that have put their bugs into the registry."""
PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "simulation.md"
PROMISES: Final = PAGE.with_name("guarantees.md")
HEAD: Final = "| bug | seeds | seen as |\n|---|---|---|"
SHOWN: Final = 90
"""Characters of what was seen."""
FIRST: Final = 1_000_000
"""First of the seeds that are played."""
SEEDS_A_PROCESS: Final = 25
"""Worlds after which a process is replaced: what a broken broker held stays in it."""


def seeds_needed(name: str, begin: int, most: int) -> tuple[int, str]:
    """Play seeds with a deliberate bug, as many as one process may; return how many it took, those
    before `begin` with them, and what was seen; nothing: it was not found by then.

    A world in which the bug has nothing to act on cannot find it: it counts, and is not played.
    """
    MUTANTS[name]()
    needs = NEEDS.get(name)
    played = 0
    for number in range(begin, most + 1):
        plan = draw(FIRST + number - 1, pairs=name in PAIRS or None)
        if needs is not None and not needs(plan):
            continue
        if played == SEEDS_A_PROCESS:
            return number - 1, ""
        played += 1
        try:
            failure = run(plan).failure
        except Exception as error:  # the bug made the broker or its client fail outright
            failure = f"{type(error).__name__}: {error}"
        if failure:
            return number, failure
    return most, ""


def misfits() -> list[str]:
    """Return which bugs replace nothing, what is not there, or what is called in another way: those
    fail where they are called, and whoever sees that has not seen the bug."""
    found = []
    before = names_of_the_broker()
    for name, patch in MUTANTS.items():
        try:
            patch()
        except Exception as error:  # what it is about is somewhere else by now
            found.append(f"{name}: {type(error).__name__}: {error}")
            continue
        changed = [
            (owner, key)
            for owner, names in names_of_the_broker().items()
            if names != before.get(owner, names)
            for key, one in names.items()
            if before[owner].get(key) is not one
        ]
        if not changed:
            found.append(f"{name}: replaces nothing")
        for owner, key in changed:
            where = f"{name}: {owner.__name__}.{key}"
            if key not in before[owner]:
                found.append(f"{where} is not there")
                delattr(owner, key)
                continue
            if why := misfit(before[owner][key], vars(owner)[key]):
                found.append(f"{where}: {why}")
            setattr(owner, key, before[owner][key])
    return found


def names_of_the_broker() -> dict[Any, dict[str, object]]:
    """Return what every module of the broker, and every class in one, has by name."""
    modules = [one for name, one in sys.modules.items() if name.split(".")[0] == "tallymark"]
    classes = [
        one
        for module in modules
        for one in vars(module).values()
        if isinstance(one, type) and one.__module__ == module.__name__
    ]
    return {owner: dict(vars(owner)) for owner in (*modules, *classes)}


def misfit(old: object, new: object) -> str:
    """Return why a call of the one by position may be none of the other; "": every call is."""
    was, now = signature(old), signature(new)
    if was is None or now is None:
        return "" if was is now else "one of the two cannot be called"
    places = [
        one
        for one in was.parameters.values()
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    least = [one for one in places if one.default is one.empty]
    named = [one.name for one in was.parameters.values() if one.kind is one.KEYWORD_ONLY]
    try:
        now.bind(*least)
        now.bind(*places, **dict.fromkeys(named))
    except TypeError as error:
        return f"{error}: {now} for {was}"
    return ""


def signature(found: object) -> inspect.Signature | None:
    """Return how a function, a method or a property is called; None: it is none of them."""
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, staticmethod | classmethod):
        found = found.__func__
    return inspect.signature(found) if callable(found) else None


def in_a_process(module: str, *arguments: str) -> str:
    """Run a module of this tree by itself, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], env={**os.environ, "PYTHONHASHSEED": "0"},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return done.stdout


def holds_without(seed: int, pairs: bool) -> bool:
    """Return whether a world holds without any bug: else what was seen says nothing of one."""
    return f"{seed}: passed" in in_a_process(
        "tallymark.simulation", "--seed", str(seed), *["--pairs"] * pairs
    )


def search(name: str, most: int) -> str:
    """Look for a bug, and return its row of the table."""
    number = 0
    while number < most:
        asked = ["--row", name, "--begin", str(number + 1), "--seeds", str(most)]
        said = in_a_process("tests.simulation.mutants", *asked).strip()
        if not said:
            return row_of(name, 0, "its process ended", most)
        last, _, seen = said.splitlines()[-1].partition(" ")
        number = int(last)
        if seen and holds_without(FIRST + number - 1, name in PAIRS):
            return row_of(name, number, seen, most)
        if seen:
            print(f"seed {FIRST + number - 1} fails without a bug, too: {seen}", file=sys.stderr)
    return row_of(name, 0, "", most)


def row_of(name: str, number: int, seen: str, most: int) -> str:
    """Return the row of a table for one bug. most: seeds that were played if it was not found."""
    clean = re.sub(r"/\S*tallymark-world-\S*?/", "", seen).replace("|", "/")
    kept = clean if len(clean) <= SHOWN else clean[:SHOWN].rstrip() + " ..."
    return f"| {name} | {number or f'not in {most}'} | {kept if number else ''} |"


def write_tables(row: str) -> None:
    """Put a row into the table of the guide, where those of other bugs are kept, and its number of
    seeds into the table of promises."""
    text = PAGE.read_text()
    head, _, rest = text.partition(HEAD)
    old, _, tail = rest.partition("\n\n")
    by_name = {name_of(one): one for one in [*old.splitlines(), row] if one}
    table = "".join("\n" + by_name[name] for name in MUTANTS if name in by_name)
    PAGE.write_text(f"{head}{HEAD}{table}\n\n{tail}")
    name, number = name_of(row), row.split("|")[2].strip()
    promises = PROMISES.read_text()
    PROMISES.write_text(
        re.sub(rf"(?m)^(\|.*\| {re.escape(name)} \|).*\|$", rf"\1 {number} |", promises)
    )


def name_of(row: str) -> str:
    return row.split("|")[1].strip()


def main() -> int:
    """Look for one, or each in a process of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", nargs="*", metavar="NAME", help="those alone")
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=1, help="bugs at a time")
    parser.add_argument("--write", action="store_true", help="into the tables of the guide")
    parser.add_argument("--check", action="store_true", help="whether they fit; no world is played")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--begin", type=int, default=1, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.row is not None:
        number, seen = seeds_needed(asked.row, asked.begin, asked.seeds)
        print(number, " ".join(seen.split()), flush=True)
        os._exit(0)  # a broken broker leaves threads and coroutines that cannot end
    if unfit := misfits():
        print("\n".join(unfit), file=sys.stderr)
        return 1
    if asked.check:
        return 0
    names = asked.name or list(MUTANTS)
    unknown = [name for name in names if name not in MUTANTS]
    if unknown:
        parser.error(f"no such bug: {unknown}, expected some of {list(MUTANTS)}")
    is_missed = False
    with ThreadPoolExecutor(asked.jobs) as pool:
        for done in as_completed([pool.submit(search, name, asked.seeds) for name in names]):
            row = done.result()
            print(row, flush=True)
            is_missed |= "| not in " in row
            if asked.write:
                write_tables(row)
    return int(is_missed)


if __name__ == "__main__":
    sys.exit(main())
