"""Graph of the dead letters' paths: its cycles, and a position for each queue on the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Edge = tuple[str, str]


def cycles(edges: Iterable[Edge]) -> list[list[str]]:
    """Groups of queues that lead to one another, and queues that lead to themselves: each group in
    the order of a walk, sorted by its first queue [Tarjan's strongly connected components].

    >>> cycles([("work", "retry"), ("retry", "work"), ("work", "parked"), ("odd", "odd")])
    [['odd'], ['retry', 'work']]
    """
    after = _after(edges)
    found = []
    for group in _components(after):
        if len(group) > 1 or group[0] in after[group[0]]:
            found.append(_walk(sorted(group), after))
    return sorted(found)


def layers(edges: Iterable[Edge]) -> list[list[str]]:
    """The queues in columns, from left to right: each behind those that lead to it, those of a
    cycle as if it had been cut at its first queue.

    >>> layers([("work", "retry"), ("retry", "work"), ("work", "parked"), ("mail", "parked")])
    [['mail', 'retry'], ['work'], ['parked']]
    """
    after = _after(edges)
    depth = dict.fromkeys(after, 0)
    forward = _without_ways_back(after)
    for _ in range(len(after)):
        for node, targets in forward.items():
            for target in targets:
                depth[target] = max(depth[target], depth[node] + 1)
    columns: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node in sorted(after):
        columns[depth[node]].append(node)
    return [_near(column, columns, i, after) for i, column in enumerate(columns)]


def _after(edges: Iterable[Edge]) -> dict[str, list[str]]:
    after: dict[str, list[str]] = {}
    for source, target in sorted(edges):
        after.setdefault(source, []).append(target)
        after.setdefault(target, [])
    return after


def _near(
    column: list[str], columns: list[list[str]], i: int, after: Mapping[str, list[str]]
) -> list[str]:
    """Order a column of queues by the positions of their predecessors, so that few lines cross."""
    if i == 0:
        return column
    before = columns[i - 1]
    place = {node: at for at, node in enumerate(before)}

    def middle(node: str) -> float:
        sources = [place[source] for source in before if node in after[source]]
        return sum(sources) / len(sources) if sources else len(before)

    column.sort(key=lambda node: (middle(node), node))
    return column


def _without_ways_back(after: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the edges without those that close a cycle on a walk that begins at queues without
    predecessors, then at the others."""
    led_to = {target for targets in after.values() for target in targets}
    order = [*(n for n in after if n not in led_to), *after]
    forward: dict[str, list[str]] = {node: [] for node in after}
    done: set[str] = set()
    open_: set[str] = set()

    def visit(start: str) -> None:
        ways = [(start, iter(after[start]))]
        open_.add(start)
        while ways:
            node, targets = ways[-1]
            target = next(targets, None)
            if target is None:
                ways.pop()
                open_.discard(node)
                done.add(node)
            elif target not in open_:
                forward[node].append(target)
                if target not in done:
                    open_.add(target)
                    ways.append((target, iter(after[target])))

    for node in order:
        if node not in done:
            visit(node)
    return forward


def _components(after: Mapping[str, list[str]]) -> list[list[str]]:
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    for root in after:
        if root in number:
            continue
        ways = [(root, iter(after[root]))]
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while ways:
            node, targets = ways[-1]
            target = next(targets, None)
            if target is None:
                ways.pop()
                if ways:
                    low[ways[-1][0]] = min(low[ways[-1][0]], low[node])
                if low[node] == number[node]:
                    at = stack.index(node)
                    found.append(stack[at:])
                    on_stack.difference_update(stack[at:])
                    del stack[at:]
            elif target not in number:
                number[target] = low[target] = len(number)
                stack.append(target)
                on_stack.add(target)
                ways.append((target, iter(after[target])))
            elif target in on_stack:
                low[node] = min(low[node], number[target])
    return found


def _walk(group: list[str], after: Mapping[str, list[str]]) -> list[str]:
    """Return all of a group, along its edges as far as one walk goes."""
    walk, left = [group[0]], set(group[1:])
    while left:
        ahead = [node for node in after[walk[-1]] if node in left]
        node = ahead[0] if ahead else min(left)
        walk.append(node)
        left.discard(node)
    return walk
