#!/usr/bin/env python3
"""The size of the house: files, lines, the largest class and function, import circles, and how many
files one publish crosses. `make figures`; interpreted, on the sources in src/.

    figures.py [--no-publish] [--json]
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"
SCREEN = 60
"""Lines of a function above which it is longer than a screen."""
LARGE_FILE = 600
LARGE_CLASS = 400

BROKER = """
import json, os, signal, sys, threading
crossed, is_recording, pipe = set(), False, int(sys.argv.pop())

def profile(frame, event, argument):
    if is_recording and event == "call" and "/src/tallymark/" in frame.f_code.co_filename:
        crossed.add(frame.f_code.co_filename)

def toggle(*_):
    global is_recording
    is_recording = not is_recording
    if not is_recording:
        os.write(pipe, json.dumps(sorted(crossed)).encode())

threading.setprofile(profile)
sys.setprofile(profile)
signal.signal(signal.SIGUSR1, toggle)
from tallymark.cli.main import main
main()
"""
"""A broker that records, between two signals, which files its calls are in."""


def modules() -> dict[str, Path]:
    """Every module's file by its dotted name."""
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = list(path.relative_to(SRC).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: dict[str, Path], for_types: bool) -> set[str]:
    """The modules of ours that a file imports, in a function, too; for_types: and those that it
    imports for the type checker only."""
    found = set()
    for module, name, is_for_types in _imported(path):
        if for_types or not is_for_types:
            inner = f"{module}.{name}"
            found.add(inner if inner in known else module)
    return found & set(known)


@cache
def _imported(path: Path) -> list[tuple[str, str, bool]]:
    """(module, name taken from it or "", whether for the type checker only) of each import."""
    found = []
    reading = [(ast.parse(path.read_text()), False)]
    while reading:
        node, for_types = reading.pop()
        if isinstance(node, ast.Import):
            found += [(alias.name, "", for_types) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(node.module, alias.name, for_types) for alias in node.names]
        is_check = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        reading += [(inner, for_types or is_check) for inner in ast.iter_child_nodes(node)]
    return found


def circles(known: dict[str, Path], for_types: bool) -> list[list[str]]:
    """Modules that import each other, however many lie between: Tarjan's components."""
    graph = {name: sorted(imports(path, known, for_types) - {name}) for name, path in known.items()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for name in graph:
        if name not in index:
            visit(name)
    return sorted(found, key=len, reverse=True)


def spans(path: Path) -> Iterator[tuple[str, str, int]]:
    """(class or function, its name, its lines) of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            yield "class", node.name, (node.end_lineno or 0) - node.lineno + 1
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield "function", node.name, (node.end_lineno or 0) - node.lineno + 1


def files_of_a_publish() -> list[str]:
    """The files in which something was called while one persistent message was published over
    AMQP 0-9-1 to a durable queue and confirmed, on a channel that had published one before."""
    import pika

    read, write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="figures") as folder:
        command = [sys.executable, "-c", BROKER, "serve", "--data-dir", folder]
        command += ["--amqp-port", "0", "--http-port", "0", str(write)]
        environment = {**os.environ, "PYTHONPATH": str(SRC)}
        broker = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
            pass_fds=[write], text=True,
        )  # fmt: skip
        try:
            assert broker.stdout is not None
            port = json.loads(broker.stdout.readline())["amqp"][1]
            connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("figures", durable=True)
            persistent = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("", "figures", b"before", persistent)
            broker.send_signal(signal.SIGUSR1)
            channel.basic_publish("", "figures", b"counted", persistent)
            broker.send_signal(signal.SIGUSR1)
            found = json.loads(os.read(read, 1 << 20))
            connection.close()
        finally:
            broker.terminate()
            broker.wait()
    start = str(SRC / "tallymark") + "/"
    return [path.removeprefix(start) for path in found]


def _shown(found: list[list[str]]) -> list[str]:
    return [f"{len(one)}: {' '.join(one)}" for one in found]


def figures(with_publish: bool) -> dict[str, object]:
    known = modules()
    lines = {name: len(path.read_text().splitlines()) for name, path in known.items()}
    classes, functions = [], []
    for name, path in known.items():
        for kind, called, size in spans(path):
            (classes if kind == "class" else functions).append((size, f"{name}.{called}"))
    found: dict[str, object] = {
        "files": len(known),
        "lines": sum(lines.values()),
        f"files above {LARGE_FILE} lines": sorted(
            (f"{name} {n}" for name, n in lines.items() if n > LARGE_FILE)
        ),
        f"classes above {LARGE_CLASS} lines": [
            f"{name} {size}" for size, name in sorted(classes, reverse=True) if size > LARGE_CLASS
        ],
        f"functions above {SCREEN} lines": sum(size > SCREEN for size, _ in functions),
        "import circles at run time": _shown(circles(known, False)),
        "import circles, types included": _shown(circles(known, True)),
    }
    if with_publish:
        crossed = files_of_a_publish()
        found["files a publish crosses"] = len(crossed)
        found["these are"] = crossed
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--no-publish", action="store_true", help="start no broker")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = figures(not args.no_publish)
    if args.json:
        print(json.dumps(found, indent=1))
        return
    for what, value in found.items():
        if isinstance(value, list):
            print(f"{what}: {len(value)}")
            for one in value:
                print(f"    {one}")
        else:
            print(f"{what}: {value}")


if __name__ == "__main__":
    main()
