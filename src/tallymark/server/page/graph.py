"""A graph of queues as a drawing: boxes in columns, the flow from left to right, cycles marked.

Pure: names in, places out. A queue stands one column to the right of the last one that it gets
letters from; flows that lead back, as those that close a cycle, are drawn below the boxes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

WIDTH: Final = 210
HEIGHT: Final = 46
ACROSS: Final = 130
"""Space between two columns, in which the flows are labelled."""
DOWN: Final = 26
MARGIN: Final = 14
BACK: Final = 24
"""Space between two flows that lead back."""
LETTERS: Final = 26
"""Letters of a name that fit a box."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Messages that leave one node for another. label: beside the line."""

    source: str
    target: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Box:
    """A node with its place. text: its name, cut to fit."""

    name: str
    text: str
    x: int
    y: int
    in_cycle: bool


@dataclass(frozen=True, slots=True)
class Line:
    """A flow with its path, and the place of its label."""

    flow: Flow
    path: str
    x: int
    y: int
    in_cycle: bool


@dataclass(slots=True)
class Drawing:
    """Boxes and lines, and the size of all of it."""

    boxes: list[Box] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    width: int = 0
    height: int = 0
    cycles: list[list[str]] = field(default_factory=list)
    """Names of the nodes of each cycle, in one order of the flow where there is one."""


def drawn(names: Iterable[str], flows: Iterable[Flow]) -> Drawing:
    """Return the drawing of the nodes and the flows between them. Ends of a flow that are no nodes
    are made such."""
    flows = list(flows)
    nodes = list(
        dict.fromkeys([*names, *(end for one in flows for end in (one.source, one.target))])
    )
    ways: dict[str, list[str]] = {name: [] for name in nodes}
    for flow in flows:
        ways[flow.source].append(flow.target)
    cycle_of = _cycles(nodes, ways)
    columns = _columns(nodes, ways, cycle_of)
    leads_back = any(columns[one.target] <= columns[one.source] for one in flows)
    left = MARGIN + 24 if leads_back else MARGIN
    found = Drawing()
    places: dict[str, tuple[int, int]] = {}
    rows: dict[int, int] = {}
    for name in nodes:
        column = columns[name]
        row = rows.get(column, 0)
        rows[column] = row + 1
        places[name] = left + column * (WIDTH + ACROSS), MARGIN + row * (HEIGHT + DOWN)
        text = name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"
        found.boxes.append(Box(name, text, *places[name], cycle_of[name] >= 0))
    bottom = MARGIN + max(rows.values(), default=0) * (HEIGHT + DOWN)
    back = 0
    for flow in flows:
        in_cycle = cycle_of[flow.source] >= 0 and cycle_of[flow.source] == cycle_of[flow.target]
        if columns[flow.target] > columns[flow.source]:
            found.lines.append(_forward(flow, places, in_cycle))
        else:
            found.lines.append(_backward(flow, places, bottom + BACK * back + 8, in_cycle))
            back += 1
    across = (max(columns.values(), default=0) + 1) * (WIDTH + ACROSS) - ACROSS
    found.width = 2 * left + across
    found.height = bottom + BACK * back + MARGIN
    for number in sorted(set(cycle_of.values()) - {-1}):
        found.cycles.append([name for name in nodes if cycle_of[name] == number])
    return found


def _forward(flow: Flow, places: dict[str, tuple[int, int]], in_cycle: bool) -> Line:
    (x1, y1), (x2, y2) = places[flow.source], places[flow.target]
    x1, y1, y2 = x1 + WIDTH, y1 + HEIGHT // 2, y2 + HEIGHT // 2
    bend = (x2 - x1) // 2
    path = f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2 - 3} {y2}"
    return Line(flow, path, x1 + ACROSS // 2, (y1 + y2) // 2 - 6, in_cycle)


def _backward(flow: Flow, places: dict[str, tuple[int, int]], y: int, in_cycle: bool) -> Line:
    """Return a line from the right side of one box, below all of them, to the left side of
    another."""
    (x1, y1), (x2, y2) = places[flow.source], places[flow.target]
    x1, y1, y2 = x1 + WIDTH, y1 + HEIGHT // 2, y2 + HEIGHT // 2
    turn = x2 - 24
    path = (
        f"M{x1} {y1} h12 q8 0 8 8 V{y - 8} q0 8 -8 8 H{turn + 8} q-8 0 -8 -8 V{y2 + 8} "
        f"q0 -8 8 -8 H{x2 - 3}"
    )
    return Line(flow, path, (x1 + turn) // 2, y - 5, in_cycle)


def _cycles(nodes: list[str], ways: dict[str, list[str]]) -> dict[str, int]:
    """Return for each node the number of the cycle it is in, -1 for none: Tarjan's strongly
    connected components of more than one node, or of one that leads to itself. O(nodes + flows)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    cycle_of = dict.fromkeys(nodes, -1)
    number = 0
    for root in nodes:
        work = [(root, 0)] if root not in index else []
        while work:
            name, at = work.pop()
            if at == 0:
                index[name] = low[name] = len(index)
                stack.append(name)
            elif ways[name][at - 1] in low:
                low[name] = min(low[name], low[ways[name][at - 1]])
            for next_at in range(at, len(ways[name])):
                other = ways[name][next_at]
                if other not in index:
                    work += [(name, next_at + 1), (other, 0)]
                    break
                if other in low:
                    low[name] = min(low[name], index[other])
            else:
                if low[name] == index[name]:
                    group = stack[stack.index(name) :]
                    del stack[-len(group) :]
                    for one in group:
                        del low[one]
                    if len(group) > 1 or name in ways[name]:
                        cycle_of.update(dict.fromkeys(group, number))
                        number += 1
    return cycle_of


def _columns(
    nodes: list[str], ways: dict[str, list[str]], cycle_of: dict[str, int]
) -> dict[str, int]:
    """Return the column of each node: the length of the longest way to it without turning back."""
    state: dict[str, int] = {}
    order: list[str] = []
    forward: dict[str, list[str]] = {name: [] for name in nodes}
    for root in sorted(nodes, key=lambda name: cycle_of[name] >= 0):
        work = [(root, 0)] if root not in state else []
        while work:
            name, at = work.pop()
            state[name] = 1
            for next_at in range(at, len(ways[name])):
                other = ways[name][next_at]
                if state.get(other) != 1:
                    forward[name].append(other)
                if other not in state:
                    work += [(name, next_at + 1), (other, 0)]
                    break
            else:
                state[name] = 2
                order.append(name)
    columns = dict.fromkeys(nodes, 0)
    for name in reversed(order):
        for other in forward[name]:
            columns[other] = max(columns[other], columns[name] + 1)
    return columns
