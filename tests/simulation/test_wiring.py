"""A world's broker has all that production's has: threads, tasks, what a start gives its node."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import tallymark
from tallymark.server import tasks
from tallymark.simulation.loop import SimulatedLoop

SRC = Path(tallymark.__file__).parent
PARTS = ("server", "journal", "engine", "bridge", "stored", "wire")
MAKERS = {"Thread", "Popen", "create_subprocess_exec", "ThreadPoolExecutor", "ProcessPoolExecutor"}
"""Names of what makes a thread or a process that no world knows of."""
KNOWN = {
    ("journal/threads.py", "Thread"),  # the seam: a world gives its own
    ("server/tracing/exporter.py", "Thread"),  # to a collector, of which a world has none
    ("server/http/journeys.py", "create_subprocess_exec"),  # reads copies of the journal's files
}
NOT_IN_A_WORLD = {"tracing", "tracer"}
"""Attributes of a node that a start sets where there is a collector of spans."""


def calls() -> Iterator[tuple[str, ast.Call, str]]:
    """All calls in the broker's code: file, call, last part of its name."""
    for part in PARTS:
        for path in sorted((SRC / part).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call):
                    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                    yield str(path.relative_to(SRC)), node, name


def given_to_node(path: Path) -> set[str]:
    """Attributes of a node, and of its parts, that a module sets."""
    return {
        ast.unparse(target).removeprefix("node.")
        for one in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(one, ast.Assign)
        for target in one.targets if ast.unparse(target).startswith("node.")
    }  # fmt: skip


def test_no_thread_and_no_process_is_made_but_through_what_a_world_schedules() -> None:
    found = {(file, name) for file, _, name in calls() if name in MAKERS}
    assert found == KNOWN
    # asyncio.to_thread goes through the loop's own, which a world's loop schedules.
    assert "run_in_executor" in vars(SimulatedLoop)


def test_a_world_gives_its_node_what_a_start_gives_it() -> None:
    production = given_to_node(SRC / "server" / "run.py")
    assert production - NOT_IN_A_WORLD == given_to_node(SRC / "simulation" / "process.py")


BROKER = """
import json, sys
from pathlib import Path
from tallymark.server.config.settings import Config
from tallymark.simulation.network import Network, Weather
from tallymark.simulation.process import Broker
from tallymark.simulation.world import World

world, folder = World(1), Path(sys.argv[1])
broker = Broker(world, Network(world, Weather()), folder, Config(data_dir=folder, nsq=True))
broker.start()
world.run_until(lambda: broker.is_up and bool(broker.node.tasks.entries), 60.0)
threads = [one.name for one in broker.process.alive]
print(json.dumps([list(broker.node.tasks.entries), threads]))
broker.stop()
world.run_until(lambda: broker.has_ended, 60.0)
"""


def test_a_worlds_broker_runs_every_task_and_every_thread(tmp_path: Path) -> None:
    """In a process of its own, since a world sets the clocks of all of it."""
    environment = {**os.environ, "PYTHONPATH": str(SRC.parent)}
    command = [sys.executable, "-c", BROKER, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    entries, threads = json.loads(done.stdout.splitlines()[-1])
    assert set(tasks.TASKS) <= set(entries)
    named = {
        ast.literal_eval(call.args[1])
        for file, call, name in calls()
        if name == "thread" and file.startswith("journal/")
    }
    assert named == set(threads)
