"""No test depends on how fast the machine is: none pauses for another process, and none has an
upper bound on the time that anything takes.

A pause is too long on most machines and too short on one. Wait for a condition (`until` of
tests/support/patience.py), count work, or run on a loop whose time is its own (`@virtual` of
tests/support/virtual_loop.py). Looked at is the text of every file of tests/.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parent
ALLOWED: Final = {
    ("support/patience.py", "until"): "the pause between two looks, in one place",
    ("support/patience.py", "until_on_loop"): "the same on a loop",
    ("support/virtual_loop.py", "quiet"): "only on a loop whose time is its own",
    (
        "server/test_nsq_listener.py",
        "test_nq_7_a_subscriber_that_takes_a_little_at_a_time_is_not_dropped",
    ): "it takes no more than so much a second; slower is as good",
    ("spark/test_hosts.py", "respond"): (
        "it answers later than a connection may take that is opened; slower is as good"
    ),
    ("server/test_stop.py", "close"): (
        "it waits for a timer: those of a loop go off in their order, and all that were set before"
        " are due before it"
    ),
}
"""Pauses by file and function, and why each is none that a slow machine could break."""
PACED: Final = {
    "siege": "a hostile client's pace is what it tries; who runs it waits for its steps",
    "cluster/clients": "programs of users, who pause before they try the next broker",
    "real": "a fault lasts for a while; what must follow from it is waited for",
}
"""Folders of load, not of tests, whose clients pause as they like, and why."""
CLOCKS: Final = {"monotonic", "perf_counter", "process_time", "thread_time", "time", "time_ns"}
CLOCKS_NS: Final = {f"{name}_ns" for name in CLOCKS if not name.endswith("_ns")}
REAL_LOOPS: Final = {"run", "Runner", "new_event_loop", "set_event_loop_policy"}
LIMITS: Final = {"timeout": 0, "wait_for": 1, "timeout_at": 0}
"""Calls of asyncio with a limit, and which argument that is."""
PATIENT: Final = "PATIENCE_S"


def sources() -> list[Path]:
    return sorted(TESTS.rglob("*.py"))


class Reader(ast.NodeVisitor):
    """What one file does by the clock, as `line: text` of each place, and in `cut_short` what it
    takes from modules of time so that calls of it would not be seen."""

    def __init__(self, text: str, name: str) -> None:
        self.found: list[str] = []
        self.cut_short: list[str] = []
        self._text = text
        self._name = name
        self._functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        self._moments: set[str] = set()
        self._spans: set[str] = set()
        tree = ast.parse(text)
        self._is_virtual = "virtual_loop" in text and not any(
            _called(node) in {("asyncio", name) for name in REAL_LOOPS} | {("uvloop", "run")}
            for node in ast.walk(tree)
        )
        self.visit(tree)

    # -- where we are

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._inside(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._inside(node)

    def _inside(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Names of an outer function are known in an inner one."""
        kept = (set(self._moments), set(self._spans))
        self._functions.append(node)
        self.generic_visit(node)
        self._functions.pop()
        self._moments, self._spans = kept

    def _has_own_time(self) -> bool:
        """Whether the loop's time is not the machine's here."""
        decorators = [ast.unparse(one) for node in self._functions for one in node.decorator_list]
        return self._is_virtual or any("virtual" in text for text in decorators)

    def _report(self, node: ast.expr | ast.stmt) -> None:
        here = self._functions[-1].name if self._functions else ""
        if (self._name, here) not in ALLOWED:
            said = ast.get_source_segment(self._text, node) or ""
            self.found.append(f"{self._name}:{node.lineno}: {' '.join(said.split())}")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module in ("time", "asyncio"):
            names = {alias.name for alias in node.names}
            short = names & ({"sleep", "run"} | set(LIMITS) | CLOCKS | CLOCKS_NS)
            self.cut_short += [f"{self._name}:{node.lineno}: {name}" for name in sorted(short)]

    # -- pauses and limits

    def visit_Call(self, node: ast.Call) -> None:
        module, name = _called(node)
        waits_for = [ast.unparse(one) for one in node.args[:3]]
        if (module, name) == ("time", "sleep") or (name == "select" and waits_for == ["[]"] * 3):
            self._report(node)
        elif (module, name) == ("asyncio", "sleep"):
            is_turn = isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            is_paced = self._name.startswith(tuple(f"{folder}/" for folder in PACED))
            if not (is_turn or is_paced or self._has_own_time()):
                self._report(node)
        elif module == "asyncio" and name in LIMITS and not self._has_own_time():
            limits = node.args[LIMITS[name] :]
            if limits and _number(limits[0]):
                self._report(node)
        self.generic_visit(node)

    # -- bounds on what has passed

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            if len(names) != len(values):
                continue
            for one, value in zip(names, values, strict=True):
                if isinstance(one, ast.Name):
                    self._note(one.id, value)

    def _note(self, name: str, value: ast.expr) -> None:
        self._moments.discard(name)
        self._spans.discard(name)
        if self._is_span(value):
            self._spans.add(name)
        elif self._is_moment(value):
            self._moments.add(name)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """A deadline that is not patient."""
        self.generic_visit(node)
        is_now = isinstance(node.left, ast.Call) and self._is_moment(node.left)
        if isinstance(node.op, ast.Add) and is_now and _number(node.right):
            self._report(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        self.generic_visit(node)
        for one in ast.walk(node.test):
            if not isinstance(one, ast.Compare):
                continue
            sides = [one.left, *one.comparators]
            for left, operator, right in zip(sides, one.ops, sides[1:], strict=False):
                if isinstance(operator, ast.Lt | ast.LtE):
                    small, large = left, right
                elif isinstance(operator, ast.Gt | ast.GtE):
                    small, large = right, left
                else:
                    continue
                if self._is_span(small) and PATIENT not in ast.unparse(large):
                    self._report(node)

    def _is_moment(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._moments
        if isinstance(node, ast.Call):
            module, name = _called(node)
            return module == "time" and name in CLOCKS | CLOCKS_NS
        if isinstance(node, ast.BinOp):
            return self._is_moment(node.left) or self._is_moment(node.right)
        return False

    def _is_span(self, node: ast.expr) -> bool:
        """What lies between two moments, or is made of that."""
        if isinstance(node, ast.Name):
            return node.id in self._spans
        if isinstance(node, ast.Call):
            return any(self._is_span(one) for one in node.args)
        if isinstance(node, ast.BinOp):
            is_between = isinstance(node.op, ast.Sub) and (
                self._is_moment(node.left) and self._is_moment(node.right)
            )
            if isinstance(node.op, ast.Div):  # so much in that time is no bound on it
                return self._is_span(node.left)
            return is_between or self._is_span(node.left) or self._is_span(node.right)
        return False


def _called(node: ast.AST) -> tuple[str, str]:
    """(module, name) of a call such as `time.sleep(1)`; empty for any other."""
    named = node.func if isinstance(node, ast.Call) else None
    if isinstance(named, ast.Attribute) and isinstance(named.value, ast.Name):
        return named.value.id, named.attr
    return "", ""


def _number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


@cache
def read() -> tuple[list[str], list[str]]:
    """What is by the clock, and what is cut short, in all files."""
    readers = [Reader(path.read_text(), str(path.relative_to(TESTS))) for path in sources()]
    found = [line for one in readers for line in one.found]
    return found, [line for one in readers for line in one.cut_short]


def test_nothing_waits_by_the_clock_or_has_to_be_quick() -> None:
    found, _ = read()
    assert not found, "\n".join(["wait for a condition instead (see this file):", *found])


def test_what_is_allowed_is_there() -> None:
    """An entry whose function is gone says nothing any more."""
    for name, function in ALLOWED:
        tree = ast.parse((TESTS / name).read_text())
        names = [getattr(node, "name", "") for node in ast.walk(tree)]
        assert function in names, f"{name} has no {function}"
    for folder in PACED:
        assert not list((TESTS / folder).glob("test_*.py")), f"{folder} has tests"


def test_modules_are_named_in_full() -> None:
    """`from time import sleep` would not be seen."""
    _, cut_short = read()
    assert not cut_short
    assert Reader("from time import monotonic, gmtime", "x.py").cut_short == ["x.py:1: monotonic"]


REAL = "async def main():\n    {}\nasyncio.run(main())\n"


@pytest.mark.parametrize(
    "text",
    [
        "time.sleep(0.1)",
        "select.select([], [], [], 0.1)",
        "async def f():\n    await asyncio.sleep(0.1)",
        REAL.format("await asyncio.sleep(pause)"),
        "from tests.support.virtual_loop import virtual\n" + REAL.format("await asyncio.sleep(1)"),
        REAL.format("await asyncio.wait_for(work(), 3)"),
        REAL.format("async with asyncio.timeout(5):\n        pass"),
        "def f():\n    a = time.monotonic()\n    assert time.monotonic() - a < 5",
        "def f():\n    a, b = time.process_time(), 1\n    assert 5 >= time.process_time() - a",
        "def f():\n    a = time.time()\n    took = time.time() - a\n    assert 9.5 < took < 13",
        "def f():\n    a = time.time_ns()\n    took = (time.time_ns() - a) / 1e9\n"
        "    assert round(took) <= 3",
        "def f():\n    end = time.monotonic() + 5",
    ],
)
def test_what_is_by_the_clock_is_seen(text: str) -> None:
    assert len(Reader(text, "x.py").found) == 1


@pytest.mark.parametrize(
    "text",
    [
        "async def f():\n    await asyncio.sleep(0)",
        "@virtual\nasync def f():\n    await asyncio.sleep(1)",
        "from tests.support.virtual_loop import run\nasync def f():\n    await asyncio.sleep(1)",
        "def f():\n    a = time.monotonic()\n    assert time.monotonic() - a > 1",
        "def f():\n    a = time.monotonic()\n    assert time.monotonic() - a < PATIENCE_S",
        "def f():\n    assert before < time.time() < after",
        "def f():\n    a = time.time()\n    assert looks / (time.time() - a) < 5",
        "def f():\n    a = time.time()\n    assert due <= a + 3_600_000",
        "def f():\n    deadline = time.monotonic() + PATIENCE_S",
        REAL.format("await asyncio.wait_for(work(), PATIENCE_S)"),
    ],
)
def test_what_a_slow_machine_cannot_break_is_let_be(text: str) -> None:
    assert not Reader(text, "x.py").found
