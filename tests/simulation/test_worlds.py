"""Whole worlds: seeds that must hold, the same run each time, a crash in every call to the disk."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import tallymark
from tallymark.simulation.__main__ import _long
from tallymark.simulation.choosing import chosen
from tallymark.simulation.states import STATES
from tests.support.long import long, sized

SRC = Path(tallymark.__file__).parents[1]
CORPUS = Path(__file__).with_name("corpus.txt")
CHOSEN = Path(__file__).with_name("chosen.txt")

WAITING_LETTERS = """
from tallymark.simulation.plan import Plan, PublisherPlan, QueuePlan
from tallymark.simulation.playing import run

queues = tuple(QueuePlan(name, ttl_ms=50, dead_letters=True, dead_length=10) for name in "ab")
publishers = (PublisherPlan("p", "amqp", "a", batch=12, pause_s=8.0),)
for seed in range(1, 9):
    print(run(Plan(seed, 1.0, queues=queues, publishers=publishers)).failure)
"""


def simulated(*arguments: str) -> str:
    """Run the command; returns what it printed. It must not fail."""
    done = subprocess.run(
        [sys.executable, "-m", "tallymark.simulation", *arguments],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SRC)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def seeds_of(file: Path) -> list[int]:
    """Return the seeds of a list or a corpus."""
    return [int(line.split()[0]) for line in file.read_text().splitlines()]


INTERRUPTED_WAIT = """
import signal
from tallymark.simulation import __main__ as command

def interrupted(running, *how, wait=command.wait):
    condition = next(iter(running))._condition
    condition.acquire()  # as the wait does, for each
    signal.raise_signal(signal.SIGINT)
    condition.release()
    return wait(running, *how)

signal.signal(signal.SIGINT, signal.SIG_DFL)
command.wait = interrupted
raise SystemExit(command.main())
"""


def begun() -> subprocess.Popen[str]:
    """Begin a long run in a group of processes of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tallymark.simulation", "--seeds", "100000", "--jobs", "1"],
        env={**os.environ, "PYTHONPATH": str(SRC)}, start_new_session=True, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # Whoever runs the tests in the background has them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def workers_of(pid: int) -> list[str]:
    """Return the processes that a run has begun for its worlds."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [one for one in children if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]


def test_some_worlds_hold() -> None:
    said = simulated("--seeds", "4", "--jobs", "1")
    assert "4 worlds, 0 failed" in said


def test_a_seed_gives_the_same_history_each_time() -> None:
    """In processes of their own: nothing of the machine is in it."""
    first, second = simulated("--seed", "254"), simulated("--seed", "254")
    assert first == second
    assert len(first.splitlines()) > 100


def test_a_history_has_no_folder_of_this_run() -> None:
    """The broker of this world names its data folder as it refuses to start."""
    said = simulated("--seed", "7610024")
    assert "broker refused to start on turned bits: JournalCorrupt: journal in life-" in said


def test_a_run_that_is_interrupted_says_what_it_has_played() -> None:
    """Ctrl-C reaches the whole group of processes."""
    running = begun()
    assert running.stderr is not None
    assert " worlds, 0 failed" in running.stderr.readline()
    os.killpg(running.pid, signal.SIGINT)
    said, errors = running.communicate()
    assert running.returncode == 130
    assert re.match(r"[1-9]\d* worlds, 0 failed, .* an hour, .*\nreached: ", said), said
    assert "Traceback" not in errors


def test_a_second_interrupt_does_not_disturb_the_end_of_a_run() -> None:
    """As `timeout -s INT` sends it: to the command, and to its group. Worlds go on meanwhile."""
    running = begun()
    assert running.stderr is not None
    assert " worlds, 0 failed" in running.stderr.readline()
    os.killpg(running.pid, signal.SIGINT)
    said = running.stderr.readline()
    assert said == "interrupted: worlds under way are finished first\n"
    for _ in range(3):
        os.killpg(running.pid, signal.SIGINT)
    said, errors = running.communicate()
    assert (running.returncode, errors) == (130, "")
    assert "worlds, 0 failed" in said


def test_an_interrupt_leaves_no_lock_to_the_end_of_a_run() -> None:
    """Who waits for worlds holds their locks for moments, and to end the workers takes these."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WAIT, "--seeds", "100", "--jobs", "1"],
        capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(SRC), "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    assert done.returncode == 130
    assert done.stderr.endswith("interrupted: worlds under way are finished first\n")


def test_an_interrupt_while_workers_begin_is_not_their_business() -> None:
    """They load the program for a while; an exception there would print a traceback each."""
    running = begun()
    while not (workers := workers_of(running.pid)):
        assert running.poll() is None
    os.killpg(running.pid, signal.SIGINT)
    said, errors = running.communicate()
    assert running.returncode == 130
    assert errors == "interrupted: worlds under way are finished first\n"
    assert re.match(r"\d+ worlds, 0 failed", said), said
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def test_worlds_that_may_hang_are_named_with_the_progress() -> None:
    running = [(9950522, 0.0), ("point 7", 100.0)]
    assert _long(running, 60.0) == ""
    assert _long(running, 150.0) == "; 9950522 under way for 150 s"


def test_letters_that_had_to_wait_are_taken_whenever_they_enter_their_queue() -> None:
    """Two of each twelve have no room, and are tried again after ever longer times: in the end also
    while the dead letters of another queue are looked for. In a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", WAITING_LETTERS], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(SRC), "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("\n" * 8, "")


@long
def test_many_worlds_hold(record_property: Callable[[str, object], None]) -> None:
    """The numbers of the fresh ones, and which states were reached, are in the run's summary. CI
    plays two hundred that were chosen, which reach every state several times; where some of them
    reach others after a change, a few states may be left."""
    count, fresh = sized(0, 0, 1000), sized(0, 30, 1000)
    seeds = {*range(count), *seeds_of(CORPUS), *seeds_of(CHOSEN)}
    said = simulated(
        "--seeds", str(count), "--list", str(CORPUS), "--list", str(CHOSEN),
        "--fresh", str(fresh), "--jobs", "2",
    )  # fmt: skip
    record_property("said", said)
    assert f"{len(seeds) + fresh} worlds, 0 failed" in said
    missing = re.search(r"never reached: (.*)", said)
    assert missing is None or len(missing[1].split(", ")) <= 5, missing[0]


def test_ci_plays_two_hundred_chosen_seeds() -> None:
    """The list and the corpus have none in common."""
    corpus, listed = seeds_of(CORPUS), seeds_of(CHOSEN)
    assert len({*corpus, *listed}) == len({*corpus}) + len(listed) == 200


def test_chosen_seeds_are_the_cheapest_of_each_state_and_of_all() -> None:
    rare, other, *_ = STATES
    played = {
        1: (900, {rare}), 2: (800, {rare}), 3: (700, {rare}), 4: (600, {rare}),
        5: (10, {other}), 6: (20, set()), 7: (30, set()), 8: (40, {other}),
    }  # fmt: skip
    assert chosen(played, set(), 7) == [2, 3, 4, 5, 6, 7, 8]
    assert chosen(played, {4, 6}, 7) == [2, 3, 5, 7, 8], "what is played anyway counts"


@long
def test_a_crash_in_every_call_to_the_disk_loses_nothing() -> None:
    every = sized(0, 10, 1)
    said = simulated("--matrix", "--every", str(every), "--jobs", "2")
    worlds = re.search(r"(\d+) worlds, 0 failed", said)
    assert worlds, said
    assert int(worlds[1]) * every > 300
